"""How the command line shows what ``fit`` found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reservoir_pipelines.output import percent, print_json, print_table

if TYPE_CHECKING:
    from reservoir_pipelines.fitting.results import Fit, Result
    from reservoir_pipelines.fitting.seeds import SeedsFit


def show(done: Fit, *, json: bool) -> None:
    """Print a fit as a table, or as one JSON object."""
    if json:
        print_json(done.to_dict())
        return
    rows = [_line("best", done.best)] + ([_line("raw", done.raw)] if done.raw else [])
    headings = ("", "columns", "readout", "#penalty", "#valid", "#test", "95% interval")
    print_table(headings, rows, f"{done.entry.parent.name}, {done.entry.name}")
    if done.curve:
        points = [(f"{n:,}", percent(valid), percent(test)) for n, valid, test in done.curve]
        print_table(("#training rows", "#valid", "#test"), points, "+".join(done.best.columns))
    print_table(
        ("", ""),
        [
            ("tried", f"{len(done.table):,} readouts in {done.seconds:.1f} s, all in {done.results}"),
            ("plot", done.plot),
            ("readout", done.saved),
        ],
    )


def show_seeds(done: SeedsFit, *, json: bool) -> None:
    """Print the fits of several seeds as a table, or as one JSON object."""
    if json:
        print_json(done.to_dict())
        return
    rows = [_line(f"seed {seed}", fit.best) for seed, fit in enumerate(done.fits)]
    print_table(("", "columns", "readout", "#penalty", "#valid", "#test", "95% interval"), rows)
    print_table(
        ("", ""), [("test", f"{percent(done.mean)} +- {100 * done.deviation:.1f} points over {len(done.fits)} seeds")]
    )


def _line(name: str, result: Result) -> tuple[Any, ...]:
    penalty = "" if result.alpha is None else f"{result.alpha:.3g}"
    interval = result.test_interval
    spread = f"{percent(interval[0])} to {percent(interval[1])}" if interval else ""
    columns = "+".join(result.columns)
    return name, columns, result.readout, penalty, percent(result.valid_accuracy), percent(result.test_accuracy), spread
