"""The commands about models: ``reservoir backbone`` and ``reservoir attention``."""

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

Init = Annotated[
    str | None,
    typer.Option(
        help="pretrained, random, random-flat, statistics or a folder with a backbone [default: pretrained, where "
        "anybody publishes such weights]"
    ),
]
Depth = Annotated[int | None, typer.Option(help="Keep only the first so many blocks, and the final norm.")]
Seed = Annotated[int, typer.Option(help="Seed of drawn weights and of the input layer.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(backbone)
    app.command()(attention)


def backbone(
    name: Annotated[str, typer.Argument(help="mini, gpt2, bert-base-uncased, esn:units=500, a folder, a hub name ...")],
    task: Annotated[str | None, typer.Option(help="Count what is trained on this task.")] = None,
    init: Init = None,
    seed: Seed = 0,
    depth: Depth = None,
    out: Annotated[Path | None, typer.Option(help="The PNG to write [default: in the cache]")] = None,
    data: Data = None,
    cache: Cache = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Describe a backbone: its family, its parameters by group, what of it is trained, the spread of its weights."""
    from reservoir_pipelines.card import card
    from reservoir_pipelines.output import print_json, print_table

    done = card(name, init=init, seed=seed, depth=depth, task=task, data=data, cache=cache, out=out)
    if json:
        print_json(done.to_dict())
        return
    frozen = sum(done.groups.values())
    rows: list[tuple[str, Any]] = [
        ("family", f"{done.family}, {'causal' if done.causal else 'sees both ways'}"),
        ("weights", f"{done.init}: {done.weights}"),
        ("depth", f"{done.depth} blocks"),
        ("width", done.width),
        ("longest", f"{done.max_tokens:,} tokens" if done.max_tokens else "any number of tokens"),
        ("parameters", f"{done.whole:,} in the whole model, {frozen:,} on the way of a vector"),
        ("plot", done.plot),
    ]
    print_table(("backbone", ""), [("name", done.name), *rows])
    print_table(("group", "#parameters"), [(group, f"{count:,}") for group, count in done.groups.items() if count])
    if done.trained:
        _print_trained(done.task, done.trained, done.paper, done.whole)


def _print_trained(task: str | None, trained: dict[str, int], paper: dict[str, int] | None, whole: int) -> None:
    from reservoir_pipelines.output import print_table

    counts = [trained, *([paper] if paper else [])]
    rows = [(group, *(f"{count[group]:,}" for count in counts)) for group in trained]
    totals = [sum(count.values()) for count in counts]
    rows.append(("together", *(f"{total:,}" for total in totals)))
    rows.append(("of the model", *(f"{100 * total / whole:.3f}%" for total in totals)))
    headings = ("trained", "#parameters", *(["#as the paper counts"] if paper else []))
    print_table(headings, rows, f"on {task}")


def attention(
    task: Annotated[str, typer.Argument(help="A task's name, or the path of your own data.")],
    backbone: Annotated[
        str | None, typer.Option(help="A known name, a model folder or a hub name [default: mini]")
    ] = None,
    init: Init = None,
    seed: Seed = 0,
    gain: Annotated[float, typer.Option(help="Scale of the input layer.")] = 1.41,
    depth: Depth = None,
    patch: Annotated[int, typer.Option(help="Values per token: windows of a float sequence.")] = 1,
    stride: Annotated[int | None, typer.Option(help="Values from one window to the next [default: the patch]")] = None,
    layer: Annotated[int, typer.Option(help="The block whose attention is drawn, from 1.")] = 1,
    rows: Annotated[int, typer.Option(help="Rows of the mean; the first is drawn alone too.")] = 64,
    split: Annotated[str, typer.Option(help="Split of the rows.")] = "test",
    run: Annotated[
        Path | None, typer.Option(help="Folder of a run of train: its model, on its task with its parameters.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The PNG to write, arrays beside it [default: in the cache]")] = None,
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
    """Draw which tokens attend to which in one block, and save the maps."""
    from reservoir_pipelines.attention import attention as stage
    from reservoir_pipelines.output import print_json, print_table

    done = stage(
        task,
        backbone=backbone,
        init=init,
        seed=seed,
        gain=gain,
        depth=depth,
        patch=patch,
        stride=stride,
        layer=layer,
        rows=rows,
        split=split,
        parameters=task_parameters(param, views, protocol, standardise),
        data=data,
        cache=cache,
        device=device,
        out=out,
        run=run,
    )
    if json:
        print_json(done.to_dict())
        return
    print_table(
        ("attention", ""),
        [
            ("task", done.task),
            ("backbone", f"{done.backbone}, block {done.layer}"),
            ("maps", f"{len(done.mean)} heads over {len(done.mean[0])} tokens, mean of {done.rows} rows"),
            ("plot", done.plot),
            ("arrays", done.arrays),
        ],
    )
