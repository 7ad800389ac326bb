"""Locks of an entry, which end with the process that holds them.

Every claim is a POSIX record lock (``fcntl.lockf``) on one byte of the entry's empty ``lock`` file: byte 0 guards the
manifests and the run records, byte 1 + n the n-th block of the entry. The kernel drops a process's locks when it
ends, however it ends. Two properties of these locks shape this module: they belong to the process, so threads need a
table of their own; and closing *any* descriptor of a file drops all of the process's locks on it, so there is one
descriptor per lock file and process, which is closed when the entry has been removed and not before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.publish import open_lock, publish_json, read_json, run_identity, temporary_owner
from reservoir_cache.spec import SPEC_FILE

LOCK_FILE = "lock"
MUTEX_BYTE = 0
FIRST_BLOCK_BYTE = 1

_untracked = ContextVar("untracked", default=False)


class EntryLocks:
    """The locks of the entry in ``folder``, shared by everything in this process; get it from ``entry_locks``."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self.writing = threading.Lock()  # one thread at a time writes shards
        self._guard = threading.RLock()
        self._claims: dict[int, int] = {}
        self._runs = 0
        self._record: int | None = None

    @contextmanager
    def mutex(self, *, whole: bool = True) -> Iterator[None]:
        """Hold the entry's mutex, waiting for it: for reading, changing and replacing a manifest. Not reentrant.

        Whoever waited while the entry was removed gets a CacheError, also if another has been made in its place.
        """
        with self._guard:
            self._lock(MUTEX_BYTE, fcntl.LOCK_EX)
            try:
                if not self._is_there() or (whole and not (self._folder / SPEC_FILE).exists()):
                    raise self._removed()
                yield
            finally:
                self._lock(MUTEX_BYTE, fcntl.LOCK_UN)

    def claim(self, number: int) -> bool:
        """Lock block ``number``; returns False if another process or another part of this one holds it."""
        with self._guard:
            if number in self._claims or not self._lock(FIRST_BLOCK_BYTE + number, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
            self._claims[number] = 1
            return True

    def share(self, number: int) -> bool:
        """Join this process's claim on a block, or claim it; returns False if another process holds it."""
        with self._guard:
            if number in self._claims:
                self._claims[number] += 1
                return True
            return self.claim(number)

    def release(self, number: int) -> None:
        """Release a claim or a share in it; the block is unlocked with the last one."""
        with self._guard:
            self._claims[number] -= 1
            if not self._claims[number]:
                del self._claims[number]
                self._lock(FIRST_BLOCK_BYTE + number, fcntl.LOCK_UN)

    @contextmanager
    def run(self, *, whole: bool = True) -> Iterator[str]:
        """Register this process as working on the entry within the context; yields the identity of the run.

        The first registration of a process also removes what dead runs left behind.
        """
        with self._guard:
            if self._runs == 0:
                with self.mutex(whole=whole):
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

    @contextmanager
    def removal(self) -> Iterator[None]:
        """Hold the mutex while the entry is removed, then close its lock file; refused while a run works on it."""
        with self._guard:
            with self.mutex(whole=False):
                if runs := live_runs(self._folder):
                    host, pid, started = (runs[0].get(name) for name in ("host", "pid", "started"))
                    raise CacheError(
                        f"{self._folder}: process {pid} on {host} is at work on it since {started}; stop it first"
                    )
                yield
            with _open_guard:
                status = os.fstat(self._descriptor)
                _open_locks.pop((status.st_dev, status.st_ino), None)
            os.close(self._descriptor)
            self._descriptor = -1

    def _register(self) -> None:
        path = self._folder / "runs" / f"{run_identity()}.json"
        path.parent.mkdir(exist_ok=True)
        publish_json(path, _record(), durable=False)  # no run survives a power loss
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
        dead = [path for path in _records(self._folder) if path.stem not in alive]
        dead += [path for path in self._folder.rglob(".*.tmp") if temporary_owner(path) not in alive]
        for path in dead:
            with suppress(OSError):  # only its owner may remove it
                path.unlink(missing_ok=True)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat((self._folder / LOCK_FILE).stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _removed(self) -> CacheError:
        return CacheError(f"{self._folder}: was removed while it was being worked on; run the same command again")

    def _lock(self, byte: int, operation: int) -> bool:
        if self._descriptor < 0:
            raise self._removed()
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
_started = ""


def entry_locks(folder: Path, *, create: bool = False) -> EntryLocks:
    """Return the locks of an entry, one object per lock file and process; CacheError if it may not be written."""
    path = folder / LOCK_FILE
    with _open_guard:
        try:
            status = path.stat()
            if found := _open_locks.get((status.st_dev, status.st_ino)):
                return found
        except OSError:
            pass  # opening it below raises a better error
        try:
            descriptor = open_lock(path, create=create)
        except FileNotFoundError as error:
            raise CacheError(f"{folder}: not there, or removed meanwhile; run the same command again") from error
        except OSError as error:
            raise CacheError(f"{path}: cannot be opened for writing ({error.strerror}); check permissions") from error
        status = os.fstat(descriptor)
        return _open_locks.setdefault((status.st_dev, status.st_ino), EntryLocks(folder, descriptor))


def may_write(folder: Path) -> bool:
    """Return whether this user may write to the entry in ``folder``."""
    effective = os.access in os.supports_effective_ids
    return all(os.access(path, os.W_OK, effective_ids=effective) for path in (folder, folder / LOCK_FILE))


@contextmanager
def untracked() -> Iterator[None]:
    """Within the context no extraction becomes its task's last: it is a step of another command, such as a search."""
    token = _untracked.set(True)
    try:
        yield
    finally:
        _untracked.reset(token)


def mark_oldest(folder: Path) -> None:
    """Date a new entry back if it is created within `untracked`, so that it is older than all tracked entries."""
    if _untracked.get():
        with suppress(OSError):
            os.utime(folder / LOCK_FILE, ns=(time.time_ns(), 0))


def touch(folder: Path) -> None:
    """Make an entry the last one of its task, by the modification time of its lock file, unless within `untracked`."""
    if _untracked.get():
        return
    path, now = folder / LOCK_FILE, time.time_ns()
    with suppress(OSError):
        # Later than all others, even if the clock was ahead when they were made and has been set back since.
        last = max(
            (each.stat().st_mtime_ns for each in folder.parent.glob(f"*/{LOCK_FILE}") if each != path), default=0
        )
        now = max(now, last + 1)
        try:
            os.utime(path, ns=(now, now))
        except PermissionError:  # of another user: with write permission one may set the current time, which is coarse
            os.utime(path)


def mark_used(folder: Path) -> None:
    """Record that an entry was read, as the access time of its lock file, if this user may set it."""
    path = folder / LOCK_FILE
    with suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def live_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the records (host, pid, started) of the runs that are at work on the entry in ``folder``."""
    found = []
    for path in _records(folder):
        if path.stem == run_identity():  # not read from the file: closing that would drop the lock on it
            found.append(_record())
        elif _is_locked(path):
            with suppress(FileNotFoundError, CacheError):  # it may end between the two looks
                found.append(read_json(path))
    return found


def _record() -> dict[str, Any]:
    global _started  # noqa: PLW0603
    _started = _started or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started}


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "runs").glob("*.json") if not path.name.startswith("."))


def _is_locked(path: Path) -> bool:
    """Whether another process holds a run record. Never opens this process's own: closing it would drop its lock."""
    if path.stem == run_identity():
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # of another user and unreadable: perhaps working
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    else:
        return False
    finally:
        os.close(descriptor)


def _forget() -> None:
    """Start afresh in a forked child, which has the tables of its parent but none of its locks."""
    global _open_guard, _started  # noqa: PLW0603
    _open_locks.clear()
    _open_guard = threading.Lock()
    _started = ""


os.register_at_fork(after_in_child=_forget)
