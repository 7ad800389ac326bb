"""The file ``predictions.csv`` of a fit or a run, the predictions that it holds, and the units of their rows.

The file has a line for each label of validation and test rows: the columns ``split``, ``id``, perhaps ``group`` or
``group_number``, ``unit``, ``token`` and ``output``, then ``label``, and one or two columns for each readout. It is
CSV, because every program reads it, and lines are written some at a time.

Intervals count units in place of rows (`row_units`): rows of one unit depend on each other.
"""

import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reservoir_cache import SplitFeatures, replace_file

from reservoir.readouts.linear import has_labels
from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.source import IMAGE_ROWS, RAW_ROWS
from reservoir_pipelines.output import meter, notify
from reservoir_pipelines.preparation.prepared import PreparedSplit

PREDICTIONS = "predictions.csv"
BEST = "best"  # the column of the readout that a fit saves, or of a run's model
RESERVOIR = "reservoir"  # the column of the best readout of the reservoir, if the fit saves a baseline
GROUP_COLUMN = "group"  # the column of the names of groups
# The column in its place if the names of groups are not known, as from earlier versions.
GROUP_NUMBER = "group_number"
PROBABILITY = "_probability"  # end of the names of columns of probabilities
# Most predictions in the file. A prediction takes about 15 bytes, so this file has 300 MB.
MAX_PREDICTIONS = 20_000_000
CHUNK_LINES = 10_000  # lines that are formatted and written at a time

MIN_DISTINCT = 0.5  # share of distinct test rows from which repeats are too few to matter


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledRows:
    """The rows of one split: what identifies them, and their labels."""

    ids: np.ndarray  # (rows,); if rows are words or tokens of texts, those of their texts
    y: np.ndarray  # the labels (rows, readout_tokens, outputs)
    groups: np.ndarray | None  # the numbers of groups, (rows,); None if the rows have no groups
    group_names: np.ndarray | None = None  # (rows,); None if they are not known
    # The number of each word or token in its text, (rows,), from 0; None if rows are not words or tokens.
    numbers: np.ndarray | None = None
    # The unit of each row, (rows,), as `row_units` returns it: the group, if rows have groups. None if each is a unit.
    units: np.ndarray | None = None

    @cached_property
    def is_labelled(self) -> np.ndarray:
        """Whether each readout token of a row has labels, (rows, readout_tokens)."""
        return has_labels(self.y)

    @classmethod
    def of(cls, rows: SplitFeatures, units: np.ndarray | None = None) -> "LabelledRows":
        """Return the rows of a split of an entry, with the ``units`` of test rows."""
        rows_are_words_or_tokens = rows.pointers is not None
        return cls(
            ids=rows.ids,
            y=rows.labels,
            groups=rows.groups,
            group_names=rows.group_names,
            numbers=rows.numbers_in_text if rows_are_words_or_tokens else None,
            units=units,
        )


@dataclass(frozen=True, eq=False)
class Predicted:
    """The labels that a readout predicts for samples, and their probabilities if it has any."""

    labels: np.ndarray  # class numbers or values, (n, outputs)
    # (n, outputs): that of the predicted class or, of two classes, that of the second one; None without probabilities.
    probabilities: np.ndarray | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadoutPredictions:
    """The predictions of one readout, and the rows that they are for."""

    name: str  # of the column in the file
    of_splits: dict[str, Predicted]  # the predictions for each split that the readout predicts
    # The numbers of the predicted rows of each such split, or a slice of all.
    rows: dict[str, slice | np.ndarray]

    @property
    def has_probabilities(self) -> bool:
        """Whether the readout gives probabilities in addition to labels."""
        return any(predicted.probabilities is not None for predicted in self.of_splits.values())


def write_predictions(
    folder: Path, task: Task, splits: Mapping[str, LabelledRows], readouts: Sequence[ReadoutPredictions]
) -> None:
    """Write the predictions of ``readouts``, which are sorted with the most important one first.

    If the file would be too large, leave the last ones out, and print their names.
    """
    lines = sum(int(rows.is_labelled.sum()) * task.outputs for rows in splits.values())
    max_readouts = max(1, MAX_PREDICTIONS // max(1, lines))
    if left_out := [readout.name for readout in readouts[max_readouts:]]:
        notify(f"{PREDICTIONS} would be too large, so it leaves out {', '.join(left_out)}")
    table = _PredictionLines(task, splits, readouts[:max_readouts])

    def write(temporary: Path) -> None:
        """Write the lines to a temporary file, which then gets its name."""
        with (
            # A label may hold half of a surrogate pair, which no UTF-8 text can.
            temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
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

    @property
    def _has_units(self) -> bool:
        """Whether test rows have units that are neither rows nor groups; other rows are given none."""
        return any(rows.units is not None and rows.groups is None for rows in self.splits.values())

    @property
    def _has_group_names(self) -> bool:
        """Whether the names of all groups are known."""
        return all(rows.group_names is not None for rows in self.splits.values())

    def headings(self) -> list[str]:
        """Return the names of the columns."""
        names = ["split", "id"]
        if any(rows.groups is not None for rows in self.splits.values()):
            names.append(GROUP_COLUMN if self._has_group_names else GROUP_NUMBER)
        if self._has_units:
            names.append("unit")
        # The token is a number in a text, or in a row with several labelled tokens; never both.
        if any(rows.numbers is not None for rows in self.splits.values()):
            names.append("token")
        if self.task.readout_tokens > 1:
            names.append("token")
        if self.task.outputs > 1:
            names.append("output")
        names.append("label")
        for readout in self.readouts:
            names.append(readout.name)
            if readout.has_probabilities:
                names.append(readout.name + PROBABILITY)
        return names

    def chunks(self, split: str) -> Iterator[list[list[Any]]]:
        """Yield the cells of up to `CHUNK_LINES` lines of a split, column by column, as in `headings`."""
        rows = self.splits[split]
        y = rows.y
        # The row, the token and the output of each line; tokens after the end of a row have no label.
        has_line = np.broadcast_to(rows.is_labelled[..., None], y.shape)
        row_of_line, token_of_line, output_of_line = np.nonzero(has_line)
        label_of_line = y[has_line]
        predictions = [_on_lines(readout, split, row_of_line, len(y)) for readout in self.readouts]
        for start in range(0, len(row_of_line), CHUNK_LINES):
            chunk = slice(start, start + CHUNK_LINES)
            row_numbers, labels = row_of_line[chunk], label_of_line[chunk]
            columns: list[list[Any]] = [[split] * len(row_numbers), rows.ids[row_numbers].tolist()]
            groups = rows.group_names if self._has_group_names else rows.groups
            if groups is not None:
                columns.append(groups[row_numbers].tolist())
            if self._has_units:
                no_units = [""] * len(row_numbers)
                columns.append(no_units if rows.units is None else rows.units[row_numbers].tolist())
            if rows.numbers is not None:
                columns.append(rows.numbers[row_numbers].tolist())
            if self.task.readout_tokens > 1:
                columns.append(token_of_line[chunk].tolist())
            if self.task.outputs > 1:
                columns.append(output_of_line[chunk].tolist())
            columns.append(self._class_names(labels) if self.task.classes else labels.astype(str).tolist())
            for readout, on_lines in zip(self.readouts, predictions, strict=True):
                columns += self._cells(readout, on_lines, chunk, len(row_numbers))
            yield columns

    def _cells(
        self, readout: ReadoutPredictions, on_lines: "_PredictionsOnLines | None", chunk: slice, size: int
    ) -> list[list[Any]]:
        """Return the columns of a readout for a ``chunk`` of ``size`` lines; a cell is empty if it has no prediction.

        ``on_lines`` is what `_on_lines` returned for the split of the lines.
        """
        empty = [""] * size
        if on_lines is None:
            return [empty, empty] if readout.has_probabilities else [empty]
        labels = on_lines.labels[chunk]
        columns = [self._class_names(labels) if self.task.classes else np.char.mod("%.9g", labels).tolist()]
        if on_lines.probabilities is not None:
            columns.append(np.char.mod("%.6f", on_lines.probabilities[chunk]).tolist())
        if on_lines.is_predicted is None:
            return columns
        is_predicted = on_lines.is_predicted[chunk].tolist()
        return [
            [
                cell if has_prediction else ""
                for cell, has_prediction in zip(column, is_predicted, strict=True)
            ]
            for column in columns
        ]

    def _class_names(self, numbers: np.ndarray) -> list[Any]:
        """Return the names of classes, from their numbers (lines,)."""
        return [self.task.label(number) for number in numbers.astype(np.int64).tolist()]


class _PredictionsOnLines(NamedTuple):
    """The predictions of a readout for the lines of one split."""

    labels: np.ndarray  # (lines,)
    probabilities: np.ndarray | None  # (lines,); None if the readout has none
    # Whether a line has a prediction, (lines,); the other two arrays have any value if it has none. None if all have.
    is_predicted: np.ndarray | None


def _on_lines(
    readout: ReadoutPredictions, split: str, row_of_line: np.ndarray, rows: int
) -> _PredictionsOnLines | None:
    """Return the predictions of a readout for the lines of a split; None if it predicts no row of the split.

    ``row_of_line`` (lines,) is the row of each line, and ``rows`` the number of rows.
    """
    if (predicted := readout.of_splits.get(split)) is None:
        return None
    # Samples are in the order of rows, and each has its labels in the order of tokens and outputs, as lines are.
    labels = predicted.labels.ravel()
    probabilities = None if predicted.probabilities is None else predicted.probabilities.ravel()
    predicted_rows = readout.rows[split]
    if isinstance(predicted_rows, slice):  # of all rows
        return _PredictionsOnLines(labels, probabilities, None)
    row_is_predicted = np.zeros(rows, bool)
    row_is_predicted[predicted_rows] = True
    is_predicted = row_is_predicted[row_of_line]
    # The index of each line's prediction; a line without one gets that of another line, which is not shown.
    index = np.maximum(np.cumsum(is_predicted) - 1, 0)
    probabilities_of_lines = None if probabilities is None else probabilities[index]
    return _PredictionsOnLines(labels[index], probabilities_of_lines, is_predicted)


class RowUnits(NamedTuple):
    """The unit of each row, and what to print about it."""

    of_rows: np.ndarray | None  # (rows,); None if each row is a unit
    note: str  # empty if units are rows or groups


def row_units(
    task: Task,
    index: np.ndarray,
    groups: np.ndarray | None,
    stretches: np.ndarray | None,
    open_inputs: Callable[[], PreparedSplit] | None,
) -> RowUnits:
    """Return the units of some test rows: their groups, of forecasts stretches of windows, else their distinct inputs.

    Parameters
    ----------
    task : Task
        The task of the rows.
    index : np.ndarray
        The number of each row among the prepared ones, ascending, (rows,).
    groups : np.ndarray or None
        The group of each row, (rows,), if rows have groups.
    stretches : np.ndarray or None
        The number of the stretch in which the labels of each window begin, (rows,), if rows are forecasts. None if it
        is not stored, as by earlier versions.
    open_inputs : callable or None
        Opens the prepared rows, which hold the sequence of each row; called only if sequences are compared. None if
        there are none, so that each row counts as another input.
    """
    if groups is not None:
        return RowUnits(groups, "")
    # Windows overlap in their labels. The horizon is 0 for other tasks than forecasts.
    windows_overlap = task.horizon > 1
    if windows_overlap:
        if stretches is None:
            stretches = stretches_of_all_windows(index, task.horizon, int(task.parameters.get("series", 1)))
        # Number the stretches from 0, because some may have no window.
        units = np.unique(stretches, return_inverse=True)[1]
        count = f"{int(units.max()) + 1:,} stretches of {task.horizon} steps"
        return RowUnits(units, f"test windows overlap; intervals and p-values count {count}")
    if open_inputs is None:
        return RowUnits(None, "")
    input_of_row = repeated_inputs(open_inputs(), index, IMAGE_ROWS if task.pictures else RAW_ROWS)
    if input_of_row is None:
        return RowUnits(None, "")
    rows, distinct = f"{len(index):,} test rows", f"{int(input_of_row.max()) + 1:,} distinct inputs"
    return RowUnits(input_of_row, f"the {rows} hold {distinct}; intervals and p-values count each once")


def stretches_of_all_windows(index: np.ndarray, horizon: int, series: int) -> np.ndarray:
    """Return the stretch of ``horizon`` steps of a series in which the labels of each window begin, (rows,).

    ``index`` (rows,) numbers the windows, oldest first; those of several ``series`` take turns, which is true if each
    series has a window at every step.
    """
    # A window is that of series ``index % series`` at step ``index // series``.
    number_in_series = index // (horizon * series)
    return number_in_series * series + index % series


def repeated_inputs(stored: PreparedSplit, index: np.ndarray, rows_at_a_time: int) -> np.ndarray | None:
    """Return the number of the distinct input of each of the rows ``index``, (rows,).

    None if at least half as many inputs as rows are distinct.
    """
    # Inputs are numbered in the order in which they first appear; equal ones have the same digest.
    number_of_digest: dict[bytes, int] = {}
    input_of_row: list[int] = []
    for start in range(0, len(index), rows_at_a_time):
        rows = stored.take(index[start : start + rows_at_a_time])
        for x, length in zip(rows.x, rows.lengths, strict=True):
            # With the length, because padding may have the value of a token.
            content = x.tobytes() + int(length).to_bytes(8, "little")
            digest = hashlib.blake2b(content, digest_size=16).digest()
            input_of_row.append(number_of_digest.setdefault(digest, len(number_of_digest)))
    are_distinct = len(number_of_digest) >= MIN_DISTINCT * len(input_of_row)
    return None if are_distinct else np.array(input_of_row)
