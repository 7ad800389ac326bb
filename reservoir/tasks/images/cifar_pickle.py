"""Batches of CIFAR-10 as Python 2 pickled them, read without running anything.

Python's own unpickler would call what a file names, and a ten-byte pickle can make it take gigabytes for its memo,
whatever names are allowed. `pickletools` only splits a pickle into instructions. Those that build lists, tuples, dicts,
texts and numbers are followed here; what should be called is noted as a `Call`, and an array is known by its form.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reservoir.errors import first_line

MARK = object()

Stack = list[Any]


class Call(NamedTuple):
    """What a pickle asks to be called, and with which arguments; nothing is called."""

    name: Any
    arguments: Any


def _to_mark(stack: Stack) -> Stack:
    items = []
    while (item := stack.pop()) is not MARK:
        items.append(item)
    return items[::-1]


def _set(stack: Stack, items: Stack) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        name = _as_bytes(key)
        name = name.decode("latin-1") if isinstance(name, bytes) else name
        if type(name) is not str:  # hashing or printing nested tuples may take for ever
            raise ValueError("a key that is no text")
        stack[-1][name] = value


STEPS: dict[str, Callable[[Stack, Any], Any]] = {
    "PROTO": lambda stack, argument: None,
    "STOP": lambda stack, argument: None,
    "MARK": lambda stack, argument: stack.append(MARK),
    "NONE": lambda stack, argument: stack.append(None),
    "NEWFALSE": lambda stack, argument: stack.append(False),
    "NEWTRUE": lambda stack, argument: stack.append(True),
    "EMPTY_LIST": lambda stack, argument: stack.append([]),
    "EMPTY_DICT": lambda stack, argument: stack.append({}),
    "EMPTY_TUPLE": lambda stack, argument: stack.append(()),
    "TUPLE1": lambda stack, argument: stack.append((stack.pop(),)),
    "TUPLE2": lambda stack, argument: stack.append((stack.pop(-2), stack.pop())),
    "TUPLE3": lambda stack, argument: stack.append((stack.pop(-3), stack.pop(-2), stack.pop())),
    "TUPLE": lambda stack, argument: stack.append(tuple(_to_mark(stack))),
    "APPEND": lambda stack, argument: stack[-2].append(stack.pop()),
    "APPENDS": lambda stack, argument: (items := _to_mark(stack)) and stack[-1].extend(items),
    "SETITEM": lambda stack, argument: _set(stack, [stack.pop(-2), stack.pop()]),
    "SETITEMS": lambda stack, argument: (items := _to_mark(stack)) and _set(stack, items),
    "REDUCE": lambda stack, argument: stack.append(Call(stack.pop(-2), stack.pop())),
    "BUILD": lambda stack, argument: stack.append(Call(stack.pop(-2), stack.pop())),
    **dict.fromkeys(
        ["GLOBAL", "BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE"],
        lambda stack, argument: stack.append(argument),
    ),
}
"""What each instruction does to the stack; all others are refused."""


def read_pickle(data: bytes) -> dict[str, Any]:
    """Return the entries of a pickled dict: numbers, texts, lists of these, and arrays of bytes.

    Raises
    ------
    ValueError
        If the pickle is damaged, or is anything else.
    """
    stack: Stack = []
    memo: dict[Any, Any] = {}
    try:
        for instruction, argument, _ in pickletools.genops(data):
            if instruction.name in {"BINPUT", "LONG_BINPUT"}:
                memo[argument] = stack[-1]
            elif instruction.name in {"BINGET", "LONG_BINGET"}:
                stack.append(memo[argument])
            else:
                STEPS[instruction.name](stack, argument)
        (entries,) = stack
        return {name: _as_array(value) for name, value in dict.items(entries)}
    except Exception as error:  # a damaged pickle lets all kinds of steps fail
        raise ValueError(f"no pickle of a batch: {type(error).__name__}: {first_line(error)}") from None


def _as_bytes(value: Any) -> Any:
    """Return the bytes that Python 3 writes as a call of ``_codecs.encode``; other values as they are."""
    match value:
        case Call("_codecs encode", (str(text), "latin1")):
            return text.encode("latin-1")
    return value


def _as_array(value: Any) -> Any:
    """Return the array of bytes that nested calls describe; other values as they are."""
    match value:
        case Call(Call(str(), _), (1, shape, Call(Call(str(), ("u1" | b"u1", *_)), _), False, data)):
            raw = _as_bytes(data)
            return np.frombuffer(raw.encode("latin-1") if isinstance(raw, str) else raw, np.uint8).reshape(shape)
    return value
