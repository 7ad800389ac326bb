"""The command ``reservoir tune``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reservoir.options import PlaceOptions, RowOptions, ShapeOptions, TuneOptions
from reservoir_pipelines.command import command


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, TuneOptions, ShapeOptions, RowOptions, PlaceOptions)(tune)


def tune(
    task: Annotated[str, typer.Argument(help="A task's name, or the path of your own data.")],
    given: dict[str, Any],
    json: bool,
) -> None:
    """Find the reservoirs that suit some data.

    They are searched for within a budget of time, by cross-validation on train and valid alone. The best are read side
    by side and scored on test once. What was tried is kept: the same command goes on from it.
    """
    from reservoir_pipelines.commands import report_fit
    from reservoir_pipelines.output import print_json, print_table, score_text
    from reservoir_pipelines.tuning.table import trial_table
    from reservoir_pipelines.tuning.tune import tune as stage

    with trial_table() as show:
        done = stage(task, **given, show=show)
    if json:
        print_json(done.to_dict())
        return
    report_fit.show(done.fit, json=False)
    lines = [("tried", f"{len(done.trials):,} reservoirs in {done.seconds:.0f} s, all in {done.folder}")]
    lines.append((f"held-out {done.metric}", f"{score_text(done.score, done.metric)}, by which it was chosen"))
    if done.raw_score is not None:
        lines.append(("... of the raw input", score_text(done.raw_score, done.metric)))
    print_table(("", ""), lines)
    print_table(("", ""), [("again", line) for line in done.commands])
