"""All locks of the project, which end with their process: of whole files and folders, and those of an entry.

A lock of a whole file belongs to the opened file. A lock of a byte (a POSIX record lock) belongs to the process:
closing *any* descriptor of the file drops all byte locks that the process has on it.

The lock file of an entry has byte locks, which FORMAT.md lists: the mutex of the manifests, and the claims on blocks.
An `EntryLocks` coordinates the threads of this process, and a process has one descriptor per lock file until the entry
has been removed. The two times of the file say which entry of a task is the last one, and when an entry was last read.
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

from reservoir_cache.errors import CacheError
from reservoir_cache.paths import refuse_links
from reservoir_cache.publish import process_identity, publish_json, read_json
from reservoir_cache.spec import SPEC_FILE

LOCK_FILE = "lock"
MUTEX_BYTE, FIRST_BLOCK_BYTE = 0, 1  # of the lock file
RECORDS = "runs"  # folder with one record per process at work
# Modification time of the lock file of an entry that only another command has needed (`untracked`).
NEVER_LAST = 0

_TAKEN = (errno.EACCES, errno.EAGAIN)  # errors of a lock that another process has
_untracked = ContextVar("untracked", default=False)  # whether the code runs within `untracked`


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock an existing folder, or a file, which is created if necessary; yield whether this process has the lock.

    It lacks the lock only without ``wait``, if another process has it.
    """
    descriptor = os.open(path, os.O_RDONLY) if path.is_dir() else open_lock(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_held = True
        except BlockingIOError:
            is_held = False
        yield is_held
    finally:
        os.close(descriptor)


def open_lock(path: Path, *, create: bool = True) -> int:
    """Open a lock file for reading and writing; raises CacheError if it is a symbolic link."""
    refuse_links(path)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o666)


def lock_byte(descriptor: int, byte: int, *, wait: bool) -> bool:
    """Lock one byte of an open file; return False only without ``wait``, if another process has locked it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, byte)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def unlock_byte(descriptor: int, byte: int) -> None:
    """Unlock one byte of an open file."""
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


def is_locked_elsewhere(path: Path) -> bool:
    """Return whether another process has locked the first byte of a file.

    Not for a file that this process has locked: closing it here would drop the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's file, which cannot be read: its process may be alive
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    except OSError as error:
        return error.errno in _TAKEN
    else:
        return False
    finally:
        os.close(descriptor)


def is_file_locked(path: Path) -> bool:
    """Return whether a process has an exclusive lock on a whole file; a file that does not exist has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def untracked() -> Iterator[None]:
    """Context for the steps of another command, whose entries do not become the last of their task."""
    token = _untracked.set(True)
    try:
        yield
    finally:
        _untracked.reset(token)


def mark_last(folder: Path, *, new: bool = False) -> None:
    """Make an entry the last entry of its task, by the modification time of its lock file.

    Within `untracked` the time of an existing entry stays as it is, and a ``new`` entry comes before all others.
    """
    path, now = folder / LOCK_FILE, time.time_ns()
    with suppress(OSError):
        if _untracked.get():
            if new:
                os.utime(path, ns=(now, NEVER_LAST))
            return
        # later than all others: their files may come from another machine, or the clock was set back
        others = (lock for lock in folder.parent.glob(f"*/{LOCK_FILE}") if lock != path)
        now = max((now, *(lock.stat().st_mtime_ns + 1 for lock in others)))
        try:
            os.utime(path, ns=(now, now))
        except PermissionError:
            # another user's file: write permission allows only the current time, which is coarse
            os.utime(path)


def was_ever_last(folder: Path) -> bool:
    """Return whether an entry has ever been the last one of its task; see `mark_last`."""
    try:
        return (folder / LOCK_FILE).stat().st_mtime_ns != NEVER_LAST
    except FileNotFoundError:
        # Without its lock file, an entry is held to what a command asked for: all of its splits.
        return True


def mark_used(folder: Path) -> None:
    """Record that an entry was read, as the access time of its lock file, if this user may set it."""
    path = folder / LOCK_FILE
    with suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


class EntryLocks:
    """The locks of the entry in ``folder``, one object per process; use ``entry_locks``."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor  # -1 after the entry has been removed
        self._guard = threading.RLock()
        self._claims = set[int]()  # numbers of the blocks that this process has claimed
        self._users = 0  # contexts `at_work` that are open in this process
        self._record = -1  # descriptor of the record of this process, while there are users

    @contextmanager
    def mutex(self, *, needs_spec: bool = True) -> Iterator[None]:
        """Wait for the entry's mutex and hold it, to replace a manifest; not reentrant.

        Raises CacheError if the entry was removed or replaced meanwhile, or, with ``needs_spec``, if it has no
        ``spec.json``.
        """
        with self._guard:
            self._lock(MUTEX_BYTE, wait=True)
            try:
                is_same_file = False
                with suppress(FileNotFoundError):  # a backup may hold the removed file by a hard link
                    status = (self._folder / LOCK_FILE).stat()
                    is_same_file = _inode(status) == _inode(os.fstat(self._descriptor))
                lacks_spec = needs_spec and not (self._folder / SPEC_FILE).exists()
                self._check_present(is_same_file and not lacks_spec)
                yield
            finally:
                unlock_byte(self._descriptor, MUTEX_BYTE)

    def claim(self, number: int) -> bool:
        """Lock block ``number``; returns False if this or another process already holds it."""
        with self._guard:
            if number in self._claims or not self._lock(FIRST_BLOCK_BYTE + number, wait=False):
                return False
            self._claims.add(number)
            return True

    def release(self, number: int) -> None:
        """Unlock a claimed block."""
        with self._guard:
            self._claims.remove(number)
            unlock_byte(self._descriptor, FIRST_BLOCK_BYTE + number)

    @contextmanager
    def at_work(self, *, needs_spec: bool = True) -> Iterator[None]:
        """Record that this process works on the entry; remove the records and temporary files of dead processes.

        Several of these contexts may be open, in any threads; they share one record. ``needs_spec`` is False
        if the entry may not have its ``spec.json`` yet (see `mutex`).
        """
        with self._guard:
            if self._users == 0:
                self._register(needs_spec=needs_spec)
            self._users += 1
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                if self._users == 0:
                    _record_path(self._folder).unlink(missing_ok=True)
                    os.close(self._record)

    def _register(self, *, needs_spec: bool) -> None:
        """Write and lock a record of this process in the folder, and remove what dead processes left there."""
        with self.mutex(needs_spec=needs_spec):  # so that no other process registers itself meanwhile
            own = _record_path(self._folder)
            publish_json(own, _own_record(), durable=False)  # no process survives a power loss
            self._record = os.open(own, os.O_RDWR)
            lock_byte(self._record, 0, wait=True)
            # A record that nobody locks belongs to a dead process, as do the temporary files with its name.
            records = _records(self._folder)
            alive = {path.stem for path in records if path == own or is_locked_elsewhere(path)}
            for path in (*records, *self._folder.rglob(".*.tmp")):
                if path.stem.rpartition(".")[2] not in alive:
                    with suppress(OSError):  # only its owner may remove it
                        path.unlink(missing_ok=True)

    @contextmanager
    def removal(self) -> Iterator[None]:
        """Hold the mutex while the entry is removed; raises CacheError if a process works on it."""
        with self._guard:
            # A damaged entry, which has no spec.json, can be removed too.
            with self.mutex(needs_spec=False):
                if users := processes_at_work(self._folder):
                    user = users[0]
                    name = f"process {user.get('pid')} on {user.get('host')} since {user.get('started')}"
                    raise CacheError(f"{self._folder}: used by {name}; stop it first")
                yield
            # The lock file is gone: forget this object before its descriptor is closed. After that, the lock file of
            # a new entry may get the same inode, and it needs a descriptor of its own.
            with _open_guard:
                _open_locks.pop(_inode(os.fstat(self._descriptor)), None)
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_present(self, present: bool) -> None:
        if not present:
            raise CacheError(f"{self._folder}: removed during this run; run the same command again")

    def _lock(self, byte: int, *, wait: bool) -> bool:
        self._check_present(self._descriptor >= 0)
        try:
            return lock_byte(self._descriptor, byte, wait=wait)
        except OSError as error:
            problem = f"{self._folder}: this file system does not support file locks ({error.strerror})"
            raise CacheError(
                f"{problem}; put the cache on a local disk with --cache or RESERVOIR_CACHE"
            ) from error


# The locks of each entry that this process has used, by device and inode of the lock file: a second descriptor of the
# same file would drop the locks of the first when it is closed.
_open_locks: dict[tuple[int, int], EntryLocks] = {}
_open_guard = threading.Lock()


def entry_locks(folder: Path, *, create: bool = False) -> EntryLocks:
    """Return the locks of an entry, one object per lock file and process; raises CacheError if it is read-only."""
    path = folder / LOCK_FILE
    with _open_guard:
        with suppress(OSError):  # opening the file below raises a better error
            if locks := _open_locks.get(_inode(path.stat())):
                return locks
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


def processes_at_work(folder: Path) -> list[dict[str, Any]]:
    """Return the records (host, pid, started) of the processes that are working on an entry."""
    records = list[dict[str, Any]]()
    for path in _records(folder):
        # this process must not open its own record: closing it would drop the lock
        if path == _record_path(folder):
            records.append(_own_record())
        elif is_locked_elsewhere(path):
            with suppress(FileNotFoundError, CacheError):  # the process may end between the two checks
                records.append(read_json(path))
    return records


def _record_path(folder: Path) -> Path:
    return folder / RECORDS / f"{process_identity()}.json"


@cache
def _own_record() -> dict[str, Any]:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started}


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / RECORDS).glob("*.json") if not path.name.startswith("."))


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _forget() -> None:
    """Clear the tables in a forked child, which inherits them from its parent but not the locks."""
    global _open_guard  # noqa: PLW0603
    _open_locks.clear()
    _open_guard = threading.Lock()
    _own_record.cache_clear()


os.register_at_fork(after_in_child=_forget)
