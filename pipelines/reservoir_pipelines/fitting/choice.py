"""Which readout is saved: another one than the default needs evidence on held-out rows of train and valid."""

from collections.abc import Sequence

import numpy as np

from reservoir.column import Columns
from reservoir.readouts.evaluation import standard_error
from reservoir_pipelines.fitting.column_fit import ColumnFit


def choose_fit(fits: Sequence[ColumnFit], units: np.ndarray, default: Columns | None = None) -> ColumnFit:
    """Return the fit with the best score on held-out samples, or that of a default column unless it is clearly worse.

    ``units`` (n,) is the row or group of each held-out sample.
    """
    best = max(fits, key=lambda fit: fit.result.sort_key)
    first = next((fit for fit in fits if fit.columns == default), None)
    return best if first is None or clearly_better(best, first, units) else first


def better_baseline(
    chosen: ColumnFit, baselines: Sequence[ColumnFit], units: np.ndarray
) -> ColumnFit | None:
    """Return the best baseline that is clearly better than the reservoir's fit; None to save the reservoir."""
    better = [fit for fit in baselines if clearly_better(fit, chosen, units)]
    return max(better, key=lambda fit: fit.result.sort_key) if better else None


def clearly_better(fit: ColumnFit, other: ColumnFit, units: np.ndarray) -> bool:
    """Return whether a fit is better on the same held-out samples by more than a standard error of the difference."""
    if (
        fit.sample_scores is None
        or other.sample_scores is None
        or fit.result.sort_key <= other.result.sort_key
    ):
        return False
    # A column with a sample for each readout token is compared by row with one that has a sample for each row.
    sample_scores = fit.sample_scores(), other.sample_scores()
    samples = min(len(values) for values in sample_scores)
    ours, others = (values.reshape(samples, -1).mean(axis=1) for values in sample_scores)
    differences = ours - others
    return float(differences.mean()) > standard_error(differences, units_of_samples(units, samples))


def units_of_samples(units: np.ndarray, samples: int) -> np.ndarray:
    """Return the unit of each of some samples, of which every row has the same number, from those of other samples."""
    if len(units) >= samples:
        return units.reshape(samples, -1)[:, 0]
    return np.repeat(units, samples // len(units))
