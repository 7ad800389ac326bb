"""Arrays by name, whatever file, folder or function they come from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own import paths, tables
from reservoir.tasks.own.arrays import Arrays, padded
from reservoir.tasks.own.bad_rows import BadRows
from reservoir.tasks.own.cells import as_sequence, typed
from reservoir.tasks.own.each import labels_of_each, padded_labels
from reservoir.tasks.own.fasta import fasta_arrays
from reservoir.tasks.own.hdf5 import Hdf5
from reservoir.tasks.own.hub import hub_arrays, is_hub
from reservoir.tasks.own.media import folder_arrays, media_files
from reservoir.tasks.own.npz import Npz
from reservoir.tasks.own.pictures import Pictures
from reservoir.tasks.own.recordings import Recordings
from reservoir.tasks.own.roles import text_columns
from reservoir.tasks.own.series import is_bare, read_series, split_files
from reservoir.tasks.own.sounds import Sounds
from reservoir.tasks.own.table_reader import TableReader
from reservoir.tasks.own.texts import Texts
from reservoir.tasks.task import Task

ARRAYS = {".npz": Npz, ".h5": Hdf5, ".hdf5": Hdf5}
FASTA = (".fasta", ".fa", ".faa", ".fna")
SERIES = (".ts",)
SUFFIXES = (*ARRAYS, *tables.SUFFIXES, *FASTA, *SERIES, *paths.KINDS["sounds"])


def open_arrays(origin: str, asked: OwnDataOptions, task: Task | None = None) -> Arrays:
    """Return the arrays of a file by its suffix, of a folder, of a dataset of the hub, or of ``module:function``.

    Parameters
    ----------
    origin : str
        The path, ``hf:NAME`` or ``module:function``.
    asked : OwnDataOptions
        How it is read.
    task : Task, optional
        The task that new sequences are for: they are read as its own were, and need no labels.
    """
    path, known = Path(origin), task.parameters if task else None
    if task is None:
        _check_flags(origin, asked)
    if is_hub(origin) or (":" in path.name and not path.exists()):
        return hub_arrays(origin, asked, labelled=task is None) if is_hub(origin) else read_function(origin)
    published = split_files(path) if task is None else {}
    suffix = path.suffix.lower()
    if published or (path.is_file() and (suffix in SERIES or (is_bare(path) and not asked.label))):
        return read_series(published or {"": path}, regression=asked.regression)
    asked = replace(asked, labels=str(labels_path(path, asked.labels))) if asked.labels else asked
    labels = asked.labels or (path / known["labels"] if known and "labels" in known else None)
    files = media_files(path, Path(labels) if labels else None)
    if not files and known and known.get("recordings") and suffix in tables.SUFFIXES and not paths.named_kind(path):
        files = [path]
    if files:
        labels = [task.label(number) for number in range(task.classes)] if task else None
        skip = asked.skip_bad_rows if task is None else None
        arrays, notes = folder_arrays(path, files, labels, asked)
        bad = BadRows(origin, [f"file {name}" for name in arrays["ids"]], skip=skip)
        return _media(files, arrays, notes, bad, asked, known)
    check_file(path)
    return _read_file(path, asked, known)


def _read_file(path: Path, asked: OwnDataOptions, known: Mapping[str, Any] | None) -> Arrays:
    """Return the arrays of a single file by its suffix."""
    suffix = path.suffix.lower()
    if suffix in ARRAYS:
        return _with_letters(str(path), ARRAYS[suffix](path), asked, labelled=known is None)
    if suffix in tables.SUFFIXES:
        reader = TableReader(tables.read_table(path, text_columns(asked)), asked, known)
        arrays = reader.arrays_of_table()
        return _named_media(path, arrays, reader, known) or arrays
    if suffix in FASTA:
        return fasta_arrays(path, asked, known)
    raise InputError(f"{path}: files of type {path.suffix!r} are not read; give one of {', '.join(SUFFIXES)}")


def source_files(path: Path, named: str | None = None) -> list[Path]:
    """Return the files that are read of a path, and the table of labels that is named.

    The files are the path itself, both of a published split, or those of a folder.
    """
    labels = labels_path(path, named) if named else None
    files = list(split_files(path).values()) or media_files(path, labels)
    if not files:
        check_file(path)
    return [*(files or [path]), *([labels] if labels else [])]


def labels_path(data: Path, named: str) -> Path:
    """Return the table of labels: the path that is named, or a file of that name in the folder of the data."""
    places = [Path(named), data / named, data.parent / named]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(f"--labels {named}: no such file; give a table with a row for each file or record")
    return found


def check_file(path: Path) -> None:
    """Refuse what is not there, and what is no file: reading a pipe might never end."""
    if path.is_dir():
        raise InputError(f"{path}: a folder without pictures, sounds or recordings; give the path of your data")
    if not path.is_file():
        raise InputError(f"{path}: no {'regular' if path.exists() else 'such'} file; give the path of your data")


def _check_flags(origin: str, asked: OwnDataOptions) -> None:
    """Refuse flags that name columns of data that have none."""
    path = Path(origin)
    suffix = path.suffix.lower()
    if is_hub(origin) or (suffix in tables.SUFFIXES and not is_bare(path) and not split_files(path)):
        if asked.labels:
            raise InputError(
                f"{origin}: --labels is for folders of files and FASTA; a table has its labels beside them"
            )
        return
    if ":" in path.name and not path.exists():
        why, allowed = "a function yields no columns", ()
    elif split_files(path) or suffix in SERIES or is_bare(path):
        why, allowed = "series of an archive have no column names", ("label",) * (not split_files(path))
    elif suffix in ARRAYS:
        why, allowed = "it holds arrays by the names x, y, lengths, split, groups and ids", ()
    elif suffix in FASTA:
        why, allowed = "FASTA has no columns", ("label", "group", "labels", *("id",) * bool(asked.labels))
    else:
        why = "the label of a file is its folder; --labels names a table of others"
        allowed = ("labels", "drop", "time", *("label", "id", "group") * bool(asked.labels))
    for flag in ("label", "id", "time", "group", "text", "drop", "labels"):
        if (name := getattr(asked, flag)) and flag not in allowed:
            raise InputError(f"{origin}: --{flag} {name} names a column of a table, and {why}; leave it out")


def _named_media(path: Path, arrays: Arrays, reader: TableReader, known: Mapping[str, Any] | None) -> Arrays | None:
    """Return the files that a table names, beside its other columns; None for a table of other things."""
    if not isinstance(arrays, Texts) or not paths.kind_of(arrays.texts[: paths.PEEKED]):
        return None
    if not any((path.parent / name).is_file() for name in arrays.texts[: paths.PEEKED]):
        return None
    kept = reader.bad.kept()
    places = [place for place, good in zip(reader.table.places, kept, strict=True) if good]
    bad = BadRows(str(path), places, skip=reader.bad.skip)
    files = paths.named_files(path.parent, arrays.texts, bad)
    bad.kept()
    others = {name: arrays.read(name, 0, len(files)) for name in arrays.shapes if name not in {"x", "lengths"}}
    others.setdefault("ids", np.array([str(file.relative_to(path.parent)) for file in files]))
    found = _media(files, others, arrays.notes, bad, reader.asked, known)
    found.chosen = arrays.chosen | found.chosen
    return found


def _media(
    files: list[Path],
    arrays: dict[str, np.ndarray],
    notes: list[str],
    bad: BadRows,
    asked: OwnDataOptions,
    known: Mapping[str, Any] | None,
) -> Arrays:
    kind = paths.kind_of([files[0].name])
    if kind == "pictures":
        found = Pictures(files, arrays, bad)
    elif kind == "sounds":
        found = Sounds(files, arrays, bad, asked.rate, waveform=asked.waveform)
    else:
        found = Recordings(files, arrays, bad, asked, known)
    found.notes = [*notes, *bad.notes(), *found.notes]
    return found


def _with_letters(origin: str, arrays: Arrays, asked: OwnDataOptions, *, labelled: bool) -> Arrays:
    """Return arrays of which ``x`` may be texts (rows,) as arrays of their letters."""
    if "x" not in arrays.shapes or arrays.dtypes["x"].kind not in "US" or len(arrays.shapes["x"]) != 1:
        return arrays
    found = {name: arrays.read(name, 0, arrays.shapes["x"][0]) for name in arrays.shapes if name != "lengths"}
    texts = [text.strip() for text in found.pop("x").tolist()]
    bad = BadRows(origin, [f"row {row}" for row in range(len(texts))], skip=asked.skip_bad_rows if labelled else None)
    for row in (row for row, text in enumerate(texts) if not text):
        bad.add(row, "an empty text")
    y, chosen = found.get("y", np.zeros(0)), {}
    each = labels_of_each(bad, texts, y.tolist()) if labelled and y.ndim == 1 and y.dtype.kind == "U" else None
    if each:
        chosen["each"] = each[0]
        found["y"], found["units"] = padded_labels(bad, "y", each[1])
    kept = bad.kept()
    letters = Texts(
        origin, np.array(texts)[kept].tolist(), {n: a[kept] if len(a) == len(kept) else a for n, a in found.items()}
    )
    letters.chosen, letters.notes = chosen, bad.notes()
    return letters


def read_function(name: str) -> Arrays:
    """Call a function ``module:name`` that yields ``(sequence, label)`` or ``(sequence, label, split)``.

    A sequence is a text, a list or array of integers or of floats, or (tokens, dim) of floats. The module is looked for
    in the current folder, too.
    """
    rows = list(_function(name)())
    path = str(function_file(name))
    if not rows or any(not isinstance(row, tuple) or not 2 <= len(row) <= 3 for row in rows):
        raise InputError(f"{name} must yield pairs (sequence, label), or triples with the split, and some")
    arrays = {"y": typed(path, [row[1] for row in rows])}
    if any(len(row) == 3 for row in rows):
        arrays["split"] = np.array([str(row[2]) if len(row) == 3 else "missing" for row in rows])
    sequences = [row[0] for row in rows]
    if all(isinstance(sequence, str) for sequence in sequences):
        return Texts(path, sequences, arrays)
    x, lengths = padded(path, _as_arrays(path, sequences))
    return Arrays({"x": x, "lengths": lengths, **arrays})


def _as_arrays(where: str, sequences: Sequence[Any]) -> list[np.ndarray]:
    found = []
    for row, sequence in enumerate(sequences):
        array = as_sequence(sequence)
        if array is None or (found and array.shape[1:] != found[0].shape[1:]):
            raise InputError(f"{where}, row {row}: no sequence of numbers, or tokens of another shape than before")
        found.append(array)
    return found


def function_file(name: str) -> Path:
    """Return the file of the module of ``module:name``."""
    _function(name)
    return Path(str(sys.modules[name.partition(":")[0]].__file__))


def _function(name: str) -> Callable[[], Iterable[Any]]:
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{name}: {error}; give module:function, the module in this folder or installed") from None
    finally:
        sys.path.remove(here)
    if not isinstance(found, Callable):
        raise InputError(f"{name} is no function; give module:function, which yields (sequence, label)")
    return found
