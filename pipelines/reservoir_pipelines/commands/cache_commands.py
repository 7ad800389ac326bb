"""The commands under ``reservoir cache``: list, check, repair and remove what is stored."""

import re
import shutil
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import reservoir_cache as store  # h5py is imported with the first function that needs it
import typer

from reservoir.errors import InputError
from reservoir.option_fields import seconds_of, span
from reservoir_pipelines.command import Answer, Table
from reservoir_pipelines.files import ROWS, cache_root
from reservoir_pipelines.output import notify, size_text

Name = Annotated[str, typer.Argument(metavar="ENTRY", help="A task (its last extraction), a key or a folder.")]

OTHERS = ("prepared/*/*", "readouts/*/*", "runs/*/*", "pretrained/*", "backbones/*", "attention/*", "reproductions/*")
"""Other folders below the cache's root."""

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def list_(given: dict[str, Any]) -> Answer:
    """List everything in the cache, with size and last use."""
    root = cache_root(**given)
    found = [store.summarize(entry) for entry in store.list_entries(root)]
    notify(*map(str, store.broken_entries(root)))
    rows = [_line([each], each.entry.path.name) for each in found if not _of_estimator(each.entry)]
    if batches := [each for each in found if _of_estimator(each.entry)]:
        rows.append(_line(batches, f"{len(batches):,} batches of the estimators"))
    headings = ("task", "entry", "#rows", "#columns", "#size", "compute", "store", "last used", "state")
    others = [(str(path.relative_to(root)), size_text(store.folder_bytes(path))) for path in _others(root)]
    tables: list[Table] = [(headings, rows, str(root)), *([(("other folders", "#size"), others)] if others else [])]
    return Answer([_summary(each) for each in found], tables)


def _line(found: Sequence[store.EntrySummary], name: str) -> tuple[Any, ...]:
    specs = [each.entry.spec for each in found]
    return (
        specs[0].task["name"],
        name,
        f"{sum(sum(spec.rows.values()) for spec in specs):,}",
        max(len(each.columns) for each in found),
        size_text(sum(each.bytes for each in found)),
        " ".join(sorted({spec.compute for spec in specs})),
        " ".join(sorted({spec.store for spec in specs})),
        f"{max(each.used for each in found).astimezone():%Y-%m-%d %H:%M}",
        " ".join(sorted({_state(each) for each in found})),
    )


def _of_estimator(entry: store.Entry) -> bool:
    """Return whether an entry holds a batch of an estimator's rows; such entries are listed and removed together."""
    return set(entry.spec.rows) == {ROWS}


def show(entry: Name, given: dict[str, Any]) -> Answer:
    """Show everything about one entry."""
    found = _find(entry, cache_root(**given))
    each, made, spec = store.summarize(found), dict(found.made_with), found.spec.to_dict()
    summary = _summary(each) | {"spec": spec, "made_with": made, "running": found.running()}
    rows: list[tuple[str, Any]] = [
        ("entry", summary["entry"]),
        ("key", found.key),
        ("rows", ", ".join(f"{n:,} {split}" for split, n in found.spec.rows.items())),
        ("columns", " ".join(summary["columns"])),
        ("size", size_text(each.bytes)),
        ("state", _state(each)),
        ("created", f"{each.created.astimezone():%Y-%m-%d %H:%M}"),
        ("last used", f"{each.used.astimezone():%Y-%m-%d %H:%M}"),
        ("blocks", f"{found.layout.block_rows} rows, batches of {found.layout.batch_rows}"),
        ("running", ", ".join(f"process {r['pid']} on {r['host']}" for r in summary["running"]) or "no process"),
    ]
    rows += [(name, value) for name, value in spec.items() if name not in ("task", "format")]
    if "weights" in made:
        machine = f"{made.get('device')} ({made.get('instructions')}), {found.spec.compute}"
        rows += [
            ("weights", f"{found.spec.init.get('kind')}: {made['weights']}"),
            ("numbers", f"computed on {machine}; other processors round differently"),
        ]
    return Answer(summary, [(("", ""), [*rows, ("made with", made)], found.path.name)])


def verify(
    entry: Annotated[str | None, typer.Argument(metavar="[ENTRY]", help="One entry; all entries by default.")] = None,
    *,
    given: dict[str, Any],
) -> Answer:
    """Check every file against its checksum.

    The exit code is 1 if a file is damaged.
    """
    root = cache_root(**given)
    entries = [_find(entry, root)] if entry else store.list_entries(root)
    problems = [] if entry else store.broken_entries(root)
    problems += [problem for one in entries for problem in store.verify(one)]
    found = [{"path": p.path, "what": p.what, "repair": p.repair} for p in problems]
    table: Table = ("", ""), [("complete", f"{len(entries)} entries, no damage found")]
    if found:
        table = ("file", "what is wrong", "repair"), [tuple(each.values()) for each in found]
    return Answer({"entries": len(entries), "problems": found}, [table], wrong=bool(problems))


def repair(entry: Name, given: dict[str, Any]) -> Answer:
    """Remove damaged files from an entry.

    The next extract computes them again.
    """
    found = _find(entry, cache_root(**given))
    problems = store.repair(found)
    rows = [(problem.path, problem.what) for problem in problems] or [("nothing", "no damage found")]
    removed = {"entry": found.path, "removed": [problem.path for problem in problems]}
    return Answer(removed, [(("removed", "why"), rows)])


def remove(entry: Name, given: dict[str, Any]) -> Answer:
    """Delete one entry, or another folder of the cache.

    'reservoir cache remove rows' deletes the features of all rows that the estimators stored.
    """
    root = cache_root(**given)
    other = next((path for path in _others(root) if entry == str(path.relative_to(root)) or _same(entry, path)), None)
    if path := other or _broken(entry, root):
        paths = [path]
    else:
        found = _find(entry, root)
        several = _of_estimator(found) and entry == found.spec.task["name"]
        paths = [each.path for each in store.list_entries(root) if _of_estimator(each)] if several else [found.path]
    sizes = [store.folder_bytes(path) for path in paths]
    for path in paths:
        shutil.rmtree(path) if other else store.remove(path)
    removed = paths if len(paths) > 1 else paths[0]
    rows = [(path, size_text(size)) for path, size in zip(paths, sizes, strict=True)]
    return Answer({"removed": removed, "bytes": sum(sizes)}, [(("removed", "size"), rows)])


def prune(
    older: Annotated[str, typer.Option(help="Remove entries not used for this long: 12h, 30d.")] = "",
    keep: Annotated[str, typer.Option(help="Remove entries until this much is left: 500MB, 20GB.")] = "",
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also remove unfinished extractions, after all others.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    *,
    given: dict[str, Any],
) -> Answer:
    """Remove the least recently used entries.

    Unless --yes is given, the entries are listed and you are asked first; without a terminal, nothing is removed.
    """
    if not older and not keep:
        raise InputError("cache prune: choose what to remove with --older 30d, --keep 20GB, or both")
    if older and (fault := span(older)):
        raise InputError(f"--older {older}: {fault}")
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", keep.lower())
    if keep and not size:
        raise InputError(f"--keep {keep}: not a size; write one such as 500MB or 20GB")
    found = store.prunable(
        cache_root(**given),
        older=timedelta(seconds=seconds_of(older)) if older else None,
        keep_bytes=int(float(size[1]) * UNITS[size[2]]) if size else None,
        unfinished=unfinished,
    )
    rows = [(each.entry.path, size_text(each.bytes), f"{each.used.astimezone():%Y-%m-%d %H:%M}") for each in found]
    paths, total = [each.entry.path for each in found], sum(each.bytes for each in found)
    if found and not (dry_run or yes):
        _ask(rows, f"{len(rows)} entries, {size_text(total)}")
    for path in [] if dry_run else paths:
        store.remove(path)
    key, heading = ("would_remove", "would be removed") if dry_run else ("removed", "removed")
    return Answer({key: paths, "bytes": total}, [((heading, "#size", "last used"), rows or [("nothing", "", "")])])


def _ask(rows: Sequence[tuple[Any, ...]], what: str) -> None:
    """Show what will be removed and ask; raise `InputError` without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(f"cache prune: {what} would be removed; pass --yes to remove them, or --dry-run to list them")
    notify(*(f"{path}  {size}, last used {used}" for path, size, used in rows))
    if not typer.confirm(f"Remove {what}?", err=True):
        raise typer.Exit(1)


def _others(root: Path) -> list[Path]:
    """Return the folders of prepared data, readouts, runs and so on, except folders behind symbolic links."""
    found = [path for pattern in OTHERS for path in root.glob(pattern)]
    return sorted(path for path in found if path.is_dir() and path.resolve() == root.resolve() / path.relative_to(root))


def _same(name: str, path: Path) -> bool:
    return Path(name).is_dir() and Path(name).resolve() == path.resolve()


def _broken(name: str, root: Path) -> Path | None:
    """Return an entry that cannot be opened, by its path or name, or by its task if the task has no readable entry."""
    folders = [problem.path for problem in store.broken_entries(root)]
    named = [folder for folder in folders if name == folder.name or _same(name, folder)]
    if not named and all(entry.spec.task["name"] != name for entry in store.list_entries(root)):
        named = [folder for folder in folders if name == folder.parent.name]
    return named[0] if named else None


def _find(name: str, root: Path) -> store.Entry:
    from reservoir_pipelines.extraction.extract import find_entry

    return find_entry(root, name)


def _state(each: store.EntrySummary) -> str:
    if each.fault:
        return f"unreadable: {each.fault}"
    return "complete" if each.finished else f"{each.blocks_done} of {each.blocks} blocks"


def _summary(each: store.EntrySummary) -> dict[str, Any]:
    from reservoir_pipelines.plots import layer_order

    entry, spec = each.entry, each.entry.spec
    return {
        "entry": str(entry.path),
        "name": entry.path.name,
        "task": spec.task["name"],
        "key": entry.key,
        "rows": spec.rows,
        "columns": sorted(each.columns, key=layer_order) or ([f"unreadable: {each.fault}"] if each.fault else []),
        "bytes": each.bytes,
        "compute": spec.compute,
        "store": spec.store,
        "created": each.created.isoformat(),
        "used": each.used.isoformat(),
        "finished": each.finished,
    }
