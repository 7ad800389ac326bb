"""The conversion of X, in the forms that scikit-learn, aeon and pandas have, to padded rows for a frozen model."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from reservoir.tasks.source import clean_symbols
from reservoir.tasks.task import Scaling, Task, Tokens
from reservoir_pipelines.data.array_axes import channels_seem_first
from reservoir_pipelines.data.rows import padded
from reservoir_pipelines.data.values import (
    as_values,
    centre_and_spread,
    check_outliers,
    check_rounding,
    read_integers,
    rounding,
)

CHECKED_ROWS = 256
"""Rows of X, from the first, that show which axis is that of the channels."""


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """Sequences in the form that a frozen model reads, padded with zeros."""

    x: np.ndarray  # (rows, values, channels) of float32 or (rows, tokens) of int64
    lengths: np.ndarray  # (rows,) of int32

    @property
    def real(self) -> np.ndarray:
        """Mask (rows, values) of the values that are not padding."""
        return np.arange(self.x.shape[1]) < self.lengths[:, None]

    @property
    def channels(self) -> int:
        """Number of values of each token; 1 for symbols."""
        return self.x.shape[2] if self.x.ndim == 3 else 1

    def scaled(self, scaling: Scaling | None) -> "PaddedRows":
        """Return the rows with scaled values."""
        if scaling is None:
            return self
        return PaddedRows(np.where(self.real[:, :, None], scaling(self.x), np.float32(0)), self.lengths)


def is_list(x: Any) -> bool:
    """Return whether X is a list of sequences, each an array or a list."""
    listed = isinstance(x, list | tuple) or (
        isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 1
    )
    return listed and len(x) > 0 and hasattr(x[0], "__len__")


def unnested(x: Any) -> Any:
    """Return a table or column of series as a list of sequences, masked values as NaN, and any other X unchanged."""
    if is_list(x) and any(map(np.ma.is_masked, x)):
        return [unnested(row) for row in x]
    if np.ma.is_masked(x):
        return x.astype(float).filled(np.nan)
    if hasattr(x, "to_list"):
        return x.to_list()
    names = list(getattr(x, "columns", ()))
    first = [x[name][:1].to_list()[0] for name in names] if names and len(x) else []
    # In a table of several columns, texts are numbers that pandas did not convert.
    if not any(hasattr(cell, "__len__") for cell in first if not (isinstance(cell, str) and names[1:])):
        return x
    if len(names) == 1:
        return x[names[0]].to_list()
    rows = list(zip(*(x[name].to_list() for name in names), strict=True))
    for row, cells in enumerate(rows):
        if len({np.shape(cell) for cell in cells}) > 1:
            shapes = ", ".join(
                f"{name!r} {np.shape(cell)}" for name, cell in zip(names, cells, strict=True)
            )
            raise ValueError(
                f"X[{row}] holds series of several lengths: {shapes}; drop or resample some columns"
            )
    return [np.stack([np.asarray(cell, float) for cell in cells], axis=1) for cells in rows]


def with_channels_last(x: Any, *, channels_first: bool, warn: bool) -> Any:
    """Return X with the channels as its last axis; with ``warn``, warn if they seem to be the second axis."""
    if channels_first:
        if is_list(x):
            return [np.asarray(row).T if np.ndim(row) == 2 else row for row in x]
        return np.swapaxes(x, 1, 2) if np.ndim(x) == 3 else x
    shape = getattr(x, "shape", ())
    if warn and len(shape) == 3 and channels_seem_first(np.asarray(x[:CHECKED_ROWS])):
        warnings.warn(
            f"X of shape {shape} is read as {shape[1]} values of {shape[2]} channels; "
            "if it is (samples, channels, values), pass channels_first=True",
            stacklevel=4,
        )
    return x


def pad_sequences(x: Sequence[Any], shortest: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences as one array of at least ``shortest`` values, padded with zeros, and their lengths."""
    # Lists of polars hold None for a missing value.
    items = [
        item.astype(float) if item.dtype == object and None in item else item for item in map(np.asarray, x)
    ]
    for row, item in enumerate(items):
        has_values = item.size > 0 and item.ndim in (1, 2)
        has_same_channels = item.shape[1:] == items[0].shape[1:]
        if not has_values or not has_same_channels or item.dtype.kind not in "biuf":
            problem = f"X[{row}] has the shape {item.shape} and type {item.dtype}"
            raise ValueError(
                f"{problem}; give (values,) or (values, channels) of numbers, all with the same channels"
            )
    values, lengths = padded("X", items)
    # Lengthen the axis of values, the second one, if it is too short.
    padding = [(0, 0)] * values.ndim
    padding[1] = (0, max(0, shortest - values.shape[1]))
    return np.pad(values, padding), lengths.astype(np.int32)


def read_vocabulary(x: np.ndarray, lengths: np.ndarray) -> int | None:
    """Return the vocabulary of X, or None for values; for integers, `read_integers` decides, with a warning."""
    if x.ndim != 2 or x.dtype.kind not in "ui":
        return None
    reading = read_integers(x, lengths)
    vocabulary = int(x.max()) + 1 if reading.are_names else None
    what, other = (f"{vocabulary:,} symbols", "floats") if vocabulary else ("values", "a vocabulary")
    warnings.warn(f"X read as {what} ({reading.why}); if this is wrong, pass {other}", stacklevel=4)
    return vocabulary


def as_rows(x: np.ndarray, lengths: np.ndarray, vocabulary: int | None, missing: str) -> PaddedRows:
    """Return checked X as rows; ``missing`` decides what happens to NaN (see `as_values`)."""
    if x.ndim > 3 or (vocabulary is not None and x.ndim > 2):
        want = "(rows, values) or (rows, values, channels)" if vocabulary is None else "(rows, tokens)"
        raise ValueError(f"X has the shape {x.shape}; give {want}")
    if vocabulary is not None:
        return PaddedRows(clean_symbols("X", x, lengths, vocabulary).astype(np.int64), lengths)
    gaps = np.isnan(x).reshape(len(x), -1).any(axis=1)
    if missing == "refuse" and gaps.any():
        raise ValueError(
            f"Input X contains NaN in row {gaps.argmax()}; pass missing='mask' or missing='interpolate'"
        )
    values = x.reshape(*x.shape[:2], -1).astype(np.result_type(x.dtype, np.float32), copy=False)
    return PaddedRows(as_values("X", values, lengths, missing), lengths)


def scaling_of(
    x: np.ndarray, rows: PaddedRows, task: Task, weights: np.ndarray | None, *, standardise: bool
) -> Scaling | None:
    """Return the standardisation of the values of all rows, with ``weights`` (n,), as `standardisation` does for files.

    ``x`` holds the rows as they were given. The result is None for symbols.
    """
    if isinstance(task.form, Tokens):
        return None
    if not standardise:
        return Scaling.constant(1.0, task.form.dim)
    original = x.reshape(*rows.x.shape[:2], -1)[rows.real]
    # Without the channels that mark missing values, which follow the others.
    tokens = rows.x[rows.real][:, : original.shape[1]].astype(np.float64)
    check_rounding("X", [rounding(original, tokens)])
    token_weights = None if weights is None else np.repeat(weights, rows.lengths)
    with np.errstate(invalid="ignore"):  # a channel without any value has neither a mean nor a deviation
        scaler = StandardScaler().fit(tokens, sample_weight=token_weights)
    mean = np.nan_to_num(np.asarray(scaler.mean_))
    check_outliers("X", [centre_and_spread(tokens)], mean)
    deviation = np.nan_to_num(np.asarray(scaler.scale_), nan=1.0)
    # If values are near 1e-40, 1 / deviation overflows float32.
    scale = np.minimum(1 / deviation, np.finfo(np.float32).max)
    marks = np.zeros(rows.channels - len(mean))  # channels that mark missing values stay 0 and 1
    offset, scale = np.append(mean, marks), np.append(scale, marks + 1)
    return Scaling(offset=offset.astype(np.float32), scale=scale.astype(np.float32))
