"""What was read from data, in lines for the user: each choice that a rule made, with the flag that changes it."""

import numpy as np

from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.words import UNKNOWN, are_words, shown
from reservoir_pipelines.data.integers import Reading
from reservoir_pipelines.data.labels import Labels
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.data.texts import UNSEEN


def describe(rows: Rows, labels: Labels, task: Task, unseen: str, reading: Reading | None) -> list[str]:
    """Return one line for each choice that a rule made, with the flag for another.

    ``unseen`` has the letters that no training row has; ``reading`` says whether a rule reads whole numbers
    as symbols, and is None if a flag or the type decides.
    """
    lines = [*rows.notes, *labels.notes]
    if task.each and "each" not in rows.parameters:
        lines.append("y is as long as x, so it labels every token")
    if rows.groups is not None:
        lines.append(f"{len(np.unique(rows.groups)):,} groups, each in one split")
    return [*lines, *_reading_of_sequences(task, unseen, reading)]


def summary(rows: Rows, task: Task, lengths: np.ndarray) -> str:
    """Return the number of rows, their lengths (rows,), the classes, and the roles of columns with their flags."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    size = f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    tokens = {"letters": "letters", "images": "patches"}.get(rows.holds, "tokens")
    labels = f"{task.classes:,} classes" if task.classes else "targets of a regression"
    roles = "".join(f", --{flag} {column}" for flag, column in rows.roles.items())
    return f"{len(rows):,} rows of {size} {tokens}, with {labels}{roles}"


def _reading_of_sequences(task: Task, unseen: str, reading: Reading | None) -> list[str]:
    """Return lines on what the sequences hold: texts, symbols or values."""
    if task.alphabet:
        letters = task.alphabet.removeprefix(UNKNOWN)
        kind = "holds texts of" if are_words(task.alphabet) else f"read as {len(letters)} symbols,"
        lines = [f"x {kind} the letters {shown(letters)}"]
        return [*lines, f"{UNSEEN}, read as unknown: {shown(unseen)}"] if unseen else lines
    if reading is None:
        return []
    if isinstance(task.form, Tokens):
        vocabulary = task.form.vocabulary
        return [f"x read as {vocabulary:,} symbols ({reading.why}); pass --values for values"]
    return [f"x read as values ({reading.why}); pass --symbols for symbols"]
