"""The commands under ``reservoir cache``: what is kept, whether it is whole, and how to be rid of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reservoir.options import CacheOptions
from reservoir_pipelines.command import command

if TYPE_CHECKING:
    from reservoir_cache import Entry

Name = Annotated[str, typer.Argument(metavar="ENTRY", help="A task (its last extraction), a key or a folder.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    group = typer.Typer(help="Look after cached features.", rich_markup_mode=None)
    for function in (list_entries, show, verify, repair, remove):
        command(group, CacheOptions, name=function.__name__.partition("_")[0])(function)
    app.add_typer(group, name="cache")


def list_entries(given: dict[str, Any], json: bool) -> None:
    """List the entries: task, reservoir, rows, columns, size."""
    from reservoir_cache import broken_entries
    from reservoir_cache import list_entries as found_entries

    from reservoir_pipelines.output import print_json, print_table, say, size_text

    root = _root(given)
    entries = [_summary(entry) for entry in found_entries(root)]
    for problem in broken_entries(root):
        say(f"{problem.path}: {problem.what}; {problem.repair}")
    if json:
        print_json(entries)
        return
    print_table(
        ("task", "entry", "#rows", "#columns", "#size", "compute", "store"),
        [
            (
                e["task"],
                e["name"],
                f"{sum(e['rows'].values()):,}",
                len(e["columns"]),
                size_text(e["bytes"]),
                e["compute"],
                e["store"],
            )
            for e in entries
        ],
        str(root),
    )


def show(entry: Name, given: dict[str, Any], json: bool) -> None:
    """Show all that is known of one entry."""
    from reservoir_pipelines.output import print_json, print_table, size_text

    found = _find(entry, given)
    summary = _summary(found) | {
        "spec": found.spec.to_dict(),
        "made_with": dict(found.made_with),
        "running": found.running(),
    }
    if json:
        print_json(summary)
        return
    rows: list[tuple[str, Any]] = [
        ("entry", summary["entry"]),
        ("key", found.key),
        ("rows", ", ".join(f"{n:,} {split}" for split, n in summary["rows"].items())),
        ("columns", " ".join(summary["columns"])),
        ("size", size_text(summary["bytes"])),
        ("blocks", f"{found.layout.block_rows} rows, batches of {found.layout.batch_rows}"),
        ("at work", ", ".join(f"process {r['pid']} on {r['host']}" for r in summary["running"]) or "nobody"),
    ]
    rows += [(name, value) for name, value in found.spec.to_dict().items() if name not in ("task", "format")]
    rows += [("made with", dict(found.made_with))]
    print_table(("", ""), rows, found.path.name)


def verify(
    entry: Annotated[str | None, typer.Argument(metavar="[ENTRY]", help="One entry; all of them if left out.")] = None,
    *,
    given: dict[str, Any],
    json: bool,
) -> None:
    """Read every byte of an entry, or of all, against its checksums; exit code 1 if something is damaged."""
    from reservoir_cache import broken_entries
    from reservoir_cache import list_entries as found_entries

    from reservoir_pipelines.output import print_json, print_table

    root = _root(given)
    entries = [_find(entry, given)] if entry else found_entries(root)
    problems = [] if entry else broken_entries(root)
    for one in entries:
        problems += one.verify()
    if json:
        print_json(
            {
                "entries": len(entries),
                "problems": [{"path": str(p.path), "what": p.what, "repair": p.repair} for p in problems],
            }
        )
    elif problems:
        print_table(("file", "what is wrong", "repair"), [(p.path, p.what, p.repair) for p in problems])
    else:
        print_table(("", ""), [("whole", f"{len(entries)} entries, no damage found")])
    if problems:
        raise typer.Exit(1)


def repair(entry: Name, given: dict[str, Any], json: bool) -> None:
    """Take damaged files out of an entry, so that the next extract computes them again."""
    from reservoir_pipelines.output import print_json, print_table

    found = _find(entry, given)
    problems = found.repair()
    if json:
        print_json({"entry": str(found.path), "removed": [str(problem.path) for problem in problems]})
    else:
        rows = [(problem.path, problem.what) for problem in problems]
        print_table(("removed", "why"), rows or [("nothing", "no damage found")])


def remove(entry: Name, given: dict[str, Any], json: bool) -> None:
    """Delete one entry."""
    from reservoir_cache import remove as delete

    from reservoir_pipelines.output import print_json, print_table, size_text

    path = _broken(entry, given) or _find(entry, given).path
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    delete(path)
    if json:
        print_json({"removed": str(path), "bytes": size})
    else:
        print_table(("removed", "size"), [(path, size_text(size))])


def _root(given: dict[str, Any]) -> Path:
    from reservoir_pipelines.workspace import cache_root

    return cache_root(given.get("cache"))


def _broken(name: str, given: dict[str, Any]) -> Path | None:
    """Return the folder of that path or name, if it is an entry that cannot be opened."""
    from reservoir_cache import broken_entries

    folders = [problem.path for problem in broken_entries(_root(given))]
    return next((folder for folder in folders if name == folder.name or Path(name).resolve() == folder.resolve()), None)


def _find(name: str, given: dict[str, Any]) -> Entry:
    from reservoir_pipelines.extraction.entries import find_entry

    return find_entry(_root(given), name)


def _summary(entry: Entry) -> dict[str, Any]:
    from reservoir_cache import CacheError

    try:
        columns = {column for split in entry.splits for column in entry.manifest(split).columns}
    except CacheError as error:  # one damaged entry must not hide the others
        columns = {f"unreadable: {error}"}
    return {
        "entry": str(entry.path),
        "name": entry.path.name,
        "task": entry.spec.task["name"],
        "key": entry.key,
        "rows": entry.spec.rows,
        "columns": sorted(columns, key=_depth),
        "bytes": entry.bytes(),
        "compute": entry.spec.compute,
        "store": entry.spec.store,
    }


def _depth(column: str) -> tuple[int, str]:
    """Sort key that puts layers in the order in which they are computed."""
    return ({"embed": 0, "final": 2}.get(column.partition("/")[0], 1), column)
