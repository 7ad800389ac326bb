"""The file ``predictions.csv`` of a fit or a run, and the predictions that it holds.

The file has a line for each label of validation and test rows: the columns ``split``, ``id``, perhaps
``group``, ``token`` and ``output``, then ``label``, and one or two columns for each readout. It is CSV,
because every program reads it, and lines are written some at a time.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reservoir_cache import SplitFeatures, replace_file

from reservoir.readouts.linear import has_labels
from reservoir.tasks.task import Task
from reservoir_pipelines.output import meter, notify

PREDICTIONS = "predictions.csv"
BEST = "best"  # the column of the readout that a fit saves, or of a run's model
PROBABILITY = "_probability"  # end of the names of columns of probabilities
# Most predictions in the file. A prediction takes about 15 bytes, so this file has 300 MB.
MAX_PREDICTIONS = 20_000_000
CHUNK_LINES = 10_000  # lines that are formatted and written at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledRows:
    """The rows of one split: what identifies them, their groups (rows,), and labels (rows, readout_tokens, outputs).

    If rows are words or tokens, ids are those of their texts, and ``numbers`` (rows,) those of words or tokens in them.
    """

    ids: np.ndarray
    y: np.ndarray
    groups: np.ndarray | None
    numbers: np.ndarray | None = None

    @cached_property
    def is_labelled(self) -> np.ndarray:
        """Whether each readout token of a row has labels, (rows, readout_tokens)."""
        return has_labels(self.y)

    @classmethod
    def of(cls, rows: SplitFeatures) -> "LabelledRows":
        """Return the rows of a split of an entry."""
        numbers = None
        if (pointers := rows.pointers) is not None:
            numbers = np.arange(rows.rows) - np.repeat(pointers[:-1], np.diff(pointers))
        return cls(ids=rows.ids, y=rows.labels, groups=rows.groups, numbers=numbers)


@dataclass(frozen=True, eq=False)
class Predicted:
    """The labels that a readout predicts, class numbers or values, (n, outputs), and their probabilities if it has any.

    A probability is that of the predicted class, or if there are two classes that of the second one.
    """

    labels: np.ndarray
    probabilities: np.ndarray | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadoutPredictions:
    """The predictions of one readout, by split, and which rows of each split they cover."""

    name: str
    of_splits: dict[str, Predicted]
    rows: dict[str, slice | np.ndarray]

    @property
    def has_probabilities(self) -> bool:
        """Whether the readout gives probabilities in addition to labels."""
        return any(predicted.probabilities is not None for predicted in self.of_splits.values())


def write_predictions(
    folder: Path, task: Task, splits: Mapping[str, LabelledRows], readouts: Sequence[ReadoutPredictions]
) -> None:
    """Write the predictions of readouts, most important first; of too many, only the first ones."""
    lines = sum(int(rows.is_labelled.sum()) * task.outputs for rows in splits.values())
    max_readouts = max(1, MAX_PREDICTIONS // max(1, lines))
    if left_out := [readout.name for readout in readouts[max_readouts:]]:
        notify(f"{PREDICTIONS} would be too large, so it leaves out {', '.join(left_out)}")
    table = _PredictionLines(task, splits, readouts[:max_readouts])

    def write(part: Path) -> None:
        with (
            # A label may hold half of a surrogate pair, which no UTF-8 text can.
            part.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
            meter("predictions", lines, unit="labels") as bar,
        ):
            writer = csv.writer(file)
            writer.writerow(table.headings())
            for split in splits:
                for columns in table.chunks(split):
                    writer.writerows(zip(*columns, strict=True))
                    bar.advance(len(columns[0]))

    replace_file(folder / PREDICTIONS, write)


@dataclass(frozen=True, eq=False)
class _PredictionLines:
    """The lines of ``predictions.csv``: one for each label, in the order of rows, tokens and outputs."""

    task: Task
    splits: Mapping[str, LabelledRows]
    readouts: Sequence[ReadoutPredictions]

    def headings(self) -> list[str]:
        """Return the names of the columns."""
        grouped = any(rows.groups is not None for rows in self.splits.values())
        names = ["split", "id", *(["group"] if grouped else [])]
        if any(rows.numbers is not None for rows in self.splits.values()):
            names.append("token")
        names += [name for name, number in self._places() if number > 1]
        names.append("label")
        for readout in self.readouts:
            names += [readout.name, *([readout.name + PROBABILITY] if readout.has_probabilities else [])]
        return names

    def _places(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the names and the numbers of the tokens that have labels, and of the outputs of each."""
        return ("token", self.task.readout_tokens), ("output", self.task.outputs)

    def chunks(self, split: str) -> Iterator[list[list[Any]]]:
        """Yield the cells of some lines, column by column."""
        rows = self.splits[split]
        y = rows.y
        # Row, token and output of each line; tokens after the end of a row have no label.
        labelled = np.broadcast_to(rows.is_labelled[..., None], y.shape)
        row, *places = np.nonzero(labelled)
        truth = y[labelled]
        # The token and the output are columns of the file if there are several.
        places = [place for place, (_, number) in zip(places, self._places(), strict=True) if number > 1]
        predicted = [_on_lines(readout, split, row, len(y)) for readout in self.readouts]
        for start in range(0, len(row), CHUNK_LINES):
            chunk = slice(start, start + CHUNK_LINES)
            row_of_line, label_of_line = row[chunk], truth[chunk]
            columns: list[list[Any]] = [[split] * len(row_of_line), rows.ids[row_of_line].tolist()]
            if rows.groups is not None:
                columns.append(rows.groups[row_of_line].tolist())
            if rows.numbers is not None:
                columns.append(rows.numbers[row_of_line].tolist())
            columns += [place[chunk].tolist() for place in places]
            columns.append(
                self._names(label_of_line) if self.task.classes else label_of_line.astype(str).tolist()
            )
            for readout, lines in zip(self.readouts, predicted, strict=True):
                columns += self._cells(readout, lines, chunk, len(row_of_line))
            yield columns

    def _cells(
        self, readout: ReadoutPredictions, lines: "_Lines | None", chunk: slice, size: int
    ) -> list[list[Any]]:
        """Return the columns of a readout for a chunk of lines, with empty cells for rows that it does not predict."""
        empty = [""] * size
        if lines is None:
            return [empty, empty] if readout.has_probabilities else [empty]
        labels = lines.labels[chunk]
        texts = [self._names(labels) if self.task.classes else np.char.mod("%.9g", labels).tolist()]
        if lines.probabilities is not None:
            texts.append(np.char.mod("%.6f", lines.probabilities[chunk]).tolist())
        if lines.covered is None:
            return texts
        covered = lines.covered[chunk].tolist()
        return [
            [cell if is_covered else "" for cell, is_covered in zip(column, covered, strict=True)]
            for column in texts
        ]

    def _names(self, numbers: np.ndarray) -> list[Any]:
        """Return the names of classes."""
        return [self.task.label(number) for number in numbers.astype(np.int64).tolist()]


class _Lines(NamedTuple):
    """The predictions of a readout for the lines of one split, and which lines they cover; None means all."""

    labels: np.ndarray
    probabilities: np.ndarray | None
    covered: np.ndarray | None


def _on_lines(readout: ReadoutPredictions, split: str, row: np.ndarray, rows: int) -> _Lines | None:
    """Return the predictions for lines that belong to the rows ``row`` (lines,); None for a split without any."""
    if (predicted := readout.of_splits.get(split)) is None:
        return None
    labels = predicted.labels.ravel()
    probabilities = None if predicted.probabilities is None else predicted.probabilities.ravel()
    if isinstance(readout.rows[split], slice):
        return _Lines(labels, probabilities, None)
    has_prediction = np.zeros(rows, bool)
    has_prediction[readout.rows[split]] = True
    covered = has_prediction[row]
    # The number of each line's prediction; lines without one get that of another line, and are left empty.
    number = np.maximum(np.cumsum(covered) - 1, 0)
    of_lines = None if probabilities is None else probabilities[number]
    return _Lines(labels[number], of_lines, covered)
