"""What the readouts of a fit predict for the rows that they were not fitted to."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from reservoir_cache import FeatureStore

from reservoir.readouts.linear import Block, LinearReadout, Readout
from reservoir.tasks.task import SPLITS
from reservoir_pipelines.fitting.fitters import FinalReadout, Fitted
from reservoir_pipelines.fitting.predictions_file import BEST, LabelledRows, Predicted, ReadoutPredictions
from reservoir_pipelines.fitting.sources import KNOWN, RawSource, SampleSource


def labelled_rows(store: FeatureStore, readouts: Sequence[ReadoutPredictions]) -> dict[str, LabelledRows]:
    """Return the rows of the splits for which some readout has predictions."""
    splits = [split for split in SPLITS if any(split in readout.of_splits for readout in readouts)]
    return {
        split: LabelledRows(ids=row_ids(store, split), y=store[split].labels, groups=store[split].groups)
        for split in splits
    }


def row_ids(store: FeatureStore, split: str) -> np.ndarray:
    """Return what identifies each row of a split in its source, (rows,)."""
    return store[split].ids


def final_predictions(
    fitted: Sequence[Fitted], finals: Sequence[FinalReadout], saved: FinalReadout
) -> list[ReadoutPredictions]:
    """Return the predictions of the readout that is saved, and of every baseline; ``finals`` begins with the best."""
    pairs = list(zip(fitted, finals, strict=True))
    best = next(pair for pair in pairs if pair[1] is saved)
    return [
        predictions_of(BEST, *best),
        *(predictions_of(final.result.name, fit, final) for fit, final in pairs[1:]),
    ]


def predictions_of(name: str, fitted: Fitted, final: FinalReadout) -> ReadoutPredictions:
    """Return the predictions of a finished readout for the rows that it was not fitted to.

    With cross-validation these are all rows: the models of the other folds predict those of train and
    valid. Otherwise the readout that was fitted to train predicts the rows of valid.
    """
    fit, source, _ = fitted
    if fit.held_out is not None:
        assert isinstance(final.calibrated, LinearReadout), "cross-validation fits linear readouts"
        of_splits, rows = _of_held_out(final.calibrated, source, fit.held_out()[0])
    else:
        of_splits = {"valid": _of_blocks(final.calibrated, source.blocks("valid"))}
        rows = {"valid": source.kept("valid")}
    of_splits["test"], rows["test"] = _of_blocks(final.readout, source.blocks("test")), source.kept("test")
    return ReadoutPredictions(name=name, of_splits=of_splits, rows=rows)


def _of_held_out(
    readout: LinearReadout, source: SampleSource, scores: np.ndarray
) -> tuple[dict[str, Predicted], dict[str, slice | np.ndarray]]:
    """Return the predictions from held-out scores (n, T) of the samples of train, then of valid, and their rows."""
    # A readout that was fitted to some of the rows has held-out scores of all of them.
    whole = replace(source, some=None) if isinstance(source, RawSource) else source
    rows: dict[str, slice | np.ndarray] = {split: whole.kept(split) for split in KNOWN}
    samples = [len(whole.labels(split)) for split in KNOWN]
    assert sum(samples) == len(scores), "every sample has held-out scores"
    found = {}
    for split, part in zip(KNOWN, np.split(scores, samples[:1]), strict=True):
        labels, chances = readout.targets.predict(part), None
        if readout.has_probabilities:
            chances = readout.targets.probabilities(part, readout.temperature, readout.link)
        found[split] = _predicted(labels, chances)
    return found, rows


def _of_blocks(readout: Readout, blocks: Iterable[Block]) -> Predicted:
    """Return the predictions for blocks of features."""
    parts = []
    for x, _ in blocks:
        chances = readout.probabilities(x) if readout.has_probabilities else None
        parts.append(_predicted(readout.predict(x), chances))
    labels = np.concatenate([part.labels for part in parts])
    chances = [part.probabilities for part in parts if part.probabilities is not None]
    return Predicted(labels, np.concatenate(chances) if chances else None)


def _predicted(labels: np.ndarray, chances: np.ndarray | None) -> Predicted:
    """Return the prediction for labels (n, outputs) and the probabilities of all classes, (n, outputs, classes)."""
    if chances is None:
        return Predicted(labels, None)
    labels = labels.astype(np.int32)
    if chances.shape[-1] == 2:
        return Predicted(labels, chances[..., 1].astype(np.float32))
    own = np.take_along_axis(chances, labels[..., None].astype(np.int64), axis=-1)[..., 0]
    return Predicted(labels, own.astype(np.float32))
