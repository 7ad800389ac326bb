"""The commands under ``reservoir cache``: list, check, repair, copy and remove what is stored.

The parameter ``options`` of a command is no flag. It has the options of the group `CacheOptions` that were set, by
their names: ``cache``, the root folder of the cache, or nothing (see `reservoir_pipelines.command`).
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import reservoir_cache as store  # h5py is imported with the first function that needs it
import typer

from reservoir.errors import InputError, as_input_error
from reservoir.option_fields import seconds_of, span
from reservoir_pipelines.command import Answer
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import meter, notify, size_text
from reservoir_pipelines.tables import Facts, record_facts, record_table

Name = Annotated[
    str, typer.Argument(metavar="ENTRY", help="A task (its last extraction), a key or a folder.")
]

OTHER_FOLDERS = (
    "downloads/*",
    "prepared/*/*",
    "readouts/*/*",
    "runs/*/*",
    "pretrained/*",
    "backbones/*",
    "attention/*",
    "reproductions/*",
)
"""Patterns of the folders below the cache's root that are not entries."""


def list_(options: dict[str, Any]) -> Answer:
    """List everything in the cache, with size and last use."""
    root = cache_root(**options)
    notify(*map(str, store.broken_entries(root)))
    entries = [_summary(store.summarize(entry)) for entry in store.list_entries(root)]
    table = record_table(
        entries, "task", "name", "rows", "bytes", "compute", "store", "used", "state", "origin"
    )
    tables = [table.titled(str(root))]
    other_folders = [
        {"folder": str(path.relative_to(root)), "bytes": store.folder_bytes(path)}
        for path in _other_folders(root)
    ]
    if other_folders:
        tables.append(record_table(other_folders, "folder", "bytes"))
    return Answer(entries, tables)


def show(entry: Name, options: dict[str, Any]) -> Answer:
    """Show everything about one entry."""
    stored = _find_entry(entry, cache_root(**options))
    spec = stored.spec.to_json()
    made_with = dict(stored.made_with)
    summary = _summary(store.summarize(stored)) | {"running": stored.running()}
    tables = [
        record_facts(summary),
        record_facts(spec).titled("specification"),
        record_facts(made_with).titled("made with"),
    ]
    return Answer(summary | {"spec": spec, "made_with": made_with}, tables)


def verify(
    entry: Annotated[
        str | None, typer.Argument(metavar="[ENTRY]", help="One entry; all entries by default.")
    ] = None,
    *,
    options: dict[str, Any],
) -> Answer:
    """Check every file against its checksum.

    The exit code is 1 if a file is damaged.
    """
    root = cache_root(**options)
    entries = [_find_entry(entry, root)] if entry else store.list_entries(root)
    problems = [] if entry else store.broken_entries(root)
    for stored in entries:
        problems += store.verify(stored)
    records = [
        {"path": problem.path, "what": problem.what, "repair": problem.repair} for problem in problems
    ]
    if records:
        table = record_table(records, "path", "what", "repair")
    else:
        table = Facts([("complete", f"{len(entries)} entries, no damage")])
    return Answer({"entries": len(entries), "problems": records}, [table], wrong=bool(problems))


def repair(entry: Name, options: dict[str, Any]) -> Answer:
    """Remove damaged files from an entry, and rebuild damaged manifests.

    The next extract computes what was removed again.
    """
    stored = _find_entry(entry, cache_root(**options))
    paths = [problem.path for problem in store.repair(stored)]
    if not paths:
        notify(f"{stored.path}: no file is damaged")
    # A manifest is rebuilt from its shards; any other file is removed.
    rebuilt = [path for path in paths if path.exists()]
    removed = [path for path in paths if path not in rebuilt]
    return Answer({"entry": stored.path, "removed": removed, "rebuilt": rebuilt})


def remove(entry: Name, options: dict[str, Any]) -> Answer:
    """Delete one entry, or another folder of the cache."""
    root = cache_root(**options)
    # The argument is another folder if one has this path below the root, or is this folder; else it is an entry.
    other_folders = [
        path
        for path in _other_folders(root)
        if entry == str(path.relative_to(root)) or _is_same_folder(entry, path)
    ]
    paths = other_folders or [_entry_folder(entry, root)]
    size = sum(map(store.folder_bytes, paths))
    for path in other_folders:
        if any(map(store.is_file_locked, [*path.rglob("lock"), *path.rglob(".*.lock")])):
            raise InputError(f"{path}: a process is at work in it", "stop it first")
    for path in paths:
        shutil.rmtree(path) if other_folders else store.remove(path)
    return Answer({"removed": paths if len(paths) > 1 else paths[0], "bytes": size})


def prune(
    older: Annotated[str, typer.Option(help="Remove entries not used for this long: 12h, 30d.")] = "",
    keep: Annotated[str, typer.Option(help="Remove entries until this much is left: 500MB, 20GB.")] = "",
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also remove unfinished extractions, after all others.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    *,
    options: dict[str, Any],
) -> Answer:
    """Remove the least recently used entries.

    Unless --yes is passed, the entries are listed and you are asked first; without a terminal, nothing
    is removed.
    """
    # Check the flags.
    if not older and not keep:
        raise InputError("cache prune: choose what to remove with --older 30d, --keep 20GB, or both")
    if older and (fault := span(older)):
        raise InputError(f"--older {older}: {fault}")
    # Ask about the entries that would be removed, and remove them.
    candidates = store.prunable(
        cache_root(**options),
        older=timedelta(seconds=seconds_of(older)) if older else None,
        keep_bytes=_size_of(keep) if keep else None,
        unfinished=unfinished,
    )
    rows = [_summary(candidate) for candidate in candidates]
    total_bytes = sum(candidate.bytes for candidate in candidates)
    if candidates and not (dry_run or yes):
        _confirm(rows, f"{len(rows)} entries, {size_text(total_bytes)}")
    if not dry_run:
        for candidate in candidates:
            store.remove(candidate.entry.path)
    # List them.
    key = "would_remove" if dry_run else "removed"
    title = f"{key.replace('_', ' ')}: {len(rows)} entries"
    table = record_table(rows, "entry", "bytes", "used").titled(title)
    return Answer({key: [row["entry"] for row in rows], "bytes": total_bytes}, [table])


def _size_of(keep: str) -> int:
    """Return the bytes that ``--keep`` names, such as 20GB; raise `InputError` if it is not a size."""
    from dask.utils import parse_bytes

    with as_input_error(f"--keep {keep}: not a size", "write one such as 500MB or 20GB"):
        if not keep[0].isdigit():  # parse_bytes accepts -5GB, and reads GB as 1GB
            raise ValueError("it begins with no digit")
        return parse_bytes(keep)


def copy(
    source: Annotated[str, typer.Argument(metavar="ENTRY|URL", help="What is copied: an entry, or a URL.")],
    destination: Annotated[
        str,
        typer.Argument(metavar="URL|ENTRY", help="Where to: a URL, or for a URL, its entry to copy back."),
    ],
    options: dict[str, Any],
) -> Answer:
    """Copy a finished entry to a URL, or back.

    `reservoir cache copy ENTRY URL` copies an entry of the cache into the folder URL, such as
    s3://bucket/features, gs://bucket/features or file:///mnt/share. `reservoir cache copy URL ENTRY`
    copies it from there into the cache, where ENTRY is its task, its folder's name, or its key's first
    digits.

    Every file is compared with its checksum. A copy that was stopped continues when the same command
    runs again. Some URLs need a package: reservoir-features[remote] has the one of s3. Credentials come
    from the environment, as that package reads them.
    """
    root = cache_root(**options)
    if store.is_url(source) == store.is_url(destination):
        raise InputError(
            "cache copy: give an entry and a URL", "as in reservoir cache copy digits s3://bucket/features"
        )
    if destination.startswith("memory://"):
        raise InputError(
            "cache copy: memory:// is the memory of this process, which ends with it",
            "give the URL of a folder that stays, as in file:///mnt/share",
        )
    if store.is_url(source):
        from reservoir.tasks import TASKS  # slow to import, as the next
        from reservoir_pipelines.data.own_data import own_name

        # Your own data is named by its path here, as for all commands, and behind the URL by the name of its task.
        # Names of folders and keys are not changed by `own_name`.
        name = destination if destination in TASKS else own_name(destination)
        copied = store.copy_from(source, name, root, _copy_progress)
    else:
        from reservoir.inputs.patch_units import UNITS  # slow to import

        entry = _find_entry(source, root)
        store.move_input(
            entry, UNITS
        )  # those of entries made before 2026-11-28 lie where copies leave them out
        copied = store.copy_to(entry, destination, _copy_progress)
    return Answer(vars(copied))


@contextmanager
def _copy_progress(files: int) -> Iterator[Callable[[], object]]:
    """Show the progress of copying some files; yield the function to call after each of them."""
    # A copy that lacks only documents has no file to count; it is shown as one.
    with meter("copy", max(files, 1), "files") as bar:
        yield lambda: bar.advance(1)


def _confirm(rows: Sequence[dict[str, Any]], what: str) -> None:
    """Show the entries that will be removed, ask the user, and exit with code 1 if the answer is no.

    Raise `InputError` without a terminal, where nobody can answer. ``what`` is their number and size in words.
    """
    has_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if not has_terminal:
        raise InputError(
            f"cache prune: {what} would be removed", "pass --yes to remove them, or --dry-run to list them"
        )
    notify(*(f"{row['entry']}  {size_text(row['bytes'])}, last used {row['used']}" for row in rows))
    if not typer.confirm(f"Remove {what}?", err=True):
        raise typer.Exit(1)


def _other_folders(root: Path) -> list[Path]:
    """Return the folders of downloads, prepared data, readouts and so on, except folders behind symbolic links."""
    folders = [path for pattern in OTHER_FOLDERS for path in root.glob(pattern) if path.is_dir()]
    # The root itself may be behind a link, because the user chose it.
    return sorted(path for path in folders if path.resolve() == root.resolve() / path.relative_to(root))


def _is_same_folder(name: str, path: Path) -> bool:
    """Return whether ``name`` is a path of the folder ``path``, perhaps in another form."""
    return Path(name).is_dir() and Path(name).resolve() == path.resolve()


def _entry_folder(name: str, root: Path) -> Path:
    """Return the folder of an entry, even a broken one, which has no specification to find it by."""
    for problem in store.broken_entries(root):
        if name == problem.path.name or _is_same_folder(name, problem.path):
            return problem.path
    entry = _find_entry(name, root)
    # Files whose names differ in their folders, or in letters outside ASCII, have the same name as tasks.
    origins = {_origin(other) for other in store.list_entries(root) if other.spec.task_name == name}
    is_name_alone = not Path(name).exists()
    if is_name_alone and len(origins) > 1:
        raise InputError(
            f"{name}: the features of {len(origins)} sources have this name",
            "give the folder of one entry; reservoir cache list shows their origins",
        )
    return entry.path


def _find_entry(name: str, root: Path) -> store.Entry:
    """Return the entry that a task, a key or a folder names, as `find_entry` does; raise `InputError` if none."""
    from reservoir_pipelines.extraction.extract import find_entry  # slow to import

    return find_entry(root, name)


def _origin(entry: store.Entry) -> str:
    """Return the named task, or the path of your own data, that an entry was extracted from; empty if unknown."""
    return str(entry.made_with.get("call", {}).get("task", ""))  # the file may hold anything


def _summary(summary: store.EntrySummary) -> dict[str, Any]:
    """Return what the list of entries shows of one, as JSON values."""
    from reservoir_pipelines.plots import column_order

    entry = summary.entry
    spec = entry.spec
    if summary.fault:
        state = f"unreadable: {summary.fault}"
    elif entry.intermediate:
        state = "used by another command"  # which may need some of the splits only
    elif summary.blocks_done == summary.blocks:
        state = "complete"
    else:
        state = f"{summary.blocks_done} of {summary.blocks} blocks"
    return {
        "entry": str(entry.path),
        "name": entry.path.name,
        "task": spec.task["name"],
        "key": entry.key,
        "rows": spec.rows,
        "columns": sorted(summary.columns, key=column_order),
        "bytes": summary.bytes,
        "compute": spec.compute,
        "store": spec.store,
        "created": summary.created.isoformat(timespec="seconds"),
        "used": summary.used.isoformat(timespec="seconds"),
        "finished": summary.finished,
        "state": state,
        "origin": _origin(entry),
    }
