"""Atomic writing of files, JSON with a checksum, checksums of source files, and the folders of cache and data."""

import csv
import hashlib
import io
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir_cache import open_regular, read_regular, replace_file

from reservoir.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

IMPORTED = "imported"
"""Family, init and input of an entry of imported features, and the default name of their layer."""


def cache_root(cache: Path | None = None) -> Path:
    """Return the root folder: the argument, else ``RESERVOIR_CACHE``, else the platform's user cache folder."""
    folder = cache or os.environ.get("RESERVOIR_CACHE")
    if not folder:
        import platformdirs

        folder = platformdirs.user_cache_dir("reservoir", appauthor=False)
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise InputError(
            f"the cache {root} is not a folder", "name another with --cache DIR or RESERVOIR_CACHE"
        )
    return root


def data_folder(data: Path | None = None) -> Path | None:
    """Return the folder of the publishers' files: the argument, else ``RESERVOIR_DATA``, else None."""
    folder = data or os.environ.get("RESERVOIR_DATA")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise InputError(
            f"the data folder {folder} does not exist", "name another with --data DIR or RESERVOIR_DATA"
        )
    return Path(folder)


def check_out_file(out: Path | None, *suffixes: str) -> None:
    """Raise `InputError` unless ``--out`` names a file with one of the suffixes; None is a command's default."""
    if out is None:
        return
    if out.is_dir():  # also the paths . and /, which have no name
        raise InputError(f"--out {out}: a folder", "name a file")
    # A file of another type is a slip, which would replace data or a readout.
    if out.suffix.lower() not in suffixes:
        raise InputError(f"--out {out}: not a {' or '.join(suffixes)} file", "name one")


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of some packages, to explain why a number differs between machines."""
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


DIGEST = "sha256"  # key of the digest in files with JSON
FILE_DIGESTS = "files"  # key of the digests of the files that a summary describes


class DamagedError(ValueError):
    """The content of a file has changed since it was written."""


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV, floats with six decimals; the file is replaced atomically."""
    text = io.StringIO(newline="")  # the CSV writer ends lines itself
    csv.writer(text).writerows(
        [f"{cell:.6f}" if isinstance(cell, float) else cell for cell in row] for row in rows
    )
    replace_file(path, lambda part: part.write_text(text.getvalue()))


def write_checked(path: Path, values: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write JSON with its digest among the values; the file is replaced atomically (see `replace_file`)."""
    text = checked_line(values, indent=1)
    replace_file(path, lambda part: part.write_text(text), durable=durable)


def read_checked(path: Path) -> dict[str, Any]:
    """Return what `write_checked` wrote; raise `ValueError` for any other file, `DamagedError` if it has changed."""
    return _verified(read_regular(path))


def with_digests(summary: Mapping[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """Return the values of a summary, and the digests of those of ``files`` that exist by their names."""
    return {**summary, FILE_DIGESTS: {file.name: file_digest(file) for file in files if file.exists()}}


def require_intact(file: Path, summary: Mapping[str, Any]) -> None:
    """Raise `DamagedError` if a file has changed since a summary was written; earlier versions wrote no digests."""
    digests = summary.get(FILE_DIGESTS, {})
    if file.name in digests and file_digest(file) != digests[file.name]:
        raise DamagedError(f"{file.name} has changed since it was written")


def _verified(text: bytes) -> dict[str, Any]:
    """Return JSON values without their digest; raise `ValueError` without one, `DamagedError` if it is not theirs."""
    try:
        values = json.loads(text)
        is_intact = values.pop(DIGEST) == json_digest(values)
    # The file is JSON, but no object with a digest, or is nested too deeply; no JSON at all is a ValueError already.
    except (KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError("it has no checksum") from error
    if not is_intact:
        raise DamagedError("checksum mismatch")
    return values


def checked_line(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Return values as JSON with their digest among them, in one line unless ``indent`` is given."""
    return json.dumps({**values, DIGEST: json_digest(values)}, indent=indent) + "\n"


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield each line of a file with the values that `checked_line` wrote, or with None if the line is damaged.

    A file that does not exist has no lines.
    """
    lines = read_regular(path).splitlines(keepends=True) if path.exists() else []
    for line in lines:
        values = None
        with suppress(ValueError):
            values = _verified(line)
        yield line, values


def stamp(path: Path) -> list[int]:
    """Return size, inode, modification time and change time of a file; no program can set the last one."""
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CHECKSUMS_FILE = "files.json"  # the checksums of source files, kept with the folders of prepared data
# nanoseconds after a file's last change during which another change may carry the same time
UNSETTLED = 2 * 10**9


def source_contents(files: Sequence[Path], task: Path, settings_dir: Path) -> list[dict[str, Any]]:
    """Return name, bytes and SHA-256 of each file; files below the folder ``task`` are named by their path in it.

    A file is not read again if its size, inode, modification time and change time are the same: the folder
    ``settings_dir`` remembers the checksums.
    """
    # By the absolute path of a file: its `stamp`, its SHA-256, and when it was read, in nanoseconds since the epoch.
    remembered = dict[str, Any]()
    with suppress(OSError, ValueError):  # there are none yet, or the file is damaged
        remembered = read_checked(settings_dir / CHECKSUMS_FILE)
    checksums_to_remember = dict[str, Any]()
    contents = list[dict[str, Any]]()
    for file in _regular_files(files):
        path = str(file.absolute())
        current_stamp = stamp(file)
        checksum = remembered.get(path)
        if checksum is None or checksum["stamp"] != current_stamp:
            time_before = time.time_ns()
            checksum = {"stamp": current_stamp, "sha256": file_digest(file), "read": time_before}
        # A file that was changed just before it was read may change again with the same times.
        size, *_, change_time = checksum["stamp"]
        if change_time + UNSETTLED < checksum["read"]:
            checksums_to_remember[path] = checksum
        name = os.fspath(file.relative_to(task)) if task in file.parents else file.name
        contents.append({"name": name, "size": size, "sha256": checksum["sha256"]})
    if not checksums_to_remember.items() <= remembered.items():
        with suppress(OSError):  # the cache may be read-only; then the files are read again next time
            settings_dir.mkdir(parents=True, exist_ok=True)
            write_checked(settings_dir / CHECKSUMS_FILE, checksums_to_remember)
    return contents


def _regular_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files and, for each folder, all files below it; raise `InputError` for what is no regular file."""
    files = list[Path]()
    for path in paths:
        files += sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: not a regular file", "remove it, or replace it with a regular file")
    return files


def save_tensors(tensors: "Mapping[str, Tensor]", path: Path) -> None:
    """Write a safetensors file with the permissions of a new file."""
    from safetensors.torch import save_file

    with safetensors_errors_as_os_errors():
        save_file(dict(tensors), path)
    # safetensors makes files that only their owner can read.
    set_default_permissions(path)


@contextmanager
def safetensors_errors_as_os_errors() -> Iterator[None]:
    """Turn an error of safetensors that names a system error, such as a full disk, into the `OSError` of its number."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        if not match:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number)) from error


def set_default_permissions(path: Path) -> None:
    """Give a file the permissions that `open` gives a new file: read and write, without the bits of the umask."""
    # The umask can only be read by setting another one.
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def json_digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of some values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
