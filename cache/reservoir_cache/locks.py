"""Locks of an entry, which end with the process that holds them; FORMAT.md lists the bytes that are locked.

POSIX record locks belong to the process, so a table coordinates its threads. Closing *any* descriptor
of a file drops all of the process's locks on it, so a process has one descriptor per lock file until
the entry has been removed.
"""

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from reservoir_cache.publish import CacheError, open_lock, publish_json, read_json, run_identity
from reservoir_cache.spec import SPEC_FILE

LOCK_FILE = "lock"
MUTEX_BYTE, FIRST_BLOCK_BYTE = 0, 1

_untracked = ContextVar("untracked", default=False)


class EntryLocks:
    """The locks of the entry in ``folder``, one object per process; use ``entry_locks``."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._guard = threading.RLock()
        self._claims = set[int]()
        self._runs = 0
        self._record = -1

    @contextmanager
    def mutex(self, *, whole: bool = True) -> Iterator[None]:
        """Wait for the entry's mutex and hold it, to replace a manifest; not reentrant.

        Raises CacheError if the entry was removed or replaced meanwhile, or, if ``whole``, has no
        ``spec.json``.
        """
        with self._guard:
            self._lock(MUTEX_BYTE, fcntl.LOCK_EX)
            try:
                same = False
                with suppress(FileNotFoundError):  # a backup may hold the removed file by a hard link
                    same = _inode((self._folder / LOCK_FILE).stat()) == _inode(os.fstat(self._descriptor))
                self._check_present(same and (not whole or (self._folder / SPEC_FILE).exists()))
                yield
            finally:
                self._lock(MUTEX_BYTE, fcntl.LOCK_UN)

    def claim(self, number: int) -> bool:
        """Lock block ``number``; returns False if this or another process already holds it."""
        with self._guard:
            if number in self._claims or not self._lock(
                FIRST_BLOCK_BYTE + number, fcntl.LOCK_EX | fcntl.LOCK_NB
            ):
                return False
            self._claims.add(number)
            return True

    def release(self, number: int) -> None:
        """Unlock a claimed block."""
        with self._guard:
            self._claims.remove(number)
            self._lock(FIRST_BLOCK_BYTE + number, fcntl.LOCK_UN)

    @contextmanager
    def run(self, *, whole: bool = True) -> Iterator[None]:
        """Register this process; remove the records and temporary files of dead runs."""
        with self._guard:
            if self._runs == 0:
                with self.mutex(whole=whole):  # so that no other run registers itself meanwhile
                    path = self._folder / "runs" / f"{run_identity()}.json"
                    publish_json(path, _run_record(), durable=False)  # no run survives a power loss
                    self._record = os.open(path, os.O_RDWR)
                    fcntl.lockf(self._record, fcntl.LOCK_EX, 1)
                    records = _records(self._folder)
                    alive = {record.stem for record in records if record == path or _is_locked(record)}
                    for left in (*records, *self._folder.rglob(".*.tmp")):
                        if left.stem.rpartition(".")[2] not in alive:
                            with suppress(OSError):  # only its owner may remove it
                                left.unlink(missing_ok=True)
            self._runs += 1
        try:
            yield
        finally:
            with self._guard:
                self._runs -= 1
                if self._runs == 0:
                    (self._folder / "runs" / f"{run_identity()}.json").unlink(missing_ok=True)
                    os.close(self._record)

    @contextmanager
    def removal(self) -> Iterator[None]:
        """Hold the mutex while the entry is removed; raises CacheError if a run uses it."""
        with self._guard:
            with self.mutex(whole=False):
                for run in live_runs(self._folder):
                    user = f"process {run.get('pid')} on {run.get('host')} since {run.get('started')}"
                    raise CacheError(f"{self._folder}: used by {user}; stop it first")
                yield
            with _open_guard:
                _open_locks.pop(_inode(os.fstat(self._descriptor)), None)
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_present(self, present: bool) -> None:
        if not present:
            raise CacheError(f"{self._folder}: removed during this run; run the same command again")

    def _lock(self, byte: int, operation: int) -> bool:
        self._check_present(self._descriptor >= 0)
        try:
            fcntl.lockf(self._descriptor, operation, 1, byte)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            problem = f"{self._folder}: this file system does not support file locks ({error.strerror})"
            raise CacheError(
                f"{problem}; put the cache on a local disk with --cache or RESERVOIR_CACHE"
            ) from error
        return True


_open_locks: dict[tuple[int, int], EntryLocks] = {}
_open_guard = threading.Lock()


def entry_locks(folder: Path, *, create: bool = False) -> EntryLocks:
    """Return the locks of an entry, one object per lock file and process; raises CacheError if it is read-only."""
    path = folder / LOCK_FILE
    with _open_guard:
        with suppress(OSError):  # opening the file below raises a better error
            if found := _open_locks.get(_inode(path.stat())):
                return found
        try:
            descriptor = open_lock(path, create=create)
        except FileNotFoundError as error:
            raise CacheError(
                f"{folder}: missing, or removed meanwhile; run the same command again"
            ) from error
        except OSError as error:
            raise CacheError(
                f"{path}: cannot be opened for writing ({error.strerror}); check permissions"
            ) from error
        return _open_locks.setdefault(_inode(os.fstat(descriptor)), EntryLocks(folder, descriptor))


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


@contextmanager
def untracked() -> Iterator[None]:
    """Context for the steps of another command, whose entries do not become the last of their task."""
    token = _untracked.set(True)
    try:
        yield
    finally:
        _untracked.reset(token)


def touch(folder: Path, *, new: bool = False) -> None:
    """Make an entry the last entry of its task, by the modification time of its lock file."""
    path, now = folder / LOCK_FILE, time.time_ns()
    with suppress(OSError):
        if _untracked.get():
            if new:  # before all others
                os.utime(path, ns=(now, 0))
            return
        # later than all others: their files may come from another machine, or the clock was set back
        others = (one for one in folder.parent.glob(f"*/{LOCK_FILE}") if one != path)
        now = max((now, *(one.stat().st_mtime_ns + 1 for one in others)))
        try:
            os.utime(path, ns=(now, now))
        except PermissionError:
            # another user's file: write permission allows only the current time, which is coarse
            os.utime(path)


def mark_used(folder: Path) -> None:
    """Record that an entry was read, as the access time of its lock file, if this user may set it."""
    path = folder / LOCK_FILE
    with suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def live_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the records (host, pid, started) of the runs that are working on an entry."""
    found = []
    for path in _records(folder):
        # this process must not open its own record: closing it would drop the lock
        if path.stem == run_identity():
            found.append(_run_record())
        elif _is_locked(path):
            with suppress(FileNotFoundError, CacheError):  # the run may end between the two checks
                found.append(read_json(path))
    return found


@cache
def _run_record() -> dict[str, Any]:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started}


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "runs").glob("*.json") if not path.name.startswith("."))


def _is_locked(path: Path) -> bool:
    """Return whether another process locks a run record; for a record of this process, this would drop the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's file, which cannot be read: the run may be alive
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    else:
        return False
    finally:
        os.close(descriptor)


def _forget() -> None:
    """Clear the tables in a forked child, which inherits them from its parent but not the locks."""
    global _open_guard  # noqa: PLW0603
    _open_locks.clear()
    _open_guard = threading.Lock()
    _run_record.cache_clear()


os.register_at_fork(after_in_child=_forget)
