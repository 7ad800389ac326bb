"""The commands ``reservoir train`` and ``pretrain``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir.options import (
    RECIPE,
    PlaceOptions,
    PretrainOptions,
    ReservoirOptions,
    RowOptions,
    ShapeOptions,
    TrainOptions,
)
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer, OwnTask, Table, command
from reservoir_pipelines.commands.report_fit import evaluation_tables
from reservoir_pipelines.output import notify, percent, score_text


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    command(app, TrainOptions, ReservoirOptions, RowOptions, PlaceOptions)(train)
    command(app, ShapeOptions, PretrainOptions, PlaceOptions)(pretrain)


def train(task: OwnTask, given: dict[str, Any]) -> Answer | None:
    """Train groups of parameters, the rest frozen.

    The best checkpoint is chosen by validation and scored on test once.
    """
    with training_ends(", or --on-divergence report"):
        done = api.train(task, **given)
    found = done.to_dict() | {"train_score": done.train_score}
    return Answer(found, _training_tables(done)) if _prints() else None


@contextmanager
def training_ends(remedy: str = "") -> Iterator[None]:
    """Report divergence in one line with exit code 1, and an interruption, with the way to continue, with 130."""
    from reservoir.training.trainer import DivergedError

    try:
        yield
    except DivergedError as error:
        message, code = f"{error}{remedy}", 1
    except KeyboardInterrupt:
        message, code = "interrupted; run the same command with --resume to go on from the last checkpoint", 130
    else:
        return
    if _prints():
        notify(f"reservoir: {message}")
    raise typer.Exit(code) from None


def _prints() -> bool:
    """Return whether this process prints: of several, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def _training_tables(done: Any) -> list[Table]:
    of_all = done.test_score if done.test_score_of_all is None else done.test_score_of_all
    name = "" if done.metric == "accuracy" else f" {done.metric}"
    speed = f", {done.steps / done.seconds:.3g} steps/s" if done.seconds else ""
    rows = [
        ("trained", f"{', '.join(done.groups)}: {done.trained:,} parameters"),
        ("frozen", f"{done.frozen_tensors:,} tensors, unchanged bit for bit"),
        ("steps", f"{done.steps:,} in {done.seconds:.0f} s{speed}"),
        *([] if done.diverged_step is None else [("diverged", f"at step {done.diverged_step:,}")]),
        ("best", "-" if done.best_step is None else f"step {done.best_step:,}, by validation"),
        (f"valid{name}", score_text(done.valid_score, done.metric)),
        (f"test{name}", score_text(done.test_score, done.metric)),
        *(
            []
            if of_all == done.test_score
            else [("test, all rows", f"{percent(of_all)}, counting omitted rows as wrong")]
        ),
        ("baseline", f"{score_text(done.floor, done.metric)}, by a constant or by copying the input"),
        ("converged", "-" if done.converged_step is None else f"step {done.converged_step:,}, within 1% from there on"),
        ("run", done.run),
    ]
    tables: list[Table] = [(("trained", ""), rows)]
    if done.swept:
        swept = [key for key in done.swept[0] if key in RECIPE]
        lines = [
            (*(f"{run[key]:g}" for key in swept), score_text(run["valid_score"], done.metric), run["run"])
            for run in done.swept
        ]
        tables.append(((*(f"#{key}" for key in swept), f"#valid{name}", "run"), lines))
    if done.evaluation:
        tables += evaluation_tables(done.evaluation)
    return tables


def pretrain(
    corpus: Annotated[
        str, typer.Argument(help="A text file (also .gz), a folder of them, the name of a stream, or bit-memory.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new model, for --backbone.")],
    given: dict[str, Any],
) -> Answer:
    """Pretrain a backbone from random weights.

    The corpus is text, a stream of tokens, or the task bit-memory.
    """
    with training_ends():
        done = api.pretrain(corpus, out=out, **given)
    speed = f", {done.tokens / done.seconds:,.0f} a second" if done.seconds else ""
    named = ((name, value) for name, value in done.corpus.items() if name != "sha256")
    facts = (str(value) if name in ("corpus", "name") else f"{name} {value}" for name, value in named)
    least = [] if done.entropy is None else [("lowest possible", f"{done.entropy:.3f} bits per {done.unit}")]
    rows = [
        ("model", _as_backbone(done.folder)),
        ("parameters", f"{done.parameters:,}"),
        ("corpus", ", ".join(facts)),
        ("read", f"{done.tokens:,} tokens in {done.steps:,} steps{speed}"),
        ("valid", done.score_text("valid")),
        ("test", done.score_text("test")),
        *least,
    ]
    return Answer(done, [(("pretrained", ""), rows)])


def _as_backbone(folder: str) -> str:
    """Return a folder as ``--backbone`` accepts it: a name without a slash could be that of a known model."""
    return folder if os.sep in folder else f".{os.sep}{folder}"
