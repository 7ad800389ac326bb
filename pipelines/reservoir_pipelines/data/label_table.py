"""Labels, groups and splits of files or records from a table (``--labels``) with a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.bad_rows import BadRows
from reservoir_pipelines.data.columns import listed, require_column
from reservoir_pipelines.data.file_kinds import with_slashes
from reservoir_pipelines.data.label_cells import joined_labels, labels_of
from reservoir_pipelines.data.roles import roles_of_labels
from reservoir_pipelines.data.table import Table, read_table


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
    """Return the labels of files or records from the table of ``--labels``; rows without any become bad.

    ``names`` are those of the files or records, which ``bad`` counts. New files need no labels.
    """
    assert options.labels
    table = read_table(
        Path(options.labels), list, options.decimal
    )  # all as text, because run 007 is not run 7
    table.bad.skip = bad.skip
    table.bad.readable()
    for role, name in {
        "id": options.id,
        "label": options.label,
        "group": None if is_new else options.group,
    }.items():
        require_column(table.path, table.names, name, "" if is_new else role)

    # One row for each file or record; those without a row are bad.
    key, row_of_name = _joined(table, options.id, names, some=bool(bad.skip) and not is_new)
    for place, name in enumerate(names):
        if name not in row_of_name:
            bad.add(place, f"no row in {table.path.name}")
    unused = [str(cell) for cell in table.frame[key].drop(index=[*row_of_name.values()])]
    roles = roles_of_labels(table, key, bad.where, options, {} if is_new else None)
    joined = table.take([row_of_name.get(name, 0) for name in names])

    arrays = {"y": joined_labels(joined, roles.labels, options, required=not is_new)}
    for array, column in {"groups": roles.group, "split": "" if is_new else roles.split}.items():
        if column:
            arrays[array] = labels_of(joined, column, OwnDataOptions(classes=True), required=True)
    for row, reason in joined.bad.reasons.items():
        bad.add(row, f"{table.path.name}, {joined.bad.places[row]}: {reason}")
    note = f"labels from {table.path.name}, column {roles.labels[0]!r}, joined by {key!r}"
    if unused:
        note += f"; rows without a file or record are left out ({len(unused):,}): {listed(unused)}"
    return TableLabels(arrays, [note])


def _joined(
    table: Table, id_column: str | None, names: Sequence[str], *, some: bool
) -> tuple[str, dict[str, int]]:
    """Return the column that names most files (whole, or without folder or suffix), and the row of each file.

    With ``some``, only one of the files needs a row.
    """
    candidates = [id_column] if id_column else table.names
    rows_by_column = {column: _rows_of(table.frame[column], names) for column in candidates}
    key = max(rows_by_column, key=lambda column: len(rows_by_column[column]))
    rows = rows_by_column[key]
    missing = [name for name in names if name not in rows]
    if missing and not (some and rows):
        raise InputError(
            f"{table.path}: no row for {missing[0]!r} in column {key!r} "
            f"({len(missing):,} of {len(names):,} have none)",
            "add it (predict needs no label in it), or pass --id NAME of another column, or --skip-bad-rows",
        )
    name_of_row: dict[int, str] = {}
    for name, rows_of_name in rows.items():
        if len(rows_of_name) > 1 or name_of_row.setdefault(rows_of_name[0], name) != name:
            row = rows_of_name[-1]
            raise InputError(
                f"{table.path}, {table.bad.places[row]}: {table.frame[key][row]!r} in column {key!r} "
                "stands for several files, or another row has it, too",
                "write one row with the whole name for each file",
            )
    return key, {name: rows_of_name[0] for name, rows_of_name in rows.items()}


def _rows_of(column: Sequence[object], names: Sequence[str]) -> dict[str, list[int]]:
    """Return the rows that name each file, if any; the longest form of a name that has a row counts."""
    rows_by_cell: dict[str, list[int]] = {}
    for row, cell in enumerate(column):
        rows_by_cell.setdefault(str(with_slashes(str(cell))), []).append(row)
    rows_by_name = {}
    for name in names:
        path = with_slashes(name)
        parts = name.split("|")  # of the id of a protein: sp|P12345|NAME_HUMAN
        for form in (str(path), str(path.with_suffix("")), path.name, path.stem, *parts):
            if form in rows_by_cell:
                rows_by_name.setdefault(name, rows_by_cell[form])
    return rows_by_name
