"""The two times of an entry's lock file: which entry of a task is the last one, and when an entry was last read."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

LOCK_FILE = "lock"

_untracked = ContextVar("untracked", default=False)  # whether the code runs within `untracked`


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
                os.utime(path, ns=(now, 0))
            return
        # later than all others: their files may come from another machine, or the clock was set back
        others = (lock for lock in folder.parent.glob(f"*/{LOCK_FILE}") if lock != path)
        now = max((now, *(lock.stat().st_mtime_ns + 1 for lock in others)))
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
