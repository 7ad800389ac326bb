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
from reservoir_pipelines.data.parquet import import_pyarrow
from reservoir_pipelines.output import as_json, meter
from reservoir_pipelines.prediction.predict import Prediction, Predictions

Names = tuple[str, ...]

WRITTEN_ROWS = 8192  # rows that become columns at a time
SHOWN_ROWS = 64  # rows after which the progress changes


def evaluate_predictions(predictions: Iterable[Prediction]) -> Evaluation | None:
    """Compare predictions with the labels in their file; unknown labels count as wrong. None if no row has a label."""
    tally = Tally()
    for prediction in predictions:
        tally.add(prediction)
    return tally.evaluation()


class Tally:
    """Counts predictions while they are computed, and keeps the numbers that their evaluation needs."""

    def __init__(self) -> None:
        self.rows, self.empty_sets = 0, 0
        self._first: Prediction | None = None
        self._numbers: dict[str, int] = {}
        self._truths, self._labels, self._chances = array("d"), array("d"), array("d")
        self._counts, self._groups = array("q"), list[str | int | None]()

    def watch(self, predictions: Predictions, *, progress: bool) -> Iterator[Prediction]:
        """Yield predictions as they are computed, count them, and show the progress, if asked to."""
        with meter("predict", len(predictions)) if progress else nullcontext() as bar:
            for one in predictions:
                self.add(one)
                yield one
                if bar and self.rows % SHOWN_ROWS == 0:
                    bar.advance(SHOWN_ROWS)

    def add(self, one: Prediction) -> None:
        """Count a prediction; a row without a label in its file, or without a prediction, is not evaluated."""
        self.rows += 1
        self.empty_sets += one.set == []
        if one.truth is None or one.label is None:
            return
        if self._first is None:
            self._first = one
            self._numbers = {str(name): number for number, name in enumerate(one.classes)}
        truths, labels, numbers = _flat(one.truth), _flat(one.label), self._numbers
        if one.classes:
            truths = [numbers.setdefault(str(label), len(numbers)) for label in truths]
            labels = [numbers.setdefault(str(label), len(numbers)) for label in labels]
        self._truths.extend(truths)
        self._labels.extend(labels)
        if len(one.classes) == 2:
            self._chances.extend(_flat(one.probabilities)[1::2])
        if one.each:
            self._counts.append(len(one.label))
        if self._first.group is not None:
            self._groups.append(one.group)

    def evaluation(self) -> Evaluation | None:
        """Return the comparison of all labels; None if no row has one."""
        first = self._first
        if first is None:
            return None
        shape = -1, 1 if first.each else len(_flat(first.label))
        truth, label, chances = (
            np.array(part).reshape(shape) for part in (self._truths, self._labels, self._chances)
        )
        counts = np.array(self._counts) if first.each else None
        groups = None if first.group is None else np.array(self._groups)
        if not first.classes:
            return evaluate_values(truth, label, counts, groups)
        known = chances if chances.size else None
        return evaluate_classes(
            truth.astype(int), label.astype(int), [*self._numbers], known, counts, groups
        )


def check_out(out: Path) -> None:
    """Raise `InputError` if predictions cannot be written to a file, before they are computed."""
    if out.suffix not in WRITERS:
        raise InputError(f"--out {out}: predictions are written as {', '.join(WRITERS)}", "choose one")
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise InputError(f"--out {out}: cannot be written", "name a file in an existing folder")
    if out.suffix == ".parquet":
        import_pyarrow(f"--out {out}")


def columns_of(predictions: Iterable[Prediction], absent: Names = ()) -> dict[str, list[Any]]:
    """Return predictions as columns: ``id``, ``label``, ``p_<class>`` of each class, and ``truth``.

    Columns of several labels are numbered: ``label_0``, ``p_0_<class>``. Intervals are in ``low`` and
    ``high``. ``absent`` are the beginnings of the names of columns to leave out, see `Predictions.absent`.
    """
    columns: dict[str, list[Any]] = {}
    for block in _in_blocks(predictions, absent):
        for name, cells in block.items():
            columns.setdefault(name, []).extend(cells)
    return columns


def _in_blocks(predictions: Iterable[Prediction], absent: Names) -> Iterator[dict[str, list[Any]]]:
    """Yield predictions as columns, some rows at a time; all blocks have the same columns."""
    rows = map(_row, predictions)
    first: list[dict[str, Any]] = []
    for row in rows:  # rows that cannot be read have few cells, so the first other row names the columns
        first.append(row)
        if any(name.startswith("label") for name in row):
            break
    names = [name for name in max(first, key=len, default={}) if not name.startswith(absent)]
    rest = chain(first, rows)
    while block := list(islice(rest, WRITTEN_ROWS)):
        yield {name: [row.get(name) for row in block] for name in names}


def _row(one: Prediction) -> dict[str, Any]:
    row: dict[str, Any] = {"id": one.id}
    if one.each:
        row |= {name: _in_one_cell(one.as_text(getattr(one, name))) for name in ("label", "truth")}
    elif not one.problem:
        labels = _flat(one.label)
        truths = [None] * len(labels) if one.truth is None else _flat(one.truth)
        chances = [_flat(one.probabilities)]
        if len(labels) > 1:
            chances = np.reshape(chances, (len(labels), -1)).tolist()
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


def write_predictions(out: Path, predictions: Iterable[Prediction], absent: Names = ()) -> None:
    """Write predictions while they are computed, see `columns_of`; the file appears when it is complete."""
    replace_file(out, lambda part: WRITERS[out.suffix](part, predictions, absent))


def _write_csv(part: Path, predictions: Iterable[Prediction], absent: Names) -> None:
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, columns in enumerate(_in_blocks(predictions, absent)):
            if "set" in columns:
                # A column p_CLASS shows whether the name of a class contains the separator.
                apart = any("|" in name for name in columns)
                as_text = partial(json.dumps, ensure_ascii=False) if apart else "|".join
                columns["set"] = [as_text([*map(str, names or ())]) for names in columns["set"]]
            if not number:
                writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))


def _write_jsonl(part: Path, predictions: Iterable[Prediction], absent: Names) -> None:
    with part.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(as_json(one.to_dict())) + "\n" for one in predictions)


def _write_parquet(part: Path, predictions: Iterable[Prediction], absent: Names) -> None:
    arrow, tables = import_pyarrow(part), list[Any]()
    for columns in _in_blocks(predictions, absent):
        with as_input_error("--out: one column has labels of several types", "write .csv"):
            tables.append(arrow.table(columns))
    with as_input_error("--out: one column has labels of several types", "write .csv"):
        # A block in which nothing is known of a column has the type null there.
        arrow.parquet.write_table(arrow.concat_tables(tables, promote_options="default"), part)


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


def _in_one_cell(labels: Any) -> Any:
    """Return a list of labels as one text, separated by spaces, and anything else unchanged."""
    return " ".join(map(str, _flat(labels))) if isinstance(labels, list) else labels


def _flat(nested: Any) -> list[Any]:
    if not isinstance(nested, list):
        return [nested]
    return np.array(nested, object).ravel().tolist() if nested and isinstance(nested[0], list) else nested
