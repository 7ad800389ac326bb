"""Checks of the JSON values and of the arrays of a file that anyone may have written."""

import reprlib
import sys
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

R = TypeVar("R")


def from_json(kind: type[R], values: Mapping[str, Any]) -> R:
    """Return a dataclass of these values; raise `ValueError` or `TypeError` for other names or types of fields."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not fits(value, hints.get(name)):
            raise ValueError(f"it has the wrong value {reprlib.repr(value)} of {name!r}")
    return kind(**values)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value has an annotated type; numbers are finite, and integers fit in 64 bits."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, kind) for kind in inner)
    if origin in (list, tuple):
        sized = value if isinstance(value, list | tuple) else None
        kinds = inner[:1] * len(sized or ()) if origin is list or inner[-1] is ... else inner
        return sized is not None and len(kinds) == len(sized) and all(map(fits, sized, kinds))
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(fits(item, inner[1]) for item in value.values())
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max  # not NaN either
    return hint is Any or (type(value) is hint and (hint is not int or abs(value) < 2**63))


def check_arrays(arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ValueError` unless arrays or tensors have these names and shapes, and are finite floats."""
    different = arrays.keys() ^ shapes.keys()
    if different:
        raise ValueError(f"{min(different)} is {'missing' if min(different) in shapes else 'not expected'}")
    for name, array in arrays.items():
        kind, shape = str(array.dtype).removeprefix("torch."), tuple(array.shape)
        if shape != shapes[name] or kind not in ("float32", "float64"):
            raise ValueError(f"{name} is {kind} of the shape {shape}, not float32 of {shapes[name]}")
        if not np.isfinite(np.asarray(array)).all():
            raise ValueError(f"{name} holds NaN or infinity")
