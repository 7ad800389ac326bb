"""The commands under ``reservoir cache``: what is kept, whether it is whole, and how to be rid of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reservoir_pipelines.commands.options import Cache, Config, Json

if TYPE_CHECKING:
    from reservoir_cache import Entry

app = typer.Typer(help="Look after cached features.", rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="ENTRY", help="A task (its last extraction), a key or a folder.")]


@app.command("list")
def list_command(cache: Cache = None, json: Json = False, config: Config = None) -> None:
    """List the entries: task, reservoir, rows, columns, size."""
    from reservoir_cache import broken_entries, list_entries

    from reservoir_pipelines.commands.output import print_json, print_table
    from reservoir_pipelines.progress import say, size_text
    from reservoir_pipelines.root import cache_root

    root = cache_root(cache)
    entries = [_summary(entry) for entry in list_entries(root)]
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


@app.command()
def show(entry: Name, cache: Cache = None, json: Json = False, config: Config = None) -> None:
    """Show all that is known of one entry."""
    from reservoir_pipelines.commands.output import print_json, print_table
    from reservoir_pipelines.progress import size_text

    found = _find(entry, cache)
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


@app.command()
def verify(
    entry: Annotated[str | None, typer.Argument(metavar="[ENTRY]", help="One entry; all of them if left out.")] = None,
    cache: Cache = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Read every byte of an entry, or of all, against its checksums; exit code 1 if something is damaged."""
    from reservoir_cache import broken_entries, list_entries
    from reservoir_cache import verify as problems_of

    from reservoir_pipelines.commands.output import print_json, print_table
    from reservoir_pipelines.root import cache_root

    root = cache_root(cache)
    entries = [_find(entry, cache)] if entry else list_entries(root)
    problems = [] if entry else broken_entries(root)
    for one in entries:
        problems += problems_of(one)
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


@app.command()
def repair(entry: Name, cache: Cache = None, json: Json = False, config: Config = None) -> None:
    """Take damaged files out of an entry, so that the next extract computes them again."""
    from reservoir_cache import repair as mend

    from reservoir_pipelines.commands.output import print_json, print_table

    found = _find(entry, cache)
    problems = mend(found)
    if json:
        print_json({"entry": str(found.path), "removed": [str(problem.path) for problem in problems]})
    else:
        rows = [(problem.path, problem.what) for problem in problems]
        print_table(("removed", "why"), rows or [("nothing", "no damage found")])


@app.command()
def remove(entry: Name, cache: Cache = None, json: Json = False, config: Config = None) -> None:
    """Delete one entry."""
    from reservoir_cache import remove as delete

    from reservoir_pipelines.commands.output import print_json, print_table
    from reservoir_pipelines.progress import size_text

    path = _broken(entry, cache) or _find(entry, cache).path
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    delete(path)
    if json:
        print_json({"removed": str(path), "bytes": size})
    else:
        print_table(("removed", "size"), [(path, size_text(size))])


def _broken(name: str, cache: Any) -> Path | None:
    """Return the folder of that path or name, if it is an entry that cannot be opened."""
    from reservoir_cache import broken_entries

    from reservoir_pipelines.root import cache_root

    folders = [problem.path for problem in broken_entries(cache_root(cache))]
    return next((folder for folder in folders if name == folder.name or Path(name).resolve() == folder.resolve()), None)


def _find(name: str, cache: Any) -> Entry:
    from reservoir_pipelines.commands.entries import find_entry
    from reservoir_pipelines.root import cache_root

    return find_entry(cache_root(cache), name)


def _summary(entry: Entry) -> dict[str, Any]:
    from reservoir_cache import CacheError, entry_bytes

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
        "bytes": entry_bytes(entry),
        "compute": entry.spec.compute,
        "store": entry.spec.store,
    }


def _depth(column: str) -> tuple[int, str]:
    """Sort key that puts layers in the order in which they are computed."""
    return ({"embed": 0, "final": 2}.get(column.partition("/")[0], 1), column)
