"""The cache against kill -9 at any moment, and against two writers at once: the bytes on disk are always the same."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

COMMON = '''
import os, signal, sys, time, zlib
from functools import partial
from pathlib import Path
import numpy as np
from reservoir_cache import Entry, Layout, ShardWriter, Spec, repair, write_block, write_targets

COLUMNS = ["block01/mean", "final/last"]
SPEC = Spec(
    task={"name": "toy"}, data={"digest": "d", "rows": {"train": ROWS, "test": 8}},
    backbone={"family": "gpt2", "digest": "b"}, init={"kind": "random", "seed": 0},
    input={"kind": "orthogonal", "seed": 0, "gain": 1.41, "patch": 1, "stride": 1},
    padding="mask", compute="float32", store="float16",
)

def features(split, block, rows):
    rng = np.random.default_rng(zlib.crc32(f"{split} {block}".encode()))
    return {name: (50 + rng.standard_normal((rows, 1, 64))).astype(np.float32) for name in COLUMNS}

def extract(root, put):
    """The loop of an extraction; returns the blocks that this process computed."""
    entry = Entry.create(Path(root), "gpt2-random", SPEC, Layout(batch_rows=4, block_rows=8), {"n": 1})
    repair(entry)
    done = []
    for split, rows in SPEC.rows.items():
        write_targets(entry, split, {
            "y": np.zeros((rows, 1, 1), np.int64), "lengths": np.ones(rows, np.int64), "index": np.arange(rows)})
        for block in entry.missing(split, COLUMNS):
            with entry.claim(split, block) as mine:
                if mine and block in entry.missing(split, COLUMNS):
                    low, high = entry.blocks(split)[block]
                    put(entry)(split, block, features(split, block, high - low))
                    done.append((split, block))
    return done
'''

# Forks a child for each drawn moment, which kills itself when that many lines of the package have run; then one child
# runs to the end. Forking spares the imports. Prints how many lines an undisturbed run takes and how many were killed.
MOMENTS = (
    COMMON
    + """
def child(root, moment):
    count = 0
    def lines(frame, event, argument):
        nonlocal count
        if event == "line":
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        return lines
    def calls(frame, event, argument):
        return lines if "reservoir_cache" in frame.f_code.co_filename else None
    sys.settrace(calls)
    extract(root, lambda entry: partial(write_block, entry))
    sys.settrace(None)
    return count

def run(root, moment):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(child(root, moment)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    count = os.read(reader, 20)
    os.close(reader)
    return int(count or 0), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

import random
lines, status = run(sys.argv[1], 0)
assert status == 0
draw, killed = random.Random(int(sys.argv[3])), 0
for number in range(int(sys.argv[4])):
    root = Path(sys.argv[2]) / str(number)
    for moment in (draw.randrange(1, lines), draw.randrange(1, lines // 2)):
        killed += run(root, moment)[1] == -signal.SIGKILL
    assert run(root, 0)[1] == 0
print(lines, killed)
"""
)


def digest(root: Path):
    """Return {relative path: digest} of everything but the lock and the run records, temporary files included."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock" and path.parent.name != "runs"
    }


def script(text, rows, *arguments):
    code = text.replace("ROWS", str(rows))
    return [sys.executable, "-c", code, *map(str, arguments)]


def test_killed_at_any_line_and_rerun_the_bytes_are_those_of_an_undisturbed_run(tmp_path):
    trials = 10
    command = script(MOMENTS, 20, tmp_path / "whole", tmp_path / "killed", 7, trials)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    lines, killed = map(int, done.stdout.split())
    assert lines > 1000
    assert killed > trials  # of two kills each, the second may come after the end
    whole = digest(tmp_path / "whole")
    assert len(whole) == 1 + 2 * 2 + 3 + 1
    for number in range(trials):
        assert digest(tmp_path / "killed" / str(number)) == whole, number
