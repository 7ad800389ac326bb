"""The scores of one readout under one setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir.column import JOIN, Columns, parse_columns, short_name
from reservoir_pipelines.output import Record


@dataclass(frozen=True, kw_only=True)
class Result(Record):
    """The scores of one readout of one or several columns.

    Parameters
    ----------
    columns : tuple of str
        The columns that the readout reads, concatenated.
    readout : str
        ``ridge``, ``logistic``, or the import path of an estimator with its parameters.
    alpha : float, optional
        The penalty; None for scikit-learn estimators.
    valid_score : float
        Score on the validation split, or on the held-out folds of cross-validation.
    valid_loss : float, default 0
        Mean squared distance from the coding of the labels, which decides between equal scores.
    metric : {"accuracy", "balanced_accuracy", "R²"}, default "accuracy"
        The metric of the scores; balanced accuracy if class weights are used, R² for regression.
    converged : bool
        Whether the solver reached its tolerance.
    test_score : float, optional
        Score on the test split; only for a chosen readout.
    test_interval : tuple of (float, float), optional
        95% interval of the test score over rows, or over groups if the rows have groups.
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
        """Return the fields as JSON values; accuracies also as ``valid_accuracy`` and ``test_accuracy``."""
        named = {"valid_accuracy": self.valid_score, "test_accuracy": self.test_score}
        return (named if self.metric == "accuracy" else {}) | super().to_dict()

    @property
    def sort_key(self) -> tuple[float, float, float]:
        """What ranks results: validation score, then smaller loss, then larger penalty."""
        return self.valid_score, -self.valid_loss, self.alpha or 0.0

    @property
    def name(self) -> str:
        """The columns, joined by ``+``."""
        return JOIN.join(self.columns)

    @property
    def parsed(self) -> Columns:
        """The columns, from their names."""
        return parse_columns(self.name)

    @property
    def title(self) -> str:
        """A short name: the columns; for more than two, their layers with their pooling or their number."""
        return short_name(self.parsed)

    @property
    def setting(self) -> str:
        """The penalty, or the parameters of an estimator."""
        if self.alpha is not None:
            return f"{self.alpha:.3g}"
        return self.readout.partition("(")[2].rstrip(")") or self.readout.rpartition(".")[2]


def score_matrix(table: Sequence[Result]) -> tuple[list[str], list[str], np.ndarray]:
    """Return the columns, the settings, and the validation scores (columns, settings), NaN if not tried."""
    columns = list(dict.fromkeys(result.title for result in table))
    settings = list(
        dict.fromkeys(result.setting for result in sorted(table, key=lambda result: result.alpha or 0))
    )
    scores = np.full((len(columns), len(settings)), np.nan)
    for result in table:
        scores[columns.index(result.title), settings.index(result.setting)] = result.valid_score
    return columns, settings, scores
