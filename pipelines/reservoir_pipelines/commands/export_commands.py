"""The command ``reservoir export``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reservoir.options import OutOptions
from reservoir_pipelines.command import command
from reservoir_pipelines.commands.fit_commands import Readout
from reservoir_pipelines.output import print_json, print_table, size_text


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, OutOptions)(export)


def export(
    readout: Readout,
    to: Annotated[str, typer.Option(help="torch (for torch.export.load) or onnx.")] = "torch",
    *,
    given: dict[str, Any],
    json: bool,
) -> None:
    """Write a readout with its model as one file.

    From a raw sequence to logits; it runs without this program.
    """
    from reservoir_pipelines.prediction.export import export as stage

    done = stage(readout, to=to, **given)
    if json:
        print_json(done.to_dict())
        return
    fewest, most = done.tokens
    length = f"{most} tokens, padded to it" if fewest == most else f"{fewest} to {most} tokens"
    size = size_text(done.bytes)
    rows = [("model", done.model), ("size", size), ("sequences", length), ("how to call it", done.card)]
    print_table(("exported", ""), rows)
