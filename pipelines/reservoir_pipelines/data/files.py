"""The arrays of a file or folder of any kind; and FASTA files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data import folders, tables
from reservoir_pipelines.data.arrays import COLUMN_FLAGS, Arrays, read_npz
from reservoir_pipelines.data.columns import FILES, named_kind, names_files, text_columns, with_slashes
from reservoir_pipelines.data.hdf5 import Hdf5
from reservoir_pipelines.data.hub import hub_arrays, is_hub
from reservoir_pipelines.data.series import is_bare, read_series, split_files
from reservoir_pipelines.data.table_reader import TableReader, columns_as_arrays
from reservoir_pipelines.data.tables import lines_of
from reservoir_pipelines.data.texts import Texts, with_letters


def fasta_arrays(path: Path, asked: OwnDataOptions, task: Task | None = None) -> Arrays:
    """Return sequences, names, labels and groups of the records of a FASTA file; a ``task`` reads new ones."""
    # Lower case marks repeats (soft masking), unless the readout was fitted on a table with lower-case letters.
    upper = task is None or not any(map(str.islower, task.alphabet))
    headers, sequences, places = list[str](), list[list[str]](), list[str]()
    for number, line in enumerate(lines_of(path), 1):
        if line.startswith(">"):
            headers.append(line[1:].strip())
            places.append(f"line {number}")
            sequences.append([])
        elif headers:
            letters = "".join(line.split())  # spaces divide a sequence into blocks
            sequences[-1].append(letters.upper() if upper else letters)
        elif line.strip():
            raise InputError(
                f"{path}, line {number}: no header", "a FASTA file has a line with > before each sequence"
            )
    if not headers:
        raise InputError(f"{path}: no sequences", "a FASTA file has a line with > before each")
    ids = [header.split(maxsplit=1)[0] if header else str(row) for row, header in enumerate(headers)]
    notes = []
    if 2 * len(set(ids)) <= len(ids) and not asked.labels:  # they are no names of records
        if task is None and not asked.group and ids != headers:
            start = "most names of records repeat, so records of one name may be in several splits"
            notes.append(f"{start}; pass --group '^(\\S+)' to keep them in one")
        ids = [f"{name}#{row}" for row, name in enumerate(ids)]
    bad = tables.BadRows(str(path), places, skip=asked.skip_bad_rows)
    columns: dict[str, Any] = {"id": ids, "sequence": ["".join(parts) for parts in sequences]}
    if asked.labels:
        arrays, notes = folders.labels_from_table(asked, ids, bad, new=task is not None)
        columns |= {"label" if name == "y" else name: list(array) for name, array in arrays.items()}
    # A readout that was fitted on a table, or with --labels, has names of columns instead of patterns.
    elif task is None or not {"text", "labels", "columns"} & task.parameters.keys():
        pattern = asked.label or (LAST_WORD if task is None else "")
        for name, flag, wanted in (("label", "label", pattern), ("groups", "group", asked.group)):
            found = _found_in_headers(bad, headers, wanted or "", flag, new=task is not None)
            if any(found) and (name == "label" or None not in found):
                columns[name] = found
        notes += [f"the label is the match of {pattern} in the header"] if "label" in columns else []
    known = None if task is None else {"each": "token"} if task.each else {}
    found = columns_as_arrays(columns, bad, asked, known, id="id", text="sequence")
    found.notes += notes
    found.unused_options += ("time", "text", "drop", *(() if asked.labels else ("id",)))
    return found


def _found_in_headers(
    bad: tables.BadRows, headers: Sequence[str], pattern: str, flag: str, *, new: bool
) -> list[str | None]:
    """Return the match of a pattern's group in each header; None if there is no pattern, or a ``new`` one has none."""
    if not pattern:
        return []
    with as_input_error(f"--{flag} {pattern}: not a regular expression", "give one with a group"):
        compiled = re.compile(pattern)
    if compiled.groups != 1:
        raise InputError(
            f"--{flag} {pattern}: {compiled.groups} groups", "give a pattern with one, in parentheses"
        )
    found = [match and match.group(1) for match in map(compiled.search, headers)]
    if None in found and not new:
        row = found.index(None)
        raise InputError(
            f"{bad.where}, {bad.places[row]}: no {flag} in the header {headers[row][:60]!r} by --{flag} {pattern}",
            "pass another pattern, such as 'class=(\\w+)', or a table with --labels",
        )
    return found


ARRAYS = {".npz": read_npz, ".h5": Hdf5, ".hdf5": Hdf5}
LAST_WORD = r"[\s|]([^\s|]+)$"  # the label in a FASTA header without --label
FASTA = (".fasta", ".fa", ".faa", ".fna")
SUFFIXES = (*ARRAYS, *tables.SUFFIXES, *FASTA, ".ts", *FILES["sounds"])


def open_arrays(origin: str, asked: OwnDataOptions, task: Task | None = None) -> Arrays:
    """Return the arrays of a file, a folder or a dataset of the hub; new sequences of a ``task`` need no labels."""
    path, known = Path(origin), task.parameters if task else None
    suffix, published = path.suffix.lower(), split_files(path) if task is None else {}
    if is_hub(origin):
        return hub_arrays(origin, asked, labelled=task is None)
    if published or (path.is_file() and (suffix == ".ts" or (is_bare(path) and not asked.label))):
        return read_series(published or {"": path})
    asked = replace(asked, labels=str(labels_path(path, asked.labels))) if asked.labels else asked
    tables_of_labels = [path / known["labels"]] if known and "labels" in known else []
    files = folders.media_files(path, *tables_of_labels, *([Path(asked.labels)] if asked.labels else []))
    one_recording = known and known.get("recordings") and suffix in tables.SUFFIXES
    if one_recording and not files and not named_kind(path):
        files = [path]
    if files:
        classes = [task.label(number) for number in range(task.classes)] if task else None
        names = [file.name if file == path else file.relative_to(path).as_posix() for file in files]
        bad = tables.BadRows(origin, [f"file {name}" for name in names], skip=asked.skip_bad_rows)
        if asked.labels:
            arrays, notes = folders.labels_from_table(asked, names, bad, new=task is not None)
        else:
            arrays, notes = folders.folder_labels(path, names, classes), folders.files_left_out(path, files)
        found = folders.media_arrays(
            files, arrays | {"ids": np.array(names)}, bad, asked, (known or {}).get("columns", [])
        )
        found.notes[:0] = notes
        return found
    check_file(path)
    if suffix in ARRAYS:
        return with_letters(str(path), ARRAYS[suffix](path))
    if suffix in FASTA:
        return fasta_arrays(path, asked, task)
    if suffix in tables.SUFFIXES:
        found = _table_arrays(path, asked, known)
        found.unused_options = (
            *(name for name in found.unused_options if name not in COLUMN_FLAGS),
            "labels",
        )
        return found
    raise InputError(
        f"{path}: files of type {path.suffix!r} are not read",
        f"unpack it, or give one of {', '.join(SUFFIXES)}",
    )


def source_files(path: Path, named: str | None = None) -> list[Path]:
    """Return the files of a path (itself, two files of an archive, or the files of a folder), and the labels."""
    labels = [labels_path(path, named)] if named else []
    files = list(split_files(path).values()) or folders.media_files(path, *labels)
    if not files:
        check_file(path)
    return [*(files or [path]), *labels]


def labels_path(data: Path, named: str) -> Path:
    """Return the path of the table of labels, which may be named within the data's folder."""
    for place in (Path(named), data / named, data.parent / named):
        if place.is_file():
            return place
    raise InputError(f"--labels {named}: no such file", "give a table with a row for each file or record")


def check_file(path: Path) -> None:
    """Refuse a missing path, and one that is not a regular file: reading a pipe might never end."""
    if path.is_dir():
        raise InputError(
            f"{path}: a folder without images, sounds, .csv, .tsv or .parquet", "give the path of your data"
        )
    if not path.is_file():
        raise InputError(
            f"{path}: no {'regular' if path.exists() else 'such'} file", "give the path of your data"
        )


def _table_arrays(path: Path, asked: OwnDataOptions, known: Mapping[str, Any] | None) -> Arrays:
    """Return the arrays of a table, or of the files that it names together with its other columns."""
    table = tables.read_table(path, text_columns(asked), asked.decimal)
    table.bad.skip = asked.skip_bad_rows
    arrays = TableReader(table, asked, known).arrays_of_table()
    if not isinstance(arrays, Texts) or not names_files(path.parent, arrays.texts):
        return arrays
    kept = np.flatnonzero(table.bad.kept()).tolist()
    bad = table.take(kept).bad
    files = [path.parent / with_slashes(name) for name in arrays.texts]
    for row, file in enumerate(files):  # nothing outside the folder is read
        if file.is_file():
            folders.check_inside(file, path.parent)
        else:
            bad.add(row, f"no file {arrays.texts[row]!r} in the table's folder")
    bad.kept()
    others = {"ids": np.array([str(file.relative_to(path.parent)) for file in files])}
    others |= {
        name: arrays.read(name, 0, len(files)) for name in arrays.shapes if name not in {"x", "lengths"}
    }
    found = folders.media_arrays(files, others, bad, asked, (known or {}).get("columns", []))
    found.notes[:0] = arrays.notes
    found.skipped = arrays.skipped | {kept[row]: why for row, why in found.skipped.items()}
    found.chosen, found.label = arrays.chosen | found.chosen, arrays.label
    return found
