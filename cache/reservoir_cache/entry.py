"""An entry (the folder with everything cached for one task and reservoir), and the manifests that list its shards.

A file that is not listed in a manifest is ignored.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.locks import entry_locks, mark_last, processes_at_work, was_ever_last
from reservoir_cache.paths import is_regular, refuse_links
from reservoir_cache.publish import make_folder, publish_json, read_json, sync
from reservoir_cache.spec import FORMAT, SPEC_FILE, Layout, Spec, check_name, read_spec

MAX_BLOCKS = 1_000_000  # of an entry: a damaged specification may claim any number
MANIFEST_FILE = "manifest.json"  # the first page of a manifest, which also lists the file of labels
# Blocks of a page of a manifest. Adding a shard writes only its page, whatever the number of shards.
PAGE_BLOCKS = 128
TARGETS_FILE = "targets.h5"

_PAGE_FILE = re.compile(r"manifest(?:-([1-9][0-9]*))?\.json")
_SHARD_FILE = re.compile(r"([0-9]{5,})-(0|[1-9][0-9]*)\.h5")
_CRC32 = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class StoredColumn:
    """Shape of a column, the same in every shard: (rows, tokens, width)."""

    tokens: int  # per row
    width: int  # values per token


@dataclass(frozen=True)
class Shard:
    """A line of a manifest: one immutable file with some columns of one block."""

    file: str  # its name in the folder of the split
    block: int  # number of the block in its split, from 0
    bytes: int  # size of the file
    crc32: str  # of the whole file, as 8 hexadecimal digits
    columns: dict[str, str]  # by column, the CRC-32 of its values, then its offsets


@dataclass(frozen=True)
class TargetFile:
    """A line of a manifest: the file of labels, lengths and source row numbers."""

    file: str  # its name in the folder of the split
    bytes: int  # size of the file
    crc32: str  # of the whole file, as 8 hexadecimal digits


@dataclass(frozen=True)
class Manifest:
    """The list of the files of a split, or one page of this list, with the blocks of that page."""

    format: int  # version of the file format
    key: str  # of the entry
    split: str
    rows: int  # of the split
    columns: dict[str, StoredColumn] = field(default_factory=dict)  # every column of any of the shards
    shards: tuple[Shard, ...] = ()  # sorted by block, then file
    targets: TargetFile | None = None  # None until the labels are written, and in all pages but the first

    @property
    def files(self) -> dict[str, Shard | TargetFile]:
        """The line of every listed file, by the name of the file."""
        lines: tuple[Shard | TargetFile, ...] = self.shards + ((self.targets,) if self.targets else ())
        return {line.file: line for line in lines}

    def stored_columns(self, folder: Path | None = None) -> dict[int, dict[str, Shard]]:
        """Return {block: {column: the shard that has it}}, without blocks that have no shard.

        With the ``folder`` of the split, shards whose file is missing or has another size are left out.
        """
        shard_of_column: dict[int, dict[str, Shard]] = {}
        for shard in self.shards:
            if folder is None or has_listed_size(folder, shard):
                shard_of_column.setdefault(shard.block, {}).update(dict.fromkeys(shard.columns, shard))
        return shard_of_column

    def with_shard(self, shard: Shard, columns: dict[str, StoredColumn]) -> "Manifest":
        """Return the manifest with a shard and the shapes of its columns; a shard of the same file is replaced."""
        others = (other for other in self.shards if other.file != shard.file)
        shards = sorted((*others, shard), key=lambda line: (line.block, line.file))
        return replace(self, shards=tuple(shards), columns={**self.columns, **columns})

    def without(self, files: set[str]) -> "Manifest":
        """Return the manifest without the named files and the columns that only they have."""
        shards = tuple(shard for shard in self.shards if shard.file not in files)
        remaining_columns = {name for shard in shards for name in shard.columns}
        columns = {name: shape for name, shape in self.columns.items() if name in remaining_columns}
        targets = None if self.targets and self.targets.file in files else self.targets
        return replace(self, shards=shards, columns=columns, targets=targets)

    def write(self, folder: Path, page: int) -> None:
        """Publish this manifest in the split's folder, as the page of this number."""
        content = {
            **vars(self),
            "columns": {name: vars(column) for name, column in self.columns.items()},
            "shards": [vars(shard) for shard in self.shards],
            "targets": vars(self.targets) if self.targets else None,
        }
        publish_json(folder / page_name(page), content)


def has_listed_size(folder: Path, line: Shard | TargetFile | None) -> bool:
    """Return whether a file exists with the size of its line in a manifest; False if it has no line, which is None.

    This cheap check is made on every open.
    """
    return line is not None and is_regular(folder / line.file, line.bytes)


def page_name(page: int) -> str:
    """Return the name of the file of a page, by its number from 0."""
    return f"manifest-{page}.json" if page else MANIFEST_FILE


def page_of(file: str | int) -> int:
    """Return the number of the page that lists a block (a number) or a file, or of the page that a file itself is.

    Raises CacheError for a name that no page, shard or file of labels has.
    """
    if isinstance(file, int):
        return file // PAGE_BLOCKS
    if match := _PAGE_FILE.fullmatch(file):
        return int(match[1] or 0)  # the first page, manifest.json, has no number in its name
    if file == TARGETS_FILE:
        return 0  # only the first page lists the labels
    return block_of(file) // PAGE_BLOCKS


def block_of(file: str) -> int:
    """Return the block of a shard by its file's name; raises CacheError for any other name."""
    match = _SHARD_FILE.fullmatch(file)
    if match:
        block = int(match[1])
        # A block has only one name: its number has at least five digits, and no zeros in front of six or more.
        is_its_only_name = match[1] == f"{block:05d}"
        if is_its_only_name:
            return block
    raise CacheError(f"{file!r} is not the name of a shard")


def check_column_name(name: str) -> None:
    """Raise CacheError for a name that is not ``layer/pooling``; both parts are names of groups in HDF5 files."""
    parts = name.split("/")
    if len(parts) != 2:
        raise CacheError(f"column {name!r}: a column is named layer/pooling, like block06/mean")
    for part in parts:
        check_name(part, f"column {name!r}: part")


def _check_page(manifest: Manifest, page: int, blocks: int) -> None:
    """Raise CacheError unless every name, number and checksum of page ``page`` is valid.

    The CRC-32 of the document does not say so: whoever writes a wrong page can compute it. ``blocks`` is the number of
    blocks of the split.
    """
    # What must be a number from 0, and what must be a checksum. A damaged page may have values of any type there.
    sizes = list[object]()
    checksums = list[object]()
    for name, shape in manifest.columns.items():
        check_column_name(name)
        sizes += [shape.tokens - 1, shape.width - 1]  # these are at least 1
    columns_of_blocks = set[tuple[int, str]]()  # those of the shards so far
    for shard in manifest.shards:
        columns_of_shard = {(shard.block, name) for name in shard.columns}
        is_misplaced = (
            block_of(shard.file) != shard.block or page_of(shard.block) != page or shard.block >= blocks
        )
        has_repeated_column = not columns_of_blocks.isdisjoint(columns_of_shard)
        has_unlisted_column = not shard.columns.keys() <= manifest.columns.keys()
        if is_misplaced or has_repeated_column or has_unlisted_column:
            raise CacheError(
                f"{shard.file} is of another block, or has a column that is repeated or not listed"
            )
        columns_of_blocks |= columns_of_shard
        checksums += shard.columns.values()
    for file, line in manifest.files.items():
        is_on_first_page = page == 0
        if isinstance(line, TargetFile) and not (is_on_first_page and file == TARGETS_FILE):
            raise CacheError(f"{file!r} is not the name of the labels' file")
        sizes += [line.bytes]
        checksums += [line.crc32]
    for size in sizes:
        if type(size) is not int or size < 0:  # a boolean, which is an int to isinstance, is no size
            raise CacheError(f"{size!r} is not a size")
    for checksum in checksums:
        if not isinstance(checksum, str) or not _CRC32.fullmatch(checksum):
            raise CacheError(f"{checksum!r} is not a checksum")


@dataclass(frozen=True)
class Entry:
    """One folder of the cache; use ``Entry.create`` or ``Entry.open``."""

    path: Path  # <root>/features/<task>/<name>-<first 16 digits of the key>
    spec: Spec  # everything that decides which features are stored
    layout: Layout  # the division of rows into blocks
    # host, library versions and the like, for information only
    made_with: Mapping[str, Any] = field(compare=False)

    def __post_init__(self) -> None:
        """Raise CacheError for more than `MAX_BLOCKS` blocks: a damaged file may claim any number."""
        if sum(map(self.layout.count, self.spec.rows.values())) > MAX_BLOCKS:
            problem = f"{self.path / SPEC_FILE}: its rows need more than {MAX_BLOCKS:,} blocks"
            raise CacheError(f"{problem}; extract fewer rows (--limit)")

    @classmethod
    def create(
        cls, root: Path, name: str, spec: Spec, layout: Layout, made_with: Mapping[str, Any]
    ) -> "Entry":
        """Open or create the entry of a specification, and make it its task's last entry unless within ``untracked``.

        ``name`` is the first part of the folder's name, like ``gpt2-random``. An existing entry keeps
        its layout, and may be read-only. Two processes may call this at the same time.
        """
        folder = Path(root) / "features" / spec.task_name
        path = folder / f"{check_name(name, 'entry name')}-{spec.key[:16]}"
        _refuse_links(path)
        if not (path / SPEC_FILE).exists():
            make_folder(path)
            locks = entry_locks(path, create=True)
            with locks.at_work(needs_spec=False), locks.mutex(needs_spec=False):
                # Another process may have created the entry while this one waited for the mutex.
                if not (path / SPEC_FILE).exists():
                    _remove_manifests(path)
                    mark_last(path, new=True)  # within `untracked` it is marked as never last
                    content = {"spec": spec.to_json(), "key": spec.key, "layout": layout.to_dict()}
                    publish_json(path / SPEC_FILE, content | {"made_with": {**made_with}}, indent=2)
        entry = cls.open(path)
        # The folder's name has only the first digits of the key.
        if entry.key != spec.key:
            raise CacheError(f"{path}: holds key {entry.key}, not {spec.key}; remove it")
        mark_last(path)
        return entry

    @classmethod
    def open(cls, path: Path) -> "Entry":
        """Open an existing entry without writing anything or following symbolic links to it or out of it."""
        path = Path(path)
        _refuse_links(path)
        return cls(path, *read_spec(path))

    @property
    def key(self) -> str:
        """The key of the specification."""
        return self.spec.key

    @property
    def command(self) -> str:
        """The name of the command that fills the entry, ``extract`` or ``import-features``, for messages."""
        words = str(self.made_with.get("call", {}).get("command", "")).split()
        return "import-features" if words[1:2] == ["import-features"] else "extract"

    @property
    def repair_command(self) -> str:
        """The end of a message about damage: the commands that repair the entry.

        The entry is named by its folder, because a key would be searched for in the cache that the command is given.
        """
        return f"run reservoir cache repair {quote(str(self.path))}, then the same {self.command} again"

    @property
    def splits(self) -> list[str]:
        """The splits of the specification, sorted."""
        return sorted(self.spec.rows)

    @property
    def intermediate(self) -> bool:
        """Whether the entry has only been a step of other commands, which may need some of its splits only.

        Their steps run within `untracked`.
        """
        return not was_ever_last(self.path)

    def blocks(self, split: str) -> list[tuple[int, int]]:
        """Return the row ranges [low, high) of a split's blocks."""
        return self.layout.blocks(self._rows(split))

    def block_count(self, split: str) -> int:
        """Return the number of a split's blocks."""
        return self.layout.count(self._rows(split))

    def page_count(self, split: str) -> int:
        """Return the number of pages that a split's manifest may have."""
        last_block = self.block_count(split) - 1
        return page_of(last_block) + 1

    def manifest(self, split: str) -> Manifest:
        """Return the manifest of a split, with the lines of all its pages; it is empty if nothing is written yet."""
        pages = [self.page(split, page) for page in range(self.page_count(split))]
        columns = dict[str, StoredColumn]()
        shards = list[Shard]()
        for page in pages:
            for name, shape in page.columns.items():
                shape_in_earlier_page = columns.setdefault(name, shape)
                if shape_in_earlier_page != shape:
                    raise CacheError(
                        f"{self.path}: column {name} has two shapes; remove the entry and extract again"
                    )
            shards += page.shards
        # The first page also has the line of the labels.
        return replace(pages[0], columns=columns, shards=tuple(shards))

    def page(self, split: str, page: int) -> Manifest:
        """Return one page of a split's manifest, by its number; it is empty if it is not written yet.

        Raises CacheError for a damaged page.
        """
        empty = Manifest(FORMAT, self.key, split, self._rows(split))
        path = self.path / split / page_name(page)
        try:
            content = read_json(path)
            parsed = {
                "columns": {name: StoredColumn(**shape) for name, shape in content["columns"].items()},
                "shards": tuple(Shard(**shard) for shard in content["shards"]),
                "targets": TargetFile(**content["targets"]) if content["targets"] else None,
            }
            manifest = Manifest(**{**content, **parsed})
            _check_page(manifest, page, self.block_count(split))
            # Without its lines, a page of this split is equal to an empty one.
            if replace(manifest, columns={}, shards=(), targets=None) != empty:
                raise CacheError("its format, key, split or number of rows belongs to another manifest")
        except FileNotFoundError:
            return empty
        except (CacheError, TypeError, ValueError, KeyError, AttributeError) as error:
            # A damaged document may have other fields or types than the ones that are read above.
            raise CacheError(f"{path}: not a valid manifest ({error}); {self.repair_command}") from error
        return manifest

    def missing(self, split: str, columns: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Return {block: the columns that it lacks} for the blocks that lack any of the columns."""
        distinct_columns = dict.fromkeys(columns)  # in the order in which they are given
        stored = self.manifest(split).stored_columns(self.path / split)
        missing = dict[int, tuple[str, ...]]()
        for block in range(self.block_count(split)):
            stored_in_block = stored.get(block, {})
            missing_in_block = tuple(name for name in distinct_columns if name not in stored_in_block)
            if missing_in_block:
                missing[block] = missing_in_block
        return missing

    def lacking(self, split: str, block: int, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the columns that a block lacks; before it is claimed, another run may change this at any time."""
        page = self.page(split, page_of(block))
        stored_in_block = page.stored_columns(self.path / split).get(block, {})
        distinct_columns = dict.fromkeys(columns)  # in the order in which they are given
        return tuple(name for name in distinct_columns if name not in stored_in_block)

    def progress(self, manifests: Mapping[str, Manifest] | None = None) -> dict[str, tuple[int, int]]:
        """Return {split: (number of its finished blocks, number of all its blocks)}.

        A block is finished if its split has labels and it has every column that any block of any
        split has. ``manifests`` are those of all splits, which are read if they are not given.
        """
        manifests = manifests or {split: self.manifest(split) for split in self.splits}
        all_columns = {name for manifest in manifests.values() for name in manifest.columns}
        progress = {}
        for split, manifest in manifests.items():
            finished_blocks = 0  # none is finished without labels
            if manifest.targets:
                stored = manifest.stored_columns()
                finished_blocks = sum(columns.keys() == all_columns for columns in stored.values())
            progress[split] = (finished_blocks, self.block_count(split))
        return progress

    def running(self) -> list[dict[str, Any]]:
        """Return host, pid and start time of the runs that are working on this entry now."""
        return processes_at_work(self.path)

    def block_number(self, split: str, block: int) -> int:
        """Return the number of a block in the whole entry: the blocks of a split follow those of all earlier splits."""
        return block + sum(self.block_count(name) for name in self.splits if name < split)

    def header(self, split: str, block: int) -> dict[str, int | str]:
        """Return the attributes of a shard's root group: which rows it holds."""
        low, high = self.layout.block(self._rows(split), block)
        return {"format": FORMAT, "key": self.key, "split": split, "block": block, "low": low, "high": high}

    def _rows(self, split: str) -> int:
        """Return the number of rows of a split; raises CacheError if the entry has no such split."""
        if split not in self.spec.rows:
            raise CacheError(f"{self.path}: no split {split!r}; it has {', '.join(self.splits)}")
        return self.spec.rows[split]


def _remove_manifests(path: Path) -> None:
    """Remove the manifests that an interrupted copy or removal has left in a folder without a specification.

    They may list shards of another layout, which a reader would not find damaged before it reads them.
    """
    for page in path.glob("*/manifest*.json"):
        page.unlink()
        sync(page.parent)


def _refuse_links(path: Path) -> None:
    """Raise CacheError if an entry's folder, the two folders above it, or anything directly in it is a link."""
    refuse_links(path, *path.parents[:2])
    try:
        refuse_links(*path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return  # the caller reports a missing folder
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror}); check permissions") from error
