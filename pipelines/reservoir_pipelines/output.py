"""What a person or a program sees: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


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


def say(text: str) -> None:
    """Print one line for a person to stderr; stdout is kept for results."""
    if not _hushed.get():
        console(soft_wrap=True).print(text, markup=False)


def console(*, soft_wrap: bool = False) -> Console:
    """Return stderr as rich sees it."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=soft_wrap)


class Meter:
    """A progress bar over rows that also shows rows per second and gigabytes written."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress = progress
        self._bar = bar

    def advance(self, rows: int, written: int | None = None) -> None:
        """Count ``rows`` more as done; ``written`` is the number of bytes written so far."""
        self._progress.advance(self._bar, rows)
        task = self._progress.tasks[self._bar]
        size = "" if written is None else f"  {written / 1e9:.2f} GB"
        self._progress.update(self._bar, text=f"{task.speed or 0:.0f}/s{size}")


@contextmanager
def meter(title: str, rows: int, unit: str = "rows") -> Iterator[Meter]:
    """Show a progress bar over so many rows for the time of the context."""
    with _progress(title, unit) as progress:
        yield Meter(progress, progress.add_task(title, total=rows, text=""))


@contextmanager
def training_meter(
    steps: int, done: int, text: str, *, each: int = 1, unit: str = "steps/s"
) -> Iterator[Callable[..., None]]:
    """Yield ``show(step, *numbers)``, which shows running means of the numbers as ``text`` formats them.

    ``each`` units make a step, of the speed that is shown.
    """
    means: list[float] = []
    with _progress("train", "") as progress:
        bar = progress.add_task("train", total=steps, completed=done, text="")

        def show(step: int, *numbers: float) -> None:
            means[:] = [0.95 * m + 0.05 * v for m, v in zip(means or numbers, numbers, strict=True)]
            speed = each * (progress.tasks[0].speed or 0.0)
            progress.update(bar, completed=step, text=f"{text.format(*means)}  {speed:,.3g} {unit}")

        yield show


def _progress(title: str, unit: str) -> Progress:
    """Return one live line on stderr; nothing where it is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    place = console()
    columns = (
        TextColumn(title),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        *([TextColumn(unit)] if unit else []),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    quiet = _hushed.get() or not place.is_terminal
    return Progress(*columns, console=place, disable=quiet, transient=True)
