"""The command ``reservoir train``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from reservoir.options import RECIPE, PlaceOptions, ReservoirOptions, RowOptions, TrainOptions
from reservoir_pipelines.command import command
from reservoir_pipelines.commands.report_fit import evaluation_lines
from reservoir_pipelines.output import percent, print_json, print_table, say, score_text


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, TrainOptions, ReservoirOptions, RowOptions, PlaceOptions)(train)


def train(
    task: Annotated[str, typer.Argument(help="A task's name, or the path of your own data.")],
    given: dict[str, Any],
    json: bool,
) -> None:
    """Train groups of parameters, the rest frozen.

    End to end; chosen by validation, scored on test once.
    """
    from reservoir_pipelines.training.train import train as stage

    with training_ends(", or --on-divergence report"):
        done = stage(task, **given)
    if not _speaks():
        return
    if json:
        print_json(done.to_dict() | {"train_score": done.train_score})
    else:
        _show(done)


@contextmanager
def training_ends(remedy: str = "", again: str = "with --resume to go on from the last checkpoint") -> Iterator[None]:
    """Say in one line that the loss diverged, with exit code 1, or how to go on after an interruption, with 130."""
    from reservoir.training.trainer import DivergedError

    try:
        yield
    except DivergedError as error:
        message, code = f"{error}{remedy}", 1
    except KeyboardInterrupt:
        message, code = f"interrupted; run the same command {again}", 130
    else:
        return
    if _speaks():
        say(f"reservoir: {message}")
    raise typer.Exit(code) from None


def _speaks() -> bool:
    """Return whether this process is the one of several that speaks."""
    return os.environ.get("RANK", "0") == "0"


def _show(done: Any) -> None:
    of_all = done.test_score if done.test_score_of_all is None else done.test_score_of_all
    name = "" if done.metric == "accuracy" else f" {done.metric}"
    speed = f", {done.steps / done.seconds:.3g} steps/s" if done.seconds else ""
    rows = [
        ("trained", f"{', '.join(done.groups)}: {done.trained:,} parameters"),
        ("frozen", f"{done.frozen_tensors:,} tensors, bit for bit as before"),
        ("steps", f"{done.steps:,} in {done.seconds:.0f} s{speed}"),
        *([] if done.diverged_step is None else [("diverged", f"at step {done.diverged_step:,}")]),
        ("best", "-" if done.best_step is None else f"step {done.best_step:,}, by validation"),
        (f"valid{name}", score_text(done.valid_score, done.metric)),
        (f"test{name}", score_text(done.test_score, done.metric)),
        *([] if of_all == done.test_score else [("test of all", f"{percent(of_all)}, what is left out being wrong")]),
        ("floor", f"{score_text(done.floor, done.metric)}, by a constant or by copying what is shown"),
        ("converged", "-" if done.converged_step is None else f"step {done.converged_step:,}, within 1% from there on"),
        ("run", done.run),
    ]
    print_table(("trained", ""), rows)
    if done.swept:
        swept = [key for key in done.swept[0] if key in RECIPE]
        lines = [
            (*(f"{run[key]:g}" for key in swept), score_text(run["valid_score"], done.metric), run["run"])
            for run in done.swept
        ]
        print_table((*(f"#{key}" for key in swept), f"#valid{name}", "run"), lines)
    if done.evaluation:
        print_table(("on test", ""), evaluation_lines(done.evaluation))
