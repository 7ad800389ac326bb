"""New inputs of a task of your own, as its sequences are stored."""

from __future__ import annotations

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.letters import codes_of, to_symbols
from reservoir.tasks.own.values import as_values, clean_symbols
from reservoir.tasks.source import full_lengths
from reservoir.tasks.task import Task, Tokens


def clean_lengths(where: str, lengths: np.ndarray, rows: int, tokens: int, fewest: int = 1) -> np.ndarray:
    """Return lengths (rows,) as int32; refuse all but whole numbers from ``fewest`` to ``tokens``."""
    if lengths.dtype.kind not in "ui" or lengths.shape != (rows,):
        raise InputError(f"{where}: lengths hold {lengths.dtype} {lengths.shape}; give integers of shape ({rows},)")
    wrong = (lengths < fewest) | (lengths > tokens)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{where}: length {lengths[row]} in row {row} is not between {fewest} and {tokens}")
    return lengths.astype(np.int32)


def encode_own(task: Task, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return new inputs, in the form of the file that the task was made from, as stored sequences and their lengths."""
    where = f"task {task.name!r}"
    if task.pictures:
        return x, np.full(len(x), task.max_tokens, np.int32)
    if task.alphabet:
        if x.dtype.kind != "U" or x.ndim != 1:
            raise InputError(f"{where}: inputs of shape {x.shape} and type {x.dtype}; give texts (rows,)")
        return codes_of(where, x.tolist())
    symbols = isinstance(task.form, Tokens)
    if not symbols and x.ndim == 2:
        x = x[:, :, None]
    missing = task.parameters.get("missing", "refuse")
    dim = 0 if isinstance(task.form, Tokens) else task.form.dim // (2 if missing == "mask" else 1)
    shape_fits = x.ndim == 2 if symbols else x.ndim == 3 and x.shape[2] == dim
    if not shape_fits or x.dtype.kind not in ("ui" if symbols else "uif") or not x.size:
        want = "integers (rows, tokens)" if symbols else f"numbers (rows, tokens, {dim})"
        raise InputError(f"{where}: inputs of shape {x.shape} and type {x.dtype}; give {want}")
    given = full_lengths(x) if lengths is None else lengths
    lengths = clean_lengths(where, given, *x.shape[:2], fewest=1 if task.each else task.readout_tokens)
    if isinstance(task.form, Tokens):
        x = clean_symbols(where, x, lengths, task.form.vocabulary)
    else:
        x = as_values(where, x, lengths, missing)
    return x, lengths


def letter_symbols(where: str, task: Task, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the symbols of new texts in code points, (rows, tokens)."""
    return to_symbols(where, x, lengths, task.alphabet)
