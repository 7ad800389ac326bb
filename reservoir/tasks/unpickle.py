"""Read pickled arrays, text and numbers without running what a pickle may contain.

Some publishers ship pickles (CIFAR's Python batches, the records in TAPE's databases). A pickle is a program: it may
call anything that can be imported. Here nothing is imported at all: the few names that a pickled array mentions are
answered with harmless stand-ins, which only remember what they are given, and every other name is an error. Nor can it
take more time or memory than its own length warrants: the machine is Python's, which keeps what is remembered in a
dict, and knows only the instructions that plain values need.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

import numpy as np

_ARRAY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")

_CODES = {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"}

_INSTRUCTIONS = (
    "PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT "
    "BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE "
    "BINUNICODE8 EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS GET BINGET "
    "LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE"
)
"""What plain values and arrays need, beside what `_Reader` does itself."""

# Python's own machine, as the one in C sets aside what a pickle asks it to remember, up to all memory there is.
_Machine: Any = vars(pickle)["_Unpickler"]


class UnsafePickle(ValueError):
    """A pickle that mentions something other than arrays, text, numbers and containers, or that is damaged."""


class _Dtype:
    """Stands for ``numpy.dtype``: its code, checked to be of plain numbers, and its byte order."""

    def __init__(self, code: Any, *_: Any):
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code not in _CODES:
            raise UnsafePickle("an array that is not of plain numbers")
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if not isinstance(order, str) or order not in ("<", ">", "|", "="):
            raise UnsafePickle("an array of an unknown byte order")
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


def _scalar(dtype: Any, data: Any) -> _Array:
    """Stand for the function that makes a NumPy number; it becomes an array without axes."""
    return _from_buffer(data, dtype, (), "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _bytes_of(text: Any, encoding: Any) -> bytes:
    """Stand for ``_codecs.encode``, by which Python 3 writes bytes into old pickles."""
    if not isinstance(text, str) or not isinstance(encoding, str) or encoding != "latin1":
        raise UnsafePickle("an encoded text")
    return text.encode("latin-1")


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """Stand for the function by which the newest pickles make arrays."""
    stand_in = _Array()
    data = bytes(data) if isinstance(data, bytearray) else data
    stand_in.__setstate__((1, shape, dtype, isinstance(order, str) and order == "F", data))
    return stand_in


class _Ndarray:
    """Stands for the name ``numpy.ndarray``, which is only ever an argument."""


class _Dict(dict):
    """A dict of text and numbers, as the hash of nested tuples takes time without end."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, (str, bytes, int)):
            raise UnsafePickle("a key that is no text and no number")
        super().__setitem__(key, value)


class _Reader(_Machine):
    dispatch: ClassVar[dict[int, Any]] = {
        code: _Machine.dispatch[code] for code in (getattr(pickle, name)[0] for name in _INSTRUCTIONS.split())
    }

    def find_class(self, module: str, name: str) -> Any:
        stand_ins = {"_reconstruct": _reconstruct, "ndarray": _Ndarray, "dtype": _Dtype, "scalar": _scalar}
        if module in _ARRAY_MODULES and name in stand_ins:
            return stand_ins[name]
        if module in {"numpy.core.numeric", "numpy._core.numeric"} and name == "_frombuffer":
            return _from_buffer
        if (module, name) == ("_codecs", "encode"):
            return _bytes_of
        raise UnsafePickle(f"the name {module}.{name}")

    def load_build(self) -> None:
        """Give a stand-in its state, and nothing else an attribute."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], (_Dtype, _Array)):
            raise UnsafePickle("a state of something that is no array")
        self.stack[-1].__setstate__(state)

    def load_bytearray8(self) -> None:
        """Read bytes that can change, no more than there are."""
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def load_empty_dict(self) -> None:
        """Make an empty dict."""
        self.append(_Dict())

    def load_dict(self) -> None:
        """Make a dict of keys and values."""
        items = self.pop_mark()
        self.append(_Dict())
        for place in range(0, len(items), 2):
            self.stack[-1][items[place]] = items[place + 1]

    dispatch |= {
        pickle.BUILD[0]: load_build,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        pickle.EMPTY_DICT[0]: load_empty_dict,
        pickle.DICT[0]: load_dict,
    }


def read_pickle(data: bytes) -> Any:
    """Return what a pickle holds: plain arrays, text (of Python 2 as bytes), numbers, and containers of these."""
    try:
        value = _Reader(io.BytesIO(data), encoding="bytes").load()
        # Each value takes a byte or more; a pickle that has more of them repeats itself, perhaps without end.
        return _plain(value, [len(data)])
    except UnsafePickle:
        raise
    # A damaged pickle makes the reader raise nearly anything, MemoryError included.
    except Exception as error:
        said = " ".join(str(error).split())[:100]
        raise UnsafePickle(f"no complete pickle ({type(error).__name__}: {said})") from None


def _plain(value: Any, left: list[int], depth: int = 0) -> Any:
    left[0] -= 1
    if depth > 20 or left[0] < 0:
        raise UnsafePickle("containers nested more than 20 deep, or in each other over and over")
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {key: _plain(member, left, depth + 1) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(member, left, depth + 1) for member in value)
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return value
    raise UnsafePickle(f"a {type(value).__name__}")
