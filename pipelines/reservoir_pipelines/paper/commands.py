"""The command ``reproduce``: the question before it runs, the plan of a dry run, and the tables that it prints."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reservoir import options as opt
from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir_pipelines import reproduce as reproduce_tables
from reservoir_pipelines.command import Answer
from reservoir_pipelines.output import notify, size_text, time_text
from reservoir_pipelines.tables import ResultTable, numbers, record_facts, record_table, texts

if TYPE_CHECKING:
    from reservoir_pipelines.paper.reproduction_folder import Cell


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE...", help="table1 ... table22, figure1 ..., or the path of your own recipe."
        ),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Every table and figure.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and their cost; run nothing.")
    ] = False,
    *,
    options: dict[str, Any],
) -> Answer:
    """Reproduce tables of Lu et al. 2021, next to the published numbers.

    A recipe describes a table, whose numbers come from runs called cells. Finished cells are not run
    again.
    """
    from reservoir_pipelines.paper.recipe import recipe_names

    if all == bool(tables):  # both or neither
        raise InputError(
            "reproduce: give names of tables or recipe files, or only --all",
            f"tables: {', '.join(recipe_names())}",
        )
    if dry_run:
        return _planned_answer(tables or [], options)
    # The other scales take two hours at most, so that they run without a question.
    confirm = None
    if options.get("scale") in ("day", "full", "paper"):
        confirm = partial(_confirm, workers=as_group(options, opt.ClusterOptions).workers)
    result = reproduce_tables(tables or [], confirm=confirm, **options)
    if result.failed:
        notify(f"{len(result.failed)} cells failed; the same command tries them again")
    values = vars(result) | {"failed": len(result.failed), "page": f"reservoir report {result.folder}"}
    facts = record_facts(values, "ran", "reused", "failed", "seconds", "folder", "page")
    result_tables = [result_table for table in result.tables for result_table in _tables_of(table)]
    has_no_result = bool(result.failed) and result.ran + result.reused == 0
    return Answer(result, [*result_tables, facts], wrong=has_no_result)


def _confirm(cells: list[Cell], place_settings: dict[str, Any], *, workers: int) -> bool:
    """Print the estimated cost of the cells to run, and return whether to run them.

    ``workers`` processes estimate it. The user is asked on a terminal only; elsewhere the answer is yes.
    """
    from reservoir_pipelines.paper.stages import estimate

    estimate(cells, place_settings, workers)
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if not cells or not is_terminal:
        return True
    return typer.confirm("Continue?", err=True)


def _planned_answer(tables: list[str], options: dict[str, Any]) -> Answer:
    """Return all cells with their state ("to run", "cannot run here" or "finished"), time and disk space.

    The time and space of a cell that has not run are estimated, if its stage can be tried.
    """
    from reservoir_pipelines.paper.reproduce import make_plan
    from reservoir_pipelines.paper.stages import estimate

    plan = make_plan(
        tables,
        as_group(options, opt.ReproduceOptions),
        as_group(options, opt.TaskOptions),
        as_group(options, opt.PlaceOptions),
    )
    workers = as_group(options, opt.ClusterOptions).workers
    costs = estimate(plan.folder.unfinished(plan.cells), plan.place_settings, workers)
    rows = []
    for cell in plan.cells:
        if cost := costs.get(cell.key):
            state = "cannot run here" if cost.reason else "to run"
            seconds, size = cost.seconds, cost.bytes
        else:
            # A finished cell has no estimate, but its measured time and size.
            state = "finished"
            result = plan.folder.result(cell.key) or {}
            seconds, size = result.get("seconds", 0), result.get("bytes", 0)
        rows.append(
            {
                "key": cell.key,
                "cell": cell.title,
                "state": state,
                "time": time_text(seconds) if seconds else "not estimated",
                "disk": size_text(int(size)),
            }
        )
    return Answer(rows, [record_table(rows, "key", "cell", "state", "time", "disk")])


def _tables_of(table: dict[str, Any]) -> list[ResultTable]:
    """Return a table of a recipe, a table of its claims, and one of the reasons why numbers are missing.

    The first one has our numbers, and those of the paper in brackets. Tables without rows are left out.
    """
    from reservoir_pipelines.paper.page import table_part

    # The texts of each row, which are also those of the page of `report`. A spot is a position of the table, or None
    # if the recipe has no number there.
    rows = []
    for row in table_part(table, {})["rows"]:
        number_texts = []
        for spot in row["spots"]:
            ours, paper = (spot["ours"], spot["paper"]) if spot else ("", "")
            number_texts.append(f"{ours} ({paper})" if paper else ours)
        rows.append((row["name"], *number_texts))
    # Each reason once for each row.
    reasons = dict.fromkeys(
        (row["name"], spot["reason"])
        for row in table["rows"]
        for spot in row["spots"]
        if spot and spot["reason"]
    )
    unit = f"; {table['unit']}" if table["unit"] else ""
    title = f"{table['name']} ({table['scale']}): {table['title']}{unit} (numbers of the paper in brackets)"
    claims = [(claim["says"], claim["verdict"], claim["numbers"]) for claim in table["claims"]]
    tables = [
        ResultTable((*texts(""), *numbers(*table["columns"])), rows, title),
        ResultTable(texts("claim", "here", "numbers"), claims),
        ResultTable(texts("missing", "why"), [*reasons]),
    ]
    return [result_table for result_table in tables if result_table.rows]
