"""Outputs of predictions: columns, files (``.csv``, ``.jsonl``, ``.parquet``), and their evaluation."""

import csv
import json
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.readouts.evaluation import Evaluation, evaluate_classes, evaluate_values
from reservoir.tasks.own.tables import import_pyarrow
from reservoir_pipelines.files import replace_file
from reservoir_pipelines.output import as_json
from reservoir_pipelines.prediction.predict import Prediction


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


def rows_of(predictions: Iterable[Prediction], also: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield predictions as rows of a table: ``id`` or ``row``, ``label``, ``p_<class>`` of each class, and ``truth``.

    If rows have several labels, the columns are numbered: ``label_0``, ``p_0_<class>``, ``truth_0``. The columns
    ``truth`` and ``problem`` are there if they are in ``also``. Sets are in ``set``, intervals in ``low`` and ``high``.
    """
    for number, one in enumerate(predictions):
        row: dict[str, Any] = {"row": number} if one.id is None else {"id": one.id}
        if one.each:
            row |= {name: _in_one_cell(one.as_text(getattr(one, name))) for name in ("label", "truth")}
        else:
            labels = _flat(one.label)
            truths = [None] * len(labels) if one.truth is None else _flat(one.truth)
            chances = np.reshape(_flat(one.probabilities), (len(labels), -1)).tolist()
            for place, label in enumerate(labels):
                suffix = f"_{place}" if isinstance(one.label, list) else ""
                row[f"label{suffix}"] = label
                row |= {f"p{suffix}_{name}": chance for name, chance in zip(one.classes, chances[place], strict=False)}
                row[f"truth{suffix}"] = truths[place]
        if one.set is not None:
            row["set"] = one.set
        elif one.interval is not None:
            row["low"], row["high"] = one.interval
        row["problem"] = one.problem
        # A column of true labels is called truth, or truth_0 and so on.
        left_out = {"truth", "problem"}.difference(also)
        yield {name: cell for name, cell in row.items() if name.partition("_")[0] not in left_out}


def columns_of(predictions: Iterable[Prediction], *, also: Collection[str]) -> dict[str, list[Any]]:
    """Return predictions as columns (see `rows_of`)."""
    rows = [*rows_of(predictions, also)]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def write_predictions(out: Path, predictions: Iterable[Prediction], *, also: Collection[str]) -> None:
    """Write predictions; the file appears when it is complete."""
    replace_file(out, lambda part: WRITERS[out.suffix](part, predictions, also))


def _write_csv(part: Path, predictions: Iterable[Prediction], also: Collection[str]) -> None:
    with part.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, row in enumerate(rows_of(predictions, also)):
            if not number:
                writer.writerow(row)
            if "set" in row:
                # A column p_CLASS shows whether the name of a class contains the separator.
                as_text = partial(json.dumps, ensure_ascii=False) if any("|" in name for name in row) else "|".join
                row["set"] = as_text([*map(str, row["set"])])
            writer.writerow(row.values())


def _write_jsonl(part: Path, predictions: Iterable[Prediction], _: Collection[str]) -> None:
    with part.open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(as_json(one.to_dict())) + "\n" for one in predictions)


def _write_parquet(part: Path, predictions: Iterable[Prediction], also: Collection[str]) -> None:
    arrow = import_pyarrow(part)
    columns = columns_of(predictions, also=also)
    with as_input_error("--out: one column has labels of several types", "write .csv"):
        arrow.parquet.write_table(arrow.table(columns), part)


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


def _in_one_cell(labels: Any) -> Any:
    """Return a list of labels as one text, separated by spaces, and anything else unchanged."""
    return " ".join(map(str, _flat(labels))) if isinstance(labels, list) else labels


def _flat(nested: Any) -> list[Any]:
    return np.array(nested, object).ravel().tolist()
