"""Read pickled arrays, text and numbers without running what a pickle may contain.

Some publishers ship pickles (CIFAR's Python batches, the records in TAPE's databases). A pickle is a program: it may
call anything that can be imported. Here nothing is imported at all: the few names that a pickled array mentions are
answered with harmless stand-ins, which only remember what they are given, and every other name is an error.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

_ARRAY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")


class UnsafePickle(ValueError):
    """A pickle that mentions something other than arrays, text, numbers and containers, or that is damaged."""


class _Dtype:
    """Stands for ``numpy.dtype``: its code, checked to be of plain numbers, and its byte order."""

    def __init__(self, code: Any, *_: Any):
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code not in {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"}:
            raise UnsafePickle(f"an array of type {code!r}")
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise UnsafePickle(f"an array of byte order {order!r}")
        self.order = order

    def real(self) -> np.dtype:
        return np.dtype(self.order + self.code)


class _Array:
    """Stands for an array; its state is the shape, the type and the bytes."""

    array: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if isinstance(data, str):
            data = data.encode("latin-1")
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes) or not all(type(n) is int for n in shape):
            raise UnsafePickle("an array whose parts are not a shape, a type and bytes")
        self.array = np.frombuffer(data, dtype.real()).reshape(shape, order="F" if fortran else "C")


class _Scalar:
    """Stands for a NumPy number; it becomes an array without axes."""

    def __init__(self, dtype: Any, data: Any):
        state = (1, (), dtype, False, data)
        stand_in = _Array()
        stand_in.__setstate__(state)
        self.array = stand_in.array


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _bytes_of(text: Any, encoding: Any) -> bytes:
    """Stand for ``_codecs.encode``, by which Python 3 writes bytes into old pickles."""
    if encoding != "latin1" or not isinstance(text, str):
        raise UnsafePickle("an encoded text")
    return text.encode("latin-1")


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """Stand for the function by which the newest pickles make arrays."""
    stand_in = _Array()
    data = bytes(data) if isinstance(data, bytearray) else data
    stand_in.__setstate__((1, shape, dtype, order == "F", data))
    return stand_in


class _Ndarray:
    """Stands for the name ``numpy.ndarray``, which is only ever an argument."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_ins = {"_reconstruct": _reconstruct, "ndarray": _Ndarray, "dtype": _Dtype, "scalar": _Scalar}
        if module in _ARRAY_MODULES and name in stand_ins:
            return stand_ins[name]
        if module in {"numpy.core.numeric", "numpy._core.numeric"} and name == "_frombuffer":
            return _from_buffer
        if (module, name) == ("_codecs", "encode"):
            return _bytes_of
        raise UnsafePickle(f"the name {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickle("a reference to something outside")


def read_pickle(data: bytes) -> Any:
    """Return what a pickle holds: arrays of plain numbers, text, bytes, numbers, and containers of these.

    Text of Python 2 comes as bytes.

    Raises
    ------
    UnsafePickle
        If it mentions anything else, or is no complete pickle.
    """
    try:
        return _plain(_Reader(io.BytesIO(data), encoding="bytes").load())
    except UnsafePickle:
        raise
    # A damaged pickle makes the reader raise nearly anything, MemoryError included.
    except Exception as error:
        raise UnsafePickle(f"no complete pickle ({type(error).__name__}: {error})") from None


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > 20:
        raise UnsafePickle("containers nested more than 20 deep")
    if isinstance(value, (_Array, _Scalar)):
        return value.array
    if isinstance(value, dict):
        return {_plain(k, depth + 1): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v, depth + 1) for v in value)
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return value
    raise UnsafePickle(f"a {type(value).__name__}")
