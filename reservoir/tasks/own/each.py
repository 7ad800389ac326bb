"""Labels of every token of a sequence: of its letters, its words, or its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reservoir.tasks.own.bad_rows import BadRows
from reservoir.tasks.own.cells import is_number, typed
from reservoir.tasks.own.letters import texts_of
from reservoir.tasks.task import Task

TOKEN, WORD = "token", "word"

LONGEST_NUMBER = 24
"""Digits of the longest number that is one value; a longer one is a label for each digit."""

Parts = list[list[Any] | None]


def labels_of_each(
    bad: BadRows, sequences: Sequence[Any], labels: Sequence[Any], *, known: str | None = None
) -> tuple[str, Parts] | None:
    """Return what is labelled, tokens or words, and the labels of each sequence; None where whole ones are.

    Labels are of tokens or words if they are lists, or texts that differ from row to row and are as long as their
    sequences, without spaces or with as many parts. Numbers are labels of whole sequences even if they happen to be as
    long, unless ``known`` says what is labelled. A row without labels has None; one with another number of labels
    than its sequence has tokens is bad.
    """
    import pandas as pd

    longest = max((len(str(label)) for label in labels), default=0)
    if known is None and longest <= LONGEST_NUMBER and is_number(pd.Series(list(labels), dtype=object)):
        return None
    parts = [_parts(label) for label in labels]
    given = [row for row, part in enumerate(parts) if part]
    lists = any(isinstance(label, list | np.ndarray) for label in labels)
    several = lists or len({str(labels[row]) for row in given}) > len(given) / 2
    if not several or max((len(parts[row] or ()) for row in given), default=0) < 2:
        return None if known is None else (known, [None] * len(labels))
    for kind in (TOKEN, WORD):
        sizes = {row: _sizes(sequences[row]).get(kind, 0) for row in given}
        wrong = [row for row in given if sizes[row] != len(parts[row] or ())]
        if len(wrong) < len(given) / 2:
            for row in wrong:
                bad.add(row, f"{len(parts[row] or ())} labels for {sizes[row]} {kind}s")
            return kind, parts
    return None if known is None else (known, [None] * len(labels))


def padded_labels(bad: BadRows, name: str, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of rows of several lengths, (rows, most), and the lengths."""
    counts = np.array([len(row or ()) for row in parts], np.int64)
    for row in np.flatnonzero(counts == 0):
        bad.add(row, f"no labels in column {name!r}")
    flat = typed(f"{bad.where}, column {name!r}", [label for row in parts for label in row or ()])
    y = np.zeros((len(counts), counts.max()), flat.dtype)
    y[np.arange(y.shape[1]) < counts[:, None]] = flat
    return y, counts


def spaced_words(cells: Any) -> Any:
    """Return lists of words, as labels of words come with, as texts; a column of other cells as it is."""
    if not all(isinstance(cell, list) and cell and all(isinstance(word, str) for word in cell) for cell in cells):
        return cells
    return cells.map(lambda words: " ".join("".join(word.split()) or "_" for word in words))


def units(task: Task, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return how many labels each of some stored sequences has, (rows,)."""
    if task.each == WORD:
        return np.array([len(text.split()) for text in texts_of(x, lengths)])
    return lengths


def _parts(label: Any) -> list[Any] | None:
    if isinstance(label, str):
        return (label.split() if " " in label.strip() else list(label.strip())) or None
    return list(label) or None if isinstance(label, list | np.ndarray) else None


def _sizes(sequence: Any) -> dict[str, int]:
    """Return the number of tokens and of words of a sequence: a text, or a list."""
    if not isinstance(sequence, str):
        return {TOKEN: len(sequence)} if hasattr(sequence, "__len__") else {}
    return {TOKEN: len(sequence.strip()), WORD: len(sequence.split())}
