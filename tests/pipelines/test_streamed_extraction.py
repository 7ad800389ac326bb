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

BLOCKS, WIDTH = 12, 512
MODEL_BYTES = BLOCKS * 4 * (4 * WIDTH**2 + 3 * WIDTH * 4 * WIDTH)  # 201 MB in float32; two blocks are 34 MB
# What the process may use in addition to what it has when it begins: the limit counts the mapped files, half of the
# model in bfloat16, of which the system may drop each page. The rest is what the process has for itself, of which the
# stacks of threads are a large part.
ROOM = MODEL_BYTES // 2 + 130 * 10**6

LIMITED = """
import resource, sys
from pathlib import Path
import transformers.models.llama.modeling_llama
from reservoir_pipelines import extract

status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
limit = 1024 * int(status["VmData"].split()[0]) + int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
extract("digits", backbone=sys.argv[1], cache=sys.argv[2], limit=8, compute="float32", stream=sys.argv[3])
"""

KILLED = """
import os, signal, sys
from reservoir.plan import precision
from reservoir_pipelines import extract
from reservoir_pipelines.extraction import extractor

precision.BLOCK_ROWS["cpu"] = 8
launch, parts = extractor.launch, []

def launch_three(*arguments):
    parts.append(arguments)
    if len(parts) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return launch(*arguments)

extractor.launch = launch_three
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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the limits of Linux")
def test_a_model_larger_than_memory_gives_the_bytes_of_one_that_fits(large, cache, tmp_path):
    resident, limited = tmp_path / "resident", tmp_path / "limited"
    extract("digits", backbone=large, cache=resident, limit=8, compute="float32", stream="never")
    # With `auto`, the process finds out by itself that the model does not fit, and says so.
    code, _, err = Child(LIMITED, large, limited, "auto", ROOM).ended()
    assert code == 0, err
    assert "does not fit into memory" in err
    assert shards(limited) == shards(resident)
    # Without streaming, the limit is too small.
    code, _, err = Child(LIMITED, large, tmp_path / "refused", "never", ROOM).ended()
    assert code != 0
    assert "memory" in err.lower()


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
    assert extraction.computed_rows < 40
    assert shards(streamed) == shards(resident)


def test_streaming_is_no_part_of_the_key(tmp_path, cache):
    folder = save("llama", tmp_path / "llama")
    first = extract("digits", backbone=folder, cache=tmp_path / "cache", limit=10, stream="never")
    second = extract("digits", backbone=folder, cache=tmp_path / "cache", limit=10, stream="always")
    assert second.path == first.path and second.computed_rows == 0
    assert "stream" not in json.loads((first.path / "spec.json").read_text())
