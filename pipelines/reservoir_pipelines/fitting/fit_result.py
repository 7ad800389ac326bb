"""The result of ``fit``: every readout, the chosen one, and its evaluation on test."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from reservoir.column import common_place, layers_first_to_last
from reservoir.readouts.evaluation import Evaluation
from reservoir.readouts.linear import Readout
from reservoir_pipelines.fitting.against import Against
from reservoir_pipelines.fitting.layer_score import LayerScore
from reservoir_pipelines.fitting.result import Result
from reservoir_pipelines.output import as_json

SUMMARY = "fit.json"  # the file with the summary of a fit
ELSEWHERE = "folder.json"  # in the default folder of a fit: the path that ``--out`` named, for `report`


class CurvePoint(NamedTuple):
    """Mean, lowest and highest scores over random draws of training rows, each draw with its own best penalty."""

    rows: int
    valid_score: float
    test_score: float
    valid_range: tuple[float, float]
    test_range: tuple[float, float]

    @classmethod
    def of(cls, rows: int, scores: Sequence[tuple[float, float]]) -> "CurvePoint":
        """Return the point of the curve for the validation and test scores of some draws."""
        valid, test = zip(*scores, strict=True)
        return cls(rows, fmean(valid), fmean(test), (min(valid), max(valid)), (min(test), max(test)))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of `fit`.

    Parameters
    ----------
    entry : Path
        The cache entry (the first, of several).
    best : Result
        The readout chosen by validation.
    evaluation : Evaluation
        Its scores on the test split.
    raw : Result, optional
        The best readout of the raw input; None if the prepared data was removed.
    baselines : tuple of Result
        The best readout of each baseline, the raw input first; chosen as ``best`` is.
    against : tuple of Against
        What the test rows show of the best readout of the reservoir against each baseline; empty if only the raw
        input was fitted.
    left_out : tuple of Result
        The best readout of each column that was fitted only to some of the rows, best first.
    table : tuple of Result
        Every readout that was tried.
    layer_scores : tuple of LayerScore
        The best column of each layer; empty for fewer than two layers. Their test scores choose nothing.
    curve : tuple of CurvePoint
        The learning curve of the chosen columns, if requested.
    readout : LinearReadout or EstimatorReadout
        The chosen readout, with calibrated probabilities.
    results, plot, saved, predictions : Path
        Files with the table of every readout, its plot, the chosen readout for `predict`, and the predictions of
        the best readout, of each baseline and of each layer for validation and test rows, for `compare`.
    seconds : float
        Wall time.
    """

    entry: Path
    best: Result
    evaluation: Evaluation
    raw: Result | None
    baselines: tuple[Result, ...]
    against: tuple[Against, ...]
    left_out: tuple[Result, ...] = ()
    table: tuple[Result, ...]
    layer_scores: tuple[LayerScore, ...] = ()
    curve: tuple[CurvePoint, ...]
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
        """The p-value against the raw input; None without one."""
        raw = self.raw.name if self.raw else None
        return next((comparison.p_value for comparison in self.against if comparison.name == raw), None)

    @property
    def layers(self) -> dict[str, float]:
        """Best validation score of each layer alone, and of the raw input; empty for a single layer."""
        best: dict[str, float] = {}
        for result in [*self.table, *filter(None, [self.raw])]:
            layer = common_place(result.parsed)
            if layer is not None:
                best[layer] = max(result.valid_score, best.get(layer, result.valid_score))
        return {layer: best[layer] for layer in layers_first_to_last(best)} if len(best) > 2 else {}

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
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
