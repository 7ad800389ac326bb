"""`prepare`: rows equal those of the source for any workers or servers; damaged and missing files are detected."""

import errno
import hashlib
import http.server
import json
import os
import shutil
import threading
from functools import partial
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from reservoir_cache.publish import process_identity, publish_json, read_json
from reservoir_pipelines import files, prepare, workers
from reservoir_pipelines.preparation import write
from reservoir_pipelines.preparation.prepare import DOWNLOADS, download, task_table
from reservoir_pipelines.preparation.prepared import Prepared, PreparedSplit, _opened
from reservoir_pipelines.workers import map_pieces

from reservoir.errors import InputError
from reservoir.tasks import TASKS, task_named
from tests.faults.damage import OTHER_TYPES, paths, removed, replaced, value_at
from tests.helpers import contents, outcome
from tests.tasks import samples


def test_prepared_rows_equal_those_of_the_source(cache):
    prepared, source = prepare("digits"), task_named("digits")
    for name, split in source.read(source.pieces()[0]).items():
        stored = prepared.split(name)
        assert len(stored) == len(split) == prepared.rows[name]
        back = stored.read(3, 11)
        for array in ("x", "y", "lengths"):
            expected = getattr(split, array)[3:11]
            assert np.array_equal(getattr(back, array), expected) and getattr(back, array).dtype == expected.dtype
        assert np.array_equal(stored.y, split.y) and np.array_equal(stored.lengths, split.lengths)
        assert stored.read(5, 5).x.shape == (0, 16, 4)
    assert prepared.task == source.task
    assert np.array_equal(prepared.scaling.scale, source.scaling().scale)


def test_rows_between_wanted_ones_are_not_read(cache, tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(12000, 2, 1)).astype(np.float32)
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["x"], file["y"] = x, np.arange(12000) % 2
        file["split"] = np.array(["train"] * 10000 + ["valid"] * 1000 + ["test"] * 1000).astype("S5")
    train = prepare(str(tmp_path / "mine.h5")).split("train")
    whole = train.read(0, len(train))
    assert len(train.files) > 1
    read, real = [], PreparedSplit._read
    monkeypatch.setattr(PreparedSplit, "_read", lambda s, a, lo, hi: read.append((a, hi - lo)) or real(s, a, lo, hi))
    for index in (
        np.arange(4000, 4300),
        np.sort(np.random.default_rng(1).choice(10000, 40, replace=False)),
        [9999],
        [0],
    ):
        read.clear()
        taken = train.take(np.asarray(index))
        assert 0 < sum(rows for arrays, rows in read if "x" in arrays) < 20 * len(index)
        for array in ("x", "y", "lengths"):
            assert np.array_equal(getattr(taken, array), getattr(whole, array)[index]), array


def test_leftovers_of_a_killed_run_are_removed(cache, tmp_path):
    prepared = prepare("digits")
    own, dead = process_identity(), f"-{2**22 + 7}-"
    mine = prepared.path.parent / f".data.0.{own}.tmp"
    leftover = prepared.path.parent / f".data.0.{own.replace(f'-{os.getpid()}-', dead)}.tmp"
    elsewhere = prepared.path.parent / f".data.0.otherhost-00000000{dead}00000000.tmp"
    for folder in (mine, leftover, elsewhere):
        (folder / "train").mkdir(parents=True)
    (prepared.path / "train" / "00000.h5").unlink()
    again = prepare("digits")
    assert again.digest == prepared.digest and not again.reused
    assert (mine.exists(), leftover.exists(), elsewhere.exists()) == (True, False, True)


def test_a_damaged_file_is_named(cache):
    prepared = prepare("digits")
    file = prepared.path / "test" / "00000.h5"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=str(file)):
        Prepared.open(prepared.path)
    index = prepared.path / "prepared.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"version": 99}))
    with pytest.raises(InputError, match="checksum does not match"):
        Prepared.open(prepared.path)


def test_a_file_that_changes_while_it_is_read_is_refused(cache, tmp_path, monkeypatch):
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.zeros((40, 3)), y=np.arange(40) % 2)
    real = write._write_piece

    def change(*arguments):
        written = real(*arguments)
        np.savez(path, x=np.ones((40, 3)), y=np.arange(40) % 2)
        return written

    with monkeypatch.context() as patched:
        patched.setattr(write, "_write_piece", change)
        with pytest.raises(InputError, match=r"mine\.npz changed"):
            prepare(str(path))
    assert not list(cache.glob("prepared/*/[!.]*/prepared.json"))
    assert prepare(str(path)).split("train").read(0, 2).x.tolist() == np.ones((2, 3, 1)).tolist()


def test_an_error_of_the_caller_is_not_taken_for_damage(cache):
    ((file, _), *_) = prepare("digits").split("test").files
    with pytest.raises(MemoryError), _opened(file):
        raise MemoryError


def test_missing_data_says_what_to_do(cache, tmp_path):
    with pytest.raises(InputError, match="--data DIR or RESERVOIR_DATA"):
        prepare("mnist")
    with pytest.raises(InputError, match="nowhere does not exist"):
        prepare("mnist", data=tmp_path / "nowhere")
    with pytest.raises(InputError, match="train, valid, test"):
        prepare("digits").split("dev")


PREPARED = [
    ("bit-xor", {"train_rows": 3000}),
    ("listops", {"train_rows": 200, "valid_rows": 50, "test_rows": 50, "min_length": 64, "max_length": 100}),
    ("cifar10", {"views": 1}),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    samples.cifar_files(folder, samples.cifar_arrays(100))
    return folder


@pytest.fixture(scope="module")
def serial(data, tmp_path_factory):
    root = tmp_path_factory.mktemp("serial")
    return [contents(prepare(task, data=data, cache=root, parameters=p).path) for task, p in PREPARED]


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(workers, "PAYS_OFF", 0)


@pytest.mark.parametrize("kind", ["processes", "cluster"])
def test_local_workers_and_a_cluster_write_the_same_bytes(data, serial, tmp_path, kind, request):
    found = request.getfixturevalue(kind)
    how = {"scheduler": found.scheduler_address} if kind == "cluster" else {"workers": 2}
    for (task, parameters), expected in zip(PREPARED, serial, strict=True):
        if kind == "processes" and task == "listops":
            continue  # generated in pieces as bit-xor is, and each task starts two processes
        prepared = prepare(task, data=data, cache=tmp_path, parameters=parameters, **how)
        assert contents(prepared.path) == expected


@pytest.mark.parametrize("number", [0, 2])
def test_an_error_in_one_piece_leaves_nothing(data, tmp_path, number, processes):
    folder = tmp_path / "data"
    samples.cifar_files(folder, samples.cifar_arrays())
    batch = folder / "cifar-10-batches-bin" / "data_batch_4.bin"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data_batch_4.bin: not a batch"):
        prepare("cifar10", data=folder, cache=tmp_path / "cache", workers=number)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_missing_scheduler_is_reported_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="no dask scheduler answers"):
        map_pieces(pow, [(1, 2)], scheduler="nonsense://x")


def test_counts_and_warnings_are_stored(tmp_path, cache):
    parts = {"train": [0, 1, 1], "valid": [0, 1, 0], "test_fold_holdout": [1, 2, 2]}
    parts |= {"test_superfamily_holdout": [0, 0, 1], "test_family_holdout": [1, 1, 0]}
    for part, folds in parts.items():
        rows = [{"primary": "ACD" * (n + 1), "fold_label": fold} for n, fold in enumerate(folds)]
        (tmp_path / f"remote_homology_{part}.json").write_text(json.dumps(rows))
    for _ in range(2):
        prepared = prepare("homology", data=tmp_path, parameters={"max_tokens": 6})
        assert prepared.dropped == dict.fromkeys(prepared.rows, 1)
        assert prepared.rows == dict.fromkeys(["train", "valid", "test", "test_family", "test_superfamily"], 2)
        assert prepared.warnings == ("the split 'test' has classes that no row of 'train' has (1): 2",)


def test_test_rows_that_repeat_other_rows_are_counted(cache, tmp_path):
    x, split = np.random.default_rng(0).normal(size=(12, 5, 1)), np.repeat(["train", "valid", "test"], 4)
    for repeated, lines in ((0, 0), (3, 1)):
        x[8 : 8 + repeated] = x[2 : 2 + repeated]
        np.savez(tmp_path / "own.npz", x=x, y=["a", "b"] * 6, split=split)
        notes = [note for note in prepare(str(tmp_path / "own.npz")).warnings if "3 of 4 test rows repeat" in note]
        assert len(notes) == lines


def test_every_task_says_where_its_data_is(cache, tmp_path):
    table = {row["task"]: row for row in task_table()}
    assert list(table) == list(TASKS)
    for name in ("bit-memory", "bit-xor", "modular-addition", "listops", "digits"):
        assert table[name]["data"] == "generated" and table[name]["remedy"] == ""
    for name in ("mnist", "cifar10", "cifar10-lra", "homology"):
        assert table[name]["data"] == "missing" and "--data DIR" in table[name]["remedy"]
    assert "--download" in table["mnist"]["remedy"] and "--download" not in table["homology"]["remedy"]
    assert table["mnist"]["input"] == "16 values" and table["listops"]["input"] == "16 symbols"
    assert table["bit-memory"]["labels_per_row"] == 1000 and table["listops"]["splits"]["test"] == 2000


def test_data_is_listed_as_here_then_as_prepared_and_used_when_its_source_is_missing(cache, tmp_path, monkeypatch):
    samples.mnist_files(tmp_path)
    row = {row["task"]: row for row in task_table(tmp_path)}["mnist"]
    assert (row["data"], row["splits"]) == ("here", None)
    monkeypatch.setenv("RESERVOIR_DATA", str(tmp_path))
    prepared = prepare("mnist")
    monkeypatch.delenv("RESERVOIR_DATA")
    earlier = prepare("mnist")
    assert earlier.digest == prepared.digest and earlier.notes == [
        f"task 'mnist': its files are not here; using the data prepared before, {prepared.path}"
    ]
    row = {row["task"]: row for row in task_table()}["mnist"]
    assert (row["data"], row["splits"], row["remedy"]) == ("prepared", prepared.rows, "")


@pytest.fixture
def table(tmp_path):
    draw, path = np.random.default_rng(0), tmp_path / "data.npz"
    np.savez(path, x=draw.normal(size=(40, 6, 1)).astype("f4"), y=np.arange(40) % 2)
    return path


def rewrite(path, change):
    """Replace values without changing the size of the file, and restore its times."""
    before = path.stat()
    with np.load(path) as stored:
        values = {**stored}
    values["x"] = values["x"] + np.float32(change)
    np.savez(path, **values)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_changed_values_of_the_same_size_and_time_are_noticed(cache, table):
    first, original = prepare(str(table)), table.read_bytes()
    assert prepare(str(table)).reused
    rewrite(table, 1)
    second = prepare(str(table))
    assert (second.reused, second.digest == first.digest) == (False, False)
    table.write_bytes(original)
    again = prepare(str(table))
    assert (again.reused, again.path) == (True, first.path)


def test_an_unchanged_file_is_read_once(table, tmp_path, monkeypatch):
    read, real = [], files.file_digest
    monkeypatch.setattr(files, "file_digest", lambda path: read.append(path) or real(path))
    first = files.source_contents([table], table, tmp_path)
    assert files.source_contents([table], table, tmp_path) == first
    assert len(read) == 2  # the file was just written, so a second change may have the same time
    monkeypatch.setattr(files, "UNSETTLED", -(10**18))
    for _ in range(3):
        assert files.source_contents([table], table, tmp_path) == first
    assert len(read) == 3


@pytest.mark.parametrize("kind", ["pipe", "locked"])
def test_unreadable_files_are_refused_in_one_line(refusal, cache, mnist_files, kind, monkeypatch):
    labels = mnist_files / "train-labels-idx1-ubyte"
    if kind == "pipe":
        labels.unlink()
        os.mkfifo(labels)
    else:
        denied = PermissionError(errno.EACCES, "Permission denied", str(labels))
        monkeypatch.setattr(files, "file_digest", Mock(side_effect=denied))
    message = refusal("prepare", "mnist", "--data", mnist_files)
    assert (
        "train-labels-idx1-ubyte" if kind == "pipe" else "Permission denied; check the path and its permissions"
    ) in message


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Return the folder of a server, whose small files replace MNIST's, and the list of requested names."""
    folder, asked = tmp_path / "served", []
    samples.mnist_files(folder, packed=True)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in DOWNLOADS["mnist"]["files"]}
    address = f"http://127.0.0.1:{served.server_port}"
    monkeypatch.setitem(DOWNLOADS, "mnist", {"folder": "mnist", "addresses": [address], "files": sums})
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield folder, asked
    served.shutdown()
    served.server_close()


def test_a_task_is_downloaded_once_and_prepared(server, cache):
    _, asked = server
    assert sum(prepare("mnist", fetch=True).rows.values()) == 72 and len(asked) == 4
    assert prepare("mnist", fetch=True).reused and len(asked) == 4
    assert len(list((cache / "downloads" / "mnist").iterdir())) == 4


def test_an_archive_is_unpacked(server, cache, monkeypatch):
    folder, asked = server
    samples.cifar_files(folder / "made", samples.cifar_arrays())
    shutil.make_archive(str(folder / "cifar"), "gztar", folder / "made")
    archive = {"cifar.tar.gz": hashlib.sha256((folder / "cifar.tar.gz").read_bytes()).hexdigest()}
    offered = {"files": archive, "addresses": DOWNLOADS["mnist"]["addresses"]}
    monkeypatch.setitem(DOWNLOADS, "cifar10", DOWNLOADS["cifar10"] | offered)
    assert sum(prepare("cifar10", fetch=True).rows.values()) == 240
    assert prepare("cifar10", fetch=True).reused and len(asked) == 1


def test_files_with_a_wrong_checksum_are_never_used(server, cache):
    path = server[0] / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(InputError, match=f"{path.name}.*invalid hash"):
        download("mnist")
    assert [file.name for file in (cache / "downloads" / "mnist").iterdir()] == ["train-images-idx3-ubyte.gz"]


def test_a_failed_download_says_what_to_do(server, cache):
    with pytest.raises(InputError, match=r"'homology' cannot be downloaded.*--data DIR"):
        download("homology")
    (server[0] / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"404.*--data DIR"):
        download("mnist")


def wrong_indices(index):
    """Yield copies of prepared.json in which a value that is read is missing, null, of another type or impossible."""
    optional = {("task", "outputs"), ("task", "readout_tokens"), ("task", "parameters")}
    for path in paths(index):
        if path[0] in ("version", "source") or "parameters" in path[:-1]:
            continue  # nothing reads these
        if path not in optional and not (isinstance(path[-1], int) and path[0] != "splits"):
            yield path, removed(index, path)
        number = type(value_at(index, path)) in (int, float)
        others = OTHER_TYPES[type(value_at(index, path))] + ((-1, 1e300) if number and path[0] != "scaling" else ())
        for new in (None, *others):
            if not (path[0] == "warnings" and len(path) == 2 and new == "x"):
                yield path, replaced(index, path, new)


def test_every_wrong_value_in_prepared_json_is_refused_in_one_line_and_prepared_again(cache, tmp_path, call):
    x, y = np.random.default_rng(0).normal(size=(60, 12, 2)), np.arange(60) % 2
    np.savez(tmp_path / "waves.npz", x=x, y=y, split=np.repeat(["train", "valid", "test"], 20))
    call("prepare", tmp_path / "waves.npz")
    (index,) = cache.glob("prepared/*/*/prepared.json")
    sound, number = read_json(index), 0
    for path, mutant in wrong_indices(sound):
        publish_json(index, mutant)
        assert outcome(Prepared.open, index.parent), path
        number += 1
    assert number > 250
    code, _, err = call("prepare", tmp_path / "waves.npz")
    assert (code, "Traceback" in err, read_json(index)) == (0, False, sound)


def test_prepared_files_have_the_number_of_rows_of_the_index(cache, tmp_path):
    np.savez(tmp_path / "waves.npz", x=np.zeros((60, 12, 2)), y=np.arange(60) % 2)
    prepared = prepare(str(tmp_path / "waves.npz"))
    index = prepared.path / "prepared.json"
    values = read_json(index)
    values["splits"]["test"]["files"][0]["rows"] = values["splits"]["test"]["rows"] = 3
    publish_json(index, values)
    with pytest.raises(InputError, match=r"y has \d+ rows, not 3"):
        _ = Prepared.open(prepared.path).splits["test"].y
