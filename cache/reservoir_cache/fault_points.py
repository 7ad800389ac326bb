"""Named steps at which a process can be made to die or to fail, to show that whatever it was doing survives it."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter

ARMED = "RESERVOIR_FAULT"
"""Environment variable ``STEP[:N[:ERROR]]``: what happens the N-th time that a step is reached: kill -9, or an OSError
such as ENOSPC."""

STEPS = (
    *("begun", "written", "verified", "synced", "replaced"),  # a file, on the way to its final name
    *("listed", "unlisted"),  # in a manifest
    *("marked", "emptied"),  # an entry that is removed
    *("gathered", "placed"),  # a folder that gets its final name: prepared data, a checkpoint
)

_reached: Counter[str] = Counter()


def fault_point(step: str) -> None:
    """Die or fail here if that is armed; nothing happens otherwise."""
    if not (armed := os.environ.get(ARMED)):
        return
    name, number, error = (*armed.split(":"), "", "")[:3]
    _reached[step] += 1
    if name == step and _reached[step] == int(number or 1):
        if not error:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(code := getattr(errno, error), os.strerror(code))


os.register_at_fork(after_in_child=_reached.clear)
