"""Small tables, and files in the publishers' formats, made on the spot."""

import gzip
import pickle
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from reservoir_pipelines.data import formats
from reservoir_pipelines.preparation.prepare import open_source

from reservoir.errors import InputError
from reservoir.tasks import check_split
from reservoir.tasks.listops import CLOSE, OPERATOR, SYMBOLS
from reservoir.tasks.task import Split


def assert_refused(message: str, path: object, **asked: object) -> None:
    """Assert that no task can be made of a path, and that one line, which matches ``message``, says why."""
    with pytest.raises(InputError, match=message) as refused:
        _ = open_source(str(path), **asked).task
    assert "\n" not in str(refused.value)


class NewRows(NamedTuple):
    """New rows as arrays."""

    x: np.ndarray
    lengths: np.ndarray | None
    ids: np.ndarray
    y: np.ndarray | None
    groups: np.ndarray | None
    skipped: dict


def read_new(path, task, labels=None) -> NewRows:
    """Return the new rows of a file, read into memory."""
    rows = formats.read_new(path, task, labels)
    return NewRows(rows.x[:], rows.lengths, rows.names, rows.y, rows.groups, rows.skipped)


def read_splits(source) -> dict[str, Split]:
    """Return the rows of every split of a task, joined from its pieces."""
    parts = [source.read(piece) for piece in source.pieces()]
    found = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        splits = [part[name] for part in parts if name in part]
        arrays = {a: np.concatenate([getattr(one, a) for one in splits]) for a in ("x", "y", "lengths")}
        counts = {count: sum(getattr(one, count) for one in splits) for count in ("dropped", "cut")}
        found[name] = Split(**arrays, **counts)
        check_split(source.task, name, found[name])
    return found


class Payload:
    """An object that creates a file when Python's pickle module loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def write_csv(path: Path, rows, header: str = "v0,v1,label") -> str:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def mnist_files(folder: Path, train: int = 60, test: int = 12, *, packed: bool = False) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = (np.arange(rows) % 10).astype(np.uint8)
    for name, array in arrays.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        else:
            (folder / name).write_bytes(idx_bytes(array))
    return arrays


def cifar_arrays(rows: int = 40) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return six batches of images (rows, 3072), with one colour after the other, and their labels."""
    rng = np.random.default_rng(1)
    return [
        (rng.integers(0, 256, (rows, 3072), dtype=np.uint8), rng.permutation(np.arange(rows) % 10).astype(np.uint8))
        for _ in range(6)
    ]


def cifar_members(batches, *, binary: bool) -> dict[str, bytes]:
    """Return the six files as the publisher names and writes them."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    if binary:
        return {
            f"{name}.bin": np.concatenate([labels[:, None], images], axis=1).tobytes()
            for name, (images, labels) in zip(names, batches, strict=True)
        }
    return {
        name: pickle.dumps({b"data": images, b"labels": labels.tolist(), b"batch_label": name.encode()}, protocol=2)
        for name, (images, labels) in zip(names, batches, strict=True)
    }


def cifar_files(folder: Path, batches, *, binary: bool = True) -> None:
    below = folder / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    below.mkdir(parents=True)
    for name, data in cifar_members(batches, binary=binary).items():
        (below / name).write_bytes(data)


def decode_text(symbols, *, nested=False):
    """Return an expression as text; ``nested`` adds the parentheses of Long Range Arena's files."""
    if not nested:
        return " ".join(SYMBOLS[symbol] for symbol in symbols)
    stack = [[]]
    for symbol in symbols:
        if OPERATOR <= symbol < CLOSE:
            stack.append([SYMBOLS[symbol]])
        elif symbol == CLOSE:
            parts = [*stack.pop(), SYMBOLS[CLOSE]]
            stack[-1].append("( " * (len(parts) - 1) + " ) ".join([f"{parts[0]} {parts[1]}", *parts[2:]]) + " )")
        else:
            stack[-1].append(SYMBOLS[symbol])
    return " ".join(stack[0])
