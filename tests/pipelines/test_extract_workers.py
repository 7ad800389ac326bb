"""extract with several processes writes the bytes of one, even if a worker is killed."""

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from reservoir_cache import Entry, verify
from reservoir_pipelines import extract, prepare
from reservoir_pipelines import workers as pieces
from reservoir_pipelines.extraction import run, shares
from reservoir_pipelines.extraction.shares import Share, work

from reservoir import InputError, plan
from reservoir.options import ExtractOptions

SETTINGS = {"limit": 200, "compute": "float32", "layers": "embed,final"}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Cut 600 rows into 39 blocks, one to a task of a worker, and let even the least work go to processes."""
    monkeypatch.setitem(plan.BLOCK_ROWS, "cpu", 16)
    monkeypatch.setattr(run, "MOST_TOKENS", 1)
    monkeypatch.setattr(shares, "TASK_BLOCKS", 1)
    monkeypatch.setattr(pieces, "PAYS_OFF", 0)


def files_of(entry):
    return {str(p.relative_to(entry)): p.read_bytes() for p in sorted(Path(entry).rglob("*.h5"))}


@pytest.fixture(scope="module")
def alone(tiny_gpt2, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plan.BLOCK_ROWS, "cpu", 16)
        patch.setattr(run, "MOST_TOKENS", 1)
        return extract("digits", backbone=str(tiny_gpt2), cache=tmp_path_factory.mktemp("alone"), **SETTINGS)


def test_workers_write_the_bytes_of_one_process_even_if_one_is_killed(alone, tiny_gpt2, tmp_path):
    root, call = tmp_path / "shared", partial(extract, "digits", backbone=str(tiny_gpt2), workers=2, **SETTINGS)

    def kill():
        while len(list(root.rglob("0*-0.h5"))) < 10:  # of 39; the first was this process's
            time.sleep(0.01)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    shared = call(cache=root)
    killer.join()
    assert files_of(shared.entry) == files_of(alone.entry)
    assert verify(shared.store.entry) == []
    assert call(cache=root).reused
    made = [{**Entry.open(done.entry).made_with["call"], "command": ""} for done in (shared, alone)]
    assert made[0] == made[1], "who computes is no part of what is computed"


def test_a_worker_with_another_model_is_refused(alone, tiny_gpt2):
    root, backbone = alone.entry.parents[2], str(tiny_gpt2)
    options = ExtractOptions(backbone=backbone, limit=200, compute="float32", layers="embed,final", cache=root)
    share = Share("digits", options, prepare("digits", cache=root).path, alone.store.entry.key)
    assert work(share, alone.entry, alone.columns, [("train", 0)]) == 0  # which is there already
    (alone.entry / "train" / "00001-0.h5").unlink()
    assert work(share, alone.entry, alone.columns, [("train", 0), ("train", 1)]) == 16
    other = replace(share, options=replace(options, seed=1))
    shares._runs.clear()  # as in a process of its own
    with pytest.raises(InputError, match=r"cache key .* differs"):
        work(other, alone.entry, alone.columns, [("train", 0)])
