"""The state of the files that data is prepared from: names, sizes and checksums."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir_pipelines.files import file_digest, read_checked, stamp, write_checked

MEMO = "files.json"  # the checksums of source files, kept with the folders of prepared data
# nanoseconds after a file's last change during which another change may carry the same time
UNSETTLED = 2 * 10**9


def source_contents(files: Sequence[Path], task: Path, settings: Path) -> list[dict[str, Any]]:
    """Return name, bytes and SHA-256 of each file; files below the folder ``task`` are named by their path in it.

    A file is not read again if its size, inode, modification time and change time are the same: the folder
    ``settings`` remembers the checksums.
    """
    remembered = dict[str, Any]()
    settled = dict[str, Any]()
    contents = list[dict[str, Any]]()
    with suppress(OSError, ValueError):
        remembered = read_checked(settings / MEMO)
    for file in _regular_files(files):
        name = str(file.absolute())
        now = stamp(file)
        read = time.time_ns()
        line = remembered.get(name)
        if line is None or line["stamp"] != now:
            line = {"stamp": now, "sha256": file_digest(file), "read": read}
        # A file that was changed just before it was read may change again with the same times.
        if line["stamp"][-1] + UNSETTLED < line["read"]:
            settled[name] = line
        title = os.fspath(file.relative_to(task)) if task in file.parents else file.name
        contents.append({"name": title, "size": line["stamp"][0], "sha256": line["sha256"]})
    if not settled.items() <= remembered.items():
        with suppress(OSError):  # the cache may be read-only; then the files are read again next time
            settings.mkdir(parents=True, exist_ok=True)
            write_checked(settings / MEMO, settled)
    return contents


def _regular_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and those in the folders, of some paths."""
    files = list[Path]()
    for path in paths:
        files += sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: not a regular file", "remove it, or replace it by a regular file")
    return files
