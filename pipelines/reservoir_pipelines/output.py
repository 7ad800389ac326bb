"""What a person or a program sees: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Record:
    """What the dataclasses of results share: their fields as JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return as_json(vars(self))


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: records and mappings as objects, tuples as lists, paths as text."""
    if isinstance(value, Mapping):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return value.to_dict() if hasattr(value, "to_dict") else str(value) if isinstance(value, Path) else value


def print_json(value: Any) -> None:
    """Print one value as JSON on one line of stdout."""
    sys.stdout.write(json.dumps(as_json(value)) + "\n")
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


_hushed: ContextVar[bool] = ContextVar("silenced", default=False)


@contextmanager
def silenced() -> Iterator[None]:
    """Keep back what stages say of themselves, where somebody else shows how it goes."""
    token = _hushed.set(True)
    try:
        yield
    finally:
        _hushed.reset(token)


def notify(text: str) -> None:
    """Print one line for a person to stderr; stdout is kept for results."""
    if not _hushed.get():
        console(soft_wrap=True).print(text, markup=False)


def console(*, soft_wrap: bool = False) -> Console:
    """Return stderr as rich sees it."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=soft_wrap)


clock = time.monotonic

SECONDS = 30.0
SHARE = 0.1
LONGEST = 600.0
"""A line comes after so many seconds and this share of the whole, whichever is later, or after the longest time."""


class Lines:
    """Says now and then how much of the whole is done, at which rate, and how long the rest will take."""

    def __init__(self, title: str, total: int, unit: str, done: int = 0, *, each: int = 1) -> None:
        self.total, self.unit, self.done, self.each = total, unit, done, each
        self._title, self._first, self._told = title, done, done
        self._started = self._last = clock()

    def show(self, done: int, text: str = "") -> None:
        """Print a line if it is time for one."""
        now, self.done = clock(), done
        waited, gained = now - self._last, done - self._told
        if waited < SECONDS or done >= self.total or (gained < SHARE * self.total and waited < LONGEST):
            return
        self._last, self._told = now, done
        speed = (done - self._first) / (now - self._started)
        left = f", {time_text((self.total - done) / speed)} left" if speed else ""
        share = f"{done:,} of {self.total:,} ({100 * done / self.total:.0f}%)"
        notify(f"{self._title}: {share}, {self.each * speed:,.3g} {self.unit}/s{text and '  ' + text}{left}")


class Meter:
    """Progress with its rate: one live line on a terminal, elsewhere lines now and then."""

    def __init__(self, progress: Progress, lines: Lines) -> None:
        self._progress, self._lines = progress, lines
        self._bar = progress.add_task("", total=lines.total, completed=lines.done, text="")

    def show(self, done: int, text: str = "") -> None:
        """Show how much is done."""
        if self._progress.disable:
            self._lines.show(done, text)
            return
        self._lines.done = done
        speed = self._lines.each * (self._progress.tasks[0].speed or 0)
        self._progress.update(self._bar, completed=done, text=f"{text}  {speed:,.3g} {self._lines.unit}/s".lstrip())

    def advance(self, rows: int, written: int | None = None) -> None:
        """Count ``rows`` more as done; ``written`` is the number of bytes written so far."""
        self.show(self._lines.done + rows, "" if written is None else f"{written / 1e9:.2f} GB")


@contextmanager
def meter(title: str, total: int, unit: str = "rows", done: int = 0, *, each: int = 1) -> Iterator[Meter]:
    """Show progress for the time of the context; ``each`` units are one of what is counted, of the rate."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    place = console()
    text, left = TextColumn("{task.fields[text]}"), TimeRemainingColumn(compact=True)
    columns = (TextColumn(title), BarColumn(bar_width=24), MofNCompleteColumn(), text, left, TextColumn("left"))
    quiet = _hushed.get() or not place.is_terminal
    with Progress(*columns, console=place, disable=quiet, transient=True) as progress:
        yield Meter(progress, Lines(title, total, unit, done, each=each))


@contextmanager
def training_meter(
    steps: int, done: int, text: str, *, each: int = 1, unit: str = "steps"
) -> Iterator[Callable[..., None]]:
    """Yield ``show(step, *numbers)``, which shows running means of the numbers as ``text`` formats them."""
    means: list[float] = []
    with meter("train", steps, unit, done, each=each) as bar:

        def show(step: int, *numbers: float) -> None:
            means[:] = [0.95 * m + 0.05 * v for m, v in zip(means or numbers, numbers, strict=True)]
            bar.show(step, text.format(*means))

        yield show


def time_text(seconds: float) -> str:
    """Return a time for a person: ``40 s``, ``12 min``, ``3 h 20 min``, ``11.3 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes < 48 * 60 else f"{seconds / 86400:.1f} days"
