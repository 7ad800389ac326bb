"""Write prepared data: the rows of a source in files of each split, and an index with their checksums."""

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import file_crc32, publish_json, replace_file

from reservoir.errors import InputError
from reservoir.options import ClusterOptions
from reservoir.tasks import SPLITS, TASKS, Piece, Source, Task, check_split
from reservoir.tasks.task import MISSING
from reservoir.tasks.texts import are_words, texts_of
from reservoir_pipelines.data.table import data_exists
from reservoir_pipelines.output import meter
from reservoir_pipelines.preparation.prepared import (
    INDEX_FILE,
    REPEATS,
    VERSION,
    PreparedSplit,
    scaling_to_json,
    split_order,
)
from reservoir_pipelines.workers import map_pieces

# Values of near repeats agree in so many significant digits: files are often written with no more.
DIGITS = 4
# Rows whose rounded values change less often, such as constant ones, may be alike by chance.
MIN_CHANGES = 8
VALUES_AT_A_TIME = 1 << 20  # values that are rounded at a time, in float64


def write_prepared(
    source: Source, contents: list[dict[str, Any]], folder: Path, cluster: ClusterOptions
) -> None:
    """Write all pieces of a source and the index into a folder.

    ``contents`` is the state of the source's files, for the index: the name, size and SHA-256 of each.
    """
    # Workers of a cluster run in other folders than this process.
    source_of_workers = _with_full_paths(source) if cluster.scheduler else source
    arguments = [(source_of_workers, piece, number, folder) for number, piece in enumerate(source.pieces())]
    with meter("prepare", len(arguments), "pieces") as bar:
        records_of_pieces = map_pieces(
            _write_piece,
            arguments,
            workers=cluster.workers,
            scheduler=cluster.scheduler,
            on_result=lambda _: bar.advance(1),
        )
    _write_index(source, contents, folder, records_of_pieces)


def _with_full_paths(source: Source) -> Source:
    """Return a source with the full paths of its files."""
    full_paths = {}
    for field in ("data", "origin"):  # the fields of sources that hold a path
        path = getattr(source, field, None)
        if path and data_exists(Path(path)):
            full_paths[field] = type(path)(Path(path).resolve())  # a text or a `Path`, as before
    return replace(source, **full_paths)  # pyright: ignore[reportArgumentType]


def _write_piece(source: Source, piece: Piece, number: int, folder: Path) -> list[dict[str, Any]]:
    """Write the rows of the piece with this number, one file per split, and return a record of each file.

    A record has the split, name, size and checksum of the file, the numbers of its rows and of those left out or cut,
    and, for own data, hashes of its rows, from which rows that are, exactly or nearly, in several splits are found.
    """
    records = []
    for name, split in source.read(piece).items():
        if not len(split):
            continue  # no file may be empty
        check_split(source.task, name, split)
        lengths = split.lengths.astype(np.int32)
        y = split.y
        if y.dtype.kind != "f":  # the smallest type that holds all class numbers
            y = y.astype(np.result_type(np.min_scalar_type(int(y.min())), np.min_scalar_type(int(y.max()))))
        arrays = {
            "x": split.x,
            "y": y,
            "lengths": lengths,
            "groups": split.groups,
            "group_names": _as_bytes(split.group_names),
            "ids": _as_bytes(split.ids),
            "stretches": split.stretches,
        }
        # The file is not durable, because the whole folder is synced at its end.
        path = folder / name / f"{number:05d}.h5"
        path.parent.mkdir(exist_ok=True)
        replace_file(path, partial(_write_arrays, arrays), durable=False)
        hashes: dict[str, np.ndarray] = {}
        if source.task.name not in TASKS:
            hashes["exact"] = _hashes(_contents(split.x, lengths))
            near_contents = _near_contents(source.task, split.x, lengths)
            hashes["near"] = hashes["exact"] if near_contents is None else _hashes(near_contents)
        records.append(
            {
                "split": name,
                "name": f"{name}/{path.name}",
                "bytes": path.stat().st_size,
                "crc32": file_crc32(path),
                "rows": len(split),
                "dropped": split.dropped,
                "cut": split.cut,
                "hashes": hashes,
            }
        )
    return records


def _as_bytes(names: np.ndarray | None) -> np.ndarray | None:
    """Return names (rows,) as HDF5 stores them: texts as bytes, because its strings of a fixed size are bytes."""
    if names is None or names.dtype.kind != "U":
        return names
    return np.char.encode(names, "utf-8", "surrogatepass")


def _write_arrays(arrays: Mapping[str, np.ndarray | None], path: Path) -> None:
    """Write the arrays that are not None to an HDF5 file."""
    import h5py
    from reservoir_cache import new_hdf5  # imports h5py, which naming a source does not need

    with new_hdf5(path) as file:
        for name, values in arrays.items():
            if values is not None:
                # Objects are images: the bytes of a file each, which differ in number.
                is_images = values.dtype.kind == "O"
                dtype = h5py.vlen_dtype(np.uint8) if is_images else values.dtype
                file.create_dataset(name, data=values, dtype=dtype, track_times=False)


def _write_index(
    source: Source,
    contents: list[dict[str, Any]],
    folder: Path,
    records_of_pieces: list[list[dict[str, Any]]],
) -> None:
    """Write the index of a folder: its files, the digest of the data, and the state of the source files.

    ``records_of_pieces`` has the records that `_write_piece` returned for each piece, and ``contents`` is the state of
    the source files. Raises `InputError` if train, valid or test has no rows.
    """
    task = source.task
    scaling = scaling_to_json(source.scaling())
    files: dict[str, list[dict[str, Any]]] = {}  # the records of each split
    for records in records_of_pieces:
        for record in records:
            files.setdefault(record["split"], []).append(record)
    for name in SPLITS:
        if name not in files:
            raise InputError(f"task {task.name!r}: no rows for the split {name!r}", "give more rows")
    # What the index has of each split, and the split as it will be read back, for the digest.
    split_records: dict[str, dict[str, Any]] = {}
    splits: dict[str, PreparedSplit] = {}
    for name in split_order(set(files)):
        listed = [{key: file[key] for key in ("name", "rows", "bytes", "crc32")} for file in files[name]]
        totals = {count: sum(file[count] for file in files[name]) for count in ("rows", "dropped", "cut")}
        split_records[name] = {**totals, "files": listed}
        splits[name] = PreparedSplit(name, tuple((folder / file["name"], file["rows"]) for file in listed))
    # What the user should know of the rows. Only own data has the hashes from which repeats are found.
    warnings = _unknown_classes(task, splits)
    if task.name not in TASKS:
        warnings += _repeats(task, files)
    index = {
        "version": VERSION,
        "task": task.to_dict(),
        "scaling": scaling,
        "digest": _digest([task.to_dict(), scaling], splits),
        "splits": split_records,
        "source": contents,
        "warnings": [*filter(None, [source.summary()]), *source.notes(), *warnings],
    }
    publish_json(folder / INDEX_FILE, index, durable=False)


def _unknown_classes(task: Task, splits: Mapping[str, PreparedSplit]) -> list[str]:
    """Return a line for each split with classes that no training row has."""
    if not task.classes:  # the labels are values
        return []
    lines = []
    classes = {name: set(np.unique(split.y).tolist()) for name, split in splits.items()}
    for name, classes_of_split in classes.items():
        if unknown := sorted(classes_of_split - classes["train"] - {MISSING}):
            # At most five labels are named, so that the line stays readable.
            labels = ", ".join(str(task.label(number)) for number in unknown[:5])
            more = ", ..." if len(unknown) > 5 else ""
            problem = f"the split {name!r} has classes that no row of 'train' has"
            lines.append(f"{problem} ({len(unknown)}): {labels}{more}")
    return lines


def _hashes(contents: Iterable[bytes]) -> np.ndarray:
    """Return a hash of each content, (contents,) of uint64."""
    digests = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
    return np.frombuffer(b"".join(digests), np.uint64)


def _contents(x: np.ndarray, lengths: np.ndarray) -> Iterator[bytes]:
    """Yield each padded sequence and its length."""
    return (row.tobytes() + length.tobytes() for row, length in zip(x, lengths, strict=True))


def _near_contents(task: Task, x: np.ndarray, lengths: np.ndarray) -> Iterator[bytes] | None:
    """Return what each sequence shares with copies in other writing: texts by `_near_texts`, values by `_rounded`.

    Other sequences, such as symbols, images and the windows of a forecast, have no near copies: None.
    """
    if are_words(task.alphabet):
        return (text.encode("utf-8", "surrogatepass") for text in _near_texts(x, lengths))
    if x.dtype.kind != "f" or task.horizon:
        return None
    return _rounded_contents(x.reshape(len(x), -1), lengths)


def _rounded_contents(values: np.ndarray, lengths: np.ndarray) -> Iterator[bytes]:
    """Yield each row of values (rows, values), rounded if it changes often enough, and its length."""
    step = max(1, VALUES_AT_A_TIME // values.shape[1])
    for rows in (slice(low, low + step) for low in range(0, len(values), step)):
        rounded = _rounded(values[rows])
        changes = (np.diff(rounded, axis=1) != 0).sum(axis=1, keepdims=True)
        yield from _contents(np.where(changes < MIN_CHANGES, values[rows], rounded), lengths[rows])


def _near_texts(codes: np.ndarray, lengths: np.ndarray) -> Iterator[str]:
    """Yield texts, given as code points (rows, letters), in lower case and without white space and punctuation.

    A text of punctuation alone stays as it is.
    """
    letters = [chr(code) for code in np.unique(codes).tolist()]
    is_left_out = [letter.isspace() or unicodedata.category(letter).startswith("P") for letter in letters]
    table = {ord(letter): None for letter, leave_out in zip(letters, is_left_out, strict=True) if leave_out}
    return (text.casefold().translate(table) or text for text in texts_of(codes, lengths))


def _rounded(x: np.ndarray) -> np.ndarray:
    """Return values with `DIGITS` significant digits, in float64; NaN stays NaN."""
    values = x.astype(np.float64)
    is_not_zero = np.abs(values) > 0
    exponents = np.floor(np.log10(np.abs(values), where=is_not_zero, out=np.zeros_like(values)))
    steps = 10.0 ** (exponents - (DIGITS - 1))
    return np.rint(values / steps) * steps


def _repeats(task: Task, files: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Return a line if sequences of ``test`` are, exactly or nearly, in other splits: readouts may know them by heart.

    ``files`` has the records of `_write_piece` by split. The list is empty if no sequence is repeated.
    """

    def repeated(kind: str) -> int:
        """Return the number of test rows whose hash of a kind, "exact" or "near", another split has."""
        hashes = {name: np.concatenate([file["hashes"][kind] for file in files[name]]) for name in SPLITS}
        return int(np.isin(hashes["test"], np.concatenate([hashes["train"], hashes["valid"]])).sum())

    exact, near = repeated("exact"), repeated("near")  # near repeats are exact ones and others
    if not near:
        return []
    test_rows = sum(file["rows"] for file in files["test"])
    of_texts = are_words(task.alphabet)
    difference = "case, spaces and punctuation" if of_texts else f"rounding to {DIGITS} digits"
    exception = f" ({near - exact:,} but for {difference})" if near > exact else ""
    remedy = "remove repeats, or give them one group"
    return [
        f"{near:,} of {test_rows:,} {REPEATS}{exception}, so scores on new sequences may be lower; {remedy}"
    ]


def _digest(description: list[Any], splits: Mapping[str, PreparedSplit]) -> str:
    """Return the SHA-256 of a task's description and arrays, which does not depend on their division into files.

    It covers the description and the scaling as canonical JSON; the name and row count of each split;
    and for each array the type, the shape of a row and the little-endian bytes, or for images the
    length and bytes of each file.
    """
    hasher = hashlib.sha256()

    def add_json(value: Any) -> None:
        hasher.update(json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")

    add_json(description)
    for name, split in splits.items():
        add_json([name, len(split)])
        arrays = ["x", "y", "lengths"]
        if split.groups is not None:
            arrays.append("groups")
        for array in arrays:
            # A file at a time, so that no more than its rows are in memory.
            for start, (_, rows) in zip(split.starts, split.files, strict=True):
                values = np.ascontiguousarray(getattr(split.read(start, start + rows), array))
                is_images = values.dtype.kind == "O"
                if is_images:
                    for image in values:
                        add_json([array, len(image)])
                        hasher.update(image)
                    continue
                values = values.astype(values.dtype.newbyteorder("<"), copy=False)
                if start == 0:  # type and shape are those of all files
                    add_json([array, values.dtype.str, values.shape[1:]])
                # A memoryview without values cannot be cast.
                hasher.update(values.data.cast("B") if values.size else b"")
    return hasher.hexdigest()
