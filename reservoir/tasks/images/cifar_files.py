"""The files of CIFAR-10, in each form that its authors publish.

==================  ====================================  =============================
form                as a folder                           as an archive
==================  ====================================  =============================
binary              ``cifar-10-batches-bin/*.bin``        ``cifar-10-binary.tar.gz``
pickled (Python)    ``cifar-10-batches-py/*``             ``cifar-10-python.tar.gz``
==================  ====================================  =============================
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.images.cifar_pickle import read_pickle
from reservoir.tasks.source import REMEDY, data_folder

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
BATCH_ROWS = 10_000
RECORD = 1 + 3072

MOST_BYTES = 64 * 2**20
"""Twice the size of a batch; a member of an archive that claims more is damaged or hostile."""

MOST_UNPACKED = 2**28
"""Above the size of the whole archive when it is unpacked, 184 million."""

MOST_MEMBERS = 100

FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10")


@dataclass(frozen=True)
class Batches:
    """The six batches: six files or one archive, with binary records or pickles."""

    paths: tuple[Path, ...]
    binary: bool

    @property
    def packed(self) -> bool:
        """Whether the batches are in an archive, which can only be read from its beginning."""
        return len(self.paths) == 1


def find_batches(task: str, data: Path | None) -> Batches:
    """Return the batches below a data folder; folders come before archives, binary files before pickles."""
    wanted = "cifar-10-batches-bin, cifar-10-batches-py, cifar-10-binary.tar.gz or cifar-10-python.tar.gz"
    data = data_folder(task, data, wanted)
    for suffix in (".bin", ""):
        for folder in FOLDERS:
            paths = tuple(data / folder / f"{batch}{suffix}" for batch in BATCHES)
            there = [path for path in paths if path.is_file()]
            if len(there) == len(paths):
                return Batches(paths, suffix == ".bin")
            if there:
                missing = next(path for path in paths if path not in there)
                raise InputError(f"task {task!r}: {missing} is missing; unpack the archive again")
    for name in ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"):
        for folder in FOLDERS:
            if (data / folder / name).is_file():
                return Batches((data / folder / name,), "binary" in name)
    raise InputError(f"task {task!r}: none of {wanted} in {data}; {REMEDY}")


def read_batches(found: Batches, wanted: slice) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return images (rows, 32, 32, 3) and labels (rows,), bytes, of some of the six batches."""
    if not found.packed:
        return [_parse(str(path), _read(path), found.binary) for path in found.paths[wanted]]
    members = _unpack(found.paths[0], [f"{b}.bin" if found.binary else b for b in BATCHES[wanted]])
    return [_parse(f"{found.paths[0]}: {name}", data, found.binary) for name, data in members.items()]


def _read(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes; a batch has 31 million; check that it is one")
    return path.read_bytes()


def _unpack(path: Path, names: list[str]) -> dict[str, bytes]:
    """Return members of an archive by their names without folders; nothing is written to disk."""
    found: dict[str, bytes] = {}
    try:
        # Skipping a member unpacks it, too, so all bytes are counted, not only those that are kept.
        with gzip.open(path) as packed, tarfile.open(fileobj=_Counted(packed), mode="r|") as archive:  # pyright: ignore
            for number, member in enumerate(archive):
                if number > MOST_MEMBERS:
                    raise OSError(f"more than {MOST_MEMBERS} members")
                name = member.name.rsplit("/", 1)[-1]
                if name in names and member.isfile():
                    if member.size > MOST_BYTES:
                        raise InputError(f"{path}: {member.name} claims {member.size} bytes; a batch has 31 million")
                    file = archive.extractfile(member)
                    found[name] = file.read() if file else b""
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged or cut short ({error}); fetch the archive again") from None
    for name in names:
        if name not in found:
            raise InputError(f"{path}: holds no {name}; fetch the archive again")
    return {name: found[name] for name in names}


class _Counted:
    """A file of which no more than `MOST_UNPACKED` bytes can be read."""

    def __init__(self, file: IO[bytes]):
        self._file, self._left = file, MOST_UNPACKED

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise OSError(f"more than {MOST_UNPACKED} bytes unpacked")
        return data


def _parse(where: str, data: bytes, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _parse_records(where, data) if binary else _parse_pickle(where, data)
    if labels.max() > 9:
        row = int(np.argmax(labels > 9))
        raise InputError(f"{where}, row {row}: label {labels[row]} is not in 0..9; fetch the file again")
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _parse_records(where: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 3072) and labels; a record is a label and the red, green and blue values, a byte each."""
    if not data or len(data) % RECORD or len(data) > BATCH_ROWS * RECORD:
        raise InputError(f"{where}: {len(data)} bytes are not 1 to {BATCH_ROWS} records of {RECORD}; fetch it again")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return records[:, 1:], records[:, 0]


def _parse_pickle(where: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of a batch in Python's format; `read_pickle` runs nothing of it."""
    try:
        values = read_pickle(data)
    except ValueError as error:
        raise InputError(f"{where}: not a batch of CIFAR-10 ({error}); fetch the file again") from None
    images, labels = values.get("data"), values.get("labels")
    if not isinstance(images, np.ndarray) or images.shape[1:] != (3072,):
        raise InputError(f"{where}: no array 'data' of bytes (rows, 3072); is it a batch of CIFAR-10?")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        labels = []
    if len(labels) != len(images) or not labels:
        raise InputError(f"{where}: {len(images)} images need as many 'labels' from 0 to 9; fetch the file again")
    return images, np.array(labels, np.uint8)
