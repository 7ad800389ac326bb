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
"""The poolings all of whose vectors move by v, if the vector v is added to the hidden states of all tokens."""
UNMOVED = {"std"}
"""The poolings that such a vector does not change."""


class ReadColumn(NamedTuple):
    """A column that a readout reads."""

    name: str  # such as "block06/mean"
    width: int  # number of features
    vectors: int  # number of vectors of the layer's width, whose values are these features


def gradient(coef: np.ndarray, columns: Sequence[ReadColumn], layer: str) -> np.ndarray:
    """Return the matrix G (width of the layer, t) by which the scores (t,) move by v'G, if v is added to all tokens.

    ``coef`` (w, t) are the weights of the columns side by side. Raise `InputError` if the readout does not read the
    layer, or if one of its poolings is not linear in such a vector.
    """
    first_features = np.cumsum([column.width for column in columns])[:-1]  # of each column but the first
    weights_of_columns = np.split(coef, first_features) if columns else []
    total: np.ndarray | None = None  # None as long as no column is of the layer
    layers: set[str] = set()  # that the readout reads, for the message
    for column, weights in zip(columns, weights_of_columns, strict=True):
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
        # The vectors of a column stand side by side. If one of them moves by v, all do.
        weights_of_vectors = weights.reshape(column.vectors, -1, weights.shape[1])
        if pattern in MOVED:
            gradient_of_column = weights_of_vectors.sum(axis=0)
        else:
            gradient_of_column = np.zeros_like(weights_of_vectors[0])
        total = gradient_of_column if total is None else total + gradient_of_column
    if total is None:
        names = ", ".join(layers_first_to_last(layers)) or "no layer"
        raise InputError(f"direction: the readout does not read layer {layer!r}", f"it reads {names}")
    return total
