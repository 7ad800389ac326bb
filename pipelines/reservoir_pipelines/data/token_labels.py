"""A column with a label for every token: HHEC for the sequence MKVL, or a list as long as the sequence."""

from typing import Any

import numpy as np

from reservoir_pipelines.data.cells import holds_lists
from reservoir_pipelines.data.label_cells import typed_labels
from reservoir_pipelines.data.table_arrays import TableArrays


def read_token_labels(reading: TableArrays, label: str, sequence: str, *, letters: bool) -> bool:
    """Read a column with a label for every token as ``y``; return False if it does not have that form.

    The cells must be lists, or texts (most of them different) of as many letters or words as there are
    tokens. With ``letters``, a token is a letter of ``sequence``, else a number.
    """
    table, bad = reading.table, reading.table.bad
    required_form = "each" in reading.remembered
    if label not in table.frame or (reading.new and not required_form):
        return False
    if not reading.new and table.frame[label].dtype.kind in "biuf":
        return False

    # One label for a whole row can have the length of the row by chance, so that most rows must fit,
    # and most labels must differ, as names of classes do not.
    labels = [_parts(cell) for cell in table.frame[label]]
    tokens = [_token_count(cell, letters=letters) for cell in table.frame[sequence]]
    labelled = [row for row, parts in enumerate(labels) if parts]
    unequal = [row for row in labelled if tokens[row] != len(labels[row])]
    several = any(len(parts) > 1 for parts in labels)
    cells = {str(table.frame[label][row]) for row in labelled}
    different = holds_lists(table.frame[label]) or len(cells) > len(labelled) / 2
    has_form = several and different and len(unequal) < len(labelled) / 2
    if not has_form:
        return required_form
    for row in unequal:
        bad.add(row, f"{len(labels[row])} labels for {tokens[row]} tokens")
    if reading.new:
        objects = np.empty(len(labels), object)
        objects[:] = [parts or None for parts in labels]
        reading.arrays["y"] = objects
        return True
    for row, parts in enumerate(labels):
        if not parts:
            bad.add(row, f"no labels in column {label!r}")
    reading.arrays["y"] = _padded_labels(reading, label, labels)
    reading.chosen["each"] = "token"
    reading.notes.append(f"the column {label!r} labels every token of {sequence!r}")
    return True


def _padded_labels(reading: TableArrays, label: str, labels: list[list[Any]]) -> np.ndarray:
    """Return labels as an array (rows, longest) with zeros at the ends."""
    counts = np.array([len(parts) for parts in labels], np.int64)
    cells = [cell for parts in labels for cell in parts]
    flat = typed_labels(f"{reading.table.bad.where}, column {label!r}", cells, reading.options)
    y = np.zeros((len(counts), counts.max()), flat.dtype)
    y[np.arange(counts.max()) < counts[:, None]] = flat
    return y


def _parts(label: Any) -> list[Any]:
    """Return the words of a text, or its letters if it is one word, or the items of a list."""
    if isinstance(label, str):
        return label.split() if " " in label.strip() else list(label.strip())
    return list(label) if isinstance(label, list | np.ndarray) else []


def _token_count(cell: Any, *, letters: bool) -> int:
    if isinstance(cell, str):
        return len(cell.strip() if letters else cell.split())
    return len(cell) if isinstance(cell, list | np.ndarray) else 0
