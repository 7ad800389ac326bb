"""Streamed blocks: the values, digests and precisions of resident ones, one block in memory, and refused models."""

from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir.backbones import load_backbone, load_native, weights_digest
from reservoir.backbones.streaming import StreamedBlocks
from reservoir.errors import InputError
from reservoir.features import forward
from reservoir.loaded_model import load_model
from reservoir.options import PRECISIONS
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Vectors
from tests.reservoir.models import MODELS, save

TASK = Task(name="streamed", form=Vectors(4), max_tokens=12, classes=2)
COLUMNS = ("embed/mean", "block01/mean", "block02/last", "block03/std", "final/mean", "final/last")
# The blocks of the others are no part of a text model, or have a single tensor for all.
STREAMED = [kind for kind in MODELS if kind not in ("vit", "dinov2")]


def rows(count: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of several lengths."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(4, 13, count)
    lengths[0] = 12
    return draw.normal(size=(count, 12, 4)).astype(np.float32), lengths


def features(folder: Path, stream: str, compute: str = "float32", columns=COLUMNS, depth=None) -> dict[str, np.ndarray]:
    settings = Reservoir(backbone=str(folder), init="pretrained", depth=depth)
    model = load_model(TASK, settings, "cpu", compute, stream=stream)
    assert (model.fpt.backbone.streamed is not None) == (stream == "always")
    return forward(model, None, *rows(), columns, batch_rows=2)


@pytest.mark.parametrize("kind", STREAMED)
def test_streamed_features_have_the_bytes_of_resident_ones(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    resident, streamed = (features(folder, stream) for stream in ("never", "always"))
    for column in COLUMNS:
        assert np.array_equal(streamed[column], resident[column]), column


@pytest.mark.parametrize(
    "columns", [("embed/mean",), ("block01/mean",), ("block02/mean", "embed/last"), ("final/mean",)]
)
def test_only_needed_blocks_run(tmp_path, columns, monkeypatch):
    folder = save("llama", tmp_path / "llama")
    resident, streamed = (features(folder, stream, columns=columns) for stream in ("never", "always"))
    assert streamed.keys() == resident.keys()
    for column in columns:
        assert np.array_equal(streamed[column], resident[column])


@pytest.mark.parametrize("compute", ["bfloat16", "bfloat16-all"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3_text"])
def test_fewer_blocks_in_bfloat16_are_the_same(kind, compute, tmp_path):
    folder = save(kind, tmp_path / kind)
    columns = ("block01/mean", "block02/mean", "final/mean")
    resident, streamed = (features(folder, stream, compute, columns, depth=2) for stream in ("never", "always"))
    for column in columns:
        assert np.array_equal(streamed[column], resident[column])


def test_weights_in_bfloat16_are_streamed_as_they_are_stored(tmp_path):
    from transformers import AutoModel

    folder = tmp_path / "half"
    AutoModel.from_pretrained(save("llama", tmp_path / "llama")).to(torch.bfloat16).save_pretrained(folder)
    for compute in PRECISIONS:
        resident, streamed = (features(folder, stream, compute) for stream in ("never", "always"))
        for column in COLUMNS:
            assert np.array_equal(streamed[column], resident[column])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5", "bert"])
def test_the_digest_and_a_single_call_are_the_same(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    resident, streamed = (load_backbone(str(folder), "pretrained", memory_limit=limit) for limit in (None, 0))
    assert weights_digest(streamed) == weights_digest(resident)
    embeds = torch.randn(2, 6, resident.width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(streamed(embeds), resident(embeds))


def test_at_most_two_blocks_are_in_memory(tmp_path):
    backbone = load_backbone(str(save("llama", tmp_path / "llama")), "pretrained", memory_limit=0)
    sizes: list[list[int]] = []

    def note(_module, _inputs, _output) -> None:
        sizes.append([sum(p.numel() for p in block.parameters()) for block in backbone.blocks])

    for block in backbone.blocks:
        block.register_forward_hook(note)
    with torch.no_grad():
        backbone(torch.zeros(1, 3, backbone.width))
    # The thread holds the tensors of the next block until that runs.
    assert [[size > 0 for size in of_run] for of_run in sizes] == np.eye(3, dtype=bool).tolist()


def test_all_batches_share_one_reading_of_a_block(tmp_path, monkeypatch):
    read: list[int] = []
    submit = StreamedBlocks._submit
    monkeypatch.setattr(StreamedBlocks, "_submit", lambda blocks, number: read.append(number) or submit(blocks, number))
    features(save("llama", tmp_path / "llama"), "always")  # in several batches
    assert read == [0, 1, 2, 0]  # the first block again, for what may follow


def test_a_model_that_fits_is_not_streamed_and_a_larger_one_is(tmp_path, monkeypatch):
    folder = str(save("llama", tmp_path / "llama"))
    settings = Reservoir(backbone=folder, init="pretrained")
    assert load_model(TASK, settings, "cpu", "float32", stream="auto").fpt.backbone.streamed is None
    monkeypatch.setattr("reservoir.devices.free_memory", lambda: 1000)
    assert load_model(TASK, settings, "cpu", "float32", stream="auto").fpt.backbone.streamed
    assert load_model(TASK, settings, "cpu", "float32", stream="never").fpt.backbone.streamed is None


def test_native_input_is_streamed_too(tmp_path):
    folder = str(save("llama", tmp_path / "llama"))
    words = torch.arange(8).reshape(2, 4)
    outputs = []
    for limit in (None, 0):
        backbone, embeddings = load_native(folder, memory_limit=limit)
        assert (backbone.streamed is None) == (limit is None)
        with torch.no_grad():
            outputs.append(backbone(embeddings(words).float()))
    assert torch.equal(*outputs)


def test_a_value_that_is_not_finite_is_refused_when_its_block_is_read(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save("llama", tmp_path / "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj\.weight holds NaN"):
        features(folder, "always")


def test_drawn_weights_and_models_without_known_blocks_are_not_streamed(tmp_path):
    assert load_backbone("gpt2:n_layer=1,n_embd=8,n_head=1", "random", memory_limit=0).streamed is None
    assert load_backbone(str(save("llama", tmp_path / "a")), "statistics", memory_limit=0).streamed is None
    with pytest.raises(InputError, match="--stream never"):
        load_backbone(str(save_falcon(tmp_path / "falcon")), "pretrained", memory_limit=0)


def save_falcon(folder: Path) -> Path:
    from transformers import FalconConfig, FalconModel

    config = FalconConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=20)
    FalconModel(config).save_pretrained(folder)
    return folder
