"""Finding all damage of an entry at once, and taking it out so that a rerun makes exactly that again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reservoir_cache import derived
from reservoir_cache.derived import fault
from reservoir_cache.entry import Entry
from reservoir_cache.errors import CacheError, Problem, repair_command
from reservoir_cache.fault_points import fault_point
from reservoir_cache.hdf import UNREADABLE
from reservoir_cache.locks import EntryLocks, entry_locks
from reservoir_cache.manifest import NAME, Manifest, Shard, block_of
from reservoir_cache.publish import file_crc32, is_regular
from reservoir_cache.shard import ShardHeader, inspect_shard
from reservoir_cache.spec import FORMAT


def verify(entry: Entry, *, contents: bool = True) -> list[Problem]:
    """Read every file of an entry and return all that keeps it from being whole, split by split.

    Damage names the file; what an extract has not finished yet names the folder of the split. Finished is an entry
    whose splits all have their labels and, in every block, every column that any block has. Without ``contents`` files
    are looked at, not read: they must be there with their sizes.
    """
    problems, remedy = [], repair_command(entry.key)
    for split in entry.splits:
        folder = entry.path / split
        try:
            lines = {file: vars(line) for file, line in entry.manifest(split).files.items()}
        except CacheError as error:
            problems.append(Problem.of(folder / NAME, error, remedy))
        else:
            problems += _faults(folder, lines, remedy, contents=contents)
    damaged = {problem.path.parent.name for problem in problems}
    folder, remedy = entry.path / derived.FOLDER, "it is computed again when needed"
    lines = derived.listed(folder)
    problems += (
        [Problem(folder / NAME, "damaged", remedy)]
        if lines is None
        else _faults(folder, lines, remedy, contents=contents)
    )
    return problems + [problem for problem in _unfinished(entry) if problem.path.name not in damaged]


def repair(entry: Entry, problems: Iterable[Problem] | None = None) -> list[Problem]:
    """Take what is damaged out of the manifests and delete it, so that a rerun of extract makes exactly that again.

    A damaged or missing manifest is rebuilt from its shards. What another run is writing at this moment, or has
    repaired since, is left alone, and so is what is not finished yet.

    Parameters
    ----------
    entry : Entry
    problems : iterable of Problem, optional
        What ``verify`` found; by default it is run.

    Returns
    -------
    list of Problem
        What was repaired.
    """
    repaired = []
    by_folder: dict[Path, list[Problem]] = {}
    for problem in verify(entry) if problems is None else problems:
        if problem.path.parent.parent == entry.path:
            by_folder.setdefault(problem.path.parent, []).append(problem)
        elif problem.path.parent != entry.path:
            raise CacheError(f"{problem.path}: not a file of {entry.path}; repair the entry that it belongs to")
    for folder, found in by_folder.items():
        locks, files = entry_locks(entry.path), {problem.path.name for problem in found}
        with locks.run(), locks.mutex():
            try:
                if folder.name == derived.FOLDER:
                    derived.forget(folder, files)
                elif NAME in files:
                    _rebuild(entry, folder.name).write(folder)
                else:
                    files = _drop(entry, folder.name, files, locks)
            except OSError as error:
                raise CacheError(f"{folder}: cannot be repaired ({error}); remove the entry by hand") from error
        repaired += [problem for problem in found if problem.path.name in files]
    return repaired


def _drop(entry: Entry, split: str, files: set[str], locks: EntryLocks) -> set[str]:
    """Drop those of the files that are still at fault and that nobody writes; return them."""
    folder, manifest = entry.path / split, entry.manifest(split)
    lines = manifest.files
    still = {file for file in files & lines.keys() if fault(folder / file, vars(lines[file]))}
    claimed = []
    for file in sorted(still):
        line = lines[file]
        if isinstance(line, Shard):
            number = entry.block_number(split, line.block)
            if locks.claim(number):
                claimed.append(number)
            else:
                still.discard(file)
    try:
        manifest.without(still).write(folder)
        fault_point("unlisted")
        for file in still:
            (folder / file).unlink(missing_ok=True)
    finally:
        for number in claimed:
            locks.release(number)
    return still


def _rebuild(entry: Entry, split: str) -> Manifest:
    """Make a manifest from the shards that are sound by their own record; the targets are written again by extract."""
    folder, ranges = entry.path / split, entry.blocks(split)
    manifest = Manifest(FORMAT, entry.key, split, entry.spec.rows[split])
    for path in sorted(folder.glob("*.h5")):
        try:
            block = block_of(path.name)
            if not is_regular(path) or block >= len(ranges):
                continue
            header, shapes, crcs = inspect_shard(path, entry.spec.store)
        except UNREADABLE:
            continue
        known = {name for shard in manifest.of_block(block) for name in shard.columns}
        if header == ShardHeader(FORMAT, entry.key, split, block, *ranges[block]) and not known & crcs.keys():
            line = Shard(path.name, block, path.stat().st_size, file_crc32(path), crcs)
            manifest = manifest.with_shard(line, shapes)
    return manifest


def _faults(folder: Path, lines: Mapping[str, Mapping[str, Any]], remedy: str, *, contents: bool) -> list[Problem]:
    """Compare the files of a folder with the lines of its manifest."""
    if not lines and any(folder.glob("*.h5")):
        return [Problem(folder / NAME, "missing, though there are files that it should list", remedy)]
    faults = {folder / file: fault(folder / file, line, contents=contents) for file, line in lines.items()}
    return [Problem(path, what, remedy) for path, what in faults.items() if what]


def _unfinished(entry: Entry) -> list[Problem]:
    try:
        progress = entry.progress()
    except CacheError:
        return []  # a damaged manifest, which is said already
    return [
        Problem(entry.path / split, f"not finished, {done} of {count} blocks are there", "run the same extract again")
        for split, (done, count) in progress.items()
        if done < count
    ]
