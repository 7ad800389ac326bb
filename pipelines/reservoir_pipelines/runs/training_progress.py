"""Progress of a training on stderr: loss, accuracy, steps per second and the time left, at a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def training_meter(steps: int, done: int, *, quiet: bool = False) -> Iterator[Callable[[int, float, float], None]]:
    """Show one live line for the time of the context.

    Parameters
    ----------
    steps : int
        Steps in all.
    done : int
        Steps done before.
    quiet : bool, default False
        Show nothing.

    Yields
    ------
    callable
        ``show(step, loss, accuracy)``; loss and accuracy are shown as running means.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("train"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    means: list[float] = []
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("train", total=steps, completed=done, text="")

        def show(step: int, loss: float, accuracy: float) -> None:
            means[:] = [0.95 * m + 0.05 * v for m, v in zip(means or (loss, accuracy), (loss, accuracy), strict=True)]
            speed = progress.tasks[0].speed or 0.0
            text = f"loss {means[0]:.4f}  accuracy {100 * means[1]:.1f}%  {speed:.3g} steps/s"
            progress.update(bar, completed=step, text=text)

        yield show
