"""Rules that read your own numbers as symbols or values, as classes or targets, and split the rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.options import OwnDataOptions
from reservoir.tasks.rows import HELD_OUT, SHARES, grouped, stratified
from reservoir.tasks.task import MISSING
from reservoir_pipelines.data.tables import EMPTY
from reservoir_pipelines.data.values import check_rounding, rounding

SPLIT_NAMES = {
    **dict.fromkeys(["train", "training"], "train"),
    **dict.fromkeys(["valid", "val", "validation", "dev"], "valid"),
    **dict.fromkeys(["test", "testing"], "test"),
}
"""Names of splits in folders and datasets, in lower case, and the name of each split in this program."""

SAMPLE = 2**20  # number of tokens, from the first, that `read_integers` looks at
MAX_SYMBOLS = 1_000_000  # larger whole numbers are values, not symbols: no embedding has a row for each
MIN_STEPS = 100  # with fewer changes between neighbours, the size of the changes is ignored
SMOOTH = 0.65
"""Values have a mean step between different neighbours below this share of the mean step between random tokens."""

SMOOTH_MANY = 0.8  # replaces SMOOTH for more than 256 different numbers
BYTE = 256
HEAD = 0.1  # the most frequent 1% of many symbols make up more than this share of the tokens
FEW_CLASSES = 20
FEW_ROWS_PER_CLASS = 5
ROWS_PER_CLASS = 50


WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")  # a whole number as Python and JSON write it
PADDED = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)
INT64 = np.iinfo(np.int64)


class Reading(NamedTuple):
    """Whether whole numbers are names (symbols, classes), and the reason."""

    names: bool
    why: str


def read_integers(x: np.ndarray, lengths: np.ndarray | None = None) -> Reading:
    """Return whether whole numbers are symbols, or values of an ordered quantity.

    They are values if one is negative or a million or more, if different neighbours in a sequence are
    much closer to each other than random tokens, or if more than 256 different numbers are about
    equally frequent.
    """
    x = x[: max(1, SAMPLE // max(x.shape[1], 1))]
    full = np.full(len(x), x.shape[1]) if lengths is None else lengths[: len(x)]
    real = np.arange(x.shape[1]) < full[:, None]
    tokens = x[real].astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= MAX_SYMBOLS:
        return Reading(False, "some are negative" if tokens.min() < 0 else "some are a million or more")
    numbers, counts = np.unique(tokens, return_counts=True)
    steps = np.abs(np.diff(x.astype(np.int64), axis=1))[real[:, 1:]]
    steps = steps[steps > 0]
    anywhere = np.abs(tokens - np.random.default_rng(0).permutation(tokens))
    if len(steps) >= MIN_STEPS:
        share = steps.mean() / anywhere[anywhere > 0].mean()
        if share < (SMOOTH_MANY if len(numbers) > BYTE else SMOOTH):
            return Reading(False, f"neighbours differ only {share:.0%} as much as random tokens")
    if len(numbers) <= BYTE:
        return Reading(True, f"{len(numbers)} different numbers, and no order between neighbours")
    # The smallest and the largest number are left out, because a sensor that overflows repeats them.
    head = np.sort(counts[1:-1])[::-1][: len(numbers) // 100 + 1].sum() / len(tokens)
    if head > HEAD:
        return Reading(
            True, f"the most frequent 1% of {len(numbers):,} numbers are {head:.0%} of x, as in texts"
        )
    return Reading(False, f"{len(numbers):,} different numbers, about equally common")


def read_labels(y: np.ndarray) -> Reading:
    """Return whether whole-number labels are classes, or targets of a regression.

    Two different numbers are classes. More are classes if they count from 0 or 1 and have at least 2
    rows each on average, if up to 20 numbers have at least 5 rows each on average, or if more numbers
    have at least 50.
    """
    numbers = np.unique(y)
    many = f"{len(numbers):,} different numbers among {y.size:,}"
    if len(numbers) > 2 and len(numbers) > y.size / 2:
        return Reading(False, many)
    least = FEW_ROWS_PER_CLASS if len(numbers) <= FEW_CLASSES else ROWS_PER_CLASS
    return Reading(len(numbers) <= 2 or counted_through(numbers) or y.size >= least * len(numbers), many)


def counted_through(numbers: np.ndarray) -> bool:
    """Return whether sorted distinct numbers are 0, 1, 2 ... or 1, 2, 3 ..."""
    return bool(numbers[0] in {0, 1} and numbers[-1] - numbers[0] == len(numbers) - 1)


def is_large(label: object) -> bool:
    """Return whether a label is a whole number that does not fit into 64 bits."""
    text = str(label).strip() if isinstance(label, int | str) else ""
    if not PADDED.fullmatch(text):
        return False
    digits = text.lstrip("+-0")  # Python refuses to convert thousands of digits
    return len(digits) > len(str(INT64.max)) or not INT64.min <= int(text) <= INT64.max


def are_numbers(texts: Sequence[str]) -> bool:
    """Return whether each text is a number, in any way of writing it."""
    return all(NUMBER.fullmatch(text) for text in texts)


def written_numbers(texts: Sequence[str], *, classes: bool = False) -> np.ndarray | None:
    """Return labels as integers or floats, or None for labels that are texts.

    Whole numbers that are not written as usual are texts (007, +7, 1_000), because they may differ
    from 7. Numbers with a decimal point or an exponent are floats, but as ``classes`` only if each is
    written in one way.
    """
    if all(WHOLE.fullmatch(text) for text in texts) and not any(map(is_large, texts)):
        return np.array([int(text) for text in texts])
    if not are_numbers(texts):
        return None
    numbers = np.array([float(text) for text in texts])
    if not np.isfinite(numbers).all() or (numbers % 1 != 0).any():
        return numbers  # targets: equal numbers are equal targets, however they are written
    unusual = any(PADDED.fullmatch(text) and not WHOLE.fullmatch(text) for text in texts)
    several = classes and len(set(texts)) > len(set(numbers.tolist()))
    return None if unusual or several else numbers


@dataclass(frozen=True)
class Labels:
    """Labels as a task stores them: class numbers (int64) or targets (float32), (rows, readout_tokens, outputs)."""

    y: np.ndarray
    classes: int  # 0 for targets
    names: tuple[str | int, ...]  # names of the classes; empty if they are 0, 1, 2, ...
    notes: tuple[str, ...] = ()


def encode_labels(
    where: str, y: np.ndarray, asked: OwnDataOptions, units: np.ndarray | None = None, label: str = "y"
) -> Labels:
    """Return labels (rows,), (rows, outputs) or (rows, readout_tokens, outputs) with classes numbered in sorted order.

    ``units`` (rows,) is the number of labels of each row, if every token has one. Messages call them
    ``label``.
    """
    if y.dtype.kind not in "biufU" or not 1 <= y.ndim <= 3 or not y.size:
        raise InputError(
            f"{where}: {label} has the shape {y.shape} and holds {y.dtype} values",
            "give (rows,) or (rows, outputs) of integers or strings, or floats for targets",
        )
    if y.dtype.kind == "u" and not asked.regression and int(y.max()) > INT64.max:
        raise InputError(
            f"{where}: {label} holds {int(y.max())}, which does not fit into 64 bits with a sign",
            "give names of classes as strings, or pass --regression for targets",
        )
    if units is not None:
        present = np.arange(y.shape[1]) < units[:, None]
        labels = encode_labels(where, y[present], asked, None, label)
        full = np.full(
            (*present.shape, labels.y.shape[2]), MISSING if labels.classes else np.nan, labels.y.dtype
        )
        full[present] = labels.y[:, 0]
        return replace(labels, y=full)
    y, note = _read_as(where, y, asked, label)
    notes = (note,) if note else ()
    shaped = y[:, None, None] if y.ndim == 1 else y[:, None] if y.ndim == 2 else y
    if y.dtype.kind == "f":
        targets = _single(where, shaped, label)
        _refuse_constant(where, targets, label)
        return Labels(targets, 0, (), notes)
    found, numbers, counts = np.unique(shaped, return_inverse=True, return_counts=True)
    numbers = numbers.reshape(shaped.shape).astype(np.int64)
    names = found.tolist()
    if len(names) == 1:
        raise InputError(
            f"{where}: all labels are the same ({names[0]!r})", "give rows of at least two classes"
        )
    if y.dtype.kind == "U" and len(names) == y.size > 2:
        problem = f"{where}: no two rows have the same label ({names[0]!r}, ...), as if these were names of"
        or_numbers = ", or pass --regression for numbers" if are_numbers(names) else ""
        raise InputError(f"{problem} rows", f"name the column of the labels with --label{or_numbers}")
    if y.dtype.kind == "U" and not asked.classes and are_numbers(names):
        unusual = next((name for name in names if not WHOLE.fullmatch(name)), None)
        why = f"the number {unusual!r} is not written as usual; pass --regression for targets"
        notes += (f"{label} read as names of classes, because {why}",) if unusual else ()
    plain = y.dtype.kind != "b" and names == list(range(len(names)))
    odd = [name for name in names if str(name).strip().lower() in EMPTY]
    notes += tuple(
        f"{label} has a class {name!r}; remove these rows if it stands for a missing label" for name in odd
    )
    if lone := [str(name) for name, count in zip(names, counts.tolist(), strict=True) if count == 1]:
        some = ", ".join(lone[:5])
        notes += (f"{label} has classes of one row, which cannot be learnt ({len(lone)}): {some}",)
    first: dict[str, object] = {}
    for name in names:
        if (other := first.setdefault(str(name).strip().lower(), name)) != name:
            notes += (
                f"{label} has the classes {other!r} and {name!r}; spell them the same if they are one",
            )
    return Labels(numbers, len(names), () if plain else tuple(names), notes)


def _read_as(where: str, y: np.ndarray, asked: OwnDataOptions, label: str) -> tuple[np.ndarray, str]:
    """Return floats for targets, or integers or strings for classes, and a note if a rule decided."""
    if asked.regression:
        with as_input_error(f"{where}: {label} holds texts", "give numbers, or leave out --regression"):
            return y.astype(np.float64), ""
    floats = y.dtype.kind == "f"
    if floats and not np.isfinite(y).all():
        return y, ""  # targets, which are refused with the row
    whole = not floats or bool((y % 1 == 0).all())
    if asked.classes and not whole:
        raise InputError(f"{where}: {label} holds numbers that are not whole", "leave out --classes")
    if asked.classes:
        return y.astype(np.int64) if floats else y, ""
    if floats or y.dtype.kind not in "iu":
        note = f"{label} holds whole numbers as floats, read as targets of a regression; pass --classes for classes"
        return y, note if floats and whole else ""
    reading, numbers = read_labels(y), np.unique(y)
    if not reading.names:
        note = f"{label} read as targets of a regression ({reading.why}); pass --classes for classes"
        return y.astype(np.float64), note
    plain = len(numbers) <= FEW_CLASSES and (len(numbers) == 2 or counted_through(numbers))
    return y, "" if plain else f"{label} read as classes ({reading.why}); pass --regression for targets"


def _single(where: str, y: np.ndarray, label: str) -> np.ndarray:
    """Return targets, (rows, readout_tokens, outputs), as float32; refuse infinite ones and large rounding errors."""
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
    flat = targets.reshape(-1, targets.shape[2])
    for output in np.flatnonzero((flat == flat[0]).all(axis=0)).tolist():
        which = f"all values of output {output} of {label}" if flat.shape[1] > 1 else "all labels"
        remedy = "leave the output out" if flat.shape[1] > 1 else "give rows with different labels"
        raise InputError(f"{where}: {which} are the same ({flat[0, output]:g})", remedy)


def split_rows(
    where: str, labels: Labels, split: np.ndarray | None, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return the split of each row, (rows,) of str.

    Without ``split`` a hash of the row, stratified by class, divides the rows 60/20/20, or whole groups
    are divided as evenly as possible; if only "valid" is missing, it is a tenth of "train".
    """
    classes = labels.y[:, 0, 0] if labels.classes else np.zeros(len(labels.y), np.int64)

    def divided(rows: np.ndarray, shares: dict[str, float]) -> np.ndarray:
        if groups is None:
            return stratified(classes[rows], shares)
        return grouped(groups[rows], classes[rows], shares)

    if split is None:
        names = divided(np.arange(len(classes)), SHARES)
    else:
        written = np.asarray(split).astype("U16")
        names = np.array([SPLIT_NAMES.get(name, name) for name in written.tolist()])
        unknown = ~np.isin(names, list(SHARES))
        if unknown.any():
            row = int(np.argmax(unknown))
            raise InputError(
                f"{where}: split is {str(names[row])!r} in row {row}", "give train, valid or test"
            )
        if "valid" not in names:
            train = np.flatnonzero(names == "train")
            shares = {"train": 1 - HELD_OUT, "valid": HELD_OUT}
            names[train] = divided(train, shares)
            # no class has enough rows to hold out a tenth of them
            if "valid" not in names and groups is None:
                names[train] = stratified(np.zeros(len(train), np.int64), shares)
    for name in SHARES:
        if name not in names:
            each = f" of each of the {labels.classes} classes" if labels.classes else ""
            raise InputError(
                f"{where}: none of the {len(names)} rows is for the split {name!r}", f"give more rows{each}"
            )
    of_group: dict[str, str] = {}
    for group, name in () if groups is None else zip(groups.tolist(), names.tolist(), strict=True):
        if of_group.setdefault(group, name) != name:
            both = f"{of_group[group]} and {name}"
            raise InputError(f"{where}: group {group!r} has rows in {both}", "leave out split, or groups")
    return names
