"""List, find and remove the entries of a cache, and compute the space that they need."""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reservoir_cache.entry import Entry
from reservoir_cache.errors import CacheError, Problem
from reservoir_cache.locks import LOCK_FILE, entry_locks
from reservoir_cache.paths import is_regular, refuse_links
from reservoir_cache.publish import sync
from reservoir_cache.spec import SPEC_FILE, STORES, Layout, Spec

ENTRY_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{16}")
_FILE_OVERHEAD = 4096  # superblock, root group and attributes of a shard
# upper bound of a column's groups, object headers and line in the manifest, as measured
_COLUMN_OVERHEAD = 3072


@dataclass(frozen=True)
class EntrySummary:
    """The facts of an entry that `cache list` shows; times are UTC."""

    entry: Entry
    bytes: int  # total size of its files
    created: datetime
    used: datetime  # when it was last extracted or read; reads of an entry of another user are not recorded
    columns: tuple[str, ...]  # columns that any block has, sorted
    blocks_done: int  # blocks that have all columns, see ``Entry.progress``
    blocks: int
    fault: str | None  # why a manifest cannot be read; None if all can

    @property
    def finished(self) -> bool:
        """Whether every block has its labels and all columns, or the entry is `Entry.intermediate`."""
        return self.blocks_done == self.blocks or self.entry.intermediate


def list_entries(root: Path) -> list[Entry]:
    """Return the entries of a cache that can be opened, sorted by path."""
    return [item for item in _scan(root) if isinstance(item, Entry)]


def broken_entries(root: Path) -> list[Problem]:
    """Return the folders in a cache that cannot be opened as entries, and why."""
    return [item for item in _scan(root) if isinstance(item, Problem)]


def last_entry(
    root: Path, task: str, accept: Callable[[Entry], bool] = lambda _entry: True
) -> Entry | None:
    """Return the entry of this task that was extracted last and that ``accept`` allows, or None."""
    entries = [entry for entry in list_entries(root) if entry.spec.task_name == task and accept(entry)]
    # The access time decides among entries made within `untracked`, whose modification time is 0.
    return max(entries, key=lambda entry: _times(entry.path / LOCK_FILE), default=None)


def summarize(entry: Entry) -> EntrySummary:
    """Return size, dates, columns and progress of an entry; a damaged manifest sets ``fault``."""
    fault = None
    columns = set[str]()
    finished_blocks = 0
    try:
        manifests = {split: entry.manifest(split) for split in entry.splits}
        columns = {column for manifest in manifests.values() for column in manifest.columns}
        finished_blocks = sum(finished for finished, _ in entry.progress(manifests).values())
    except CacheError as error:
        fault = str(error)
    return EntrySummary(
        entry=entry,
        bytes=folder_bytes(entry.path),
        created=datetime.fromtimestamp(_times(entry.path / SPEC_FILE)[0] / 1e9, UTC),
        used=datetime.fromtimestamp(max(_times(entry.path / LOCK_FILE)) / 1e9, UTC),
        columns=tuple(sorted(columns)),
        blocks_done=finished_blocks,
        blocks=sum(map(entry.block_count, entry.splits)),
        fault=fault,
    )


def remove(path: Path) -> None:
    """Delete an entry's folder, even a broken one; a symbolic link is deleted, not followed."""
    path = Path(path)
    refuse_links(*path.parents[:2])
    named = path.parent.parent.name == "features" and ENTRY_FOLDER.fullmatch(path.name)
    if not named or not (path.is_symlink() or path.is_dir()):
        raise CacheError(f"{path}: not an entry of the cache; list the entries with 'reservoir cache list'")
    try:
        if path.is_symlink():
            path.unlink()  # its target does not belong to the cache
            return
        with entry_locks(path).removal() if is_regular(path / LOCK_FILE) else nullcontext():
            # The specification goes first and the lock last: a half-removed folder is not an entry and never unlocked.
            (path / SPEC_FILE).unlink(missing_ok=True)
            sync(path)
            for item in path.iterdir():
                if item.is_dir() and not item.is_symlink():
                    shutil.rmtree(item)
                elif item.name != LOCK_FILE:
                    item.unlink()
            (path / LOCK_FILE).unlink(missing_ok=True)
            if not any(path.iterdir()):  # another run may just have created the entry again
                path.rmdir()
    except OSError as error:
        raise CacheError(f"{path}: cannot be removed ({error.strerror}); check permissions") from error


def prunable(
    root: Path, *, older: timedelta | None = None, keep_bytes: int | None = None, unfinished: bool = False
) -> list[EntrySummary]:
    """Return the entries that may be removed to save space, least recently used first.

    Entries that were not used for longer than ``older`` are chosen, and others until the remaining
    entries need at most ``keep_bytes``; unfinished entries only with ``unfinished``, after the
    finished ones, and no entry that a run uses.
    """
    now, chosen = datetime.now(UTC), list[EntrySummary]()
    entries = sorted(
        map(summarize, list_entries(root)), key=lambda summary: (not summary.finished, summary.used)
    )
    remaining = sum(summary.bytes for summary in entries)
    for summary in entries:
        old = older is not None and now - summary.used > older
        crowded = keep_bytes is not None and remaining > keep_bytes
        if (old or crowded) and (summary.finished or unfinished) and not summary.entry.running():
            chosen.append(summary)
            remaining -= summary.bytes
    return chosen


def required_bytes(
    spec: Spec, layout: Layout, rows: Mapping[str, int], shapes: Mapping[str, tuple[int, int]]
) -> int:
    """Return an upper bound of the bytes that columns need on disk.

    ``rows`` maps each split to its number of rows to extract, and ``shapes`` maps each column to
    (tokens, width).
    """
    per_row = sum(tokens * width for tokens, width in shapes.values()) * STORES[spec.store]
    per_block = _FILE_OVERHEAD + len(shapes) * _COLUMN_OVERHEAD
    per_offset = sum(4 * width for _, width in shapes.values())
    return sum(
        count * per_row + layout.count(count) * per_block + -(-count // layout.offset_rows) * per_offset
        for count in rows.values()
    )


def check_space(
    root: Path,
    needed: int,
    remedy: str = "extract less (--limit, --layers, --pool), or choose another disk",
) -> None:
    """Raise CacheError if the disk of ``root``, which need not exist yet, lacks ``needed`` bytes."""
    root = Path(root).absolute()
    free = shutil.disk_usage(next(folder for folder in (root, *root.parents) if folder.exists())).free
    if free < needed:
        problem = f"{root}: {needed / 1e9:.3f} GB are needed and {free / 1e9:.3f} GB are free"
        raise CacheError(f"{problem}; {remedy} with --cache")


def folder_bytes(folder: Path | str) -> int:
    """Return the total size in bytes of all files below a folder; links are not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a run may remove its temporary files meanwhile
                status = Path(place, name).lstat()
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _scan(root: Path) -> Iterator[Entry | Problem]:
    """Yield each entry of a cache, and what is wrong with each folder at the place of one that is none."""
    for folder in sorted(Path(root).glob("features/*/*")):
        if folder.is_dir() or folder.is_symlink():
            # `remove` takes only folders with the name of an entry.
            has_name_of_entry = ENTRY_FOLDER.fullmatch(folder.name) is not None
            remedy = (
                "run 'reservoir cache remove' on it, then extract or copy again"
                if has_name_of_entry
                else "move it elsewhere"
            )
            try:
                yield Entry.open(folder)
            except CacheError as error:
                yield Problem.of(folder, error, remedy)


def _times(path: Path) -> tuple[int, int]:
    """Return modification and access time in nanoseconds, 0 if the file has just been removed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_atime_ns
