"""Outputs of predictions: columns, files (``.csv``, ``.jsonl``, ``.parquet``), and their evaluation."""

import csv
import json
from array import array
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import replace_file

from reservoir.errors import InputError, as_input_error
from reservoir.readouts.evaluation import Evaluation, evaluate_classes, evaluate_values
from reservoir_pipelines.data.table import import_pyarrow
from reservoir_pipelines.fitting.predictions_csv import PREDICTIONS
from reservoir_pipelines.fitting.results import LAYERS, RESULTS
from reservoir_pipelines.output import as_json, meter
from reservoir_pipelines.prediction.prediction import Prediction
from reservoir_pipelines.prediction.predictions import Predictions

WRITTEN_ROWS = 8192  # rows that become columns at a time
SHOWN_ROWS = 64  # rows after which the progress changes


def evaluate_predictions(predictions: Iterable[Prediction]) -> Evaluation | None:
    """Compare predictions with the labels in their file; return None if no row has a label.

    Labels that the readout does not know count as wrong.
    """
    tally = PredictionTally()
    for prediction in predictions:
        tally.add(prediction)
    return tally.evaluation()


class PredictionTally:
    """Counts predictions while they are computed, and keeps the numbers that their evaluation needs.

    Attributes
    ----------
    rows : int
        The number of predictions so far.
    empty_sets : int
        How many of them have a set without any class.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.empty_sets = 0
        self._first: Prediction | None = None  # the first that is evaluated; the others have its form
        self._class_numbers: dict[str, int] = {}  # by the name of the class
        # All labels, one after the other, as numbers of classes or as values: compact arrays, because there may be
        # millions.
        self._truths = array("d")
        self._labels = array("d")
        self._second_class_probabilities = array("d")  # of each label, if there are two classes
        self._counts = array("q")  # labels of each row, if each token has one
        self._groups: list[str | int | None] = []  # of each row, if rows have groups

    def watch(self, predictions: Predictions, *, progress: bool) -> Iterator[Prediction]:
        """Yield predictions as they are computed and count them; with ``progress``, show a progress line."""
        with meter("predict", len(predictions)) if progress else nullcontext() as bar:
            for prediction in predictions:
                self.add(prediction)
                yield prediction
                if bar and self.rows % SHOWN_ROWS == 0:
                    bar.advance(SHOWN_ROWS)

    def add(self, prediction: Prediction) -> None:
        """Count a prediction; a row without a label in its file, or without a prediction, is not evaluated."""
        self.rows += 1
        self.empty_sets += prediction.set == []
        if prediction.truth is None or prediction.label is None:
            return
        if self._first is None:
            self._first = prediction
            self._class_numbers = {str(name): number for number, name in enumerate(prediction.classes)}
        truths, labels = _flattened(prediction.truth), _flattened(prediction.label)
        if prediction.classes:
            truths = [self._class_number(name) for name in truths]
            labels = [self._class_number(name) for name in labels]
        self._truths.extend(truths)
        self._labels.extend(labels)
        if len(prediction.classes) == 2:
            # The probabilities of classes 0 and 1 take turns; there are none if the readout has none.
            self._second_class_probabilities.extend(_flattened(prediction.probabilities)[1::2])
        if prediction.each:
            self._counts.append(len(prediction.label))
        if self._first.group is not None:
            self._groups.append(prediction.group)

    def _class_number(self, name: str | int) -> int:
        """Return the number of a class; one that the readout does not know gets the next number."""
        return self._class_numbers.setdefault(str(name), len(self._class_numbers))

    def evaluation(self) -> Evaluation | None:
        """Return the comparison of all labels; None if no row has a label and a prediction."""
        first = self._first
        if first is None:
            return None
        # (samples, labels of a sample): a sample is a token if each token has a label, else a row.
        shape = -1, 1 if first.each else len(_flattened(first.label))
        truths = np.array(self._truths).reshape(shape)
        labels = np.array(self._labels).reshape(shape)
        counts = np.array(self._counts) if first.each else None
        groups = None if first.group is None else np.array(self._groups)
        if not first.classes:
            return evaluate_values(truths, labels, counts, groups)
        # What ranks the samples of two classes; there is nothing if the readout has no probabilities.
        probabilities = np.array(self._second_class_probabilities).reshape(shape)
        scores = probabilities if probabilities.size else None
        class_names = [*self._class_numbers]
        return evaluate_classes(truths.astype(int), labels.astype(int), class_names, scores, counts, groups)


def check_out(out: Path, readout: Path) -> None:
    """Raise `InputError` if the predictions of a readout cannot be written to a file, before they are computed."""
    if out.suffix not in WRITERS:
        raise InputError(f"--out {out}: predictions are written as {', '.join(WRITERS)}", "choose one")
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise InputError(f"--out {out}: cannot be written", "name a file in an existing folder")
    # The tables of a fit or run lie beside its readout, and `compare` and `report` read them.
    folder = readout if readout.is_dir() else readout.parent
    if out.exists() and out.name in (RESULTS, LAYERS, PREDICTIONS) and out.parent.samefile(folder):
        raise InputError(
            f"--out {out}: a table of the readout itself, which would be lost", "name another file"
        )
    if out.suffix == ".parquet":
        import_pyarrow(f"--out {out}")


def columns_of(predictions: Iterable[Prediction], absent: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    """Return predictions as columns: ``id``, ``label``, ``p_<class>`` of each class, and ``truth``.

    Columns of several labels are numbered: ``label_0``, ``p_0_<class>``. Intervals are in ``low`` and
    ``high``. ``absent`` are the beginnings of the names of columns to leave out, see `Predictions.absent`.
    """
    columns: dict[str, list[Any]] = {}
    for block in _blocks_of_columns(predictions, absent):
        for name, cells in block.items():
            columns.setdefault(name, []).extend(cells)
    return columns


def _blocks_of_columns(
    predictions: Iterable[Prediction], absent: tuple[str, ...]
) -> Iterator[dict[str, list[Any]]]:
    """Yield predictions as columns, `WRITTEN_ROWS` rows at a time; all blocks have the same columns."""
    rows = map(_cells, predictions)
    # Rows that cannot be read have few cells, so the columns are those of the first row with a label, or of the widest
    # row if no row has one.
    first_rows: list[dict[str, Any]] = []
    for row in rows:
        first_rows.append(row)
        has_label = any(name.startswith("label") for name in row)
        if has_label:
            break
    widest_row = max(first_rows, key=len, default={})
    names = [name for name in widest_row if not name.startswith(absent)]
    all_rows = chain(first_rows, rows)
    while block := list(islice(all_rows, WRITTEN_ROWS)):
        yield {name: [row.get(name) for row in block] for name in names}


def _cells(prediction: Prediction) -> dict[str, Any]:
    """Return the cells of a prediction by the names of their columns; a row that cannot be read has no labels."""
    cells: dict[str, Any] = {"id": prediction.id, **prediction.token_fields}
    if prediction.each:
        cells["label"] = _in_one_cell(prediction.as_text(prediction.label))
        cells["truth"] = _in_one_cell(prediction.as_text(prediction.truth))
    elif not prediction.problem:
        cells |= _label_cells(prediction)
    if prediction.set is not None:
        cells["set"] = prediction.set
    if prediction.interval is not None:
        cells["low"], cells["high"] = prediction.interval
    return cells | {"problem": prediction.problem}


def _label_cells(prediction: Prediction) -> dict[str, Any]:
    """Return the label, the probabilities and the truth by the names of their columns.

    If a row has several labels, each name of a column has the label's number, as ``label_0`` and ``p_0_<class>``.
    """
    labels = _flattened(prediction.label)
    truths = [None] * len(labels) if prediction.truth is None else _flattened(prediction.truth)
    # An array of objects leaves each number as it is; another one would give all of them the same type.
    flat_probabilities = np.array(_flattened(prediction.probabilities), object)
    # A list for each label, (labels, classes), or (labels, 0) if the readout has no probabilities.
    probabilities = flat_probabilities.reshape(len(labels), -1).tolist()
    has_several_labels = isinstance(prediction.label, list)
    cells: dict[str, Any] = {}
    for number, (label, truth) in enumerate(zip(labels, truths, strict=True)):
        suffix = f"_{number}" if has_several_labels else ""
        cells[f"label{suffix}"] = label
        # Not strict, because there may be no probabilities.
        for name, probability in zip(prediction.classes, probabilities[number], strict=False):
            cells[f"p{suffix}_{name}"] = probability
        cells[f"truth{suffix}"] = truth
    return cells


def write_new_predictions(
    out: Path, predictions: Iterable[Prediction], absent: tuple[str, ...] = ()
) -> None:
    """Write predictions while they are computed, see `columns_of`; the file appears when it is complete."""
    replace_file(out, lambda part: WRITERS[out.suffix](part, predictions, absent))


def _write_csv(path: Path, predictions: Iterable[Prediction], absent: tuple[str, ...]) -> None:
    """Write the columns of predictions as CSV, with a header."""
    # An id may be the name of a file that is not valid UTF-8. `fit` writes it in the same way.
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        for number, columns in enumerate(_blocks_of_columns(predictions, absent)):
            # The classes of a prediction set are in one cell, separated by |, or as JSON if a class has | in its name.
            # Each class has a column p_CLASS, so the names of columns show that.
            if "set" in columns:
                has_separator = any("|" in name for name in columns)
                as_text = partial(json.dumps, ensure_ascii=False) if has_separator else "|".join
                # A row that cannot be read has no set.
                columns["set"] = [as_text([*map(str, class_set or ())]) for class_set in columns["set"]]
            is_first_block = number == 0
            if is_first_block:
                writer.writerow(columns)  # the names of the columns
            writer.writerows(zip(*columns.values(), strict=True))


def _write_jsonl(path: Path, predictions: Iterable[Prediction], absent: tuple[str, ...]) -> None:
    """Write each prediction as a line of JSON, which leaves out what a prediction does not have."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(as_json(prediction.to_dict())) + "\n" for prediction in predictions)


def _write_parquet(path: Path, predictions: Iterable[Prediction], absent: tuple[str, ...]) -> None:
    """Write the columns of predictions as a Parquet table; raise `InputError` for labels of several types."""
    arrow = import_pyarrow(path)
    tables: list[Any] = []  # one for each block of predictions
    for columns in _blocks_of_columns(predictions, absent):
        encodable = {_encodable(name): [*map(_encodable, cells)] for name, cells in columns.items()}
        with as_input_error("--out: one column has labels of several types", "write .csv"):
            tables.append(arrow.table(encodable))
    with as_input_error("--out: one column has labels of several types", "write .csv"):
        # A column without any value in a block has the type null there, and takes that of the other blocks.
        table = arrow.concat_tables(tables, promote_options="default")
    arrow.parquet.write_table(table, path)  # outside, because a full disk is not an error of the labels


def _encodable(cell: Any) -> Any:
    """Return a cell whose texts are valid in UTF-8, escaped as `_write_csv` does: names of files need not be."""
    if isinstance(cell, list):
        return [*map(_encodable, cell)]
    return cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


def _in_one_cell(labels: Any) -> Any:
    """Return a list of labels as one text, separated by spaces, and anything else unchanged."""
    return " ".join(map(str, _flattened(labels))) if isinstance(labels, list) else labels


def _flattened(nested: Any) -> list[Any]:
    """Return the values of a single value, a list, or a list of lists (of lists) in one list."""
    if not isinstance(nested, list):
        return [nested]
    is_nested = bool(nested) and isinstance(nested[0], list)
    # An array of objects leaves names and numbers as they are; another one would give all of them the same type.
    return np.array(nested, object).ravel().tolist() if is_nested else nested
