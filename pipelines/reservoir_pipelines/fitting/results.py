"""What ``fit`` returns and writes: one row per tried readout, the chosen one, and how sure its score is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.readouts.evaluation import Evaluation, Readout
from reservoir_pipelines.files import write_csv
from reservoir_pipelines.output import Record, as_json

SUMMARY = "fit.json"
"""The file of a fit's folder that can be read without what made it."""

ELSEWHERE = "folder.json"
"""Names, in the folder of the cache where a fit would be by default, the one that ``--out`` gave; `report` reads it."""

FIELDS = ("columns", "readout", "alpha", "metric", "valid_score", "converged", "chosen", "test_score")


@dataclass(frozen=True, kw_only=True)
class Result(Record):
    """One readout of one or several columns.

    Parameters
    ----------
    columns : tuple of str
        The cached columns it reads, side by side.
    readout : str
        Its kind: ``ridge``, ``logistic``, or an estimator's import path with its parameters.
    alpha : float, optional
        Its penalty; None for other estimators.
    valid_score : float
        What it was chosen by, on the validation split or over the folds of cross-validation.
    valid_loss : float, default 0
        How far ridge scores are there, squared, from the coding of the labels.
    metric : {"accuracy", "R²"}, default "accuracy"
        What the scores are: the share of right labels, or R² of real targets.
    converged : bool
        Whether its solver reached its tolerance.
    test_score : float, optional
        The same on the test split; only for a readout that was chosen.
    test_interval : tuple of (float, float), optional
        95% interval of the test accuracy over rows.
    """

    columns: tuple[str, ...]
    readout: str
    alpha: float | None
    valid_score: float
    valid_loss: float = 0.0
    metric: str = "accuracy"
    converged: bool = True
    test_score: float | None = None
    test_interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; accuracies by that name too, which no R² could be taken for."""
        named = {"valid_accuracy": self.valid_score, "test_accuracy": self.test_score}
        return (named if self.metric == "accuracy" else {}) | super().to_dict()

    @property
    def merit(self) -> tuple[float, float, float]:
        """The rank by validation: of equal ones the smaller loss is preferred, and then the larger penalty."""
        return self.valid_score, -self.valid_loss, self.alpha or 0.0

    @property
    def name(self) -> str:
        """The columns joined by a plus."""
        return "+".join(self.columns)

    @property
    def title(self) -> str:
        """The name for a person; of more than two columns their layers, and how many they are."""
        if len(self.columns) <= 2:
            return self.name
        layers = list(dict.fromkeys(column.partition("/")[0] for column in self.columns))
        named = "+".join(layers) if len(layers) <= 3 else f"{layers[0]} ... {layers[-1]}"
        return f"{named} ({len(self.columns)} columns)"

    @property
    def setting(self) -> str:
        """The penalty, or the parameters of an estimator."""
        if self.alpha is not None:
            return f"{self.alpha:.3g}"
        return self.readout.partition("(")[2].rstrip(")") or self.readout.rpartition(".")[2]

    def tested(self, found: Evaluation) -> Result:
        """Return the result with its test score."""
        return replace(self, test_score=found.scores[self.metric], test_interval=found.interval)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What `fit` found.

    Parameters
    ----------
    entry : Path
        The cache entry (the first, of several).
    best : Result
        The readout chosen by validation.
    evaluation : Evaluation
        How it does on the test split.
    raw : Result, optional
        The same sweep on the input itself; None where the prepared data is gone.
    p_value : float, optional
        Of the best readout and the raw input doing equally well on the test rows: McNemar's mid-p, of real targets a
        paired bootstrap's.
    table : tuple of Result
        Every tried readout of the reservoir.
    curve : tuple of (int, float, float)
        Training rows, validation and test score of the chosen columns under the best penalty for so many rows.
    readout : LinearReadout or EstimatorReadout
        The chosen readout, with calibrated probabilities.
    results, plot, saved : Path
        Table of every readout, picture of it, and the chosen readout for `predict`.
    seconds : float
        Wall time.
    """

    entry: Path
    best: Result
    evaluation: Evaluation
    raw: Result | None
    p_value: float | None
    table: tuple[Result, ...]
    curve: tuple[tuple[int, float, float], ...]
    readout: Readout = field(repr=False)
    results: Path
    plot: Path
    saved: Path
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        plain = {name: value for name, value in vars(self).items() if name not in ("table", "readout", "saved")}
        curve = [{"rows": n, "valid_score": v, "test_score": t} for n, v, t in self.curve]
        return as_json(plain | {"curve": curve, "tried": len(self.table), "readout": self.saved})


def score_matrix(table: Sequence[Result]) -> tuple[list[str], list[str], np.ndarray]:
    """Return the columns, the settings, and the validation scores (columns, settings), NaN where none was tried."""
    columns = list(dict.fromkeys(result.title for result in table))
    settings = list(dict.fromkeys(result.setting for result in sorted(table, key=lambda result: result.alpha or 0)))
    scores = np.full((len(columns), len(settings)), np.nan)
    for result in table:
        scores[columns.index(result.title), settings.index(result.setting)] = result.valid_score
    return columns, settings, scores


def write_table(path: Path, results: Sequence[Result], chosen: Result, raw: Result | None) -> None:
    """Write one line per readout as CSV, the chosen one marked."""
    lines = []
    for result in [*results, *([raw] if raw else [])]:
        mine = (result.columns, result.readout, result.alpha) == (chosen.columns, chosen.readout, chosen.alpha)
        alpha = "" if result.alpha is None else f"{result.alpha:.6g}"
        scores = result.valid_score, int(result.converged), int(mine), (chosen if mine else result).test_score
        lines.append((result.name, result.readout, alpha, result.metric, *scores))
    write_csv(path, [FIELDS, *lines])
