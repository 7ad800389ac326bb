"""Language models of every family: float32, no dropout, no token treated as padding, masking."""

import json

import numpy as np
import pytest
import torch

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.pretraining.language_model import BOTH_WAYS, CAUSAL, MASKED, LanguageModel
from tests.reservoir.models import save

TINY = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=24"
ROBERTA = "hidden_size=16,num_attention_heads=2,intermediate_size=24,max_position_embeddings=26"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return what writes a tiny model of a family, in half precision as many are published."""
    root = tmp_path_factory.mktemp("shapes")

    def make(family):
        path = save(family, root / family)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
        return str(path)

    return make


@pytest.mark.parametrize("family", [*CAUSAL, *BOTH_WAYS])
def test_language_model_logits_and_backbone_of_every_family(family, folder, tmp_path):
    shape = folder(family)
    model = LanguageModel(shape, 40, 1).train()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 40, (2, 9)))
    logits = model(tokens)
    assert torch.equal(logits, model(tokens)), "no dropout"
    assert logits.shape == (2, 9, 40 if model.causal else 41) and model.extra == model.causal
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 40
    seen = (model(changed) - logits).abs().amax((0, 2)) > 1e-6
    assert seen.tolist() == [not model.causal] * 5 + [True] * 4
    again, other = LanguageModel(shape, 40, 1), LanguageModel(shape, 40, 2)
    drawn = {name for name, p in model.named_parameters() if not torch.equal(p, other.get_parameter(name))}
    assert len(drawn) > 10 and all(torch.equal(p, again.get_parameter(n)) for n, p in model.named_parameters())
    model.model.save_pretrained(tmp_path / "kept")
    assert load_backbone(str(tmp_path / "kept"), "pretrained").shape.width == 16


@pytest.mark.parametrize(("name", "first"), [(TINY, 0), ("roberta-base:" + ROBERTA, 2)])
def test_repeat_positions(name, first):
    model = LanguageModel(name, 40)
    (table,) = [p for n, p in model.named_parameters() if "wpe" in n or "position_embeddings" in n]
    before = table.detach().clone()
    model.repeat_positions(4)
    assert torch.equal(table[: first + 4], before[: first + 4])
    for place in range(first + 4, len(table)):
        assert torch.equal(table[place], before[first + (place - first) % 4])


@pytest.mark.parametrize("name", ["roberta-base", "distilbert-base-uncased:dim=16,n_heads=2,hidden_dim=24"])
def test_no_corpus_token_is_treated_as_padding(name):
    """RoBERTa's own padding is token 1, which is a byte or a kind of token here: it has a position like all others."""
    model = LanguageModel(name + (":" + ROBERTA if name == "roberta-base" else ""), 6)
    (embedding,) = [m for n, m in model.named_modules() if n.endswith("word_embeddings")]
    with torch.no_grad():
        embedding.weight[1] = embedding.weight[4]
    tokens = torch.tensor([[0, 4, 2, 4, 4, 5, 4]])
    torch.testing.assert_close(model(tokens.masked_fill(tokens == 4, 1)), model(tokens))


def test_hide_masks_the_given_share_of_tokens():
    model = LanguageModel("bert-base-uncased:num_hidden_layers=1,hidden_size=16,num_attention_heads=2", 30)
    windows = torch.from_numpy(np.random.default_rng(0).integers(0, 30, (400, 50)))
    inputs, hidden = model.hide(windows, 3, "train", 0)
    assert hidden.float().mean().item() == pytest.approx(MASKED, abs=0.01)
    assert (inputs[hidden] == 30).all() and torch.equal(inputs[~hidden], windows[~hidden])
    assert torch.equal(model.hide(windows, 3, "train", 0)[1], hidden)
    assert not torch.equal(model.hide(windows, 3, "train", 1)[1], hidden)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("t5-small", "--backbone t5-small: t5 models cannot be pretrained; use one of gpt2, "),
        ("esn:units=10", "esn models cannot be pretrained"),
        ("gpt2:n_embd=17,n_head=2", "--backbone gpt2:n_embd=17,n_head=2: its configuration does not work"),
        ("gpt2:n_embd=abc", "n_embd takes int"),
        ("gpt2:activation_function=foo", "activation_function=foo is not an activation"),
        ('HuggingFaceTB/SmolLM2-135M:rope_parameters={"rope_type":"foo"}', r"does not work \('foo'\)"),
        ("gpt2:n_layer=0", "blocks: 0; give a whole number from 1"),
        ("nothing-like-it", "nothing-like-it"),
    ],
)
def test_backbones_that_cannot_be_pretrained_are_refused(backbone, message):
    with pytest.raises(InputError, match=message) as caught:
        LanguageModel(backbone, 256)
    assert "\n" not in str(caught.value)
