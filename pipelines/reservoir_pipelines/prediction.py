"""The stage ``predict``: labels and probabilities for new sequences, through the same frozen model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir import InputError
from reservoir.readouts import samples, unsample
from reservoir.tasks import encode, read_new
from reservoir_pipelines.bundle import Bundle
from reservoir_pipelines.forward import forward
from reservoir_pipelines.frozen import FrozenModel
from reservoir_pipelines.runs.trained import load_part, open_readout

BATCH_ROWS = 32
BLOCK_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a readout says of one sequence.

    Parameters
    ----------
    label : str, int, float or nested list of these
        The label; for a task with several outputs a list, for several readout tokens a list of lists.
    probabilities : list
        Of each class in the order of the task's classes, nested as the label; empty for regression.
    """

    label: Any
    probabilities: list[Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"label": self.label, "probabilities": self.probabilities}


def predict(readout: Path, file: Path, *, device: str = "auto") -> Iterator[Prediction]:
    """Apply a saved readout to the sequences of a file.

    Parameters
    ----------
    readout : Path
        Folder or JSON file that `fit` wrote, or the folder of a run of `train`.
    file : Path
        Any file that a task can be made from, without labels, or an idx file of images; see `reservoir.tasks.read_new`.
    device : str, default "auto"
        Where the forward pass runs.

    Yields
    ------
    Prediction
        For each sequence, in order.

    Raises
    ------
    InputError
        If the readout or the file is not readable, the sequences are not the task's or too large for the model, or the
        frozen weights are not those that the readout was fitted on.
    """
    bundle = open_readout(readout)
    x, lengths, _ = read_new(file, bundle.task)
    x, lengths = encode(bundle.task, x, lengths)
    models = [load_part(bundle.task, part, device, readout) for part in bundle.parts]
    for start in range(0, len(x), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        features = _features(bundle, models, x[rows], lengths[rows])
        wrong = ~np.isfinite(features).all(axis=1)
        if wrong.any():
            row = start + int(np.argmax(wrong)) * len(x[rows]) // len(features)
            raise InputError(f"{file}: the model overflows in row {row}; its values are too large: repair or remove it")
        yield from _answers(bundle, features)


def _features(bundle: Bundle, models: Sequence[FrozenModel], x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return what the readout reads of sequences, (samples, width); a row has one sample or more."""
    empty = np.zeros((len(x), bundle.task.readout_tokens, bundle.task.outputs))
    read = []
    for part, model in zip(bundle.parts, models, strict=True):
        features = forward(model, bundle.scaling, x, lengths, part.columns, BATCH_ROWS)
        read += [samples(features[column], empty)[0] for column in part.columns]
    return np.concatenate(read, axis=1)


def _answers(bundle: Bundle, features: np.ndarray) -> Iterator[Prediction]:
    task = bundle.task
    labels = unsample(bundle.readout.predict(features), task.readout_tokens, task.outputs)
    chances = None
    if task.classes:
        chances = bundle.readout.probabilities(features).reshape(*labels.shape, task.classes)
    for row, values in enumerate(labels):
        named = np.vectorize(task.label, otypes=[object])(values) if task.classes else values.astype(float)
        yield Prediction(
            label=_bare(named.tolist()),
            probabilities=[] if chances is None else _bare(np.round(chances[row], 6).tolist()),
        )


def _bare(nested: list[Any]) -> Any:
    """Return (tokens, outputs, ...) without the levels that have a single member."""
    outer = [inner[0] if len(inner) == 1 else inner for inner in nested]
    return outer[0] if len(outer) == 1 else outer
