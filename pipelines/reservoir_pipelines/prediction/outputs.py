"""Outputs of predictions: columns, files (``.csv``, ``.jsonl``, ``.parquet``), and their evaluation."""

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.readouts.evaluation import Evaluation, evaluate_classes, evaluate_values
from reservoir.tasks.own.tables import import_pyarrow
from reservoir_pipelines.files import replace_file
from reservoir_pipelines.output import as_json
from reservoir_pipelines.prediction.predict import Prediction

BATCH = 4096  # predictions in memory at a time


class PredictionEvaluator(Iterator[Prediction]):
    """An iterator that compares predictions with the labels in their file; unknown labels count as wrong."""

    def __init__(self, predictions: Iterable[Prediction]) -> None:
        self.rows, self.empty_sets, self._predictions = 0, 0, iter(predictions)
        self._last: Prediction | None = None
        self._truths, self._labels, self._chances = list[Any](), list[Any](), list[float]()
        self._counts, self._groups = list[int](), list[Any]()  # of each row: number of tokens, and group

    def __next__(self) -> Prediction:
        prediction = next(self._predictions)
        self.rows += 1
        self.empty_sets += prediction.set == [] and not prediction.problem
        if prediction.truth is not None and prediction.label is not None:
            self._last = prediction
            self._truths += _flat(prediction.truth)
            self._labels += (labels := _flat(prediction.label))
            self._counts += [len(labels)] * prediction.each
            self._groups += [] if prediction.group is None else [prediction.group]
            if len(prediction.classes) == 2:
                self._chances += _flat(prediction.probabilities)[1::2]
        return prediction

    def result(self) -> Evaluation | None:
        """Return the evaluation of all predictions, after iterating the rest; None if no row has a label."""
        for _ in self:
            pass
        if not self._last:
            return None
        classes, width = self._last.classes, 1 if self._last.each else len(_flat(self._last.label))
        parts = [self._truths, self._labels]
        numbers = {str(name): number for number, name in enumerate(classes)}
        if classes:
            parts = [[numbers.setdefault(str(one), len(numbers)) for one in part] for part in parts]
        truth, label = (np.array(part).reshape(-1, width) for part in parts)
        counts, groups = (np.array(each) if each else None for each in (self._counts, self._groups))
        if not classes:
            return evaluate_values(truth, label, counts, groups)
        chances = np.array(self._chances).reshape(-1, width) if self._chances else None
        return evaluate_classes(truth, label, [*numbers], chances, counts, groups)


def check_out(out: Path) -> None:
    """Raise `InputError` if predictions cannot be written to a file, before they are computed."""
    if out.suffix not in WRITERS:
        raise InputError(f"--out {out}: predictions are written as {', '.join(WRITERS)}; choose one of these")
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise InputError(f"--out {out}: cannot be written; name a file in an existing folder")
    if out.suffix == ".parquet":
        import_pyarrow(f"--out {out}")


def columns_of(predictions: Sequence[Prediction], *, also: Collection[str], first: int = 0) -> dict[str, list[Any]]:
    """Return predictions as columns: ``id`` or ``row``, ``label``, ``p_<class>`` of each class, and ``truth``.

    If rows have several labels, the columns are numbered: ``label_0``, ``p_0_<class>``, ``truth_0``. The columns
    ``truth`` and ``problem`` are there if they are in ``also``; ``first`` is the first row. Sets are in ``set``,
    intervals in ``low`` and ``high``.
    """
    if not predictions:
        return {}
    named = predictions[0].id is not None
    columns: dict[str, list[Any]] = {
        "id" if named else "row": [p.id if named else n for n, p in enumerate(predictions, first)]
    }
    if predictions[0].each:  # all labels of a row in one cell: letters as one text, others separated by spaces
        for name in ("label", "truth") if "truth" in also else ("label",):
            cells = [one.as_text(getattr(one, name)) for one in predictions]
            columns[name] = [" ".join(map(str, _flat(cell))) if isinstance(cell, list) else cell for cell in cells]
        return columns | _problems(predictions, also)
    several = isinstance(predictions[0].label, list)
    labels = [_flat(one.label) for one in predictions]
    probabilities = [_flat(one.probabilities) for one in predictions]
    truths = [_flat(one.truth) if one.truth is not None else [None] * len(labels[0]) for one in predictions]
    classes = predictions[0].classes
    for place in range(len(labels[0])):
        suffix = f"_{place}" if several else ""
        columns[f"label{suffix}"] = [row[place] for row in labels]
        for number, name in enumerate(classes if probabilities[0] else ()):
            columns[f"p{suffix}_{name}"] = [row[place * len(classes) + number] for row in probabilities]
        if "truth" in also:
            columns[f"truth{suffix}"] = [row[place] for row in truths]
    if predictions[0].set is not None:
        columns["set"] = [one.set for one in predictions]
    elif predictions[0].interval is not None:
        columns["low"], columns["high"] = map(list, zip(*(one.interval or () for one in predictions), strict=True))
    return columns | _problems(predictions, also)


def _problems(predictions: Sequence[Prediction], also: Collection[str]) -> dict[str, list[str | None]]:
    return {"problem": [one.problem for one in predictions]} if "problem" in also else {}


def write_predictions(out: Path, predictions: Iterable[Prediction], *, also: Collection[str]) -> None:
    """Write predictions in batches while they are computed; the file appears when it is complete."""
    replace_file(out, lambda part: WRITERS[out.suffix](part, iter(predictions), also))


def _write_csv(part: Path, predictions: Iterator[Prediction], also: Collection[str]) -> None:
    with part.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for columns in _batches(predictions, also):
            if not file.tell():
                writer.writerow(columns)
            if "set" in columns:
                # A column p_CLASS shows whether the name of a class contains the separator.
                as_text = partial(json.dumps, ensure_ascii=False) if any("|" in name for name in columns) else "|".join
                columns["set"] = [as_text([*map(str, classes)]) for classes in columns["set"]]
            writer.writerows(zip(*columns.values(), strict=True))


def _write_jsonl(part: Path, predictions: Iterator[Prediction], also: Collection[str]) -> None:
    with part.open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(as_json(one.to_dict())) + "\n" for one in predictions)


def _write_parquet(part: Path, predictions: Iterator[Prediction], also: Collection[str]) -> None:
    arrow = import_pyarrow(part)
    batches = _batches(predictions, also)
    first = arrow.table(next(batches, {}))
    # If the first rows have no label, the column of true labels gets the type of the predicted labels.
    labels = {name: name.replace("truth", "label", 1) for name in first.column_names if name.startswith("truth")}
    schema = first.schema
    for place, field in enumerate(schema):
        if field.name in (*labels, "problem") and arrow.types.is_null(field.type):
            kind = schema.field(labels[field.name]).type if field.name in labels else arrow.string()
            schema = schema.set(place, field.with_type(kind))
    with arrow.parquet.ParquetWriter(part, schema) as writer:
        writer.write_table(first.cast(schema))
        for columns in batches:
            with as_input_error("--out: one column has labels of several types", "write .csv"):
                table = arrow.table(columns, schema=schema)
            writer.write_table(table)


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


def _batches(predictions: Iterator[Prediction], also: Collection[str]) -> Iterator[dict[str, list[Any]]]:
    first = 0
    while batch := [*islice(predictions, BATCH)]:
        yield columns_of(batch, also=also, first=first)
        first += len(batch)


def _flat(nested: Any) -> list[Any]:
    return np.array(nested, object).ravel().tolist()
