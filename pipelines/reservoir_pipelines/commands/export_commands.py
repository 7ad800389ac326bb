"""The command ``reservoir export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_pipelines.commands.options import Config, Json, Readout


def export(
    readout: Readout,
    to: Annotated[str, typer.Option(help="torch (for torch.export.load) or onnx.")] = "torch",
    out: Annotated[
        Path | None, typer.Option(help="The file [default: model.pt2 or model.onnx, by the readout]")
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Write a readout with its model as one file, from sequence to logits, that runs without this program."""
    from reservoir_pipelines.export import export as stage
    from reservoir_pipelines.output import print_json, print_table, size_text

    done = stage(readout, to=to, out=out)
    if json:
        print_json(done.to_dict())
        return
    fewest, most = done.tokens
    length = f"{most} tokens, padded to it" if fewest == most else f"{fewest} to {most} tokens"
    print_table(
        ("exported", ""),
        [
            ("model", done.model),
            ("size", size_text(done.bytes)),
            ("sequences", length),
            ("how to call it", done.card),
        ],
    )
