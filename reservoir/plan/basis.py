"""What the decisions of a plan start from: the data and their kind, the model's view, and the reasons of options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from reservoir.option_fields import Options
from reservoir.reservoir import MAX_WINDOW_SYMBOLS, Reservoir
from reservoir.tasks import TASKS
from reservoir.tasks.task import Task, Tokens

if TYPE_CHECKING:
    from reservoir.backbones.family import Family
    from reservoir.inputs.native import Reader

Kind = Literal[
    "named task", "labels of every token", "forecasts", "series", "symbols", "tokens", "pictures", "vectors"
]

SERIES_KERNEL = 9  # values of a window of a series, as in MiniRocket
SYMBOL_KERNEL = 5  # symbols of each window: the length of a motif

GIVEN = "given"  # the reason of an option that the user passed
PLAIN = "default"  # the reason of a default that does not depend on the data


def kind_of(task: Task) -> Kind:
    """Return the kind of data of a task; the first that applies.

    | kind | tasks |
    |---|---|
    | ``labels of every token`` | a label for each token |
    | ``named task`` | the tasks of this package |
    | ``forecasts`` | future values as labels |
    | ``symbols`` | few symbols, one label, and rows that are long enough for windows |
    | ``tokens`` | other symbols |
    | ``pictures`` | images |
    | ``series`` | values, one label, and rows that are long enough for windows |
    | ``vectors`` | other values |
    """
    if task.labels_each_token or task.labels_text_tokens:
        return "labels of every token"
    if task.name in TASKS:
        return "named task"
    if task.horizon:
        return "forecasts"
    has_one_readout_token = task.readout_tokens == 1
    if isinstance(task.form, Tokens):
        has_few_symbols = task.form.vocabulary <= MAX_WINDOW_SYMBOLS
        fits_windows = task.max_tokens >= SYMBOL_KERNEL
        return "symbols" if has_one_readout_token and has_few_symbols and fits_windows else "tokens"
    if task.pictures:
        return "pictures"
    fits_windows = task.max_tokens >= SERIES_KERNEL
    return "series" if has_one_readout_token and fits_windows else "vectors"


@dataclass(frozen=True)
class DataView:
    """The data of a plan, as its decisions see it."""

    task: Task  # describes sequences as stored
    kind: Kind
    rows: Mapping[str, int]  # of each split
    longest: int  # tokens of the longest training row

    @classmethod
    def of(cls, task: Task, rows: Mapping[str, int], longest: int) -> DataView:
        """Return the view of a task with its kind of data, which is decided here alone."""
        return cls(task, kind_of(task), rows, longest)

    @property
    def train_rows(self) -> int:
        """The rows of the training split."""
        return self.rows.get("train", 0)

    @property
    def valid_rows(self) -> int:
        """The rows of the validation split."""
        return self.rows.get("valid", 0)

    @property
    def all_rows(self) -> int:
        """The rows of all splits."""
        return sum(self.rows.values())


@dataclass(frozen=True)
class ModelView:
    """A task as a model sees it, without the model's weights."""

    family: Family
    width: int  # of hidden states
    depth: int  # number of blocks; 0 if the model is an input layer alone
    reader: Reader | None  # of native input; None for other input
    seen_task: Task  # the task as the model sees it, with windows or the reader's tokens as tokens
    pieces: int  # most pieces of a row, if long texts are read in pieces; else 1

    @property
    def native(self) -> bool:
        """Whether the model reads the task by its own input."""
        return self.reader is not None

    @classmethod
    def of(cls, task: Task, reservoir: Reservoir) -> ModelView:
        """Return the view of a task; raise `InputError` if the model cannot read it."""
        from reservoir.backbones import find_shape  # both import torch, which fit does not need
        from reservoir.inputs.native import open_reader

        family, shape = find_shape(reservoir.backbone, reservoir.depth)
        seen_task = reservoir.windowed(task)
        reader = None
        if reservoir.input == "native":
            reader = open_reader(seen_task, reservoir.backbone, reservoir.init)
            seen_task = replace(seen_task, form=reader.form, max_tokens=reader.max_tokens)
        pieces = 1
        if reservoir.long == "windows":
            pieces = -(-task.max_tokens // seen_task.max_tokens)  # rounded up
        return cls(family, shape.width, shape.depth, reader, seen_task, pieces)


def is_given(options: Options, name: str) -> bool:
    """Return whether the option of this name differs from its default; False if ``options`` do not have it."""
    defaults = {option.name: option.default for option in fields(options)}
    return name in defaults and getattr(options, name) != defaults[name]


def reasons_of(options: Options, defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the reason for each option: `GIVEN` if it was given, else that of its default."""
    return {name: GIVEN if is_given(options, name) else why for name, why in defaults.items()}
