"""Progress on stderr: one live line at a terminal, nothing where it is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Meter:
    """A progress bar over rows that also shows rows per second, gigabytes and the time left.

    Parameters
    ----------
    progress : rich.progress.Progress
        The live display.
    bar : TaskID
        Its bar.
    """

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress = progress
        self._bar = bar

    def advance(self, rows: int, written: int | None = None) -> None:
        """Count ``rows`` more as done; ``written`` is the number of bytes written so far."""
        self._progress.advance(self._bar, rows)
        task = self._progress.tasks[self._bar]
        size = "" if written is None else f"{written / 1e9:.2f} GB"
        self._progress.update(self._bar, rate=f"{task.speed or 0:.0f}/s", size=size)


@contextmanager
def meter(title: str, rows: int, unit: str = "rows") -> Iterator[Meter]:
    """Show a progress bar for the time of the context.

    Parameters
    ----------
    title : str
        What is being done.
    rows : int
        How much there is to do.
    unit : str, default "rows"
        What is counted.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[size]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Meter(progress, progress.add_task(title, total=rows, rate="", size=""))


def say(text: str) -> None:
    """Print one line for a person to stderr; stdout is kept for results."""
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


def size_text(size: int) -> str:
    """Return a number of bytes for a person: ``72.4 MB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
