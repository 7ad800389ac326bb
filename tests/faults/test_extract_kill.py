"""kill -9 at random moments of an extraction, then the same command again: the same bytes as without a kill."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reservoir_cache import Entry, FeatureStore, verify

# Blocks of 16 rows make many moments at which a kill can fall; nothing else differs from the command line.
RUN = """
import sys
from reservoir_pipelines.extraction import plan
from reservoir_pipelines.cli import run
plan.BLOCK_ROWS["cpu"] = 16
sys.exit(run(sys.argv[1:]))
"""


def command(cache, backbone):
    arguments = [
        "extract",
        "digits",
        "--backbone",
        str(backbone),
        "--cache",
        str(cache),
        "--compute",
        "float32",
        "--json",
    ]
    return [sys.executable, "-c", RUN, *arguments]


def start(cache, backbone):
    return subprocess.Popen(
        command(cache, backbone),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def feature_files(cache):
    """Digest of every shard and label file, by its place below the features."""
    features = Path(cache) / "features"
    return {str(p.relative_to(features)): hashlib.sha256(p.read_bytes()).hexdigest() for p in features.rglob("*.h5")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, tiny_gpt2):
    cache = tmp_path_factory.mktemp("whole")
    process = start(cache, tiny_gpt2)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return cache, json.loads(out)


def test_killed_and_rerun_gives_the_same_bytes(uninterrupted, tiny_gpt2, tmp_path):
    whole, _ = uninterrupted
    draw = random.Random(1)
    kills_inside = 0
    for _ in range(6):
        process = start(tmp_path, tiny_gpt2)
        shards = len(list(tmp_path.rglob("features/*/*/*/*.h5")))
        # Wait until the run itself writes, so that the kill falls into the extraction and not into the imports.
        deadline = time.monotonic() + 60
        while process.poll() is None and len(list(tmp_path.rglob("features/*/*/*/*.h5"))) == shards:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills_inside += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
    assert kills_inside >= 2
    process = start(tmp_path, tiny_gpt2)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    done = json.loads(out)
    assert feature_files(tmp_path) == feature_files(whole)
    assert not [p for p in Path(done["entry"]).rglob("*") if "tmp" in p.name]
    assert verify(Entry.open(Path(done["entry"]))) == []


def test_two_runs_at_once_share_the_work_and_give_the_same_bytes(uninterrupted, tiny_gpt2, tmp_path):
    whole, alone = uninterrupted
    first, second = start(tmp_path, tiny_gpt2), start(tmp_path, tiny_gpt2)
    results = []
    for process in (first, second):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        results.append(json.loads(out))
    assert sum(r["computed_rows"] for r in results) == sum(alone["rows"].values())
    assert feature_files(tmp_path) == feature_files(whole)
    assert FeatureStore(Path(results[0]["entry"]))["train"].rows == alone["rows"]["train"]
