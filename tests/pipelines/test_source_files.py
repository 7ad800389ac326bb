"""Own and publishers' files are known by their content, whatever their names and times."""

import os
import shutil
import signal

import numpy as np
import pytest
from reservoir_pipelines import files, prepare
from reservoir_pipelines.files import temporary_path

from tests.processes import Child


@pytest.fixture
def table(tmp_path):
    draw = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    np.savez(path, x=draw.normal(size=(40, 6, 1)).astype("f4"), y=np.arange(40) % 2)
    return path


def rewrite(path, change):
    """Write other values of the same number of bytes, and give the file the times that it had."""
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


def test_the_same_files_written_again_are_the_same_data(cache, mnist_files, tmp_path):
    first = prepare("mnist", data=str(mnist_files))
    for file in mnist_files.iterdir():
        os.utime(file, (1, 1))
    assert prepare("mnist", data=str(mnist_files)).reused
    moved = shutil.copytree(mnist_files, tmp_path / "elsewhere")
    again = prepare("mnist", data=str(moved))
    assert (again.reused, again.path) == (True, first.path)


def test_an_unchanged_file_is_read_once(table, tmp_path, monkeypatch):
    read = []
    real = files.file_digest
    monkeypatch.setattr(files, "file_digest", lambda path: read.append(path) or real(path))
    first = files.source_contents([table], table, tmp_path)
    assert files.source_contents([table], table, tmp_path) == first
    assert len(read) == 2  # it was written a moment ago: another change might carry the same time
    monkeypatch.setattr(files, "UNSETTLED", -(10**18))
    for _ in range(3):
        assert files.source_contents([table], table, tmp_path) == first
    assert len(read) == 3


KEEP = """
import sys
from pathlib import Path
from reservoir_pipelines import files
files.UNSETTLED = -(10**18)
files.source_contents([Path(sys.argv[1])], Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("fault", ["written", "synced"])
def test_a_killed_process_leaves_no_notes_of_files_behind(table, tmp_path, monkeypatch, fault):
    kept = tmp_path / "kept"
    assert Child(KEEP, table, kept, RESERVOIR_FAULT=fault).ended()[0] == -signal.SIGKILL
    (left,) = kept.iterdir()
    (mine := temporary_path(kept / files.MEMO)).touch()  # of a process that lives: this one
    (other := kept / left.name.replace("files.json", "file.json")).touch()
    monkeypatch.setattr(files, "UNSETTLED", -(10**18))
    files.source_contents([table], table, kept)
    assert set(kept.iterdir()) == {kept / files.MEMO, mine, other}


@pytest.mark.parametrize("kind", ["pipe", "locked"])
def test_unreadable_files_are_refused_in_one_line(call, cache, mnist_files, kind, monkeypatch):
    labels = mnist_files / "train-labels-idx1-ubyte"
    if kind == "pipe":
        labels.unlink()
        os.mkfifo(labels)
    else:
        refused = PermissionError(13, "Permission denied")

        def refuse(path):
            raise refused

        monkeypatch.setattr(files, "file_digest", refuse)
    code, out, message = call("prepare", "mnist", "--data", mnist_files)
    assert (code, out) == (2, "")
    assert message.count("\n") == 1
    assert "train-labels-idx1-ubyte" in message or kind == "locked"
