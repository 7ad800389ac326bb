"""All locks of the project: of a whole file or folder, and of single bytes of a file. They end with their process.

A lock of a whole file belongs to the opened file. A lock of a byte (a POSIX record lock) belongs to the process:
closing *any* descriptor of the file drops all byte locks that the process has on it.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reservoir_cache.paths import refuse_links

_TAKEN = (errno.EACCES, errno.EAGAIN)  # errors of a lock that another process has


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
