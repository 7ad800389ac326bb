"""Series as the UCR and UEA archives publish them: ``.ts`` files, and ``.tsv`` of numbers under no names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.arrays import Arrays, padded
from reservoir.tasks.own.tables import lines_of

PARTS = {"train": "_TRAIN", "test": "_TEST"}
"""How the names of the two files of a data set end."""

SUFFIXES = (".ts", ".tsv")

COMMENTS = ("#", "%")

FLAGS = {"yes": True, "true": True, "no": False, "false": False}


class Series(NamedTuple):
    """Sequences (tokens, channels) of one file, and their labels: texts for classes, floats, or None."""

    x: list[np.ndarray]
    y: list[str] | list[float] | None


def split_files(path: Path) -> dict[str, Path]:
    """Return the files of train and test that a folder, or one of the two, stands for; nothing of other data."""
    if path.is_dir():
        pairs = _pairs(path)
        names = [f"{pair['train'].stem.removesuffix(PARTS['train'])}" for pair in pairs]
        if len(pairs) > 1 and path.resolve().name not in names:
            raise InputError(f"{path}: it has the data sets {', '.join(names[:8])}; name a file of one")
        return pairs[names.index(path.resolve().name) if len(pairs) > 1 else 0] if pairs else {}
    ending = next((end for end in PARTS.values() if path.stem.endswith(end)), None)
    if path.suffix.lower() not in SUFFIXES or ending is None or (path.suffix.lower() == ".tsv" and not is_bare(path)):
        return {}
    stem = path.stem.removesuffix(ending)
    both = {name: path.with_name(f"{stem}{end}{path.suffix}") for name, end in PARTS.items()}
    return both if all(file.is_file() for file in both.values()) else {}


def is_bare(path: Path) -> bool:
    """Return whether a table begins with numbers and not with names: a label, then values."""
    if path.suffix.lower() != ".tsv" or not path.is_file():
        return False
    cells = next(lines_of(path), "").rstrip("\r\n").split("\t")
    return len(cells) > 1 and all(map(_is_number, cells))


def read_series(files: dict[str, Path], *, regression: bool = False) -> Arrays:
    """Return the arrays of files by their splits, or of one file whose split is ""."""
    read = [(_read_ts if file.suffix.lower() == ".ts" else _read_bare)(file) for file in files.values()]
    first = next(iter(files.values()))
    where = str(first if len(files) == 1 else first.parent)
    for file, series in zip(files.values(), read, strict=True):
        if (channels := series.x[0].shape[1]) != read[0].x[0].shape[1]:
            raise InputError(f"{file}: {channels} channels, and {first} has {read[0].x[0].shape[1]}")
    x, lengths = padded(where, [row for series in read for row in series.x])
    arrays = {"x": x, "lengths": lengths}
    if all(series.y is not None for series in read):
        y = np.array([label for series in read for label in series.y or ()])
        arrays["y"] = y.astype(np.float64) if regression and y.dtype.kind == "U" and all(map(_is_number, y)) else y
    if len(files) > 1:
        arrays["split"] = np.repeat(list(files), [len(series.x) for series in read])
    found = Arrays(arrays)
    found.notes += [f"split as published: {' and '.join(f.name for f in files.values())}"] if len(files) > 1 else []
    return found


# ---- .ts


def _read_ts(path: Path) -> Series:
    """Return the series of a file: a header of lines with @, then a series a line, its channels and label between :."""
    header: dict[str, list[str]] = {}
    x: list[np.ndarray] = []
    labels: list[str] = []
    lines = ((number, line.strip()) for number, line in enumerate(lines_of(path), 1))
    for number, line in lines:
        if line.startswith("@") and line.lower() != "@data":
            key, *values = line[1:].split() or [""]
            header[key.lower()] = values
        elif line.lower() == "@data":
            break
        elif line and not line.startswith(COMMENTS):
            raise InputError(f"{path}, line {number}: no @data line before the first series; is it a .ts file?")
    else:
        raise InputError(f"{path}: no @data line; is it a .ts file?")
    if _says(header, "timestamps"):
        raise InputError(f"{path}: its values have time stamps, which are not read; write it with @timeStamps false")
    target, classes = _says(header, "targetlabel"), _says(header, "classlabel")
    for number, line in lines:
        if line and not line.startswith(COMMENTS):
            parts = line.split(":")
            labels += [parts.pop().strip()] if target or classes else []
            x.append(_channels(f"{path}, line {number}", parts))
            if x[-1].shape[1] != x[0].shape[1]:
                raise InputError(f"{path}, line {number}: {x[-1].shape[1]} channels, before {x[0].shape[1]}")
    if not x:
        raise InputError(f"{path}: no series behind @data; give one per line")
    return Series(x, _targets(path, labels) if target else labels if classes else None)


def _says(header: dict[str, list[str]], key: str) -> bool:
    return FLAGS.get((header.get(key) or ["false"])[0].lower(), False)


def _channels(where: str, parts: Sequence[str]) -> np.ndarray:
    """Return the channels of a series side by side, (tokens, channels), NaN where one is ``?``."""
    rows = [_floats(where, part.split(",")) for part in parts]
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        raise InputError(f"{where}: channels of {sorted(lengths)[:4]} values; give those of a series one length")
    return np.stack(rows, axis=1)


def _targets(path: Path, labels: Sequence[str]) -> list[float]:
    try:
        return [float(label) for label in labels]
    except ValueError:
        wrong = next(label for label in labels if not _is_number(label))
        raise InputError(f"{path}: the target {wrong[:40]!r} is no number; as a class it needs @classLabel") from None


# ---- .tsv of numbers


def _read_bare(path: Path) -> Series:
    """Return the series of a table without names: a label, then the values; NaN at the end of a row is no value."""
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        if line.strip():
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) < 2:
                raise InputError(f"{path}, line {number}: {len(cells)} cell; give a label and values, tabs between")
            rows.append(_floats(f"{path}, line {number}", cells))
    y = np.array([row[0] for row in rows])
    if not np.isfinite(y).all():
        raise InputError(f"{path}, line {int(np.argmin(np.isfinite(y))) + 1}: no label in the first column")
    x = [row[1:][:, None] for row in rows]
    ends = [len(row) - int(np.argmin(np.isnan(row[::-1, 0]))) for row in x]
    for line, row in enumerate(x, 1):
        if np.isnan(row).all():
            raise InputError(f"{path}, line {line}: no value behind the label; remove the line")
    whole = bool((y == np.rint(y)).all())
    return Series(
        [row[:end] for row, end in zip(x, ends, strict=True)],
        [str(int(label)) for label in y] if whole else y.tolist(),
    )


def _floats(where: str, cells: Sequence[str]) -> np.ndarray:
    try:
        return np.array(["nan" if cell.strip() in {"?", ""} else cell for cell in cells], np.float64)
    except ValueError:
        wrong = next(cell for cell in cells if cell.strip() not in {"?", ""} and not _is_number(cell))
        raise InputError(f"{where}: {wrong[:40]!r} is no number; write ? for one that is missing") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _pairs(folder: Path) -> list[dict[str, Path]]:
    """Return the data sets of a folder, of each the first suffix that it has."""
    found: dict[str, dict[str, Path]] = {}
    for suffix in SUFFIXES:
        for file in sorted(folder.glob(f"*{PARTS['train']}{suffix}")):
            if pair := split_files(file):
                found.setdefault(file.stem, pair)
    return list(found.values())
