"""The command ``reservoir pretrain``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir_pipelines.commands.options import Cache, Config, Device, Json


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(pretrain)


def pretrain(
    corpus: Annotated[
        str, typer.Argument(help="A text file (also .gz), a folder of them, a stream's name, or bit-memory.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the model, for --backbone.")],
    backbone: Annotated[
        str, typer.Option(help="Gives the shape: mini, gpt2:n_layer=4, bert-base-uncased ...")
    ] = "mini",
    vocabulary: Annotated[
        int, typer.Option(help="Of text 256 for bytes, more for a tokenizer; of a stream: any.")
    ] = 256,
    steps: Annotated[int, typer.Option(help="Steps in all.")] = 2000,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = 4096,
    context: Annotated[int | None, typer.Option(help="Tokens read at a time [default: 1024, or the model's]")] = None,
    short: Annotated[int | None, typer.Option(help="... in the first steps [default: a quarter of it]")] = None,
    short_share: Annotated[
        float, typer.Option(help="Share of the steps that read short windows; then they double.")
    ] = 0.6,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest one of AdamW [default: 2e-3; of bit-memory 5e-4, and constant]")
    ] = None,
    warm_up: Annotated[int, typer.Option(help="Steps up to it; then it falls along a cosine.")] = 200,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW, for matrices.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the first weights and of what is drawn.")] = 0,
    eval_every: Annotated[int, typer.Option(help="Steps between measurements, each with a checkpoint.")] = 500,
    compute: Annotated[str, typer.Option(help="float32, bfloat16, or auto: bfloat16 where it is native.")] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model; on a CPU this needs C++.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    cache: Cache = None,
    device: Device = "auto",
    json: Json = False,
    config: Config = None,
) -> None:
    """Make a backbone: train a model from a random start on text, on a stream of tokens, or on the task bit-memory."""
    from reservoir_pipelines.output import print_json, say
    from reservoir_pipelines.pretraining.pretrain import pretrain as stage
    from reservoir_pipelines.training.course import DivergedError

    try:
        done = stage(
            corpus,
            out=out,
            backbone=backbone,
            vocabulary=vocabulary,
            steps=steps,
            batch_tokens=batch_tokens,
            context=context,
            short=short,
            short_share=short_share,
            learning_rate=learning_rate,
            warm_up=warm_up,
            weight_decay=weight_decay,
            seed=seed,
            eval_every=eval_every,
            compute=compute,
            compiled=compile,
            resume=resume,
            cache=cache,
            device=device,
        )
    except DivergedError as error:
        say(f"reservoir: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("reservoir: interrupted; run the same command with --resume to go on from the last checkpoint")
        raise typer.Exit(130) from None
    if json:
        print_json(done.to_dict())
    else:
        _show(done)


def _show(done: Any) -> None:
    from reservoir_pipelines.output import print_table

    speed = f", {done.tokens / done.seconds:,.0f} a second" if done.seconds else ""
    least = [] if done.entropy is None else [("least possible", f"{done.entropy:.3f} bits per {done.unit}")]
    print_table(
        ("pretrained", ""),
        [
            ("model", _as_backbone(done.folder)),
            ("parameters", f"{done.parameters:,}"),
            ("corpus", ", ".join(_fact(*fact) for fact in done.corpus.items() if fact[0] != "sha256")),
            ("read", f"{done.tokens:,} tokens in {done.steps:,} steps{speed}"),
            ("valid", done.told("valid")),
            ("test", done.told("test")),
            *least,
        ],
    )


def _fact(name: str, value: Any) -> str:
    return str(value) if name in ("corpus", "name") else f"{name} {value}"


def _as_backbone(folder: str) -> str:
    """Return a folder as ``--backbone`` takes it: one without a slash could be a known name."""
    return folder if os.sep in folder else f".{os.sep}{folder}"
