"""Series as the UCR and UEA archives publish them: ``.ts`` files, and ``.tsv`` files without column names."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.arrays import Arrays, padded
from reservoir.tasks.own.folders import check_inside
from reservoir.tasks.own.tables import lines_of

PARTS = {"train": "_TRAIN", "test": "_TEST"}  # how the names of the two files of a data set end
SUFFIXES = (".ts", ".tsv")

Series = tuple[list[np.ndarray], list[str] | list[float] | None]
"""Sequences (tokens, channels) of one file, and their labels: texts for classes, floats, or None."""


def split_files(path: Path) -> dict[str, Path]:
    """Return the train and test files for a folder, or for the path of one of them; empty for other data."""
    if path.is_dir():
        pairs: dict[str, dict[str, Path]] = {}  # for each data set the first of these suffixes is read
        for file in (file for suffix in SUFFIXES for file in sorted(path.glob(f"*{PARTS['train']}{suffix}"))):
            if pair := split_files(file):
                for part in pair.values():
                    check_inside(part, path)
                pairs.setdefault(file.stem.removesuffix(PARTS["train"]), pair)
        name = path.resolve().name
        if len(pairs) > 1 and name not in pairs:
            raise InputError(f"{path}: contains the data sets {', '.join(list(pairs)[:8])}; give the file of one")
        return pairs[name] if len(pairs) > 1 else next(iter(pairs.values()), {})
    ending = next((end for end in PARTS.values() if path.stem.endswith(end)), None)
    if path.suffix.lower() not in SUFFIXES or ending is None or (path.suffix.lower() == ".tsv" and not is_bare(path)):
        return {}
    stem = path.stem.removesuffix(ending)
    both = {name: path.with_name(f"{stem}{end}{path.suffix}") for name, end in PARTS.items()}
    return both if all(file.is_file() for file in both.values()) else {}


def is_bare(path: Path) -> bool:
    """Return whether the first line of a table has numbers (a label, then values) and not column names."""
    if path.suffix.lower() != ".tsv" or not path.is_file():
        return False
    cells = next(lines_of(path), "").rstrip("\r\n").split("\t")
    return len(cells) > 1 and all(map(_is_number, cells))


def read_series(files: dict[str, Path], *, regression: bool = False) -> Arrays:
    """Return the arrays of files, given by split; the split of a single file is ""."""
    read = [(_read_ts if file.suffix.lower() == ".ts" else _read_bare)(file) for file in files.values()]
    first = next(iter(files.values()))
    for file, (x, _) in zip(files.values(), read, strict=True):
        if (channels := x[0].shape[1]) != read[0][0][0].shape[1]:
            wanted = read[0][0][0].shape[1]
            raise InputError(f"{file}: {channels} channels, but {first} has {wanted}; give both files the same number")
    x, lengths = padded(str(first if len(files) == 1 else first.parent), [row for x, _ in read for row in x])
    arrays = {"x": x, "lengths": lengths}
    labels = [label for _, y in read for label in y or ()]
    if len(labels) == len(x):
        y = np.array(labels)
        arrays["y"] = y.astype(np.float64) if regression and y.dtype.kind == "U" and all(map(_is_number, y)) else y
    if len(files) > 1:
        arrays["split"] = np.repeat(list(files), [len(x) for x, _ in read])
    found = Arrays(arrays)
    found.notes += [f"split as published: {' and '.join(f.name for f in files.values())}"] if len(files) > 1 else []
    return found


def _read_ts(path: Path) -> Series:
    """Return the series of a ``.ts`` file: header lines with @, then a line per series, fields separated by :."""
    header: dict[str, str] = {}
    x: list[np.ndarray] = []
    labels: list[str] = []
    lines = ((f"{path}, line {number}", line.strip()) for number, line in enumerate(lines_of(path), 1))
    lines = ((where, line) for where, line in lines if line and not line.startswith(("#", "%")))
    for where, line in lines:
        if line.lower() == "@data":
            break
        if not line.startswith("@"):
            raise InputError(f"{where}: no @data line before the first series; check that it is a .ts file")
        key, value, *_ = [*line[1:].lower().split(), "", ""]
        header[key] = value
    else:
        raise InputError(f"{path}: no @data line; check that it is a .ts file")
    given = {key for key, value in header.items() if value in {"yes", "true"}}
    target, classes = "targetlabel" in given, "classlabel" in given
    if "timestamps" in given:
        raise InputError(f"{path}: its values have time stamps, which are not read; write it with @timeStamps false")
    for where, line in lines:
        parts = line.split(":")
        labels += [parts.pop().strip()] if target or classes else []
        rows = [_floats(where, part.split(",")) for part in parts]
        lengths = {len(row) for row in rows}
        if len(lengths) != 1:
            raise InputError(f"{where}: channels of {sorted(lengths)[:4]} values; give all the same length")
        x.append(np.stack(rows, axis=1))
        if x[-1].shape[1] != x[0].shape[1]:
            raise InputError(f"{where}: {x[-1].shape[1]} channels, but {x[0].shape[1]} in the first; use equal numbers")
    if not x:
        raise InputError(f"{path}: no series after @data; give one per line")
    wrong = next((label for label in labels if target and not _is_number(label)), None)
    if wrong is not None:
        raise InputError(f"{path}: the target {wrong[:40]!r} is not a number; use @classLabel for classes")
    return x, [float(label) for label in labels] if target else labels if classes else None


def _read_bare(path: Path) -> Series:
    """Return the series of a table without names: a label, then the values; NaN at the end of a row is not a value."""
    x, y = [], []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        where, cells = f"{path}, line {number}", line.rstrip("\r\n").split("\t")
        if len(cells) < 2:
            raise InputError(f"{where}: {len(cells)} cell; give a label and values, separated by tabs")
        label, *values = _floats(where, cells)
        if not np.isfinite(label):
            raise InputError(f"{where}: no label in the first column; write one there, or remove the line")
        known = np.flatnonzero(~np.isnan(values))
        if not len(known):
            raise InputError(f"{where}: no value after the label; remove the line")
        x.append(np.array(values[: known[-1] + 1])[:, None])
        y.append(float(label))
    return x, [str(int(label)) for label in y] if all(map(float.is_integer, y)) else y


def _floats(where: str, cells: Sequence[str]) -> np.ndarray:
    """Return numbers, NaN where a cell is empty or ``?``."""
    try:
        return np.array([float("nan" if cell.strip() in {"?", ""} else cell) for cell in cells])
    except ValueError as error:
        wrong = str(error).partition(": ")[2].strip("'")[:40]
        raise InputError(f"{where}: {wrong!r} is not a number; write ? for a missing value") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
