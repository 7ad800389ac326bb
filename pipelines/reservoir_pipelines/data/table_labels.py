"""Labels in the cells of a table, also of a table (``--labels``) with a row for each file or record."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.file_checks import check_padding
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.columns import EMPTY, MOST, as_texts, listed, require_column, with_slashes
from reservoir_pipelines.data.roles import roles_of_labels
from reservoir_pipelines.data.rows import BadRows
from reservoir_pipelines.data.table import Table, read_table
from reservoir_pipelines.data.values import INT64, read_labels

# A whole number as Python and JSON write it, of at most 19 digits, as int64 has.
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
# A whole number that may also have a plus or zeros in front.
PADDED = re.compile(r"[-+]?[0-9]+")
# A number in any way of writing it.
NUMBER = re.compile(r"[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)
# The cells of `EMPTY` that never are names of classes, in small letters; the others, "na" and "none", may be.
NO_LABEL = ("", "n/a", "nan", "null")
WITH_MARKS = r"[-+]?[0-9][0-9.,]*"  # digits with marks of decimals or thousands


def joined_labels(
    table: Table, names: Sequence[str], options: OwnDataOptions, *, required: bool
) -> np.ndarray:
    """Return the columns ``names`` of labels, (rows,) or (rows, outputs); refuse texts and numbers together.

    If labels are ``required``, a cell without one is a bad row; else its label is None.
    """
    columns = [labels_of(table, name, options, required=required) for name in names]
    kinds = {y.dtype.kind for y in columns}  # NumPy's kinds: U for texts, i for integers
    mixes_texts_and_integers = kinds == {"U", "i"}
    texts_are_numbers = all(are_numbers(y.ravel().tolist()) for y in columns if y.dtype.kind == "U")
    if mixes_texts_and_integers and texts_are_numbers:
        # A column with a cell such as 07 is read as texts, to keep its zero. Columns of whole numbers beside it then
        # become texts, too.
        columns = [y.astype(str) for y in columns]
    elif "U" in kinds and len(kinds) > 1:  # NumPy would make texts of all
        raise InputError(
            f"{table.path}: some of the labels {', '.join(names)} are numbers and some are not",
            "fit one at a time, with --label, and --drop for the others",
        )
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def labels_of(
    table: Table, name: str, options: OwnDataOptions, *, required: bool, role: str = "label"
) -> np.ndarray:
    """Return a column of labels as `typed_labels` does, (rows,) or (rows, n); ``role`` is what messages call a label.

    If labels are ``required``, a cell without a label (see `_are_missing`), or an odd one (see `_odd_labels`), is a bad
    row, and its label 0 or ""; else a missing label is None.
    """
    column = table.frame[name]
    if name in table.integers and column.dtype.kind == "f":
        column = column.astype("Int64")  # pandas' integers that may be missing
    column = column.astype(object)
    cells = table.with_points(column)
    texts = as_texts(cells)
    present = ~_are_missing(texts)
    if required:
        for row in np.flatnonzero(~present):
            written = f" ({texts[row]!r})" if texts[row] else ""
            table.bad.add(row, f"no {role} in column {name!r}{written}")
        _mark_odd_labels(table, name, cells, texts, present, options)
    labels = typed_labels(f"{table.path}, column {name!r}", cells[present].tolist(), options)
    if labels.dtype.kind == "U":
        labels = _as_names(table, name, column[present], labels, options)
    # Give each row of the table an entry again: ``labels`` has those of the present cells only.
    shape = (len(present), *labels.shape[1:])
    # Bad rows keep 0 or "", and are left out later.
    no_row_has_none = required or present.all()
    all_labels = np.zeros_like(labels, shape=shape) if no_row_has_none else np.full(shape, None, object)
    all_labels[present] = labels
    return all_labels


def _are_missing(texts: Any) -> np.ndarray:
    """Return which cells have no label, (rows,) of bool: empty ones, and those that stand for an empty one.

    ``texts`` are the cells as texts. NA and none may be names of classes beside other names, but not beside numbers.
    """
    lower = texts.str.lower()
    is_missing = lower.isin(NO_LABEL).to_numpy()
    is_ambiguous = lower.isin(EMPTY).to_numpy() & ~is_missing
    others_are_numbers = are_numbers(texts[~is_missing & ~is_ambiguous].tolist())
    return is_missing | is_ambiguous if others_are_numbers else is_missing


def _mark_odd_labels(
    table: Table, name: str, cells: Any, texts: Any, present: np.ndarray, options: OwnDataOptions
) -> None:
    """Note rows whose label does not fit to the others as bad, and set ``present`` (rows,) to False there.

    These are labels that `_odd_labels` returns, and integers that do not fit into 64 bits. ``cells`` (rows,) is the
    column ``name``, and ``texts`` the same as texts.
    """
    # Labels that are not finite numbers, as most are.
    for row in np.flatnonzero(present)[_odd_labels(texts[present], options)]:
        table.bad.add(
            row, f"the label {texts[row][:40]!r} in column {name!r} is not a finite number, as most are"
        )
        present[row] = False
    # Whole numbers that are too large for int64, unless labels are read as names or as floats.
    may_be_integers = not options.classes and not options.regression
    if not may_be_integers or not are_numbers(texts[present].tolist()):
        return
    for row in np.flatnonzero(present):
        if is_large(cells[row]):
            table.bad.add(
                row,
                f"the label {texts[row][:40]} in column {name!r} does not fit into 64 bits",
                "pass --classes to read labels as names, or --regression for targets",
            )
            present[row] = False


def _odd_labels(texts: Any, options: OwnDataOptions) -> np.ndarray:
    """Return which labels are not finite numbers although at least half of all labels are, (rows,) of bool.

    No label is odd if fewer than half are finite numbers, or if those that are no numbers may be names of classes
    beside the numbers.
    """
    import pandas as pd

    numbers = np.asarray(pd.to_numeric(texts, errors="coerce"), np.float64)
    is_odd = ~np.isfinite(numbers)
    if not len(is_odd) or is_odd.mean() > MOST:
        return np.zeros_like(is_odd)
    if not np.isnan(numbers).any():  # all are numbers, some of them infinite
        return is_odd
    # Names such as "unknown" beside whole numbers are classes, if the numbers are.
    finite = numbers[~is_odd]
    are_whole = bool((finite % 1 == 0).all())
    are_classes = options.classes or (
        are_whole and not options.regression and read_labels(finite).are_names
    )
    return np.zeros_like(is_odd) if are_classes else is_odd


def _as_names(
    table: Table, name: str, cells_as_written: Any, labels: np.ndarray, options: OwnDataOptions
) -> np.ndarray:
    """Return labels that are texts, (labels,) or (labels, n), as they are written in the cells of the column ``name``.

    Refuse labels such as 1,2 and 1.234,5, which may be numbers, unless ``--classes`` says that they are names.
    """
    texts = [str(label) for label in labels.flat]
    look_like_numbers = all(re.fullmatch(WITH_MARKS, text) for text in texts) and not are_numbers(texts)
    if look_like_numbers and not options.classes:
        other_mark = "." if table.decimal == "," else ","
        raise InputError(
            f"{table.path}, column {name!r}: labels like {cells_as_written.iloc[0]!r} are not numbers "
            f"with the decimal mark {table.decimal!r}",
            f"write numbers, or pass --decimal {other_mark} if they are, or --classes if they are names",
        )
    if table.decimal == ",":  # `Table.with_points` has changed the commas in ``labels`` to points
        return np.array([str(cell).strip() for cell in cells_as_written])
    return labels


def typed_labels(where: str, cells: Sequence[Any], options: OwnDataOptions) -> np.ndarray:
    """Return cells as integers, else as floats, else as texts: (rows,), or (rows, n) for lists of one length.

    Cells that become equal as numbers but are not equal as labels are texts, such as 007 and 7, and
    true and 1. ``where`` names the column for messages.
    """
    # Targets are numbers; other cells are read as labels of any type, and refused later.
    if options.regression:
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(list(cells), np.float64)
    # Cells of a text file.
    if all(isinstance(cell, str) for cell in cells):
        texts = [cell.strip() for cell in cells]
        numbers = written_numbers(texts, classes=options.classes)
        return np.array(texts, str) if numbers is None else numbers
    # Cells with types, of JSON Lines or Parquet. NumPy would make 1 of true, and perhaps floats of integers that do not
    # fit into 64 bits, so that different labels become equal: such labels are texts.
    values = [value for cell in cells for value in _leaves(cell)]
    types = {type(value) for value in values}
    mixes_booleans_and_others = bool in types and len(types) > 1
    has_large = float not in types and any(map(is_large, values))
    become_texts = types <= {bool, int, float, str} and (mixes_booleans_and_others or has_large)
    try:
        array = np.array(list(cells), dtype=str if become_texts else None)
    except (ValueError, OverflowError):
        array = np.empty(0, object)  # lists of different lengths, which are refused below
    if array.dtype.kind not in "biufU":
        has_lists = any(isinstance(cell, list | np.ndarray) for cell in cells)
        columns = "columns y0, y1 ... in place of lists, with 1 in each that applies and 0 in the others"
        raise InputError(
            f"{where}: labels are not all numbers, all texts, or lists of one length",
            f"for several labels per row, give {columns}" if has_lists else "use one form",
        )
    return array


def padded_labels(where: str, labels: Sequence[Sequence[Any]], options: OwnDataOptions) -> np.ndarray:
    """Return labels of all tokens of each row as an array (rows, longest) with zeros at the ends."""
    # The labels of all rows in one list have one type.
    counts = np.array([len(labels_of_row) for labels_of_row in labels], np.int64)
    all_labels = typed_labels(
        where, [label for labels_of_row in labels for label in labels_of_row], options
    )
    if all_labels.ndim != 1:
        raise InputError(f"{where}: a token has a list of labels", "give one label for each")
    check_padding(where, counts, all_labels.dtype.itemsize)
    # A mask fills the array row by row, in the order of the list.
    y = np.zeros((len(counts), counts.max()), all_labels.dtype)
    y[np.arange(counts.max()) < counts[:, None]] = all_labels
    return y


def _leaves(cell: Any) -> Iterator[Any]:
    """Yield the values of nested lists."""
    if not isinstance(cell, list | np.ndarray):
        yield cell
        return
    for inner in cell:
        yield from _leaves(inner)


def is_large(label: object) -> bool:
    """Return whether a label is a whole number that does not fit into 64 bits."""
    # Other types are not whole numbers.
    text = str(label).strip() if isinstance(label, int | str) else ""
    if not PADDED.fullmatch(text):
        return False
    # Count the digits first, because Python refuses to convert thousands of them.
    digits = text.lstrip("+-0")
    has_too_many_digits = len(digits) > len(str(INT64.max))
    return has_too_many_digits or not INT64.min <= int(text) <= INT64.max


def are_numbers(texts: Sequence[str]) -> bool:
    """Return whether each text is a number, in any way of writing it."""
    return all(NUMBER.fullmatch(text) for text in texts)


def is_usual_number(text: str) -> bool:
    """Return whether a text is a whole number as Python and JSON write it: 7 and -3, not 007, +7 or 1.5."""
    return bool(WHOLE.fullmatch(text))


def written_numbers(texts: Sequence[str], *, classes: bool = False) -> np.ndarray | None:
    """Return labels that are written as numbers as integers or floats, (labels,); None if they are texts.

    Whole numbers that are not written as usual (007, +7) make all labels texts, because 007 may differ from 7. Numbers
    with a decimal point or an exponent are floats, but as ``classes`` only if each is written in one way.
    """
    if all(map(is_usual_number, texts)) and not any(map(is_large, texts)):
        return np.array([int(text) for text in texts])
    if not are_numbers(texts):
        return None
    numbers = np.array([float(text) for text in texts])
    if not np.isfinite(numbers).all() or (numbers % 1 != 0).any():
        return numbers  # targets: equal numbers are equal targets, however they are written
    has_unusual = any(PADDED.fullmatch(text) and not is_usual_number(text) for text in texts)
    has_several_ways = classes and len(set(texts)) > len(set(numbers.tolist()))
    return None if has_unusual or has_several_ways else numbers


# ---- a table of labels (--labels)


@dataclass(frozen=True)
class TableLabels:
    """The labels of files or records that a table has.

    Parameters
    ----------
    arrays : dict of str to array (files, ...)
        ``y``, and ``groups`` and ``split`` if the table has them, in the order of the files or records.
    notes : list of str
        Lines for the user on how the table is read.
    """

    arrays: dict[str, np.ndarray]
    notes: list[str]


def labels_path(data: Path, named: str) -> Path:
    """Return the path of the table of labels that ``--labels`` names; refuse a missing one.

    The name is a path, or one within the folder ``data``, or one beside the file ``data``.
    """
    for candidate in (Path(named), data / named, data.parent / named):
        if candidate.is_file():
            return candidate
    raise InputError(f"--labels {named}: no such file", "give a table with a row for each file or record")


def labels_from_table(
    options: OwnDataOptions, names: Sequence[str], bad: BadRows, *, is_new: bool
) -> TableLabels:
    """Return the labels of files or records from the table of ``--labels``; those without a label become bad.

    ``names`` (files,) are the names of the files or records, whose bad ones are noted in ``bad``. New files need a row
    in the table, but no label in it.
    """
    assert options.labels
    # All columns are read as text (``list`` returns all names), because run 007 is not run 7.
    table = read_table(Path(options.labels), list, options.decimal)
    table.bad.skip = bad.skip
    table.bad.readable()  # refuses bad rows unless they may be skipped
    _require_named_columns(table, options, is_new=is_new)

    # Join: one row of the table for each file or record. Those without a row are bad; row 0 takes the place of theirs,
    # and is left out with the bad row.
    key, row_of_name = _join(table, options.id, names, allow_missing=bool(bad.skip) and not is_new)
    for number, name in enumerate(names):
        if name not in row_of_name:
            bad.add(number, f"no row in {table.path.name}")
    joined = table.take([row_of_name.get(name, 0) for name in names])

    # New rows may lack labels and groups, and are not split. An empty mapping of parameters, instead of None, says that
    # rows are new.
    parameters_of_readout: dict[str, str] | None = {} if is_new else None
    roles = roles_of_labels(table, key, bad.where, options, parameters_of_readout)
    split_column = "" if is_new else roles.split
    arrays = {"y": joined_labels(joined, roles.labels, options, required=not is_new)}
    for array, column in (("groups", roles.group), ("split", split_column)):
        if column:  # groups and splits are names, also if they are numbers
            as_names = OwnDataOptions(classes=True)
            role = array.removesuffix("s")
            names_of_rows = labels_of(joined, column, as_names, required=not is_new, role=role)
            # New rows without a group have None, which NumPy cannot sort among texts.
            arrays[array] = names_of_rows.astype(str) if names_of_rows.dtype == object else names_of_rows

    # What is wrong in a row of the table is wrong with its file or record.
    for row, reason in joined.bad.reasons.items():
        bad.add(row, f"{table.path.name}, {joined.bad.places[row]}: {reason}")
    # Note the rows that name no file.
    unused = [str(cell) for cell in table.frame[key].drop(index=[*row_of_name.values()])]
    note = f"labels from {table.path.name}, column {roles.labels[0]!r}, joined by {key!r}"
    if unused:
        note += f"; rows without a file or record are left out ({len(unused):,}): {listed(unused)}"
    return TableLabels(arrays, [note])


def _require_named_columns(table: Table, options: OwnDataOptions, *, is_new: bool) -> None:
    """Refuse columns that the options name and the table of labels does not have; new rows need no groups."""
    columns = {"id": options.id, "label": options.label}
    if not is_new:
        columns["group"] = options.group
    for role, name in columns.items():
        # An option that is not given is None or "", for which `require_column` checks nothing. Its message names the
        # flag if it gets a role. The options of new rows are those of the readout, for which the user gave no flag now:
        # without a role, the message says that the readout was fitted on the column.
        flag = "" if is_new else role
        require_column(table.path, table.names, name, flag)


def _join(
    table: Table, id_column: str | None, names: Sequence[str], *, allow_missing: bool
) -> tuple[str, dict[str, int]]:
    """Return the column that names most files, and the row of each file that it names.

    A cell may have the whole name of a file, or the name without its folder or suffix. ``id_column`` is the column that
    ``--id`` names, if it is given. Every file needs a row; with ``allow_missing``, one file with a row is enough.
    """
    candidates = [id_column] if id_column else table.names
    rows_by_column = {column: _rows_of(table.frame[column], names) for column in candidates}
    best_column = max(rows_by_column, key=lambda column: len(rows_by_column[column]))
    rows_by_name = rows_by_column[best_column]
    missing = [name for name in names if name not in rows_by_name]
    if missing and not (allow_missing and rows_by_name):
        raise InputError(
            f"{table.path}: no row for {missing[0]!r} in column {best_column!r} "
            f"({len(missing):,} of {len(names):,} have none)",
            "add it (predict needs no label in it), or pass --id NAME of another column, or --skip-bad-rows",
        )
    _refuse_ambiguous_rows(table, best_column, rows_by_name)
    return best_column, {name: rows_of_name[0] for name, rows_of_name in rows_by_name.items()}


def _refuse_ambiguous_rows(table: Table, column: str, rows_by_name: Mapping[str, Sequence[int]]) -> None:
    """Refuse a file that several rows name in a column, and a row that names several files."""
    name_of_row: dict[int, str] = {}
    for name, rows_of_name in rows_by_name.items():
        has_several_rows = len(rows_of_name) > 1
        row = rows_of_name[-1]  # the last, so that the message names the repeated row
        row_has_another_file = name_of_row.setdefault(row, name) != name
        if has_several_rows or row_has_another_file:
            problem = "stands in another row, too" if has_several_rows else "stands for several files"
            raise InputError(
                f"{table.path}, {table.bad.places[row]}: {table.frame[column][row]!r} in column {column!r} {problem}",
                "write one row with the whole name for each file",
            )


def _rows_of(column: Sequence[object], names: Sequence[str]) -> dict[str, list[int]]:
    """Return the rows of a ``column`` that name each file; files that no row names are left out.

    A file is looked up by its whole name first, and then by ever shorter forms of it, of which the first that is a cell
    counts.
    """
    rows_by_cell: dict[str, list[int]] = {}
    for row, cell in enumerate(column):
        rows_by_cell.setdefault(str(with_slashes(str(cell))), []).append(row)
    rows_by_name: dict[str, list[int]] = {}
    for name in names:
        path = with_slashes(name)
        protein_ids = name.split("|")  # the id of a protein is sp|P12345|NAME_HUMAN
        forms = (str(path), str(path.with_suffix("")), path.name, path.stem, *protein_ids)
        cell = next((form for form in forms if form in rows_by_cell), None)
        if cell is not None:
            rows_by_name[name] = rows_by_cell[cell]
    return rows_by_name
