"""The command ``reservoir compare-pretraining``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir_pipelines.commands.options import (
    Cache,
    Config,
    Data,
    Device,
    Json,
    Param,
    Protocol,
    Standardise,
    Views,
    task_parameters,
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(compare_pretraining)


def compare_pretraining(
    task: Annotated[str, typer.Argument(help="A task's name, or the path of your own data.")],
    corpora: Annotated[
        str, typer.Option(help="What to pretrain on, comma-separated; random: nothing.")
    ] = "text,bit-memory,nesting,zipf,uniform,random",
    text: Annotated[Path | None, typer.Option(help="The text: a file (also .gz), or a folder of them.")] = None,
    backbone: Annotated[str, typer.Option(help="Gives the shape: mini, gpt2:n_layer=4 ...")] = "mini",
    tokens: Annotated[int, typer.Option(help="Tokens that each pretraining reads, to the nearest step.")] = 2**22,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a step of pretraining.")] = 4096,
    vocabulary: Annotated[
        int, typer.Option(help="Of text 256 for bytes, more for a tokenizer; of a stream: any.")
    ] = 256,
    steps: Annotated[int, typer.Option(help="Steps of each FPT.")] = 5000,
    output_only: Annotated[bool, typer.Option("--output-only", help="Leave out the FPTs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    limit: Annotated[int | None, typer.Option(help="At most so many rows of each split, a fixed draw.")] = None,
    param: Param = None,
    views: Views = None,
    protocol: Protocol = None,
    standardise: Standardise = True,
    data: Data = None,
    cache: Cache = None,
    device: Device = "auto",
    compute: Annotated[str, typer.Option(help="float32, bfloat16, or auto: bfloat16 where it is native.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder of the results [default: in the cache]")] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Pretrain one shape on equally many tokens of several corpora, and compare what each is worth to a task."""
    from reservoir_pipelines.output import print_json, say
    from reservoir_pipelines.pretraining.comparison import compare_pretraining as stage
    from reservoir_pipelines.training.course import DivergedError

    try:
        done = stage(
            task,
            corpora=corpora,
            text=text,
            backbone=backbone,
            tokens=tokens,
            batch_tokens=batch_tokens,
            vocabulary=vocabulary,
            steps=steps,
            output_only=output_only,
            seed=seed,
            limit=limit,
            parameters=task_parameters(param, views, protocol, standardise),
            data=data,
            cache=cache,
            device=device,
            compute=compute,
            out=out,
        )
    except DivergedError as error:
        say(f"reservoir: {error}")
        raise typer.Exit(1) from None
    if json:
        print_json(done.to_dict())
    else:
        _show(done)


def _show(done: Any) -> None:
    from reservoir_pipelines.output import percent, print_table

    cells = [
        (
            row.corpus,
            f"{row.pretraining.tokens:,}" if row.pretraining else "-",
            row.pretraining.told("test") if row.pretraining else "-",
            f"{row.pretraining.entropy:.3f}" if row.pretraining and row.pretraining.entropy is not None else "-",
            percent(row.output_only.test_score),
            percent(row.fpt.test_accuracy if row.fpt else None),
        )
        for row in done.rows
    ]
    headings = ("pretrained on", "#tokens", "held out", "#least possible", "#output only", "#FPT")
    print_table(headings, cells, f"{done.task}, {done.backbone}: test accuracy")
    print_table(("written", ""), [("table", done.results), ("plot", done.plot)])
