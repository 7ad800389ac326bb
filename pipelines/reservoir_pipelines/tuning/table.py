"""How a person sees a search: a live table of the best on a terminal, else a line for each reservoir."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reservoir_pipelines.output import console, printable, score_text
from reservoir_pipelines.tuning.trials import Trial

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 12  # of the best reservoirs


@contextmanager
def trial_table() -> Iterator[Callable[[Trial], None]]:
    """Yield what shows a trial that has ended."""
    place = console()
    if not place.is_terminal:
        yield lambda trial: place.print(
            "  ".join(_cells(trial)), markup=False, soft_wrap=True
        )  # `notify` is silenced here
        return
    from rich.live import Live

    found: list[Trial] = []
    with Live(console=place, transient=True) as live:

        def show(trial: Trial) -> None:
            found.append(trial)
            live.update(_table(found))

        yield show


def _table(found: list[Trial]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    last = [trial for trial in found if trial.limit == found[-1].limit]
    best = sorted(last, key=lambda trial: trial.merit, reverse=True)[:SHOWN]
    rows = "all rows" if found[-1].limit is None else f"{found[-1].limit:,} rows of a split"
    table = Table("", "held out", "loss", "s", "reservoir", title=f"{len(last):,} reservoirs on {rows}; the best")
    for trial in best:
        table.add_row(*map(escape, _cells(trial)))
    return table


def _cells(trial: Trial) -> tuple[str, ...]:
    score = score_text(trial.score, trial.metric)
    return f"{trial.number:3d}", f"{score:>6}", f"{trial.loss:.3f}", f"{trial.seconds:5.1f}", printable(trial.title)
