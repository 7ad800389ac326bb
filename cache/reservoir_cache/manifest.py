"""The manifest of a split: the list of what exists. A shard that is not in it does not exist.

It is divided into pages of `PAGE_BLOCKS` blocks, so that adding a shard costs the same however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reservoir_cache.publish import CacheError, fault_point, is_regular, publish_json, read_json
from reservoir_cache.spec import check_name

NAME = "manifest.json"
"""The first page, which also names the labels."""

PAGE_BLOCKS = 128
"""Blocks of a page."""

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
    """One immutable file with some columns of one block; ``columns`` maps each to its CRC-32 of values, then offset."""

    file: str
    block: int
    bytes: int
    crc32: str
    columns: dict[str, str]


@dataclass(frozen=True)
class Targets:
    """The file of labels, lengths and source row numbers: name, size and CRC-32."""

    file: str
    bytes: int
    crc32: str


@dataclass(frozen=True)
class Manifest:
    """A split, or a page of it: the columns of any shard, the shards by block and file, the labels if written."""

    format: int
    key: str
    split: str
    rows: int
    columns: dict[str, Column] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    targets: Targets | None = None

    @property
    def files(self) -> dict[str, Shard | Targets]:
        """Every listed file by its name."""
        lines: tuple[Shard | Targets, ...] = self.shards + ((self.targets,) if self.targets else ())
        return {line.file: line for line in lines}

    def of_block(self, block: int) -> list[Shard]:
        """Return the shards of one block."""
        return [shard for shard in self.shards if shard.block == block]

    def held(self, folder: Path | None = None) -> dict[int, dict[str, Shard]]:
        """Return the shard of each column of each block; with ``folder``, only of shards whose file has its size."""
        found: dict[int, dict[str, Shard]] = {}
        for shard in self.shards:
            if folder is None or is_sound(folder, shard):
                found.setdefault(shard.block, {}).update(dict.fromkeys(shard.columns, shard))
        return found

    def with_shard(self, shard: Shard, columns: dict[str, Column]) -> Manifest:
        """Return the manifest with a shard, and the shapes of its columns, added or in place of a file of that name."""
        others = (each for each in self.shards if each.file != shard.file)
        shards = sorted((*others, shard), key=lambda each: (each.block, each.file))
        return replace(self, shards=tuple(shards), columns={**self.columns, **columns})

    def without(self, files: set[str]) -> Manifest:
        """Return the manifest without the named files and without columns that no shard holds any more."""
        shards = tuple(shard for shard in self.shards if shard.file not in files)
        held = {name for shard in shards for name in shard.columns}
        columns = {name: shape for name, shape in self.columns.items() if name in held}
        targets = None if self.targets and self.targets.file in files else self.targets
        return replace(self, shards=shards, columns=columns, targets=targets)

    def joined(self, pages: Iterable[Manifest]) -> Manifest:
        """Return this page and later ones as one; raises CacheError for a column of several shapes."""
        columns, shards = dict(self.columns), list(self.shards)
        for page in pages:
            for name, shape in page.columns.items():
                if columns.setdefault(name, shape) != shape:
                    raise CacheError(f"column {name} has two shapes: {columns[name]} and {shape}")
            shards += page.shards
        return replace(self, columns=columns, shards=tuple(shards))

    def write(self, folder: Path, page: int) -> None:
        """Publish a page in the split's folder."""
        content = {
            **vars(self),
            "columns": {name: vars(column) for name, column in self.columns.items()},
            "shards": [vars(shard) for shard in self.shards],
            "targets": vars(self.targets) if self.targets else None,
        }
        publish_json(folder / page_name(page), content)
        fault_point("listed")


def read_page(folder: Path, page: int) -> Manifest:
    """Read a page of a split's manifest; raises FileNotFoundError if there is none, CacheError if it is damaged."""
    path = folder / page_name(page)
    content: dict[str, Any] = read_json(path)
    try:
        manifest = Manifest(
            **{
                **content,
                "columns": {name: Column(**shape) for name, shape in content["columns"].items()},
                "shards": tuple(Shard(**shard) for shard in content["shards"]),
                "targets": Targets(**content["targets"]) if content["targets"] else None,
            }
        )
        _check(manifest, page)
    except (CacheError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise CacheError(f"{path}: not a manifest of this format ({error})") from error
    return manifest


def is_sound(folder: Path, line: Shard | Targets | None) -> bool:
    """Return whether a file is listed and exists with its size: the cheap check, made on every open."""
    return line is not None and is_regular(folder / line.file, line.bytes)


def page_name(page: int) -> str:
    """Return the name of a page's file."""
    return f"manifest-{page}.json" if page else NAME


def page_of(file: str | int) -> int:
    """Return the page that a file is, or that lists it, or a block; raises CacheError for any other name."""
    if isinstance(file, int):
        return file // PAGE_BLOCKS
    if match := _PAGE_FILE.fullmatch(file):
        return int(match[1] or 0)
    return 0 if file == TARGETS_FILE else block_of(file) // PAGE_BLOCKS


def block_of(file: str) -> int:
    """Return the block of a shard by its file's name; raises CacheError for any other name."""
    match = _SHARD_FILE.fullmatch(file)
    if not match or match[1] != f"{int(match[1]):05d}":
        raise CacheError(f"{file!r} is not the name of a shard")
    return int(match[1])


def check_column_name(name: str) -> None:
    """Refuse a name that is not ``layer/pooling``; both parts are names of groups in HDF5 files."""
    parts = name.split("/")
    if len(parts) != 2:
        raise CacheError(f"column {name!r}: a column is named layer/pooling, like block06/mean")
    for part in parts:
        check_name(part, f"column {name!r}: part")


def _check(manifest: Manifest, page: int) -> None:
    """Check every name, number and checksum: whoever can write a manifest can also renew its crc32."""
    seen, numbers, crcs = set(), list[object](), list[object]()
    for name, shape in manifest.columns.items():
        check_column_name(name)
        numbers += [shape.tokens - 1, shape.width - 1]
    for shard in manifest.shards:
        held = {(shard.block, name) for name in shard.columns}
        elsewhere = block_of(shard.file) != shard.block or page_of(shard.block) != page
        if elsewhere or seen & held or not shard.columns.keys() <= manifest.columns.keys():
            raise CacheError(f"{shard.file} is of another block, or holds a column twice, or one that is not listed")
        seen |= held
        crcs += shard.columns.values()
    for file, line in manifest.files.items():
        if isinstance(line, Targets) and (page or file != TARGETS_FILE):
            raise CacheError(f"{file!r} is not the name of the labels' file")
        numbers += [line.bytes]
        crcs += [line.crc32]
    if wrong := [number for number in numbers if type(number) is not int or number < 0]:
        raise CacheError(f"{wrong[0]!r} is not a size")
    if wrong := [crc for crc in crcs if not isinstance(crc, str) or not _CRC32.fullmatch(crc)]:
        raise CacheError(f"{wrong[0]!r} is not a checksum")
