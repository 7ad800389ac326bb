"""The bytes of prepared data do not depend on who prepares them."""

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tasks"))
import samples
from reservoir_pipelines import prepare
from reservoir_pipelines import workers as pieces
from reservoir_pipelines.preparation import prepare as module
from reservoir_pipelines.workers import map_pieces

from reservoir.errors import InputError

TASKS = [
    ("bit-xor", {"train_rows": 3000}),
    ("listops", {"train_rows": 200, "valid_rows": 50, "test_rows": 50, "min_length": 64, "max_length": 100}),
    ("cifar10", {"views": 1}),
]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    samples.cifar_files(folder, samples.cifar_arrays(100))
    return folder


@pytest.fixture(scope="module")
def serial(data, tmp_path_factory):
    root = tmp_path_factory.mktemp("serial")
    return [contents(prepare(task, data=data, cache=root, parameters=p).path) for task, p in TASKS]


def work_or_die(number, folder):
    """Return a square, but kill this process on the first visit to number 3."""
    mark = Path(folder) / "visited"
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


@pytest.fixture
def processes(monkeypatch):
    """Let even the least work go to processes."""
    monkeypatch.setattr(pieces, "PAYS_OFF", 0)


def test_local_workers_write_the_same_bytes(data, serial, tmp_path, processes):
    for (task, parameters), expected in zip(TASKS, serial, strict=True):
        prepared = prepare(task, data=data, cache=tmp_path, parameters=parameters, workers=2)
        assert contents(prepared.path) == expected


def test_a_cluster_writes_the_same_bytes_even_if_a_worker_is_killed(data, serial, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        for (task, parameters), expected in zip(TASKS, serial, strict=True):
            prepared = prepare(
                task, data=data, cache=tmp_path, parameters=parameters, scheduler=cluster.scheduler_address
            )
            assert contents(prepared.path) == expected
        tasks = [(number, str(tmp_path)) for number in range(6)]
        assert map_pieces(work_or_die, tasks, scheduler=cluster.scheduler_address) == [n**2 for n in range(6)]


def test_a_killed_local_worker_changes_nothing(tmp_path, processes):
    tasks = [(number, str(tmp_path)) for number in range(6)]
    messages = []
    assert map_pieces(work_or_die, tasks, workers=2, notify=messages.append) == [n**2 for n in range(6)]
    assert messages == ["a worker process was killed; this process computes the rest"]
    assert (tmp_path / "visited").exists()


def where_it_runs(number):
    return os.getpid()


def test_little_work_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(pieces, "PAYS_OFF", float("inf"))
    assert set(map_pieces(where_it_runs, [(n,) for n in range(5)], workers=2)) == {os.getpid()}


def test_much_work_goes_to_other_processes(processes):
    assert len(set(map_pieces(where_it_runs, [(n,) for n in range(5)], workers=2)) - {os.getpid()}) >= 1


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_one_piece_leaves_nothing(data, tmp_path, workers, processes):
    folder = tmp_path / "data"
    samples.cifar_files(folder, samples.cifar_arrays())
    batch = folder / "cifar-10-batches-bin" / "data_batch_4.bin"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data_batch_4.bin: \d+ bytes"):
        prepare("cifar10", data=folder, cache=tmp_path / "cache", workers=workers)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_missing_scheduler_is_reported_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="no dask scheduler answers"):
        map_pieces(work_or_die, [(1, "")], scheduler="nonsense://x")


def test_counts_and_warnings_are_stored(tmp_path, cache):
    import json

    parts = {"train": [0, 1, 1], "valid": [0, 1, 0], "test_fold_holdout": [1, 2, 2]}
    parts |= {"test_superfamily_holdout": [0, 0, 1], "test_family_holdout": [1, 1, 0]}
    for part, folds in parts.items():
        rows = [{"primary": "ACD" * (n + 1), "fold_label": fold} for n, fold in enumerate(folds)]
        (tmp_path / f"remote_homology_{part}.json").write_text(json.dumps(rows))
    for _ in range(2):
        prepared = prepare("homology", data=tmp_path, parameters={"max_tokens": 6})
        assert prepared.dropped == dict.fromkeys(prepared.rows, 1)
        assert prepared.rows == dict.fromkeys(["train", "valid", "test", "test_family", "test_superfamily"], 2)
        assert prepared.warnings == ("classes of the split 'test' that no row of 'train' has (1): 2",)


def test_workers_of_a_cluster_get_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("sequence,label\n" + "".join(f"{'AC' * (n + 1)},{n % 2}\n" for n in range(20)))
    monkeypatch.chdir(tmp_path)
    sent = []

    def elsewhere(work, tasks, **_):
        sent.extend(source.origin for source, *_ in tasks)
        return [work(*task) for task in tasks]

    monkeypatch.setattr(module, "map_pieces", elsewhere)
    prepare("mine.csv", cache=tmp_path / "cache", scheduler="tcp://somewhere:1")
    assert set(sent) == {str(tmp_path / "mine.csv")}
