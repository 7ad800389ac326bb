"""Archives of named arrays (``.npz`` and HDF5) as rows: ``x``, and optionally y, lengths, split, groups and ids."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.rows import COLUMN_FLAGS, EVERY_ROW, Rows, Sequences
from reservoir_pipelines.data.texts import text_rows

NAMES = ("x", "y", "lengths", "split", "groups", "ids")  # the arrays that are read; a file may hold others


def rows_of_arrays(where: str, arrays: Mapping[str, Sequences], piece_rows: int = EVERY_ROW) -> Rows:
    """Return named arrays as rows; only ``x`` stays unread, and texts (rows,) become sequences of letters."""
    if "x" not in arrays:
        raise InputError(f"{where}: no array 'x'", "call the sequences x and the labels y, not X or Y")
    x = arrays["x"]
    for name, array in arrays.items():
        one_per_row = len(array.shape) > 0 and array.shape[:1] == x.shape[:1]
        if not one_per_row or (name not in {"x", "y"} and len(array.shape) != 1):
            raise InputError(
                f"{where}: x has the shape {x.shape} and {name} {array.shape}",
                f"give one entry of {name} per row of x",
            )
    every = slice(0, x.shape[0])
    others: dict[str, Any] = {name: array[every] for name, array in arrays.items() if name != "x"}
    if len(x.shape) == 1 and x.shape[0] and x.dtype.kind == "U":
        others.pop("lengths", None)  # texts end at their last letter
        return text_rows(where, np.asarray(x[every]).tolist(), others, unused=COLUMN_FLAGS)
    return Rows(x=x, **others, piece_rows=piece_rows, unused=COLUMN_FLAGS)
