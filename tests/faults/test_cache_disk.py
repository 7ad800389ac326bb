"""The cache on a disk that refuses to take more: one line, nothing half-written, and the rerun succeeds."""

import json
import subprocess
import sys

import pytest

# A file size limit stands in for a full disk: HDF5's own writes fail, somewhere in the file.
SCRIPT = """
import json, resource, signal, sys
from pathlib import Path
import numpy as np
from reservoir_cache import CacheError, Entry, Layout, Spec, write_block

spec = Spec(
    task={"name": "toy"}, data={"digest": "d", "rows": {"train": 64}}, backbone={"family": "gpt2", "digest": "b"},
    init={"kind": "random", "seed": 0}, input={"kind": "orthogonal", "seed": 0, "gain": 1, "patch": 1, "stride": 1},
    padding="mask", compute="float32", store="float16",
)
entry = Entry.create(Path(sys.argv[1]), "gpt2-random", spec, Layout(batch_rows=8), {})
arrays = {f"block{n:02d}/mean": np.ones((64, 1, 512), np.float32) for n in range(4)}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
try:
    write_block(entry, "train", 0, arrays)
    message = "written"
except CacheError as error:
    message = str(error)
left = sorted(path.name for path in (entry.path / "train").iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
written = write_block(entry, "train", 0, arrays)
print(json.dumps([message, left, written > 0, sorted(path.name for path in (entry.path / "train").iterdir())]))
"""


@pytest.mark.parametrize("limit", [500, 2500, 150_000, 262_000])
def test_a_write_that_fails_midway(tmp_path, limit):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(limit)], capture_output=True, text=True, check=True
    )
    message, left, written, after = json.loads(done.stdout)
    assert "00000-0.h5: cannot be written" in message
    assert "\n" not in message
    assert (left, written, after) == ([], True, ["00000-0.h5", "manifest.json"])
