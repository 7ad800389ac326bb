"""The formats of data, and the one function that opens a file, a folder or a dataset of any of them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import OwnDataOptions
from reservoir.tasks.images import read_idx
from reservoir.tasks.source import full_lengths, unknown_symbols
from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.texts import texts_of
from reservoir_pipelines.data import (
    conll,
    fasta,
    forecasts,
    hdf5,
    hub,
    media,
    npz,
    series,
    table,
    table_rows,
)
from reservoir_pipelines.data.columns import KIND_SUFFIXES, listed
from reservoir_pipelines.data.media import media_files
from reservoir_pipelines.data.recordings import prepare_recordings
from reservoir_pipelines.data.rows import COLUMN_FLAGS, OR_PASS, Rows
from reservoir_pipelines.data.table_labels import labels_path
from reservoir_pipelines.data.values import clean_lengths, encode_values

IDX_ENDINGS = ("-ubyte", ".idx")  # how the names of files end, before a suffix .gz
IDX_SIDES = (28, 28)  # pixels of the images of MNIST


def _accepts_idx(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether a path names images as MNIST publishes them (IDX), which are new rows of a named task."""
    is_idx = Path(origin).name.removesuffix(".gz").endswith(IDX_ENDINGS)
    return task is not None and is_idx and Path(origin).is_file()


def _read_idx(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the images of an IDX file, (rows, 28, 28) of bytes, without labels."""
    return Rows(x=read_idx(Path(origin), IDX_SIDES), unused=COLUMN_FLAGS)


FileReader = Callable[[str, OwnDataOptions, Task | None], Rows]
"""Returns the rows of an origin: a path, or the name of a dataset. New rows of a ``task`` need no labels."""


@dataclass(frozen=True)
class Format:
    """A format of data: its reader, and which origins it reads.

    Parameters
    ----------
    read : Reader
        Returns the rows of an origin.
    suffixes : tuple of str
        The suffixes of its files, in lower case.
    accepts : function, optional
        Returns whether it reads an origin; by default it reads files with its suffixes.
    """

    read: FileReader
    suffixes: tuple[str, ...] = ()
    accepts: Callable[[str, OwnDataOptions, Task | None], bool] | None = None

    def reads(self, origin: str, options: OwnDataOptions, task: Task | None) -> bool:
        """Return whether the format reads an origin."""
        if self.accepts:
            return self.accepts(origin, options, task)
        path = Path(origin)
        return path.suffix.lower() in self.suffixes and path.is_file()


FORMATS = (
    Format(forecasts.read, accepts=forecasts.accepts),
    Format(hub.read, accepts=lambda origin, *_: hub.is_hub(origin)),
    Format(_read_idx, accepts=_accepts_idx),
    Format(series.read, (".ts",), series.accepts),
    Format(media.read, KIND_SUFFIXES["sounds"], media.accepts),
    Format(npz.read, npz.SUFFIXES),
    Format(hdf5.read, hdf5.SUFFIXES),
    Format(table_rows.read, table.SUFFIXES, table_rows.accepts),
    Format(fasta.read, fasta.SUFFIXES),
    Format(conll.read, conll.SUFFIXES),
)
"""All formats; the first that reads an origin is taken. The files of `media` and of `series` may be tables, too."""

PACKED = (".zip", ".gz", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz")
"""Suffixes of packed files, which must be unpacked first."""

OTHER_FORMATS = {
    ".npy": "write the arrays into one file: numpy.savez('data.npz', x=x, y=y)",
    ".mat": "write the arrays into one file: numpy.savez('data.npz', x=x, y=y)",
    ".feather": "write it as .parquet: pandas.read_feather(file).to_parquet('data.parquet')",
    ".arrow": "give the folder in which datasets saved it, or write it as .parquet",
    ".xlsx": "write it as .csv: pandas.read_excel(file).to_csv('data.csv', index=False)",
    ".json": "write one object per line into a file .jsonl",
} | dict.fromkeys(PACKED, "unpack it")
"""What to do with a file of a frequent type that no format reads."""


def open_rows(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the rows of a file, a folder or a dataset of the hub, in whichever format it has.

    Every stage opens data here. Rows may lack labels: features of all rows can be extracted, and new rows of a
    fitted ``task`` need none.
    """
    # The table of labels may be named within the data's folder; readers get its path.
    if options.labels:
        options = replace(options, labels=str(labels_path(Path(origin), options.labels)))
    for candidate in FORMATS:
        if candidate.reads(origin, options, task):
            rows = candidate.read(origin, options, task)
            labels_tokens = None if task is None else task.labels_each_token
            return prepare_recordings(origin, rows, options, labels_tokens=labels_tokens)
    # No format reads the origin: say so, or that it does not exist.
    path = Path(origin)
    check_file(path)
    suffixes = [suffix for candidate in FORMATS for suffix in candidate.suffixes]
    remedy = OTHER_FORMATS.get(path.suffix.lower(), f"give one of {', '.join(suffixes)}")
    raise InputError(f"{path}: files of type {path.suffix!r} are not read", remedy)


def source_files(path: Path, labels: str | None = None) -> list[Path]:
    """Return the files that data are read from, and at the end the table that ``--labels`` names, if it is given.

    The files are those of a pattern or of a folder, the published train and test files of a data set, or ``path``
    itself. A missing path is refused.
    """
    if table.is_pattern(path):
        return table.files_of_pattern(path)
    tables_of_labels = [labels_path(path, labels)] if labels else []
    files = list(series.split_files(path).values()) or media_files(path, *tables_of_labels)
    if not files:
        check_file(path)
        files = [path]
    return [*files, *tables_of_labels]


def refuse_source(out: Path, origin: str | Path, labels: str | None = None) -> None:
    """Raise `InputError` if a result written to ``out`` would replace a file that the data ``origin`` are read from.

    ``labels`` is the table that ``--labels`` names, if it is given.
    """
    if not out.exists():
        return
    files: list[Path] = []
    with suppress(InputError):  # a named task has no such files, and reading refuses a wrong path
        files = source_files(Path(origin), labels)
    if any(map(out.samefile, files)):
        raise InputError(f"{out}: the command reads this file, and would replace it", "name another --out")


def check_file(path: Path) -> None:
    """Refuse a missing path, and one that is not a regular file: reading a pipe might never end."""
    if path.is_dir():
        raise InputError(
            f"{path}: a folder without images, sounds, .csv, .tsv or .parquet", "give the path of your data"
        )
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "no such file"
        raise InputError(f"{path}: {problem}", "give the path of your data")


def read_new(path: Path, task: Task, labels: str | None = None) -> Rows:
    """Return the rows of new data for a task in the form that `encode_rows` reads.

    ``x`` holds texts (rows,), numbers, or files of images or sounds, which stay on disk. Rows that cannot be read are
    skipped, unless that is true of all. ``labels`` is the path of a table of labels, if there is one.
    """
    # New rows are read with the options and choices that the task was read with.
    parameters = {**task.parameters, "labels": labels, "skip_bad_rows": True}
    # If the fit had no table of labels, its --label, --id and --group name columns of the data, or are patterns of
    # headers. They do not name columns of this table.
    if labels and "labels" not in task.parameters:
        parameters |= {"label": None, "id": None, "group": None}
    try:
        rows = open_rows(str(path), as_group(parameters, OwnDataOptions), task)
    except InputError as error:
        # `predict` has no flags that say how data are read, so the end of the message, which suggests one, is cut off.
        raise InputError(str(error).partition(OR_PASS)[0]) from None
    rows.refuse_unused(str(path), ["labels"] if labels else [])
    are_images = rows.holds == "images"
    reads_images = task.pictures > 0
    if are_images != reads_images:
        kind, fitted = ("images", "other data") if are_images else ("no images", "images")
        raise InputError(
            f"{path}: {kind}, but the readout was fitted on {fitted}", "give data of this kind"
        )
    # `encode_values` reads texts, not their code points, whose numbers depend on the alphabet of the task.
    if rows.holds == "letters":
        assert rows.lengths is not None  # `text_rows` sets them
        return replace(rows, x=np.array(texts_of(rows.x[:], rows.lengths)), lengths=None)
    if rows.holds in ("images", "sounds"):
        return rows
    # Symbols may be stored as floats.
    x = rows.x[:]
    are_whole = x.dtype.kind == "f" and x.ndim == 2 and bool((x == np.rint(x)).all())
    if not isinstance(task.form, Tokens):
        return replace(rows, x=x)
    return _without_unknown_symbols(
        path, replace(rows, x=x.astype(np.int64) if are_whole else x), task.form
    )


def _without_unknown_symbols(path: Path, rows: Rows, form: Tokens) -> Rows:
    """Return the rows without those with a number that is no symbol of the fit, unless that is true of all.

    Windows of recordings stay, because a recording lacks no window. `encode_values` refuses the numbers that stay.
    """
    x = np.asarray(rows.x[:])
    are_symbols = x.ndim == 2 and x.dtype.kind in "ui"  # NumPy's kinds: integers
    are_windows = rows.windows is not None or rows.steps is not None
    if not are_symbols or are_windows:
        return rows
    lengths = full_lengths(x) if rows.lengths is None else clean_lengths(str(path), rows.lengths, *x.shape)
    problems = unknown_symbols(x, lengths, form.vocabulary)
    return rows.without(problems) if 0 < len(problems) < len(rows) else rows


class _EncodedRows:
    """The sequences of rows as a task stores them; those of a range of rows are read when they are needed."""

    def __init__(self, rows: Rows, task: Task, where: str):
        self._rows, self._task, self._where = rows, task, where
        self._names = rows.names
        first_row = self[:1]  # refuses data of another kind
        self.shape = (len(rows), *first_row.shape[1:])
        self.dtype = first_row.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        lengths = self._rows.lengths
        x, _ = encode_values(
            self._task,
            self._rows.x[rows],
            None if lengths is None else lengths[rows],
            self._where,
            self._names[rows],
        )
        return x


def encode_rows(rows: Rows, task: Task, where: str) -> Rows:
    """Return the rows of `read_new` with their sequences and lengths as they are stored; ``where`` is for messages.

    Images and sounds stay on disk until they are read from ``x`` of the result.
    """
    if rows.holds == "images":  # each has as many patches
        return replace(rows, lengths=np.full(len(rows), task.max_tokens, np.int32))
    if rows.holds == "sounds":
        x = _EncodedRows(rows, task, where)
        assert rows.lengths is not None  # `sound_rows` sets them
        return replace(rows, x=x, lengths=clean_lengths(where, rows.lengths, *x.shape[:2]))
    x, lengths = encode_values(task, rows.x[:], rows.lengths, where, rows.names)
    check_columns(task, lengths, where)
    return replace(rows, x=x, lengths=lengths)


def check_columns(task: Task, lengths: np.ndarray, where: str) -> None:
    """Refuse rows without exactly one value for each column of a table that the readout was fitted on.

    A table names its columns, so its reader refuses one that lacks a column. Values of other files have no names, and
    are those of the columns in the same order. ``lengths`` (rows,) are those of new rows.
    """
    columns = task.position_columns
    if not columns:
        return
    # Rows that may end early have no values for the last columns.
    may_end_early = bool(task.parameters.get("early"))
    has_wrong_number = lengths > len(columns) if may_end_early else lengths != len(columns)
    if has_wrong_number.any():
        length = int(lengths[np.argmax(has_wrong_number)])
        most = "at most " if may_end_early else ""
        raise InputError(
            f"{where}: {length:,} values per row, but the readout was fitted on {most}{len(columns):,}: "
            f"{listed(columns)}",
            "give one value per column, in this order, or a table with these names",
        )
