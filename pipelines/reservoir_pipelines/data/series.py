"""Series as the UCR and UEA archives publish them: ``.ts`` files, and ``.tsv`` files without column names."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.media import check_inside
from reservoir_pipelines.data.rows import COLUMN_FLAGS, Rows, padded
from reservoir_pipelines.data.table import lines_of

PARTS = {"train": "_TRAIN", "test": "_TEST"}  # how the names of the two files of a data set end
SUFFIXES = (".ts", ".tsv")


class Series(NamedTuple):
    """Sequences (tokens, channels) of one file, and their labels: texts for classes, or floats; none if it has none."""

    sequences: list[np.ndarray]
    labels: list[Any]


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether a path holds series: a published pair of files, a ``.ts`` file, or a table without a header."""
    path = Path(origin)
    # New rows for a readout (of ``task``) are one file. The published pair is only read for a fit.
    if task is None and split_files(path):
        return True
    if not path.is_file():
        return False
    # --label names a column, so the first line of the table has the names of columns.
    return path.suffix.lower() == ".ts" or (is_bare(path) and not options.label)


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the series of a file, or of the published train and test files that belong together."""
    path = Path(origin)
    files = {} if task else split_files(path)
    series = [
        _read_ts(file) if file.suffix.lower() == ".ts" else _read_bare(file)
        for file in files.values() or [path]
    ]
    where = str(next(iter(files.values()), path))
    sequences = [x for part in series for x in part.sequences]
    channels = sorted({x.shape[1] for x in sequences})
    if len(channels) > 1:
        raise InputError(f"{where}: sequences of {channels} channels", "give all the same number")
    x, lengths = padded(where, sequences)
    # If only one of two files has labels, they are of no use.
    labels = [label for part in series for label in part.labels]
    y = np.array(labels) if len(labels) == len(x) else None
    # Of a published pair, each file is a split.
    sizes = [len(part.sequences) for part in series]
    split = None
    notes: tuple[str, ...] = ()
    if files:
        split = np.repeat(list(files), sizes)
        notes = ("split as published: " + " and ".join(file.name for file in files.values()),)
    return Rows(
        x=x,
        lengths=lengths,
        y=y,
        split=split,
        ids=np.concatenate([np.arange(size) for size in sizes]),  # each file counts its own rows
        notes=notes,
        unused=COLUMN_FLAGS,  # there are no columns with names
    )


def split_files(path: Path) -> dict[str, Path]:
    """Return the train and test files for a folder, or for the path of one of them; empty for other data."""
    if path.is_dir():
        return _split_files_of_folder(path)
    ending = next((end for end in PARTS.values() if path.stem.endswith(end)), None)
    suffix = path.suffix.lower()
    if ending is None or suffix not in SUFFIXES or (suffix == ".tsv" and not is_bare(path)):
        return {}
    stem = path.stem.removesuffix(ending)
    files = {name: path.with_name(f"{stem}{end}{path.suffix}") for name, end in PARTS.items()}
    if not all(file.is_file() for file in files.values()):
        return {}
    for other in {*files.values()} - {path}:  # the user named only one of the two
        check_inside(other, path.resolve().parent)
    return files


def _split_files_of_folder(folder: Path) -> dict[str, Path]:
    """Return the files of the data set that a folder holds, of the one with the folder's name if there are several."""
    pairs = {}
    # A data set in both formats is read from the .ts files, which name channels and labels: they come last.
    for suffix in reversed(SUFFIXES):
        for file in sorted(folder.glob(f"*{PARTS['train']}{suffix}")):
            if pair := split_files(file):
                pairs[file.stem.removesuffix(PARTS["train"])] = pair
    name = folder.resolve().name
    if len(pairs) > 1 and name not in pairs:
        raise InputError(
            f"{folder}: contains the data sets {', '.join([*pairs][:8])}", "give the file of one"
        )
    files = pairs.get(name) or next(iter(pairs.values()), {})
    for file in files.values():
        check_inside(file, folder)
    return files


def is_bare(path: Path) -> bool:
    """Return whether the first line of a table has numbers (a label, then values) and not column names."""
    if path.suffix.lower() != ".tsv" or not path.is_file():
        return False
    cells = next(lines_of(path), "").rstrip("\r\n").split("\t")
    try:
        return len(list(map(float, cells))) > 1
    except ValueError:
        return False


def _read_ts(path: Path) -> Series:
    """Return the series of a ``.ts`` file: header lines with @, then a line per series, fields separated by :."""
    numbered = ((f"{path}, line {number}", line.strip()) for number, line in enumerate(lines_of(path), 1))
    lines = ((where, line) for where, line in numbered if line and not line.startswith(("#", "%")))
    switched_on = _read_ts_header(path, lines)
    series = Series([], [])
    for where, line in lines:
        fields = line.split(":")  # one per channel, and the label at the end
        if "@targetlabel" in switched_on:
            series.labels.append(_floats(where, [fields.pop()])[0])
        elif "@classlabel" in switched_on:
            series.labels.append(fields.pop().strip())
        channels = [_floats(where, field.split(",")) for field in fields]
        sizes = [len(channel) for channel in channels]
        if len(set(sizes)) != 1:
            raise InputError(f"{where}: channels of {sizes[:4]} values", "give all the same length")
        series.sequences.append(np.stack(channels, axis=1))
    if not series.sequences:
        raise InputError(f"{path}: no series after @data", "give one per line")
    return series


def _read_ts_header(path: Path, lines: Iterable[tuple[str, str]]) -> set[str]:
    """Consume the lines up to ``@data``; return the keywords that are switched on."""
    switched_on = set[str]()
    for _, line in lines:
        keyword, value, *_ = [*line.lower().split(), "", ""]  # a line may have no value, and no keyword
        if keyword == "@data":
            break
        if value in {"yes", "true"}:
            switched_on.add(keyword)
    else:
        raise InputError(f"{path}: no @data line", "check that it is a .ts file")
    if "@timestamps" in switched_on:
        raise InputError(
            f"{path}: its values have time stamps, which are not read", "write it with @timeStamps false"
        )
    return switched_on


def _read_bare(path: Path) -> Series:
    """Return the series of a table without names: a label, then the values; NaN at the end of a row is not a value."""
    sequences, labels = [], []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        label, *values = _floats(where, line.rstrip("\r\n").split("\t"))
        present = np.flatnonzero(~np.isnan(values))
        if not np.isfinite(label) or not len(present):
            raise InputError(
                f"{where}: no label in the first column, or no value after it", "remove the line"
            )
        sequences.append(np.array(values[: present[-1] + 1])[:, None])
        labels.append(float(label))
    are_classes = all(map(float.is_integer, labels))
    return Series(sequences, [str(int(label)) for label in labels] if are_classes else labels)


def _floats(where: str, cells: Sequence[str]) -> np.ndarray:
    """Return numbers, NaN where a cell is empty or ``?``."""
    try:
        return np.array([float("nan" if cell.strip() in {"?", ""} else cell) for cell in cells])
    except ValueError as error:
        wrong = str(error).partition(": ")[2].strip("'")[:40]
        raise InputError(f"{where}: {wrong!r} is not a number", "write ? for a missing value") from None
