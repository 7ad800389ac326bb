"""Parts that all tests of faults share: counts, and forked processes that are killed or run to their end."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Count:
    """The number of trials of a fault, and the trials in which something was lost."""

    fault: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)

    def add(self, sound: bool, where: str) -> None:
        self.tried += 1
        if not sound:
            self.lost.append(where)
            print(f"LOST: {self.fault}: {where}", file=sys.stderr, flush=True)


class RefusedError(Exception):
    """A command ended with a message and a nonzero exit code."""


@dataclass(frozen=True)
class Ended:
    """The end of a forked process: its exit status (negative: the signal that killed it), and its output."""

    status: int
    output: str

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def whole(self) -> bool:
        return self.status == 0

    @property
    def explained(self) -> bool:
        """Whether the process succeeded, or explained in a message why it did not."""
        return self.status in (0, 2) and "Traceback" not in self.output


CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "shutil.rmtree")
"""Audit events of Python that change a folder; only files that are opened for writing count."""


def inject(fault: str, start: Path) -> Counter[str]:
    """Kill this process, or raise an OSError, just before a change of a path that begins with ``start``.

    The fault is ``EVENT[:N[:ERROR]]``: the N-th event of this kind, and the error if the process is not killed. Returns
    a counter of the events, which is updated until the process ends.
    """
    event, number, error = (*fault.split(":"), "", "")[:3]
    seen = Counter[str]()

    def watch(name: str, arguments: tuple[Any, ...]) -> None:
        if name not in CHANGES or not str(arguments[0]).startswith(str(start)):
            return
        if name == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        seen[name] += 1
        if name == event and seen[name] == int(number or 1):
            if not error:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(code := getattr(errno, error), os.strerror(code))

    sys.addaudithook(watch)
    return seen


def forked(work: Callable[[], object], log: Path) -> int:
    """Start ``work`` in a forked process, after all imports; return the process ID."""
    pid = os.fork()
    if pid:
        return pid
    status = 3
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = sys.stderr = os.fdopen(handle, "w")
        work()
        status = 0
    except RefusedError as error:
        print(error)
        status = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int, log: Path, kill_after: float | None = None) -> Ended:
    """Wait for a forked process, and kill it after ``kill_after`` seconds if given."""
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(status, log.read_text(errors="replace") if log.exists() else "")
