"""Who may write what: claims that die with their process.

Every claim is a POSIX record lock (``fcntl.lockf``) on one byte of the entry's empty ``lock`` file: byte 0 guards the
manifests and the run records, byte 1 + n the n-th block of the entry. The kernel drops a process's locks when it
ends, however it ends. Two properties of these locks shape this module: they belong to the process, so threads need a
table of their own; and closing *any* descriptor of a file drops all of the process's locks on it, so there is one
descriptor per lock file and process, and it is never closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.publish import publish_json, read_json, temporary_owner

LOCK_FILE = "lock"
MUTEX_BYTE = 0
FIRST_BLOCK_BYTE = 1


class EntryLocks:
    """The locks of one entry, shared by everything in this process; get it from ``entry_locks``.

    Parameters
    ----------
    folder : Path
        The entry's folder.
    descriptor : int
        Its ``lock`` file, open for writing.
    """

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self.writing = threading.Lock()  # one thread at a time writes shards
        self._guard = threading.RLock()
        self._claims: dict[int, int] = {}
        self._runs = 0
        self._record: int | None = None

    @contextmanager
    def mutex(self) -> Iterator[None]:
        """Hold the entry's mutex, waiting for it: for reading, changing and replacing a manifest. Not reentrant."""
        with self._guard:
            self._lock(MUTEX_BYTE, fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._lock(MUTEX_BYTE, fcntl.LOCK_UN)

    def claim(self, number: int) -> bool:
        """Take block ``number`` if neither another process nor another part of this one has it."""
        with self._guard:
            if number in self._claims or not self._lock(FIRST_BLOCK_BYTE + number, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
            self._claims[number] = 1
            return True

    def share(self, number: int) -> bool:
        """Take part in this process's claim on a block, or claim it; False if another process has it."""
        with self._guard:
            if number in self._claims:
                self._claims[number] += 1
                return True
            return self.claim(number)

    def release(self, number: int) -> None:
        """Give a claim, or a share in it, back; the block is free when the last is."""
        with self._guard:
            self._claims[number] -= 1
            if not self._claims[number]:
                del self._claims[number]
                self._lock(FIRST_BLOCK_BYTE + number, fcntl.LOCK_UN)

    def touch(self) -> None:
        """Set the lock file's modification time to now: the entry whose lock file is newest was extracted last."""
        now = time.time_ns()
        os.utime(self._folder / LOCK_FILE, ns=(now, now))

    @contextmanager
    def run(self) -> Iterator[str]:
        """Be a live run of this entry: a record that others can see; yields the run's identity.

        The first in a process also removes what dead runs left behind.
        """
        with self._guard:
            if self._runs == 0:
                with self.mutex():
                    self._register()
                    self._sweep()
            self._runs += 1
        try:
            yield run_identity()
        finally:
            with self._guard:
                self._runs -= 1
                if self._runs == 0:
                    self._unregister()

    def _register(self) -> None:
        path = self._folder / "runs" / f"{run_identity()}.json"
        path.parent.mkdir(exist_ok=True)
        publish_json(path, run_identity(), _this_run().record)
        self._record = os.open(path, os.O_RDWR)
        fcntl.lockf(self._record, fcntl.LOCK_EX, 1)

    def _unregister(self) -> None:
        (self._folder / "runs" / f"{run_identity()}.json").unlink(missing_ok=True)
        if self._record is not None:
            os.close(self._record)
            self._record = None

    def _sweep(self) -> None:
        """Remove the records and temporary files of dead runs; the mutex is held, so none is being born."""
        alive = {run_identity()} | {path.stem for path in _records(self._folder) if _is_locked(path)}
        for path in _records(self._folder):
            if path.stem not in alive:
                path.unlink(missing_ok=True)
        for path in self._folder.rglob(".*.tmp"):
            if temporary_owner(path) not in alive:
                path.unlink(missing_ok=True)

    def _lock(self, byte: int, operation: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, operation, 1, byte)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise CacheError(
                f"{self._folder}: this file system gives no file locks ({error.strerror}); "
                "put the cache on a local disk with --cache or RESERVOIR_CACHE"
            ) from error
        return True


_open_locks: dict[tuple[int, int], EntryLocks] = {}
_open_guard = threading.Lock()
_current: _Run | None = None


@dataclass(frozen=True)
class _Run:
    """What others see of this process."""

    identity: str
    record: dict[str, Any]


def entry_locks(folder: Path) -> EntryLocks:
    """Return the locks of the entry in ``folder``: one object per lock file and process.

    Raises
    ------
    CacheError
        If the lock file cannot be opened for writing.
    """
    path = folder / LOCK_FILE
    with _open_guard:
        try:
            status = path.stat()
            if found := _open_locks.get((status.st_dev, status.st_ino)):
                return found
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise CacheError(f"{path}: cannot be opened for writing ({error.strerror}); check permissions") from error
        status = os.fstat(descriptor)
        return _open_locks.setdefault((status.st_dev, status.st_ino), EntryLocks(folder, descriptor))


def run_identity() -> str:
    """Return the identity of this process: host, process number and 8 random digits; no '.' in it."""
    return _this_run().identity


def live_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the records (host, pid, started) of the runs that are at work on the entry in ``folder``."""
    found = []
    for path in _records(folder):
        if path.stem == run_identity():  # not read from the file: closing that would drop the lock on it
            found.append(_this_run().record)
        elif _is_locked(path):
            with suppress(FileNotFoundError, CacheError):  # it may end between the two looks
                found.append(read_json(path))
    return found


def _this_run() -> _Run:
    global _current  # noqa: PLW0603
    if _current is None:
        host = socket.gethostname()
        identity = f"{re.sub(r'[^A-Za-z0-9-]', '-', host) or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        _current = _Run(identity, {"host": host, "pid": os.getpid(), "started": started})
    return _current


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "runs").glob("*.json") if not path.name.startswith("."))


def _is_locked(path: Path) -> bool:
    """Whether another process holds a run record. Never opens this process's own: closing it would drop its lock."""
    if path.stem == run_identity():
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    else:
        return False
    finally:
        os.close(descriptor)


def _forget() -> None:
    """In a forked child: it has the parent's tables but none of its locks, and is another run."""
    global _current, _open_guard  # noqa: PLW0603
    _open_locks.clear()
    _open_guard = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_forget)
