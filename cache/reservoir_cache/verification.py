"""Find the damage in an entry, and remove damaged files so that a rerun computes them again."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from reservoir_cache import derived
from reservoir_cache.entry import MANIFEST_FILE, Entry, Manifest, Shard, block_of, page_name, page_of
from reservoir_cache.errors import CacheError, Problem, repair_command
from reservoir_cache.locks import entry_locks
from reservoir_cache.paths import fault, file_crc32, is_regular
from reservoir_cache.shard import UNREADABLE, inspect_shard
from reservoir_cache.spec import FORMAT


def verify(entry: Entry, *, contents: bool = True) -> list[Problem]:
    """Read every file of an entry and return all damaged files and the folders of unfinished splits.

    `Entry.progress` defines finished splits; an `Entry.intermediate` entry needs none. Without
    ``contents``, files are not read; only their sizes are compared.
    """
    # The files that the pages of each manifest list, and the pages themselves.
    problems: list[Problem] = []
    remedy = repair_command(entry.key)
    for split in entry.splits:
        folder = entry.path / split
        pages_with_files: set[int] = set()  # those that must list a file
        for path in folder.glob("*.h5"):
            with suppress(CacheError):  # a file that no page can list
                pages_with_files.add(page_of(path.name))
        for page in range(entry.page_count(split)):
            path = folder / page_name(page)
            try:
                lines = {file: vars(line) for file, line in entry.page(split, page).files.items()}
            except CacheError as error:
                problems.append(Problem.of(path, error, remedy))
            else:
                files_exist = page in pages_with_files
                problems += _damage(path, lines, remedy, files_exist=files_exist, contents=contents)
    damaged = {problem.path.parent.name for problem in problems}
    # Arrays that were derived from the features, such as moments, which have a list of their own.
    path = entry.path / derived.FOLDER / MANIFEST_FILE
    remedy = "it is computed again when needed"
    lines = derived.listed(path.parent)
    if lines is None:
        problems.append(Problem(path, "damaged", remedy))
    else:
        problems += _damage(
            path, lines, remedy, files_exist=any(path.parent.glob("*.h5")), contents=contents
        )
    with suppress(CacheError):  # a damaged manifest has been reported above
        for split, (finished, count) in entry.progress().items():
            if finished < count and split not in damaged and not entry.intermediate:
                what = f"not finished: {finished} of {count} blocks exist"
                problems.append(Problem(entry.path / split, what, "run the same extract again"))
    return problems


def _damage(
    manifest: Path,
    lines: Mapping[str, Mapping[str, Any]],
    remedy: str,
    *,
    files_exist: bool,
    contents: bool,
) -> list[Problem]:
    """Compare files with the lines of their manifest, which must not be empty if ``files_exist``."""
    if not lines and files_exist:
        return [Problem(manifest, "missing, although files exist that it should list", remedy)]
    paths = {manifest.with_name(file): line for file, line in lines.items()}
    faults = {path: fault(path, line, contents=contents) for path, line in paths.items()}
    return [Problem(path, what, remedy) for path, what in faults.items() if what]


def repair(entry: Entry, problems: Iterable[Problem] | None = None) -> list[Problem]:
    """Remove damaged files and their lines in the manifests; return the problems that were repaired.

    A damaged or missing manifest is rebuilt from its shards. Files that another run is writing or has
    repaired, and unfinished splits, are not changed. ``problems`` are the results of ``verify``,
    which runs by default.
    """
    repaired = []
    for problem in verify(entry) if problems is None else problems:
        folder, file = problem.path.parent, problem.path.name
        if folder.parent != entry.path:  # an unfinished split
            continue
        locks = entry_locks(entry.path)
        with locks.at_work(), locks.mutex():
            if folder.name == derived.FOLDER:
                derived.forget(folder, file)
            elif not _repair(entry, folder.name, file):
                continue
        repaired.append(problem)
    return repaired


def _repair(entry: Entry, split: str, file: str) -> bool:
    """Rebuild a damaged page, or remove a damaged file; return False if it is sound or another run is writing it."""
    folder, locks, page = entry.path / split, entry_locks(entry.path), page_of(file)
    if file == page_name(page):
        _rebuild(entry, split, page).write(folder, page)
        return True
    manifest = entry.page(split, page)
    line = manifest.files.get(file)
    if line is None or not fault(folder / file, vars(line)):
        return False
    with ExitStack() as claim:
        if isinstance(line, Shard):
            number = entry.block_number(split, line.block)
            if not locks.claim(number):
                return False
            claim.callback(locks.release, number)
        manifest.without({file}).write(folder, page)
        (folder / file).unlink(missing_ok=True)
    return True


def _rebuild(entry: Entry, split: str, page: int) -> Manifest:
    """Return the manifest of a page with its undamaged shards, without labels, which extract writes again."""
    folder = entry.path / split
    manifest = Manifest(FORMAT, entry.key, split, entry.spec.rows[split])
    for path in sorted(folder.glob("*.h5")):
        # Only regular files of this page count, which describe themselves as blocks of this entry.
        try:
            block = block_of(path.name)
            if not is_regular(path) or block >= entry.block_count(split) or page_of(path.name) != page:
                continue
            shard = inspect_shard(path, entry.spec.store, entry.layout.offset_rows)
        except UNREADABLE:
            continue
        # Each column of a block is listed once; an older shard may hold it, too.
        listed_columns = manifest.stored_columns().get(block, {}).keys()
        columns_are_new = shard.crc32s and listed_columns.isdisjoint(shard.crc32s)
        if shard.header == entry.header(split, block) and columns_are_new:
            line = Shard(path.name, block, path.stat().st_size, file_crc32(path), shard.crc32s)
            manifest = manifest.with_shard(line, shard.columns)
    return manifest
