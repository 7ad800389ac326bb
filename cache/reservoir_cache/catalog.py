"""The entries of a cache: listing, finding, removing, and the space they need."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from reservoir_cache.encoding import STORED_DTYPE
from reservoir_cache.entry import Entry
from reservoir_cache.errors import CacheError, Problem
from reservoir_cache.locks import LOCK_FILE, live_runs
from reservoir_cache.publish import refuse_links, sync
from reservoir_cache.spec import Layout, Spec, difference
from reservoir_cache.specfile import NAME as SPEC_FILE

_FILE_OVERHEAD = 4096  # superblock, root group and attributes of a shard
_COLUMN_OVERHEAD = 3072  # groups, object headers and the manifest's line of a column in a shard, measured below this


def list_entries(root: Path) -> list[Entry]:
    """Return every sound entry of a cache, sorted by path; see ``broken_entries`` for the others."""
    return [found for found in _scan(root) if isinstance(found, Entry)]


def broken_entries(root: Path) -> list[Problem]:
    """Return the folders among the entries that cannot be opened, and why."""
    return [found for found in _scan(root) if isinstance(found, Problem)]


def last_entry(root: Path, task: str, accept: Callable[[Entry], bool] = lambda _entry: True) -> Entry | None:
    """Return the entry that an extract of this task last created or opened among those accepted, or None."""
    entries = [entry for entry in list_entries(root) if entry.spec.task["name"] == task and accept(entry)]
    return max(entries, key=lambda entry: (entry.path / LOCK_FILE).stat().st_mtime_ns, default=None)


def near_matches(root: Path, spec: Spec) -> list[tuple[Entry, list[str]]]:
    """Return the other entries of the same task with the dotted fields in which they differ, nearest first."""
    same_task = [entry for entry in list_entries(root) if entry.spec.task["name"] == spec.task["name"]]
    found = [(entry, difference(entry.spec, spec)) for entry in same_task if entry.key != spec.key]
    return sorted(found, key=lambda pair: (len(pair[1]), pair[0].path))


def remove(path: Path) -> None:
    """Delete an entry.

    Raises
    ------
    CacheError
        If the folder is no entry, or a run is at work on it.
    """
    path = Path(path)
    refuse_links(*path.parents[:2])
    if path.is_symlink() and path.parent.parent.name == "features":
        path.unlink()  # what it leads to is not the cache's
        return
    if path.parent.parent.name != "features" or not ((path / SPEC_FILE).exists() or (path / LOCK_FILE).exists()):
        raise CacheError(f"{path}: not an entry of the cache; 'reservoir cache list' shows them")
    if runs := live_runs(path):
        host, pid, started = (runs[0][name] for name in ("host", "pid", "started"))
        raise CacheError(f"{path}: process {pid} on {host} is at work on it since {started}; stop it first")
    (path / SPEC_FILE).unlink(missing_ok=True)  # first: half a removal must not look like an entry
    sync(path)
    shutil.rmtree(path)


def required_bytes(spec: Spec, layout: Layout, rows: Mapping[str, int], shapes: Mapping[str, tuple[int, int]]) -> int:
    """Return the bytes that columns need on disk, a little more than they will take.

        sum over splits of  rows * sum(tokens * width) * itemsize + blocks * (overhead + sum(4 * width))

    Parameters
    ----------
    spec : Spec
        For the stored type.
    layout : Layout
        For the number of blocks.
    rows : mapping of str to int
        Rows of each split that are still to be extracted.
    shapes : mapping of str to (tokens, width)
        The columns.
    """
    itemsize = STORED_DTYPE[spec.store].itemsize
    per_row = sum(tokens * width for tokens, width in shapes.values()) * itemsize
    per_block = _FILE_OVERHEAD + sum(_COLUMN_OVERHEAD + 4 * width for _, width in shapes.values())
    return sum(count * per_row + len(layout.blocks(count)) * per_block for count in rows.values())


def check_space(root: Path, needed: int) -> None:
    """Refuse to begin what does not fit on the disk.

    Parameters
    ----------
    root : Path
        The cache; it need not exist yet.
    needed : int
        Bytes.

    Raises
    ------
    CacheError
        If less is free.
    """
    root = Path(root).absolute()
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise CacheError(
            f"{root}: {needed / 1e9:.3f} GB are needed and {free / 1e9:.3f} GB are free; extract fewer rows, layers or "
            "poolings (--limit, --layers, --pool), or choose another disk with --cache"
        )


def _scan(root: Path) -> Iterator[Entry | Problem]:
    for folder in sorted(Path(root).glob("features/*/*")):
        if folder.is_dir():
            try:
                yield Entry.open(folder)
            except CacheError as error:
                yield Problem.of(folder, error, "run 'reservoir cache remove' on it and extract again")
