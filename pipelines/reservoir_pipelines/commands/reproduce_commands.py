"""The commands ``reservoir reproduce`` and ``reservoir report``."""

import sys
from typing import Annotated, Any

import typer

from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import PlaceOptions, ReproduceOptions, TaskOptions
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer, Table
from reservoir_pipelines.output import notify, size_text, time_text

Tables = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE...", help="table1 ... table22, figure1 ..., or the path of your own recipe."),
]


def reproduce(
    tables: Tables = None,
    all: Annotated[bool, typer.Option("--all", help="Every table and figure.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, and for how long; run nothing.")
    ] = False,
    *,
    given: dict[str, Any],
) -> Answer:
    """Run tables of the paper beside its numbers.

    A recipe describes a table; finished cells never run twice.
    """
    from reservoir_pipelines.reproduction.recipe import recipe_names

    if all == bool(tables):
        raise InputError(f"reproduce: name a table, a recipe's file, or --all; there are {', '.join(recipe_names())}")

    if dry_run:
        return _plan(tables or [], given)
    confirm = _confirm if given.get("scale") in ("day", "full", "paper") else None
    done = api.reproduce(tables or [], confirm=confirm, **given)
    if done.failed:
        notify(f"{len(done.failed)} cells failed; the same command tries them again")
    rows = [
        ("cells", f"{done.ran} run in {done.seconds:.0f} s, {done.reused} reused, {len(done.failed)} failed"),
        ("results", done.folder),
        ("page", f"reservoir report {done.folder}"),
    ]
    return Answer(done, [*(part for table in done.tables for part in _tables(table)), (("", ""), rows)])


def report(
    folders: Annotated[
        list[str] | None,
        typer.Argument(metavar="FOLDER...", help="Folders of reproduce, fit or train; all in the cache by default."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write only the tables, as Markdown.")] = False,
    *,
    given: dict[str, Any],
) -> Answer:
    """Write one page with all results.

    The HTML file is self-contained and shows everything that was reproduced and fitted.
    """
    done = api.report(folders or [], markdown=markdown, **given)
    if show:
        typer.launch(str(done.page))
    return Answer(done, [(("", ""), [("page", done.page)])])


def _confirm(cells: list[Any], places: dict[str, Any]) -> bool:
    """Print the estimated cost, and ask on a terminal whether to run."""
    from reservoir_pipelines.reproduction.stages import estimate

    estimate(cells, places)
    asked = cells and sys.stdin.isatty() and sys.stderr.isatty()
    return typer.confirm("Go on?", err=True) if asked else True


def _plan(tables: list[str], given: dict[str, Any]) -> Answer:
    """Return the cells that would run, with their time and disk space if a trial measured them."""
    from reservoir_pipelines.reproduction.reproduce import load_recipes, planned_cells
    from reservoir_pipelines.reproduction.stages import estimate

    options, source = as_group(given, ReproduceOptions), as_group(given, TaskOptions)
    cells, folder, places = planned_cells(load_recipes(tables, options), options, source, as_group(given, PlaceOptions))
    todo = [cell for cell in cells if not folder.result(cell.key)]
    costs = estimate(todo, places)
    lines = []
    for cell in cells:
        if result := folder.result(cell.key):
            how = ("finished", time_text(result["seconds"]), size_text(result["bytes"]))
        elif (cost := costs[cell.key]).reason:
            how = ("cannot run here", "-", "-")
        elif not cost.seconds:
            how = ("to run", "not estimated", "-")
        else:
            how = ("to run", time_text(cost.seconds), size_text(int(cost.bytes)))
        lines.append((cell.key, cell.title, *how))
    names = ("key", "cell", "state", "#time", "#disk")
    return Answer([dict(zip((n.strip("#") for n in names), line, strict=True)) for line in lines], [(names, lines)])


def _tables(table: dict[str, Any]) -> list[Table]:
    """Return a table, the paper's numbers in brackets, and below it why numbers are missing."""
    from reservoir_pipelines.reports.reproduced import table_part

    shown = table_part(table, {})
    lines = []
    for row in shown["rows"]:
        spots = ((spot["ours"], spot["paper"]) if spot else ("", "") for spot in row["spots"])
        lines.append((row["name"], *(f"{ours} ({paper})" if paper else ours for ours, paper in spots)))
    lacking: dict[int, list[str]] = {}
    for name, spot in ((row["name"], spot) for row in shown["rows"] for spot in row["spots"] if spot):
        lacking.setdefault(spot["number"], []).append(name)
    headings = ("", *(f"#{column}" for column in table["columns"]))
    unit = f"; {table['unit']}" if table["unit"] else ""
    claims = [(c["says"], c["verdict"]) for c in table["claims"]]
    missing = [(", ".join(dict.fromkeys(lacking[n])), why) for n, why in enumerate(shown["reasons"], start=1)]
    title = f"{table['name']} ({table['scale']}): {table['title']}{unit}; in brackets the paper's"
    found: list[Table] = [(headings, lines, title), (("", ""), claims), (("missing", "why"), missing)]
    return [part for part in found if part[1]]
