"""The commands about models: ``reservoir backbone``, ``attention``, ``train`` and ``pretrain``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import RECIPE, CacheOptions, ModelOptions, OutOptions, TaskOptions
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer, OwnTask, Table
from reservoir_pipelines.commands.fit_commands import evaluation_tables
from reservoir_pipelines.output import notify, percent, score_text

IMPORT = "Convert an ONNX, GGUF or pytorch_model.bin file to a model folder, --out FOLDER."


def backbone(
    name: Annotated[
        str | None, typer.Argument(help="mini, gpt2, bert-base-uncased, esn:units=500, a folder, a hub name ...")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Also count the trained parameters on this task.")] = None,
    foreign: Annotated[Path | None, typer.Option("--import", help=IMPORT)] = None,
    *,
    given: dict[str, Any],
) -> Answer:
    """Describe a backbone, or import one from a file."""
    from reservoir_pipelines.card import card

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
        counts = [done.trained, *([done.paper] if done.paper else [])]
        totals = [sum(count.values()) for count in counts]
        trained = [(group, *(f"{count[group]:,}" for count in counts)) for group in done.trained]
        trained.append(("together", *(f"{total:,}" for total in totals)))
        trained.append(("of the model", *(f"{100 * total / done.whole:.3f}%" for total in totals)))
        paper = ["#as the paper counts"] if done.paper else []
        tables.append((("trained", "#parameters", *paper), trained, f"on {done.task}"))
    return Answer(done, tables)


def _import(name: str | None, foreign: Path | None, given: dict[str, Any]) -> Answer:
    from reservoir_pipelines.foreign_backbone import import_backbone

    if foreign is None:
        raise InputError("name a backbone, such as mini or gpt2, or pass --import FILE --out FOLDER")
    if name or given.keys() != {"out"}:
        raise InputError("--import FILE takes only --out FOLDER; describe the folder with a second command")
    done = import_backbone(foreign, given["out"])
    for note in done.notes:
        notify(note)
    left = f"{len(done.left_out)} tensors, such as {done.left_out[0]}" if done.left_out else "nothing"
    rows = [("family", done.family), ("tensors", f"{done.tensors:,}"), ("left out", left), ("folder", done.folder)]
    return Answer(done, [(("imported", ""), rows)])


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
    """Report divergence in one line with exit code 1, and an interruption with exit code 130 and how to continue."""
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
    """Return whether this process prints; of several processes only the first one does."""
    return os.environ.get("RANK", "0") == "0"


def _training_tables(done: Any) -> list[Table]:
    of_all = []
    if done.test_score_of_all not in (None, done.test_score):
        of_all = [("test, all rows", f"{percent(done.test_score_of_all)}, counting omitted rows as wrong")]
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
        *of_all,
        ("baseline", f"{score_text(done.floor, done.metric)}, by a constant or by copying the input"),
        ("converged", "-" if done.converged_step is None else f"step {done.converged_step:,}, within 1% from there on"),
        ("run", done.run),
    ]
    tables: list[Table] = [(("trained", ""), rows)]
    if done.swept:
        swept = [key for key in done.swept[0] if key in RECIPE]
        lines = []
        for run in done.swept:
            values = (f"{run[key]:g}" for key in swept)
            lines.append((*values, score_text(run["valid_score"], done.metric), run["run"]))
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
    rows = [
        # A name without a slash could be that of a known model.
        ("model", done.folder if os.sep in done.folder else f".{os.sep}{done.folder}"),
        ("parameters", f"{done.parameters:,}"),
        ("corpus", ", ".join(facts)),
        ("read", f"{done.tokens:,} tokens in {done.steps:,} steps{speed}"),
        ("valid", done.score_text("valid")),
        ("test", done.score_text("test")),
        *([] if done.entropy is None else [("lowest possible", f"{done.entropy:.3f} bits per {done.unit}")]),
    ]
    return Answer(done, [(("pretrained", ""), rows)])
