"""Labels, groups and splits of files or records from a table (``--labels``) with a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data import columns
from reservoir_pipelines.data.tables import BadRows, Table, read_table


@dataclass(frozen=True)
class TableLabels:
    """The arrays y, groups and split of a table, as far as it has them, with a row for each file; and notes."""

    arrays: dict[str, np.ndarray]
    notes: list[str]


def labels_path(data: Path, named: str) -> Path:
    """Return the path of the table of labels, which may be named within the data's folder."""
    for place in (Path(named), data / named, data.parent / named):
        if place.is_file():
            return place
    raise InputError(f"--labels {named}: no such file", "give a table with a row for each file or record")


def labels_from_table(
    options: OwnDataOptions, names: Sequence[str], bad: BadRows, *, is_new: bool
) -> TableLabels:
    """Return the labels of files or records from the table of ``--labels``; rows without any become bad."""
    assert options.labels
    # all as text, because run 007 is not run 7
    table = read_table(Path(options.labels), None, options.decimal)
    table.bad.skip = bad.skip
    table.bad.kept()
    group = None if is_new else options.group
    for role, name in {"id": options.id, "label": options.label, "group": group}.items():
        columns.require_column(table, name, "" if is_new else role)
    # Find the row of each file.
    key, row_of = _joined(table, options.id, names, some=bool(bad.skip) and not is_new)
    for place, name in enumerate(names):
        if name not in row_of:
            bad.add(place, f"no row in {table.path.name}")
    # Choose the column of the labels: a named or usual one, or the only one that has no other role.
    labels = [options.label] if options.label else columns.usual_labels(table, {key}, alone=not is_new)
    others = [name for name in table.frame if name not in {key, options.group, "groups", "split"}]
    labels = labels or (others if len(others) == 1 else [])
    if not labels:
        columns.refuse_unlabelled(table)
    left_out = [str(cell) for cell in table.frame[key].drop(index=[*row_of.values()])]
    # Read the columns in the order of the files; a file without a row is bad, and gets the first row's values.
    table = table.take([row_of.get(name, 0) for name in names])
    arrays = {"y": columns.joined_labels(table, labels, options, required=not is_new)}
    for array, name in {"groups": options.group or "groups", "split": "" if is_new else "split"}.items():
        if name in table.frame:
            arrays[array] = columns.labels_of(table, name, OwnDataOptions(classes=True), required=True)
    for row, reason in table.bad.reasons.items():
        bad.add(row, f"{table.path.name}, {table.bad.places[row]}: {reason}")
    note = f"labels from {table.path.name}, column {labels[0]!r}, joined by {key!r}"
    if left_out:
        note += (
            f"; rows without a file or record are left out ({len(left_out):,}): {columns.listed(left_out)}"
        )
    return TableLabels(arrays, [note, *table.notes()])


def _joined(
    table: Table, named: str | None, names: Sequence[str], *, some: bool
) -> tuple[str, dict[str, int]]:
    """Return the column that names most files (whole, or without folder or suffix), and the row of each file.

    With ``some``, only one of the files needs a row.
    """
    keys = [named] if named else list(table.frame)
    rows_by_key = {key: _rows_of(table.frame[key], names) for key in keys}
    key = max(keys, key=lambda column: len(rows_by_key[column]))
    rows, where = rows_by_key[key], f"in column {key!r}"
    missing = [name for name in names if name not in rows]
    if missing and not (some and rows):
        raise InputError(
            f"{table.path}: no row for {missing[0]!r} {where} ({len(missing):,} of {len(names):,} have none)",
            "add it (predict needs no label in it), or pass --id NAME of another column, or --skip-bad-rows",
        )
    # A file must have one row, and a row one file.
    file_of_row: dict[int, str] = {}
    for name, of_file in rows.items():
        if len(of_file) > 1 or file_of_row.setdefault(of_file[0], name) != name:
            row = of_file[-1]
            raise InputError(
                f"{table.path}, {table.bad.places[row]}: {table.frame[key][row]!r} {where} stands for several files, "
                "or another row has it, too",
                "write one row with the whole name for each file",
            )
    return key, {name: of_file[0] for name, of_file in rows.items()}


def _rows_of(column: Any, names: Sequence[str]) -> dict[str, list[int]]:
    """Return the rows that name each file, if any; the longest form of a name that has a row counts."""
    rows_of: dict[str, list[int]] = {}
    for row, cell in enumerate(column):
        rows_of.setdefault(str(columns.with_slashes(str(cell))), []).append(row)
    rows_of_file: dict[str, list[int]] = {}
    for name in names:
        path = columns.with_slashes(name)
        # The id of a protein has parts: sp|P12345|NAME_HUMAN.
        forms = (str(path), str(path.with_suffix("")), path.name, path.stem, *name.split("|"))
        for form in forms:
            if form in rows_of:
                rows_of_file.setdefault(name, rows_of[form])
    return rows_of_file
