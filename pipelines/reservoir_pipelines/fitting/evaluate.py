"""The test rows: the only code of ``fit`` that reads them, after everything has been chosen and fitted."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from reservoir_cache import FeatureStore, SplitFeatures

from reservoir.readouts import evaluation
from reservoir.readouts.evaluation import Evaluation, balanced_interval
from reservoir.readouts.linear import Block, Readout, Tally
from reservoir.tasks.task import Task
from reservoir_pipelines.data.recordings import recording_name
from reservoir_pipelines.fitting.fitter import CurveReadout
from reservoir_pipelines.fitting.predictions_csv import LabelledRows, Predicted, row_units
from reservoir_pipelines.fitting.refit import FinalReadout, join_predictions, predict_block
from reservoir_pipelines.fitting.results import CurvePoint, Result
from reservoir_pipelines.fitting.source import (
    EntrySamples,
    EntrySource,
    EntryView,
    TestSplit,
)
from reservoir_pipelines.output import meter, notify


class Test:
    """The test rows of the entries of a fit.

    It counts its ``readings``, so that tests can show that each readout is scored once.
    """

    __test__ = False  # pytest collects classes of this name

    def __init__(self, stores: Sequence[FeatureStore]) -> None:
        self._views: dict[Path, EntryView[TestSplit]] = {
            store.entry.path: EntryView(store, ("test",)) for store in stores
        }
        self.readings = 0
        self._first_view = next(iter(self._views.values()))  # all entries have the same rows

    @cached_property
    def units(self) -> np.ndarray | None:
        """The unit of each row, (rows,): rows of one unit are not independent of each other.

        None if each row is a unit; see `row_units`.
        """
        view = self._first_view
        rows = view["test"]
        read_inputs = partial(view.raw, "test") if view.has_raw else None
        task = Task.from_dict(view.spec.task)
        units, note = row_units(task, rows.index, rows.groups, rows.stretches, read_inputs)
        if note:
            notify(note)
        return units

    def read(self, source: EntrySource) -> EntrySamples[TestSplit]:
        """Return the test samples of the columns of a source, and count a reading."""
        self.readings += 1
        return source.on(self._views)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What a readout that was chosen does on the test rows."""

    result: Result  # the result by which it was chosen, with the score on test
    evaluation: Evaluation  # all scores on test
    predicted: Predicted  # the predictions for the samples
    labels: np.ndarray  # the true labels of the samples, (n, outputs)
    counts: np.ndarray  # number of samples of each row, (rows,)
    units: np.ndarray | None  # as `Test.units`
    rows: LabelledRows  # the test rows

    @property
    def test_score(self) -> float:
        """The score on test."""
        assert self.result.test_score is not None, "`evaluate` adds it to the result"
        return self.result.test_score


def evaluate(final: FinalReadout, test: Test, task: Task) -> Scores:
    """Return the scores of a final readout on the test rows, which are read once."""
    samples = test.read(final.source)
    predictions: list[Predicted] = []  # of each block
    window_scores: list[np.ndarray] = []  # of each block
    control_labels: list[np.ndarray] = []  # of each block, (draws, m, outputs)
    # The windows of a recording with one label are joined, as `predict` joins them.
    joins_windows = task.cuts_recordings and task.readout_tokens == 1
    class_names = [str(task.label(number)) for number in range(task.classes)]
    test_rows = samples.view["test"]

    def blocks() -> Iterator[Block]:
        """Yield the blocks of test samples, and collect the predictions for them, so that the rows are read once."""
        for x, y in samples.blocks("test"):
            predictions.append(predict_block(final.readout, x))
            if final.control:
                control_labels.append(np.stack([readout.predict(x) for readout in final.control.readouts]))
            if joins_windows:
                window_scores.append(_scores_to_join(final.readout, x, task.classes))
            yield x, y

    counts = samples.counts("test")
    # The metric by which readouts were chosen is also that by which they are compared.
    metric = final.result.metric
    is_balanced = metric == "balanced_accuracy"
    evaluated = evaluation.evaluate_blocks(
        final.readout, blocks(), class_names, counts, test.units, balanced=is_balanced
    )
    # Sequences that were left out as too long count as wrong in a further accuracy.
    kept_share = samples.view.made_with.get("kept", {}).get("test", 1.0)
    evaluated = evaluated.with_baseline(task.floor, kept_share)
    if task.horizon:
        evaluated = evaluated.of_forecast()
    if joins_windows:
        of_recordings = _score_of_recordings(test_rows, np.concatenate(window_scores), class_names)
        evaluated = replace(evaluated, scores=evaluated.scores | of_recordings)
    # The result has the score of this metric, and that of its control task.
    result = replace(
        final.result,
        test_score=evaluated.scores[metric],
        test_interval=balanced_interval(evaluated) if is_balanced else evaluated.interval,
    )
    if final.control:
        labels_of_draws = np.concatenate(control_labels, axis=1)
        control_score = final.control.score(samples, labels_of_draws, class_names, metric)
        result = replace(result, control_score=control_score)
    return Scores(
        result=result,
        evaluation=evaluated,
        predicted=join_predictions(predictions),
        labels=samples.labels("test"),
        counts=counts,
        units=test.units,
        rows=LabelledRows.of(test_rows, test.units),
    )


def _scores_to_join(readout: Readout, x: np.ndarray, classes: int) -> np.ndarray:
    """Return the scores of windows with features (n, w), whose means over a recording predict its label.

    They are the predicted values (n, outputs) or, of classes, the probabilities (n, outputs, classes). A readout
    without probabilities gives 1 to the predicted class, so that the windows vote. ``classes`` is 0 for values.
    """
    if not classes:
        return readout.predict(x)
    if readout.has_probabilities:
        return readout.probabilities(x)
    return np.eye(classes)[readout.predict(x).astype(int)]


def _score_of_recordings(
    windows: SplitFeatures, scores: np.ndarray, class_names: Sequence[str]
) -> dict[str, float]:
    """Return the accuracy or R² of whole recordings, by the name of this score.

    The ``windows`` have the ``scores`` of `_scores_to_join`. As in `predict`, the scores of a recording are the means
    of those of its windows.
    """
    # The first window of each recording, the recording of each window, and the number of windows of each recording.
    recordings = [recording_name(window_id) for window_id in windows.ids.tolist()]
    _, first_windows, recording_of_window, counts = np.unique(
        recordings, return_index=True, return_inverse=True, return_counts=True
    )
    sums = np.zeros((len(counts), *scores.shape[1:]))
    np.add.at(sums, recording_of_window, scores)
    means = sums / np.expand_dims(counts, axis=tuple(range(1, scores.ndim)))
    predicted = means.argmax(axis=-1) if class_names else means
    # Every window has the label of its recording.
    y = windows.labels[first_windows].reshape(predicted.shape)
    metric = "accuracy" if class_names else "R²"
    of_recordings = evaluation.evaluate_labels(y, predicted, class_names)
    return {f"{metric}_of_recordings": of_recordings.scores[metric]}


def evaluate_all(finals: Iterable[FinalReadout], test: Test, task: Task) -> dict[FinalReadout, Scores]:
    """Return the scores of final readouts on the test rows; one that occurs twice is scored once."""
    distinct_finals = list(dict.fromkeys(finals))
    scores: dict[FinalReadout, Scores] = {}
    with meter("score on test", len(distinct_finals), unit="readouts") as bar:
        for final in distinct_finals:
            scores[final] = evaluate(final, test, task)
            bar.advance(1)
    return scores


def evaluate_curve(
    readouts: Sequence[CurveReadout], source: EntrySource, test: Test
) -> tuple[CurvePoint, ...]:
    """Return the points of a learning curve, whose readouts are all scored in one reading of the test rows.

    ``source`` has the columns that the readouts read. Without readouts, nothing is read.
    """
    if not readouts:
        return ()
    # A tally counts for several readouts, along the first axis of the scores; here it is one.
    tallies = [Tally(drawn.readout.targets) for drawn in readouts]
    for x, y in test.read(source).blocks("test"):
        for drawn, tally in zip(readouts, tallies, strict=True):
            tally.update(drawn.readout.scores(x)[None], y)
    # A point of the curve is the mean over the random draws of one number of rows.
    scores_of_draws: dict[int, list[tuple[float, float]]] = {}  # validation and test, by the number of rows
    for drawn, tally in zip(readouts, tallies, strict=True):
        test_score = float(tally.accuracy()[0])
        scores_of_draws.setdefault(drawn.rows, []).append((drawn.valid_score, test_score))
    return tuple(CurvePoint.of(rows, scores) for rows, scores in scores_of_draws.items())
