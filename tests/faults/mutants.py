"""Mutants of TOML and JSON values: each value is replaced by values of other types, or removed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import date
from functools import reduce
from typing import Any

Keys = tuple[str | int, ...]
"""The keys and positions that lead to a value."""

OTHER_TYPES: dict[type, tuple[Any, ...]] = {
    str: (3, True, [[]], {}),
    bool: (3, "x", [[]], {}),
    int: ("x", True, [[]], {}),
    float: ("x", True, [[]], {}),
    list: (3, "x", True, {}),
    dict: (3, "x", True, [[]]),
    type(None): (3, "x", True, [[]]),
}


def paths(value: Any, path: Keys = ()) -> Iterator[Keys]:
    """Yield the path to every value inside a value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def value_at(value: Any, path: Keys) -> Any:
    return reduce(lambda inner, key: inner[key], path, value)


def replaced(value: Any, path: Keys, new: Any) -> Any:
    """Return a copy with another value at a path."""
    whole = copy.deepcopy(value)
    value_at(whole, path[:-1])[path[-1]] = new
    return whole


def removed(value: Any, path: Keys) -> Any:
    """Return a copy without the value at a path."""
    whole = copy.deepcopy(value)
    del value_at(whole, path[:-1])[path[-1]]
    return whole


def toml(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return value.isoformat() if isinstance(value, date) else json.dumps(value)
