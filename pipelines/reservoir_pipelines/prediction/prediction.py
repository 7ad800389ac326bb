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
    def place(self) -> dict[str, Any]:
        """The number, letters and span of a word or token; empty if the prediction is that of a whole row."""
        if self.token is None:
            return {}
        return {name: getattr(self, name) for name in ("token", "text", "start", "end")}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, each probability under the name of its class."""
        values = {
            "id": self.id,
            **self.place,
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
        are_letters = (
            self.each and label and all(isinstance(text, str) and len(text) == 1 for text in label)
        )
        return "".join(label) if are_letters else label


def _named_by_class(probabilities: list[Any], classes: Sequence[str | int]) -> Any:
    """Return probabilities as a mapping from each class, in the lists of tokens and outputs that they are nested in."""
    if probabilities and isinstance(probabilities[0], list):
        return [_named_by_class(inner, classes) for inner in probabilities]
    return dict(zip(map(str, classes), probabilities, strict=True)) if probabilities else {}


# ---- predictions of recordings that were cut into windows


def join_windows(predictions: Iterator[Prediction], windows: RecordingWindows) -> Iterator[Prediction]:
    """Yield the prediction of each recording from those of its windows, which follow each other.

    The scores of a recording are the means of its windows' scores: probabilities, or values of a
    regression, or votes of a readout without probabilities (one for the label of each window). With a
    label for every step, the scores of a step are the means over the windows that contain it. The
    label is the class of the largest score, the first one if several are equal. A prediction with a
    ``problem`` stands for a recording that cannot be read.
    """
    recordings, first_rows, counts = np.unique(windows.recording, return_index=True, return_counts=True)
    windows_of_recordings = zip(recordings.tolist(), first_rows.tolist(), counts.tolist(), strict=True)
    for prediction in predictions:
        if prediction.problem:  # all windows of a recording are read, or none is
            yield replace(prediction, id=recording_name(prediction.id))
            continue
        recording, row, count = next(windows_of_recordings)
        of_windows = [prediction, *islice(predictions, count - 1)]
        name = windows.names[recording].item()
        yield _joined(name, windows.start[row : row + count].tolist(), of_windows)


def _joined(name: str | int, starts: Sequence[int], windows: Sequence[Prediction]) -> Prediction:
    """Return the prediction of a recording from those of its windows, which begin at the steps ``starts``."""
    first = windows[0]
    if len(windows) == 1:
        return replace(first, id=name)
    arrays = [_scores(window) for window in windows]
    truth = first.truth  # every window has the label of its recording
    if first.each:
        scores = _means_of_steps(starts, arrays)
        truth = _labels_of_steps(starts, [window.truth for window in windows], len(scores))
    else:
        scores = np.mean(arrays, axis=0)
    if not first.classes:
        return replace(first, id=name, label=scores.tolist(), truth=truth)
    names = np.empty(len(first.classes), object)
    names[:] = first.classes
    # The classes of the largest scores, nested as labels are; of a single label, that label.
    labels = names[scores.argmax(axis=-1)]
    return replace(
        first,
        id=name,
        label=labels.tolist() if isinstance(labels, np.ndarray) else labels,
        probabilities=np.round(scores, 6).tolist() if first.probabilities else [],
        truth=truth,
    )


def _scores(window: Prediction) -> np.ndarray:
    """Return the probabilities or values of a window, or 1 for each class that is its label and 0 for the others."""
    if not window.classes:
        return np.array(window.label, np.float64)
    if window.probabilities:
        return np.array(window.probabilities, np.float64)
    numbers = {name: number for number, name in enumerate(window.classes)}
    labels = np.array(window.label, object)
    votes = np.array([numbers[label] for label in labels.ravel().tolist()])
    return np.eye(len(numbers))[votes].reshape(*labels.shape, len(numbers))


def _means_of_steps(starts: Sequence[int], scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the means of the scores (steps, ...) of windows over the windows that contain each step."""
    length = starts[-1] + len(scores[-1])
    totals = np.zeros((length, *scores[0].shape[1:]))
    counts = np.zeros((length, *[1] * (scores[0].ndim - 1)))
    for start, of_window in zip(starts, scores, strict=True):
        totals[start : start + len(of_window)] += of_window
        counts[start : start + len(of_window)] += 1
    return totals / counts  # every step is in a window


def _labels_of_steps(starts: Sequence[int], labels: Sequence[list[Any] | None], length: int) -> Any:
    """Return the labels of all steps from those of windows; None if the labels of a window are missing."""
    steps: list[Any] = [None] * length
    for start, of_window in zip(starts, labels, strict=True):
        if of_window is None:
            return None
        steps[start : start + len(of_window)] = of_window
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
    stretch_of_step = stretch_of_steps(len(steps.row_of_step), window)
    # Every row that can be read is a step.
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
