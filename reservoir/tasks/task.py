"""The description of a task: the form of its sequences and labels; and its splits as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.file_checks import fits, from_json

SPLITS = ("train", "valid", "test")
SIZES = ("max_tokens", "classes", "readout_tokens", "outputs", "pictures")
MAX_SIZE = 2**31  # limit of these sizes, which a file may state
MAX_CLASSES = 50_000  # a confusion matrix of these takes 20 GB
SOUND_RATE = 16_000  # default samples of a sound per second: the rate that speech models read
TEXT_UNITS = ("word", "span", "text")
"""What has a label in texts that a tokenizer reads, if each token or word is a row of its own.

Labels are those of words between white space, of the letters in spans, or of whole texts. Prepared data holds a label
for each word, each letter, or each text, from which an extraction takes those of tokens.
"""

MISSING = -1  # class of padding after the end of a row with a label for every token; for targets it is NaN


@dataclass(frozen=True)
class Vectors:
    """Sequences of real vectors of ``dim`` values: arrays (rows, tokens, dim)."""

    dim: int


@dataclass(frozen=True)
class Tokens:
    """Sequences of symbols: integers (rows, tokens) from 0 to ``vocabulary`` - 1, padding included if there is any."""

    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """The description of a task, without its data."""

    name: str  # as typed on the command line
    form: Vectors | Tokens  # what a token is
    max_tokens: int  # tokens of the longest sequence
    classes: int  # per output; 0 for regression
    readout_tokens: int = 1  # number of tokens, the last real ones, that have a label
    outputs: int = 1  # per readout token, each with ``classes`` classes (or one real value)
    # Everything that chooses the rows, such as seeds and sizes; part of the cache key.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # names of the classes, in order, if the class numbers are not the names
    labels: tuple[str | int | bool, ...] = ()
    alphabet: str = ""  # the letter of each symbol, for texts of your own; these are stored as code points
    pictures: int = 0  # side in pixels of your own images for models of vectors; they are stored as files
    # accuracy of copying the visible input, if it is above that of a constant answer
    floor: float | None = None

    @property
    def labels_each_token(self) -> bool:
        """Whether each token has its own label; the parameter says so in the form of the flag, ``"token"``."""
        return self.parameters.get("each") == "token"

    @property
    def labels_text_tokens(self) -> bool:
        """Whether words of texts, or the tokens of a model's own tokenizer, are rows of features; see `TEXT_UNITS`."""
        return self.parameters.get("each") in TEXT_UNITS

    @property
    def labels_words(self) -> bool:
        """Whether words of texts have labels."""
        return self.parameters.get("each") == "word"

    @property
    def horizon(self) -> int:
        """Number of values to forecast, which are the outputs of a row; 0 if rows are not windows of a time series."""
        return int(self.parameters.get("forecast") or 0)

    @property
    def cuts_recordings(self) -> bool:
        """Whether rows are windows of recordings."""
        # Images that are cut into windows have this parameter, too, and a stride.
        return "window" in self.parameters and "stride" not in self.parameters

    @property
    def position_columns(self) -> tuple[str, ...]:
        """The table column of each position, if a sequence is a row with one value per column; else empty."""
        names = self.parameters.get("columns", ())
        # In other tables, columns are channels. With the parameter, a second channel says which values are missing.
        channels_per_value = 2 if self.parameters.get("missing") == "mask" else 1
        has_one_value = isinstance(self.form, Tokens) or self.form.dim == channels_per_value
        return tuple(names) if has_one_value and len(names) == self.max_tokens else ()

    @property
    def unlabelled(self) -> bool:
        """Whether the rows have no labels, so that only features can be made of them."""
        return bool(self.parameters.get("unlabelled"))

    def label(self, index: int) -> str | int:
        """Return the name of a class, or its number if it has no name."""
        return self.labels[index] if self.labels else int(index)

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain JSON values; `from_dict` is its inverse."""
        form = (
            {"vectors": self.form.dim}
            if isinstance(self.form, Vectors)
            else {"tokens": self.form.vocabulary}
        )
        values = {
            **vars(self),
            "form": form,
            "parameters": dict(self.parameters),
            "labels": list(self.labels),
        }
        # These are left out if they have their defaults, so that digests and keys of tasks without them do not change.
        defaults_left_out = {"alphabet": "", "pictures": 0, "floor": None}
        return {
            name: value
            for name, value in values.items()
            if name not in defaults_left_out or value != defaults_left_out[name]
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Task":
        """Return the task of a description that `to_dict` made; raise `InputError` if it is damaged."""
        name = str(values.get("name"))[:40]
        with as_input_error(f"task {name!r}: its description is damaged", "extract the data again"):
            ((kind, size),) = values["form"].items()
            if not isinstance(values["labels"], list | tuple):
                raise ValueError("its labels are not a list")
            form = {"vectors": Vectors, "tokens": Tokens}[kind](size)
            task = from_json(cls, {**values, "form": form, "labels": tuple(values["labels"])})
            task._check(size)
            return task

    def _check(self, form_size: int) -> None:
        """Raise an error if a value of a description that anyone may have written has no meaning.

        ``form_size`` is the size of the form: values of a vector, or symbols of the vocabulary.
        """
        sizes = [form_size, *(getattr(self, name) for name in SIZES)]
        has_valid_sizes = all(fits(size, int) and 0 <= size < MAX_SIZE for size in sizes)
        name_lists = [self.parameters.get(name, []) for name in ("columns", "events")]
        if not has_valid_sizes or not all(fits(names, list[str]) for names in name_lists):
            raise ValueError("it has a wrong size or name of a column")
        if any(len({*names}) < len(names) for names in name_lists):
            raise ValueError("it has the name of a column or an event twice")
        if self.classes > MAX_CLASSES:
            raise InputError(
                f"task {self.name[:40]!r}: {self.classes:,} classes are more than {MAX_CLASSES:,}",
                "merge rare classes, or pass --regression for numbers",
            )
        has_name_per_class = len(self.labels) in (0, self.classes)  # 0 if numbers are the names
        has_known_unit = self.parameters.get("each", "") in ("", "token", *TEXT_UNITS)
        if not has_name_per_class or not has_known_unit:
            raise ValueError("its labels do not match its classes")


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rows of one split, in their fixed order.

    Sequences ``x`` (rows, tokens, dim) or (rows, tokens) are as stored: unsigned bytes for pixels,
    float32 for sensors, integers for symbols; right-padded with zeros. Your own images are an array
    (rows,) of the bytes of their files.
    """

    x: np.ndarray
    y: np.ndarray  # (rows, readout_tokens, outputs): class numbers (int64) or real targets (float32)
    lengths: np.ndarray  # int32, (rows,): real tokens of each sequence, from 1 to ``x.shape[1]``
    dropped: int = 0  # sequences of the source that are left out because they are too long
    cut: int = 0  # sequences that are shortened
    # (rows,) of int: the group (patient, machine) of each row, if there are groups
    groups: np.ndarray | None = None
    group_names: np.ndarray | None = None  # (rows,) of texts: the group of each row, as its source calls it
    # (rows,) of int or texts: what names each row in its source; None for the numbers of the rows in their split
    ids: np.ndarray | None = None
    # (rows,) of int: the number of the stretch in which the labels of each window begin, if rows are forecasts
    stretches: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: slice | np.ndarray) -> "Split":
        """Return the rows of a slice, of row numbers or of a mask (rows,) of bool; ``dropped`` and ``cut`` become 0."""
        return Split(
            x=self.x[rows],
            y=self.y[rows],
            lengths=self.lengths[rows],
            groups=None if self.groups is None else self.groups[rows],
            group_names=None if self.group_names is None else self.group_names[rows],
            ids=None if self.ids is None else self.ids[rows],
            stretches=None if self.stretches is None else self.stretches[rows],
        )


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Per-channel affine map from stored values to the values that the model reads: ``(x - offset) * scale``.

    Offset and scale are float32 (dim,): for pixels the publisher's constants, for your own data the
    mean and the inverse standard deviation of the training split.
    """

    offset: np.ndarray
    scale: np.ndarray

    @classmethod
    def constant(cls, scale: float, dim: int, offset: float = 0.0) -> "Scaling":
        """Return the scaling that is the same for each of ``dim`` values."""
        return cls(offset=np.full(dim, offset, np.float32), scale=np.full(dim, scale, np.float32))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return float32 values of the shape of ``x`` (..., dim), with 0 for NaN."""
        values = (x.astype(np.float32) - self.offset) * self.scale
        may_have_nan = x.dtype.kind == "f"
        return np.where(np.isnan(values), np.float32(0), values) if may_have_nan else values


def check_split(task: Task, name: str, split: Split) -> None:
    """Raise `InputError` if a sequence of the split ``name`` is too short for the readout, or too long for the task."""
    # If tokens or words have labels, a short row has fewer of them.
    least = 1 if task.labels_each_token or task.labels_text_tokens else task.readout_tokens
    is_wrong = (split.lengths < least) | (split.lengths > task.max_tokens)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise InputError(
            f"task {task.name!r}, split {name!r}, row {row}: length {int(split.lengths[row])} is not between "
            f"{least} and {task.max_tokens} tokens",
            "remove the row",
        )


def holds_samples(task: Task) -> bool:
    """Return whether the sequences of a task are the samples of sounds, one per token, and not spectra."""
    return bool(task.parameters.get("waveform")) and task.form == Vectors(1)
