"""Labels of every token of a sequence: of its letters, its words, or its values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.cells import column, is_text
from reservoir.tasks.own.guesses import single
from reservoir.tasks.own.letters import texts_of
from reservoir.tasks.own.tables import Table
from reservoir.tasks.task import Task

TOKEN, WORD = "token", "word"

LONGEST_NUMBER = 24
"""Letters of the longest number that is a value; more digits than that are labels, one beside the other."""


def each_of(
    where: str, sequences: Sequence[Any], labels: Sequence[Any], *, known: bool = False
) -> tuple[str, list[list[Any] | None]] | None:
    """Return what is labelled, tokens or words, and the labels of each sequence; None where they are of whole ones.

    Lists are of tokens or words; so are texts that are as long as their sequences, differ, and hold no spaces, or as
    many parts with spaces between. Numbers are values of whole sequences, also where they happen to be as long, unless
    it is ``known`` that tokens or words are labelled. What has no label at all is None.
    """
    if not known and single(labels) and max((len(str(label)) for label in labels), default=0) <= LONGEST_NUMBER:
        return None
    parts = [_parts(label) for label in labels]
    given = [row for row, part in enumerate(parts) if part]
    lists = any(isinstance(label, list | np.ndarray) for label in labels)
    several = lists or len({str(labels[row]) for row in given}) > len(given) / 2
    if not several or max((len(parts[row] or ()) for row in given), default=0) < 2:
        return None
    for kind in (TOKEN, WORD):
        sizes = {row: _sizes(sequences[row]).get(kind, 0) for row in given}
        wrong = [row for row in given if sizes[row] != len(parts[row] or ())]
        if not wrong:
            return kind, parts
        if len(wrong) < len(given) / 2:
            row = wrong[0]
            raise InputError(
                f"{where}, row {row}: {len(parts[row] or ())} labels for {sizes[row]} {kind}s, where most rows have "
                "one for each; mend the row"
            )
    return None


def take_each(
    path: Path, table: Table, label: str, whole: str, *, text: bool, known: str | None
) -> tuple[str, dict[str, np.ndarray]] | None:
    """Return what a column labels, every token or word of the column ``whole``, and the arrays; None where it does not.

    ``known`` says what is labelled in new sequences, some of which may have no labels; in those to fit on it is None.
    """
    if known == "":
        return None
    sequences = table[whole]
    if not (text or is_text(sequences)):
        sequences = [cell.split() if isinstance(cell, str) else cell for cell in sequences]
    found = each_of(str(path), sequences, table[label], known=known is not None)
    if found is None:
        return None if known is None else (known, {})
    kind, parts = found
    if known is None:
        y, units = padded(path, label, parts)
        return kind, {"y": y, "units": units}
    return kind, {"y": np.array([*parts, None], object)[:-1]}  # the None keeps lists of one length apart


def padded(path: Path, name: str, rows: Sequence[Sequence[Any] | None]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (rows, most) of rows of several lengths, anything behind their ends, and the lengths."""
    counts = np.array([len(row or ()) for row in rows], np.int64)
    if not counts.all():
        raise InputError(f"{path}, row {int(np.argmin(counts))}, column {name!r}: no labels; remove the row")
    flat = column(path, name, [label for row in rows for label in row or ()])
    y = np.zeros((len(counts), counts.max()), flat.dtype)
    y[np.arange(y.shape[1]) < counts[:, None]] = flat
    return y, counts


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
    """Return the number of tokens and of words of a sequence: a text, numbers with spaces between, or a list."""
    if not isinstance(sequence, str):
        return {TOKEN: len(sequence)} if hasattr(sequence, "__len__") else {}
    return {TOKEN: len(sequence.strip()), WORD: len(sequence.split())}
