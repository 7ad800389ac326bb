"""What prediction sets are made from: how far validation rows lie from a readout that was fitted to train alone."""

import numpy as np

from reservoir.readouts.evaluation import Readout
from reservoir.readouts.linear import RereadableBlocks
from reservoir.readouts.logistic import logistic_path
from reservoir.readouts.sweep import gather, solve
from reservoir_pipelines.fitting.fitters import EstimatorFitter, Fitter, RidgeFitter
from reservoir_pipelines.fitting.sources import Source


def held_out_scores(readout: Readout, source: Source, fitter: Fitter, alpha: float | None) -> np.ndarray:
    """Return the nonconformity score of every validation row, ascending, (n,).

    It is one minus the probability of the row's class, or the distance from the true value (split conformal prediction,
    Vovk et al. 2005). A readout that cross-validation fitted to train and valid is fitted again to train alone. Nothing
    is returned if rows have several labels or the readout has no probabilities.
    """
    targets = readout.targets
    if source.tokens() > 1 or targets.outputs > 1 or (targets.classes and not readout.has_probabilities):
        return np.zeros(0)
    if not isinstance(fitter, EstimatorFitter) and fitter.folds:
        train, alphas = RereadableBlocks(source.blocks, ("train",)), np.array([alpha])
        training = gather(train, targets)
        if isinstance(fitter, RidgeFitter):
            path = solve(training, alphas, source.emphasis)
        else:
            path = logistic_path(train, targets, alphas, training)
        readout = path.readout(0, targets, getattr(readout, "temperature", 1.0))
    found = []
    for x, y in source.blocks("valid"):
        if targets.classes:
            # Rounded as predict does, so that equal probabilities compare equal.
            chances = np.round(readout.probabilities(x)[:, 0], 6)
            found.append(1 - chances[np.arange(len(x)), y[:, 0].astype(int)])
        else:
            found.append(np.abs(readout.predict(x) - y)[:, 0])
    return np.sort(np.concatenate(found).astype(np.float64))
