"""Finding all damage of an entry at once, and taking it out so that a rerun makes exactly that again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from reservoir_cache import derived
from reservoir_cache.derived import fault
from reservoir_cache.errors import CacheError, Problem, repair_command
from reservoir_cache.locks import entry_locks

if TYPE_CHECKING:
    from reservoir_cache.entry import Entry


def verify(entry: Entry, columns: Iterable[str] | None = None) -> list[Problem]:
    """Compare every listed file with its size and CRC-32; return all problems, in the order of the files.

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
            manifest = entry.manifest(split)
        except CacheError as error:
            problems.append(Problem(folder / "manifest.json", _without_path(error), repair_command(entry.key)))
            continue
        lines = [manifest.targets] if manifest.targets else []
        lines += [shard for shard in manifest.shards if wanted is None or wanted & shard.columns.keys()]
        faults = [(folder / line.file, fault(folder / line.file, vars(line))) for line in lines]
        problems += [Problem(path, what, repair_command(entry.key)) for path, what in faults if what]
    return problems + _derived_problems(entry)


def repair(entry: Entry, problems: list[Problem]) -> list[Problem]:
    """Delete the files at fault, after taking them out of their manifests."""
    faulty: dict[Path, set[str]] = {}
    for problem in problems:
        faulty.setdefault(problem.path.parent, set()).add(problem.path.name)
    locks = entry_locks(entry.path)
    for folder, files in faulty.items():
        with locks.run() as run, locks.mutex():
            if folder.name in entry.splits and "manifest.json" not in files:
                entry.manifest(folder.name).without(files).write(folder, run)
            for file in files:
                (folder / file).unlink(missing_ok=True)
    return problems


def _derived_problems(entry: Entry) -> list[Problem]:
    folder, remedy = entry.path / derived.FOLDER, "it is computed again when needed"
    found = []
    listed = derived.listed(folder)
    if not listed and (folder / derived.NAME).exists():
        found.append(Problem(folder / derived.NAME, "damaged", remedy))
    for file, line in listed.items():
        if what := fault(folder / file, line):
            found.append(Problem(folder / file, what, remedy))
    return found


def _without_path(error: CacheError) -> str:
    return str(error).partition(": ")[2].partition(";")[0]
