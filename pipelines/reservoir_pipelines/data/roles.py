"""The role of each column of a table. ``docs/guides/data.md``, "How a table is read", documents the rules.

A role comes from a flag, else from a column's conventional name, else from being the only column left.
Whatever these rules leave open is refused, with the command that decides it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.columns import (
    MOST,
    as_texts,
    example,
    filled,
    holds_chats,
    holds_lists,
    holds_sequences,
    holds_single_numbers,
    listed,
    may_separate_thousands,
    names_files,
    require_column,
    separated,
)
from reservoir_pipelines.data.table import NO_NAME, Table
from reservoir_pipelines.data.values import read_labels

CONVENTIONAL = {
    "label": ("label", "target", "class", "y", "ner_tags", "tags"),
    "id": ("id",),
    "group": ("group", "groups", "subject", "patient"),
    "time": ("time", "timestamp"),
    "split": ("split",),
    "text": ("x", "sequence", "text", "tokens", "words"),
}
"""Conventional names of the columns of each role, in lower or upper case; a role is called like its flag."""

LESS_USUAL = ("tokens", "words", "ner_tags", "tags")
"""Conventional names that count only if no other conventional name of their role is there: they also name values."""

OUTPUT = re.compile(r"y\d+", re.IGNORECASE)
"""Conventional names of the labels of a task with several outputs."""

INDEX_NAME = re.compile(rf"{NO_NAME}\d+|__index_level_\d+__")
"""Names that pandas gives to a column without a name, and to the index that it writes into Parquet files."""

CHATS = ("messages", "conversation", "conversations", "chat")
"""Conventional names of the column of chats, with the flag ``--chat``."""

TIMES = ("time", "timestamp", "date", "datetime", "year")
"""Conventional names of the column of times of a series, in lower or upper case."""

SPAN = "span"
"""The conventional name of a column of spans, [start, end], beside a column of texts."""

STARTS_LIKE_A_NUMBER = r"[-+.,]?\d"
"""Matches the beginning of a cell that is a number, a list of numbers, a date, or a number with a unit."""


@dataclass(frozen=True)
class Roles:
    """The columns of a table by role; "" or an empty tuple if no column has the role.

    Parameters
    ----------
    labels : tuple of str
        The label, or the labels of several outputs.
    id, group, time, split : str
        What names each row, its group, its time, and its split.
    sequence : str
        The column whose cells are whole sequences.
    span : tuple of str
        A column of lists [start, end], or the columns of the start and of the end.
    values : tuple of str
        All columns without another role, in their order.
    left_out : tuple of str
        The columns without a name, which are not read.
    """

    labels: tuple[str, ...] = ()
    id: str = ""
    group: str = ""
    time: str = ""
    split: str = ""
    sequence: str = ""
    span: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def by_flag(self) -> dict[str, str]:
        """The columns by the flag that would name them, such as ``{"label": "class"}``."""
        label = self.labels[0] if len(self.labels) == 1 else ""  # no flag names several outputs
        flags = {
            "label": label,
            "id": self.id,
            "time": self.time,
            "group": self.group,
            "text": self.sequence,
            "span": ",".join(self.span),
        }
        return {flag: name for flag, name in flags.items() if name}

    @property
    def as_written(self) -> set[str]:
        """The columns whose cells stay texts when a table is read, because 007 and 7 are two labels."""
        named = {*self.labels, self.id, self.group, self.split, self.sequence, *self.span} - {""}
        may_be_sequence = len(self.values) == 1  # the only column of values, which `roles_by_cells` decides
        return named | {*self.values} if may_be_sequence else named


def roles_by_name(
    path: Path,
    names: Sequence[str],
    options: OwnDataOptions,
    fitted: Mapping[str, Any] | None = None,
    data: str = "",
    *,
    may_have_spans: bool = True,
) -> Roles:
    """Return the roles that flags and conventional names give; beside a sequence, the only other column is the label.

    Parameters
    ----------
    path : Path
        The table, for messages.
    names : sequence of str
        The names of its columns.
    options : OwnDataOptions
        The user's options, or those of the readout.
    fitted : mapping, optional
        For new data, the parameters of the readout's task. Its columns of values keep their role, and columns of
        labels, ids and groups may be missing.
    data : str
        The path of the data if the table has their labels only; else empty.
    may_have_spans : bool
        Whether a column called ``span`` may be one of spans.
    """
    is_new = fitted is not None
    columns = _without_dropped(path, names, options, required=not is_new)
    spans = tuple(separated(options.span))
    flags = _columns_of_flags(path, columns, spans, options, is_new=is_new)
    left_out = tuple(name for name in columns if INDEX_NAME.fullmatch(name) and name not in flags.values())

    # The candidates for each role. A column that a flag or the readout has given a role has no other role by its name.
    values = _values_of_readout(fitted)
    with_role = {*flags.values(), *spans, *values, *left_out}
    free = [name for name in columns if name not in with_role]
    candidates = {role: [name] if name else conventional(role, free) for role, name in flags.items()}
    if options.chat and not flags["text"]:
        candidates["text"] = _chats(path, free)
    if values:
        candidates["text"] = []  # the readout reads values, so no column is a sequence
    # Columns y0, y1 ... are labels, unless a flag names the label. Beside them, names such as "tags" name values.
    outputs = [] if flags["label"] else [name for name in free if OUTPUT.fullmatch(name)]
    if outputs:
        candidates["label"] = [name for name in candidates["label"] if name.lower() not in LESS_USUAL]
    if not is_new:
        _refuse_collisions(path, options, candidates, outputs, data)

    # One column for each role; y0, y1 ... are labels if no column is the label. All other columns are values.
    labels = candidates.pop("label")[:1] or outputs
    by_role = {role: matches[0] if matches else "" for role, matches in candidates.items()}
    sequence = by_role.pop("text")
    if sequence and may_have_spans and not is_new and not options.chat:
        spans = spans or tuple(name for name in free if name.lower() == SPAN)[:1]
    taken = {*labels, *by_role.values(), sequence, *spans, *left_out}
    others = [name for name in columns if name not in taken]
    # Beside a sequence, the only column left is the label.
    if not is_new and sequence and not labels and len(others) == 1:
        labels, others = others, []
    return Roles(
        tuple(labels), sequence=sequence, span=spans, values=tuple(others), left_out=left_out, **by_role
    )


def _columns_of_flags(
    path: Path, columns: Sequence[str], spans: Sequence[str], options: OwnDataOptions, *, is_new: bool
) -> dict[str, str]:
    """Return the column that a flag names for each role of `CONVENTIONAL`; "" without a flag.

    Refuse a column that is not among ``columns``, and two flags that name one; ``spans`` are the columns of ``--span``.
    New data must only have the sequence and its spans.
    """
    flags = {role: getattr(options, role, None) or "" for role in CONVENTIONAL}  # a split has no flag
    for role, name in flags.items():
        if not is_new:
            require_column(path, columns, name, role)
        elif role == "text":
            require_column(path, columns, name)
    for name in spans:
        require_column(path, columns, name, "" if is_new else "span")
    named = [*filter(None, flags.values()), *spans]
    if not is_new and len({*named}) < len(named):
        raise InputError(f"{path}: two flags name one column ({listed(named)})", "name a column for each")
    return {role: name if name in columns else "" for role, name in flags.items()}


def _chats(path: Path, names: Sequence[str]) -> list[str]:
    """Return the columns with conventional names of chats, the most usual first; refuse a table without one."""
    chats = [name for usual in CHATS for name in names if name.lower() == usual]
    if not chats:
        raise InputError(
            f"{path}: no column is called {listed(CHATS)} among {listed(names)}",
            "pass --text NAME, the column of messages",
        )
    return chats


def roles_by_cells(
    table: Table, roles: Roles, options: OwnDataOptions, fitted: Mapping[str, Any] | None = None
) -> Roles:
    """Return the ``roles`` of `roles_by_name`, corrected by a look at the cells; refuse what these leave open.

    A column ``x`` of single numbers is a value, and the only column of values may hold sequences. ``fitted`` has the
    parameters of the readout's task if the table is new.
    """
    if not options.chat:
        _refuse_chats(table, roles, options)
    # A column called "span" that holds other cells than lists has no role by its name. The spans of a new table need no
    # such look: they are the readout's, which ``options.span`` names.
    has_span_by_convention = fitted is None and bool(roles.span) and not options.span
    if has_span_by_convention and not _holds_span_lists(table.frame[roles.span[0]]):
        roles = roles_by_name(table.path, table.names, options, may_have_spans=False)
    _refuse_words_beside_text(table, roles, options, fitted)
    # These names also stand for numbers: a coordinate, or how many tokens or words there are.
    has_ambiguous_name = roles.sequence.lower() in ("x", "tokens", "words")
    is_named_by_flag = roles.sequence == options.text
    if has_ambiguous_name and not is_named_by_flag and holds_single_numbers(table, roles.sequence):
        values = tuple(name for name in table.names if name in {*roles.values, roles.sequence})
        roles = replace(roles, sequence="", values=values)
    elif not roles.sequence and len(roles.values) == 1 and not _values_of_readout(fitted):
        # The only column of values holds sequences, unless its cells are single numbers. (A column that a readout was
        # fitted on as values keeps that role in a new table, whatever its cells are.)
        (name,) = roles.values
        if not holds_single_numbers(table, name):
            _refuse_odd_sequences(table, name, options)
            roles = replace(roles, sequence=name, values=())
    if fitted is None and not roles.labels:  # new tables need no labels
        _refuse_forgotten_label(table, roles, options)
    return roles


def _refuse_chats(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse a column of values or sequences that holds chats, which are only read with ``--chat``."""
    for name in (*roles.values, *filter(None, [roles.sequence])):
        if holds_chats(table.frame[name]):
            raise InputError(
                f"{table.path}: the cells of {name!r} are lists of messages with roles",
                f"pass --chat to read them as chats, for example: {example(table.path, options, chat=True)}",
            )


def _refuse_words_beside_text(
    table: Table, roles: Roles, options: OwnDataOptions, fitted: Mapping[str, Any] | None
) -> None:
    """Refuse a text beside a column of lists of words if the labels are lists, which may be those of the words."""
    if fitted is not None or options.text or not roles.sequence:
        return
    word_lists = [name for name in conventional("text", roles.values) if holds_lists(table.frame[name])]
    labels_are_lists = any(holds_lists(table.frame[label]) for label in roles.labels)
    if word_lists and labels_are_lists:
        names = listed([roles.sequence, *word_lists])
        raise InputError(
            f"{table.path}: the columns {names} all have conventional names of the sequence",
            f"pass --text NAME, for example: {example(table.path, options, text=word_lists[0])}",
        )


def _holds_span_lists(column: Any) -> bool:
    """Return whether a cell of a column is a list, or all filled ones are texts of lists, as those of spans are."""
    cells = filled(column).tolist()
    has_lists = any(isinstance(cell, list | np.ndarray) for cell in cells)  # other cells are bad rows
    return has_lists or all(isinstance(cell, str) and cell.lstrip().startswith("[") for cell in cells)


def _refuse_forgotten_label(table: Table, roles: Roles, options: OwnDataOptions) -> None:
    """Refuse a table without a column of labels if a column may be the label.

    Only rows that hold a sequence alone, or values alone, may have no label.
    """
    has_values_beside_sequence = bool(roles.sequence) and bool(roles.values)
    # If every row has more cells than the header has names, as `read_table` notes, the label's name may be missing.
    header_is_short = len(table.bad.reasons) == len(table.frame)
    values = [name for name in roles.values if not holds_lists(table.frame[name])]
    texts = [name for name in values if not holds_single_numbers(table, name)]
    if texts or has_values_beside_sequence or header_is_short:
        may_be_series = not (roles.sequence or roles.group or options.window)
        refuse_unlabelled(table, roles.values, options, may_be_series=may_be_series)
    # A few whole numbers among numbers with decimals may be classes. The kinds are NumPy's: b, i and u are booleans and
    # integers, f are floats.
    kinds = {name: table.frame[name].dtype.kind for name in values}
    whole = [name for name, kind in kinds.items() if kind in "biu"]
    like_classes = [name for name in whole if read_labels(table.frame[name].to_numpy()).are_names]
    has_decimals = "f" in kinds.values()
    if like_classes and has_decimals and not options.values:
        command = example(table.path, options, label=_likely_labels(table, like_classes)[0])
        raise InputError(
            f"{table.path}: {no_label_among(table)}, but {listed(like_classes)} may be classes (few whole numbers)",
            f"pass --label NAME if one is the label, or --values if all are values, for example: {command}",
        )


def roles_of_labels(
    table: Table, key: str, data: str, options: OwnDataOptions, fitted: Mapping[str, Any] | None = None
) -> Roles:
    """Return the roles of the columns of a table that has the labels of ``data``; refuse one without labels.

    ``key`` is the column that names the files or records of ``data``. ``fitted`` has the parameters of the readout's
    task if these are new.
    """
    # The other flags name columns of the data, not of this table.
    options = replace(options, id=key, time=None, text=None, drop=None)
    roles = roles_by_name(table.path, table.names, options, fitted, data)
    if not roles.labels and len(roles.values) == 1:
        return replace(roles, labels=roles.values, values=())
    if not roles.labels:
        refuse_unlabelled(table, roles.values, options, data)
    return roles


def conventional(role: str, names: Sequence[str]) -> list[str]:
    """Return the names that are conventional for a role, in the order of `CONVENTIONAL`.

    Those of `LESS_USUAL` are returned only if there is no other.
    """
    matches = [name for name in names if name.lower() in CONVENTIONAL[role]]
    matches = [name for name in matches if name.lower() not in LESS_USUAL] or matches
    return sorted(matches, key=lambda name: CONVENTIONAL[role].index(name.lower()))


def _values_of_readout(fitted: Mapping[str, Any] | None) -> list[str]:
    """Return the columns of values of the table that a readout was fitted on; empty without such a readout."""
    if not fitted:
        return []
    # The columns of recordings are those of each file, not of a table.
    return [] if fitted.get("recordings") else fitted.get("columns", [])


def _without_dropped(
    path: Path, names: Sequence[str], options: OwnDataOptions, *, required: bool
) -> list[str]:
    """Return the names without those of ``--drop``; if these are ``required``, refuse one that is missing."""
    dropped = separated(options.drop)
    if required:
        for name in dropped:
            require_column(path, names, name, "drop")
    return [name for name in names if name not in dropped]


def _refuse_collisions(
    path: Path,
    options: OwnDataOptions,
    candidates: Mapping[str, list[str]],
    outputs: Sequence[str],
    data: str,
) -> None:
    """Refuse a role with two ``candidates``, columns with its conventional names.

    Several ``outputs`` y0, y1 ... are not a collision, but outputs beside another label are. ``data`` is the path of
    the data if the table has their labels only.
    """
    for role, matches in candidates.items():
        columns = [*matches, *outputs] if role == "label" and matches else matches
        if len(columns) < 2:
            continue
        # The flag of the role names its column, but a split has no flag.
        has_flag = role != "split"
        changes = {role: columns[0]} if has_flag else {}
        flags = f"pass --{role} NAME" if has_flag else "pass --drop NAME"
        # Without --drop, the other columns of a table would be read as values.
        if not data:
            changes["drop"] = ",".join([*separated(options.drop), *columns[1:]])
            if has_flag:
                flags += ", and --drop the others if they are not values"
        role_name = "sequence" if role == "text" else role
        raise InputError(
            f"{path}: the columns {listed(columns)} all have conventional names of the {role_name}",
            f"{flags}, for example: {example(data or path, options, **changes)}",
        )


def refuse_unlabelled(
    table: Table,
    candidates: Sequence[str],
    options: OwnDataOptions,
    data: str = "",
    *,
    may_be_series: bool = False,
) -> NoReturn:
    """Refuse a table without a column of labels, with the command that names one of the ``candidates``.

    Times are none of them. ``data`` is the path of the data if the table has their labels only. ``may_be_series`` says
    whether the rows may be the steps of a series: if they have times and targets, the command forecasts these.
    """
    problem = f"{table.path}: {no_label_among(table)}"
    has_times = any(name.lower() in TIMES for name in table.names)
    candidates = [name for name in candidates if name.lower() not in TIMES]
    if not candidates:
        raise InputError(problem, "add a column of labels, and pass --label NAME")
    likely = _likely_labels(table, candidates)
    name = "NAME" if len(likely) == 1 else f"NAME (probably one of {listed(likely)})"
    remedy, changes = f"pass --label {name}", {}
    if may_be_series and has_times and holds_targets(table, likely[0]):
        remedy += ", and --forecast 6 to forecast it from the steps before"
        changes["forecast"] = 6
    # Several columns of 0 and 1, or of few other numbers, may all be labels.
    hold_few_numbers = all(
        holds_single_numbers(table, name) and not holds_targets(table, name) for name in candidates
    )
    if len(candidates) > 1 and hold_few_numbers:
        remedy += f", or rename {listed(candidates)} to y0, y1 ... if each row has several labels"
    command = example(data or table.path, options, label=likely[0], **changes)
    raise InputError(problem, f"{remedy}, for example: {command}")


def holds_targets(table: Table, name: str) -> bool:
    """Return whether a column holds so many different numbers that they are no classes, also if it is read as texts."""
    import pandas as pd

    if not holds_single_numbers(table, name):
        return False
    cells: Any = pd.to_numeric(table.with_points(as_texts(table.frame[name])), errors="coerce")
    return not read_labels(cells.dropna().to_numpy(np.float64)).are_names


def no_label_among(table: Table) -> str:
    """Return the part of a message that says that a table has no column of labels."""
    return f"no column is called label, target, class or y among {listed(table.names)}"


def _likely_labels(table: Table, candidates: Sequence[str]) -> list[str]:
    """Return the candidates that look like classes, with fewest different cells first; of equal ones, later ones first.

    Among three candidates or more, only texts look like classes, if there are any.
    """
    frame = table.frame
    without_lists = [name for name in candidates if not holds_lists(frame[name])] or candidates
    texts = [name for name in without_lists if not holds_single_numbers(table, name)]
    likely = texts if texts and len(candidates) > 2 else without_lists
    # Sorting keeps the order of equal counts, which is that of the columns from the right.
    different_cells = {name: frame[name].astype(str).nunique() for name in reversed(likely)}
    return sorted(different_cells, key=different_cells.__getitem__)


def _refuse_odd_sequences(table: Table, name: str, options: OwnDataOptions) -> None:
    """Refuse a column that no flag or name makes a sequence if most cells are numbers with units, marks or dates.

    ``1,037`` may be one number or two, and ``1.2 mV`` is not a word. Lists of numbers without commas are accepted.
    """
    column = table.frame[name]
    if holds_lists(column) or names_files(table.path.parent, filled(column)):
        return
    # Cells of which most start otherwise are letters or words.
    texts = as_texts(filled(column))
    starts_like_number = texts.str.match(STARTS_LIKE_A_NUMBER)
    if starts_like_number.mean() <= MOST:
        return
    # Lists of numbers separated by spaces or semicolons can be read in one way only. In 1,037 the comma may separate
    # two numbers, be a decimal mark, or separate thousands.
    has_commas = texts.str.contains(",").any()
    are_number_lists = holds_sequences(column)
    if are_number_lists and not has_commas:
        return
    # If every comma may separate thousands, the message has no example, which would choose what a comma means.
    first_cell = texts[starts_like_number].iloc[0][:40]
    if table.decimal == "." and has_commas and may_separate_thousands(column):
        raise InputError(
            f"{table.path}: the comma of cells of {name!r} such as {first_cell!r} may separate thousands",
            f"remove such commas, or pass --decimal , if they are decimal marks, or --text {quote(name)} for sequences",
        )
    # If some cells are like 1,5, all may be decimals or sequences, else only sequences.
    flags = f"--text {quote(name)} for sequences"
    changes = {"text": name}
    if table.decimal == "." and texts.str.fullmatch(r"[-+]?\d*,\d+").any():
        flags = f"--decimal , for decimals, or {flags}"
        changes = {"decimal": ","}
    raise InputError(
        f"{table.path}: cells of {name!r} such as {first_cell!r} are neither single numbers nor letters",
        f"write one number in each, or pass {flags}, for example: {example(table.path, options, **changes)}",
    )
