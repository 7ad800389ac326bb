"""What a readout reads: columns of cached entries, from the layers of a model, and baselines of the input.

Their names are parsed and printed only where they enter or leave the program: in options, in JSON and CSV
files, in the names of the cache, and on the terminal. All other code reads the fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from reservoir.errors import InputError
from reservoir.pooling import find_pooling

if TYPE_CHECKING:
    from reservoir.tasks.task import Task

JOIN = "+"  # between the names of columns side by side


@dataclass(frozen=True)
class Column:
    """One layer of a model under one pooling: a matrix (rows, width) in an entry of the cache.

    Parameters
    ----------
    layer : str
        The layer, such as ``block06``.
    pooling : str
        The pooling, such as ``mean`` or ``segments8``.
    entry : int, optional
        The number of the entry, from 1; None if only one entry is read.
    """

    layer: str
    pooling: str
    entry: int | None = None

    @classmethod
    def parse(cls, text: str) -> Column:
        """Return the column of a name such as ``block06/mean`` or ``2:block06/mean``; raise `InputError` for others."""
        # Without a colon or a slash, `partition` returns an empty separator.
        entry, colon, name = text.rpartition(":")
        layer, slash, pooling = name.partition("/")
        has_both_names = layer and slash and pooling
        has_wrong_entry = colon and not entry.isdecimal()
        if not has_both_names or has_wrong_entry:
            raise InputError(f"column {text!r}: write layer/pooling, as in block06/mean")
        return cls(layer, pooling, int(entry) if colon else None)

    def __str__(self) -> str:
        return f"{self.place}/{self.pooling}"

    @property
    def name(self) -> str:
        """The name of the column in its own entry."""
        return f"{self.layer}/{self.pooling}"

    @property
    def place(self) -> str:
        """The layer, with the number of its entry if there are several."""
        return self.layer if self.entry is None else f"{self.entry}:{self.layer}"


@dataclass(frozen=True)
class Baseline:
    """The raw input or a statistic of it, which no model computes."""

    name: str

    def __str__(self) -> str:
        return self.name


RAW = Baseline("raw")
ROLLING = Baseline("rolling statistics")

Columns: TypeAlias = tuple[Column | Baseline, ...]
"""Columns side by side, whose widths add up."""


def parse_columns(text: str) -> Columns:
    """Return the columns of a name such as ``block01/mean+block02/mean``; a name without a slash is a baseline."""
    return tuple(Column.parse(name) if "/" in name else Baseline(name) for name in text.split(JOIN))


def single_column(text: str) -> Column | None:
    """Return the column of a name or title; None if it names several columns, or a baseline."""
    first, *others = parse_columns(text)
    return first if isinstance(first, Column) and not others else None


def names_of(columns: Iterable[Column | Baseline]) -> tuple[str, ...]:
    """Return the name of each column."""
    return tuple(map(str, columns))


def joined_name(columns: Iterable[Column | Baseline]) -> str:
    """Return the name of columns side by side."""
    return JOIN.join(names_of(columns))


def short_name(columns: Columns) -> str:
    """Return a name that fits a table.

    | columns | name |
    |---|---|
    | one or two | ``block01/mean+block02/mean`` |
    | more, of one pooling and up to 3 layers | ``block01+block02+block03 (mean)`` |
    | more, of one pooling and more layers | ``mean of 4 layers`` |
    | more, of several poolings | ``block01 ... block04 (8 columns)`` |
    """
    if len(columns) <= 2:
        return joined_name(columns)
    layers = list(dict.fromkeys(place_of(column) for column in columns))
    # A baseline has no pooling.
    poolings = {column.pooling if isinstance(column, Column) else "" for column in columns}
    has_few_layers = len(layers) <= 3
    layer_text = JOIN.join(layers) if has_few_layers else f"{layers[0]} ... {layers[-1]}"
    if len(poolings) > 1:
        return f"{layer_text} ({len(columns)} columns)"
    (pooling,) = poolings
    return f"{layer_text} ({pooling})" if has_few_layers else f"{pooling} of {len(layers)} layers"


def place_of(column: Column | Baseline) -> str:
    """Return the layer of a column, or the name of a baseline."""
    return column.place if isinstance(column, Column) else column.name


def entry_of(place: str) -> str:
    """Return the number of the entry in a place such as ``2:block06``; empty if there is only one entry."""
    number, _, _ = place.rpartition(":")
    return number


def common_place(columns: Columns) -> str | None:
    """Return the layer, or the baseline, that all columns belong to; None if they belong to several."""
    places = {place_of(column) for column in columns}
    return places.pop() if len(places) == 1 else None


def layers_first_to_last(places: Iterable[str]) -> list[str]:
    """Return layers in the order in which a model computes them, entry by entry, `RAW` last."""
    return sorted(places, key=layer_order)


def layer_order(place: str) -> tuple[bool, str, bool, str]:
    """Return the sort key of a layer or baseline: its place in the order of `layers_first_to_last`."""
    # False sorts before True: first all but the raw input, and among the layers of an entry `embed`. The others sort by
    # name, in which blocks come before `final`; zeros make block100 come after block99,
    # and entry 10 after entry 9.
    entry = entry_of(place)
    layer = place.rpartition(":")[2]
    padded = re.sub(r"\d+", lambda number: number[0].zfill(9), layer)
    return place == RAW.name, entry.zfill(9), layer != "embed", padded


def layer_names(depth: int) -> tuple[str, ...]:
    """Return the names of all layers of a backbone with ``depth`` blocks, from the input side to the output side."""
    if not depth:  # without blocks, the input of the first one is all there is
        return ("embed",)
    return ("embed", *(block_name(i) for i in range(1, depth + 1)), "final")


def check_layers(layers: Iterable[str], family: str, depth: int) -> None:
    """Raise `InputError` if a backbone of this ``family`` and depth lacks one of the ``layers``."""
    for layer in layers:
        if not depth and layer != "embed":
            raise InputError(
                f"layer {layer!r}: {family} has no blocks, only the layer embed",
                "leave out --layers, or choose another --backbone, such as mini",
            )
        if layer not in layer_names(depth):
            raise InputError(
                f"layer {layer!r}: this {family} has embed, {block_name(1)} to {block_name(depth)} and final",
                "choose among them",
            )


def block_name(number: int) -> str:
    """Return the name of a block: ``block01`` for the first."""
    return f"block{number:02d}"


def column_shapes(task: Task, width: int, columns: Sequence[Column]) -> dict[Column, tuple[int, int]]:
    """Return the number of tokens and the width of one row of each column, at the hidden ``width`` of a model."""
    if task.labels_text_tokens:  # words or tokens of texts are rows themselves
        row_tokens = 1
    elif task.labels_each_token:  # a row keeps as many tokens as it has labels
        row_tokens = task.readout_tokens
    else:
        row_tokens = task.max_tokens
    return {
        column: find_pooling(column.pooling).shape(width, row_tokens, task.readout_tokens)
        for column in columns
    }
