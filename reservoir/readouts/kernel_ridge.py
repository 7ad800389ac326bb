"""Exact kernel ridge regression for up to 60,000 rows, by a Cholesky factorisation in panels that can be resumed.

The arc-cosine kernel of order 1 (Cho and Saul 2009, "Kernel methods for deep learning") is the product of
the outputs of a random layer of rectified units in the limit of infinitely many units:

    k(x, y) = ||x|| ||y|| (sin t + (pi - t) cos t) / pi,      cos t = x'y / (||x|| ||y||) .

With features that are standardised and divided by the root of their number, so that k(x, x) is 1 on average, centred
targets Y and a penalty alpha,

    V = (K + alpha I)^-1 Y ,      scores of a row x = mean + sum_i k(x, x_i) V_i .

The factor L of K + alpha I = L L' is computed panel by panel, from left to right. K itself is never stored, and of L
only the lower triangle: 10 GB for 50,000 rows. All products are in float64, because those of float32 have errors of
the size of the smallest penalties times the number of rows.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from reservoir.file_checks import check_arrays, from_json
from reservoir.readouts.linear import Block, Targets, check_width
from reservoir.readouts.moments import check_finite, deviation, inverse
from reservoir.readouts.products import arithmetic, blas_threads, report_work

MAX_FACTOR_ROWS = 60_000  # the factor of more rows takes more than 15 GB
PANEL = 2048  # columns of a panel: a panel of 50,000 rows takes 0.8 GB, and products run at full speed
KERNEL_ROWS = 8  # rows of a kernel that are computed at once
MAX_CACHED_BLOCKS = 1024  # blocks of rows whose scores a readout keeps

Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""``kernel(products, a, b)`` returns the kernel (m, n) of m rows with n others, from their products (m, n) and squared
norms, a (m,) and b (n,)."""


def linear_kernel(products: np.ndarray, _a: np.ndarray, _b: np.ndarray) -> np.ndarray:
    """Return the products themselves, which give ridge regression."""
    return products


def arccos_kernel(products: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the arc-cosine kernel of order 1; ``products`` (m, n) of float64 are overwritten by it."""
    right_norms = np.sqrt(b)
    # Some rows at a time, whose intermediate values stay in the cache of a core: all at once took ten times as long.
    for begin in range(0, len(products), KERNEL_ROWS):
        rows = products[begin : begin + KERNEL_ROWS]  # a view, which the kernel is written to
        norms = np.multiply.outer(np.sqrt(a[begin : begin + KERNEL_ROWS]), right_norms)  # ||x|| ||y||
        # The angle to a row of zeros may be any: its norm makes the kernel 0.
        cosine = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
        np.clip(cosine, -1, 1, out=cosine)  # rounding errors may exceed 1
        # ||x|| ||y|| ((pi - t) cos t + sin t) / pi, where sin t is the root of 1 - cos^2 t.
        np.subtract(np.pi, np.arccos(cosine), out=rows)
        rows *= cosine
        rows += np.sqrt(1 - np.square(cosine))
        rows *= norms
        rows /= np.pi
    return products


KERNEL_FUNCTIONS: Mapping[str, Kernel] = {"linear": linear_kernel, "arccos": arccos_kernel}


class Panels(Protocol):
    """Where the panels of a factor are kept, by their number."""

    def load(self, number: int, /) -> np.ndarray | None:
        """Return a panel, or None if it has not been saved."""
        ...

    def save(self, number: int, panel: np.ndarray, /) -> None:
        """Save a panel; if that is interrupted, `load` must not return a part of it."""
        ...


class PanelsInMemory:
    """Panels in memory."""

    def __init__(self) -> None:
        self._panels: dict[int, np.ndarray] = {}

    def load(self, number: int) -> np.ndarray | None:
        """Return a panel, or None if it has not been saved."""
        return self._panels.get(number)

    def save(self, number: int, panel: np.ndarray) -> None:
        """Keep a panel."""
        self._panels[number] = panel


@dataclass(frozen=True, kw_only=True, eq=False)
class Standardised:
    """Training rows for a kernel, standardised so that their squared norms are 1 on average."""

    rows: np.ndarray  # (x - mean) * scale, (n, w) of float32
    squares: np.ndarray  # squared norms of the rows, (n,)
    mean: np.ndarray  # (w,)
    scale: np.ndarray  # (w,): feature weights / standard deviations / root of w

    @classmethod
    def of(cls, x: np.ndarray, feature_weights: np.ndarray | None = None) -> "Standardised":
        """Return features (n, w) of float32, which are overwritten, as rows of a kernel.

        ``feature_weights`` (w,) multiply the standardised features.
        """
        n, width = x.shape
        blocks = [x[begin : begin + PANEL] for begin in range(0, n, PANEL)]
        mean = sum(block.sum(axis=0, dtype=np.float64) for block in blocks) / n
        variance = sum(np.square(block - mean).sum(axis=0) for block in blocks) / n
        check_finite(variance, "feature")
        weights = 1.0 if feature_weights is None else feature_weights
        scale = inverse(deviation(variance, mean)) * weights / np.sqrt(width)
        for block in blocks:
            block[:] = (block - mean) * scale
        squares = np.concatenate([np.square(block, dtype=np.float64).sum(axis=1) for block in blocks])
        return cls(rows=x, squares=squares, mean=mean, scale=scale)

    def take(self, rows: np.ndarray) -> "Standardised":
        """Return some of the rows, by their numbers or a mask; mean and scale stay those of all rows."""
        return replace(self, rows=self.rows[rows], squares=self.squares[rows])

    def products(self, kernel: str, left: slice, right: slice) -> np.ndarray:
        """Return a kernel, by name, of the rows ``left`` (m of them) with the rows ``right`` (k), (m, k) of float64."""
        right_rows = self.rows[right].astype(np.float64)
        blocks: list[np.ndarray] = []
        # The left rows are converted to float64 some at a time, because all of them take twice the memory of ``rows``.
        begin, end, _ = left.indices(len(self.rows))
        for start in range(begin, end, PANEL):
            block = slice(start, min(start + PANEL, end))
            products = _product(self.rows[block].astype(np.float64), right_rows.T)
            blocks.append(KERNEL_FUNCTIONS[kernel](products, self.squares[block], self.squares[right]))
        return np.concatenate(blocks)

    def digest(self) -> str:
        """Return the SHA-256 of the rows, which tells the factors of different rows apart."""
        return hashlib.sha256(np.ascontiguousarray(self.rows).data).hexdigest()


def factorise(training: Standardised, kernel: str, alpha: float, panels: Panels) -> None:
    """Save the panels of the lower factor L of K + alpha I = L L'; those that are saved already are not computed again.

    Panel j holds the columns of L from j PANEL on, up to PANEL of them, and in these the rows from j PANEL on, above
    which L is 0. Its shape is (n - j PANEL, columns).
    """
    n = len(training.rows)
    for number, begin in enumerate(range(0, n, PANEL)):
        if panels.load(number) is not None:
            continue
        size = min(PANEL, n - begin)  # columns of the panel
        panel = training.products(kernel, slice(begin, n), slice(begin, begin + size))
        panel[np.diag_indices(size)] += alpha
        # What the earlier columns of L contribute: rows of L to the left of the panel, times those at its top.
        for earlier in range(number):
            left = _load_saved(panels, earlier)[begin - earlier * PANEL :]
            panel -= _product(left, left[:size].T)
        # The square at the top of what is left is L_jj L_jj', and the rows below it are L_ij L_jj'.
        report_work(size**3 / 6 + (n - begin - size) * size**2 / 2)
        with blas_threads(many=True):
            top = cholesky(panel[:size], lower=True, check_finite=False)
            below = solve_triangular(top, panel[size:].T, lower=True, check_finite=False).T
        panels.save(number, np.concatenate([top, below]))


def solve_factored(panels: Panels, b: np.ndarray) -> np.ndarray:
    """Return (L L')^-1 b for ``b`` (n, t), from the panels of L."""
    x = b.astype(np.float64)
    starts = range(0, len(b), PANEL)
    # Forward, L z = b: each panel solves for the rows at its top, and subtracts these from the equations below.
    for number, begin in enumerate(starts):
        panel = _load_saved(panels, number)
        size = panel.shape[1]
        rows, below = slice(begin, begin + size), slice(begin + size, None)
        x[rows] = solve_triangular(panel[:size], x[rows], lower=True, check_finite=False)
        x[below] -= panel[size:] @ x[rows]
    # Backward, L' x = z, from the last panel to the first: each subtracts the rows below, and solves for those at its
    # top.
    for number, begin in reversed([*enumerate(starts)]):
        panel = _load_saved(panels, number)
        size = panel.shape[1]
        rows, below = slice(begin, begin + size), slice(begin + size, None)
        x[rows] -= panel[size:].T @ x[below]
        x[rows] = solve_triangular(panel[:size], x[rows], lower=True, trans=1, check_finite=False)
    return x


def _load_saved(panels: Panels, number: int) -> np.ndarray:
    """Return a panel that must have been saved."""
    panel = panels.load(number)
    assert panel is not None, "panels are saved from left to right"
    return panel


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the matrix product of two arrays, which the current `Arithmetic` may compute on a device."""
    put, fetch = arithmetic().put, arithmetic().fetch
    return fetch(arithmetic().product(put(a), put(b)))


STORED_ARRAYS = ("rows", "mean", "scale", "dual", "offset")
"""The fields of `KernelReadout` that are saved as arrays."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelReadout:
    """The readout of kernel ridge regression, scores = k(x, rows) dual + offset."""

    kernel: str  # one of `KERNEL_FUNCTIONS`
    rows: np.ndarray  # the training rows as `Standardised` has them, float32 (n, w)
    mean: np.ndarray  # float64 (w,)
    scale: np.ndarray  # float64 (w,)
    dual: np.ndarray  # weights of the training rows, float64 (n, t)
    offset: np.ndarray  # float64 (t,)
    targets: Targets  # how scores code labels
    temperature: float = 1.0  # divides the logits before they become probabilities
    # Scores of blocks of features, by the SHA-256 of the block: `fit` scores the validation rows for several reports.
    _cached_scores: dict[bytes, np.ndarray] = field(init=False, default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, training: Standardised, kernel: str, dual: np.ndarray, offset: np.ndarray, targets: Targets
    ) -> "KernelReadout":
        """Return the readout of a solution, weights ``dual`` (n, t) of the training rows and an ``offset`` (t,)."""
        return cls(
            kernel=kernel,
            rows=training.rows,
            mean=training.mean,
            scale=training.scale,
            dual=dual,
            offset=offset,
            targets=targets,
        )

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (m, t) of features (m, w), in float64; those of a block are kept, and returned again."""
        check_width(self.rows.shape[1], x.shape[1])
        key = hashlib.sha256(np.ascontiguousarray(x).data).digest()
        if key not in self._cached_scores:
            if len(self._cached_scores) >= MAX_CACHED_BLOCKS:
                self._cached_scores.clear()
            self._cached_scores[key] = self._compute_scores(x)
        return self._cached_scores[key]

    def _compute_scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (m, t) of features (m, w), in float64."""
        z = (x - self.mean) * self.scale
        squares = np.square(z).sum(axis=1)
        scores = np.tile(self.offset, (len(x), 1))
        # Some training rows at a time, because their kernel with all of ``x`` may not fit in memory.
        for begin in range(0, len(self.rows), PANEL):
            training_rows = self.rows[begin : begin + PANEL].astype(np.float64)
            products = _product(z, training_rows.T)
            kernel = KERNEL_FUNCTIONS[self.kernel](products, squares, np.square(training_rows).sum(axis=1))
            scores += kernel @ self.dual[begin : begin + PANEL]
        return scores

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the labels (m, outputs) of features (m, w): class numbers, or real values for regression."""
        return self.targets.predict(self.scores(x))

    @property
    def has_probabilities(self) -> bool:
        """Whether the readout gives probabilities, and not only real values."""
        return self.targets.classes > 0

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (m, outputs, classes), of features (m, w); not for regression."""
        return self.targets.probabilities(self.scores(x), self.temperature)

    def calibrate(self, blocks: Iterable[Block]) -> "KernelReadout":
        """Return the same readout with the temperature fitted to blocks of held-out features and labels."""
        scores_and_labels = [(self.scores(x), y) for x, y in blocks]
        scores, labels = (np.concatenate(arrays) for arrays in zip(*scores_and_labels, strict=True))
        calibrated = replace(self, temperature=self.targets.fit_temperature(scores, labels))
        # Scores do not depend on the temperature.
        calibrated._cached_scores.update(self._cached_scores)
        return calibrated

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays (for safetensors) and the settings (for JSON) of the readout."""
        # A bundle saves these arrays beside others that are named ``scale`` and ``offset``, too, hence the prefix.
        arrays = {f"kernel.{name}": getattr(self, name) for name in STORED_ARRAYS}
        labels = {"outputs": self.targets.outputs, "classes": self.targets.classes}
        return arrays, labels | {"kernel": self.kernel, "temperature": self.temperature}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> "KernelReadout":
        """Build a readout from the values of `to_arrays`; raise `ValueError` if their shapes do not match."""
        targets = from_json(Targets, {name: settings[name] for name in ("outputs", "classes")})
        fields = {name: arrays[f"kernel.{name}"] for name in STORED_ARRAYS}
        n, width = fields["rows"].shape
        columns = targets.columns
        check_arrays(
            fields,
            {
                "rows": (n, width),
                "mean": (width,),
                "scale": (width,),
                "dual": (n, columns),
                "offset": (columns,),
            },
        )
        kernel, temperature = settings["kernel"], settings["temperature"]
        # `Targets.fit_temperature` returns values from exp(-7) to exp(7).
        is_temperature = isinstance(temperature, float) and 1e-6 < temperature < 1e6
        if kernel not in KERNEL_FUNCTIONS or not is_temperature:
            raise ValueError("it has another kernel, or no temperature")
        return cls(**fields, kernel=kernel, targets=targets, temperature=temperature)
