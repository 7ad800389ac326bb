"""Series as the UCR and UEA archives publish them: ``.ts`` files, and ``.tsv`` files without column names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.arrays import Arrays, padded
from reservoir_pipelines.data.folders import check_inside
from reservoir_pipelines.data.tables import lines_of

PARTS = {"train": "_TRAIN", "test": "_TEST"}  # how the names of the two files of a data set end
SUFFIXES = (".ts", ".tsv")

Series = tuple[list[np.ndarray], list[Any] | None]
"""Sequences (tokens, channels) of one file, and their labels: texts for classes, floats, or None."""


def split_files(path: Path) -> dict[str, Path]:
    """Return the train and test files for a folder, or for the path of one of them; empty for other data."""
    if path.is_dir():
        files = [
            file
            for suffix in reversed(SUFFIXES)
            for file in sorted(path.glob(f"*{PARTS['train']}{suffix}"))
        ]
        pairs = {
            file.stem.removesuffix(PARTS["train"]): pair for file in files if (pair := split_files(file))
        }
        name = path.resolve().name
        if len(pairs) > 1 and name not in pairs:
            names = ", ".join([*pairs][:8])
            raise InputError(f"{path}: contains the data sets {names}", "give the file of one")
        found = pairs.get(name) or next(iter(pairs.values()), {})
        for part in found.values():
            check_inside(part, path)
        return found
    ending = next((end for end in PARTS.values() if path.stem.endswith(end)), None)
    suffix = path.suffix.lower()
    if ending is None or suffix not in SUFFIXES or (suffix == ".tsv" and not is_bare(path)):
        return {}
    stem = path.stem.removesuffix(ending)
    both = {name: path.with_name(f"{stem}{end}{path.suffix}") for name, end in PARTS.items()}
    if not all(file.is_file() for file in both.values()):
        return {}
    for other in {*both.values()} - {path}:  # the user named only one of the two
        check_inside(other, path.resolve().parent)
    return both


def is_bare(path: Path) -> bool:
    """Return whether the first line of a table has numbers (a label, then values) and not column names."""
    if path.suffix.lower() != ".tsv" or not path.is_file():
        return False
    cells = next(lines_of(path), "").rstrip("\r\n").split("\t")
    try:
        return len(list(map(float, cells))) > 1
    except ValueError:
        return False


def read_series(files: dict[str, Path]) -> Arrays:
    """Return the arrays of files, given by split; the split of a single file is ""."""
    read = [(_read_ts if file.suffix.lower() == ".ts" else _read_bare)(file) for file in files.values()]
    where, sequences = str(next(iter(files.values()))), [row for x, _ in read for row in x]
    if len(channels := {row.shape[1] for row in sequences}) > 1:
        raise InputError(f"{where}: sequences of {sorted(channels)} channels", "give all the same number")
    x, lengths = padded(where, sequences)
    arrays = {"x": x, "lengths": lengths}
    labels = [label for _, y in read for label in y or ()]
    if len(labels) == len(x):
        arrays["y"] = np.array(labels)
    notes = []
    if len(files) > 1:
        arrays["split"] = np.repeat(list(files), [len(x) for x, _ in read])
        notes.append(f"split as published: {' and '.join(f.name for f in files.values())}")
    found = Arrays(arrays)
    found.ids = np.concatenate([np.arange(len(x)) for x, _ in read])  # each file counts its own rows
    found.notes += notes
    return found


def _read_ts(path: Path) -> Series:
    """Return the series of a ``.ts`` file: header lines with @, then a line per series, fields separated by :."""
    lines = ((f"{path}, line {number}", line.strip()) for number, line in enumerate(lines_of(path), 1))
    lines = ((where, line) for where, line in lines if line and not line.startswith(("#", "%")))
    given = set[str]()  # keywords of the header that are switched on
    for _, line in lines:
        key, value, *_ = [*line.lower().split(), "", ""]
        if key == "@data":
            break
        given |= {key} if value in {"yes", "true"} else set()
    else:
        raise InputError(f"{path}: no @data line", "check that it is a .ts file")
    if "@timestamps" in given:
        raise InputError(
            f"{path}: its values have time stamps, which are not read", "write it with @timeStamps false"
        )
    x: list[np.ndarray] = []
    labels: list[Any] = []
    for where, line in lines:
        parts = line.split(":")
        if "@targetlabel" in given:
            labels.append(_floats(where, [parts.pop()])[0])
        elif "@classlabel" in given:
            labels.append(parts.pop().strip())
        rows = [_floats(where, part.split(",")) for part in parts]
        if len({len(row) for row in rows}) != 1:
            raise InputError(
                f"{where}: channels of {[len(row) for row in rows][:4]} values", "give all the same length"
            )
        x.append(np.stack(rows, axis=1))
    if not x:
        raise InputError(f"{path}: no series after @data", "give one per line")
    return x, labels or None


def _read_bare(path: Path) -> Series:
    """Return the series of a table without names: a label, then the values; NaN at the end of a row is not a value."""
    x, y = [], []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        where, cells = f"{path}, line {number}", line.rstrip("\r\n").split("\t")
        label, *values = _floats(where, cells)
        known = np.flatnonzero(~np.isnan(values))
        if not np.isfinite(label) or not len(known):
            raise InputError(
                f"{where}: no label in the first column, or no value after it", "remove the line"
            )
        x.append(np.array(values[: known[-1] + 1])[:, None])
        y.append(float(label))
    return x, [str(int(label)) for label in y] if all(map(float.is_integer, y)) else y


def _floats(where: str, cells: Sequence[str]) -> np.ndarray:
    """Return numbers, NaN where a cell is empty or ``?``."""
    try:
        return np.array([float("nan" if cell.strip() in {"?", ""} else cell) for cell in cells])
    except ValueError as error:
        wrong = str(error).partition(": ")[2].strip("'")[:40]
        raise InputError(f"{where}: {wrong!r} is not a number", "write ? for a missing value") from None
