"""The commands ``reservoir tasks``, ``prepare``, ``extract`` and ``plan``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer, OwnTask
from reservoir_pipelines.output import notify, size_text, time_text

if TYPE_CHECKING:
    from reservoir_pipelines.extraction.extract import Extraction


def tasks(given: dict[str, Any]) -> Answer:
    """List the tasks, and whether their data is here."""
    from reservoir_pipelines.preparation.prepare import task_table

    found = task_table(**given)
    headings = ("task", "a token", "#tokens", "#labels", "#classes", "splits", "data")
    rows = []
    for r in found:
        splits = ", ".join(f"{count:,} {name}" for name, count in (r["splits"] or {}).items()) or "-"
        numbers = f"{r['tokens']:,}", r["labels_per_row"], f"{r['classes']:,}"
        rows.append((r["task"], r["input"], *numbers, splits, r["data"]))
    missing = [(r["task"], r["remedy"]) for r in found if r["remedy"]]
    return Answer(found, [(headings, rows), *([(("missing", "what to do"), missing)] if missing else [])])


def prepare(task: OwnTask, given: dict[str, Any]) -> Answer:
    """Read a task's files into arrays, and split them.

    The other commands do this by themselves when they need it.
    """
    prepared = api.prepare(task, **given)
    for note in prepared.notes():
        notify(note)
    rows = [(name, f"{rows:,}") for name, rows in prepared.rows.items()]
    found = {"prepared": prepared.path, "rows": prepared.rows, "digest": prepared.digest}
    return Answer(found, [(("split", "#rows"), rows, str(prepared.path))])


def extract(
    task: OwnTask,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every option with its value and why; compute nothing.")
    ] = False,
    *,
    given: dict[str, Any],
) -> Answer:
    """Run a frozen model once, cache its hidden states."""
    if dry_run:
        from reservoir_pipelines.extraction.extract import resolved_plan

        plan = resolved_plan(task, as_group(given, ExtractOptions))
        return Answer(plan, [(("option", "value", "why"), plan.table(), "plan")])
    done = api.extract(task, **given)
    passed = "none, reused" if done.reused else f"{done.computed_rows:,} rows"
    return _extracted("extracted", done, ("forward pass", passed))


def import_features(
    file: Annotated[Path, typer.Argument(help="An .npz, .h5, .parquet or .safetensors file of the features.")],
    task: Annotated[str, typer.Option(help="The task, or the path of your own data, whose rows these are.")],
    name: Annotated[str, typer.Option(help="Name of the entry, such as the model that computed the features.")],
    given: dict[str, Any],
) -> Answer:
    """Cache features that another program computed.

    They become an entry of the task, which fit and report read like any other.
    """
    done = api.import_features(file, task=task, name=name, **given)
    return _extracted("imported", done, ("written", f"{done.computed_rows:,} rows"))


def _extracted(heading: str, done: "Extraction", computed: tuple[str, str]) -> Answer:
    rows = [
        ("entry", done.entry),
        ("rows", ", ".join(f"{count:,} {split}" for split, count in done.rows.items())),
        ("columns", f"{len(done.columns)}: {' ... '.join(dict.fromkeys((done.columns[0], done.columns[-1])))}"),
        ("on disk", size_text(done.bytes)),
        computed,
        ("time", f"{done.seconds:.1f} s"),
    ]
    return Answer(done, [((heading, ""), rows)])


def plan(
    task: OwnTask,
    rows: Annotated[int | None, typer.Option(min=1, help="Total rows; by default those of the task.")] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of processes or GPUs like this one that will share the work.")
    ] = 1,
    *,
    given: dict[str, Any],
) -> Answer:
    """Estimate time, disk and memory of an extraction.

    A short trial measures this machine; the data may be a sample of what will be extracted.
    """
    found = api.plan(task, rows=rows, workers=workers, **given)
    speed = f"{found.rows_per_second:,.3g} rows/s, {found.rows_per_second * found.tokens:,.3g} tokens/s"
    shared = f" by {found.workers:,} workers" if found.workers > 1 else ""
    lines = [
        ("extraction", f"{found.task} x {found.backbone}, {found.columns} columns"),
        ("rows", f"{found.rows:,} of {found.tokens:,.0f} tokens, {100 * found.padding:.1f}% padding"),
        ("one worker", f"{speed}, on {found.device} in {found.compute}"),
        ("time", f"{time_text(found.seconds)}{shared}"),
        ("on disk", size_text(found.bytes)),
        ("memory", f"at most {size_text(found.memory)}{' each' if shared else ''}"),
    ]
    return Answer(found, [(("plan", ""), lines)])
