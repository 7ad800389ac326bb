"""Matrix products of readouts: numpy on the CPU, or torch on a device such as a GPU.

    with products_on(Arithmetic("cuda")):
        found = sweep(train, valid, targets)

Moments, scores and kernel matrices are written once, in terms of the few operations of `Arithmetic`. Data is moved
to the device block by block, and results are numpy arrays. Both use the same precision: float64 for moments and kernel
matrices, the features' own for scores, and never TF32, whose 10-bit mantissa would cost three digits.
"""

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
class Arithmetic:
    """numpy on the CPU, or torch on a ``device`` with float64, by its name in torch: ``cuda``, ``cuda:1``."""

    device: str | None = None

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> Any:
        """Return an array of zeros, or a tensor on the device."""
        zeros = np.zeros(shape, dtype)
        return zeros if self.device is None else self.put(zeros)

    def put(self, x: np.ndarray) -> Any:
        """Return an array as a tensor on the device, of the same dtype; the array itself without a device."""
        if self.device is None:
            return x
        import torch

        return torch.tensor(np.ascontiguousarray(x), device=self.device)

    def fetch(self, x: Any) -> np.ndarray:
        """Return a tensor as a numpy array."""
        return x if self.device is None else x.cpu().numpy()

    def product(self, a: Any, b: Any) -> Any:
        """Return the matrix product, computed without TF32 whatever the process has set."""
        if self.device is None:
            return a @ b
        import torch

        from reservoir.devices import exact_products

        with exact_products():
            return torch.matmul(a, b)

    def add_square(self, total: Any, x: Any) -> None:
        """Add x'x, of float64, to the lower triangle of a total, in place."""
        if self.device is None:
            _add_square(1.0, x.T, beta=1.0, c=total.T, overwrite_c=1)  # the transpose of a C array is in BLAS's order
        else:
            total.addmm_(x.T, x)


_current: ContextVar[Arithmetic] = ContextVar("arithmetic", default=Arithmetic())  # noqa: B039, it is frozen


def arithmetic() -> Arithmetic:
    """Return the arithmetic of the innermost `products_on`, by default numpy's."""
    return _current.get()


@contextmanager
def products_on(chosen: Arithmetic) -> Iterator[None]:
    """Use one arithmetic for all readouts that are fitted inside the ``with`` block."""
    token = _current.set(chosen)
    try:
        yield
    finally:
        _current.reset(token)
