"""Columns of chats and of marked texts: messages as JSON, and texts with marks around a span."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from reservoir.tasks.texts import has_marks, with_span
from reservoir_pipelines.data.columns import as_written
from reservoir_pipelines.data.table import Table

MARKS = "it has one of the letters U+FDD0 and U+FDD1, which mark spans"
"""The reason why a text with marks of its own cannot be read."""


def chat_texts(table: Table, name: str) -> np.ndarray:
    """Return a column of chats as the JSON lists of their messages, (rows,) of objects; other cells are bad rows.

    A chat is a list of messages with ``role`` and ``content``, or the JSON text of one. What else a message has,
    such as ``tool_calls``, is for the chat template.
    """
    texts = np.empty(len(table.frame), object)
    for row, cell in enumerate(table.frame[name]):
        messages = _messages(cell)
        problem = _problem_of(messages)
        if problem:
            table.bad.add(
                row, f"{problem} in column {name!r}", "give a list of messages with role and content"
            )
            continue
        # In Parquet, a message has the fields of all messages, with None for those that are not its own, which
        # templates would print.
        messages = [
            {key: value for key, value in message.items() if value is not None} for message in messages
        ]
        texts[row] = json.dumps(messages, ensure_ascii=False)
        if has_marks(texts[row]):
            table.bad.add(row, MARKS)
    return texts


def _messages(cell: Any) -> Any:
    """Return the messages of a cell, which may be their JSON text, as a list; any other cell as it is."""
    if isinstance(cell, str):
        with suppress(ValueError, RecursionError):  # a text that is no JSON is returned as it is
            return json.loads(cell)
    return cell.tolist() if isinstance(cell, np.ndarray) else cell


def _problem_of(messages: Any) -> str:
    """Return why a value is not a list of messages; empty if it is one."""
    if not isinstance(messages, list) or not messages:
        return f"{str(messages)[:40]!r} is not a list of messages"
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"message {number} has no role"
        says_something = message.get("content") is not None or message.get("tool_calls")
        if not says_something:
            return f"message {number} has no content"
    return ""


def marked_texts(table: Table, name: str, span: Sequence[str]) -> np.ndarray:
    """Return a column of texts with marks around a span of each, (rows,) of objects.

    ``span`` names a column of lists [start, end], or the columns of the first letter and of the one after the last.
    A span outside its text, and an empty one, is a bad row.
    """
    texts = as_written(table.frame[name]).to_numpy(object)
    span_cells = zip(*(table.frame[column] for column in span), strict=True)
    for row, cells in enumerate(span_cells):
        start, end = _bounds(cells) or (0, 0)  # without bounds, a span is empty
        if not 0 <= start < end <= len(texts[row]):
            shown = ", ".join(str(value)[:20] for value in cells)
            reason = f"{shown} is not a span of the {len(texts[row]):,} letters of {name!r}"
            table.bad.add(
                row, reason, "give the numbers of its first letter, from 0, and of the one after its last"
            )
        elif has_marks(texts[row]):
            table.bad.add(row, MARKS)
        else:
            texts[row] = with_span(texts[row], start, end)
    return texts


def _bounds(cells: Sequence[Any]) -> tuple[int, int] | None:
    """Return the start and the end of a span, from two cells or from a list in one; None for anything else."""
    values: Any = cells
    if len(cells) == 1:  # a list, or its JSON text
        values = cells[0]
        if isinstance(values, str):
            with suppress(ValueError, RecursionError):
                values = json.loads(values)
    # Tables may hold whole numbers as floats or as texts. Python takes true and false for integers.
    with suppress(TypeError, ValueError, OverflowError):
        if any(isinstance(value, bool | np.bool_) for value in values):
            return None
        start, end = (float(value) for value in values)
        if start.is_integer() and end.is_integer():
            return int(start), int(end)
    return None
