"""Arrays by name, whatever file or function they come from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.cells import array_of, pad
from reservoir.tasks.own.columns import Columns
from reservoir.tasks.own.each import each_of, padded
from reservoir.tasks.own.fasta import header_labels, read_fasta
from reservoir.tasks.own.hdf5 import Hdf5
from reservoir.tasks.own.hub import HubTexts, is_hub
from reservoir.tasks.own.media import folder_arrays, kind_of, media_files, named_files
from reservoir.tasks.own.npz import Npz
from reservoir.tasks.own.parquet import read_parquet
from reservoir.tasks.own.pictures import Pictures
from reservoir.tasks.own.roles import Sorting
from reservoir.tasks.own.series import is_bare, read_series, split_files
from reservoir.tasks.own.sounds import Sounds
from reservoir.tasks.own.tables import read_csv, read_jsonl
from reservoir.tasks.own.texts import Texts
from reservoir.tasks.task import Task

ARRAYS = {".npz": Npz, ".h5": Hdf5, ".hdf5": Hdf5}
TABLES = {".csv": read_csv, ".tsv": read_csv, ".jsonl": read_jsonl, ".parquet": read_parquet}
FASTA = (".fasta", ".fa", ".faa", ".fna")
SERIES = (".ts",)
SUFFIXES = (*ARRAYS, *TABLES, *FASTA, *SERIES, ".wav")


def open_columns(origin: str, asked: OwnDataOptions, task: Task | None = None) -> Columns:
    """Return the arrays of a file by its suffix, of a folder, or of ``module:function``.

    New sequences are read as those of a ``task`` were; nothing is missed then that only training needs.
    """
    path, labelled = Path(origin), task is None
    if is_hub(origin):
        return HubTexts(origin, asked, labelled=labelled)
    if ":" in path.name and not path.exists():
        _refuse_columns(origin, asked, "a function yields no columns")
        return read_function(origin)
    published = split_files(path) if labelled else {}
    if published or (path.is_file() and (path.suffix.lower() in SERIES or (is_bare(path) and not asked.label))):
        if labelled:
            _refuse_columns(origin, asked, "series of an archive have no names of columns")
        return read_series(published or {"": path}, regression=asked.regression)
    if files := media_files(path):
        if labelled:
            kind = kind_of([files[0].name])
            _refuse_columns(origin, asked, f"{kind} have the folder that they are in as their label")
        labels = [task.label(number) for number in range(task.classes)] if task else None
        return _media(files, *folder_arrays(path, files, labels), asked)
    check_file(path)
    return _read(path, asked, task.parameters if task else None)


def _read(path: Path, asked: OwnDataOptions, parameters: Mapping[str, Any] | None) -> Columns:
    labelled = parameters is None
    if path.suffix.lower() in ARRAYS:
        if labelled:
            _refuse_columns(str(path), asked, "it holds arrays by the names x, y, lengths, split, groups and ids")
        return _with_letters(str(path), ARRAYS[path.suffix.lower()](path), labelled=labelled)
    if path.suffix.lower() in TABLES:
        columns = Sorting(path, TABLES[path.suffix.lower()](path), asked, parameters).arrays_of_table()
        return _with_media(path, columns, asked) or columns
    if path.suffix.lower() in FASTA:
        if labelled:
            why = "FASTA has headers, in which --label finds the label"
            _refuse_columns(str(path), replace(asked, label=None), why)
        return _fasta(path, asked, parameters)
    raise InputError(f"{path}: files of type {path.suffix!r} are not read; give one of {', '.join(SUFFIXES)}")


def source_files(path: Path) -> list[Path]:
    """Return the files that are read of a path: the file itself, both of a published split, or those of a folder."""
    files = list(split_files(path).values()) or media_files(path)
    if not files:
        check_file(path)
    return files or [path]


def check_file(path: Path) -> None:
    """Refuse what is not there, and what is no file: reading a pipe might never end."""
    if path.is_dir():
        raise InputError(
            f"{path}: no regular file, but a folder without pictures or .wav files; give the path of your data"
        )
    if not path.is_file():
        raise InputError(f"{path}: no {'regular' if path.exists() else 'such'} file; give the path of your data")


def _refuse_columns(origin: str, asked: OwnDataOptions, why: str) -> None:
    for flag in ("label", "id", "time", "group", "text", "drop"):
        if name := getattr(asked, flag):
            raise InputError(f"{origin}: --{flag} {name} names a column of a table, and {why}; leave it out")


def _fasta(path: Path, asked: OwnDataOptions, parameters: Mapping[str, Any] | None) -> Columns:
    table, note = read_fasta(path), ""
    headers = table.pop("header")
    if parameters is None:
        table["label"], note = header_labels(path, headers, asked.label or "")
    columns = Sorting(path, table, OwnDataOptions(id="id", text="sequence"), parameters).arrays_of_table()
    columns.notes += [note] if note else []
    columns.found.clear()
    return columns


def _with_media(path: Path, columns: Columns, asked: OwnDataOptions) -> Columns | None:
    """Return the pictures or sounds that a table names, beside its other columns; None of a table of other things."""
    if not (files := named_files(path, columns)):
        return None
    rows = len(files)
    arrays = {name: columns.read(name, 0, rows) for name in columns.shapes if name not in {"x", "lengths"}}
    arrays.setdefault("ids", np.array([str(file.relative_to(path.parent)) for file in files]))
    found = _media(files, arrays, columns.notes, asked)
    found.found = columns.found
    return found


def _media(files: list[Path], arrays: dict[str, np.ndarray], notes: list[str], asked: OwnDataOptions) -> Columns:
    if kind_of([files[0].name]) == "pictures":
        columns = Pictures(files, arrays)
    else:
        columns = Sounds(files, arrays, asked.rate, waveform=asked.waveform)
    columns.notes = [*notes, *columns.notes]
    return columns


def _with_letters(origin: str, columns: Columns, *, labelled: bool) -> Columns:
    """Return arrays of which ``x`` may be texts (rows,) as arrays of their letters."""
    if "x" not in columns.shapes or columns.dtypes["x"].kind not in "US" or len(columns.shapes["x"]) != 1:
        return columns
    arrays = {name: columns.read(name, 0, columns.shapes["x"][0]) for name in columns.shapes if name != "lengths"}
    try:
        texts = [text.decode() if isinstance(text, bytes) else text for text in arrays["x"].tolist()]
    except UnicodeDecodeError as error:
        raise InputError(f"{origin}: x holds bytes that are no UTF-8 ({error}); give texts") from None
    del arrays["x"]
    y, found = arrays.get("y", np.zeros(0)), {}
    each = each_of(origin, texts, y.tolist()) if labelled and y.ndim == 1 and y.dtype.kind == "U" else None
    if each:
        found["each"] = each[0]
        arrays["y"], arrays["units"] = padded(Path(origin), "y", each[1])
    columns = Texts(origin, texts, arrays)
    columns.found = found
    return columns


def read_function(name: str) -> Columns:
    """Call a function ``module:name`` that yields ``(sequence, label)`` or ``(sequence, label, split)``.

    A sequence is a text, a list or array of integers or of floats, or (tokens, dim) of floats. The module is looked for
    in the current folder, too.
    """
    rows = list(_function(name)())
    path = function_file(name)
    if not rows or any(not isinstance(row, tuple) or not 2 <= len(row) <= 3 for row in rows):
        raise InputError(f"{name} must yield pairs (sequence, label), or triples with the split, and some")
    arrays = {"y": array_of(path, "labels", [row[1] for row in rows])}
    if any(len(row) == 3 for row in rows):
        arrays["split"] = np.array([str(row[2]) if len(row) == 3 else "missing" for row in rows])
    sequences = [row[0] for row in rows]
    if all(isinstance(sequence, str) for sequence in sequences):
        return Texts(str(path), sequences, arrays)
    x, lengths = pad(str(path), sequences)
    return Columns({"x": x, "lengths": lengths, **arrays})


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
