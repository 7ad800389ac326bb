"""Matrix products of readouts: numpy on the CPU, or torch on a device such as a GPU.

    with products_on(TorchArithmetic("cuda")):
        found = sweep(train, valid, targets)

Moments, scores and kernel matrices are written once, in terms of the few operations of an `Arithmetic`. Data is moved
to the device block by block, and results are numpy arrays. Both use the same precision: float64 for moments and kernel
matrices, the features' own for scores, and never TF32, whose 10-bit mantissa would cost three digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import get_blas_funcs

_add_square: Any = get_blas_funcs("syrk", dtype=np.float64)


@dataclass(frozen=True)
class NumpyArithmetic:
    """numpy on the CPU."""

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> np.ndarray:
        """Return an array of zeros."""
        return np.zeros(shape, dtype)

    def put(self, x: np.ndarray) -> np.ndarray:
        """Return the array itself."""
        return x

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the matrix product."""
        return a @ b

    def add_square(self, total: np.ndarray, x: np.ndarray) -> None:
        """Add x'x to the lower triangle, in place: the transposes of C arrays are in BLAS's own order."""
        _add_square(1.0, x.T, beta=1.0, c=total.T, overwrite_c=1)

    def fetch(self, array: np.ndarray) -> np.ndarray:
        """Return the array itself."""
        return array


@dataclass(frozen=True)
class TorchArithmetic:
    """torch on a device with float64, by its name in torch: ``cuda``, ``cuda:1``."""

    device: str

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> Any:
        """Return a tensor of zeros."""
        import torch

        return torch.zeros(shape, dtype=getattr(torch, np.dtype(dtype).name), device=self.device)

    def put(self, x: np.ndarray) -> Any:
        """Return a tensor on the device, of the same dtype."""
        import torch

        return torch.tensor(np.ascontiguousarray(x), device=self.device)

    def product(self, a: Any, b: Any) -> Any:
        """Return the matrix product, computed without TF32 whatever the process has set."""
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            return torch.matmul(a, b)
        finally:
            torch.set_float32_matmul_precision(before)

    def add_square(self, total: Any, x: Any) -> None:
        """Add x'x, in float64, which TF32 does not touch."""
        total.addmm_(x.T, x)

    def fetch(self, array: Any) -> np.ndarray:
        """Return the tensor as a numpy array."""
        return array.cpu().numpy()


Arithmetic = NumpyArithmetic | TorchArithmetic

_current: ContextVar[Arithmetic] = ContextVar("arithmetic", default=NumpyArithmetic())  # noqa: B039, it is frozen


def arithmetic() -> Arithmetic:
    """Return the arithmetic of the innermost `products_on`, by default `NumpyArithmetic`."""
    return _current.get()


@contextmanager
def products_on(chosen: Arithmetic) -> Iterator[None]:
    """Use one arithmetic for all readouts that are fitted inside the ``with`` block."""
    token = _current.set(chosen)
    try:
        yield
    finally:
        _current.reset(token)
