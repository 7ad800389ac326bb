"""Predictions as columns, and as a file: ``.csv``, ``.jsonl`` or ``.parquet``."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir import InputError
from reservoir_pipelines.files import replace_file

if TYPE_CHECKING:
    from reservoir_pipelines.prediction.predict import Prediction

SUFFIXES = (".csv", ".jsonl", ".parquet")


def check_out(out: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if out.suffix not in SUFFIXES:
        raise InputError(f"--out {out}: predictions are written as {', '.join(SUFFIXES)}; choose one of these")
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise InputError(f"--out {out}: no file can be written there; name one in a folder that is there")
    if out.suffix == ".parquet":
        _pyarrow(out)


def columns_of(predictions: Sequence[Prediction]) -> dict[str, list[Any]]:
    """Return predictions as columns: ``id`` or ``row``, ``label``, ``p_<class>`` of each class, and ``truth``.

    Where a row has several labels, each has a number behind: ``label_0``, ``p_0_<class>``, ``truth_0``.
    """
    if not predictions:
        return {}
    named = predictions[0].id is not None
    columns: dict[str, list[Any]] = {
        "id" if named else "row": [p.id if named else n for n, p in enumerate(predictions)]
    }
    truths = any(one.truth is not None for one in predictions)
    if predictions[0].each:  # in one cell: letters as they are, others with spaces between
        cells_of = {"label": [one.label for one in predictions]}
        cells_of |= {"truth": [one.truth for one in predictions]} if truths else {}
        for name, cells in cells_of.items():
            written = [one.written(cell) for one, cell in zip(predictions, cells, strict=True)]
            columns[name] = [" ".join(map(str, _flat(cell))) if isinstance(cell, list) else cell for cell in written]
        return columns
    several = isinstance(predictions[0].label, list)
    labels = [_flat(one.label) for one in predictions]
    chances = [_flat(one.probabilities) for one in predictions]
    answers = [_flat(one.truth) if one.truth is not None else [None] * len(labels[0]) for one in predictions]
    classes = predictions[0].classes
    for place in range(len(labels[0])):
        behind = f"_{place}" if several else ""
        columns[f"label{behind}"] = [row[place] for row in labels]
        for number, name in enumerate(classes if chances[0] else ()):
            columns[f"p{behind}_{name}"] = [row[place * len(classes) + number] for row in chances]
        if truths:
            columns[f"truth{behind}"] = [row[place] for row in answers]
    return columns


def write_predictions(out: Path, predictions: Sequence[Prediction]) -> None:
    """Write predictions as columns, of ``.jsonl`` as an object for each; the file appears whole."""

    def write(part: Path) -> None:
        columns = columns_of(predictions)
        if out.suffix == ".parquet":
            arrow = _pyarrow(out)
            arrow.parquet.write_table(arrow.table(columns), part)
        elif out.suffix == ".csv":
            with part.open("x", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
        else:
            lines = (json.dumps(one.to_dict()) + "\n" for one in predictions)
            part.write_text("".join(lines), encoding="utf-8")

    replace_file(out, write)


def _flat(nested: Any) -> list[Any]:
    return np.array(nested, object).ravel().tolist()


def _pyarrow(out: Path) -> Any:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f"--out {out}: Parquet needs a package: pip install pyarrow; or write .csv") from None
    return pyarrow
