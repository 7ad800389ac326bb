"""The rows of a table, and the files that its cells may name; see ``docs/guides/data.md``, "How a table is read"."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.array_axes import notes_on_pixels, read_pixels
from reservoir_pipelines.data.columns import example, filled, listed, names_files, separated, with_slashes
from reservoir_pipelines.data.counters import (
    are_in_order,
    refuse_counters,
    refuse_one_recording,
    refuse_steps_in_time,
)
from reservoir_pipelines.data.media import check_inside, media_rows, table_parts
from reservoir_pipelines.data.one_recording import is_one_recording, likely_window, read_one_recording
from reservoir_pipelines.data.roles import no_label_among, roles_by_cells, roles_by_name
from reservoir_pipelines.data.rows import BadRows, Rows, TextCodes, padded, text_rows
from reservoir_pipelines.data.table import SUFFIXES, Table, read_parts, read_table
from reservoir_pipelines.data.table_forms import (
    TableArrays,
    holds_letters,
    read_long_form,
    read_sequences,
    read_token_labels,
    read_value_columns,
)
from reservoir_pipelines.data.text_labels import (
    holds_spans,
    holds_word_lists,
    read_span_labels,
    read_word_labels,
)

NEEDS_NO_FLAG = {"labels": ("label", "y"), "group": ("groups",)}
"""Names of columns, by role, that a task does not store: new data have them under the same conventional names."""


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether a path is a table, or a folder or pattern of Parquet files that are its parts.

    The Parquet files of a folder are recordings, and no parts, if ``options`` has ``labels``, or if the readout's
    ``task`` has recordings.
    """
    path = Path(origin)
    is_table = path.suffix.lower() in SUFFIXES and path.is_file()
    return is_table or bool(table_parts(path, options, task))


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the rows of a table, or the files that its cells name, with the other columns as labels, ids and so on."""
    # The path of the table. A folder of parts is their pattern, so that cells may name files of this folder.
    path = Path(origin)
    parts = table_parts(path, options, task)
    is_folder_of_parts = bool(parts) and path.is_dir()
    if is_folder_of_parts:
        path /= "*.parquet"
    fitted = task.parameters if task else None

    def columns_of_text(names: list[str]) -> set[str]:
        """Return the columns, among the ``names`` of a table, whose cells stay as they are written."""
        # --drop and --time may name columns of the recordings that a table lists: `_options_of_table` decides.
        return roles_by_name(path, names, _known_columns(options, names), fitted).as_written

    table = read_parts(path, parts) if parts else read_table(path, columns_of_text, options.decimal)
    table.bad.skip = options.skip_bad_rows
    rows = rows_of_table(table, _options_of_table(table, options, fitted), fitted)
    is_unlabelled = task is None and rows.y is None
    if is_folder_of_parts and is_unlabelled:
        raise InputError(
            f"{origin}: Parquet files without a column of labels are recordings, or parts of a table",
            f"give {quote(str(path))} for the parts of a table, or --labels for recordings",
        )
    # Texts may be the names of files, and numbers the pixels of images.
    if isinstance(rows.x, TextCodes) and names_files(path.parent, rows.x.texts):
        rows = _rows_of_files(table, rows, rows.x.texts, options, task)
    rows = read_pixels(str(path), rows, options)
    if task is None:
        rows = replace(rows, notes=(*rows.notes, *notes_on_pixels(rows, options)))
    if is_unlabelled:
        note = f"{no_label_among(table)}; pass --label NAME if one of them is the label"
        rows = replace(rows, notes=(note, *rows.notes))
    notes = (f"a table in {len(parts):,} parts, {parts[0].name} first",) if parts else ()
    # A table has its labels in its own columns, so --labels, a table of labels, does not apply.
    return replace(rows, notes=(*notes, *rows.notes), unused=("labels",))


def _known_columns(options: OwnDataOptions, names: Sequence[str]) -> OwnDataOptions:
    """Return options of which ``--drop`` and ``--time`` name columns among ``names`` only."""
    dropped = [name for name in separated(options.drop) if name in names]
    return replace(options, drop=dropped, time=options.time if options.time in names else None)


def _options_of_table(
    table: Table, options: OwnDataOptions, fitted: Mapping[str, Any] | None
) -> OwnDataOptions:
    """Return the options by which a table is read: if it lists recordings, ``--drop`` and ``--time`` are for these."""
    if fitted is not None or not (options.drop or options.time):
        return options
    roles = roles_by_name(table.path, table.names, _known_columns(options, table.names))
    names = [roles.sequence] if roles.sequence else roles.values
    cells = filled(table.frame[names[0]]).tolist() if len(names) == 1 else []
    lists_recordings = names_files(table.path.parent, cells) == "recordings"
    return replace(options, drop=None, time=None) if lists_recordings else options


def _rows_of_files(
    table: Table, rows: Rows, names: list[str], options: OwnDataOptions, task: Task | None
) -> Rows:
    """Return the files that the cells ``names`` of a table stand for, with the other columns of its ``rows``.

    The files are in the table's folder or below it. A row whose file does not exist is bad.
    """
    folder = table.path.parent
    # The numbers, in the table, of the rows that can be read; the others are missing in ``rows`` already.
    table_rows = np.flatnonzero(table.bad.readable()).tolist()
    bad = table.bad.take(table_rows)
    files = [folder / with_slashes(name) for name in names]
    for row, file in enumerate(files):  # nothing outside the folder is read
        if file.is_file():
            check_inside(file, folder)
        else:
            bad.add(row, f"no file {names[row]!r} in the table's folder")
    bad.readable()  # refuses missing files unless bad rows are skipped
    paths = np.array([str(_path_in(folder, file)) for file in files])
    columns = {"y": rows.y, "groups": rows.groups, "split": rows.split}
    arrays = {name: array for name, array in columns.items() if array is not None}
    arrays["ids"] = paths if rows.ids is None else rows.ids
    media = media_rows(files, arrays, bad, options, task)
    # The times of a table are those of its rows, not of the steps of recordings.
    parameters = {name: value for name, value in rows.parameters.items() if name != "time"}
    return replace(
        media,
        notes=(*rows.notes, *media.notes),
        skipped=rows.skipped | {table_rows[row]: reason for row, reason in media.skipped.items()},
        parameters={**parameters, **media.parameters},
        label=rows.label,
        roles=rows.roles,
    )


def _path_in(folder: Path, file: Path) -> Path:
    """Return the path of a file within the ``folder`` of a table; one that does not exist may stay as it is."""
    if file.is_relative_to(folder):
        return file.relative_to(folder)
    # The table names the file by its full path, but its own path is relative, or has links.
    return file.resolve().relative_to(folder.resolve()) if file.is_file() else file


def columns_as_rows(
    cells: Mapping[str, Sequence[Any]],
    bad: BadRows,
    options: OwnDataOptions,
    fitted: Mapping[str, Any] | None,
    **flags: str | None,
) -> Rows:
    """Return the columns of a file without a header as rows, as if they were those of a table.

    Parameters
    ----------
    cells : mapping of str to sequence (rows,)
        The cells of each column: texts, labels, ids, groups or splits.
    bad : BadRows
        The rows that cannot be read, to which more are added.
    options : OwnDataOptions
        The user's options, of which only ``regression`` and ``classes`` are used.
    fitted : mapping, optional
        Parameters of the readout's task if the rows are new; else None.
    **flags : str, optional
        The names of columns by the option that names them, such as ``text="tokens"``.
    """
    import pandas as pd

    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()})
    table_options: Any = {"regression": options.regression, "classes": options.classes, **flags}
    rows = rows_of_table(Table(Path(bad.where), frame, bad), OwnDataOptions(**table_options), fitted)
    # The names of the columns are not the file's own, so a task stores none, only whether each token has a label.
    parameters = {"each": rows.parameters["each"]} if "each" in rows.parameters else {}
    return replace(rows, parameters=parameters, roles={})


def rows_of_table(table: Table, options: OwnDataOptions, fitted: Mapping[str, Any] | None = None) -> Rows:
    """Return the rows of a table in any form: values, sequences in cells, or several lines per sequence.

    ``fitted`` has the parameters of the readout's task if the rows are new; else it is None.
    """
    roles = roles_by_name(table.path, table.names, options, fitted)
    roles = roles_by_cells(table, roles, options, fitted)
    reading = TableArrays(table, roles, options, fitted)
    _note_roles(reading)
    ids = reading.texts(roles.id) if roles.id else []
    ids_repeat = len(set(ids)) < len(ids)
    # The table is one recording, or long (a line for each step of a sequence), or wide (a row for each sequence).
    # ``steps`` says which row is which step, for new rows of one recording only.
    steps = None
    if is_one_recording(reading):
        steps = read_one_recording(reading)
        skipped = {}  # the result has one row, the recording; bad rows of the table are only missing steps
    elif reading.fitted_parameters.get("long") or _is_long(reading, ids_repeat=ids_repeat):
        skipped = read_long_form(reading)
    else:
        if not reading.is_new:
            window = likely_window(len(table.frame))
            refuse_counters(table, roles, options, window)
            refuse_steps_in_time(table, roles, options)
            refuse_one_recording(table, roles, options, window)
        _read_wide(reading, ids, ids_repeat=ids_repeat)
        readable = table.bad.readable()
        skipped = table.bad.skipped(reading.arrays.get("ids", ()))
        reading.arrays = {name: array[readable] for name, array in reading.arrays.items()}
    return replace(
        _padded(str(table.path), reading.arrays),
        notes=(*reading.notes, *table.bad.notes()),
        parameters=reading.parameters,
        class_names=reading.class_names,
        skipped=skipped,
        label=listed(roles.labels),
        roles=roles.by_flag,
        steps=steps,
    )


def _note_roles(reading: TableArrays) -> None:
    """Store the roles that no flag gave among the parameters of ``reading``, and add notes for the user.

    The task keeps the parameters, and `predict` finds the columns of new rows by them. New rows themselves need neither
    parameters nor notes.
    """
    if reading.is_new:
        return
    roles, options = reading.roles, reading.options
    for name in roles.left_out:
        reading.notes.append(f"the column {name!r} is left out because it has no name")
    # Several labels are not stored: new data have them under the same names y0, y1 ...
    if len(roles.labels) == 1 and not options.label:
        (label,) = roles.labels
        if label not in NEEDS_NO_FLAG["labels"]:
            reading.parameters["label"] = label
            reading.notes.append(f"the column {label!r} is the label")
    # An id is stored whatever its name, because a new table in long form must have a column of exactly this name. The
    # note on it depends on the form of the table, so the function that reads this form adds it.
    if roles.id and not options.id:
        reading.parameters["id"] = roles.id
    if roles.group and not options.group and roles.group not in NEEDS_NO_FLAG["group"]:
        reading.parameters["group"] = roles.group
        reading.notes.append(f"the column {roles.group!r} is the group of each row")


def _is_long(reading: TableArrays, *, ids_repeat: bool) -> bool:
    """Return whether rows with one id are steps of one sequence; refuse repeated ids without times.

    Without a column of times, the rows may be steps in some order, or whole sequences of one group.
    """
    roles, options = reading.roles, reading.options
    path = reading.table.path
    if reading.is_new or not ids_repeat:  # the caller asks the readout's task how new rows are read
        return False
    if roles.sequence:
        # Each row is a whole sequence, but with --id and times the user probably expects rows to be joined.
        if options.id and roles.time and not roles.group:
            raise InputError(
                f"{path}: rows with the same {roles.id!r} are not joined, because {roles.sequence!r} holds sequences",
                f"write names of events as numbers and pass --symbols, or pass --group instead of --id, for example: "
                f"{example(path, options, id=None, group=roles.id)}",
            )
        return False
    if roles.time:
        return True
    command = example(path, options, id=None, group=roles.id)
    raise InputError(
        f"{path}: the column {roles.id!r} repeats the same ids, and no column is called time or timestamp",
        f"pass --time NAME if all rows of an id are one sequence, or --group NAME if each row is one, "
        f"for example: {command}",
    )


def _read_ids(reading: TableArrays, ids: list[str], *, ids_repeat: bool) -> None:
    """Store the ids of rows that are whole sequences, and note which columns are not values.

    Ids that repeat are groups, unless the table has a column of groups.
    """
    roles = reading.roles
    if ids_repeat and not (roles.group or reading.options.group):
        reading.arrays["groups"] = np.array(ids)
        reading.notes.append(f"rows with the same {roles.id!r} are kept in one split")
    if ids:
        unique_ids = [f"{name}#{row}" for row, name in enumerate(ids)] if ids_repeat else ids
        reading.arrays["ids"] = np.array(unique_ids)
    if roles.id and not reading.options.id and not ids_repeat:
        reading.notes.append(
            f"the column {roles.id!r} holds names of the rows, so it is not read as a value"
        )
    if roles.time:
        reading.parameters["time"] = roles.time
        note = f"the column {roles.time!r} is left out, because each row is a whole sequence"
        is_unlabelled_log = not roles.labels and are_in_order(reading.table, roles)
        if is_unlabelled_log and not reading.is_new:
            window = likely_window(len(reading.table.frame))
            note += (
                f"; pass --window {window} if the rows are steps of one recording, or --forecast 6 --label NAME to "
                "forecast a column"
            )
        reading.notes.append(note)


def _read_wide(reading: TableArrays, ids: list[str], *, ids_repeat: bool) -> None:
    """Read a table in which each row is a whole sequence.

    ==============================  ====================================
    the table has                   it is read as
    ==============================  ====================================
    no column of sequences          values in columns, a label per row
    ``--chat``                      conversations, a label per row
    lists of words                  words, a label for each
    labels that are spans           letters, a label for each
    labels as long as the sequence  letters or numbers, a label for each
    any other sequences             letters or numbers, a label per row
    ==============================  ====================================
    """
    roles = reading.roles
    _read_ids(reading, ids, ids_repeat=ids_repeat)
    # In each form, labels are read before sequences, because the first reason why a row is bad counts.
    if not roles.sequence:
        reading.read_labels()
        reading.read_groups_and_split()
        read_value_columns(reading)
        return
    if reading.options.chat:
        reading.read_labels()
        reading.read_groups_and_split()
        read_sequences(reading, roles.sequence, letters=True)
        return
    # New rows are read as those of the fit were: ``labelled_in_fit`` is "word", "span" or "token" if each of these had
    # a label, and None if each row had one, or while a task is made.
    labelled_in_fit = reading.fitted_parameters.get("each")
    words_have_labels = labelled_in_fit == "word" or holds_word_lists(reading.table.frame[roles.sequence])
    if words_have_labels:
        _refuse_span(reading)
        read_word_labels(reading, roles.sequence)
        reading.read_groups_and_split()
        return
    letters = holds_letters(reading, roles.sequence)
    label_cells = [reading.table.frame[name] for name in roles.labels if name in reading.table.frame]
    spans_have_labels = labelled_in_fit == "span" or any(map(holds_spans, label_cells))
    if spans_have_labels:
        _refuse_span(reading)
        label = roles.labels[0] if roles.labels else ""
        reading.class_names = read_span_labels(reading, label, roles.sequence)
        reading.read_groups_and_split()
        read_sequences(reading, roles.sequence, letters=letters)
        return
    one_label_column = len(roles.labels) == 1  # several columns are outputs, which belong to a row
    labels_tokens = one_label_column and read_token_labels(
        reading, roles.labels[0], roles.sequence, letters=letters
    )
    if labels_tokens:
        _refuse_span(reading)
    else:
        reading.read_labels()
    reading.read_groups_and_split()
    read_sequences(reading, roles.sequence, letters=letters)


def _refuse_span(reading: TableArrays) -> None:
    """Refuse a column of spans beside labels of words or tokens: a marked span is pooled as one row."""
    if reading.roles.span:
        raise InputError(
            f"{reading.table.path}: words or tokens have labels, so no span of a row is pooled",
            f"pass --drop {','.join(reading.roles.span)}",
        )


def _padded(where: str, arrays: dict[str, Any]) -> Rows:
    """Return arrays, which are fields of `Rows`, as rows; sequences of several lengths are padded.

    ``x`` is (rows,) of texts, (rows,) of arrays of numbers, or already an array of numbers. It is taken out of
    ``arrays``.
    """
    x = arrays.pop("x")
    holds_objects = x.dtype == object
    if holds_objects and isinstance(x[0], str):
        return text_rows(where, x.tolist(), arrays)
    if holds_objects:
        x, arrays["lengths"] = padded(where, x.tolist())
    return Rows(x=x, **arrays)
