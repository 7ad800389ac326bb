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
    INT64,
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
    def not_padding(self) -> np.ndarray:
        """Mask (rows, values) of the values that are not padding."""
        return np.arange(self.x.shape[1]) < self.lengths[:, None]

    @property
    def channels(self) -> int:
        """Number of values of each token; 1 for symbols."""
        return self.x.shape[2] if self.x.ndim == 3 else 1

    def scaled(self, scaling: Scaling | None) -> "PaddedRows":
        """Return the rows with scaled values, and zeros as padding; for symbols, which have no scaling, these rows."""
        if scaling is None:
            return self
        scaled = np.where(self.not_padding[:, :, None], scaling(self.x), np.float32(0))
        return PaddedRows(scaled, self.lengths)


def is_list(x: Any) -> bool:
    """Return whether X is a list of sequences, or an array of objects, each an array or a list."""
    is_array_of_objects = isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 1
    holds_objects = isinstance(x, list | tuple) or is_array_of_objects
    return holds_objects and len(x) > 0 and hasattr(x[0], "__len__")


def unnested(x: Any) -> Any:
    """Return a table or column of series as a list of sequences, masked values as NaN, and any other X unchanged.

    A table has a series in each cell, and a column for each channel; a sequence is (values, channels), or whatever the
    cell has if there is a single column. Raises ValueError if the series of a row have several lengths.
    """
    # Masked arrays of NumPy, alone or in a list.
    if is_list(x) and any(map(np.ma.is_masked, x)):
        return [unnested(row) for row in x]
    if np.ma.is_masked(x):
        return x.astype(float).filled(np.nan)
    # A single column of pandas or polars.
    if hasattr(x, "to_list"):
        return x.to_list()
    # A table: the first row shows whether its cells hold series, which have a length, or numbers. Texts have a length,
    # too, but are not series. In a table of several columns they are left out here, because they may be numbers that
    # pandas has left as texts; a single column of texts becomes a list, which is refused later.
    names = list(getattr(x, "columns", ()))
    first_cells = [x[name][:1].to_list()[0] for name in names] if names and len(x) else []
    if len(names) > 1:
        first_cells = [cell for cell in first_cells if not isinstance(cell, str)]
    holds_series = any(hasattr(cell, "__len__") for cell in first_cells)
    if not holds_series:
        return x
    if len(names) == 1:
        return x[names[0]].to_list()
    # Several columns: the cells of a row become the channels of one sequence.
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


def with_whole_numbers(x: Any) -> Any:
    """Return a table of pandas or an array of objects as int64 if it holds integers alone; any other X unchanged.

    scikit-learn makes floats of integers in pandas' nullable columns, of integers among objects, and of a table of
    several types without a common integer type, and then symbols would be read as values.
    """
    from pandas import DataFrame
    from pandas.api.types import infer_dtype

    is_array_of_objects = isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 2
    if not (isinstance(x, DataFrame) or is_array_of_objects) or 0 in x.shape:
        return x
    table = DataFrame(x)
    holds_integers = all(infer_dtype(column, skipna=False) == "integer" for _, column in table.items())
    if not holds_integers or table.isna().any(axis=None):
        return x
    types = list(table.dtypes)
    are_of_numpy = all(isinstance(dtype, np.dtype) for dtype in types)
    if are_of_numpy and np.result_type(*types).kind in "ui":  # scikit-learn keeps them
        return x
    fit_in_int64 = min(table.min()) >= INT64.min and max(table.max()) <= INT64.max
    return x.astype(np.int64) if fit_in_int64 else x


def with_channels_last(x: Any, *, channels_first: bool, warn: bool) -> Any:
    """Return X with the channels as its last axis; with ``warn``, warn if they seem to be the second axis.

    X without an axis of channels, (rows, values) or a list of (values,), is returned unchanged.
    """
    if channels_first:
        if is_list(x):
            return [np.asarray(row).T if np.ndim(row) == 2 else row for row in x]
        return np.swapaxes(x, 1, 2) if np.ndim(x) == 3 else x
    shape = getattr(x, "shape", ())
    has_channels = len(shape) == 3
    if warn and has_channels and channels_seem_first(np.asarray(x[:CHECKED_ROWS])):
        warnings.warn(
            f"X of shape {shape} is read as {shape[1]} values of {shape[2]} channels; "
            "if it is (samples, channels, values), pass channels_first=True",
            stacklevel=4,  # the line of the user that called `fit`
        )
    return x


def pad_sequences(x: Sequence[Any], shortest: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences as one array padded with zeros, and their lengths (rows,) in values.

    The array is (rows, values) or (rows, values, channels), with at least ``shortest`` values. Raises ValueError for a
    sequence that holds no numbers, or other channels than the first one.
    """
    # Lists of polars hold None for a missing value, which becomes NaN.
    sequences = [np.asarray(sequence) for sequence in x]
    sequences = [
        sequence.astype(float) if sequence.dtype == object and None in sequence else sequence
        for sequence in sequences
    ]
    for row, sequence in enumerate(sequences):
        has_values = sequence.size > 0 and sequence.ndim in (1, 2)
        has_same_channels = sequence.shape[1:] == sequences[0].shape[1:]
        has_numbers = sequence.dtype.kind in "biuf"  # booleans, integers, unsigned integers, floats
        if not (has_values and has_same_channels and has_numbers):
            problem = f"X[{row}] has the shape {sequence.shape} and type {sequence.dtype}"
            raise ValueError(
                f"{problem}; give (values,) or (values, channels) of numbers, all with the same channels"
            )
    values, lengths = padded("X", sequences)
    # Lengthen the axis of values, the second one, if it is too short.
    padding = [(0, 0)] * values.ndim  # zeros before and after the values of each axis
    padding[1] = (0, max(0, shortest - values.shape[1]))
    return np.pad(values, padding), lengths.astype(np.int32)


def read_vocabulary(x: np.ndarray, lengths: np.ndarray) -> int | None:
    """Return the number of symbols in X, or None if X holds values.

    Of integers, `read_integers` decides which they are, and a warning says so.
    """
    may_be_symbols = x.ndim == 2 and x.dtype.kind in "ui"
    if not may_be_symbols:
        return None
    reading = read_integers(x, lengths)
    vocabulary = int(x.max()) + 1 if reading.are_names else None
    if vocabulary:
        reading_text = f"{vocabulary:,} symbols"
        remedy = "pass floats if they are values, or vocabulary=N if other data has more symbols"
    else:
        reading_text, remedy = "values", "pass vocabulary=N if they are symbols"
    warnings.warn(
        f"X read as {reading_text} ({reading.why}); {remedy}",
        stacklevel=4,  # the line of the user that called `fit`
    )
    return vocabulary


def as_rows(x: np.ndarray, lengths: np.ndarray, vocabulary: int | None, missing: str) -> PaddedRows:
    """Return checked X as rows of symbols, or of values if ``vocabulary`` is None.

    ``missing`` decides what happens to NaN (see `as_values`). Raises ValueError for X of another shape or type, for
    numbers that are no symbols of the vocabulary, and for NaN if ``missing`` is "refuse".
    """
    if x.dtype.kind not in "biuf":  # booleans, integers, unsigned integers, floats
        raise ValueError(f"X has the type {x.dtype}; give numbers, such as codes of categories")
    holds_symbols = vocabulary is not None
    most_axes = 2 if holds_symbols else 3
    if x.ndim > most_axes:
        expected = "(rows, tokens)" if holds_symbols else "(rows, values) or (rows, values, channels)"
        raise ValueError(f"X has the shape {x.shape}; give {expected}")
    if holds_symbols:
        # In cross-validation, the training rows of a fold may lack a symbol that its held-out rows have.
        remedy = "replace it, or pass vocabulary=N, the number of symbols of all data"
        symbols = clean_symbols("X", x, lengths, vocabulary, remedy=remedy)
        return PaddedRows(symbols.astype(np.int64), lengths)
    has_gap = np.isnan(x).reshape(len(x), -1).any(axis=1)  # (rows,)
    if missing == "refuse" and has_gap.any():
        raise ValueError(
            f"Input X contains NaN in row {has_gap.argmax()}; pass missing='mask' or missing='interpolate'"
        )
    # (rows, values, channels) in float32, or float64 if the type of X needs it.
    values = x.reshape(*x.shape[:2], -1).astype(np.result_type(x.dtype, np.float32), copy=False)
    return PaddedRows(as_values("X", values, lengths, missing), lengths)


def scaling_of(
    x: np.ndarray, rows: PaddedRows, task: Task, weights: np.ndarray | None, *, standardise: bool
) -> Scaling | None:
    """Return the standardisation of the values of all rows, by channel, as `standardisation` does for files.

    ``x`` holds the rows as they were given, and ``weights`` (rows,) are sample weights. The result is None for symbols,
    and changes nothing without ``standardise``. Raises `InputError` for a channel that varies too little for float32,
    or whose outliers move its mean too far from all other values.
    """
    if isinstance(task.form, Tokens):
        return None
    if not standardise:
        return Scaling.constant(1.0, task.form.dim)
    # ``original`` and ``tokens`` are (tokens of all rows, channels), without padding: the values as given, and as the
    # model reads them. ``rows.x`` may have further channels that mark missing values, which follow the others and are
    # not scaled.
    original = x.reshape(*rows.x.shape[:2], -1)[rows.not_padding]
    channels = original.shape[1]
    tokens = rows.x[rows.not_padding][:, :channels].astype(np.float64)
    # The checks take measurements of several pieces of the data; X is a single piece. The first one refuses channels of
    # which rounding to float32 has lost too much.
    check_rounding("X", [rounding(original, tokens)])
    # Mean and deviation of each channel, 0 and 1 for a channel without any value, which has neither.
    token_weights = None if weights is None else np.repeat(weights, rows.lengths)
    with np.errstate(invalid="ignore"):
        scaler = StandardScaler().fit(tokens, sample_weight=token_weights)
    mean = np.nan_to_num(np.asarray(scaler.mean_))
    check_outliers("X", [centre_and_spread(tokens)], mean)
    deviation = np.nan_to_num(np.asarray(scaler.scale_), nan=1.0)
    # If values are near 1e-40, 1 / deviation overflows float32.
    scale = np.minimum(1 / deviation, np.finfo(np.float32).max)
    marks = rows.channels - channels  # number of channels of 0 and 1 that mark missing values
    return Scaling(
        offset=np.append(mean, np.zeros(marks)).astype(np.float32),
        scale=np.append(scale, np.ones(marks)).astype(np.float32),
    )
