"""Checks of the JSON values and of the arrays of a file that anyone may have written.

Limits on what stored bytes may grow to keep a small damaged file from filling the memory.
"""

import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from reservoir.errors import InputError

R = TypeVar("R")

MAX_EXPANSION = 200
"""Largest expansion of stored bytes that is accepted; random bits stored as float64 expand 60 times."""

FREE_BYTES = 2**27  # arrays up to this size may be compressed by any factor: rows of zeros are harmless


def from_json(kind: type[R], values: Mapping[str, Any]) -> R:
    """Return an instance of the dataclass ``kind`` with these values.

    Raise `ValueError` for a name that is no field or a value of another type, and `TypeError` if a field is missing.
    """
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not fits(value, hints.get(name)):  # nothing fits the hint None of an unknown name
            raise ValueError(f"it has the wrong value {reprlib.repr(value)} of {name!r}")
    return kind(**values)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value has an annotated type; numbers are finite, and integers fit in 64 bits."""
    origin = get_origin(hint)  # of ``list[float]``, list; None for a type without arguments
    if origin is not None:
        return _fits_alternatives_or_items(value, origin, get_args(hint))
    # `type` instead of `isinstance`, because True is an instance of int.
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max  # not NaN either
    if hint is int:
        return type(value) is int and abs(value) < 2**63
    return hint is Any or type(value) is hint


def _fits_alternatives_or_items(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    """Return whether a value has a type with arguments, such as ``int | None`` or ``list[float]``.

    ``origin`` is the type without its arguments, such as ``list``, and ``inner`` are the arguments.
    """
    if origin in (Union, UnionType):
        return any(fits(value, alternative) for alternative in inner)
    if origin in (dict, Mapping):  # the keys of a JSON object are always strings
        _, value_hint = inner
        return isinstance(value, dict) and all(fits(item, value_hint) for item in value.values())
    is_hint_of_list = origin in (list, tuple)
    if not is_hint_of_list or not isinstance(value, list | tuple):
        return False
    # list[T] and tuple[T, ...] have one type for any number of items, and tuple[S, T] one for each item.
    is_of_any_length = origin is list or inner[-1] is ...
    hints = (inner[0],) * len(value) if is_of_any_length else inner
    return len(hints) == len(value) and all(map(fits, value, hints))


def check_arrays(arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ValueError` unless arrays or tensors have these names and shapes, and are finite floats."""
    unmatched = sorted(arrays.keys() ^ shapes.keys())  # names in only one of the two
    if unmatched:
        name = unmatched[0]
        raise ValueError(f"{name} is {'missing' if name in shapes else 'not expected'}")
    for name, array in arrays.items():
        dtype = str(array.dtype).removeprefix("torch.")  # of an array or a tensor
        shape = tuple(array.shape)
        if shape != shapes[name] or dtype not in ("float32", "float64"):
            raise ValueError(
                f"{name} is {dtype} of the shape {shape}, not float32 or float64 of {shapes[name]}"
            )
        if not np.isfinite(np.asarray(array)).all():
            raise ValueError(f"{name} holds NaN or infinity")


def check_expansion(path: Path, name: str, size: int, stored: int) -> None:
    """Raise `InputError` if the array ``name`` would unpack to ``size`` bytes, far more than the ``stored`` bytes."""
    if size > FREE_BYTES and size > MAX_EXPANSION * stored:
        raise InputError(
            f"{path}: array {name!r} claims {size} bytes, but only {stored} are stored",
            "write the file again, without compression",
        )


def check_padding(where: str, lengths: np.ndarray, token_bytes: int) -> None:
    """Raise `InputError` if the longest sequence makes the padded array far larger than the values in it.

    ``lengths`` (rows,) count the tokens of each sequence, and ``token_bytes`` the bytes of a token. The message begins
    with ``where``, the file.
    """
    rows = len(lengths)
    longest, tokens = int(lengths.max()), int(lengths.sum())
    padded_bytes = rows * longest * token_bytes
    if padded_bytes > FREE_BYTES and padded_bytes > MAX_EXPANSION * tokens * token_bytes:
        longest_row = int(np.argmax(lengths))
        raise InputError(
            f"{where}, row {longest_row}: {longest} tokens, to which all {rows} rows would be padded; together they "
            f"have only {tokens} tokens",
            "cut the row, or leave it out",
        )
