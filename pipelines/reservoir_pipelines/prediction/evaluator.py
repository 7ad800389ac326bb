"""Predictions compared with the labels of their file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from reservoir.readouts.evaluation import Evaluation, evaluate_classes, evaluate_values

if TYPE_CHECKING:
    from reservoir_pipelines.prediction.predict import Prediction

BATCH = 1024  # predictions that are converted to arrays at a time


class PredictionEvaluator:
    """Compares predictions with the labels of their file while they are iterated; keeps some 20 bytes per label.

    A label that is none of the readout's classes counts as wrong.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._classes: tuple[str | int, ...] = ()
        self._numbers: dict[str, int] = {}
        self._pending: list[Prediction] = []
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []

    def watch(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Yield predictions after comparing each with its label."""
        for prediction in predictions:
            self.rows += 1
            if prediction.truth is not None:
                self._pending.append(prediction)
                if len(self._pending) == BATCH:
                    self._compress()
            yield prediction

    def result(self) -> Evaluation | None:
        """Return the evaluation; None where no row has a label."""
        self._compress()
        if not self._parts:
            return None
        truths, labels, chances = zip(*self._parts, strict=True)
        truth, label = np.concatenate(truths), np.concatenate(labels)
        if not self._classes:
            return evaluate_values(truth, label)
        ranks = None if chances[0] is None else np.concatenate(chances)
        return evaluate_classes(truth, label, [*self._numbers], ranks)

    def _compress(self) -> None:
        """Turn the predictions seen since the last call into arrays."""
        if not self._pending:
            return
        parts = [[getattr(one, name) for one in self._pending] for name in ("truth", "label", "probabilities")]
        self._classes, each = self._pending[0].classes, self._pending[0].each
        self._pending.clear()
        if each:
            parts = [list(chain.from_iterable(part)) for part in parts]
        truth, label = (np.asarray(part).reshape(len(part), -1) for part in parts[:2])
        chances = None
        if self._classes:
            for name in self._classes:
                self._number(name)
            truth, label = (
                np.array([[self._number(v) for v in row] for row in part.tolist()]) for part in (truth, label)
            )
            if len(self._classes) == 2 and len(parts[2][0]):
                chances = np.asarray(parts[2])[..., 1].reshape(len(truth), -1)
        self._parts.append((truth, label, chances))

    def _number(self, label: object) -> int:
        return self._numbers.setdefault(str(label), len(self._numbers))


def evaluate_predictions(predictions: Iterable[Prediction]) -> Evaluation | None:
    """Compare predictions with the labels of their file, an unknown one being wrong; None where no row has one."""
    evaluator = PredictionEvaluator()
    for _ in evaluator.watch(predictions):
        pass
    return evaluator.result()
