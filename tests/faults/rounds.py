"""What every part of the campaign is made of: counts, forked commands, and what must be on disk in the end."""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from reservoir_pipelines.cli import run


@dataclass
class Count:
    """How often a fault was tried, and where something was lost."""

    fault: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)

    def add(self, sound: bool, where: str) -> None:
        """Count a trial."""
        self.tried += 1
        if not sound:
            self.lost.append(where)
            print(f"LOST: {self.fault}: {where}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Ended:
    """How a forked process ended: its exit status, minus the signal that killed it; what it wrote; seconds it took."""

    status: int
    output: str
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether it was killed."""
        return self.status == -signal.SIGKILL

    @property
    def whole(self) -> bool:
        """Whether it did what was asked."""
        return self.status == 0

    @property
    def explained(self) -> bool:
        """Whether it did what was asked, or printed a message why not."""
        return self.status in (0, 1, 2) and "Traceback" not in self.output


def forked(work: Callable[[], object], log: Path, *, fault: str = "") -> int:
    """Start a forked process, all imports done, that ends with what ``work`` returns; return its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 3
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = sys.stderr = os.fdopen(handle, "w")
        os.environ["RESERVOIR_FAULT"] = fault
        status = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(int(status))  # pyright: ignore[reportArgumentType]


def ended(pid: int, log: Path, started: float) -> Ended:
    """Wait for a forked process."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(status, log.read_text(errors="replace") if log.exists() else "", time.perf_counter() - started)


def command(arguments: Sequence[object], log: Path, *, fault: str = "", kill_after: float | None = None) -> Ended:
    """Run a command in a forked process, and kill it after ``kill_after`` seconds if given."""
    started = time.perf_counter()
    pid = forked(lambda: run([str(a) for a in arguments]), log, fault=fault)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return ended(pid, log, started)


def import_all(arguments: Sequence[object], log: Path) -> None:
    """Import here what a command imports, so that forked processes need not, each anew."""
    work = lambda: run([str(a) for a in arguments]) or print("\n", json.dumps(list(sys.modules)))  # noqa: E731
    output = ended(forked(work, log), log, 0).output
    for name in json.loads(output.splitlines()[-1]):
        with suppress(Exception):
            importlib.import_module(name)
    gc.freeze()


def digests(root: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the files of some patterns, and the names of all that was left half made."""
    files = [path for pattern in patterns for path in root.glob(pattern) if path.is_file()]
    found = {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}
    left = [p for p in root.rglob(".*") if p.name.endswith((".part", ".tmp")) or p.parent.parent.name == "prepared"]
    return found | {str(path.relative_to(root)): "left over" for path in left}


def different(found: dict[str, str], wanted: dict[str, str]) -> str:
    """Say in what two results of `digests` differ; empty where they do not."""
    names = [name for name in sorted(found.keys() | wanted.keys()) if found.get(name) != wanted.get(name)]
    return ", ".join(names[:3])
