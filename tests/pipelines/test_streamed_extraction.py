"""Extraction with a model that is larger than memory: in a process with a limit, killed and resumed, the same bytes."""

import json
import signal
from pathlib import Path

import pytest
import torch
from reservoir_pipelines import extract

from reservoir.backbones.family import SkipInitialisation
from tests.files import contents
from tests.processes import Child
from tests.reservoir.models import save

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
writer.GROUP_BYTES, list_shards = 1, writer._list_shards  # each block is listed on its own

def list_the_first_and_die(entry, group):
    list_shards(entry, group)
    if group:
        os.kill(os.getpid(), signal.SIGKILL)

writer._list_shards = list_the_first_and_die
extract("digits", backbone=sys.argv[1], cache=sys.argv[2], limit=40, compute="float32", stream="always")
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
    extract("digits", backbone=folder, cache=resident, limit=40, compute="float32", stream="never")
    code, _, err = Child(KILLED, folder, streamed).ended()
    assert code == -signal.SIGKILL, err
    assert 0 < len(shards(streamed)) < len(shards(resident))
    extraction = extract("digits", backbone=folder, cache=streamed, limit=40, compute="float32", stream="always")
    assert 0 < extraction.computed_rows < 120  # of three splits
    assert shards(streamed) == shards(resident)


def test_streaming_is_no_part_of_the_key(tmp_path, cache):
    folder = save("llama", tmp_path / "llama")
    first = extract("digits", backbone=folder, cache=tmp_path / "cache", limit=10, stream="never")
    second = extract("digits", backbone=folder, cache=tmp_path / "cache", limit=10, stream="always")
    assert second.entry == first.entry and second.computed_rows == 0
    assert "stream" not in json.loads((first.entry / "spec.json").read_text())
