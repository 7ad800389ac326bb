"""Decisions that need evidence: which readout is saved, and whether the reservoir adds to its baselines."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from reservoir.readouts.evaluation import MIN_UNITS, SIGNIFICANT, Evaluation, compare, standard_error
from reservoir_pipelines.fitting.fitters import ColumnFit, FinalReadout
from reservoir_pipelines.fitting.results import Against
from reservoir_pipelines.output import count_text, score_text

CAUTION_ERRORS = (
    2  # standard errors by which a test score may lie below validation before a caution is printed
)


def choose_fit(fits: Sequence[ColumnFit], units: np.ndarray, default: str | None = None) -> ColumnFit:
    """Return the fit with the best score on held-out samples, or that of a default column unless it is clearly worse.

    ``units`` (n,) is the row or group of each held-out sample.
    """
    best = max(fits, key=lambda fit: fit.result.merit)
    first = next((fit for fit in fits if fit.result.name == default), None)
    return best if first is None or clearly_better(best, first, units) else first


def better_baseline(
    chosen: ColumnFit, baselines: Sequence[ColumnFit], units: np.ndarray
) -> ColumnFit | None:
    """Return the best baseline that is clearly better than the reservoir's fit; None to save the reservoir."""
    better = [fit for fit in baselines if clearly_better(fit, chosen, units)]
    return max(better, key=lambda fit: fit.result.merit) if better else None


def clearly_better(fit: ColumnFit, other: ColumnFit, units: np.ndarray) -> bool:
    """Return whether a fit is better on the same held-out samples by more than a standard error of the difference."""
    if fit.merits is None or other.merits is None or fit.result.merit <= other.result.merit:
        return False
    # A column with a sample for each readout token is compared by row with one that has a sample for each row.
    merits = fit.merits(), other.merits()
    samples = min(len(one) for one in merits)
    ours, others = (one.reshape(samples, -1).mean(axis=1) for one in merits)
    differences = ours - others
    return float(differences.mean()) > standard_error(differences, _of_samples(units, samples))


def _of_samples(units: np.ndarray, samples: int) -> np.ndarray:
    """Return the unit of each of some samples, of which every row has the same number, from those of other samples."""
    if len(units) >= samples:
        return units.reshape(samples, -1)[:, 0]
    return np.repeat(units, samples // len(units))


def compare_with(ours: FinalReadout, baseline: FinalReadout) -> Against:
    """Return what the test rows show of the reservoir's readout against a baseline."""
    one, other = ours.evaluation, baseline.evaluation
    p_value, units = compare(one, other), len(one.merits)
    difference = float(ours.result.test_score or 0) - float(baseline.result.test_score or 0)
    # The sign of the mean merit decides, because the p-value is about it; balanced accuracy may differ.
    gain = float(one.merits.sum() - other.merits.sum())
    verdict = "no difference"
    if p_value is None or units < MIN_UNITS:
        verdict = "cannot be judged"
    elif p_value < SIGNIFICANT:
        verdict = "adds" if gain > 0 else "adds nothing"
    return Against(
        name=baseline.result.name,
        verdict=verdict,
        metric=ours.result.metric,
        difference=difference,
        p_value=p_value,
        rows=one.rows,
        groups=one.groups,
    )


def cautions(chosen: FinalReadout, fit: ColumnFit, units: np.ndarray) -> list[str]:
    """Return why the test score is worse than it should be: below a constant, or far below validation."""
    result, test, found = chosen.result, chosen.result.test_score, chosen.evaluation
    if test is None:
        return []
    lines = []
    name, constant = _constant_score(found, result.metric)
    rows, metric = count_text(found.rows, "test row"), result.metric.replace("_", " ")
    written = f"CAUTION: {metric} {score_text(test, result.metric)} on {rows} is"
    if test < constant:
        lines.append(f"{written} below {name}; add rows or discard the readout")
    if result.test_interval and fit.merits is not None:
        # The standard error of the test score towards validation, from the interval, and that of validation.
        of_test = (result.test_interval[1] - test) / NormalDist().inv_cdf(0.975)
        merits = fit.merits()
        of_valid = standard_error(merits, _of_samples(units, len(merits)))
        if result.valid_score - test > CAUTION_ERRORS * math.hypot(of_test, of_valid):
            valid = f"validation ({score_text(result.valid_score, result.metric)})"
            remedy = "trust the test score, and check that the rows of all splits are alike"
            lines.append(f"{written} more than two standard errors below {valid}; {remedy}")
    return lines


def _constant_score(found: Evaluation, metric: str) -> tuple[str, float]:
    """Return the name and the score of the best constant prediction."""
    if metric == "R²":
        return "0, that of predicting the mean", 0.0
    if metric == "balanced_accuracy":
        share = 1 / max(1, len(found.recall))
        return f"{share:.1%}, that of a constant label", share
    share = found.scores["majority_baseline"]
    return f"{share:.1%}, that of the most common class alone", share
