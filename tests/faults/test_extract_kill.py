"""kill -9 at named steps of an extraction, then the same command again: the same bytes as without a kill."""

import hashlib
import json
import signal
from pathlib import Path

import pytest
from reservoir_cache import Entry, FeatureStore, verify

from tests.processes import Child

# Blocks of 16 rows make many moments at which a kill can fall; nothing else differs from the command line.
RUN = """
import sys
from reservoir import plan
from reservoir_pipelines.cli import run
plan.BLOCK_ROWS["cpu"] = 16
sys.exit(run(sys.argv[1:]))
"""


def start(cache, backbone, fault=""):
    settings = ["--backbone", backbone, "--cache", cache, "--limit", 160, "--layers", "embed,final"]
    return Child(RUN, "extract", "digits", *settings, "--compute", "float32", "--json", RESERVOIR_FAULT=fault)


def feature_files(cache):
    """Digest of every shard and label file, by its place below the features."""
    features = Path(cache) / "features"
    return {str(p.relative_to(features)): hashlib.sha256(p.read_bytes()).hexdigest() for p in features.rglob("*.h5")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, tiny_gpt2):
    cache = tmp_path_factory.mktemp("whole")
    code, out, err = start(cache, tiny_gpt2).ended()
    assert code == 0, err
    return cache, json.loads(out)


def test_killed_and_rerun_gives_the_same_bytes(uninterrupted, tiny_gpt2, tmp_path):
    whole, _ = uninterrupted
    for fault in ("written:5", "synced:8", "replaced:11", "listed:7"):
        assert start(tmp_path, tiny_gpt2, fault).ended()[0] == -signal.SIGKILL
    code, out, err = start(tmp_path, tiny_gpt2).ended()
    assert code == 0, err
    done = json.loads(out)
    assert feature_files(tmp_path) == feature_files(whole)
    assert not [p for p in Path(done["entry"]).rglob("*") if "tmp" in p.name]
    assert verify(Entry.open(Path(done["entry"]))) == []


def test_two_runs_at_once_share_the_work_and_give_the_same_bytes(uninterrupted, tiny_gpt2, tmp_path):
    whole, alone = uninterrupted
    first, second = start(tmp_path, tiny_gpt2), start(tmp_path, tiny_gpt2)
    results = []
    for process in (first, second):
        code, out, err = process.ended()
        assert code == 0, err
        results.append(json.loads(out))
    assert sum(r["computed_rows"] for r in results) == sum(alone["rows"].values())
    assert feature_files(tmp_path) == feature_files(whole)
    assert FeatureStore(Path(results[0]["entry"]))["train"].rows == alone["rows"]["train"]
