"""Labels as a task stores them, numbered classes or targets of a regression, and the splits of the rows."""

from dataclasses import dataclass, replace

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.options import OwnDataOptions
from reservoir.tasks.rows import HELD_OUT_SHARE, SPLIT_SHARES, grouped, stratified
from reservoir.tasks.task import MISSING, SPLITS, Task
from reservoir_pipelines.data.columns import EMPTY
from reservoir_pipelines.data.rows import MAX_NAMED
from reservoir_pipelines.data.table_labels import are_numbers, is_usual_number
from reservoir_pipelines.data.values import (
    INT64,
    centre_and_spread,
    check_rounding,
    read_labels,
    rounding,
)


@dataclass(frozen=True)
class Labels:
    """Labels as a task stores them.

    Parameters
    ----------
    y : array (rows, readout_tokens, outputs)
        Class numbers (int64) or targets of a regression (float32).
    classes : int
        The number of classes; 0 for targets.
    names : tuple of str or int
        The names of the classes by their numbers; empty if they are called 0, 1, 2, ..., and for targets.
    notes : tuple of str
        Lines for the user on how the labels are read.
    """

    y: np.ndarray
    classes: int
    names: tuple[str | int, ...]
    notes: tuple[str, ...] = ()


WHERE = "name their column with --label, call their array y, give files a folder per class, or a table with --labels"
"""Where the labels of data come from, as a remedy."""


def no_labels(rows: int) -> Labels:
    """Return the labels of rows without any: missing targets."""
    return Labels(np.full((rows, 1, 1), np.nan, np.float32), classes=0, names=())


def require_labels(task: Task, stage: str) -> None:
    """Refuse a task whose rows have no labels, for a stage that needs them."""
    if task.unlabelled:
        raise InputError(
            f"{task.name}: its rows have no labels, which {stage} needs", f"{WHERE}; then extract again"
        )


def classes_by_name(task: Task) -> dict[str, str | int]:
    """Return the classes of a task by their names as folders and headers have them, which are texts.

    Empty unless a row has one label: a folder or a header names no more.
    """
    has_one_label = task.readout_tokens == task.outputs == 1 and not task.labels_each_token
    classes = [task.label(number) for number in range(task.classes)]
    return {str(label): label for label in classes} if has_one_label else {}


def encode_labels(
    where: str,
    y: np.ndarray,
    options: OwnDataOptions,
    label_counts: np.ndarray | None = None,
    label: str = "y",
) -> Labels:
    """Return labels with classes numbered in sorted order; refuse labels that cannot be learnt.

    Parameters
    ----------
    where : str
        The path of the data, for messages.
    y : np.ndarray
        Labels (rows,), (rows, outputs) or (rows, readout_tokens, outputs): integers, floats or texts.
    options : OwnDataOptions
        The user's options, of which ``regression`` and ``classes`` decide how numbers are read.
    label_counts : np.ndarray, optional
        The number of labels of each row, (rows,), if every token has one; ``y`` is then (rows, longest, ...).
    label : str
        What messages call the labels.
    """
    _refuse_other_arrays(where, y, options, label)
    if label_counts is not None:
        return _encode_token_labels(where, y, options, label_counts, label)
    y, note = _read_as(where, y, options, label)
    _refuse_missing(where, y, options, label)
    notes = (note,) if note else ()
    # Of labels (rows,) or (rows, outputs), the axes of one token, and of one output, are missing.
    token_labels = y
    if y.ndim == 1:
        token_labels = y[:, None, None]
    elif y.ndim == 2:
        token_labels = y[:, None]
    if y.dtype.kind == "f":
        targets = _as_float32(where, token_labels, label)
        _refuse_constant(where, targets, label)
        return Labels(targets, classes=0, names=(), notes=notes)
    # Classes are numbered in sorted order, and named unless they are these numbers.
    classes, numbers, row_counts = np.unique(token_labels, return_inverse=True, return_counts=True)
    names = classes.tolist()
    _refuse_names_of_rows(where, y, names, label)
    # In Python, the names False and True equal the numbers 0 and 1.
    are_their_numbers = y.dtype.kind != "b" and names == list(range(len(names)))
    return Labels(
        numbers.reshape(token_labels.shape).astype(np.int64),
        classes=len(names),
        names=() if are_their_numbers else tuple(names),
        notes=(*notes, *_notes_on_classes(y, names, row_counts, options, label)),
    )


def _refuse_other_arrays(where: str, y: np.ndarray, options: OwnDataOptions, label: str) -> None:
    """Refuse an array of labels that is empty, or has a type, a shape or numbers that labels cannot have."""
    are_numbers_or_texts = y.dtype.kind in "biufU"  # NumPy's kinds: booleans, integers, floats and texts
    if not are_numbers_or_texts or not 1 <= y.ndim <= 3 or not y.size:
        raise InputError(
            f"{where}: {label} has the shape {y.shape} and holds {y.dtype} values",
            "give (rows,) or (rows, outputs) of integers or strings, or floats for targets",
        )
    # Numbers of classes are stored as int64.
    if y.dtype.kind == "u" and not options.regression and int(y.max()) > INT64.max:
        raise InputError(
            f"{where}: {label} holds {int(y.max())}, which does not fit into 64 bits with a sign",
            "give names of classes as strings, or pass --regression for targets",
        )


def _encode_token_labels(
    where: str, y: np.ndarray, options: OwnDataOptions, label_counts: np.ndarray, label: str
) -> Labels:
    """Return labels of tokens (rows, longest, ...) as `encode_labels` does; those after a row's end are missing.

    Missing classes are `MISSING`, and missing targets NaN. ``label_counts`` (rows,) are the labels of each row.
    """
    # Encode the labels of all tokens as if each token were a row, and put them back to their places.
    is_token = np.arange(y.shape[1]) < label_counts[:, None]
    labels = encode_labels(where, y[is_token], options, label=label)
    missing = MISSING if labels.classes else np.nan
    padded_y = np.full((*is_token.shape, labels.y.shape[2]), missing, labels.y.dtype)
    padded_y[is_token] = labels.y[:, 0]  # the only token of each of these rows
    return replace(labels, y=padded_y)


def _refuse_missing(where: str, y: np.ndarray, options: OwnDataOptions, label: str) -> None:
    """Refuse the text that NumPy makes of a missing label; tables have left such rows out already."""
    if y.dtype.kind != "U" or options.classes:
        return
    is_missing = (y == "nan").reshape(len(y), -1).any(axis=1)
    if is_missing.any():
        raise InputError(
            f"{where}: {label} is 'nan' in row {int(np.argmax(is_missing))}, as NumPy writes a missing label",
            "remove such rows, or pass --classes if 'nan' is the name of a class",
        )


def _refuse_names_of_rows(where: str, y: np.ndarray, names: list[str | int], label: str) -> None:
    """Refuse labels that are all the same, and texts that are all different, as names of rows are.

    ``names`` are the different labels in ``y``.
    """
    if len(names) == 1:
        raise InputError(
            f"{where}: all labels are the same ({names[0]!r})", "give rows of at least two classes"
        )
    all_differ = len(names) == y.size
    if y.dtype.kind == "U" and all_differ and y.size > 2:
        texts_are_numbers = are_numbers([str(name) for name in names])
        or_regression = ", or pass --regression for numbers" if texts_are_numbers else ""
        raise InputError(
            f"{where}: no two rows have the same label ({names[0]!r}, ...), as if these were names of rows",
            f"name the column of the labels with --label{or_regression}",
        )


def _notes_on_classes(
    y: np.ndarray, names: list[str | int], row_counts: np.ndarray, options: OwnDataOptions, label: str
) -> list[str]:
    """Return notes on classes that may be mistakes; each of the ``names`` has ``row_counts`` (classes,) rows."""
    notes = []
    # Numbers such as 007 made all labels texts.
    if y.dtype.kind == "U" and not options.classes:
        texts = [str(name) for name in names]
        unusual = next((text for text in texts if not is_usual_number(text)), None)
        if unusual and are_numbers(texts):
            notes.append(
                f"{label} read as names of classes, because the number {unusual!r} is not written as usual; "
                "pass --regression for targets"
            )
    notes += [
        f"{label} has a class {name!r}; remove these rows if it stands for a missing label"
        for name in names
        if str(name).strip().lower() in EMPTY
    ]
    of_one_row = [str(name) for name, count in zip(names, row_counts.tolist(), strict=True) if count == 1]
    if of_one_row:
        examples = ", ".join(of_one_row[:MAX_NAMED])
        notes.append(
            f"{label} has classes of one row, which cannot be learnt ({len(of_one_row)}): {examples}"
        )
    # Names that differ only in capitals or spaces: the later ones are compared with the first.
    first_spelling: dict[str, object] = {}
    for name in names:
        first = first_spelling.setdefault(str(name).strip().lower(), name)
        if first != name:
            notes.append(
                f"{label} has the classes {first!r} and {name!r}; spell them the same if they are one"
            )
    return notes


def _read_as(where: str, y: np.ndarray, options: OwnDataOptions, label: str) -> tuple[np.ndarray, str]:
    """Return labels as floats for targets, or as integers or strings for classes, and a note if a rule decided.

    The note is empty if the user's options or the type of the labels decided.
    """
    if options.regression:
        with as_input_error(f"{where}: {label} holds texts", "give numbers, or leave out --regression"):
            return y.astype(np.float64), ""
    if y.dtype.kind == "f":
        return _read_floats(where, y, options, label)
    if options.classes or y.dtype.kind not in "iu":
        return y, ""
    reading = read_labels(y)
    if not reading.are_names:
        note = f"{label} read as targets of a regression ({reading.why}); pass --classes for classes"
        return y.astype(np.float64), note
    # Two numbers are plainly classes, which needs no note, but more may also be marks, counts or ages.
    has_two_numbers = len(np.unique(y)) == 2
    note = f"{label} read as classes ({reading.why}); pass --regression for targets"
    return y, "" if has_two_numbers else note


def _read_floats(where: str, y: np.ndarray, options: OwnDataOptions, label: str) -> tuple[np.ndarray, str]:
    """Return floats as targets, or as classes (integers) if the user asks for them and all are whole; and a note.

    The note says so if whole numbers are read as targets; else it is empty.
    """
    if not np.isfinite(y).all():
        return y, ""  # `_as_float32` refuses such targets, and names the row
    are_whole = bool((y % 1 == 0).all())
    if options.classes and not are_whole:
        raise InputError(f"{where}: {label} holds numbers that are not whole", "leave out --classes")
    if options.classes:
        return y.astype(np.int64), ""
    if not are_whole:
        return y, ""
    return (
        y,
        f"{label} holds whole numbers as floats, read as targets of a regression; pass --classes for classes",
    )


def _as_float32(where: str, y: np.ndarray, label: str) -> np.ndarray:
    """Return targets (rows, readout_tokens, outputs) as float32; refuse infinite ones and large rounding errors."""
    with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, and is refused
        stored = y.astype(np.float32)
    if not np.isfinite(stored).all():
        row, token, output = (int(index) for index in np.argwhere(~np.isfinite(stored))[0])
        raise InputError(
            f"{where}: {label} is {y[row, token, output]} in row {row}, which is not a finite float32 number",
            "remove the row, or rescale the labels",
        )
    outputs = y.shape[2]
    errors = rounding(y.reshape(-1, outputs), stored.reshape(-1, outputs))
    check_rounding(where, [errors], label)
    return stored


def _refuse_constant(where: str, targets: np.ndarray, label: str) -> None:
    """Refuse targets (rows, readout_tokens, outputs) of which an output is the same everywhere."""
    by_token = targets.reshape(-1, targets.shape[2])  # (tokens of all rows, outputs)
    is_constant = (by_token == by_token[0]).all(axis=0)
    if not is_constant.any():
        return
    output = int(np.argmax(is_constant))
    which, remedy = "all labels", "give rows with different labels"
    if len(is_constant) > 1:
        which, remedy = f"all values of output {output} of {label}", "leave the output out"
    raise InputError(f"{where}: {which} are the same ({by_token[0, output]:g})", remedy)


MAX_DISTANCE = 100
"""Largest usual distance of a target from the median, in median distances: beyond it, a number may be mistyped."""


def notes_on_outliers(targets: np.ndarray, row_names: np.ndarray, label: str) -> list[str]:
    """Return a line on the target that is farthest from the others, if it is so far that it may be a mistake.

    ``targets`` (rows, readout_tokens, outputs) are NaN if they are missing, and ``row_names`` are (rows,).
    """
    notes = []
    for output in range(targets.shape[2]):
        of_output = targets[:, :, output].astype(np.float64)
        centre, spread = centre_and_spread(of_output.reshape(-1, 1))[:, 0]
        distances = np.nan_to_num(np.abs(of_output - centre))
        row, token = np.unravel_index(distances.argmax(), distances.shape)
        if 0 < MAX_DISTANCE * spread < distances[row, token]:
            low, high = np.nanquantile(of_output, [0.25, 0.75])
            notes.append(
                f"{label} is {of_output[row, token]:g} in row {row_names[row]}, but half of all targets are between "
                f"{low:g} and {high:g}; if it is a mistake, repair or remove the row"
            )
    return notes[:1]  # the outputs of a forecast are the same numbers, shifted


# ---- splits


SPLIT_NAMES = {
    **dict.fromkeys(["train", "training"], "train"),
    **dict.fromkeys(["valid", "val", "validation", "dev"], "valid"),
    **dict.fromkeys(["test", "testing"], "test"),
}
"""Names of splits in folders, columns and datasets, in lower case, and the name of each split in this program."""


def split_rows(
    where: str, labels: Labels, split: np.ndarray | None, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return the split of each row, (rows,) of str: train, valid or test.

    Without ``split`` a hash of the number of the row, stratified by class, divides the rows 60/20/20, or whole groups
    are divided as evenly as possible. If ``split`` has no "valid", that is a tenth of "train".

    Parameters
    ----------
    where : str
        The path of the data, for messages.
    labels : Labels
        The labels of the rows.
    split : array (rows,), optional
        The split of each row as the data have it.
    groups : array (rows,), optional
        The group (patient, machine) of each row; no group may be in two splits.
    """
    # The class of a row is that of its first token; targets are all of one class, so they are not stratified.
    classes = labels.y[:, 0, 0] if labels.classes else np.zeros(len(labels.y), np.int64)

    def divide(rows: np.ndarray, shares: dict[str, float]) -> np.ndarray:
        """Return the split of each of the ``rows`` (n,), by their numbers, with a share of them for each split."""
        if groups is None:
            return stratified(classes[rows], shares)
        return grouped(groups[rows], classes[rows], shares)

    if split is None:
        names = divide(np.arange(len(classes)), SPLIT_SHARES)
        # With two or three rows in every class, rounding leaves a split empty: 60% and 80% of three rows are two.
        is_classified = groups is None and labels.classes > 1 and np.bincount(classes).min() > 1
        if is_classified and len(np.unique(names)) < len(SPLITS):
            names = stratified(classes, SPLIT_SHARES, spread=True)
    else:
        names = _known_splits(where, split)
        if "valid" not in names:
            train = np.flatnonzero(names == "train")
            shares = {"train": 1 - HELD_OUT_SHARE, "valid": HELD_OUT_SHARE}
            names[train] = divide(train, shares)
            # If no class has enough rows to hold out a tenth of them, hold out a tenth of all rows.
            if "valid" not in names and groups is None:
                names[train] = stratified(np.zeros(len(train), np.int64), shares)
    _refuse_empty_splits(where, names, labels.classes, groups)
    if groups is not None:
        _refuse_divided_groups(where, groups, names)
    return names


def _known_splits(where: str, split: np.ndarray) -> np.ndarray:
    """Return the split of each row as train, valid or test, (rows,) of str; refuse any other name."""
    # Texts are cut to 16 letters, which is more than any name of a split has, so that the message is short.
    written = np.asarray(split).astype("U16")
    names = np.array([SPLIT_NAMES.get(name.lower(), name) for name in written.tolist()])
    is_unknown = ~np.isin(names, SPLITS)
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        raise InputError(f"{where}: split is {str(names[row])!r} in row {row}", "give train, valid or test")
    return names


def _refuse_empty_splits(where: str, names: np.ndarray, classes: int, groups: np.ndarray | None) -> None:
    """Refuse rows, or whole groups of rows, of which none is in one of the splits.

    ``names`` (rows,) are the splits of the rows; ``classes`` is the number of classes, 0 for targets.
    """
    if groups is None:
        rows, more = f"{len(names)} rows", "rows"
    else:
        rows = f"rows of the {len(np.unique(groups))} groups"
        more = "groups (recordings, if --window cuts them)"
    of_classes = f" of each of the {classes} classes" if classes else ""
    for name in SPLITS:
        if name not in names:
            raise InputError(
                f"{where}: none of the {rows} is for the split {name!r}", f"give more {more}{of_classes}"
            )


def _refuse_divided_groups(where: str, groups: np.ndarray, names: np.ndarray) -> None:
    """Refuse groups (rows,) with rows in several splits; ``names`` (rows,) are the splits of the rows."""
    split_of_group: dict[str, str] = {}
    for group, name in zip(groups.tolist(), names.tolist(), strict=True):
        first = split_of_group.setdefault(group, name)
        if first != name:
            raise InputError(
                f"{where}: group {group!r} has rows in {first} and {name}", "leave out split, or groups"
            )
