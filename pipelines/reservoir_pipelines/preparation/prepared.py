"""The reader of prepared data on disk, and the choice and the digest of some of its rows."""

import hashlib
import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import DataSpec, file_crc32, path_below, read_json

from reservoir.errors import InputError, as_input_error
from reservoir.file_checks import check_arrays, fits
from reservoir.tasks import SPLITS, Scaling, Split, Task, Vectors
from reservoir_pipelines.data.hdf5 import dataset_of
from reservoir_pipelines.data.rows import IMAGE_NOTE, UNSEEN
from reservoir_pipelines.files import stamp

if TYPE_CHECKING:
    import h5py

GAP = 64  # wanted rows at most this many rows apart are read together with those between them
MEAN_ROWS = 1024  # rows of a table that are read at a time
ROWS = ("x", "y", "lengths")  # the arrays that every split has
INDEX_FILE = "prepared.json"  # name of the index of a folder of prepared data
REPEATS = "test rows repeat a sequence of the training or validation rows"  # in a warning of prepared data
VERSION = 11  # version of the file format; part of the folder's name, so that other versions are not read


@dataclass(frozen=True)
class PreparedSplit:
    """The rows of one split on disk.

    A file whose state after reading is not the one of ``stamps`` is refused.
    """

    name: str
    files: tuple[tuple[Path, int], ...]  # in row order, each with its number of rows
    # The state of each file before its checksum was verified (see `stamp`); of other files no change is noticed.
    stamps: Mapping[Path, list[int]] = field(default_factory=dict, hash=False)

    def __len__(self) -> int:
        return sum(rows for _, rows in self.files)

    def read(self, lo: int, hi: int) -> Split:
        """Return the rows ``lo`` to ``hi`` (not included), each array in its stored type, class numbers as int64."""
        return self._split(self._read(ROWS, lo, hi), slice(lo, hi))

    def take(self, index: np.ndarray) -> Split:
        """Return the rows of the ascending numbers ``index``; long gaps between them are not read."""
        # The numbers are cut at long gaps. Each run of numbers is read with the rows in its short gaps.
        runs = np.split(index, np.flatnonzero(np.diff(index) > GAP) + 1)
        arrays_of_runs: list[dict[str, np.ndarray]] = []
        for run in runs:
            first, last = int(run[0]), int(run[-1])
            arrays = self._read(ROWS, first, last + 1)
            has_gaps = last + 1 - first > len(run)
            if has_gaps:
                arrays = {name: array[run - first] for name, array in arrays.items()}
            arrays_of_runs.append(arrays)
        joined = {name: _joined([arrays[name] for arrays in arrays_of_runs]) for name in ROWS}
        return self._split(joined, index)

    def _split(self, arrays: Mapping[str, np.ndarray], rows: slice | np.ndarray) -> Split:
        """Return the rows of a slice, or of row numbers, whose ``arrays`` have been read."""
        groups = None if self.groups is None else self.groups[rows]
        return Split(x=arrays["x"], y=arrays["y"], lengths=arrays["lengths"], groups=groups)

    @cached_property
    def y(self) -> np.ndarray:
        """All labels, (rows, readout_tokens, outputs): int64 class numbers or float32 targets."""
        return self._read(("y",), 0, len(self))["y"]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row that are not padding, (rows,) of int32."""
        return self._read(("lengths",), 0, len(self))["lengths"]

    @cached_property
    def groups(self) -> np.ndarray | None:
        """The group number of each row, (rows,) of int64; None if the rows have no groups."""
        return self._read(("groups",), 0, len(self))["groups"] if self._has("groups") else None

    @cached_property
    def group_names(self) -> np.ndarray | None:
        """The group of each row as its source calls it, (rows,) of texts.

        None if the rows have no groups, and for data that earlier versions prepared.
        """
        return self._names("group_names") if self._has("group_names") else None

    @cached_property
    def stretches(self) -> np.ndarray | None:
        """The number of the stretch in which the labels of each window begin, (rows,) of int64.

        None if rows are not forecasts, and for forecasts that earlier versions prepared.
        """
        return self._read(("stretches",), 0, len(self))["stretches"] if self._has("stretches") else None

    @cached_property
    def ids(self) -> np.ndarray:
        """What names each row in its source, (rows,) of texts or int64; of generated rows, their numbers."""
        return self._names("ids") if self._has("ids") else np.arange(len(self))

    def _names(self, array: str) -> np.ndarray:
        """Return an array of names, (rows,) of texts or int64."""
        stored = self._read((array,), 0, len(self))[array]
        are_texts = stored.dtype.kind == "S"  # in UTF-8; names of files need not be valid
        return np.char.decode(stored, "utf-8", "surrogatepass") if are_texts else stored

    def _has(self, array: str) -> bool:
        """Return whether the split has an optional array, as its first file shows."""
        first_file, _ = self.files[0]
        with _opened(first_file) as file:
            return array in file

    def _read(self, names: Sequence[str], lo: int, hi: int) -> dict[str, np.ndarray]:
        """Return the rows ``lo`` to ``hi`` (not included) of some arrays by their names, class numbers as int64."""
        if not 0 <= lo <= hi <= len(self):
            raise IndexError(f"rows {lo} to {hi} of split {self.name!r}: it has {len(self)} rows")
        # One part of each array for each file with wanted rows.
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        is_empty = True
        for (path, rows), start in zip(self.files, self.starts, strict=True):
            # The wanted rows of this file, by their numbers in it: an empty range if it has none of them.
            first = max(lo - start, 0)
            end = max(min(hi - start, rows), first)
            has_wanted_rows = first < end
            # An empty range is read from the first file, for its type and shape.
            is_needed_for_type = lo == hi and is_empty
            if not has_wanted_rows and not is_needed_for_type:
                continue
            is_empty = False
            # All arrays are read at once, because opening a file takes longer than reading a few rows.
            with _opened(path) as file:
                for name in names:
                    # Another file that this one refers to would not have been verified.
                    if (stored := dataset_of(file, name)) is None:
                        raise KeyError(f"{name} is not stored in this file alone")
                    if len(stored) != rows:
                        raise KeyError(f"{name} has {len(stored)} rows, not {rows}")
                    parts[name].append(stored[first:end])
                self._refuse_changed(path)
        arrays = {name: _joined(of_files) for name, of_files in parts.items()}
        if "y" in arrays and arrays["y"].dtype.kind != "f":  # classes
            arrays["y"] = arrays["y"].astype(np.int64)
        return arrays

    def _refuse_changed(self, path: Path) -> None:
        """Raise `InputError` for a file that is not as it was when its checksum was verified."""
        if path in self.stamps and stamp(path) != self.stamps[path]:
            raise InputError(
                f"{path}: the prepared data has changed since this command began", "run the command again"
            )

    @cached_property
    def starts(self) -> list[int]:
        """The number of each file's first row in the split."""
        return [0, *accumulate(rows for _, rows in self.files)][:-1]


def position_means(
    task: Task, split: PreparedSplit, rows: np.ndarray, scaling: Scaling | None
) -> np.ndarray | None:
    """Return the mean of each position over some rows of a table whose columns are the positions of a sequence.

    The means are float32 (positions, channels), in the units of the columns. Other data and symbols have none.

    Parameters
    ----------
    task : Task
        The task of the prepared data.
    split : PreparedSplit
        The split with the rows.
    rows : array (n,) of int
        The ascending numbers of the rows.
    scaling : Scaling or None
        The scaling of the values; its offset stands for a position of which no row has a value.
    """
    if not task.position_columns or scaling is None:
        return None
    sums = np.zeros((task.max_tokens, len(scaling.offset)))
    counts = np.zeros_like(sums)
    for block in np.split(rows, range(MEAN_ROWS, len(rows), MEAN_ROWS)):
        read = split.take(block)
        # Padding and missing values do not count.
        is_real = np.arange(task.max_tokens) < read.lengths[:, None]
        has_value = is_real[..., None] & ~np.isnan(read.x)
        sums += np.where(has_value, read.x, 0.0).sum(axis=0, dtype=np.float64)
        counts += has_value.sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), scaling.offset).astype(np.float32)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Return arrays (rows, ...) one after the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A task's data, ready to be read.

    Parameters
    ----------
    path : Path
        The folder.
    task : Task
        The description of the task.
    scaling : Scaling or None
        From stored values to the values that the model reads; None for symbols.
    digest : str
        SHA-256, in hex, of the description and all arrays; it does not depend on paths or on the division into files.
    splits : mapping of str to PreparedSplit
    dropped, cut : mapping of str to int
        Sequences left out and sequences shortened, by split.
    warnings : tuple of str
        Messages about the data for the user.
    reused : bool
        True if the data had been prepared before.
    """

    path: Path
    task: Task
    scaling: Scaling | None
    digest: str
    splits: Mapping[str, PreparedSplit]
    dropped: Mapping[str, int]
    cut: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    reused: bool = True

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each split."""
        return {name: len(split) for name, split in self.splits.items()}

    @property
    def state(self) -> dict[str, tuple[int, int]]:
        """Size in bytes and modification time in ns of each file when it was opened, by its path in the folder.

        Unlike the other parts of a stamp (inode and change time), they are the same on all machines.
        """
        return {
            str(path.relative_to(self.path)): (size, modified)
            for split in self.splits.values()
            for path, (size, _, modified, _) in split.stamps.items()
        }

    def kept(self, split: str) -> float:
        """Return the share of a split's sequences that were not dropped as too long."""
        rows = len(self.splits[split])
        return rows / (rows + self.dropped[split])

    @property
    def notes(self) -> list[str]:
        """Lines to print: warnings, and how many rows were dropped or cut."""
        lines = list(self.warnings)
        for counts, what in ((self.dropped, "dropped, too long"), (self.cut, "cut to the maximum length")):
            numbers = ", ".join(f"{count:,} of {split}" for split, count in counts.items() if count)
            if numbers:
                lines.append(f"task {self.task.name!r}: {numbers} {what}")
        return lines

    @property
    def notes_on_repeats(self) -> list[str]:
        """The warning that test rows repeat other rows, if any do: a high score may then be one of memory."""
        return [warning for warning in self.warnings if REPEATS in warning]

    @property
    def notes_on_random_input(self) -> list[str]:
        """The notes that do not hold for a model with a tokenizer or a processor of its own.

        They are on letters that no training row has, and on the size of images.
        """
        return [note for note in self.notes if UNSEEN in note or IMAGE_NOTE in note]

    @property
    def other_notes(self) -> list[str]:
        """The notes that hold for every model."""
        return [note for note in self.notes if note not in self.notes_on_random_input]

    def notes_for(self, *, native: bool) -> list[str]:
        """Return the notes that hold for a model, in their order; ``native`` says that its input layer is its own."""
        return self.other_notes if native else self.notes

    def split(self, name: str) -> PreparedSplit:
        """Return a split by its name; raise `InputError` if the task has none of that name."""
        if name not in self.splits:
            raise InputError(
                f"task {self.task.name!r} has no split {name!r}", f"it has {', '.join(self.splits)}"
            )
        return self.splits[name]

    @classmethod
    def open(cls, path: Path, *, reused: bool = True, verify: bool = True) -> "Prepared":
        """Return the prepared data of a folder; checksums are verified unless ``verify`` is False.

        Raises `InputError` if the folder is missing or damaged. ``reused`` is stored as the field of this name.
        """
        with as_input_error(f"{path / INDEX_FILE}: missing or damaged", f"remove {path} and prepare again"):
            index = read_json(path / INDEX_FILE)
            _check_index(index)
            records = index["splits"]
            splits = {
                name: _open_split(path, name, records[name]["files"], verify=verify)
                for name in split_order(set(records))
            }
            task = Task.from_dict(index["task"])
            if index["scaling"] is None and isinstance(task.form, Vectors):
                raise ValueError("it has no scaling of its values")
            return cls(
                path=path,
                task=task,
                scaling=scaling_from_json(index["scaling"], task),
                digest=index["digest"],
                splits=splits,
                dropped={name: record["dropped"] for name, record in records.items()},
                cut={name: record["cut"] for name, record in records.items()},
                warnings=tuple(index["warnings"]),
                reused=reused,
            )


def _open_split(
    folder: Path, name: str, files: Sequence[Mapping[str, Any]], *, verify: bool
) -> PreparedSplit:
    """Return a split whose files an index lists; raise `InputError` if one is missing or its checksum differs."""
    paths_and_rows = []
    stamps = {}
    for file in files:
        path = path_below(folder, *file["name"].split("/"))
        # The stamp is taken first: a change while the checksum is computed is noticed when the file is read.
        stamp_before = stamp(path) if path.is_file() else None
        has_listed_size = stamp_before is not None and stamp_before[0] == file["bytes"]
        if not has_listed_size or (verify and file_crc32(path) != file["crc32"]):
            raise InputError(
                f"{path}: missing, or its checksum does not match", f"remove {folder} and prepare again"
            )
        stamps[path] = stamp_before
        paths_and_rows.append((path, file["rows"]))
    return PreparedSplit(name, tuple(paths_and_rows), stamps)


# The keys of an index, of its record of a split, and of a file in such a record, with the types of their values.
INDEX_TYPES = {
    "task": dict[str, Any],
    "scaling": dict[str, list[float]] | None,
    "digest": str,
    "splits": dict[str, dict[str, Any]],
    "warnings": list[str],
}
SPLIT_TYPES = {"rows": int, "dropped": int, "cut": int, "files": list[dict[str, Any]]}
FILE_TYPES = {"name": str, "rows": int, "bytes": int, "crc32": str}


def _check_index(values: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless an index has the splits, keys, types and numbers that `Prepared.open` reads."""
    _check_types("", values, INDEX_TYPES)
    for name in SPLITS:
        if name not in values["splits"]:
            raise ValueError(f"it has no split {name!r}")
    for name, split in values["splits"].items():
        _check_types(f"splits.{name}.", split, SPLIT_TYPES)
        for file in split["files"]:
            _check_types(f"splits.{name}.files.", file, FILE_TYPES)
        rows_of_files = [file["rows"] for file in split["files"]]
        has_empty_file = min(rows_of_files, default=0) < 1  # or no file
        has_other_sum = sum(rows_of_files) != split["rows"]
        has_negative_count = min(split["dropped"], split["cut"]) < 0
        if has_empty_file or has_other_sum or has_negative_count:
            raise ValueError(f"splits.{name} has impossible numbers of rows")


def _check_types(where: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless values have all keys of ``hints`` with these types; ``where`` begins their names."""
    for key, hint in hints.items():
        if key not in values:
            raise ValueError(f"{where}{key} is missing")
        if not fits(values[key], hint):
            raise ValueError(f"{where}{key} is {reprlib.repr(values[key])}")


def split_order(names: set[str]) -> list[str]:
    """Return split names in order: train, valid, test, then any others by name."""
    return [name for name in SPLITS if name in names] + sorted(names - set(SPLITS))


def scaling_to_json(scaling: Scaling | None) -> dict[str, list[float]] | None:
    """Return a scaling as lists of numbers, without rounding."""
    return None if scaling is None else {"offset": scaling.offset.tolist(), "scale": scaling.scale.tolist()}


def scaling_from_json(values: Mapping[str, Any] | None, task: Task) -> Scaling | None:
    """Return the scaling of a task from lists or arrays of numbers; the inverse of `scaling_to_json`.

    Raises `ValueError` for arrays of another shape, and for values that are not finite in float32.
    """
    if values is None:
        return None
    # Symbols have no scaling: no list of numbers has the shape ().
    shape = (task.form.dim,) if isinstance(task.form, Vectors) else ()
    names = ("offset", "scale")
    with np.errstate(over="ignore"):  # `check_arrays` refuses infinity
        arrays = {name: np.asarray(values[name]).astype(np.float32, casting="same_kind") for name in names}
    check_arrays(arrays, dict.fromkeys(names, shape))
    return Scaling(**arrays)


@contextmanager
def _opened(path: Path) -> "Iterator[h5py.File]":
    """Open a file for reading; raise `InputError` with one line if it is damaged or missing."""
    from reservoir_cache import open_hdf5  # imports h5py

    try:
        with open_hdf5(path) as file:
            yield file
    except (OSError, KeyError) as error:
        # Only errors that HDF5 raises for damage: others may be the caller's own, whose memory may run out.
        reason = " ".join(str(error).split())  # in one line
        # The file lies in the folder of its split, which lies in that of the prepared data.
        raise InputError(
            f"{path}: prepared data damaged ({reason})", f"remove {path.parents[1]} and prepare again"
        ) from None


def draw_rows(prepared: Prepared, limit: int | None) -> dict[str, np.ndarray]:
    """Return the numbers of the rows to use in each split, ascending: all, or ``limit`` drawn with a fixed seed."""
    rows = {}
    for split, count in prepared.rows.items():
        if limit is None or limit >= count:
            rows[split] = np.arange(count)
        else:
            rows[split] = np.sort(np.random.default_rng(0).permutation(count)[:limit])
    return rows


def data_spec(prepared: Prepared, rows: Mapping[str, np.ndarray]) -> DataSpec:
    """Return what an entry of some rows of prepared data records of them: their digest, and how many each split has.

    ``rows`` has the numbers of the rows of each split.
    """
    counts = {split: len(index) for split, index in rows.items()}
    return DataSpec(digest=data_digest(prepared, rows), rows=counts)


def data_digest(prepared: Prepared, rows: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the prepared data and of the row numbers used."""
    digest = hashlib.sha256(prepared.digest.encode())
    for split, index in sorted(rows.items()):
        digest.update(json.dumps([split, len(index)]).encode())
        digest.update(index.astype("<i8", copy=False).data)
    return digest.hexdigest()
