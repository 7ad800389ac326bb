"""The tables that the command line prints for ``fit``."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from reservoir_pipelines.command import Table
from reservoir_pipelines.output import is_share, percent, score_text

if TYPE_CHECKING:
    from reservoir.readouts.evaluation import Evaluation
    from reservoir_pipelines.fitting.results import Fit, Result
    from reservoir_pipelines.fitting.seeds import SeedsFit

HEADINGS = ("", "columns", "readout", "#penalty", "metric", "#valid", "#test", "95% interval")
SIGNIFICANT = 0.05
MOST_RECALLS = 10  # rows of the table of recalls


def fit_tables(done: Fit) -> list[Table]:
    """Return the tables of a fit."""
    rows = [_line("best", done.best)] + ([_line("raw", done.raw)] if done.raw else [])
    tables: list[Table] = [(HEADINGS, rows, f"{done.entry.parent.name}, {done.entry.name}")]
    if done.raw and done.p_value is not None and done.best.columns != done.raw.columns:
        sure = "more than chance" if done.p_value < SIGNIFICANT else "no more than chance can explain"
        tables.append((("", ""), [("best against raw", f"{sure} (p = {done.p_value:.2g}, the same test rows)")]))
    tables += evaluation_tables(done.evaluation, done.best.metric)
    if done.curve:
        metric = done.best.metric
        points = [(f"{n:,}", score_text(valid, metric), score_text(test, metric)) for n, valid, test in done.curve]
        tables.append((("#training rows", "#valid", "#test"), points, f"{done.best.title}: {metric.replace('_', ' ')}"))
    last = [
        ("tried", f"{len(done.table):,} readouts in {done.seconds:.1f} s, all in {done.results}"),
        ("plot", done.plot),
        ("readout", done.saved),
        ("new data", f"reservoir predict {quote(str(done.saved.parent))} NEW"),
    ]
    return [*tables, (("", ""), last)]


def seeds_tables(done: SeedsFit) -> list[Table]:
    """Return the tables of the fits of several seeds."""
    rows = [_line(f"seed {seed}", fit.best) for seed, fit in enumerate(done.fits)]
    metric = done.fits[0].best.metric
    spread = f"{100 * done.deviation:.1f} points" if is_share(metric) else f"{done.deviation:.3f}"
    mean = score_text(done.mean, metric)
    name = f"test {metric.replace('_', ' ')}"
    return [(HEADINGS, rows), (("", ""), [(name, f"{mean} +- {spread} over {len(done.fits)} seeds")])]


def evaluation_lines(found: Evaluation, first: str = "accuracy") -> list[tuple[str, str]]:
    """Return the names and values of an evaluation, beginning with the metric by which a readout was chosen."""
    shares = bool(found.classes)
    return [
        (name.replace("_", " "), percent(value) if shares and name != "auc" else f"{value:.4g}")
        for name, value in sorted(found.scores.items(), key=lambda item: item[0] != first)
    ]


def evaluation_tables(found: Evaluation, first: str = "accuracy") -> list[Table]:
    """Return the scores on test, and the recall of the classes with the lowest one."""
    tables: list[Table] = [(("on test", ""), evaluation_lines(found, first))]
    worst = sorted(found.recall.items(), key=lambda item: item[1])[:MOST_RECALLS] if found.classes else []
    if worst:
        title = "" if len(worst) == len(found.recall) else f"the {len(worst)} classes with the lowest recall"
        tables.append((("class", "#recall"), [(name, percent(share)) for name, share in worst], title))
    return tables


def _line(name: str, result: Result) -> tuple[Any, ...]:
    penalty = "" if result.alpha is None else f"{result.alpha:.3g}"
    interval = result.test_interval
    spread = f"{percent(interval[0])} to {percent(interval[1])}" if interval else ""
    scores = (score_text(score, result.metric) for score in (result.valid_score, result.test_score))
    return name, result.title, result.readout, penalty, result.metric.replace("_", " "), *scores, spread
