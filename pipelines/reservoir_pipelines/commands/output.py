"""Results on stdout: a short table for a person, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print an aligned table, never cut or wrapped, so that it reads the same in a terminal, a file and a pipe.

    Parameters
    ----------
    headings : sequence of str
        One per column, empty for none; those of numbers begin with ``#`` and are set to the right.
    rows : iterable of sequence
        The cells.
    title : str, optional
        A line above.
    """
    lines = [[str(cell) for cell in row] for row in rows]
    names = [heading.removeprefix("#") for heading in headings]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    ruled = [["-" * width for width in widths]] if any(names) else []
    head = [names, *ruled] if any(names) else []
    if title:
        sys.stdout.write(title + "\n")
    for line in [*head, *lines]:
        cells = [
            cell.rjust(width) if heading.startswith("#") else cell.ljust(width)
            for cell, width, heading in zip(line, widths, headings, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.write("\n")


def percent(accuracy: float | None) -> str:
    """Return an accuracy for a person: ``94.5%``, or a dash where there is none."""
    return "-" if accuracy is None else f"{100 * accuracy:.1f}%"
