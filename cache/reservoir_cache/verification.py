"""Finding all damage of an entry at once, and taking it out so that a rerun makes exactly that again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from reservoir_cache import derived
from reservoir_cache.derived import fault
from reservoir_cache.errors import CacheError, Problem, repair_command
from reservoir_cache.hdf import UNREADABLE
from reservoir_cache.locks import EntryLocks, entry_locks
from reservoir_cache.manifest import NAME, Manifest, Shard, Targets, block_of
from reservoir_cache.publish import file_crc32, is_regular
from reservoir_cache.shard import ShardHeader, inspect_shard
from reservoir_cache.spec import FORMAT

if TYPE_CHECKING:
    from reservoir_cache.entry import Entry


def verify(entry: Entry, columns: Iterable[str] | None = None) -> list[Problem]:
    """Compare every listed file with its size and CRC-32; return all problems, split by split.

    Parameters
    ----------
    entry : Entry
    columns : iterable of str, optional
        Only the shards that hold one of these columns; the targets and derived arrays in any case.
    """
    wanted = None if columns is None else set(columns)
    problems = []
    for split in entry.splits:
        folder = entry.path / split
        try:
            lines = _lines(entry.manifest(split))
        except CacheError as error:
            problems.append(Problem.of(folder / NAME, error, repair_command(entry.key)))
            continue
        for line in lines.values():
            of_interest = wanted is None or not isinstance(line, Shard) or wanted & line.columns.keys()
            if of_interest and (what := fault(folder / line.file, vars(line))):
                problems.append(Problem(folder / line.file, what, repair_command(entry.key)))
    return problems + _derived_problems(entry)


def repair(entry: Entry, problems: Iterable[Problem]) -> list[Problem]:
    """Take the files at fault out of their manifests, then delete them; rebuild a damaged manifest from its shards.

    What another run is writing at this moment, or has repaired since, is left alone.

    Returns
    -------
    list of Problem
        Those repaired.
    """
    repaired = []
    locks = entry_locks(entry.path)
    by_folder: dict[Path, list[Problem]] = {}
    for problem in problems:
        if problem.path.parent.parent != entry.path:
            raise CacheError(f"{problem.path}: not a file of {entry.path}; repair the entry that it belongs to")
        by_folder.setdefault(problem.path.parent, []).append(problem)
    for folder, found in by_folder.items():
        with locks.run() as run, locks.mutex():
            files = {problem.path.name for problem in found}
            if folder.name == derived.FOLDER:
                _delete(folder, files)
                if NAME not in files:
                    derived.forget(folder, files, run)
            elif NAME in files:
                _rebuild(entry, folder.name).write(folder, run)
            else:
                files = _drop(entry, folder.name, files, locks, run)
            repaired += [problem for problem in found if problem.path.name in files]
    return repaired


def _drop(entry: Entry, split: str, files: set[str], locks: EntryLocks, run: str) -> set[str]:
    """Drop those of the files that are still at fault and that nobody writes; return them."""
    folder, manifest = entry.path / split, entry.manifest(split)
    lines = _lines(manifest)
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
        manifest.without(still).write(folder, run)
        _delete(folder, still)
    finally:
        for number in claimed:
            locks.release(number)
    return still


def _delete(folder: Path, files: Iterable[str]) -> None:
    for file in files:
        try:
            (folder / file).unlink(missing_ok=True)
        except OSError as error:
            raise CacheError(f"{folder / file}: cannot be removed ({error.strerror}); remove it by hand") from error


def _rebuild(entry: Entry, split: str) -> Manifest:
    """Make a manifest from the shards that are sound by their own record; the targets are written again by extract."""
    folder, ranges = entry.path / split, entry.blocks(split)
    manifest = Manifest(FORMAT, entry.key, split, entry.spec.rows[split])
    for path in sorted(folder.glob("*.h5")):
        try:
            if not is_regular(path) or not 0 <= block_of(path.name) < len(ranges):
                continue
            header, shapes, crcs = inspect_shard(path, entry.spec.store)
            if header.block != block_of(path.name) or header != ShardHeader(
                FORMAT, entry.key, split, header.block, *ranges[header.block]
            ):
                continue
        except (*UNREADABLE, CacheError):
            continue
        known = {name for shard in manifest.of_block(header.block) for name in shard.columns}
        if not known & crcs.keys():
            line = Shard(path.name, header.block, path.stat().st_size, file_crc32(path), crcs)
            manifest = manifest.with_shard(line, shapes)
    return manifest


def _lines(manifest: Manifest) -> dict[str, Shard | Targets]:
    lines: tuple[Shard | Targets, ...] = manifest.shards + ((manifest.targets,) if manifest.targets else ())
    return {line.file: line for line in lines}


def _derived_problems(entry: Entry) -> list[Problem]:
    folder, remedy = entry.path / derived.FOLDER, "it is computed again when needed"
    listed = derived.listed(folder)
    if listed is None:
        return [Problem(folder / derived.NAME, "damaged", remedy)]
    faults = {folder / file: fault(folder / file, line) for file, line in listed.items()}
    return [Problem(path, what, remedy) for path, what in faults.items() if what]
