"""What every reader of data returns: rows with labels, groups, names and splits, and the rows that cannot be read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from reservoir.errors import InputError
from reservoir.file_checks import check_padding
from reservoir.tasks.pictures import PATCHES, SIDE
from reservoir.tasks.texts import UNKNOWN, codes_of, hold_words, text_lengths

COLUMN_FLAGS = ("label", "id", "time", "group", "text", "drop", "labels")
"""The options that name columns of a table, or the table of labels."""

OF_RECORDINGS = ("resample", "window", "step")
"""The options of recordings; texts and images are never cut or resampled."""

OF_TEXTS = ("chat", "span")
"""The options of texts that are chats, or in which a span is marked; a reader of such texts records them."""

OF_ARRAYS = ("channels_first", "pixels")
"""The options of arrays of series or of images; a reader of such arrays records them."""

UNUSED_BY_KIND = {
    "numbers": ("rate",),
    "letters": ("rate", "waveform", *OF_RECORDINGS),
    "images": ("values", "symbols", "missing", "standardise", "rate", "waveform", *OF_RECORDINGS),
    "sounds": (),
}
"""The options that do not apply, by what the sequences hold."""

IMAGE_NOTE = f"without a vision model, images are read as {SIDE}x{SIDE} pixels, in {PATCHES} patches"
"""The note of every reader of images, which does not apply to a model with a processor of its own."""

IF_IMAGES = "if the rows are images"
"""Part of the note on series that may be images, which an extraction with a vision model refuses."""

Skipped = dict[int, tuple[str | int | None, str]]
"""The rows of a source that cannot be read, by their numbers: the id, if rows have ids, and the reason."""

EVERY_ROW = 2**62
"""The number of rows to read at a time of sequences that are in memory: more than any source has."""


class Sequences(Protocol):
    """An array of sequences, in memory or in files, of which ranges of rows are read: ``x[low:high]``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        ...

    @property
    def dtype(self) -> Any:
        """The type of its values."""
        ...

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        """Read a range of rows."""
        ...


class _SomeRows:
    """The rows of the sequences ``x`` that have some ``numbers``, in increasing order, read when they are needed."""

    def __init__(self, x: Sequences, numbers: np.ndarray):
        self._x, self._numbers = x, numbers
        self.shape = (len(numbers), *x.shape[1:])
        self.dtype = x.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        numbers = self._numbers[rows]
        if not len(numbers):
            return np.zeros((0, *self.shape[1:]), self.dtype)
        first, last = int(numbers[0]), int(numbers[-1])
        return self._x[first : last + 1][numbers - first]


@dataclass(frozen=True, kw_only=True)
class RecordingWindows:
    """Which recording each row is a window of, and where the window begins there.

    Parameters
    ----------
    recording : array (rows,) of int
        The number of the recording among ``names``; the windows of a recording follow each other.
    start : array (rows,) of int
        The first step of the window in its recording.
    names : array (recordings,)
        What names each recording.
    """

    recording: np.ndarray
    start: np.ndarray
    names: np.ndarray

    def take(self, rows: np.ndarray) -> "RecordingWindows":
        """Return the windows of some ``rows``, an array of indices or a mask."""
        return RecordingWindows(recording=self.recording[rows], start=self.start[rows], names=self.names)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordingSteps:
    """The rows of a new table that are the steps of one recording, in the order of the table.

    Parameters
    ----------
    names : array (rows,)
        The time of each row, as it is written.
    row_of_step : array (steps,) of int
        The row of each step of the recording, whose steps are in the order of their times.
    problems : mapping of int to str
        Why a row cannot be read, by its number; such a row is not a step.
    y : array (rows, ...), optional
        The label of each row, as the table has it.
    """

    names: np.ndarray
    row_of_step: np.ndarray
    problems: Mapping[int, str]
    y: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a file, a folder or a dataset; an optional array is None if the source has no such column.

    Parameters
    ----------
    x : Sequences
        Numbers (rows, tokens) or (rows, tokens, dim), zero after each row's end; code points of letters (rows, tokens);
        or the bytes of files of images (rows,).
    lengths : array (rows,) of int, optional
        The number of real tokens of each row; by default all tokens are real.
    y : array (rows, ...), optional
        Labels, as the source has them.
    groups, split, ids : array (rows,), optional
        The group of each row, its split, and what names it; without ``ids``, its number does. The split of a single
        recording that is cut into windows is that of each step, (1, tokens).
    holds : str
        What ``x`` holds.
    piece_rows : int
        The number of rows that fit into memory at a time.
    files : tuple of Path
        The files that were read in addition to the named one.
    notes : tuple of str
        How the source was read, one line each.
    roles : mapping of str to str
        The columns of a table by the option that names them, such as ``{"label": "class"}``.
    skipped : Skipped
        The rows that could not be read, which are not in the arrays.
    parameters : mapping
        Choices that the rules made, which are needed to read new rows in the same way.
    label : str
        What messages call the labels.
    unused : tuple of str
        Options that do not apply to the format, besides those that do not apply to what ``x`` holds (`UNUSED_BY_KIND`).
    windows : RecordingWindows, optional
        The recording of each row, if the rows are windows of recordings.
    steps : RecordingSteps, optional
        The rows of a new table, if they are steps of one recording.
    class_names : tuple of str
        The names of the classes whose numbers are in ``y``; empty if ``y`` holds the labels themselves.
    stretches : array (rows,) of int, optional
        The number of the stretch in which the labels of each window begin, if rows are forecasts.
    """

    x: Sequences
    lengths: np.ndarray | None = None
    y: np.ndarray | None = None
    groups: np.ndarray | None = None
    ids: np.ndarray | None = None
    split: np.ndarray | None = None
    holds: Literal["numbers", "letters", "images", "sounds"] = "numbers"
    piece_rows: int = EVERY_ROW
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    label: str = "y"
    unused: tuple[str, ...] = ()
    windows: RecordingWindows | None = None
    steps: RecordingSteps | None = None
    class_names: tuple[str, ...] = ()
    stretches: np.ndarray | None = None

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def labels_tokens(self) -> bool:
        """Whether ``y`` has a label for every token."""
        if "each" in self.parameters:  # the reader has seen labels of tokens
            return True
        # In a table, which has "columns", a second axis of ``y`` is that of the outputs y0, y1 ...
        if self.y is None or self.holds == "images" or "columns" in self.parameters:
            return False
        # Labels (rows, tokens, ...) are those of tokens. But of sequences of one token, a label (rows, 1) is that of
        # the whole row.
        rows_and_tokens = tuple(self.x.shape[:2])
        has_tokens = len(rows_and_tokens) == 2 and rows_and_tokens[1] > 1
        return has_tokens and self.y.shape[:2] == rows_and_tokens

    @property
    def numbers(self) -> np.ndarray:
        """The number of each row in the source, (rows,) of int, from 0; rows that are skipped count, too."""
        all_numbers = np.arange(len(self) + len(self.skipped))
        return np.setdiff1d(all_numbers, [*self.skipped])

    @property
    def names(self) -> np.ndarray:
        """What names each row, (rows,): texts or int64 of ``ids``, else the row's number in the source."""
        if self.ids is None:
            return self.numbers
        fit_int64 = self.ids.dtype.kind in "iu" and np.can_cast(self.ids.dtype, np.int64)
        return self.ids.astype(np.int64 if fit_int64 else str)

    def without(self, reasons: Mapping[int, str]) -> "Rows":
        """Return the rows without those that have a reason to be skipped, which become ``skipped`` ones.

        ``reasons`` has them by their number among these rows; ``skipped``, by their number in the file.
        """
        numbers_in_file, names = self.numbers, self.names
        newly_skipped: Skipped = {}
        for row, reason in reasons.items():
            number = int(numbers_in_file[row])
            newly_skipped[number] = (names[row].item(), f"row {number}: {reason}")
        stays = np.isin(np.arange(len(self)), [*reasons], invert=True)  # (rows,) of bool
        return replace(
            self,
            x=self.x[stays] if isinstance(self.x, np.ndarray) else _SomeRows(self.x, np.flatnonzero(stays)),
            lengths=None if self.lengths is None else self.lengths[stays],
            ids=names[stays],
            y=None if self.y is None else self.y[stays],
            groups=None if self.groups is None else self.groups[stays],
            split=None if self.split is None else self.split[stays],
            windows=None if self.windows is None else self.windows.take(stays),
            skipped=self.skipped | newly_skipped,
        )

    def refuse_unused(self, where: str, options: Sequence[str]) -> None:
        """Refuse ``options``, the names of those that are given, if they do not apply to the data at ``where``."""
        # A reader that uses one of these options records it in the parameters.
        not_recorded = [name for name in (*OF_TEXTS, *OF_ARRAYS) if name not in self.parameters]
        for name in (*UNUSED_BY_KIND[self.holds], *self.unused, *not_recorded):
            if name in options:
                raise InputError(
                    f"{where}: --{name.replace('_', '-')} does not apply to data of this kind",
                    "leave it out",
                )


def padded(where: str, sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences (tokens, ...) of several lengths as one array (rows, longest, ...), and their lengths (rows,).

    There are zeros after each row's end. Sequences that need far too much memory that way are refused, with ``where``
    in the message.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    dtype = np.result_type(*sequences)
    check_padding(where, lengths, dtype.itemsize)
    x = np.zeros((len(sequences), lengths.max(), *sequences[0].shape[1:]), dtype)
    for row, sequence in enumerate(sequences):
        x[row, : len(sequence)] = sequence
    return x, lengths


MAX_NAMED = 5
"""Most bad rows that a message names."""

EMPTY_CELL = "an empty cell in column"
"""Begins the reason why a row with a missing value cannot be read."""

OR_PASS = ", or pass --"
"""Begins an alternative that is a flag, in every message about data, so that `read_new` can cut it off."""

OR_FILL = f"{OR_PASS}missing interpolate or mask for missing values"
"""Ends the remedy of an empty cell."""


class BadRows:
    """The rows of a source that cannot be read, which are collected while it is read.

    ``reasons`` has why a row cannot be read, and ``remedies`` what to do if it is not "fix the file", by the row's
    number.

    Parameters
    ----------
    where : str
        The path of the source, for messages.
    places : sequence of str
        The place of each row in the source, bad or not, such as ``"line 12"``.
    skip : bool, optional
        Whether bad rows are left out, as ``--skip-bad-rows`` says; None if the caller has no such option.
        If they are not left out, `readable` refuses them.
    """

    def __init__(self, where: str, places: Sequence[str], *, skip: bool | None = None):
        self.where = where
        self.places = places
        self.skip = skip
        self.reasons: dict[int, str] = {}
        self.remedies: dict[int, str] = {}

    def add(self, row: int | np.integer, reason: str, remedy: str = "") -> None:
        """Note why a row cannot be read, and what to do if it is not "fix the file"; the first reason counts."""
        if int(row) in self.reasons:
            return
        self.reasons[int(row)] = reason
        if remedy:
            self.remedies[int(row)] = remedy

    def read_files(self, files: Sequence[Path], read: Callable[[Path], Any]) -> list[Any]:
        """Return what ``read`` makes of each file, without those of bad rows; rows that it refuses become bad.

        ``files`` (rows,) has the file of each row.
        """
        contents = []
        for row, path in enumerate(files):
            if row in self.reasons:
                continue
            try:
                contents.append(read(path))
            except InputError as error:
                # The message is "PATH: reason; remedy", or "PATH, line 5: reason; remedy". The path is in the places.
                message = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
                reason, _, remedy = message.partition("; ")
                self.add(row, reason, remedy)
        return contents

    def readable(self) -> np.ndarray:
        """Return which rows can be read, (rows,) of bool; refuse bad rows if they are not skipped or all are bad."""
        all_bad = len(self.reasons) == len(self.places)
        if self.reasons and (all_bad or not self.skip):
            self._refuse(all_bad=all_bad)
        return ~np.isin(np.arange(len(self.places)), list(self.reasons))

    def _refuse(self, *, all_bad: bool) -> None:
        """Raise an error that names the first bad rows, and says what to do; ``all_bad`` if no row is left."""
        # If all rows have one remedy, the message gives that; else "fix the file" is true of all. Remedies that differ
        # only in the suffix `OR_FILL` count as one, so they are compared without it; it is added once below.
        remedies = {self.remedies.get(row, "fix the file").removesuffix(OR_FILL) for row in self.reasons}
        remedy = remedies.pop() if len(remedies) == 1 else "fix the file"
        if any(EMPTY_CELL in reason for reason in self.reasons.values()):
            remedy += OR_FILL
        # If all of several rows are bad, skipping them would leave none. A single row may be one file of many.
        skipping_helps = not all_bad or len(self.places) == 1
        has_option = self.skip is not None  # None: the caller has no --skip-bad-rows
        if has_option and not self.skip and skipping_helps:
            remedy += f"{OR_PASS}skip-bad-rows"
        if len(self.reasons) == 1:
            ((row, reason),) = self.reasons.items()
            raise InputError(f"{self.where}, {self.places[row]}: {reason}", remedy)
        count = "no row can" if all_bad else f"{len(self.reasons):,} rows cannot"
        raise InputError(f"{self.where}: {count} be read: {self._first_reasons()}", remedy)

    def skipped(self, ids: Sequence[Any] | np.ndarray) -> Skipped:
        """Return why each bad row cannot be read, with its id; ``ids`` are those of all rows, or empty without ids."""
        return {
            row: (str(ids[row]) if len(ids) else None, reason)
            for row, reason in self._reasons_with_places().items()
        }

    def notes(self) -> list[str]:
        """Return a line that says how many rows were skipped, if any were."""
        if not self.reasons:
            return []
        count = f"skipped {len(self.reasons):,} of {len(self.places):,} rows"
        return [f"{count}: {self._first_reasons()}"]

    def take(self, rows: Sequence[int]) -> "BadRows":
        """Return the bad rows among some rows, which are numbered anew in the given order."""
        taken = BadRows(self.where, [self.places[row] for row in rows], skip=self.skip)
        for new_row, row in enumerate(rows):
            if row in self.reasons:
                taken.add(new_row, self.reasons[row], self.remedies.get(row, ""))
        return taken

    def _reasons_with_places(self) -> dict[int, str]:
        """Return the place and the reason of each bad row, such as "line 12: no label", by its number, in order."""
        return {row: f"{self.places[row]}: {reason}" for row, reason in sorted(self.reasons.items())}

    def _first_reasons(self) -> str:
        """Return the first `MAX_NAMED` reasons with their places as one text, and how many more there are."""
        lines = list(self._reasons_with_places().values())
        more = [f"and {len(lines) - MAX_NAMED:,} more"] if len(lines) > MAX_NAMED else []
        return "; ".join(lines[:MAX_NAMED] + more)


# ---- texts


UNSEEN = "letters that no training row has"
"""Begins a note, which does not apply to a model with a tokenizer of its own."""

PIECE_LETTERS = 2**23
"""Code points, of at most 4 bytes each, that are padded at a time."""


class TextCodes:
    """Texts as code points (rows, tokens), zero after their ends; encoded when they are read.

    ``lengths`` (rows,) are the lengths of the ``texts``, and ``where`` is their path for messages.
    """

    def __init__(self, where: str, texts: list[str], lengths: np.ndarray):
        self._where, self.texts, self.lengths = where, texts, lengths
        self.shape = (len(texts), int(lengths.max()))
        # The smallest unsigned integers that hold every letter.
        self.dtype = np.min_scalar_type(max(ord(max(text)) for text in texts))
        check_padding(where, lengths, self.dtype.itemsize)

    def __getitem__(self, rows: slice) -> np.ndarray:
        codes, _ = codes_of(self._where, self.texts[rows])  # padded to the longest of these rows only
        x = np.zeros((len(codes), self.shape[1]), self.dtype)
        x[:, : codes.shape[1]] = codes
        return x


def text_rows(where: str, texts: Sequence[str], others: Mapping[str, Any], **fields: Any) -> Rows:
    """Return texts as rows of letters.

    ``others`` are further arrays (rows, ...) by the names of their fields in `Rows`, and ``fields`` its other fields.
    """
    lengths = text_lengths(where, texts)
    x = TextCodes(where, list(texts), lengths)
    piece_rows = max(1, PIECE_LETTERS // x.shape[1])
    return Rows(x=x, lengths=lengths, **others, holds="letters", piece_rows=piece_rows, **fields)


def keep_end_spaces(each: str | None, *, words: bool) -> bool:
    """Return whether texts keep the white space at their ends; if not, it is no part of the sequence.

    ``each`` is the parameter of a task that says what has a label, and ``words`` whether the texts consist of words.
    Labels of words and of spans belong to texts as they are written, and those of tokens to letters between the ends.
    Other texts keep the white space if they consist of words, but not if their letters are symbols, such as those of
    DNA.
    """
    return each in ("word", "span") or (words and each != "token")


def without_end_spaces(where: str, rows: Rows) -> Rows:
    """Return the rows of data without the white space at the ends of texts, unless `keep_end_spaces`."""
    if not isinstance(rows.x, TextCodes):
        return rows
    texts = [text.strip() for text in rows.x.texts]
    changed = sum(text != written for text, written in zip(texts, rows.x.texts, strict=True))
    if not changed:
        return rows
    x = TextCodes(where, texts, text_lengths(where, texts))
    reason = "their letters are symbols, or have labels of their own"
    note = f"white space at the ends of {changed:,} texts is left out: {reason}"
    stripped = replace(rows, x=x, lengths=x.lengths, notes=(*rows.notes, note))
    each = rows.parameters.get("each") or ("token" if stripped.labels_tokens else None)
    return rows if keep_end_spaces(each, words=hold_words(texts)) else stripped


class Alphabet(NamedTuple):
    """The letters of texts, in the order of their code points."""

    symbols: str  # `UNKNOWN`, and the letters of the training rows; empty for data that are no texts
    unseen: str  # the letters that only other rows have


def alphabet_of(batches: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Alphabet:
    """Return the letters of the texts in some batches.

    A batch is code points (rows, tokens), lengths (rows,), and a mask (rows,) of the training rows.
    """
    # The code points of each set of letters, sorted and without repetition.
    in_training = np.empty(0, np.int64)
    in_any_row = np.empty(0, np.int64)
    for codes, lengths, is_training in batches:
        is_letter = np.arange(codes.shape[1]) < lengths[:, None]  # the others are padding
        in_training = np.union1d(in_training, codes[is_training][is_letter[is_training]])
        in_any_row = np.union1d(in_any_row, codes[is_letter])
    letters = "".join(map(chr, in_training))
    unseen = "".join(map(chr, np.setdiff1d(in_any_row, in_training)))
    return Alphabet(UNKNOWN + letters.replace(UNKNOWN, ""), unseen)


# ---- named arrays


# The arrays that are read; a file may hold others.
ARRAY_NAMES = ("x", "y", "lengths", "split", "groups", "ids")


def rows_of_arrays(where: str, arrays: Mapping[str, Sequences], piece_rows: int = EVERY_ROW) -> Rows:
    """Return arrays with `ARRAY_NAMES` as rows; texts (rows,) in ``x`` become sequences of letters.

    All arrays are read now but an ``x`` of numbers, of which ``piece_rows`` rows fit into memory at a time.
    """
    if "x" not in arrays:
        raise InputError(f"{where}: no array 'x'", "call the sequences x and the labels y, not X or Y")
    x = arrays["x"]
    for name, array in arrays.items():
        one_per_row = len(array.shape) > 0 and array.shape[:1] == x.shape[:1]
        may_have_axes = name in {"x", "y"}  # the others have one value for each row
        if not one_per_row or (not may_have_axes and len(array.shape) != 1):
            raise InputError(
                f"{where}: x has the shape {x.shape} and {name} {array.shape}",
                f"give one entry of {name} per row of x",
            )
    all_rows = slice(0, x.shape[0])
    others: dict[str, Any] = {name: array[all_rows] for name, array in arrays.items() if name != "x"}
    # Rows with one id belong together, as in a table. Where the file says the splits, ids may count anew in each.
    notes: tuple[str, ...] = ()
    ids = others.get("ids")
    has_own_division = "groups" in others or "split" in others
    if ids is not None and not has_own_division and len(np.unique(ids)) < len(ids):
        others["groups"] = ids
        notes = ("rows with the same id are kept in one split",)
    holds_texts = len(x.shape) == 1 and x.shape[0] > 0 and x.dtype.kind == "U"
    if holds_texts:
        others.pop("lengths", None)  # texts end at their last letter
        return text_rows(where, np.asarray(x[all_rows]).tolist(), others, unused=COLUMN_FLAGS, notes=notes)
    return Rows(x=x, **others, piece_rows=piece_rows, unused=COLUMN_FLAGS, notes=notes)
