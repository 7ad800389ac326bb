"""Files that are complete or as they were before: any file, JSON with its own SHA-256, and tensors."""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir_cache import fault_point, sync

from reservoir.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

DIGEST = "sha256"
MEMO = "files.json"
"""What was read of which source file, beside the folders of prepared data."""

UNSETTLED = 2 * 10**9
"""Nanoseconds after a file's last change during which another change may carry the same time."""

PART = re.compile(r"\..+-[0-9a-f]{32}\.part")
"""Temporary names of files and folders that `replace_file` and checkpoints are still writing."""


class DamagedError(ValueError):
    """A file is not what was written."""


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under a temporary name and move it into place, so that it is complete or as it was before."""
    part = part_beside(path)
    try:
        fault_point("begun")
        write(part)
        fault_point("written")
        sync(part)
        fault_point("synced")
        part.replace(path)
        fault_point("replaced")
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def part_beside(path: Path) -> Path:
    """Return a temporary name for a path, and remove files of such names that dead processes left behind.

    Its 32 digits are host, process number and random digits, by which others see whether its writer is still alive.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}-{_host()}*.part"):
        if PART.fullmatch(left.name) and not is_running(int(left.name[-29:-21], 16)):
            _remove(left)
    return path.with_name(f".{path.name}-{_host()}{os.getpid():08x}{secrets.token_hex(8)}.part")


def is_running(pid: int) -> bool:
    """Return whether a process of this host is alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@cache
def _host() -> str:
    """Return 8 digits for this host, and for the container in it, whose numbers of processes are its own."""
    name = os.uname().nodename
    with suppress(OSError):
        name += str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _remove(path: Path) -> None:
    with suppress(OSError):  # another user's, who alone may remove it
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def unfinished_folder(parent: Path) -> Path:
    """Make a folder that is renamed when all that belongs in it is written."""
    folder = parent / f".{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(16)}"
    folder.mkdir()
    return folder


def remove_unfinished_folders(parent: Path) -> None:
    """Remove what `unfinished_folder` made for processes of this host that have ended."""
    for folder in parent.glob(f".{os.uname().nodename}-*"):
        if not is_running(int(folder.name.split("-")[-2])):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def writing(path: Path, instead: str = "name another --out") -> Iterator[None]:
    """Raise `InputError`, in one line, if a path cannot be written within the context."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); {instead}") from error


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV, floats with six digits behind the point; the file is replaced whole."""

    def write(part: Path) -> None:
        with part.open("x", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([f"{cell:.6f}" if isinstance(cell, float) else cell for cell in row] for row in rows)

    replace_file(path, write)


def write_checked(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON with its digest among the values; the file is replaced whole."""
    checked = {**values, DIGEST: json_digest(values)}
    replace_file(path, lambda part: part.write_text(json.dumps(checked, indent=1) + "\n"))


def read_checked(path: Path) -> dict[str, Any]:
    """Return what `write_checked` wrote; raise `ValueError` if it is no such file, `DamagedError` if it has changed."""
    values = json.loads(path.read_text())
    if not isinstance(values, dict) or DIGEST not in values:
        raise ValueError("it has no checksum")
    if values.pop(DIGEST) != json_digest(values):
        raise DamagedError("checksum mismatch")
    return values


def checked_line(values: Mapping[str, Any]) -> str:
    """Return a line of JSON with its digest among the values."""
    return json.dumps({**values, DIGEST: json_digest(values)}) + "\n"


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield lines of `checked_line` with what they hold, None of those that have changed; none where no file is."""
    for text in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            values = json.loads(text)
            sound = values.pop(DIGEST) == json_digest(values)
        except (ValueError, KeyError, AttributeError, TypeError):
            sound, values = False, None
        yield text, values if sound else None


def source_contents(files: Sequence[Path], task: Path, settings: Path) -> list[dict[str, Any]]:
    """Return name, bytes and SHA-256 of each file; ``task`` is the place of own data, below which names count.

    A file whose size, inode and time of change (which no program can set) are those of an earlier call is not read.
    """
    memo = _read_memo(settings / MEMO)
    files = [file for path in files for file in _files_below(path)]
    known = {str(path.absolute()): _known_content(path, memo.get(str(path.absolute()))) for path in files}
    settled = {name: found for name, found in known.items() if _settled(found)}
    if not settled.items() <= memo.items():
        with suppress(OSError):  # a cache that only others may write: read again next time
            settings.mkdir(parents=True, exist_ok=True)
            write_checked(settings / MEMO, settled)
    return [
        {"name": _name_below(path, task), "size": found["stamp"][0], "sha256": found["sha256"]}
        for path in files
        for found in [known[str(path.absolute())]]
    ]


def stamp(path: Path) -> list[int]:
    """Return size, inode, time of writing and time of change of a file.

    Tools that copy files give them the time of the original; that of their last change nobody sets.
    """
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _known_content(path: Path, before: dict[str, Any] | None) -> dict[str, Any]:
    now, read = stamp(path), time.time_ns()
    if before is not None and before["stamp"] == now:
        return before
    try:
        return {"stamp": now, "sha256": file_digest(path), "read": read}
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _files_below(path: Path) -> list[Path]:
    files = sorted(below for below in path.rglob("*") if below.is_file()) if path.is_dir() else [path]
    odd = [file for file in files if not file.is_file()]
    if odd:
        raise InputError(f"{odd[0]}: not a regular file, so nothing is read from it")
    return files


def _settled(found: dict[str, Any]) -> bool:
    return found["stamp"][-1] + UNSETTLED < found["read"]


def _name_below(path: Path, task: Path) -> str:
    below = path.is_relative_to(task) and path != task
    return os.fspath(path.relative_to(task)) if below else path.name


def _read_memo(memo: Path) -> dict[str, Any]:
    try:
        return read_checked(memo)
    except (OSError, ValueError):
        return {}


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder; no link is followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def remove_parts(folder: Path) -> None:
    """Remove what was being written when a process was killed; whoever calls holds the folder."""
    for path in folder.glob(".*.part"):
        if PART.fullmatch(path.name):
            _remove(path)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file that others may read as they may read every new file."""
    from safetensors.torch import save_file

    with system_errors():
        save_file(dict(tensors), path)
    share(path)


@contextmanager
def system_errors() -> Iterator[None]:
    """Raise errors of the operating system that safetensors reports as the OSError that they are."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        if not (found := re.search(r"\(os error (\d+)\)", str(error))):
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def share(path: Path) -> None:
    """Give a file the permissions of a new file: safetensors makes it readable for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def json_digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of some values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
