"""What a person or a program sees: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: Any) -> None:
    """Print one JSON value on one line of stdout."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print an aligned table, never cut or wrapped; a heading that begins with ``#`` sets its numbers to the right."""
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


def score_text(score: float | None, metric: str) -> str:
    """Return a score for a person: a share of right labels as ``94.5%``, any other as a number."""
    return percent(score) if metric == "accuracy" or score is None else f"{score:.3f}"


def size_text(size: int) -> str:
    """Return a number of bytes for a person: ``72.4 MB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


_hushed: ContextVar[bool] = ContextVar("hushed", default=False)


@contextmanager
def hushed() -> Iterator[None]:
    """Keep back what stages say of themselves, where somebody else shows how it goes."""
    token = _hushed.set(True)
    try:
        yield
    finally:
        _hushed.reset(token)


def is_hushed() -> bool:
    """Whether somebody else shows how it goes."""
    return _hushed.get()


def say(text: str) -> None:
    """Print one line for a person to stderr; stdout is kept for results."""
    if not _hushed.get():
        console(soft_wrap=True).print(text, markup=False)


def console(*, soft_wrap: bool = False) -> Console:
    """Return stderr as rich sees it."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=soft_wrap)
