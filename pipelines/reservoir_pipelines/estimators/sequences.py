"""X of the estimators, an array or a list of arrays of unequal length, as padded rows."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir.tasks import read_integers
from reservoir.tasks.own.values import Rounding
from reservoir.tasks.task import Scaling, Task, Tokens


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences as a frozen model takes them, padded with zeros."""

    x: np.ndarray  # (rows, values, channels) of float32 or (rows, tokens) of int64
    lengths: np.ndarray  # (rows,) of int32

    @property
    def real(self) -> np.ndarray:
        """Mask (rows, values) of the values that are no padding."""
        return np.arange(self.x.shape[1]) < self.lengths[:, None]

    @property
    def channels(self) -> int:
        """Values of each token; 1 for symbols."""
        return self.x.shape[2] if self.x.ndim == 3 else 1

    def scaled(self, scaling: Scaling | None) -> "Rows":
        """Return the rows with scaled values."""
        if scaling is None:
            return self
        return Rows(np.where(self.real[:, :, None], scaling(self.x), np.float32(0)), self.lengths)


def is_list(x: Any) -> bool:
    """Return whether X is a list of sequences: of arrays, or of lists of unequal length."""
    if isinstance(x, np.ndarray):
        return x.dtype == object and x.ndim == 1 and bool(len(x)) and isinstance(x[0], np.ndarray | list | tuple)
    if not isinstance(x, list | tuple) or not len(x) or not all(hasattr(item, "__len__") for item in x):
        return False
    return isinstance(x[0], np.ndarray) or len({len(item) for item in x}) > 1


def with_channels_last(x: Any, *, channels_first: bool, warn: bool) -> Any:
    """Return X with the channels as its last axis; with ``warn``, warn if they seem to be the axis before."""
    if channels_first:
        if is_list(x):
            return [np.asarray(row).T if np.ndim(row) == 2 else row for row in x]
        return np.swapaxes(x, 1, 2) if np.ndim(x) == 3 else x
    shape = getattr(x, "shape", ())
    if warn and len(shape) == 3 and shape[2] > shape[1]:
        warnings.warn(
            f"X of shape {shape} is read as {shape[1]} values of {shape[2]} channels; "
            "if it is (samples, channels, values), pass channels_first=True",
            stacklevel=4,
        )
    return x


def padded(x: Sequence[Any], shortest: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences as one array of at least ``shortest`` values, padded with zeros, and their lengths."""
    items = [np.asarray(item) for item in x]
    for row, item in enumerate(items):
        if not item.size or item.ndim > 2 or item.shape[1:] != items[0].shape[1:] or item.dtype.kind not in "biuf":
            raise ValueError(
                f"X[{row}] has the shape {item.shape} and type {item.dtype}; give (values,) or (values, channels) of "
                "numbers, all with the same channels"
            )
    lengths = np.array([len(item) for item in items], np.int32)
    most = max(int(lengths.max()), shortest)
    out = np.zeros((len(items), most, *items[0].shape[1:]), np.result_type(*items))
    for row, item in enumerate(items):
        out[row, : len(item)] = item
    return out, lengths


def read_vocabulary(x: np.ndarray, lengths: np.ndarray) -> int | None:
    """Return the vocabulary of X, None for values; integers are read as in files, with a warning that says how."""
    if x.ndim != 2 or x.dtype.kind not in "ui":
        return None
    reading = read_integers(x, lengths)
    vocabulary = int(x.max()) + 1 if reading.names else None
    what, other = (f"{vocabulary:,} symbols", "give floats") if vocabulary else ("values", "give a vocabulary")
    warnings.warn(f"X read as {what} ({reading.why}; else {other})", stacklevel=4)
    return vocabulary


def as_rows(x: np.ndarray, lengths: np.ndarray, vocabulary: int | None) -> Rows:
    """Return checked X as rows; raise ValueError for a wrong shape or the first value that is no symbol."""
    if x.ndim > 3 or (vocabulary is not None and x.ndim > 2):
        want = "(rows, values) or (rows, values, channels)" if vocabulary is None else "(rows, tokens)"
        raise ValueError(f"X has the shape {x.shape}; give {want}")
    if vocabulary is not None:
        wrong = (x < 0) | (x >= vocabulary) | (x != np.floor(x))
        if wrong.any():
            row, token = np.argwhere(wrong)[0]
            what = f"X[{row}, {token}] is {x[row, token]}, not a symbol from 0 to {vocabulary - 1}"
            raise ValueError(f"{what}; give a larger vocabulary")
        return Rows(np.array(x, np.int64), lengths)
    with np.errstate(over="ignore"):
        values = np.array(x, np.float32).reshape(*x.shape[:2], -1)
    if not np.isfinite(values).all():
        raise ValueError("X holds values beyond the range of float32; scale it")
    return Rows(values, lengths)


def scaling_of(
    x: np.ndarray, rows: Rows, task: Task, weights: np.ndarray | None, *, standardise: bool
) -> Scaling | None:
    """Return the scale of each channel over the values of all rows, with ``weights`` (n,); None for symbols.

    ``x`` holds the rows as they were given. As for files (`reservoir.tasks.own`), a constant channel is only shifted,
    and one that float32 cannot resolve is refused.
    """
    if isinstance(task.form, Tokens):
        return None
    if not standardise:
        return Scaling.uniform(1.0, task.form.dim)
    tokens = rows.x[rows.real].astype(np.float64)
    rounding = Rounding()
    rounding.add(x.reshape(rows.x.shape)[rows.real], tokens)
    rounding.check("X")
    counted = np.repeat(np.ones(len(rows.x)) if weights is None else weights, rows.lengths)
    mean = np.average(tokens, axis=0, weights=counted)
    deviation = np.sqrt(np.average(np.square(tokens - mean), axis=0, weights=counted))
    still = deviation <= 1e-12 * np.maximum(np.abs(mean), 1e-300)
    # Where values are near 1e-40, 1 / deviation is beyond float32.
    scale = np.minimum(1 / np.where(still, 1, deviation), np.finfo(np.float32).max)
    return Scaling(offset=mean.astype(np.float32), scale=scale.astype(np.float32))
