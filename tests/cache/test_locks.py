"""Claims: one holder at a time, over threads and processes, and gone with the process."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest
from reservoir_cache import CacheError, Entry, FeatureStore, folder_bytes, verify, write_block
from reservoir_cache.publish import run_identity

HOLD = """
import sys, time
from pathlib import Path
from reservoir_cache import Entry
entry = Entry.open(Path(sys.argv[1]))
with entry.claim("train", int(sys.argv[2])) as mine:
    print(int(mine), flush=True)
    sys.stdin.readline()
"""

FORK = """
import os, sys
from pathlib import Path
from reservoir_cache import Entry
entry = Entry.open(Path(sys.argv[1]))
with entry.claim("train", 0) as mine:
    child = os.fork()
    if child == 0:
        with entry.claim("train", 0) as theirs, entry.claim("train", 1) as other:
            os._exit(10 * theirs + other)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with entry.claim("train", 1) as freed:
        print(int(mine), status, int(freed))
"""


def hold(entry, block):
    """Start a process that claims a block; return it and whether it got the block."""
    command = [sys.executable, "-c", HOLD, str(entry.path), str(block)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, bool(int(process.stdout.readline()))


def end(process):
    process.communicate("\n")
    assert process.returncode == 0


def test_a_block_has_one_holder_in_a_process(entry):
    with entry.claim("train", 1) as first:
        with entry.claim("train", 1) as second, Entry.open(entry.path).claim("train", 1) as third:
            assert (first, second, third) == (True, False, False)
        with entry.claim("train", 0) as other, entry.claim("test", 0) as another:
            assert (other, another) == (True, True)
    with entry.claim("train", 1) as again:
        assert again


def test_a_block_has_one_holder_among_threads(entry):
    got, start = [], threading.Barrier(8)
    done = threading.Barrier(8)

    def work():
        start.wait()
        with entry.claim("train", 0) as mine:
            got.append(mine)
            done.wait()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]


def test_a_block_has_one_holder_among_processes(full, toy):
    with full.claim("train", 1) as mine:
        assert mine
        # Nothing that reads may drop our lock, as closing a descriptor of the lock file would.
        full.running(), verify(full), folder_bytes(full.path), FeatureStore(full.path)["train"].read("final/last")
        Entry.open(full.path).missing("train", ["a/b"])
        process, theirs = hold(full, 1)
        assert not theirs
        end(process)
        process, theirs = hold(full, 2)
        assert theirs
        with full.claim("train", 2) as taken:
            assert not taken
        assert {run["pid"] for run in full.running()} == {os.getpid(), process.pid}
        end(process)
    assert full.running() == []


def test_a_killed_holder_leaves_nothing(entry, toy):
    process, theirs = hold(entry, 0)
    assert theirs
    record = next(path for path in (entry.path / "runs").iterdir())
    left = entry.path / "train" / f".00000-0.h5.3.{record.stem}.tmp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with entry.claim("train", 0) as mine:
        assert not mine
    assert left.exists()  # its owner is alive
    with pytest.raises(CacheError, match="being written by another run"):
        write_block(entry, "train", 0, toy.features(entry, "train", 0))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert entry.running() == []
    with entry.claim("train", 0) as mine:
        assert mine
        assert not left.exists()
        assert not record.exists()


def test_own_temporary_files_are_not_swept(entry):
    mine = entry.path / f".x.0.{run_identity()}.tmp"
    mine.write_bytes(b"")
    with entry.claim("train", 0):
        assert mine.exists()


def test_a_forked_child_has_none_of_its_parents_claims(entry):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(entry.path)], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["1", "1", "1"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named(entry, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(CacheError, match=r"no file locks.*--cache"), entry.claim("train", 0):
        pass
