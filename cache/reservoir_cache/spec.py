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
"""Version of the file format, which FORMAT.md describes."""

BLOCK_BYTES = 2**24
"""Size of a shard in bytes: many small files are slow to write, and a killed run loses the current block."""

SPEC_FILE = "spec.json"

STORES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""The data types on disk, and the bytes of a value in each."""

MOMENTS = "moments"  # folder of an entry with its derived arrays (see `derived`)
INPUT = "input"  # folder of an entry with the arrays of its input layer (see `derived`)
RESERVED = (INPUT, MOMENTS, "runs")
"""Folders of an entry that hold no split, so that no split may have their names.

The records of processes at work lie in ``runs`` (see `locks`).
"""

NAME_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The form of all names that are parts of a path in the cache."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of a specification. Fields that have their default are left out of its JSON, and so of the key.

    Optional fields were added over time, and keys of entries that were made before must not change.
    """

    # Fields that this version does not know, which are part of the key all the same.
    more: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def from_json(cls, name: str, values: object) -> Self:
        """Return the part called ``name`` from its JSON; raises CacheError for missing fields and other types."""
        known_fields = {item.name: item for item in fields(cls) if item.name != "more"}
        required = [item.name for item in known_fields.values() if _is_required(item)]
        if not isinstance(values, dict) or not {*required} <= values.keys():
            raise CacheError(
                f"specification: {name} must be a mapping with {', '.join(required)}, not {values!r}"
            )
        arguments = {
            key: _checked(f"{name}.{key}", values[key], item.type)
            for key, item in known_fields.items()
            if key in values
        }
        more = {key: value for key, value in values.items() if key not in known_fields}
        return cls(**arguments, more=more)

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

    digest: str  # of the data; for imported features without their data, of ``origin`` and of the labels
    rows: Mapping[str, int]  # number of rows of each split, at least 1
    # digest of the data that imported features come from, if only labels came with them; None otherwise
    origin: str | None = None

    def __post_init__(self) -> None:
        """Check the splits and their numbers of rows; raises CacheError if one is invalid."""
        # A copy, so that the caller's mapping can change. A frozen dataclass allows no plain assignment.
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

    family: str  # name of the architecture, such as gpt2
    digest: str  # of the weights; for imported features, of the features
    gelu: str | None = None  # how GELU's tanh form is computed; None for models without it
    device: str | None = None  # "cuda" if a GPU computed the features; None for a CPU
    compiled: str | None = None  # "blocks" if compiled blocks and poolings computed them; None otherwise


@dataclass(frozen=True, kw_only=True)
class InitSpec(_Part):
    """Where the frozen weights come from."""

    kind: str  # such as pretrained, random or imported
    seed: int  # of random weights; 0 for others


@dataclass(frozen=True, kw_only=True)
class InputSpec(_Part):
    """The fixed input layer, and how a sequence is cut into tokens."""

    kind: str  # such as gaussian, native or imported
    seed: int  # of a random layer; 0 for others
    gain: float  # scale of the layer
    patch: int  # values of a token
    stride: int  # values from the start of a token to that of the next
    dilations: tuple[int, ...] = (1,)  # steps between the values of a token; several concatenate windows
    pad: str = "valid"  # "valid": windows inside the sequence, or "same": centred at each step
    normalise: str = "channel"  # how values are scaled before they enter the layer
    # SHA-256 of the files of a model's own input layer (kind "native"); None if it has no such file.
    tokenizer: str | None = None
    processor: str | None = None
    embeddings: str | None = None
    template: str | None = None  # of the chat template; None if the texts are not chats
    # How texts that are longer than the model reads at once are read; None if there are none.
    long: str | None = None
    # "left out" if rows are words or tokens, and tokens that only mark the space before a word are none; else None.
    space_marks: str | None = None

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file of a native input, by the name of its field."""
        digests = {
            "tokenizer": self.tokenizer,
            "processor": self.processor,
            "embeddings": self.embeddings,
            "template": self.template,
        }
        return {name: digest for name, digest in digests.items() if digest is not None}


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
    padding: str  # the padding and mask rule
    compute: str  # precision of the forward pass
    store: str  # data type on disk, one of `STORES`
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Check the task's name and ``store``; raises CacheError if one is invalid."""
        # A copy in JSON types, as it is read back. A frozen dataclass allows no plain assignment.
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
        required = names - {"format"}
        has_valid_fields = isinstance(content, dict) and required <= content.keys() <= names
        if not has_valid_fields:
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
        """The key of the entry: SHA-256 of the canonical JSON, 64 hexadecimal digits."""
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

    # Rows of one forward pass. Later runs keep this number, because it changes the last bits of features.
    batch_rows: int
    block_rows: int = 256  # rows of one shard
    # Consecutive rows of a block that are computed together and share an offset. The argument 0 stands for all rows of
    # the block; the field is from 1 to ``block_rows``.
    offset_rows: int = 0

    def __post_init__(self) -> None:
        """Check that all fields are positive numbers, and replace 0 in ``offset_rows``; raises CacheError if not."""
        for name, value in vars(self).items():
            least = 0 if name == "offset_rows" else 1
            if type(value) is not int or value < least:  # a boolean is an int to isinstance
                raise CacheError(
                    f"layout: {name} must be a whole number of at least {least}, not {value!r}"
                )
        # No offset is shared by two blocks. A frozen dataclass allows no plain assignment.
        offset_rows = min(self.offset_rows or self.block_rows, self.block_rows)
        object.__setattr__(self, "offset_rows", offset_rows)

    def to_dict(self) -> dict[str, int]:
        """Return the fields as they are stored in the entry.

        ``offset_rows``, which old versions refuse, is left out if a block has one offset, which readers assume then.
        """
        values = dict(vars(self))
        if self.offset_rows == self.block_rows:
            del values["offset_rows"]
        return values

    def count(self, rows: int) -> int:
        """Return the number of blocks of a split with this number of rows."""
        return -(-rows // self.block_rows)  # rounded up: the last block may be short

    def block(self, rows: int, block: int) -> tuple[int, int]:
        """Return the row range [low, high) of one block of a split with this number of rows."""
        low = block * self.block_rows
        return low, min(low + self.block_rows, rows)

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        """Return the row ranges [low, high) of the blocks of a split with this number of rows."""
        return [self.block(rows, block) for block in range(self.count(rows))]


def rows_per_block(row_bytes: int, unit: int, most: int, block_bytes: int | None = None) -> int:
    """Return how many rows of ``row_bytes`` bytes a block of ``block_bytes`` holds, by default `BLOCK_BYTES`.

    The number is a multiple of ``unit``, and at most ``most`` rows, but at least one unit.
    """
    block_bytes = BLOCK_BYTES if block_bytes is None else block_bytes
    rows = min(block_bytes // max(row_bytes, 1), most)
    units = max(1, rows // unit)
    return units * unit


def canonical_json(value: object) -> str:
    """Return the canonical JSON text of a value; raises CacheError for anything but JSON types and finite numbers."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def check_name(name: object, what: str) -> str:
    """Return a name that is safe as a part of a path; raises CacheError, which calls it ``what``, for any other."""
    if not isinstance(name, str) or not NAME_FORM.fullmatch(name):
        raise CacheError(
            f"{what} {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    return name


def read_spec(folder: Path) -> tuple[Spec, Layout, dict[str, Any]]:
    """Return the specification, the layout and ``made_with`` from an entry's ``spec.json``.

    Raises CacheError if the file is absent or damaged, or has another format or key.
    """
    path = folder / SPEC_FILE
    # Check the format before anything else in the file is used.
    try:
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
        spec = Spec.from_json(content["spec"])
        layout = Layout(**content["layout"])
        key = content["key"]
        made_with = content["made_with"]
        # These parts of made_with are optional, and programs that read them need objects.
        must_be_objects = (
            made_with,
            made_with.get("call", {}),
            made_with.get("kept", {}),
            made_with.get("reservoir", {}),
        )
        if not isinstance(key, str) or not all(isinstance(value, dict) for value in must_be_objects):
            raise TypeError("its key is not a string, or a part of made_with is not an object")
        if spec.key != key:
            raise CacheError(f"it hashes to {spec.key[:16]}, not to its key {key[:16]}")
    except (OSError, CacheError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(
            f"{path}: not a valid specification ({error}); remove {folder} and extract again"
        ) from error
    return spec, layout, made_with


def _is_required(item: Field[Any]) -> bool:
    """Return whether a field of a dataclass has no default."""
    return item.default is MISSING and item.default_factory is MISSING


def _checked(name: str, value: object, kind: Any) -> Any:
    """Return a JSON value in the type ``kind`` of its field; raises CacheError for a value of another type.

    ``name`` is the name of the field in the message.
    """
    if kind == tuple[int, ...]:
        has_type = isinstance(value, list) and all(type(number) is int for number in value)
        value = tuple(value) if isinstance(value, list) else value
    elif kind == Mapping[str, int]:
        has_type = isinstance(value, dict)  # `DataSpec` checks the counts
    else:
        # A whole number may stand for a float, but a boolean, which is an int to isinstance, for neither.
        allowed = int | float if kind is float else kind
        has_type = isinstance(value, allowed) and not isinstance(value, bool)
    if not has_type:
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
    """Return the number that a decimal with a point or an exponent stands for; an int if it is whole."""
    value = float(text)
    return int(value) if value.is_integer() else value
