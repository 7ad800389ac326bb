"""The formats of data, and the one function that opens a file, a folder or a dataset of any of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data import fasta, hdf5, hub, idx, media, npz, series, table_files
from reservoir_pipelines.data.file_kinds import FILES
from reservoir_pipelines.data.folders import media_files
from reservoir_pipelines.data.label_table import labels_path
from reservoir_pipelines.data.rows import Rows

Reader = Callable[[str, OwnDataOptions, Task | None], Rows]
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

    read: Reader
    suffixes: tuple[str, ...] = ()
    accepts: Callable[[str, OwnDataOptions, Task | None], bool] | None = None

    def reads(self, origin: str, options: OwnDataOptions, task: Task | None) -> bool:
        """Return whether the format reads an origin."""
        if self.accepts:
            return self.accepts(origin, options, task)
        return Path(origin).suffix.lower() in self.suffixes and Path(origin).is_file()


FORMATS = (
    Format(hub.read, accepts=hub.accepts),
    Format(idx.read, accepts=idx.accepts),
    Format(series.read, (".ts",), series.accepts),
    Format(media.read, FILES["sounds"], media.accepts),
    Format(npz.read, npz.SUFFIXES),
    Format(hdf5.read, hdf5.SUFFIXES),
    Format(table_files.read, table_files.SUFFIXES),
    Format(fasta.read, fasta.SUFFIXES),
)
"""All formats; the first that reads an origin is taken. The files of `media` and of `series` may be tables, too."""


def open_rows(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the rows of a file, a folder or a dataset of the hub, in the format that it has.

    This is the one door for data: new rows of a fitted ``task`` (for `predict`) may lack labels.
    """
    if options.labels:
        options = replace(options, labels=str(labels_path(Path(origin), options.labels)))
    for candidate in FORMATS:
        if candidate.reads(origin, options, task):
            rows = candidate.read(origin, options, task)
            if task is None and rows.y is None:
                raise InputError(
                    f"{origin}: no array 'y'", "call the sequences x and the labels y, not X or Y"
                )
            return rows
    path = Path(origin)
    check_file(path)
    suffixes = [suffix for candidate in FORMATS for suffix in candidate.suffixes]
    raise InputError(
        f"{path}: files of type {path.suffix!r} are not read",
        f"unpack it, or give one of {', '.join(suffixes)}",
    )


def source_files(path: Path, named: str | None = None) -> list[Path]:
    """Return the files of a path (itself, two files of an archive, or the files of a folder), and the labels."""
    labels = [labels_path(path, named)] if named else []
    files = list(series.split_files(path).values()) or media_files(path, *labels)
    if not files:
        check_file(path)
    return [*(files or [path]), *labels]


def check_file(path: Path) -> None:
    """Refuse a missing path, and one that is not a regular file: reading a pipe might never end."""
    if path.is_dir():
        raise InputError(
            f"{path}: a folder without images, sounds, .csv, .tsv or .parquet", "give the path of your data"
        )
    if not path.is_file():
        problem = "no regular file" if path.exists() else "no such file"
        raise InputError(f"{path}: {problem}", "give the path of your data")
