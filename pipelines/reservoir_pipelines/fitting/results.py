"""What ``fit`` returns and writes: one row per tried readout, the chosen one, and how sure its accuracy is."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from reservoir.readouts import Targets
from reservoir_pipelines.workspace import replace_file

FIELDS = ("columns", "readout", "alpha", "valid_accuracy", "converged", "chosen", "test_accuracy")


class Readout(Protocol):
    """A fitted readout of any kind."""

    @property
    def targets(self) -> Targets:
        """The form of the labels."""
        ...

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (n, T) of features (n, w)."""
        ...

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the labels (n, outputs) of features (n, w)."""
        ...

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (n, outputs, classes)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """One readout of one or several columns.

    Parameters
    ----------
    columns : tuple of str
        The cached columns it reads, side by side.
    readout : str
        Its kind: ``ridge``, ``logistic``, or an estimator's import path with its parameters.
    alpha : float, optional
        Its penalty; None for other estimators.
    valid_accuracy : float
        What it was chosen by: the share of right labels (R^2 for regression) on the validation split, or over the
        folds of cross-validation.
    converged : bool
        Whether its solver reached its tolerance.
    test_accuracy : float, optional
        The same on the test split; only for a readout that was chosen.
    test_interval : tuple of (float, float), optional
        95% interval of the test accuracy over rows.
    """

    columns: tuple[str, ...]
    readout: str
    alpha: float | None
    valid_accuracy: float
    converged: bool = True
    test_accuracy: float | None = None
    test_interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "columns": list(self.columns),
            "readout": self.readout,
            "alpha": self.alpha,
            "valid_accuracy": self.valid_accuracy,
            "test_accuracy": self.test_accuracy,
            "test_interval": list(self.test_interval) if self.test_interval else None,
        }


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What `fit` found.

    Parameters
    ----------
    entry : Path
        The cache entry (the first, of several).
    best : Result
        The readout chosen by validation.
    raw : Result, optional
        The same sweep on the input itself; None where the prepared data is gone.
    table : tuple of Result
        Every tried readout of the reservoir.
    curve : tuple of (int, float, float)
        Training rows, validation and test accuracy of the chosen columns under the best penalty for so many rows.
    readout : LinearReadout or EstimatorReadout
        The chosen readout, with calibrated probabilities.
    results, plot, saved : Path
        Table of every readout, picture of it, and the chosen readout for `predict`.
    seconds : float
        Wall time.
    """

    entry: Path
    best: Result
    raw: Result | None
    table: tuple[Result, ...]
    curve: tuple[tuple[int, float, float], ...]
    readout: Readout = field(repr=False)
    results: Path
    plot: Path
    saved: Path
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "entry": str(self.entry),
            "best": self.best.to_dict(),
            "raw": self.raw.to_dict() if self.raw else None,
            "curve": [{"rows": n, "valid_accuracy": v, "test_accuracy": t} for n, v, t in self.curve],
            "tried": len(self.table),
            "results": str(self.results),
            "plot": str(self.plot),
            "readout": str(self.saved),
            "seconds": round(self.seconds, 3),
        }


def merit(result: Result) -> tuple[float, float]:
    """Rank by validation; of equal ones the larger penalty is preferred."""
    return result.valid_accuracy, result.alpha or 0.0


def wilson(accuracy: float, rows: int, z: float = 1.96) -> tuple[float, float]:
    r"""Return the interval of a share that was counted over rows.

    .. math:: \frac{p + z^2 / 2n \pm z \sqrt{p (1 - p) / n + z^2 / 4n^2}}{1 + z^2 / n}

    Parameters
    ----------
    accuracy : float
        The share p, between 0 and 1.
    rows : int
        Number of rows n. Labels of one row are not independent, so a row counts once.
    z : float, default 1.96
        Standard normal quantile; 1.96 for 95%.

    References
    ----------
    Wilson (1927), Probable inference, the law of succession, and statistical inference.
    """
    centre = accuracy + z * z / (2 * rows)
    spread = z * math.sqrt(accuracy * (1 - accuracy) / rows + z * z / (4 * rows * rows))
    scale = 1 + z * z / rows
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def write_table(path: Path, results: Sequence[Result], chosen: Result, raw: Result | None) -> None:
    """Write one line per readout as CSV, the chosen one marked; the file is replaced whole."""

    def write(part: Path) -> None:
        with part.open("x", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(FIELDS)
            for result in [*results, *([raw] if raw else [])]:
                mine = (result.columns, result.readout, result.alpha) == (chosen.columns, chosen.readout, chosen.alpha)
                test = chosen.test_accuracy if mine else result.test_accuracy
                writer.writerow(
                    [
                        "+".join(result.columns),
                        result.readout,
                        "" if result.alpha is None else f"{result.alpha:.6g}",
                        f"{result.valid_accuracy:.6f}",
                        int(result.converged),
                        int(mine),
                        "" if test is None else f"{test:.6f}",
                    ]
                )

    replace_file(path, write)
