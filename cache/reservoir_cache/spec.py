"""The specification of an entry: its typed fields, their canonical text and key, and the reader of ``spec.json``."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from reservoir_cache.errors import CacheError
from reservoir_cache.paths import read_regular
from reservoir_cache.publish import read_json

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A value of a JSON document."""

FORMAT = 1
BLOCK_BYTES = 2**24
"""Size of a shard in bytes: many small files are slow to write, and a killed run loses the current block."""

SPEC_FILE = "spec.json"
# the data types on disk, and the bytes of a value in each
STORES = {"float16": 2, "bfloat16": 2, "float32": 4}

RESERVED = ("moments", "runs")
"""Folders of an entry that hold no split, so that no split may have their names.

Derived arrays lie in ``moments`` (see `derived`), and the records of processes at work in ``runs`` (see `locks`).
"""

NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of a specification. Fields that have their default are left out of its JSON, and so of the key.

    Optional fields were added over time, and keys of entries that were made before must not change.
    """

    more: Mapping[str, Json] = field(default_factory=dict)  # fields of other versions

    @classmethod
    def from_json(cls, name: str, values: object) -> Self:
        """Return the part called ``name`` from its JSON; raises CacheError for missing fields and other types."""
        own = {item.name: item for item in fields(cls) if item.name != "more"}
        required = [item.name for item in own.values() if _is_required(item)]
        if not isinstance(values, dict) or not {*required} <= values.keys():
            raise CacheError(
                f"specification: {name} must be a mapping with {', '.join(required)}, not {values!r}"
            )
        arguments = {
            key: _checked(f"{name}.{key}", values[key], own[key].type) for key in own if key in values
        }
        return cls(**arguments, more={key: value for key, value in values.items() if key not in own})

    def to_json(self) -> dict[str, Json]:
        """Return the fields as JSON values, without optional fields that have their default."""
        values = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name != "more" and (_is_required(item) or getattr(self, item.name) != item.default)
        }
        return _plain({**values, **self.more})


@dataclass(frozen=True, kw_only=True)
class DataSpec(_Part):
    """The prepared data of an entry in row order."""

    digest: str
    rows: Mapping[str, int]  # of each split
    # digest of the data that imported features come from, if only labels came with them
    origin: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", dict(self.rows))
        if not self.rows:
            raise CacheError("specification: data.rows must map each split to its number of rows")
        for split, count in self.rows.items():
            check_name(split, "split name")
            if split in RESERVED:
                raise CacheError(f"specification: split name {split!r} is reserved; rename the split")
            if type(count) is not int or count < 1:  # True counts as int, but not as a number of rows
                remedy = "give a positive number, or leave it out if it is empty"
                raise CacheError(f"specification: split {split!r} has {count!r} rows; {remedy}")


@dataclass(frozen=True, kw_only=True)
class BackboneSpec(_Part):
    """Architecture and weights of the frozen model."""

    family: str
    digest: str  # of the weights; for imported features, of the features
    gelu: str | None = None  # how GELU's tanh form is computed, for models that have it
    device: str | None = None  # "cuda" if a GPU computed the features
    compiled: str | None = None  # "blocks" if compiled blocks and poolings computed them


@dataclass(frozen=True, kw_only=True)
class InitSpec(_Part):
    """Where the frozen weights come from."""

    kind: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class InputSpec(_Part):
    """The fixed input layer, and how a sequence is cut into tokens."""

    kind: str
    seed: int
    gain: float
    patch: int
    stride: int
    dilations: tuple[int, ...] = (1,)
    pad: str = "valid"
    normalise: str = "channel"
    tokenizer: str | None = None  # SHA-256 of a native input's tokenizer, processor and embeddings
    processor: str | None = None
    embeddings: str | None = None
    template: str | None = None  # SHA-256 of the chat template, if the texts are chats
    long: str | None = None  # how texts are read that are longer than the model reads at once

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file of a native input, by its kind."""
        named = {
            "tokenizer": self.tokenizer,
            "processor": self.processor,
            "embeddings": self.embeddings,
            "template": self.template,
        }
        return {kind: digest for kind, digest in named.items() if digest is not None}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that affects the features of an entry, and nothing else; FORMAT.md describes the fields.

    The order of mappings, and whether a whole number is written 1 or 1.0, do not change the key.
    """

    task: Mapping[str, Json]  # the task as its own package describes it; a cache reads its name only
    data: DataSpec
    backbone: BackboneSpec
    init: InitSpec
    input: InputSpec
    padding: str
    compute: str
    store: str
    format: int = FORMAT

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", _plain(self.task))
        if not isinstance(self.task, dict) or "name" not in self.task:
            raise CacheError(f"specification: task must be a mapping with name, not {self.task!r}")
        check_name(self.task["name"], "task name")
        if self.store not in STORES:
            raise CacheError(f"specification: store is {self.store!r}; choose one of {', '.join(STORES)}")

    @classmethod
    def from_json(cls, values: object) -> "Spec":
        """Return a specification from its JSON; raises CacheError for missing, unknown and mistyped fields."""
        content = _plain(values)
        names = {item.name for item in fields(cls)}
        if (
            not isinstance(content, dict)
            or not content.keys() <= names
            or not names - {"format"} <= content.keys()
        ):
            raise CacheError(f"specification: must have the fields {', '.join(sorted(names))}")
        return cls(
            task=content["task"],
            data=DataSpec.from_json("data", content["data"]),
            backbone=BackboneSpec.from_json("backbone", content["backbone"]),
            init=InitSpec.from_json("init", content["init"]),
            input=InputSpec.from_json("input", content["input"]),
            padding=_checked("padding", content["padding"], str),
            compute=_checked("compute", content["compute"], str),
            store=_checked("store", content["store"], str),
            format=_checked("format", content.get("format", FORMAT), int),
        )

    def to_json(self) -> dict[str, Json]:
        """Return the fields as JSON values."""
        return {
            "task": _plain(self.task),
            "data": self.data.to_json(),
            "backbone": self.backbone.to_json(),
            "init": self.init.to_json(),
            "input": self.input.to_json(),
            "padding": self.padding,
            "compute": self.compute,
            "store": self.store,
            "format": self.format,
        }

    @cached_property
    def key(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()

    @property
    def task_name(self) -> str:
        """The name of the task."""
        return str(self.task["name"])

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each split."""
        return dict(self.data.rows)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The division of an entry into files, chosen when it is created and stored in it; not part of the key."""

    # rows of one forward pass; later runs keep this number, because it changes the last bits
    batch_rows: int
    block_rows: int = 256  # rows of one shard
    offset_rows: int = 0  # rows that are computed together and share an offset; by default all of a block

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "offset_rows" else 1
            if type(value) is not int or value < least:
                raise CacheError(
                    f"layout: {name} must be a whole number of at least {least}, not {value!r}"
                )
        # 0 stands for a whole block, and no offset is shared by two blocks.
        object.__setattr__(self, "offset_rows", min(self.offset_rows or self.block_rows, self.block_rows))

    def to_dict(self) -> dict[str, int]:
        """Return the fields; ``offset_rows``, which old versions refuse, only if a block has several offsets."""
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


def rows_per_block(row_bytes: int, unit: int, most: int, block_bytes: int | None = None) -> int:
    """Return the number of rows of a block of ``block_bytes``, by default `BLOCK_BYTES`.

    It is a multiple of ``unit``, at most ``most`` but at least one unit.
    """
    block_bytes = BLOCK_BYTES if block_bytes is None else block_bytes
    return max(1, min(block_bytes // max(row_bytes, 1), most) // unit) * unit


def canonical_json(value: object) -> str:
    """Return the canonical JSON text of a value; raises CacheError for anything but JSON types and finite numbers."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def check_name(name: object, what: str) -> str:
    """Return a name that is safe as a part of a path; raises CacheError for any other."""
    if not isinstance(name, str) or not NAME_FORM.fullmatch(name):
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
        spec, layout = Spec.from_json(content["spec"]), Layout(**content["layout"])
        key, made_with = content["key"], content["made_with"]
        objects = (
            made_with,
            made_with.get("call", {}),
            made_with.get("kept", {}),
            made_with.get("reservoir", {}),
        )
        if not isinstance(key, str) or not all(isinstance(value, dict) for value in objects):
            raise TypeError("its key is not a string, or a part of made_with is not an object")
        if spec.key != key:
            raise CacheError(f"it hashes to {spec.key[:16]}, not to its key {key[:16]}")
    except (OSError, CacheError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(
            f"{path}: not a valid specification ({error}); remove {folder} and extract again"
        ) from error
    return spec, layout, made_with


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _checked(name: str, value: object, kind: Any) -> Any:
    """Return a JSON value as a field of type ``kind`` has it; raises CacheError for a value of another type."""
    if kind == tuple[int, ...]:
        fits = isinstance(value, list) and all(type(number) is int for number in value)
        value = tuple(value) if isinstance(value, list) else value
    elif kind == Mapping[str, int]:
        fits = isinstance(value, dict)  # `DataSpec` checks the counts
    else:
        # A whole number may stand for a float, but a boolean for neither.
        allowed = int | float if kind is float else kind
        fits = isinstance(value, allowed) and not isinstance(value, bool)
    if not fits:
        raise CacheError(f"specification: {name} is {value!r}, which has another type")
    return value


def _plain(value: object) -> Any:
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
