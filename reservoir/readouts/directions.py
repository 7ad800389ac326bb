"""Directions in a layer along which the scores of a linear readout change, for steering the model that it reads.

A readout reads poolings of hidden states, s = x W + b with x = pool(h_1, ..., h_n). If one vector v is added to the
hidden states of all tokens of a layer, a mean, a minimum, a quantile or the state of one token each move by v as well,
and a standard deviation stays as it is. So the scores move by v'G exactly, where G sums the weights of all such
poolings of the layer. The weights are those of features that are not standardised, so v has the model's own units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reservoir.column import Column, layers_first_to_last, parse_columns
from reservoir.errors import InputError
from reservoir.pooling import find_pooling

MOVED = {
    *("last", "mean", "words", "min", "max", "first", "cls"),
    *("all", "segmentsK", "quantilesK", "sustainedK"),
}
"""The poolings, each of whose vectors moves by a vector that is added to all tokens."""
UNMOVED = {"std"}
"""The poolings that such a vector does not change."""


class ReadColumn(NamedTuple):
    """A column that a readout reads: its name, its features, and how many vectors of the layer's width these are."""

    name: str
    width: int
    vectors: int


def gradient(coef: np.ndarray, columns: Sequence[ReadColumn], layer: str) -> np.ndarray:
    """Return how the scores (t,) move with a vector added to all tokens of a layer, (width of the layer, t).

    ``coef`` (w, t) are the weights of the columns side by side. Raise `InputError` if the readout does not read the
    layer, or if one of its poolings is not linear in such a vector.
    """
    parts = np.split(coef, np.cumsum([column.width for column in columns])[:-1]) if columns else []
    total: np.ndarray | None = None
    layers: set[str] = set()
    for column, weights in zip(columns, parts, strict=True):
        (parsed,) = parse_columns(column.name)
        if not isinstance(parsed, Column):  # the raw input, which is not a layer
            continue
        layers.add(parsed.place)
        if parsed.place != layer:
            continue
        pattern = find_pooling(parsed.pooling).pattern
        if pattern not in MOVED | UNMOVED:
            raise InputError(
                f"direction: pooling {parsed.pooling} is not linear in the hidden states",
                "fit a column of another pooling, such as mean or last",
            )
        # The vectors of a column stand side by side; each of them moves alike.
        of_vectors = weights.reshape(column.vectors, -1, weights.shape[1])
        moved = of_vectors.sum(axis=0) if pattern in MOVED else np.zeros_like(of_vectors[0])
        total = moved if total is None else total + moved
    if total is None:
        names = ", ".join(layers_first_to_last(layers)) or "no layer"
        raise InputError(f"direction: the readout does not read layer {layer!r}", f"it reads {names}")
    return total
