"""What source files hold: each is known by its content, read again only when it may have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir_pipelines.files import file_digest, read_checked, write_checked

MEMO = "files.json"
"""What was read of which file, beside the folders of prepared data."""

UNSETTLED = 2 * 10**9
"""Nanoseconds after a file's last change during which another change may carry the same time."""


def contents(files: Sequence[Path], task: Path, settings: Path) -> list[dict[str, Any]]:
    """Return name, bytes and SHA-256 of each file; ``task`` is the place of own data, below which names count.

    A file whose size, inode and time of change (which no program can set) are those of an earlier call is not read.
    """
    memo = _read(settings / MEMO)
    files = [file for path in files for file in _below(path)]
    known = {str(path.absolute()): _known(path, memo.get(str(path.absolute()))) for path in files}
    settled = {name: found for name, found in known.items() if _settled(found)}
    if not settled.items() <= memo.items():
        with suppress(OSError):  # a cache that only others may write: read again next time
            settings.mkdir(parents=True, exist_ok=True)
            write_checked(settings / MEMO, settled)
    return [
        {"name": _name(path, task), "size": found["stamp"][0], "sha256": found["sha256"]}
        for path in files
        for found in [known[str(path.absolute())]]
    ]


def stamp(path: Path) -> list[int]:
    """Return size, inode, time of writing and time of change of a file.

    Tools that copy files give them the time of the original; that of their last change nobody sets.
    """
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _known(path: Path, before: dict[str, Any] | None) -> dict[str, Any]:
    now, read = stamp(path), time.time_ns()
    if before is not None and before["stamp"] == now:
        return before
    try:
        return {"stamp": now, "sha256": file_digest(path), "read": read}
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _below(path: Path) -> list[Path]:
    files = sorted(below for below in path.rglob("*") if below.is_file()) if path.is_dir() else [path]
    odd = [file for file in files if not file.is_file()]
    if odd:
        raise InputError(f"{odd[0]}: not a regular file, so nothing is read from it")
    return files


def _settled(found: dict[str, Any]) -> bool:
    return found["stamp"][-1] + UNSETTLED < found["read"]


def _name(path: Path, task: Path) -> str:
    below = path.is_relative_to(task) and path != task
    return os.fspath(path.relative_to(task)) if below else path.name


def _read(memo: Path) -> dict[str, Any]:
    try:
        return read_checked(memo)
    except (OSError, ValueError):
        return {}
