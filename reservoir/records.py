"""Checks of the JSON values and of the arrays of a file that anyone may have written."""

import reprlib
import sys
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

R = TypeVar("R")


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
