"""The command ``reservoir compare-pretraining``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reservoir.options import ComparisonOptions, PlaceOptions, RowOptions, ShapeOptions
from reservoir_pipelines.command import command
from reservoir_pipelines.commands.train_commands import training_ends
from reservoir_pipelines.output import print_json, print_table, score_text


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, ComparisonOptions, ShapeOptions, RowOptions, PlaceOptions)(compare_pretraining)


def compare_pretraining(
    task: Annotated[str, typer.Argument(help="A task's name, or the path of your own data.")],
    given: dict[str, Any],
    json: bool,
) -> None:
    """Compare what pretraining on each corpus is worth.

    One shape, and equally many tokens of each.
    """
    from reservoir_pipelines.pretraining.comparison import compare_pretraining as stage

    with training_ends(again="again to go on"):
        done = stage(task, **given)
    if json:
        print_json(done.to_dict())
    else:
        _show(done)


def _show(done: Any) -> None:
    cells = [
        (
            row.corpus,
            f"{row.pretraining.tokens:,}" if row.pretraining else "-",
            row.pretraining.score_text("test") if row.pretraining else "-",
            f"{row.pretraining.entropy:.3f}" if row.pretraining and row.pretraining.entropy is not None else "-",
            score_text(row.output_only.test_score, done.metric),
            score_text(row.fpt.test_score if row.fpt else None, done.metric),
        )
        for row in done.rows
    ]
    headings = ("pretrained on", "#tokens", "held out", "#least possible", "#output only", "#FPT")
    print_table(headings, cells, f"{done.task}, {done.backbone}: test {done.metric}")
    print_table(("written", ""), [("table", done.results), ("plot", done.plot)])
