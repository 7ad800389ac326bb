"""The command ``reservoir train``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir_pipelines.commands.model_commands import Depth, Init, Seed
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
    app.command()(train)


def train(
    task: Annotated[str, typer.Argument(help="A task's name, or the path of your own data.")],
    train: Annotated[
        str | None,
        typer.Option(
            help="Groups that are trained, comma-separated: input, output, positions, layernorm, attention, "
            "feedforward, recurrent, last-attention, or all [default: input,layernorm,positions,output]"
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="gpt2, bert-base-uncased, lstm, a model folder, a hub name ... [default: mini]")
    ] = None,
    init: Init = None,
    seed: Seed = 0,
    gain: Annotated[float, typer.Option(help="Scale of the input layer.")] = 1.41,
    depth: Depth = None,
    patch: Annotated[int, typer.Option(help="Values per token: windows of a float sequence.")] = 1,
    stride: Annotated[int | None, typer.Option(help="Values from one window to the next [default: the patch]")] = None,
    steps: Annotated[int, typer.Option(help="Steps in all.")] = 5000,
    batch: Annotated[int, typer.Option(help="Rows of one forward pass in one process.")] = 8,
    accumulate: Annotated[int, typer.Option(help="Forward passes per step.")] = 1,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of Adam [default: 1e-3; 3e-4 for LSTMs, 1e-4 for homology]")
    ] = None,
    dropout: Annotated[
        float, typer.Option(help="Share of values dropped above the lowest trained one; 0: none.")
    ] = 0.1,
    clip: Annotated[float, typer.Option(help="Most that the norm of the gradients may be.")] = 1.0,
    eval_every: Annotated[int, typer.Option(help="Steps between validations, each with a checkpoint.")] = 500,
    rows: Annotated[str, typer.Option(help="fresh, augmented or stored rows; auto: as the task allows.")] = "auto",
    limit: Annotated[int | None, typer.Option(help="At most so many rows of each split, a fixed draw.")] = None,
    from_cache: Annotated[
        bool, typer.Option("--from-cache", help="Take what lies below the lowest trained layer from the cache.")
    ] = False,
    store: Annotated[str, typer.Option(help="float16, bfloat16 or float32 in the cache.")] = "float16",
    compute: Annotated[str, typer.Option(help="float32, bfloat16, or auto: bfloat16 where it is native.")] = "auto",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute each block again in the backward pass: less memory.")
    ] = False,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model, on a GPU.")] = False,
    on_divergence: Annotated[str, typer.Option(help="stop, or report the best checkpoint before.")] = "stop",
    bound: Annotated[float, typer.Option(help="A loss above it counts as diverged.")] = 1e4,
    track: Annotated[str | None, typer.Option(help="tensorboard, wandb or mlflow, besides metrics.jsonl.")] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the run [default: in the cache]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    param: Param = None,
    views: Views = None,
    protocol: Protocol = None,
    standardise: Standardise = True,
    data: Data = None,
    cache: Cache = None,
    device: Device = "auto",
    json: Json = False,
    config: Config = None,
) -> None:
    """Train groups of a model's parameters end to end, everything else frozen; validate, and score test once."""
    from reservoir_pipelines.output import print_json, say
    from reservoir_pipelines.training.course import DivergedError
    from reservoir_pipelines.training.train import train as stage

    first = os.environ.get("RANK", "0") == "0"  # of several processes, one speaks
    try:
        done = stage(
            task,
            train=train,
            backbone=backbone,
            init=init,
            seed=seed,
            gain=gain,
            depth=depth,
            patch=patch,
            stride=stride,
            steps=steps,
            batch=batch,
            accumulate=accumulate,
            learning_rate=learning_rate,
            dropout=dropout,
            clip=clip,
            eval_every=eval_every,
            rows=rows,
            limit=limit,
            from_cache=from_cache,
            store=store,
            compute=compute,
            recompute=recompute,
            compiled=compile,
            on_divergence=on_divergence,
            bound=bound,
            track=track,
            run=run,
            resume=resume,
            parameters=task_parameters(param, views, protocol, standardise),
            data=data,
            cache=cache,
            device=device,
        )
    except DivergedError as error:
        if first:
            say(f"reservoir: {error}, or --on-divergence report")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        if first:
            say("reservoir: interrupted; run the same command with --resume to go on from the last checkpoint")
        raise typer.Exit(130) from None
    if not first:
        return
    if json:
        print_json(done.to_dict())
    else:
        _show(done)


def _show(done: Any) -> None:
    from reservoir_pipelines.output import percent, print_table

    best = "-" if done.best_step is None else f"step {done.best_step:,}, by validation"
    score = "" if done.score == "accuracy" else f" {done.score}"
    speed = f", {done.steps / done.seconds:.3g} steps/s" if done.seconds else ""
    rows = [
        ("trained", f"{', '.join(done.groups)}: {done.trained:,} parameters"),
        ("frozen", f"{done.frozen_tensors:,} tensors, bit for bit as before"),
        ("steps", f"{done.steps:,} in {done.seconds:.0f} s{speed}"),
        ("best", best),
        (f"valid{score}", percent(done.valid_accuracy)),
        (f"test{score}", percent(done.test_accuracy)),
        ("converged", "-" if done.converged_step is None else f"step {done.converged_step:,}, within 1% from there on"),
        ("run", done.run),
    ]
    if done.diverged_step is not None:
        rows.insert(3, ("diverged", f"at step {done.diverged_step:,}"))
    print_table(("trained", ""), rows)
