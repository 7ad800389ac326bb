"""Outputs of predictions: columns, files (``.csv``, ``.jsonl``, ``.parquet``), and their evaluation."""

import csv
import json
from collections.abc import Iterable, Sequence
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


def evaluate_predictions(predictions: Iterable[Prediction]) -> Evaluation | None:
    """Compare predictions with the labels in their file; unknown labels count as wrong. None if no row has a label."""
    known = [one for one in predictions if one.truth is not None and one.label is not None]
    if not known:
        return None
    first, classes = known[0], known[0].classes
    width = 1 if first.each else len(_flat(first.label))
    counts = np.array([len(one.label) for one in known]) if first.each else None
    groups = None if first.group is None else np.array([one.group for one in known])
    truths = [label for one in known for label in _flat(one.truth)]
    labels = [label for one in known for label in _flat(one.label)]
    numbers = {str(name): number for number, name in enumerate(classes)}
    if classes:
        truths = [numbers.setdefault(str(label), len(numbers)) for label in truths]
        labels = [numbers.setdefault(str(label), len(numbers)) for label in labels]
    truth, label = (np.reshape(part, (-1, width)) for part in (truths, labels))
    if not classes:
        return evaluate_values(truth, label, counts, groups)
    chances = None
    if len(classes) == 2 and first.probabilities:
        likely = [_flat(one.probabilities)[1::2] for one in known]
        chances = np.reshape(np.concatenate(likely), (-1, width))
    return evaluate_classes(truth, label, [*numbers], chances, counts, groups)


def check_out(out: Path) -> None:
    """Raise `InputError` if predictions cannot be written to a file, before they are computed."""
    if out.suffix not in WRITERS:
        raise InputError(f"--out {out}: predictions are written as {', '.join(WRITERS)}; choose one")
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise InputError(f"--out {out}: cannot be written; name a file in an existing folder")
    if out.suffix == ".parquet":
        import_pyarrow(f"--out {out}")


def columns_of(predictions: Iterable[Prediction]) -> dict[str, list[Any]]:
    """Return predictions as columns: ``id``, ``label``, ``p_<class>`` of each class, and ``truth``.

    Columns of several labels are numbered: ``label_0``, ``p_0_<class>``. Intervals are in ``low`` and
    ``high``.
    """
    rows = [_row(one) for one in predictions]
    names = max(rows, key=len, default={})  # rows that cannot be read have few cells
    columns = {name: [row.get(name) for row in rows] for name in names}
    for name in [name for name in columns if name.startswith(("truth", "problem"))]:
        if columns[name].count(None) == len(rows):
            del columns[name]
    return columns


def _row(one: Prediction) -> dict[str, Any]:
    row: dict[str, Any] = {"id": one.id}
    if one.each:
        row |= {name: _in_one_cell(one.as_text(getattr(one, name))) for name in ("label", "truth")}
    elif not one.problem:
        labels = _flat(one.label)
        truths = [None] * len(labels) if one.truth is None else _flat(one.truth)
        chances = np.reshape(_flat(one.probabilities), (len(labels), -1)).tolist()
        for place, label in enumerate(labels):
            suffix = f"_{place}" if isinstance(one.label, list) else ""
            row[f"label{suffix}"] = label
            row |= {
                f"p{suffix}_{name}": chance
                for name, chance in zip(one.classes, chances[place], strict=False)
            }
            row[f"truth{suffix}"] = truths[place]
    if one.set is not None:
        row["set"] = one.set
    if one.interval is not None:
        row["low"], row["high"] = one.interval
    return row | {"problem": one.problem}


def write_predictions(out: Path, predictions: Sequence[Prediction]) -> None:
    """Write predictions; the file appears when it is complete."""
    replace_file(out, lambda part: WRITERS[out.suffix](part, predictions))


def _write_csv(part: Path, predictions: Sequence[Prediction]) -> None:
    columns = columns_of(predictions)
    if "set" in columns:
        # A column p_CLASS shows whether the name of a class contains the separator.
        apart = any("|" in name for name in columns)
        as_text = partial(json.dumps, ensure_ascii=False) if apart else "|".join
        columns["set"] = [as_text([*map(str, names or ())]) for names in columns["set"]]
    with part.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_jsonl(part: Path, predictions: Sequence[Prediction]) -> None:
    with part.open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(as_json(one.to_dict())) + "\n" for one in predictions)


def _write_parquet(part: Path, predictions: Sequence[Prediction]) -> None:
    arrow = import_pyarrow(part)
    with as_input_error("--out: one column has labels of several types", "write .csv"):
        arrow.parquet.write_table(arrow.table(columns_of(predictions)), part)


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


def _in_one_cell(labels: Any) -> Any:
    """Return a list of labels as one text, separated by spaces, and anything else unchanged."""
    return " ".join(map(str, _flat(labels))) if isinstance(labels, list) else labels


def _flat(nested: Any) -> list[Any]:
    return np.array(nested, object).ravel().tolist()
