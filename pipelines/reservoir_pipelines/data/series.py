"""Series as the UCR and UEA archives publish them: ``.ts`` files, and ``.tsv`` files without column names."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.media import check_inside
from reservoir_pipelines.data.rows import COLUMN_FLAGS, Rows, padded
from reservoir_pipelines.data.table import lines_of

PARTS = {
    "train": "_TRAIN",
    "test": "_TEST",
}  # how the names of the two files of a data set end, before the suffix
SUFFIXES = (".ts", ".tsv")
MISSING_TEXTS = ("", "?")  # how the files write a missing value or label


class SeriesFile(NamedTuple):
    """The series of one file."""

    sequences: list[np.ndarray]  # (tokens, channels) each
    # Texts for classes, or floats for targets, None for a missing label of a new row; empty if the file has no labels.
    labels: list[Any]


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether a path holds series: a published pair of files, a ``.ts`` file, or a table without a header."""
    path = Path(origin)
    # New rows for a readout (of ``task``) are one file. The published pair is read for a fit only.
    if task is None and split_files(path):
        return True
    if not path.is_file():
        return False
    # --label names a column, and a readout of a table reads columns by name: the first line has names, then.
    reads_columns = bool(options.label) or (task is not None and "columns" in task.parameters)
    return path.suffix.lower() == ".ts" or (is_bare(path) and not reads_columns)


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the series of a file, or of the published train and test files that belong together."""
    path = Path(origin)
    # The published pair by split, or one file alone.
    pair = {} if task else split_files(path)
    files = [*pair.values()] or [path]
    needs_labels = task is None
    series = [
        _read_ts(file, needs_labels=needs_labels) if file.suffix.lower() == ".ts" else _read_bare(file)
        for file in files
    ]
    where = str(files[0])
    sequences = [x for part in series for x in part.sequences]
    channels = sorted({x.shape[1] for x in sequences})
    if len(channels) > 1:
        raise InputError(f"{where}: sequences of {channels} channels", "give all the same number")
    x, lengths = padded(where, sequences)
    # If only one of two files has labels, they are of no use.
    labels = [label for part in series for label in part.labels]
    has_labels = len(labels) == len(x) and any(label is not None for label in labels)
    y = np.array(labels) if has_labels else None
    # Of a published pair, each file is a split.
    sizes = [len(part.sequences) for part in series]
    split = None
    notes: tuple[str, ...] = ()
    if pair:
        split = np.repeat(list(pair), sizes)
        notes = ("split as published: " + " and ".join(file.name for file in files),)
    if files[0].suffix.lower() == ".tsv" and _may_be_header(files[0]):
        notes += (
            "the first line, whose numbers are in order, is read as a label and its series; if they are names of "
            "columns, add a column called label",
        )
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
    """Return the published train and test files by split, for their folder or the path of one; empty for other data."""
    if path.is_dir():
        return _split_files_of_folder(path)
    ending = next((end for end in PARTS.values() if path.stem.endswith(end)), None)
    suffix = path.suffix.lower()
    # A table with names of columns is not a published series.
    has_header = suffix == ".tsv" and not is_bare(path)
    if ending is None or suffix not in SUFFIXES or has_header:
        return {}
    stem = path.stem.removesuffix(ending)
    files = {name: path.with_name(f"{stem}{end}{path.suffix}") for name, end in PARTS.items()}
    if not all(file.is_file() for file in files.values()):
        return {}
    for other in {*files.values()} - {path}:  # the user named only one of the two
        check_inside(other, path.resolve().parent)
    return files


def _split_files_of_folder(folder: Path) -> dict[str, Path]:
    """Return the train and test files of the data set in a folder, by split; empty if there is none.

    Of several data sets, that with the folder's name counts.
    """
    pair_of_dataset: dict[str, dict[str, Path]] = {}
    # A data set in both formats is read from the .ts files, which name channels and labels. They come last, so that
    # they replace the others.
    for suffix in reversed(SUFFIXES):
        for file in sorted(folder.glob(f"*{PARTS['train']}{suffix}")):
            if pair := split_files(file):
                pair_of_dataset[file.stem.removesuffix(PARTS["train"])] = pair
    name = folder.resolve().name
    if len(pair_of_dataset) > 1 and name not in pair_of_dataset:
        raise InputError(
            f"{folder}: contains the data sets {', '.join([*pair_of_dataset][:8])}", "give the file of one"
        )
    files = pair_of_dataset.get(name) or next(iter(pair_of_dataset.values()), {})
    for file in files.values():
        check_inside(file, folder)
    return files


def is_bare(path: Path) -> bool:
    """Return whether a path is a .tsv table whose first line has numbers (a label, then values), not column names."""
    if path.suffix.lower() != ".tsv" or not path.is_file():
        return False
    try:
        return len(_first_numbers(path)) > 1
    except ValueError:
        return False


def _may_be_header(path: Path) -> bool:
    """Return whether the numbers of a first line are in ascending or descending order, as wavelengths are."""
    steps = np.diff(_first_numbers(path))
    return len(steps) > 1 and bool((steps > 0).all() or (steps < 0).all())


def _first_numbers(path: Path) -> list[float]:
    """Return the cells of the first line of a .tsv table as numbers; raise ValueError if one is none."""
    cells = next(lines_of(path), "").rstrip("\r\n").split("\t")
    return [float(cell) for cell in cells]


def _read_ts(path: Path, *, needs_labels: bool) -> SeriesFile:
    """Return the series of a ``.ts`` file: header lines with @, then a line per series, fields separated by :.

    A missing label is refused with ``needs_labels``, else it is None.
    """
    # The lines with their places, without empty ones and comments. The header is consumed first.
    numbered = ((f"{path}, line {number}", line.strip()) for number, line in enumerate(lines_of(path), 1))
    lines = ((where, line) for where, line in numbered if line and not line.startswith(("#", "%")))
    header = _read_ts_header(path, lines)
    has_labels = "@targetlabel" in header or "@classlabel" in header
    series = SeriesFile([], [])
    for where, line in lines:
        fields = line.split(":")  # one per channel, and the label at the end
        if has_labels:
            label = _label_of_ts(where, fields.pop().strip(), header)
            if label is None and needs_labels:
                raise InputError(f"{where}: no label at its end", "add it, or remove the line")
            series.labels.append(label)
        channels = [_floats(where, field.split(",")) for field in fields]
        sizes = [len(channel) for channel in channels]
        if len(set(sizes)) != 1:
            raise InputError(f"{where}: channels of {sizes[:4]} values", "give all the same length")
        series.sequences.append(np.stack(channels, axis=1))
    if not series.sequences:
        raise InputError(f"{path}: no series after @data", "give one per line")
    return series


def _read_ts_header(path: Path, lines: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Consume the ``lines`` (place, text) up to ``@data``; return the words after each keyword that is true.

    Keywords, such as @classlabel, and words, such as the names of its classes, are in lower case.
    """
    words_by_keyword: dict[str, list[str]] = {}
    for _, line in lines:
        keyword, *values = line.lower().split()
        if keyword == "@data":
            break
        if values and values[0] in {"yes", "true"}:
            words_by_keyword[keyword] = values[1:]
    else:
        raise InputError(f"{path}: no @data line", "check that it is a .ts file")
    if "@timestamps" in words_by_keyword:
        raise InputError(
            f"{path}: its values have time stamps, which are not read", "write it with @timeStamps false"
        )
    return words_by_keyword


def _label_of_ts(where: str, cell: str, header: Mapping[str, Sequence[str]]) -> str | float | None:
    """Return a label as the ``header`` declares it, a class or a target; None if it is missing."""
    if cell in MISSING_TEXTS:
        return None
    if "@targetlabel" in header:
        return float(_floats(where, [cell])[0])
    # A header may declare no names. Readers of the archives do not tell capitals from small letters.
    classes = header["@classlabel"]
    if classes and cell.lower() not in classes:
        raise InputError(
            f"{where}: the label {cell[:40]!r} is none of the classes that @classLabel declares",
            "correct the label, or declare its class",
        )
    return cell


def _read_bare(path: Path) -> SeriesFile:
    """Return the series of a table without names of columns: a label on each line, then the values.

    NaN at the end of a line is the padding of a shorter series. Labels are classes if all are whole, else targets.
    """
    sequences, labels = [], []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        label, *values = _floats(where, line.rstrip("\r\n").split("\t"))
        value_places = np.flatnonzero(~np.isnan(values))
        if not np.isfinite(label) or not len(value_places):
            raise InputError(
                f"{where}: no label in the first column, or no value after it", "remove the line"
            )
        last = value_places[-1]
        sequences.append(np.array(values[: last + 1])[:, None])  # one channel
        labels.append(float(label))
    are_classes = all(map(float.is_integer, labels))
    return SeriesFile(sequences, [str(int(label)) for label in labels] if are_classes else labels)


def _floats(where: str, cells: Sequence[str]) -> np.ndarray:
    """Return the numbers in cells, (cells,), NaN where a cell is empty or ``?``; refuse other cells."""
    try:
        return np.array([float("nan" if cell.strip() in MISSING_TEXTS else cell) for cell in cells])
    except ValueError as error:  # could not convert string to float: 'abc'
        wrong = str(error).partition(": ")[2].strip("'")[:40]
        raise InputError(f"{where}: {wrong!r} is not a number", "write ? for a missing value") from None
