"""The commands about models: ``reservoir backbone`` and ``reservoir attention``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import (
    AttentionOptions,
    CacheOptions,
    ImportOptions,
    ModelOptions,
    OutOptions,
    PlaceOptions,
    ReservoirOptions,
    TaskOptions,
)
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer, OwnTask, Table, command
from reservoir_pipelines.output import notify


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    model, source = (ModelOptions, "init", "seed", "depth"), (TaskOptions, "data", "protocol")
    command(app, model, source, ImportOptions, OutOptions, CacheOptions)(backbone)
    command(app, ReservoirOptions, AttentionOptions, TaskOptions, PlaceOptions)(attention)


def backbone(
    name: Annotated[
        str | None, typer.Argument(help="mini, gpt2, bert-base-uncased, esn:units=500, a folder, a hub name ...")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Also count the trained parameters on this task.")] = None,
    *,
    given: dict[str, Any],
) -> Answer:
    """Describe a backbone, or import one from a file."""
    from reservoir_pipelines.card import card

    foreign = given.pop("foreign", None)
    if foreign or name is None:
        return _import(name, foreign, given)
    model, source = as_group(given, ModelOptions), as_group(given, TaskOptions)
    done = card(name, model, source, as_group(given, CacheOptions), as_group(given, OutOptions), task=task)
    frozen = sum(done.groups.values())
    spread = {"weights": done.weight_deviation, "biases": done.bias_deviation}
    rows: list[tuple[str, Any]] = [
        ("family", f"{done.family}, {'causal' if done.causal else 'bidirectional'}"),
        ("weights", f"{done.init}: {done.weights}"),
        ("depth", f"{done.depth} blocks"),
        ("width", done.width),
        ("maximum length", f"{done.max_tokens:,} tokens" if done.max_tokens else "unlimited"),
        ("parameters", f"{done.whole:,} in the whole model, {frozen:,} applied to vectors"),
        ("deviation", ", ".join(f"{value:.3g} of {name}" for name, value in spread.items() if value is not None)),
        ("plot", done.plot),
    ]
    groups = [(group, f"{count:,}") for group, count in done.groups.items() if count]
    tables: list[Table] = [(("backbone", ""), [("name", done.name), *rows]), (("group", "#parameters"), groups)]
    if done.trained:
        tables.append(_trained(done.task, done.trained, done.paper, done.whole))
    return Answer(done, tables)


def _import(name: str | None, foreign: Path | None, given: dict[str, Any]) -> Answer:
    if foreign is None:
        raise InputError("name a backbone, such as mini or gpt2, or pass --import FILE --out FOLDER")
    if name or given.keys() != {"out"}:
        raise InputError("--import FILE takes only --out FOLDER; describe the folder with a second command")
    done = api.import_backbone(foreign, given["out"])
    for note in done.notes:
        notify(note)
    left = f"{len(done.left_out)} tensors, such as {done.left_out[0]}" if done.left_out else "nothing"
    rows = [("family", done.family), ("tensors", f"{done.tensors:,}"), ("left out", left), ("folder", done.folder)]
    return Answer(done, [(("imported", ""), rows)])


def _trained(task: str | None, trained: dict[str, int], paper: dict[str, int] | None, whole: int) -> Table:
    counts = [trained, *([paper] if paper else [])]
    rows = [(group, *(f"{count[group]:,}" for count in counts)) for group in trained]
    totals = [sum(count.values()) for count in counts]
    rows.append(("together", *(f"{total:,}" for total in totals)))
    rows.append(("of the model", *(f"{100 * total / whole:.3f}%" for total in totals)))
    headings = ("trained", "#parameters", *(["#as the paper counts"] if paper else []))
    return headings, rows, f"on {task}"


def attention(task: OwnTask, given: dict[str, Any]) -> Answer:
    """Draw which tokens attend to which in one block."""
    done = api.attention(task, **given)
    strength = done.diagonal_strength
    rows = [
        ("task", done.task),
        ("backbone", f"{done.backbone}, block {done.layer}"),
        ("maps", f"{len(done.mean)} heads over {len(done.mean[0])} tokens, mean of {done.rows} rows"),
        *([] if strength is None else [("diagonals", f"{strength:.3g} times the mean weight off them")]),
        ("colours", f"0 to {done.top:.3g}; pass --top to use the same scale in another picture"),
        ("plot", done.plot),
        ("arrays", done.arrays),
    ]
    return Answer(done, [(("attention", ""), rows)])
