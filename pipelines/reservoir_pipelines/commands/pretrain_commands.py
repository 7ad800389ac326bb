"""The command ``reservoir pretrain``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir.options import PlaceOptions, PretrainOptions, ShapeOptions
from reservoir_pipelines.command import command
from reservoir_pipelines.commands.train_commands import training_ends
from reservoir_pipelines.output import print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, ShapeOptions, PretrainOptions, PlaceOptions)(pretrain)


def pretrain(
    corpus: Annotated[
        str, typer.Argument(help="A text file (also .gz), a folder of them, a stream's name, or bit-memory.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the model, for --backbone.")],
    given: dict[str, Any],
    json: bool,
) -> None:
    """Make a backbone from a random start.

    By training on text, on a stream of tokens, or on the task bit-memory.
    """
    from reservoir_pipelines.pretraining.pretrain import pretrain as stage

    with training_ends():
        done = stage(corpus, out=out, **given)
    if json:
        print_json(done.to_dict())
    else:
        _show(done)


def _show(done: Any) -> None:
    speed = f", {done.tokens / done.seconds:,.0f} a second" if done.seconds else ""
    least = [] if done.entropy is None else [("least possible", f"{done.entropy:.3f} bits per {done.unit}")]
    print_table(
        ("pretrained", ""),
        [
            ("model", _as_backbone(done.folder)),
            ("parameters", f"{done.parameters:,}"),
            ("corpus", ", ".join(_fact(*fact) for fact in done.corpus.items() if fact[0] != "sha256")),
            ("read", f"{done.tokens:,} tokens in {done.steps:,} steps{speed}"),
            ("valid", done.score_text("valid")),
            ("test", done.score_text("test")),
            *least,
        ],
    )


def _fact(name: str, value: Any) -> str:
    return str(value) if name in ("corpus", "name") else f"{name} {value}"


def _as_backbone(folder: str) -> str:
    """Return a folder as ``--backbone`` takes it: one without a slash could be a known name."""
    return folder if os.sep in folder else f".{os.sep}{folder}"
