"""Find the damage in an entry, and remove damaged files so that a rerun computes them again."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from reservoir_cache import derived
from reservoir_cache.entry import MANIFEST_FILE, Entry, Manifest, Shard, block_of, page_name, page_of
from reservoir_cache.errors import CacheError, Problem
from reservoir_cache.locks import entry_locks
from reservoir_cache.paths import fault, file_crc32, is_regular
from reservoir_cache.shard import UNREADABLE, inspect_shard
from reservoir_cache.spec import FORMAT, INPUT, MOMENTS


def verify(entry: Entry, *, contents: bool = True) -> list[Problem]:
    """Read every file of an entry and return all damaged files and the folders of unfinished splits.

    `Entry.progress` defines finished splits; an `Entry.intermediate` entry needs none. Without
    ``contents``, files are not read; only their sizes are compared.
    """
    problems: list[Problem] = []
    for split in entry.splits:
        problems += _damage_of_split(entry, split, contents=contents)
    damaged_splits = {problem.path.parent.name for problem in problems}
    # Arrays of the input layer, and those that were derived from the features, have manifests of their own.
    problems += _damage_of_arrays(entry.path / INPUT, entry.repair_command, contents=contents)
    problems += _damage_of_arrays(
        entry.path / MOMENTS, "it is computed again when needed", contents=contents
    )
    # Splits that are not finished, although none of their files is damaged.
    with suppress(CacheError):  # a damaged manifest has been reported above
        manifests = {split: entry.manifest(split) for split in entry.splits}
        for split, (finished, count) in entry.progress(manifests).items():
            if finished == count or split in damaged_splits or entry.intermediate:
                continue
            missing = f"{finished} of {count} blocks exist"
            if manifests[split].shards and not manifests[split].targets:
                missing = "its labels are missing"  # without them, no block counts as finished
            remedy = f"run the same {entry.command} again"
            problems.append(Problem(entry.path / split, f"not finished: {missing}", remedy))
    return problems


def _damage_of_arrays(folder: Path, remedy: str, *, contents: bool) -> list[Problem]:
    """Return the damage in a folder of arrays (see `derived`); ``remedy`` is what to do about it."""
    manifest = folder / MANIFEST_FILE
    lines = derived.listed_arrays(folder)
    if lines is None:
        return [Problem(manifest, "damaged", remedy)]
    fields = {file: vars(line) for file, line in lines.items()}
    return _damage(manifest, fields, remedy, files_exist=any(folder.glob("*.h5")), contents=contents)


def _damage_of_split(entry: Entry, split: str, *, contents: bool) -> list[Problem]:
    """Return the damaged pages of a split's manifest, and the damaged files that they list; see `verify`."""
    folder = entry.path / split
    remedy = entry.repair_command
    pages_with_files: set[int] = set()  # a page must list a file if the folder has one of its blocks
    for path in folder.glob("*.h5"):
        with suppress(CacheError):  # a file that no page can list
            pages_with_files.add(page_of(path.name))
    problems: list[Problem] = []
    for page in range(entry.page_count(split)):
        manifest = folder / page_name(page)
        try:
            lines = {file: vars(line) for file, line in entry.page(split, page).files.items()}
        except CacheError as error:
            problems.append(Problem.of(manifest, error, remedy))
        else:
            files_exist = page in pages_with_files
            problems += _damage(manifest, lines, remedy, files_exist=files_exist, contents=contents)
    return problems


def _damage(
    manifest: Path,
    lines: Mapping[str, Mapping[str, Any]],
    remedy: str,
    *,
    files_exist: bool,
    contents: bool,
) -> list[Problem]:
    """Return the files that differ from their lines in a manifest, which must not be empty if ``files_exist``.

    ``lines`` has the size and the CRC-32 of each file by its name; ``remedy`` is what to do about a problem.
    """
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
        if folder == entry.path:
            continue  # the folder of an unfinished split; all other problems are those of files in such a folder
        # While `at_work` is open, nobody copies or removes the entry; opening it also removes what dead processes left.
        # `mutex` keeps out other processes and threads that read, change and replace a manifest.
        locks = entry_locks(entry.path)
        with locks.at_work(), locks.mutex():
            if folder.name in (INPUT, MOMENTS):
                derived.forget(folder, file)
                is_repaired = True
            else:
                is_repaired = _repair(entry, folder.name, file)
        if is_repaired:
            repaired.append(problem)
    return repaired


def _repair(entry: Entry, split: str, file: str) -> bool:
    """Rebuild a damaged page, or remove a damaged file; return False if it is sound or another run is writing it.

    The manifest of a split consists of pages, each a JSON file with a line for each file of some blocks: its size and
    its CRC-32. ``file`` is the name of such a page, or of a file that a page lists. The caller holds the entry's mutex.
    """
    folder = entry.path / split
    page_number = page_of(file)
    if file == page_name(page_number):
        _rebuild(entry, split, page_number).write(folder, page_number)
        return True
    # Check the file again, because another run may have repaired it since it was found damaged.
    page = entry.page(split, page_number)
    line = page.files.get(file)
    if line is None:
        return False
    # `fault` takes the fields of a line by name.
    is_sound = fault(folder / file, vars(line)) is None
    if is_sound:
        return False
    # Shards are removed while their block is claimed. The file of labels belongs to no block.
    with ExitStack() as releases:
        if isinstance(line, Shard):
            locks = entry_locks(entry.path)
            block_number = entry.block_number(split, line.block)
            if not locks.claim(block_number):
                return False
            releases.callback(locks.release, block_number)
        # The line goes before the file: a page never lists a file that does not exist.
        page.without({file}).write(folder, page_number)
        (folder / file).unlink(missing_ok=True)
    return True


def _rebuild(entry: Entry, split: str, page: int) -> Manifest:
    """Return page ``page`` of a manifest with its undamaged shards, without labels, which extract writes again."""
    folder = entry.path / split
    manifest = Manifest(FORMAT, entry.key, split, entry.spec.rows[split])
    for path in sorted(folder.glob("*.h5")):
        # Leave out files that are not shards of this page, and damaged ones.
        try:
            block = block_of(path.name)
            if not is_regular(path) or block >= entry.block_count(split) or page_of(path.name) != page:
                continue
            shard = inspect_shard(path, entry.spec.store, entry.layout.offset_rows)
        except UNREADABLE:
            continue
        # The shard must describe itself as this block of this entry. A page lists each column of a block once, so a
        # shard with a column that an earlier shard has is left out, as is one without columns.
        listed_columns = manifest.stored_columns().get(block, {}).keys()
        has_new_columns = bool(shard.crc32s) and listed_columns.isdisjoint(shard.crc32s)
        if has_new_columns and shard.header == entry.header(split, block):
            line = Shard(path.name, block, path.stat().st_size, file_crc32(path), shard.crc32s)
            manifest = manifest.with_shard(line, shard.columns)
    return manifest
