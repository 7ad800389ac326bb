"""The manifest of a split: the list of what exists. A shard that is not in it does not exist."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.publish import publish_json, read_json

NAME = "manifest.json"


@dataclass(frozen=True)
class Column:
    """Shape of a column, the same in every shard: (rows, tokens, width)."""

    tokens: int
    width: int


@dataclass(frozen=True)
class Shard:
    """One immutable file with some columns of one block.

    Parameters
    ----------
    file : str
        Name in the split's folder.
    block : int
        Number of the block.
    bytes : int
        Size of the file.
    crc32 : str
        CRC-32 of the file.
    columns : dict of str to str
        Each column's CRC-32 of stored values, then offset.
    """

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
    """Everything of one split.

    Parameters
    ----------
    format : int
        Version of the format.
    key : str
        Key of the entry.
    split : str
        Name of the split.
    rows : int
        Rows of the split.
    columns : dict of str to Column
        Every column that any shard holds.
    shards : tuple of Shard
        In order of block, then file.
    targets : Targets or None
        None until they are written.
    """

    format: int
    key: str
    split: str
    rows: int
    columns: dict[str, Column] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    targets: Targets | None = None

    def of_block(self, block: int) -> list[Shard]:
        """Return the shards of one block."""
        return [shard for shard in self.shards if shard.block == block]

    def with_shard(self, shard: Shard, columns: dict[str, Column]) -> Manifest:
        """Return the manifest with a shard, and the shapes of its columns, added."""
        shards = sorted((*self.shards, shard), key=lambda each: (each.block, each.file))
        return replace(self, shards=tuple(shards), columns={**self.columns, **columns})

    def without(self, files: set[str]) -> Manifest:
        """Return the manifest without the named files and without columns that no shard holds any more."""
        shards = tuple(shard for shard in self.shards if shard.file not in files)
        held = {name for shard in shards for name in shard.columns}
        columns = {name: shape for name, shape in self.columns.items() if name in held}
        targets = None if self.targets and self.targets.file in files else self.targets
        return replace(self, shards=shards, columns=columns, targets=targets)

    def write(self, folder: Path, run: str) -> None:
        """Publish the manifest in the split's folder."""
        content = {
            **vars(self),
            "columns": {name: vars(column) for name, column in self.columns.items()},
            "shards": [vars(shard) for shard in self.shards],
            "targets": vars(self.targets) if self.targets else None,
        }
        publish_json(folder / NAME, run, content)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a split's folder.

    Raises
    ------
    FileNotFoundError
        If there is none.
    CacheError
        If it is damaged.
    """
    path = folder / NAME
    content: dict[str, Any] = read_json(path)
    try:
        return Manifest(
            **{
                **content,
                "columns": {name: Column(**shape) for name, shape in content["columns"].items()},
                "shards": tuple(Shard(**shard) for shard in content["shards"]),
                "targets": Targets(**content["targets"]) if content["targets"] else None,
            }
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise CacheError(f"{path}: not a manifest of this format ({error})") from error


def is_sound(folder: Path, line: Shard | Targets) -> bool:
    """Whether the file of a manifest's line is there with its size: the cheap check, made on every open."""
    try:
        return (folder / line.file).stat().st_size == line.bytes
    except OSError:
        return False
