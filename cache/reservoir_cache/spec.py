"""The specification of an entry, its canonical text and key, and the reader of ``spec.json``."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from reservoir_cache.documents import read_json
from reservoir_cache.errors import CacheError
from reservoir_cache.paths import read_regular

FORMAT = 1
BLOCK_BYTES = 2**24
"""Size of a shard in bytes: many small files are slow to write, and a killed run loses the current block."""

SPEC_FILE = "spec.json"
# the data types on disk, and the bytes of a value in each
STORES = {"float16": 2, "bfloat16": 2, "float32": 4}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIRED = {
    "task": ("name",),
    "data": ("digest", "rows"),
    "backbone": ("family", "digest"),
    "init": ("kind", "seed"),
    "input": ("kind", "seed", "gain", "patch", "stride"),
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that affects the features of an entry, and nothing else; FORMAT.md describes the fields.

    Values are JSON. The order of mappings, and whether a whole number is written 1 or 1.0, do not
    change the key.
    """

    task: Mapping[str, Any]
    data: Mapping[str, Any]
    backbone: Mapping[str, Any]
    init: Mapping[str, Any]
    input: Mapping[str, Any]
    padding: str
    compute: str
    store: str
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            object.__setattr__(self, name, value)
        for name, needed in _REQUIRED.items():
            value = getattr(self, name)
            if not isinstance(value, dict) or not {*needed} <= value.keys():
                raise CacheError(
                    f"specification: {name} must be a mapping with {', '.join(needed)}, not {value!r}"
                )
        check_name(self.task["name"], "task name")
        if not isinstance(rows := self.data["rows"], dict) or not rows:
            raise CacheError("specification: data.rows must map each split to its number of rows")
        for split, count in rows.items():
            check_name(split, "split name")
            if split in ("moments", "runs") or type(count) is not int or count < 1:
                raise CacheError(
                    f"specification: split {split!r} has {count!r} rows; rename it, or leave it out if empty"
                )
        if self.store not in STORES:
            raise CacheError(f"specification: store is {self.store!r}; choose one of {', '.join(STORES)}")

    @cached_property
    def key(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.to_dict()).encode()).hexdigest()

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each split."""
        return dict(self.data["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of JSON values."""
        return _plain({field.name: getattr(self, field.name) for field in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The division of an entry into files, chosen when it is created and stored in it; not part of the key."""

    # rows of one forward pass; later runs keep this number, because it changes the last bits
    batch_rows: int
    block_rows: int = 256  # rows of one shard
    offset_rows: int = 0  # rows that are computed together and share an offset; by default all of a block

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < (name != "offset_rows"):
                raise CacheError(f"layout: {name} must be a whole number of at least 1, not {value!r}")
        object.__setattr__(self, "offset_rows", min(self.offset_rows or self.block_rows, self.block_rows))

    def to_dict(self) -> dict[str, int]:
        """Return the fields; ``offset_rows`` only if a block has several offsets: earlier versions cannot read it."""
        return {
            name: rows
            for name, rows in vars(self).items()
            if name != "offset_rows" or rows < self.block_rows
        }

    def count(self, rows: int) -> int:
        """Return the number of blocks of a split."""
        return -(-rows // self.block_rows)

    def block(self, rows: int, block: int) -> tuple[int, int]:
        """Return the row range [low, high) of one block of a split."""
        return block * self.block_rows, min((block + 1) * self.block_rows, rows)

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        """Return the row ranges [low, high) of the blocks of a split."""
        return [self.block(rows, block) for block in range(self.count(rows))]


def rows_per_block(row_bytes: int, unit: int, most: int) -> int:
    """Return the number of rows of a block: a multiple of ``unit``, at most ``most`` but at least one unit."""
    return max(1, min(BLOCK_BYTES // max(row_bytes, 1), most) // unit) * unit


def canonical_json(value: Any) -> str:
    """Return the canonical JSON text of a value; raises CacheError for anything but JSON types and finite numbers."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def check_name(name: object, what: str) -> str:
    """Return a name that is safe as a part of a path; raises CacheError for any other."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CacheError(
            f"{what} {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    return name


def read_spec(folder: Path) -> tuple[Spec, Layout, dict[str, Any]]:
    """Read an entry's ``spec.json``; raises CacheError if it is absent or damaged, or has another format or key."""
    path = folder / SPEC_FILE
    try:
        # Check the format before anything else in the file is used.
        version = json.loads(read_regular(path))["spec"]["format"]
    except (FileNotFoundError, NotADirectoryError) as error:
        problem = f"{folder}: not an entry of the cache, because it has no {SPEC_FILE}"
        raise CacheError(f"{problem}; list the entries with 'reservoir cache list'") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        version = FORMAT  # the file is damaged, which is reported below
    if version != FORMAT:
        start = f"{path}: format version {version}, but this program reads version {FORMAT}; install a newer version"
        raise CacheError(f"{start} of reservoir-features, or extract again with another --cache")
    try:
        content = read_json(path, indent=2)
        spec, layout = Spec(**content["spec"]), Layout(**content["layout"])
        key, made_with = content["key"], content["made_with"]
        objects = (
            made_with,
            made_with.get("call", {}),
            made_with.get("kept", {}),
            made_with.get("reservoir", {}),
        )
        if not isinstance(key, str) or not all(isinstance(each, dict) for each in objects):
            raise TypeError("its key is not a string, or a part of made_with is not an object")
        if spec.key != key:
            raise CacheError(f"it hashes to {spec.key[:16]}, not to its key {key[:16]}")
    except (OSError, CacheError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(
            f"{path}: not a valid specification ({error}); remove {folder} and extract again"
        ) from error
    return spec, layout, made_with


def _plain(value: Any) -> Any:
    """Return a deep copy in JSON types, whole floats as integers, so that equal numbers give equal text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False), parse_float=_number)
    except (TypeError, ValueError) as error:
        raise CacheError(
            f"specification: only JSON types and finite numbers can be part of a key ({error})"
        ) from error


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value
