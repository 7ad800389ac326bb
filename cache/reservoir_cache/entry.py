"""An entry (the folder with everything cached for one task and reservoir), and the manifests that list its shards.

A file that is not listed in a manifest is ignored.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError, repair_command
from reservoir_cache.locks import entry_locks, mark_last, processes_at_work, was_ever_last
from reservoir_cache.paths import is_regular, refuse_links
from reservoir_cache.publish import make_folder, publish_json, read_json, sync
from reservoir_cache.spec import FORMAT, SPEC_FILE, Layout, Spec, check_name, read_spec

MAX_BLOCKS = 1_000_000  # of an entry: a damaged specification may claim any number
NAME = "manifest.json"  # the first page, which also names the labels
# blocks of a page of a manifest; adding a shard writes only its page, whatever the number of shards
PAGE_BLOCKS = 128
TARGETS_FILE = "targets.h5"

_PAGE_FILE = re.compile(r"manifest(?:-([1-9][0-9]*))?\.json")
_SHARD_FILE = re.compile(r"([0-9]{5,})-(0|[1-9][0-9]*)\.h5")
_CRC32 = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class Column:
    """Shape of a column, the same in every shard: (rows, tokens, width)."""

    tokens: int
    width: int


@dataclass(frozen=True)
class Shard:
    """One immutable file with some columns of one block; ``columns`` maps each to the CRC-32 of values and offsets."""

    file: str
    block: int
    bytes: int
    crc32: str
    columns: dict[str, str]


@dataclass(frozen=True)
class TargetFile:
    """The file of labels, lengths and source row numbers: name, size and CRC-32."""

    file: str
    bytes: int
    crc32: str


@dataclass(frozen=True)
class Manifest:
    """The files of a split, or of a page of it: columns, shards sorted by block and file, and labels if written."""

    format: int
    key: str
    split: str
    rows: int
    columns: dict[str, Column] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    targets: TargetFile | None = None

    @property
    def files(self) -> dict[str, Shard | TargetFile]:
        """Every listed file by its name."""
        lines: tuple[Shard | TargetFile, ...] = self.shards + ((self.targets,) if self.targets else ())
        return {line.file: line for line in lines}

    def held(self, folder: Path | None = None) -> dict[int, dict[str, Shard]]:
        """Return the shard of each column of each block; with ``folder``, only if the file has the listed size."""
        shards: dict[int, dict[str, Shard]] = {}
        for shard in self.shards:
            if folder is None or has_listed_size(folder, shard):
                shards.setdefault(shard.block, {}).update(dict.fromkeys(shard.columns, shard))
        return shards

    def with_shard(self, shard: Shard, columns: dict[str, Column]) -> "Manifest":
        """Return the manifest with a shard and the shapes of its columns; a shard of the same file is replaced."""
        others = (other for other in self.shards if other.file != shard.file)
        shards = sorted((*others, shard), key=lambda line: (line.block, line.file))
        return replace(self, shards=tuple(shards), columns={**self.columns, **columns})

    def without(self, files: set[str]) -> "Manifest":
        """Return the manifest without the named files and the columns that only they held."""
        shards = tuple(shard for shard in self.shards if shard.file not in files)
        stored = {name for shard in shards for name in shard.columns}
        columns = {name: shape for name, shape in self.columns.items() if name in stored}
        targets = None if self.targets and self.targets.file in files else self.targets
        return replace(self, shards=shards, columns=columns, targets=targets)

    def write(self, folder: Path, page: int) -> None:
        """Publish a page in the split's folder."""
        content = {
            **vars(self),
            "columns": {name: vars(column) for name, column in self.columns.items()},
            "shards": [vars(shard) for shard in self.shards],
            "targets": vars(self.targets) if self.targets else None,
        }
        publish_json(folder / page_name(page), content)


def has_listed_size(folder: Path, line: Shard | TargetFile | None) -> bool:
    """Return whether a file is listed and exists with its size; this cheap check is made on every open."""
    return line is not None and is_regular(folder / line.file, line.bytes)


def page_name(page: int) -> str:
    """Return the name of a page's file."""
    return f"manifest-{page}.json" if page else NAME


def page_of(file: str | int) -> int:
    """Return the page of a block, of a shard's file, or of a page's own file; raises CacheError for other names."""
    if isinstance(file, int):
        return file // PAGE_BLOCKS
    if match := _PAGE_FILE.fullmatch(file):
        return int(match[1] or 0)
    return 0 if file == TARGETS_FILE else block_of(file) // PAGE_BLOCKS


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
    """Refuse a name that is not ``layer/pooling``; both parts are names of groups in HDF5 files."""
    parts = name.split("/")
    if len(parts) != 2:
        raise CacheError(f"column {name!r}: a column is named layer/pooling, like block06/mean")
    for part in parts:
        check_name(part, f"column {name!r}: part")


def _check(manifest: Manifest, page: int, blocks: int) -> None:
    """Check every name, number and checksum of a page, which a matching crc32 does not make valid."""
    seen = set()
    numbers = list[object]()
    crcs = list[object]()
    for name, shape in manifest.columns.items():
        check_column_name(name)
        numbers += [shape.tokens - 1, shape.width - 1]
    for shard in manifest.shards:
        cells = {(shard.block, name) for name in shard.columns}
        is_misplaced = (
            block_of(shard.file) != shard.block or page_of(shard.block) != page or shard.block >= blocks
        )
        if is_misplaced or seen & cells or not shard.columns.keys() <= manifest.columns.keys():
            raise CacheError(
                f"{shard.file} is of another block, or has a column that is repeated or not listed"
            )
        seen |= cells
        crcs += shard.columns.values()
    for file, line in manifest.files.items():
        if isinstance(line, TargetFile) and (page or file != TARGETS_FILE):
            raise CacheError(f"{file!r} is not the name of the labels' file")
        numbers += [line.bytes]
        crcs += [line.crc32]
    if wrong := [number for number in numbers if type(number) is not int or number < 0]:
        raise CacheError(f"{wrong[0]!r} is not a size")
    if wrong := [crc for crc in crcs if not isinstance(crc, str) or not _CRC32.fullmatch(crc)]:
        raise CacheError(f"{wrong[0]!r} is not a checksum")


@dataclass(frozen=True)
class Entry:
    """One folder of the cache; use ``Entry.create`` or ``Entry.open``."""

    path: Path  # <root>/features/<task>/<name>-<key16>
    spec: Spec
    layout: Layout
    # host, library versions and the like, for information only
    made_with: Mapping[str, Any] = field(compare=False)

    def __post_init__(self) -> None:
        """Refuse more than `MAX_BLOCKS` blocks: a damaged file may claim any number."""
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
                if not (path / SPEC_FILE).exists():
                    _remove_manifests(path)
                    mark_last(path, new=True)
                    content = {"spec": spec.to_json(), "key": spec.key, "layout": layout.to_dict()}
                    publish_json(path / SPEC_FILE, content | {"made_with": {**made_with}}, indent=2)
        entry = cls.open(path)
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
    def splits(self) -> list[str]:
        """The splits of the specification, sorted."""
        return sorted(self.spec.rows)

    @property
    def intermediate(self) -> bool:
        """Whether only another command needed this entry, perhaps not all of its splits; see `untracked`."""
        return not was_ever_last(self.path)

    def blocks(self, split: str) -> list[tuple[int, int]]:
        """Return the row ranges [low, high) of a split's blocks."""
        return self.layout.blocks(self._rows(split))

    def block_count(self, split: str) -> int:
        """Return the number of a split's blocks."""
        return self.layout.count(self._rows(split))

    def page_count(self, split: str) -> int:
        """Return the number of pages that a split's manifest may have."""
        return page_of(self.block_count(split) - 1) + 1

    def manifest(self, split: str) -> Manifest:
        """Return the manifest of a split, which is empty if nothing is written yet."""
        pages = [self.page(split, page) for page in range(self.page_count(split))]
        columns, shards = dict[str, Column](), list[Shard]()
        for page in pages:
            for name, shape in page.columns.items():
                if columns.setdefault(name, shape) != shape:
                    raise CacheError(
                        f"{self.path}: column {name} has two shapes; remove the entry and extract again"
                    )
            shards += page.shards
        return replace(pages[0], columns=columns, shards=tuple(shards))

    def page(self, split: str, page: int) -> Manifest:
        """Return one page of a split's manifest, which is empty if it is not written yet."""
        empty = Manifest(FORMAT, self.key, split, self._rows(split))
        where = self.path / split / page_name(page)
        try:
            content = read_json(where)
            parts = {
                "columns": {name: Column(**shape) for name, shape in content["columns"].items()},
                "shards": tuple(Shard(**shard) for shard in content["shards"]),
                "targets": TargetFile(**content["targets"]) if content["targets"] else None,
            }
            manifest = Manifest(**{**content, **parts})
            _check(manifest, page, self.block_count(split))
            if replace(manifest, columns={}, shards=(), targets=None) != empty:
                raise CacheError("its format, key, split or number of rows belongs to another manifest")
        except FileNotFoundError:
            return empty
        except (CacheError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise CacheError(
                f"{where}: not a valid manifest ({error}); {repair_command(self.key)}"
            ) from error
        return manifest

    def missing(self, split: str, columns: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Return the blocks that lack any of the columns, each with the columns that it lacks."""
        names = dict.fromkeys(columns)
        stored = self.manifest(split).held(self.path / split)
        lacking = dict[int, tuple[str, ...]]()
        for block in range(self.block_count(split)):
            if missing := tuple(name for name in names if name not in stored.get(block, ())):
                lacking[block] = missing
        return lacking

    def lacking(self, split: str, block: int, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the columns that a block lacks; call this after claiming the block."""
        stored = self.page(split, page_of(block)).held(self.path / split).get(block, ())
        return tuple(name for name in dict.fromkeys(columns) if name not in stored)

    def progress(self, manifests: Mapping[str, Manifest] | None = None) -> dict[str, tuple[int, int]]:
        """Return for each split the number of finished blocks, and of all blocks.

        A block is finished if its split has labels and it has every column that any block of any
        split has.
        """
        manifests = manifests or {split: self.manifest(split) for split in self.splits}
        columns = {name for manifest in manifests.values() for name in manifest.columns}
        progress = {}
        for split, manifest in manifests.items():
            finished = sum(shards.keys() == columns for shards in manifest.held().values())
            progress[split] = finished if manifest.targets else 0, self.block_count(split)
        return progress

    def running(self) -> list[dict[str, Any]]:
        """Return host, pid and start time of the runs that are working on this entry now."""
        return processes_at_work(self.path)

    def block_number(self, split: str, block: int) -> int:
        """Return the number of a block in the whole entry, over its sorted splits."""
        return block + sum(self.block_count(name) for name in self.splits if name < split)

    def header(self, split: str, block: int) -> dict[str, int | str]:
        """Return the attributes of a shard's root group: which rows it holds."""
        low, high = self.layout.block(self._rows(split), block)
        return {"format": FORMAT, "key": self.key, "split": split, "block": block, "low": low, "high": high}

    def _rows(self, split: str) -> int:
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
    refuse_links(path, *path.parents[:2])
    try:
        refuse_links(*path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return  # the caller reports a missing folder
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror}); check permissions") from error
