"""Real pretrained models, if they are available: their weights are the trained ones."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reservoir.backbones import load_backbone, weights_digest
from tests.conftest import SHARED
from tests.reservoir.models import save

STORIES = SHARED / "weights" / "stories15M"
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her dog, Max. "
    "One day, Max saw a big red ball and ran after it. The ball rolled into a pond. Lily was sad because she could not "
    "reach the ball. A kind man saw her and helped. He used a long stick to get the ball out of the water. Lily said "
    "thank you and gave the man a big smile. Then she and Max went home and played with the ball all day."
)


def tokenize(folder, text):
    from tokenizers import Tokenizer

    return torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


@pytest.mark.skipif(not STORIES.is_dir(), reason="stories15M is not here")
def test_stories15m_predicts_stories_better_than_shuffled_words():
    """The backbone's final states, through the model's own word table, predict a story and no word salad."""
    from safetensors.torch import load_file

    backbone = load_backbone(str(STORIES), "pretrained")
    tensors = load_file(STORIES / "model.safetensors")
    words = next(tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")).float()

    def perplexity(text):
        ids = tokenize(STORIES, text)
        with torch.inference_mode():
            logits = backbone(words[ids][None])[0] @ words.T
        return float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:]).exp())

    shuffled = " ".join(np.random.default_rng(0).permutation(STORY.split()))
    assert perplexity(STORY) < 20
    assert perplexity(shuffled) > 1000


@pytest.mark.parametrize(
    ("kind", "unread"), [("gpt2", "wte."), ("bert", "word_embeddings."), ("llama", "embed_tokens.")]
)
def test_checkpoints_without_token_embeddings_load(tmp_path, kind, unread):
    folder = save(kind, tmp_path / kind)
    whole = load_backbone(str(folder), "pretrained")
    tensors = load_file(folder / "model.safetensors")
    few = {name: tensor for name, tensor in tensors.items() if unread not in name}
    assert len(few) < len(tensors)
    save_file(few, folder / "model.safetensors", {"format": "pt"})
    found = load_backbone(str(folder), "pretrained")
    assert weights_digest(found) == weights_digest(whole)
