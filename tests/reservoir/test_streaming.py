"""Streamed blocks: the values, digests and precisions of resident ones, one block in memory, and whole extractions."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from reservoir_pipelines import extract

from reservoir.backbones import load_backbone, load_native, weights_digest
from reservoir.backbones.family import SkipInitialisation
from reservoir.backbones.streaming import StreamedBlocks
from reservoir.errors import InputError
from reservoir.features import forward
from reservoir.loaded_model import load_model
from reservoir.options import PRECISIONS
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Vectors
from tests.helpers import Child, contents
from tests.reservoir.models import MODELS, save

TASK = Task(name="streamed", form=Vectors(4), max_tokens=12, classes=2)
COLUMNS = ("embed/mean", "block01/mean", "block02/last", "block03/std", "final/mean", "final/last")
# The blocks of the others are not part of a text model, or have a single tensor for all.
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
    start = StreamedBlocks._start_reading
    monkeypatch.setattr(
        StreamedBlocks, "_start_reading", lambda blocks, number: read.append(number) or start(blocks, number)
    )
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


# Extraction with a model that is larger than memory: in a process with a limit, killed and resumed, the same bytes.


BLOCKS, WIDTH = 8, 512
BLOCK_BYTES = 4 * (4 * WIDTH**2 + 3 * WIDTH * 4 * WIDTH)  # 17 MB in float32

MEASURED = """
import sys, threading, time
from pathlib import Path
import transformers.models.llama.modeling_llama
from reservoir_pipelines import extract

def own_memory():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["RssAnon"].split()[0])

before = peak = own_memory()
is_running = True

def watch():
    global peak
    while is_running:
        peak = max(peak, own_memory())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
extract("digits", backbone=sys.argv[1], cache=sys.argv[2], limit=2, compute="float32", stream=sys.argv[3])
is_running = False
watcher.join()
print(peak - before)
"""

KILLED = """
import os, signal, sys
from reservoir.plan import precision
from reservoir_cache import writer
from reservoir_pipelines import extract

precision.BLOCK_ROWS["cpu"] = 8
settings = {"layers": "final", "pool": "mean", "compute": "float32", "stream": "always"}
writer.GROUP_BYTES, list_shards = 1, writer._list_shards  # each block is listed on its own

def list_the_first_and_die(entry, group):
    list_shards(entry, group)
    if group:
        os.kill(os.getpid(), signal.SIGKILL)

writer._list_shards = list_the_first_and_die
extract("digits", backbone=sys.argv[1], cache=sys.argv[2], limit=40, **settings)
"""


def shards(root: Path) -> dict[str, bytes]:
    return contents(root / "features", "*.h5")


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": BLOCKS, "vocab_size": 10}
    config = LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=8)
    with SkipInitialisation():  # the weights are repeated below, because drawing them takes seconds
        model = LlamaModel(config).to(torch.bfloat16)
    values = torch.randn(4 * WIDTH, 4 * WIDTH, generator=torch.Generator().manual_seed(0)) * 0.02
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.copy_(values[: parameter.shape[0], : parameter.shape[1]])
    folder = tmp_path_factory.mktemp("large") / "llama"
    model.save_pretrained(folder, max_shard_size="20MB")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux, which counts a process's own memory")
def test_a_streamed_model_takes_the_memory_of_a_few_blocks_and_gives_the_same_bytes(large, tmp_path):
    memory = {}
    for stream in ("never", "always"):
        code, out, err = Child(MEASURED, large, tmp_path / stream, stream).ended()
        assert code == 0, err
        memory[stream] = int(out.split()[-1])
    assert "its blocks are read from their file while they run" in err
    assert shards(tmp_path / "always") == shards(tmp_path / "never")
    assert memory["never"] > BLOCKS * BLOCK_BYTES
    # All else that an extraction takes is the same in both.
    assert memory["always"] < memory["never"] - (BLOCKS - 4) * BLOCK_BYTES


def test_a_streamed_extraction_that_is_killed_and_resumed_gives_the_bytes_of_a_resident_one(
    tmp_path, cache, monkeypatch
):
    from reservoir.plan import precision

    monkeypatch.setitem(precision.BLOCK_ROWS, "cpu", 8)
    folder = save("llama", tmp_path / "llama")
    resident, streamed = tmp_path / "resident", tmp_path / "streamed"
    settings = {"layers": "final", "pool": "mean", "compute": "float32", "limit": 40}
    extract("digits", backbone=folder, cache=resident, stream="never", **settings)
    code, _, err = Child(KILLED, folder, streamed).ended()
    assert code == -signal.SIGKILL, err
    assert 0 < len(shards(streamed)) < len(shards(resident))
    extraction = extract("digits", backbone=folder, cache=streamed, stream="always", **settings)
    assert 0 < extraction.computed_rows < 120  # of three splits
    assert shards(streamed) == shards(resident)


def test_streaming_is_no_part_of_the_key(tmp_path, cache):
    folder = save("llama", tmp_path / "llama")
    first = extract("digits", backbone=folder, cache=tmp_path / "cache", limit=10, stream="never")
    second = extract("digits", backbone=folder, cache=tmp_path / "cache", limit=10, stream="always")
    assert second.entry == first.entry and second.computed_rows == 0
    assert "stream" not in json.loads((first.entry / "spec.json").read_text())
