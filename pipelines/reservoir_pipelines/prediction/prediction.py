"""The prediction of a sequence, and that of a recording from the predictions of its windows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from reservoir_pipelines.data.recordings import recording_name, stretch_of_steps
from reservoir_pipelines.data.rows import RecordingSteps, RecordingWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The label of one sequence.

    Parameters
    ----------
    id : str or int
        The name of the row in the file (an id, or the name of its file), else its number, from 0.
    label : str, int, float or nested list of these
        The label; for a task with several outputs a list, for several readout tokens a list of lists. None if the row
        has a ``problem``, or with ``abstain`` if the set does not have exactly one class.
    probabilities : list
        The probability of each of ``classes``, nested as the label; empty if the readout has none.
    classes : tuple of str or int
        The task's classes; empty for regression.
    truth : str, int, float or nested list of these, optional
        The label in the file or in the table of labels, if there is one.
    group : str or int, optional
        The group (patient, machine) of the row, if the file and the rows of the fit have groups.
    each : bool, default False
        Whether every token has a label; lists then have the length of the sequence.
    set : list of str or int, optional
        With ``coverage``, a set of classes, perhaps empty, that contains the true class with that probability.
    interval : list of float, optional
        With ``coverage``, the ends of an interval that contains the true value with that probability.
    problem : str, optional
        Why the row cannot be read.
    token : int, optional
        The number of the word or token in its text, from 0, if words or tokens have labels; ``id`` names the text.
    text : str, optional
        The letters of the word or token.
    start, end : int, optional
        Its first letter in the text, and the letter after its last.
    """

    id: str | int
    label: Any
    probabilities: list[Any]
    classes: tuple[str | int, ...] = ()
    truth: Any = None
    group: str | int | None = None
    each: bool = False
    set: list[str | int] | None = None
    interval: list[float] | None = None
    problem: str | None = None
    token: int | None = None
    text: str | None = None
    start: int | None = None
    end: int | None = None

    @property
    def token_fields(self) -> dict[str, Any]:
        """The number, letters and span of a word or token; empty if the prediction is that of a whole row."""
        if self.token is None:
            return {}
        return {name: getattr(self, name) for name in ("token", "text", "start", "end")}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, each probability under the name of its class.

        Optional fields that are None are left out, as are ``classes``, ``group`` and ``each``.
        """
        values = {
            "id": self.id,
            **self.token_fields,
            "label": self.as_text(self.label),
            "probabilities": _named_by_class(self.probabilities, self.classes),
        }
        optional_values = {
            "set": self.set,
            "interval": self.interval,
            "truth": self.as_text(self.truth),
            "problem": self.problem,
        }
        return values | {name: value for name, value in optional_values.items() if value is not None}

    def as_text(self, label: Any) -> Any:
        """Return a list of single letters, one per token, as one text, and any other label unchanged."""
        if not self.each or not label:  # not a list, or an empty one
            return label
        are_letters = all(isinstance(text, str) and len(text) == 1 for text in label)
        return "".join(label) if are_letters else label


def _named_by_class(probabilities: list[Any], classes: Sequence[str | int]) -> Any:
    """Return probabilities as a mapping from the name of each class; empty if the readout has no probabilities.

    If they are nested by tokens and outputs, return nested lists of such mappings.
    """
    if not probabilities:
        return {}
    if isinstance(probabilities[0], list):
        return [_named_by_class(inner, classes) for inner in probabilities]
    return dict(zip(map(str, classes), probabilities, strict=True))


# ---- predictions of recordings that were cut into windows


def join_windows(predictions: Iterator[Prediction], windows: RecordingWindows) -> Iterator[Prediction]:
    """Yield the prediction of each recording from those of its windows, which follow each other.

    The scores of a recording are the means of its windows' scores: probabilities, or values of a
    regression, or votes of a readout without probabilities (one for the label of each window). With a
    label for every step, the scores of a step are the means over the windows that contain it. The
    label is the class of the largest score, the first one if several are equal. A prediction with a
    ``problem`` stands for a recording that cannot be read.
    """
    # The number of each recording, that of its first window, and the number of its windows.
    recordings, first_windows, counts = np.unique(windows.recording, return_index=True, return_counts=True)
    readable_recordings = zip(recordings.tolist(), first_windows.tolist(), counts.tolist(), strict=True)
    for prediction in predictions:
        if prediction.problem:  # all windows of a recording are read, or none is
            yield replace(prediction, id=recording_name(prediction.id))
            continue
        # This is the prediction of the first window of the next recording; those of its other windows follow.
        recording, first_window, count = next(readable_recordings)
        window_predictions = [prediction, *islice(predictions, count - 1)]
        starts = windows.start[first_window : first_window + count].tolist()
        name = windows.names[recording].item()
        yield _joined(name, starts, window_predictions)


def _joined(name: str | int, starts: Sequence[int], windows: Sequence[Prediction]) -> Prediction:
    """Return the prediction of a recording from those of its windows, which begin at the steps ``starts``."""
    first = windows[0]
    if len(windows) == 1:
        return replace(first, id=name)
    scores_of_windows = [_scores(window) for window in windows]
    if first.each:  # the windows contain different steps
        scores = _means_of_steps(starts, scores_of_windows)
        truth = _labels_of_steps(starts, [window.truth for window in windows], len(scores))
    else:
        scores = np.mean(scores_of_windows, axis=0)
        truth = first.truth  # every window has the label of its recording
    if not first.classes:
        return replace(first, id=name, label=scores.tolist(), truth=truth)
    class_names = np.empty(len(first.classes), object)
    class_names[:] = first.classes
    # The classes of the largest scores, nested as labels are; of a single label, that label.
    labels = class_names[scores.argmax(axis=-1)]
    return replace(
        first,
        id=name,
        label=labels.tolist() if isinstance(labels, np.ndarray) else labels,
        probabilities=np.round(scores, 6).tolist() if first.probabilities else [],
        truth=truth,
    )


def _scores(window: Prediction) -> np.ndarray:
    """Return the scores of a window, nested as its label, with an axis of classes at the end if there are any.

    They are values of a regression, probabilities, or without these votes: 1 for the class that is the label, and 0 for
    the others.
    """
    if not window.classes:
        return np.array(window.label, np.float64)
    if window.probabilities:
        return np.array(window.probabilities, np.float64)
    number_of_class = {name: number for number, name in enumerate(window.classes)}
    labels = np.array(window.label, object)
    numbers = np.array([number_of_class[label] for label in labels.ravel().tolist()])
    classes = len(number_of_class)
    return np.eye(classes)[numbers].reshape(*labels.shape, classes)


def _means_of_steps(starts: Sequence[int], scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the scores (steps, ...) of a recording: for each step, the mean over the windows that contain it.

    ``scores`` (window steps, ...) are those of each window, which begins at the step in ``starts``.
    """
    length = starts[-1] + len(scores[-1])
    totals = np.zeros((length, *scores[0].shape[1:]))
    counts = np.zeros((length, *[1] * (scores[0].ndim - 1)))  # windows of each step; divides all its scores
    for start, window_scores in zip(starts, scores, strict=True):
        end = start + len(window_scores)
        totals[start:end] += window_scores
        counts[start:end] += 1
    return totals / counts  # every step is in a window


def _labels_of_steps(starts: Sequence[int], labels: Sequence[list[Any] | None], length: int) -> Any:
    """Return the labels of all ``length`` steps of a recording from those of its windows, None if a window has none.

    Windows that overlap have the same labels there.
    """
    steps: list[Any] = [None] * length
    for start, window_labels in zip(starts, labels, strict=True):
        if window_labels is None:
            return None
        steps[start : start + len(window_labels)] = window_labels
    return steps


def step_predictions(
    recordings: Iterable[Prediction], steps: RecordingSteps, truths: Sequence[Any], window: int
) -> Iterator[Prediction]:
    """Yield the prediction of each row of a table whose rows are the steps of one recording.

    ``recordings`` yields the prediction of this recording alone, and ``truths`` has the label of each row, if any. The
    recording has the stretches that it would have in a fit with this ``window``, which are the groups of its steps, so
    that intervals of scores count stretches.
    """
    (recording,) = recordings
    stretch_of_step = stretch_of_steps(len(steps.row_of_step), window)  # (steps,)
    # Every row that can be read is a step. The rows need not be in the order of their times, as the steps are.
    step_of_row = {row: step for step, row in enumerate(steps.row_of_step.tolist())}
    for row, name in enumerate(steps.names.tolist()):
        problem = steps.problems.get(row)
        if problem is not None:
            yield Prediction(id=name, label=None, probabilities=[], problem=problem)
            continue
        step = step_of_row[row]
        yield replace(
            recording,
            id=name,
            label=recording.label[step],
            probabilities=recording.probabilities[step] if recording.probabilities else [],
            truth=truths[row],
            group=int(stretch_of_step[step]),
            each=False,
        )
