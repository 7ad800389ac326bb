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
"""The form of the name of an entry's folder: <name>-<first 16 digits of the key>."""

_FILE_OVERHEAD = 4096  # bytes of the superblock, root group and attributes of a shard
# Upper bound of the bytes of a column's groups, object headers and line in the manifest, as measured.
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
    blocks: int  # all blocks of all splits
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
    """Return size, dates, columns and progress of an entry; with a damaged manifest, its ``fault`` and no progress."""
    fault: str | None = None
    columns = set[str]()
    finished_blocks = 0
    try:
        manifests = {split: entry.manifest(split) for split in entry.splits}
        columns = {column for manifest in manifests.values() for column in manifest.columns}
        finished_blocks = sum(finished for finished, _ in entry.progress(manifests).values())
    except CacheError as error:
        fault = str(error)
    created, _ = _times(entry.path / SPEC_FILE)
    extracted, read = _times(entry.path / LOCK_FILE)
    return EntrySummary(
        entry=entry,
        bytes=folder_bytes(entry.path),
        created=datetime.fromtimestamp(created / 1e9, UTC),
        used=datetime.fromtimestamp(max(extracted, read) / 1e9, UTC),
        columns=tuple(sorted(columns)),
        blocks_done=finished_blocks,
        blocks=sum(map(entry.block_count, entry.splits)),
        fault=fault,
    )


def remove(path: Path) -> None:
    """Delete an entry's folder, even a broken one; a symbolic link is deleted, not followed."""
    path = Path(path)
    # The folders <task> and ``features`` above the entry must not be links: through one, this would delete a folder
    # outside the cache. The root may be a link, because the user has chosen it.
    task_folder = path.parent
    features_folder = task_folder.parent
    refuse_links(task_folder, features_folder)
    # Nothing is ever deleted but <root>/features/<task>/<name>-<digits>.
    has_path_of_entry = features_folder.name == "features" and ENTRY_FOLDER.fullmatch(path.name) is not None
    exists = path.is_symlink() or path.is_dir()
    if not (has_path_of_entry and exists):
        raise CacheError(f"{path}: not an entry of the cache; list the entries with 'reservoir cache list'")
    try:
        if path.is_symlink():
            path.unlink()  # its target does not belong to the cache
            return
        # A broken entry may have no lock file, and so no lock to take.
        has_lock = is_regular(path / LOCK_FILE)
        with entry_locks(path).removal() if has_lock else nullcontext():
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
    finished ones, and no entry that a run uses. None for ``older`` or ``keep_bytes`` sets no such limit.
    """
    now = datetime.now(UTC)
    finished_first = sorted(
        map(summarize, list_entries(root)), key=lambda summary: (not summary.finished, summary.used)
    )
    chosen = list[EntrySummary]()
    remaining_bytes = sum(summary.bytes for summary in finished_first)
    for summary in finished_first:
        is_old = older is not None and now - summary.used > older
        is_cache_too_large = keep_bytes is not None and remaining_bytes > keep_bytes
        may_be_removed = (summary.finished or unfinished) and not summary.entry.running()
        if (is_old or is_cache_too_large) and may_be_removed:
            chosen.append(summary)
            remaining_bytes -= summary.bytes
    return chosen


def required_bytes(
    spec: Spec, layout: Layout, rows: Mapping[str, int], shapes: Mapping[str, tuple[int, int]]
) -> int:
    """Return an upper bound of the bytes that columns need on disk.

    ``rows`` maps each split to its number of rows to extract, and ``shapes`` maps each column to
    (tokens, width).
    """
    row_bytes = sum(tokens * width for tokens, width in shapes.values()) * STORES[spec.store]
    block_overhead = _FILE_OVERHEAD + len(shapes) * _COLUMN_OVERHEAD
    offset_bytes = sum(4 * width for _, width in shapes.values())  # of one float32 offset of each column
    total = 0
    for count in rows.values():
        offsets = -(-count // layout.offset_rows)  # rounded up
        total += count * row_bytes + layout.count(count) * block_overhead + offsets * offset_bytes
    return total


def check_space(
    root: Path,
    needed: int,
    remedy: str = "extract less (--limit, --layers, --pool), or choose another disk",
) -> None:
    """Raise CacheError, which ends in ``remedy``, if the disk of ``root`` lacks ``needed`` bytes."""
    root = Path(root).absolute()
    # The cache need not exist yet: its disk is that of the nearest folder above it that does.
    existing_folder = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(existing_folder).free
    if free < needed:
        problem = f"{root}: {needed / 1e9:.3f} GB are needed and {free / 1e9:.3f} GB are free"
        raise CacheError(f"{problem}; {remedy} with --cache")


def folder_bytes(folder: Path | str) -> int:
    """Return the total size in bytes of all files below a folder; links are not followed."""
    total = 0
    for parent, _, names_of_files in os.walk(folder):
        for name in names_of_files:
            with suppress(FileNotFoundError):  # a run may remove its temporary files meanwhile
                status = Path(parent, name).lstat()
                if stat.S_ISREG(status.st_mode):
                    total += status.st_size
    return total


def _scan(root: Path) -> Iterator[Entry | Problem]:
    """Yield each folder where entries lie, sorted by path: as an entry, or as a problem if it cannot be opened."""
    for folder in sorted(Path(root).glob("features/*/*")):
        # A link is a problem, even if it leads to a folder.
        if not (folder.is_dir() or folder.is_symlink()):
            continue
        try:
            yield Entry.open(folder)
        except CacheError as error:
            # `remove` takes only folders with the name of an entry.
            remedy = "move it elsewhere"
            if ENTRY_FOLDER.fullmatch(folder.name):
                remedy = "run 'reservoir cache remove' on it, then extract or copy again"
            yield Problem.of(folder, error, remedy)


def _times(path: Path) -> tuple[int, int]:
    """Return modification and access time in nanoseconds, both 0 if the file does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_atime_ns
