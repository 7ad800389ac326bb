"""The test rows: the only code of ``fit`` that reads them, after everything has been chosen and fitted."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from reservoir_cache import FeatureStore, SplitFeatures

from reservoir.readouts import evaluation
from reservoir.readouts.evaluation import Evaluation, balanced_interval
from reservoir.readouts.linear import Block, Readout, Tally
from reservoir.tasks.task import Task
from reservoir_pipelines.data.recordings import recording_name
from reservoir_pipelines.fitting.fitter import CurveReadout
from reservoir_pipelines.fitting.predictions_csv import LabelledRows, Predicted
from reservoir_pipelines.fitting.refit import FinalReadout, join_predictions, predict_block
from reservoir_pipelines.fitting.results import CurvePoint, Result
from reservoir_pipelines.fitting.source import (
    IMAGE_ROWS,
    RAW_ROWS,
    EntrySamples,
    EntrySource,
    EntryView,
    TestSplit,
)
from reservoir_pipelines.output import meter, notify

MIN_DISTINCT = 0.5  # share of distinct test rows from which repeats are too few to matter


class Test:
    """The test rows of the entries of a fit. It counts its readings, because each readout is scored once."""

    __test__ = False  # pytest collects classes of this name

    def __init__(self, stores: Sequence[FeatureStore]) -> None:
        self._views: dict[Path, EntryView[TestSplit]] = {
            store.entry.path: EntryView(store, ("test",)) for store in stores
        }
        self.readings = 0
        self._first = next(iter(self._views.values()))

    @cached_property
    def units(self) -> np.ndarray | None:
        """What is independent of other rows, (rows,): the group of each row, its stretch of a forecast, or its input.

        None if each row counts alone.
        """
        part = self._first["test"]
        if part.groups is not None:
            return part.groups
        task = Task.from_dict(self._first.spec.task)
        if task.horizon < 2:
            return repeated_inputs(self._first)
        return stretches_of_windows(part.index, task.horizon, int(task.parameters.get("series", 1)))

    def read(self, source: EntrySource) -> EntrySamples[TestSplit]:
        """Return the test samples of the columns of a source."""
        self.readings += 1
        return source.on(self._views)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What a readout that was chosen does on the test rows."""

    result: Result  # the result of the choice, with the score on test
    evaluation: Evaluation
    predicted: Predicted
    labels: np.ndarray  # of the samples, (n, outputs)
    counts: np.ndarray  # samples of each row, (rows,)
    units: np.ndarray | None  # as `Test.units`
    rows: LabelledRows

    @property
    def test_score(self) -> float:
        """The score on test."""
        assert self.result.test_score is not None, "`evaluate` adds it to the result"
        return self.result.test_score


def evaluate(final: FinalReadout, test: Test, task: Task) -> Scores:
    """Return the scores of a final readout on the test rows, which are read once."""
    samples = test.read(final.source)
    parts: list[Predicted] = []
    window_scores: list[np.ndarray] = []
    control_labels: list[np.ndarray] = []  # of each block, (draws, m, outputs)
    joins_windows = task.cuts_recordings and task.readout_tokens == 1
    names = [str(task.label(number)) for number in range(task.classes)]
    test_rows = samples.view["test"]

    # The predictions are collected while the blocks are evaluated, so that the rows are read once.
    def blocks() -> Iterator[Block]:
        for x, y in samples.blocks("test"):
            parts.append(predict_block(final.readout, x))
            if final.control:
                control_labels.append(np.stack([readout.predict(x) for readout in final.control.readouts]))
            if joins_windows:
                window_scores.append(_scores_to_join(final.readout, x, task.classes))
            yield x, y

    counts = samples.counts("test")
    scores = evaluation.evaluate_blocks(final.readout, blocks(), names, counts, test.units)
    # Sequences that were left out as too long count as wrong in a further accuracy.
    kept_share = samples.view.made_with.get("kept", {}).get("test", 1.0)
    scores = scores.with_baseline(task.floor, kept_share)
    if joins_windows:
        joined = _score_of_recordings(test_rows, np.concatenate(window_scores), names)
        scores = replace(scores, scores=scores.scores | joined)
    metric = final.result.metric
    result = replace(
        final.result,
        test_score=scores.scores[metric],
        test_interval=balanced_interval(scores) if metric == "balanced_accuracy" else scores.interval,
    )
    if final.control:
        labels_of_draws = np.concatenate(control_labels, axis=1)
        result = replace(result, control_score=final.control.score(samples, labels_of_draws, names, metric))
    return Scores(
        result=result,
        evaluation=scores,
        predicted=join_predictions(parts),
        labels=samples.labels("test"),
        counts=counts,
        units=test.units,
        rows=LabelledRows.of(test_rows),
    )


def _scores_to_join(readout: Readout, x: np.ndarray, classes: int) -> np.ndarray:
    """Return what windows of a recording are joined by: values (n, outputs), or (n, outputs, classes).

    The latter are probabilities, or 1 for the label of a readout without probabilities.
    """
    if not classes:
        return readout.predict(x)
    if readout.has_probabilities:
        return readout.probabilities(x)
    return np.eye(classes)[readout.predict(x).astype(int)]


def _score_of_recordings(
    windows: SplitFeatures, scores: np.ndarray, classes: Sequence[str]
) -> dict[str, float]:
    """Return the score of recordings whose scores are the means of their windows', by its name; as `predict` joins."""
    # The first window of each recording, the recording of each window, and the number of windows of each recording.
    names = [recording_name(name) for name in windows.ids.tolist()]
    _, first_window, recording_of_window, counts = np.unique(
        names, return_index=True, return_inverse=True, return_counts=True
    )
    sums = np.zeros((len(counts), *scores.shape[1:]))
    np.add.at(sums, recording_of_window, scores)
    means = sums / counts.reshape(-1, *[1] * (scores.ndim - 1))
    predicted = means.argmax(axis=-1) if classes else means
    y = windows.labels[first_window].reshape(predicted.shape)  # every window has the label of its recording
    metric = "accuracy" if classes else "R²"
    joined = evaluation.evaluate_labels(y, predicted, classes)
    return {f"{metric}_of_recordings": joined.scores[metric]}


def evaluate_all(finals: Iterable[FinalReadout], test: Test, task: Task) -> dict[FinalReadout, Scores]:
    """Return the scores of final readouts on the test rows; one that occurs twice is scored once."""
    different = list(dict.fromkeys(finals))
    scores: dict[FinalReadout, Scores] = {}
    with meter("score on test", len(different), unit="readouts") as bar:
        for final in different:
            scores[final] = evaluate(final, test, task)
            bar.advance(1)
    return scores


def evaluate_curve(
    readouts: Sequence[CurveReadout], source: EntrySource, test: Test
) -> tuple[CurvePoint, ...]:
    """Return the points of a learning curve, whose readouts are all scored in one reading of the test rows."""
    if not readouts:
        return ()
    # A tally counts for several readouts, along the first axis of the scores; here it is one.
    tallies = [Tally(point.readout.targets) for point in readouts]
    for x, y in test.read(source).blocks("test"):
        for point, tally in zip(readouts, tallies, strict=True):
            tally.update(point.readout.scores(x)[None], y)
    # A point of the curve is the mean over the random draws of one number of rows.
    scores_of_draws: dict[int, list[tuple[float, float]]] = {}  # validation and test, by the number of rows
    for point, tally in zip(readouts, tallies, strict=True):
        test_score = float(tally.accuracy()[0])
        scores_of_draws.setdefault(point.rows, []).append((point.valid_score, test_score))
    return tuple(CurvePoint.of(rows, scores) for rows, scores in scores_of_draws.items())


def stretches_of_windows(index: np.ndarray, horizon: int, series: int) -> np.ndarray:
    """Return the stretch of ``horizon`` steps of a series in which the labels of each window begin, (rows,).

    ``index`` (rows,) numbers the windows, oldest first; those of several ``series`` take turns. Neighbouring windows
    share all labels but one, so their errors are alike, and single windows would count the same evidence many times.
    In a simulation of two equally good forecasts of six steps (75 windows, 400 draws), p was below .05 in 44% of draws
    over windows, and in 10% over stretches.
    """
    stretch = index // (horizon * series) * series + index % series
    stretches = np.unique(stretch, return_inverse=True)[1]
    counted = f"{int(stretches.max()) + 1:,} stretches"
    notify(f"test windows overlap; intervals and p-values count {counted} of {horizon} steps")
    return stretches


def repeated_inputs(view: EntryView[TestSplit]) -> np.ndarray | None:
    """Return the number of the distinct input of each test row, (rows,); None if half of the rows are distinct."""
    if not view.has_raw:
        return None
    # The entry may have only some of the prepared rows (`--limit`); its index has their numbers.
    index, stored = view["test"].index, view.raw("test")
    step = IMAGE_ROWS if view.raw_task.pictures else RAW_ROWS
    # Inputs are numbered in the order in which they first appear; equal ones have the same digest.
    numbers: dict[bytes, int] = {}  # by digest
    inputs: list[int] = []  # of the rows
    for start in range(0, len(index), step):
        rows = stored.take(index[start : start + step])
        for x, length in zip(rows.x, rows.lengths, strict=True):
            content = x.tobytes() + int(length).to_bytes(8, "little")
            digest = hashlib.blake2b(content, digest_size=16).digest()
            inputs.append(numbers.setdefault(digest, len(numbers)))
    if len(numbers) >= MIN_DISTINCT * len(inputs):
        return None
    notify(
        f"the {len(inputs):,} test rows hold {len(numbers):,} distinct inputs; intervals and p-values count each once"
    )
    return np.array(inputs)
