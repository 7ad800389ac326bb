"""Labels as a task stores them, numbered classes or targets of a regression, and the splits of the rows."""

from dataclasses import dataclass, replace

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.options import OwnDataOptions
from reservoir.tasks.rows import HELD_OUT, SHARES, grouped, stratified
from reservoir.tasks.task import MISSING, SPLITS, Task
from reservoir_pipelines.data.columns import EMPTY
from reservoir_pipelines.data.rows import MAX_NAMED
from reservoir_pipelines.data.table_labels import are_numbers, is_usual_number
from reservoir_pipelines.data.values import (
    INT64,
    check_rounding,
    read_labels,
    rounding,
)


@dataclass(frozen=True)
class Labels:
    """Labels as a task stores them: class numbers (int64) or targets (float32), (rows, readout_tokens, outputs)."""

    y: np.ndarray
    classes: int  # 0 for targets
    names: tuple[str | int, ...]  # names of the classes; empty if they are 0, 1, 2, ...
    notes: tuple[str, ...] = ()


WHERE = "name their column with --label, call their array y, give files a folder per class, or a table with --labels"
"""Where the labels of data come from, as a remedy."""


def no_labels(rows: int) -> Labels:
    """Return the labels of rows without any: missing targets."""
    return Labels(np.full((rows, 1, 1), np.nan, np.float32), 0, ())


def require_labels(task: Task, stage: str) -> None:
    """Refuse a task whose rows have no labels, for a stage that needs them."""
    if task.unlabelled:
        raise InputError(
            f"{task.name}: its rows have no labels, which {stage} needs", f"{WHERE}; then extract again"
        )


def encode_labels(
    where: str, y: np.ndarray, options: OwnDataOptions, units: np.ndarray | None = None, label: str = "y"
) -> Labels:
    """Return labels with classes numbered in sorted order.

    Parameters
    ----------
    where : str
        The path of the data, for messages.
    y : np.ndarray
        Labels (rows,), (rows, outputs) or (rows, readout_tokens, outputs): integers, floats or texts.
    options : OwnDataOptions
        The user's options, of which ``regression`` and ``classes`` decide how numbers are read.
    units : np.ndarray, optional
        The number of labels of each row, (rows,), if every token has one.
    label : str
        What messages call the labels.
    """
    if y.dtype.kind not in "biufU" or not 1 <= y.ndim <= 3 or not y.size:
        raise InputError(
            f"{where}: {label} has the shape {y.shape} and holds {y.dtype} values",
            "give (rows,) or (rows, outputs) of integers or strings, or floats for targets",
        )
    if y.dtype.kind == "u" and not options.regression and int(y.max()) > INT64.max:
        raise InputError(
            f"{where}: {label} holds {int(y.max())}, which does not fit into 64 bits with a sign",
            "give names of classes as strings, or pass --regression for targets",
        )
    if units is not None:
        return _encode_token_labels(where, y, options, units, label)
    y, note = _read_as(where, y, options, label)
    _refuse_missing(where, y, options, label)
    notes = (note,) if note else ()
    # (rows,) is one output of one token, (rows, outputs) are those of one token.
    shaped = y[:, None, None] if y.ndim == 1 else y[:, None] if y.ndim == 2 else y
    if y.dtype.kind == "f":
        targets = _as_float32(where, shaped, label)
        _refuse_constant(where, targets, label)
        return Labels(targets, 0, (), notes)
    # Classes are numbered in sorted order, and named unless they are these numbers.
    classes, numbers, counts = np.unique(shaped, return_inverse=True, return_counts=True)
    names = classes.tolist()
    _refuse_names_of_rows(where, y, names, label)
    counted_from_zero = y.dtype.kind != "b" and names == list(range(len(names)))
    return Labels(
        numbers.reshape(shaped.shape).astype(np.int64),
        len(names),
        () if counted_from_zero else tuple(names),
        (*notes, *_notes_on_classes(y, names, counts, options, label)),
    )


def _encode_token_labels(
    where: str, y: np.ndarray, options: OwnDataOptions, units: np.ndarray, label: str
) -> Labels:
    """Return labels of tokens (rows, longest, outputs); those after the end of a row are marked as missing."""
    is_token = np.arange(y.shape[1]) < units[:, None]
    labels = encode_labels(where, y[is_token], options, None, label)
    missing = MISSING if labels.classes else np.nan
    padded_y = np.full((*is_token.shape, labels.y.shape[2]), missing, labels.y.dtype)
    padded_y[is_token] = labels.y[:, 0]
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
    """Refuse labels that are all the same, and texts that are all different, as names of rows are."""
    if len(names) == 1:
        raise InputError(
            f"{where}: all labels are the same ({names[0]!r})", "give rows of at least two classes"
        )
    if y.dtype.kind == "U" and len(names) == y.size > 2:
        numbers = are_numbers([str(name) for name in names])
        or_regression = ", or pass --regression for numbers" if numbers else ""
        raise InputError(
            f"{where}: no two rows have the same label ({names[0]!r}, ...), as if these were names of rows",
            f"name the column of the labels with --label{or_regression}",
        )


def _notes_on_classes(
    y: np.ndarray, names: list[str | int], counts: np.ndarray, options: OwnDataOptions, label: str
) -> list[str]:
    """Return notes on classes that may be mistakes."""
    notes = []
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
    of_one_row = [str(name) for name, count in zip(names, counts.tolist(), strict=True) if count == 1]
    if of_one_row:
        examples = ", ".join(of_one_row[:MAX_NAMED])
        notes.append(
            f"{label} has classes of one row, which cannot be learnt ({len(of_one_row)}): {examples}"
        )
    # Names that differ only in capitals or spaces; the first one of each spelling is kept to compare.
    spellings: dict[str, object] = {}
    for name in names:
        first = spellings.setdefault(str(name).strip().lower(), name)
        if first != name:
            notes.append(
                f"{label} has the classes {first!r} and {name!r}; spell them the same if they are one"
            )
    return notes


def _read_as(where: str, y: np.ndarray, options: OwnDataOptions, label: str) -> tuple[np.ndarray, str]:
    """Return floats for targets, or integers or strings for classes, and a note if a rule decided."""
    if options.regression:
        with as_input_error(f"{where}: {label} holds texts", "give numbers, or leave out --regression"):
            return y.astype(np.float64), ""
    if y.dtype.kind == "f":
        return _read_floats(where, y, options, label)
    if options.classes or y.dtype.kind not in "iu":
        return y, ""
    reading = read_labels(y)
    if not reading.names:
        note = f"{label} read as targets of a regression ({reading.why}); pass --classes for classes"
        return y.astype(np.float64), note
    # Two numbers are classes, but more may also be marks, counts or ages.
    note = f"{label} read as classes ({reading.why}); pass --regression for targets"
    return y, "" if len(np.unique(y)) == 2 else note


def _read_floats(where: str, y: np.ndarray, options: OwnDataOptions, label: str) -> tuple[np.ndarray, str]:
    """Return floats as targets, or as classes (integers) if the user asks for them and all are whole."""
    if not np.isfinite(y).all():
        return y, ""  # targets, which are refused with the row
    are_whole = bool((y % 1 == 0).all())
    if options.classes and not are_whole:
        raise InputError(f"{where}: {label} holds numbers that are not whole", "leave out --classes")
    if options.classes:
        return y.astype(np.int64), ""
    note = f"{label} holds whole numbers as floats, read as targets of a regression; pass --classes for classes"
    return y, note if are_whole else ""


def _as_float32(where: str, y: np.ndarray, label: str) -> np.ndarray:
    """Return targets (rows, readout_tokens, outputs) as float32; refuse infinite ones and large rounding errors."""
    with np.errstate(over="ignore"):
        stored = y.astype(np.float32)
    if not np.isfinite(stored).all():
        row, token, output = (int(i) for i in np.argwhere(~np.isfinite(stored))[0])
        raise InputError(
            f"{where}: {label} is {y[row, token, output]} in row {row}, which is not a finite float32 number",
            "remove the row, or rescale the labels",
        )
    check_rounding(where, [rounding(y.reshape(-1, y.shape[2]), stored.reshape(-1, y.shape[2]))], label)
    return stored


def _refuse_constant(where: str, targets: np.ndarray, label: str) -> None:
    """Refuse targets (rows, readout_tokens, outputs) of which an output is the same everywhere."""
    flat_targets = targets.reshape(-1, targets.shape[2])
    for output in np.flatnonzero((flat_targets == flat_targets[0]).all(axis=0)).tolist():
        if flat_targets.shape[1] > 1:
            which, remedy = f"all values of output {output} of {label}", "leave the output out"
        else:
            which, remedy = "all labels", "give rows with different labels"
        raise InputError(f"{where}: {which} are the same ({flat_targets[0, output]:g})", remedy)


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
    """Return the split of each row, (rows,) of str.

    Without ``split`` a hash of the number of the row, stratified by class, divides the rows 60/20/20, or whole groups
    are divided as evenly as possible; if only "valid" is missing, it is a tenth of "train".
    """
    classes = labels.y[:, 0, 0] if labels.classes else np.zeros(len(labels.y), np.int64)

    def divide(rows: np.ndarray, shares: dict[str, float]) -> np.ndarray:
        if groups is None:
            return stratified(classes[rows], shares)
        return grouped(groups[rows], classes[rows], shares)

    if split is None:
        names = divide(np.arange(len(classes)), SHARES)
        # With two or three rows in every class, rounding leaves a split empty: 60% and 80% of three rows are two.
        is_classified = groups is None and labels.classes > 1 and np.bincount(classes).min() > 1
        if is_classified and len(np.unique(names)) < len(SPLITS):
            names = stratified(classes, SHARES, spread=True)
    else:
        names = _known_splits(where, split)
        if "valid" not in names:
            train = np.flatnonzero(names == "train")
            shares = {"train": 1 - HELD_OUT, "valid": HELD_OUT}
            names[train] = divide(train, shares)
            # no class has enough rows to hold out a tenth of them
            if "valid" not in names and groups is None:
                names[train] = stratified(np.zeros(len(train), np.int64), shares)
    _refuse_empty_splits(where, names, labels.classes, groups)
    if groups is not None:
        _refuse_divided_groups(where, groups, names)
    return names


def _known_splits(where: str, split: np.ndarray) -> np.ndarray:
    """Return the split of each row as train, valid or test, (rows,) of str; refuse any other name."""
    # Longer texts are cut to 16 letters, which is more than any known name has, so that the message is short.
    written = np.asarray(split).astype("U16")
    names = np.array([SPLIT_NAMES.get(name.lower(), name) for name in written.tolist()])
    is_unknown = ~np.isin(names, SPLITS)
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        raise InputError(f"{where}: split is {str(names[row])!r} in row {row}", "give train, valid or test")
    return names


def _refuse_empty_splits(where: str, names: np.ndarray, classes: int, groups: np.ndarray | None) -> None:
    """Refuse rows, or whole groups of rows, that are too few for three splits."""
    units = f"{len(names)} rows" if groups is None else f"rows of the {len(np.unique(groups))} groups"
    more = "rows" if groups is None else "groups (recordings, if --window cuts them)"
    of_classes = f" of each of the {classes} classes" if classes else ""
    for name in SPLITS:
        if name not in names:
            raise InputError(
                f"{where}: none of the {units} is for the split {name!r}", f"give more {more}{of_classes}"
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
