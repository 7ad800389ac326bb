"""Workers and dask clusters write the same bytes as one process, even if a worker or the connection is lost."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from reservoir_cache import Entry, verify
from reservoir_pipelines import extract, prepare, workers
from reservoir_pipelines.extraction import run

from reservoir import InputError, plan
from reservoir.options import ExtractOptions
from tests.files import contents

SETTINGS = {"limit": 200, "compute": "float32", "layers": "embed,final"}


@pytest.fixture(scope="module", autouse=True)
def short_blocks():
    """Cut 600 rows into 39 blocks, one block per task of a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plan.BLOCK_ROWS, "cpu", 16)
        patch.setattr(run, "MAX_TOKENS", 1)
        patch.setattr(workers, "PAYS_OFF", 0)  # use processes even for little work
        yield


@pytest.fixture(scope="module")
def alone(tiny_gpt2, tmp_path_factory):
    return extract("digits", backbone=str(tiny_gpt2), cache=tmp_path_factory.mktemp("alone"), **SETTINGS)


@pytest.fixture(scope="module")
def expected(alone):
    return files_of(alone)


def files_of(done):
    assert verify(done.store.entry) == []
    return contents(done.entry, "*.h5")


def after_shards(root, act):
    """Start a thread that calls ``act`` when ten of the 39 blocks exist; return the thread."""

    def watch():
        while len(list(root.rglob("0*-0.h5"))) < 10:
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_broken_connection_is_opened_again(cluster, expected, tiny_gpt2, tmp_path, capsys, monkeypatch):
    import distributed
    from distributed.comm.core import CommClosedError

    as_completed, lost = distributed.as_completed, []

    def lose_the_connection(futures, **settings):
        for number, future in enumerate(as_completed(futures, **settings)):
            yield future
            if number == 9 and not lost:  # after 9 of 39 blocks
                lost.append(number)
                raise CommClosedError

    monkeypatch.setattr(distributed, "as_completed", lose_the_connection)
    settings = SETTINGS | {"scheduler": cluster.scheduler_address}
    assert files_of(extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings)) == expected
    assert lost and "the connection was lost" in capsys.readouterr().err


def test_blocks_of_a_killed_worker_go_to_another(cluster, expected, tiny_gpt2, tmp_path):
    import distributed

    command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--no-nanny"]
    other = subprocess.Popen([*command, "--nthreads", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with distributed.Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(2)
        watch = after_shards(tmp_path, other.kill)  # after it has been given blocks
        settings = SETTINGS | {"scheduler": cluster.scheduler_address}
        done = extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings)
        watch.join()
        assert other.wait() == -signal.SIGKILL
    finally:
        other.kill()
        other.wait()
    assert files_of(done) == expected
    assert extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings).reused


def test_workers_get_full_paths(expected, tiny_gpt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_gpt2.parent)
    shares_sent = []

    def note(work, tasks, **_):
        shares_sent.extend(share for share, *_ in tasks)
        return []

    monkeypatch.setattr(run, "map_pieces", note)
    extract("digits", backbone=tiny_gpt2.name, cache=tmp_path, scheduler="tcp://nowhere:1", **SETTINGS)
    assert {share.options.backbone for share in shares_sent} == {str(tiny_gpt2)}
    assert all(share.prepared.is_absolute() and share.options.cache.is_absolute() for share in shares_sent)


@pytest.fixture
def share(tiny_gpt2, tmp_path):
    options = ExtractOptions(backbone=str(tiny_gpt2), cache=tmp_path, pool="mean", **SETTINGS)
    ours = run.start_run(options, prepare("digits", cache=tmp_path), tmp_path)
    key, versions = ours.spec.key, workers.program_versions()
    return run.Share(options, ours.prepared.path, key, None, versions, run.probe(ours))


def test_a_worker_is_accepted_unless_it_computes_other_features(share, monkeypatch):
    from reservoir.pooling import LayerPooling

    assert run._open(share).spec.key == share.key
    pool = LayerPooling.__call__
    monkeypatch.setattr(LayerPooling, "__call__", lambda self, pooling: pool(self, pooling) + 1.5)
    with pytest.raises(InputError, match=r"^worker \S+, process \d+: its features of embed/mean differ"):
        run._open(share)


def test_a_worker_with_another_version_of_a_library_is_refused(share):
    other = replace(share, versions={**share.versions, "torch": "1.0"})
    with pytest.raises(InputError, match=r"^worker \S+, process \d+: torch is \S+ here, but 1\.0 where .*; give"):
        run._open(other)


def test_workers_write_the_bytes_of_one_process_even_if_one_is_killed(alone, expected, tiny_gpt2, tmp_path, capsys):
    root, call = tmp_path / "shared", partial(extract, "digits", backbone=str(tiny_gpt2), workers=2, **SETTINGS)
    killer = after_shards(root, lambda: os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL))
    shared = call(cache=root)
    killer.join()
    assert "a worker process was killed; this process computes the rest" in capsys.readouterr().err
    assert files_of(shared) == expected and call(cache=root).reused
    made = [{**Entry.open(done.entry).made_with["call"], "command": ""} for done in (shared, alone)]
    assert made[0] == made[1], "who computes is no part of what is computed"


def test_a_worker_with_another_model_is_refused(alone, tiny_gpt2):
    root, backbone = alone.entry.parents[2], str(tiny_gpt2)
    options = ExtractOptions(backbone=backbone, limit=200, compute="float32", layers="embed,final", cache=root)
    share = run.Share(options, prepare("digits", cache=root).path, alone.store.entry.key)
    assert run.work(share, alone.entry, alone.columns, [("train", 0)]) == 0  # the block exists already
    (alone.entry / "train" / "00001-0.h5").unlink()
    assert run.work(share, alone.entry, alone.columns, [("train", 0), ("train", 1)]) == 16
    other = replace(share, options=replace(options, seed=1))
    run._runs.clear()  # as in a new process
    with pytest.raises(InputError, match=r"cache key is .* here, but"):
        run.work(other, alone.entry, alone.columns, [("train", 0)])
