"""What readouts predict: for blocks of features, and for the held-out rows of cross-validation."""

from collections.abc import Iterable, Sequence

import numpy as np

from reservoir.readouts.linear import Block, LinearReadout, Readout
from reservoir_pipelines.fitting.entry_source import EntrySource
from reservoir_pipelines.fitting.entry_view import KNOWN, KnownSplit
from reservoir_pipelines.fitting.predictions_file import Predicted


def predict_held_out(
    readout: LinearReadout, source: EntrySource, scores: np.ndarray
) -> tuple[dict[KnownSplit, Predicted], dict[KnownSplit, slice | np.ndarray]]:
    """Return the predictions from held-out scores (n, T) of the samples of train, then of valid, and their rows."""
    samples = [len(source.labels(split)) for split in KNOWN]
    assert sum(samples) == len(scores), "every sample has held-out scores"
    predictions: dict[KnownSplit, Predicted] = {}
    for split, part in zip(KNOWN, np.split(scores, samples[:1]), strict=True):
        labels, chances = readout.targets.predict(part), None
        if readout.has_probabilities:
            chances = readout.targets.probabilities(part, readout.temperature, readout.link)
        predictions[split] = _predicted(labels, chances)
    return predictions, {split: source.selected_rows(split) for split in KNOWN}


def predict_blocks(readout: Readout, blocks: Iterable[Block]) -> Predicted:
    """Return the predictions for blocks of features."""
    return join_predictions([predict_block(readout, x) for x, _ in blocks])


def predict_block(readout: Readout, x: np.ndarray) -> Predicted:
    """Return the predictions for features (m, width)."""
    chances = readout.probabilities(x) if readout.has_probabilities else None
    return _predicted(readout.predict(x), chances)


def join_predictions(parts: Sequence[Predicted]) -> Predicted:
    """Return the predictions of blocks, one after the other."""
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
