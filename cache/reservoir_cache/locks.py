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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.paths import refuse_links
from reservoir_cache.publish import process_identity, publish_json, read_json
from reservoir_cache.spec import SPEC_FILE

LOCK_FILE = "lock"  # its name in the folder of an entry
# Bytes of the lock file. Block n of the entry has byte FIRST_BLOCK_BYTE + n.
MUTEX_BYTE = 0
FIRST_BLOCK_BYTE = 1
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
    # A folder can only be opened for reading, which suffices for a lock of the whole.
    descriptor = os.open(path, os.O_RDONLY) if path.is_dir() else open_lock(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_held = True
        except BlockingIOError:
            is_held = False
        yield is_held
    finally:
        os.close(descriptor)  # drops the lock


def open_lock(path: Path, *, create: bool = True) -> int:
    """Open a lock file for reading and writing; raises CacheError if it is a symbolic link."""
    refuse_links(path)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o666)


def lock_byte(descriptor: int, byte: int, *, wait: bool) -> bool:
    """Lock one byte of an open file; return False only without ``wait``, if another process has locked it."""
    length = 1
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), length, byte)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def unlock_byte(descriptor: int, byte: int) -> None:
    """Unlock one byte of an open file."""
    length = 1
    fcntl.lockf(descriptor, fcntl.LOCK_UN, length, byte)


def is_locked_elsewhere(path: Path) -> bool:
    """Return whether another process has locked the first byte of a file; a file that does not exist has no lock.

    Do not call this for a file that this process has locked: closing the descriptor would drop that lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's file, which cannot be read: its process may be alive
    length = 1
    try:
        # A shared lock is refused exactly if another process has the exclusive one. It ends when the file is closed.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, length)
    except OSError as error:
        # Any other error, such as that of a file system without locks, shows no lock.
        return error.errno in _TAKEN
    else:
        return False
    finally:
        os.close(descriptor)


def is_file_locked(path: Path) -> bool:
    """Return whether a process has an exclusive lock on a whole file; a file that does not exist has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
    except FileNotFoundError:
        return False
    try:
        # A shared lock is refused exactly if a process has the exclusive one. It ends when the file is closed.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def untracked() -> Iterator[None]:
    """Return a context for the steps of another command, whose entries do not become the last of their task."""
    token = _untracked.set(True)
    try:
        yield
    finally:
        _untracked.reset(token)


def mark_last(folder: Path, *, new: bool = False) -> None:
    """Make an entry the last entry of its task, by the modification time of its lock file.

    Within `untracked` the time of an existing entry stays as it is, and a ``new`` entry comes before all others.
    Nothing happens if this user may not set the time.
    """
    path = folder / LOCK_FILE
    now = time.time_ns()
    with suppress(OSError):
        if _untracked.get():
            if new:
                os.utime(path, ns=(now, NEVER_LAST))  # access time, modification time
            return
        # The time must be later than those of all other entries of the task, which may lie in the future: their files
        # may come from another machine, or the clock was set back.
        locks_of_others = (lock for lock in folder.parent.glob(f"*/{LOCK_FILE}") if lock != path)
        last = max((now, *(lock.stat().st_mtime_ns + 1 for lock in locks_of_others)))
        try:
            os.utime(path, ns=(last, last))
        except PermissionError:
            # Another user's file: write permission allows only the current time, which is coarse.
            os.utime(path)


def was_ever_last(folder: Path) -> bool:
    """Return whether an entry has ever been the last one of its task (see `mark_last`); True without a lock file."""
    try:
        return (folder / LOCK_FILE).stat().st_mtime_ns != NEVER_LAST
    except FileNotFoundError:
        # An entry that was never the last one may lack splits. Without the file nobody knows, and True is the strict
        # answer: the entry needs all of its splits.
        return True


def mark_used(folder: Path) -> None:
    """Record that an entry was read, as the access time of its lock file, if this user may set it."""
    path = folder / LOCK_FILE
    with suppress(OSError):
        access_time, modification_time = time.time_ns(), path.stat().st_mtime_ns
        os.utime(path, ns=(access_time, modification_time))


class EntryLocks:
    """The locks of the entry in ``folder``, one object per process; use ``entry_locks``."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor  # of the lock file; -1 after the entry has been removed
        # Byte locks belong to the process, so its own threads exclude each other by this lock. It is reentrant, because
        # methods that hold it call each other.
        self._guard = threading.RLock()
        self._claims = set[int]()  # numbers of the blocks that this process has claimed
        self._open_contexts = 0  # contexts `at_work` that are open in this process
        self._record = -1  # descriptor of this process's record; valid only while a context is open

    @contextmanager
    def mutex(self, *, needs_spec: bool = True) -> Iterator[None]:
        """Wait for the entry's mutex and hold it, to replace a manifest.

        Not reentrant: the lock of a byte is not counted, so leaving an inner context would drop that of the outer one.
        Raises CacheError if the entry was removed or replaced meanwhile, or, with ``needs_spec``, if it has no
        ``spec.json``.
        """
        with self._guard:
            self._lock(MUTEX_BYTE, wait=True)
            try:
                # While this process waited, another may have removed the entry, and a third one may have created it
                # again with a new lock file. The number of links of the old file does not show this, because a backup
                # may hold it by a hard link.
                is_same_file = False
                with suppress(FileNotFoundError):
                    status = (self._folder / LOCK_FILE).stat()
                    is_same_file = _inode(status) == _inode(os.fstat(self._descriptor))
                lacks_spec = needs_spec and not (self._folder / SPEC_FILE).exists()
                if lacks_spec or not is_same_file:
                    raise self._removed()
                yield
            finally:
                unlock_byte(self._descriptor, MUTEX_BYTE)

    def claim(self, number: int) -> bool:
        """Lock block ``number``; return False if this or another process already holds it."""
        with self._guard:
            # Byte locks do not exclude threads of one process: a second lock of the same byte would succeed.
            is_claimed_here = number in self._claims
            if is_claimed_here or not self._lock(FIRST_BLOCK_BYTE + number, wait=False):
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
            if self._open_contexts == 0:
                self._register(needs_spec=needs_spec)
            self._open_contexts += 1
        try:
            yield
        finally:
            with self._guard:
                self._open_contexts -= 1
                if self._open_contexts == 0:
                    _record_path(self._folder).unlink(missing_ok=True)
                    os.close(self._record)

    def _register(self, *, needs_spec: bool) -> None:
        """Write and lock a record of this process in the folder, and remove what dead processes left there."""
        with self.mutex(needs_spec=needs_spec):  # so that no other process registers itself meanwhile
            record_of_this_process = _record_path(self._folder)
            # Not durable, because no process survives a power loss.
            publish_json(record_of_this_process, _own_record(), durable=False)
            self._record = os.open(record_of_this_process, os.O_RDWR)
            lock_byte(self._record, 0, wait=True)
            # A record that nobody locks belongs to a dead process, as do the temporary files with its identity. That is
            # the whole stem of a record, <identity>.json, and the part after the last dot of the stem of a temporary
            # file, .<final name>.<number>.<identity>.tmp.
            records = _records(self._folder)
            identities_alive = {
                path.stem for path in records if path == record_of_this_process or is_locked_elsewhere(path)
            }
            for path in (*records, *self._folder.rglob(".*.tmp")):
                identity = path.stem.rpartition(".")[2]
                if identity not in identities_alive:
                    with suppress(OSError):  # only its owner may remove it
                        path.unlink(missing_ok=True)

    @contextmanager
    def removal(self) -> Iterator[None]:
        """Hold the mutex while the caller removes the entry; raises CacheError if a process works on it."""
        with self._guard:
            # A damaged entry, which has no spec.json, can be removed too.
            with self.mutex(needs_spec=False):
                if processes := processes_at_work(self._folder):
                    raise CacheError(f"{self._folder}: used by {process_text(processes[0])}; stop it first")
                yield
            # The lock file is gone: forget this object before its descriptor is closed. After that, the lock file of
            # a new entry may get the same inode, and it needs a descriptor of its own.
            with _open_guard:
                _open_locks.pop(_inode(os.fstat(self._descriptor)), None)
            os.close(self._descriptor)
            self._descriptor = -1

    def _removed(self) -> CacheError:
        """Return the error of an entry that was removed or replaced, for the caller to raise."""
        return CacheError(f"{self._folder}: removed during this run; run the same command again")

    def _lock(self, byte: int, *, wait: bool) -> bool:
        """Lock a byte of the lock file as `lock_byte` does; raises CacheError if the entry was removed."""
        was_removed_here = self._descriptor < 0
        if was_removed_here:
            raise self._removed()
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
_open_guard = threading.Lock()  # held while the table above is read and changed


def entry_locks(folder: Path, *, create: bool = False) -> EntryLocks:
    """Return the locks of an entry, one object per lock file and process; ``create`` the lock file if necessary.

    Raises CacheError if the entry does not exist, or is read-only for this user.
    """
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
        # This process must not open its own record: closing it would drop the lock.
        if path == _record_path(folder):
            records.append(_own_record())
        elif is_locked_elsewhere(path):
            # The process may have ended since it was found alive.
            with suppress(FileNotFoundError, CacheError):
                records.append(read_json(path))
    return records


def process_text(record: Mapping[str, Any]) -> str:
    """Return the name of a process in messages, from its record."""
    return f"process {record.get('pid')} on {record.get('host')} since {record.get('started')}"


def _record_path(folder: Path) -> Path:
    """Return the path of this process's record in the folder of an entry."""
    return folder / RECORDS / f"{process_identity()}.json"


@cache
def _own_record() -> dict[str, Any]:
    """Return the record of this process; it is cached, so that ``started`` is the time of the first call."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started}


def _records(folder: Path) -> list[Path]:
    """Return the paths of the records in an entry, sorted, without hidden files, which are not complete."""
    return sorted(path for path in (folder / RECORDS).glob("*.json") if not path.name.startswith("."))


def _inode(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which identify a file whatever its name."""
    return status.st_dev, status.st_ino


def _forget_parent() -> None:
    """Clear the tables in a forked child, which inherits them from its parent but not the locks."""
    global _open_guard  # noqa: PLW0603
    _open_locks.clear()
    _open_guard = threading.Lock()  # a new one, because a thread of the parent may have held the old one
    _own_record.cache_clear()


os.register_at_fork(after_in_child=_forget_parent)
