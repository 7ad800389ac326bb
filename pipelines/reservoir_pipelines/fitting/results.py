"""The result of ``fit``: every readout, the chosen one with its evaluation on test, baselines and layers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from reservoir.column import (
    JOIN,
    RAW,
    Columns,
    common_place,
    layers_first_to_last,
    parse_columns,
    short_name,
)
from reservoir.file_checks import from_json
from reservoir.readouts.evaluation import Evaluation
from reservoir.readouts.linear import Readout
from reservoir_pipelines.output import Record, as_json, count_text, difference_text
from reservoir_pipelines.plots import ScoreGrid

SUMMARY = "fit.json"  # the file with the summary of a fit
RESULTS = "results.csv"  # the table of the candidates
LAYERS = "layers.csv"  # the table of layers, for programs; `LayerScore` explains its columns
PROBING = ("control_score", "description_bits", "compression")
"""The fields of a result that the options ``--control`` and ``--mdl`` add."""
ELSEWHERE = "folder"  # files folder-<digest>.json in the default folder of a fit: the paths of ``--out``, for `report`


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
    control_score : float, optional
        Mean score on test of the same setting fitted to random labels; only for a chosen readout, if requested.
    description_bits, compression : float, optional
        Length of a prequential code of the training labels given the columns, in bits, and how many times shorter it
        is than a code that gives every class the same probability; only for a chosen readout, if requested.
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
    control_score: float | None = None
    description_bits: float | None = None
    compression: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, and accuracies also as ``valid_accuracy`` and ``test_accuracy``.

        The fields of a control task and of a code length are left out if there are none.
        """
        values: dict[str, Any] = {}
        if self.metric == "accuracy":
            values = {"valid_accuracy": self.valid_score, "test_accuracy": self.test_score}
        values |= super().to_dict()
        values["selectivity"] = self.selectivity
        absent = {name for name in (*PROBING, "selectivity") if values[name] is None}
        return {name: value for name, value in values.items() if name not in absent}

    @property
    def selectivity(self) -> float | None:
        """Test score minus the score of the control task; None without one."""
        if self.test_score is None or self.control_score is None:
            return None
        return self.test_score - self.control_score

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        """Build a result from the values of `to_dict`, which has further ones beside the fields."""
        names = [item.name for item in fields(cls)]
        return from_json(cls, {name: values[name] for name in names if name in values})

    @property
    def sort_key(self) -> tuple[float, float, float]:
        """What ranks results, best last: validation score, then smaller loss, then larger penalty (0 without one)."""
        return self.valid_score, -self.valid_loss, self.alpha or 0.0

    @property
    def name(self) -> str:
        """The columns, joined by ``+``."""
        return JOIN.join(self.columns)

    @property
    def parsed(self) -> Columns:
        """The columns, parsed from their names."""
        return parse_columns(self.name)

    @property
    def title(self) -> str:
        """A short name: one or two columns; of more, their layers with the pooling or the number of columns."""
        return short_name(self.parsed)

    @property
    def setting(self) -> str:
        """The penalty, the parameters of an estimator, or without parameters the name of its class."""
        if self.alpha is not None:
            return f"{self.alpha:.3g}"
        # "sklearn.svm.LinearSVC(C=0.1)" has the setting "C=0.1", and "sklearn.svm.LinearSVC" the setting "LinearSVC".
        _class_path, _, parameters = self.readout.partition("(")
        return parameters.rstrip(")") or self.readout.split(".")[-1]


def score_grid(table: Sequence[Result], best: Result) -> ScoreGrid:
    """Return the validation scores of a table by columns and setting, for a plot that marks the ``best`` readout.

    Penalties ascend. A score is NaN if the setting was not tried on the columns.
    """
    # Other columns may have the same title, which is short: the name tells them apart.
    title_of_columns = {result.columns: result.title for result in table}
    columns_with_title = Counter(title_of_columns.values())
    name_of_columns = {
        columns: title if columns_with_title[title] == 1 else JOIN.join(columns)
        for columns, title in title_of_columns.items()
    }
    # Readouts of the same columns may have the same penalties, as the two ridges of a forecast have. Settings then name
    # the readout, too.
    readouts_with_penalty = {
        (result.columns, result.readout) for result in table if result.alpha is not None
    }
    columns_with_penalty = {columns for columns, _ in readouts_with_penalty}
    names_readouts = len(readouts_with_penalty) > len(columns_with_penalty)

    def setting_of(result: Result) -> str:
        """Return the name of a result's setting."""
        has_penalty = result.alpha is not None
        return f"{result.readout} {result.setting}" if names_readouts and has_penalty else result.setting

    def order_of(result: Result) -> tuple[bool, str, float]:
        """Return the sort key of a result's setting: those without a penalty, then each readout's by penalty."""
        return result.alpha is not None, result.readout if names_readouts else "", result.alpha or 0.0

    # Place the score of each result in the grid.
    row_of_columns = {columns: row for row, columns in enumerate(name_of_columns)}
    settings = list(dict.fromkeys(map(setting_of, sorted(table, key=order_of))))
    scores = np.full((len(row_of_columns), len(settings)), np.nan)
    for result in table:
        scores[row_of_columns[result.columns], settings.index(setting_of(result))] = result.valid_score
    return ScoreGrid(
        columns=list(name_of_columns.values()),
        settings=settings,
        scores=scores,
        best=(row_of_columns[best.columns], settings.index(setting_of(best))),
    )


@dataclass(frozen=True, kw_only=True)
class Against(Record):
    """What the test rows show of the best readout of the reservoir against a baseline on the same rows.

    Parameters
    ----------
    name : str
        The baseline.
    verdict : {"adds", "adds nothing", "no difference", "cannot be judged"}
        ``adds`` if the reservoir is better with p < .05, ``adds nothing`` if the baseline is, ``no difference`` if
        neither is. Fewer than six rows or groups cannot be judged, because no outcome would give p < .05.
    metric : str
        The metric of ``difference``.
    difference : float
        Test score of the reservoir minus that of the baseline.
    p_value : float, optional
        The p-value of the hypothesis that both are equally good: McNemar's mid-p, or for regression, several labels,
        balanced accuracy and groups the share of sign flips of the paired differences. None for fewer than three rows
        or groups.
    rows, groups : int
        Number of test rows, and of their groups (0 without groups).
    below_constant : bool
        Whether the reservoir's score is below that of the best constant prediction, as on labels that are noise.
    """

    name: str
    verdict: str
    metric: str
    difference: float
    p_value: float | None
    rows: int
    groups: int
    below_constant: bool = False

    @property
    def sentence(self) -> str:
        """The verdict in words, with its evidence."""
        name = "the raw input" if self.name == RAW.name else self.name
        difference = difference_text(abs(self.difference), self.metric)
        rows = count_text(self.rows, "test row")
        if self.groups:
            rows = f"{rows} in {count_text(self.groups, 'group')}"
        if self.verdict == "cannot be judged":
            return f"Whether this reservoir adds to {name} cannot be judged on {rows}."
        evidence = f"on {rows} (p = {self.p_value:.2g})"
        if self.verdict == "no difference":
            return f"No difference can be seen between this reservoir and {name} {evidence}."
        if self.verdict == "adds":
            but = ", but a constant prediction is better than both" if self.below_constant else ""
            return f"This reservoir adds {difference} to {name} {evidence}{but}."
        return f"This reservoir adds nothing to {name}: it is worse by {difference} {evidence}."


@dataclass(frozen=True, kw_only=True)
class LayerScore(Record):
    """The best column of one layer, compared with the layer that has the best validation score.

    Parameters
    ----------
    layer : str
        The layer.
    result : Result
        The best readout of its columns by validation, with its score on test.
    valid_interval : tuple of (float, float), optional
        95% interval of the validation score over rows, over groups if the rows have groups, or over the stretches of a
        forecast.
    difference : float, optional
        The test score minus that of the best layer; None for the best layer itself.
    difference_interval : tuple of (float, float), optional
        Paired 95% interval of the difference.
    p_value : float, optional
        The p-value of the hypothesis that both are equally good on the test rows.
    """

    layer: str
    result: Result
    valid_interval: tuple[float, float] | None
    difference: float | None
    difference_interval: tuple[float, float] | None
    p_value: float | None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LayerScore":
        """Build a score from the values of `to_dict`."""
        return from_json(cls, values | {"result": Result.from_dict(values["result"])})


@dataclass(frozen=True, kw_only=True)
class OperatingPoint(Record):
    """A threshold that keeps a rate of false positives, set on held-out rows, and what it does on the test rows.

    Parameters
    ----------
    rate : float
        The largest rate of false positives, over rows like the held-out ones.
    threshold : float
        A row gets the second of two classes if its probability exceeds this threshold.
    negatives : int
        Number of held-out rows of the first class, which set the threshold.
    recall : float
        Share of the test rows of the second class that exceed the threshold.
    false_positive_rate : float
        Share of the test rows of the first class that exceed it.
    recall_interval, false_positive_interval : tuple of (float, float), optional
        Their 95% intervals over rows, or over groups if the rows have groups.
    """

    rate: float
    threshold: float
    negatives: int
    recall: float
    false_positive_rate: float
    recall_interval: tuple[float, float] | None
    false_positive_interval: tuple[float, float] | None


class CurvePoint(NamedTuple):
    """Mean, lowest and highest scores over random draws of training rows, each draw with its own best penalty."""

    rows: int  # number of training rows
    valid_score: float  # mean
    test_score: float  # mean
    valid_range: tuple[float, float]  # lowest and highest
    test_range: tuple[float, float]

    @classmethod
    def of(cls, rows: int, scores: Sequence[tuple[float, float]]) -> "CurvePoint":
        """Return the point of the curve for a number of rows, from the validation and the test score of each draw."""
        valid, test = zip(*scores, strict=True)
        return cls(
            rows=rows,
            valid_score=fmean(valid),
            test_score=fmean(test),
            valid_range=(min(valid), max(valid)),
            test_range=(min(test), max(test)),
        )


def entry_names(entries: Sequence[Path]) -> str:
    """Return the names of the entries of a fit, numbered as their columns are if there are several."""
    names = [entry.name for entry in entries]
    return (
        names[0]
        if len(names) == 1
        else ", ".join(f"{number}: {name}" for number, name in enumerate(names, 1))
    )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of `fit`.

    Parameters
    ----------
    entry : Path
        The cache entry (the first, of several).
    entries : tuple of Path
        All cache entries, in the order of the numbers before their columns.
    best : Result
        The readout chosen by validation.
    evaluation : Evaluation
        Its scores on the test split.
    reservoir : Result
        The best readout of the reservoir, which ``against`` compares: ``best``, unless a baseline was chosen.
    raw : Result, optional
        The first baseline: the best readout of the raw input, or what words or tokens with labels tell alone; None
        if the prepared data is missing.
    baselines : tuple of Result
        The best readout of each baseline, the raw input first; chosen as ``best`` is.
    against : tuple of Against
        What the test rows show of the best readout of the reservoir against each baseline; empty if this readout reads
        only the raw input or its statistics.
    left_out : tuple of Result
        The best readout of each column that was fitted only to some of the rows, best first.
    table : tuple of Result
        Every readout that was tried.
    layer_scores : tuple of LayerScore
        The best column of each layer; empty for fewer than two layers. Their test scores choose nothing.
    curve : tuple of CurvePoint
        The learning curve of the columns of ``reservoir``, if requested.
    operating_points : tuple of OperatingPoint
        For two classes, thresholds that keep the rate of false positives at 1% and at 5%, as far as there are enough
        held-out rows of the first class (99 and 19).
    readout : LinearReadout or EstimatorReadout
        The chosen readout, with calibrated probabilities.
    results, plot, saved, predictions : Path
        Files with the table of every readout, its plot, the chosen readout for `predict`, and the predictions of
        the best readout, of each baseline and of each layer for validation and test rows, for `compare`.
    seconds : float
        Wall time.
    """

    entry: Path
    entries: tuple[Path, ...]
    best: Result
    evaluation: Evaluation
    reservoir: Result
    raw: Result | None
    baselines: tuple[Result, ...]
    against: tuple[Against, ...]
    left_out: tuple[Result, ...] = ()
    table: tuple[Result, ...]
    layer_scores: tuple[LayerScore, ...] = ()
    curve: tuple[CurvePoint, ...]
    operating_points: tuple[OperatingPoint, ...] = ()
    readout: Readout = field(repr=False)
    results: Path
    plot: Path
    saved: Path
    predictions: Path
    seconds: float

    @property
    def adds_nothing_to(self) -> tuple[str, ...]:
        """The baselines that are better on the test rows than the best readout of the reservoir."""
        return tuple(comparison.name for comparison in self.against if comparison.verdict == "adds nothing")

    @property
    def p_value(self) -> float | None:
        """The p-value of the difference to the baseline ``raw``; None if it was not compared."""
        raw = self.raw.name if self.raw else None
        return next((comparison.p_value for comparison in self.against if comparison.name == raw), None)

    @property
    def layers(self) -> dict[str, float]:
        """Best validation score of each layer alone, and of the raw input; empty for fewer than three of these."""
        results = [*self.table, self.raw] if self.raw else self.table
        best: dict[str, float] = {}
        for result in results:
            layer = common_place(result.parsed)  # None if the columns are of several layers
            if layer is not None:
                best[layer] = max(result.valid_score, best.get(layer, result.valid_score))
        # One of them may be the raw input, so a third one makes several layers.
        if len(best) < 3:
            return {}
        return {layer: best[layer] for layer in layers_first_to_last(best)}

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values: the fields without the table, and what is derived from them."""
        # The table is in results.csv and the readout in its own file, which takes the readout's name below.
        plain = {
            name: value for name, value in vars(self).items() if name not in ("table", "readout", "saved")
        }
        derived = {
            **{name: getattr(self.best, name) for name in ("metric", "valid_score", "test_score")},
            "layers": self.layers,
            "baselines": [{"name": result.name, **result.to_dict()} for result in self.baselines],
            "against": [
                {**comparison.to_dict(), "sentence": comparison.sentence} for comparison in self.against
            ],
            "adds_nothing_to": self.adds_nothing_to,
            "p_value": self.p_value,
            "left_out": [result.name for result in self.left_out],
            "curve": [point._asdict() for point in self.curve],
            "tried": len(self.table),
            "readout": self.saved,
        }
        return as_json(plain | derived)
