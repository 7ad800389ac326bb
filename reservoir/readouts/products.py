"""Matrix products of the readouts, with NumPy on the CPU or with torch on a device, and reports of their work."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs
from threadpoolctl import LibController, ThreadpoolController

_add_square: Any = get_blas_funcs("syrk", dtype=np.float64)

# For products of this many multiplications, and for factorisations of a matrix of this many rows, BLAS uses all its
# threads. In smaller ones they mostly wait for each other: the readouts of 1,078 digits took 10 s in two
# threads and 7 s in one.
LARGE_PRODUCT = 1e9
LARGE_MATRIX = 4096

# What is called with the work of each large product, such as a line of progress.
_listeners: ContextVar[tuple[Callable[[float], object], ...]] = ContextVar("listeners", default=())


@cache
def _blas_libraries() -> list[LibController]:
    """Return the BLAS libraries of this process, whose numbers of threads can be set; they are looked up once."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


def blas_threads(*, many: bool) -> AbstractContextManager[None]:
    """Return a context in which BLAS and LAPACK use one thread, or with ``many`` all of their threads."""
    return nullcontext() if many else _one_thread()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let BLAS use one thread within the context, and afterwards as many as before."""
    # ThreadpoolController.limit describes every library on each call, which took a fifth of the time of small fits.
    threads_before = [(library, library.num_threads) for library in _blas_libraries()]
    to_limit = [(library, threads) for library, threads in threads_before if threads != 1]
    for library, _ in to_limit:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in to_limit:
            library.set_num_threads(threads)


def report_work(multiplications: float) -> None:
    """Tell all listeners that work is done; its unit is one multiplication in a product of large matrices."""
    for listener in _listeners.get():
        listener(multiplications)


@contextmanager
def listening(listener: Callable[[float], object]) -> Iterator[None]:
    """Call ``listener`` with all work that is reported within the context."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """Features (m, w) as a cache stores them: half as many bytes go to a device, which decodes them.

    A feature is its stored value, as float32, plus an offset. NumPy functions take these features as an array, and
    decode them on the CPU (`__array__`).
    """

    values: np.ndarray  # (m, w) of float16 or float32, or the bits of bfloat16 as uint16
    offsets: np.ndarray | None = None  # (offsets, w) of float32, which rows share; None if nothing is added
    # (m,) of int64: the number of each row's offset; None if all rows have the same one.
    offset_of_row: np.ndarray | None = None

    dtype = np.dtype(np.float32)  # of the decoded features

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of rows and of features."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return self.values.nbytes

    def __getitem__(self, rows: slice | np.ndarray) -> "StoredFeatures":
        """Return some of the rows."""
        offset_of_row = None if self.offset_of_row is None else self.offset_of_row[rows]
        return StoredFeatures(self.values[rows], self.offsets, offset_of_row)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the features (m, w) as float32, or as another type."""
        decoded = self.on("cpu").numpy()
        return decoded.astype(dtype or decoded.dtype, copy=bool(copy))

    def on(self, device: str) -> Any:
        """Return the features (m, w) as a tensor of float32 on a device, without waiting for the copy."""
        import torch

        # NumPy has no bfloat16, and torch reads its bits as integers with a sign.
        is_bfloat16 = self.values.dtype == np.uint16
        stored = uploaded(self.values.view(np.int16) if is_bfloat16 else self.values, device)
        if is_bfloat16:
            stored = stored.view(torch.bfloat16)
        features = stored.float()
        if self.offsets is None:
            return features
        offsets = uploaded(self.offsets, device)
        if self.offset_of_row is not None:
            offsets = offsets[uploaded(self.offset_of_row, device)]
        return features + offsets


def uploaded(x: np.ndarray, device: str) -> Any:
    """Return an array as a tensor on a device.

    To a GPU it is copied from page-locked memory while the host goes on. On the CPU the tensor may share the memory of
    the array, so nothing may be written into it.
    """
    import torch

    from reservoir.devices import pinned

    target = torch.device(device)
    # torch refuses arrays with negative strides, and warns of read-only ones.
    host = torch.from_numpy(np.require(x, requirements=["C_CONTIGUOUS", "WRITEABLE"]))
    return pinned(host, target).to(target, non_blocking=True)


@dataclass(frozen=True)
class Arithmetic:
    """Matrix products with NumPy on the CPU, or with torch on a ``device`` named as in torch, such as ``cuda:1``.

    Data is moved to the device block by block. Moments and kernel matrices are in float64, and the
    systems of all penalties are solved where they are, too. Scores are in the precision of the
    features, and never in TF32, whose 10-bit mantissa would cost three digits.
    """

    device: str | None = None

    def put(self, x: Any) -> Any:
        """Return an array as a tensor of the same dtype on the device; without a device, return it as it is.

        A tensor is returned as it is, too.
        """
        if self.device is None or not isinstance(x, np.ndarray):
            return x
        import torch

        return torch.tensor(np.ascontiguousarray(x), device=self.device)

    def features(self, x: np.ndarray | StoredFeatures) -> Any:
        """Return features (m, w) as a tensor on the device, or as an array without one; they must not be written to."""
        if self.device is None:
            return np.asarray(x)
        return x.on(self.device) if isinstance(x, StoredFeatures) else uploaded(x, self.device)

    def fetch(self, x: Any) -> np.ndarray:
        """Return a tensor of any device as a NumPy array, and an array itself."""
        return x if isinstance(x, np.ndarray) else x.cpu().numpy()

    def product(self, a: Any, b: Any) -> Any:
        """Return the matrix product of ``a`` (m, n) and ``b`` (n, k); `products_on` disables TF32."""
        multiplications = math.prod(a.shape) * b.shape[-1]
        # At the start, so that a line of progress includes the product that runs while it is printed.
        report_work(multiplications)
        if self.device is not None:
            return a @ b
        with blas_threads(many=multiplications >= LARGE_PRODUCT):
            return a @ b

    def add_square(self, total: Any, x: Any) -> None:
        """Add x'x to the lower triangle of ``total`` (w, w) in place, for ``x`` (m, w); both are of float64.

        The upper triangle is arbitrary afterwards; `fill_upper` sets it.
        """
        report_work(math.prod(x.shape) * len(total) / 2)  # half of the product, because it is symmetric
        if self.device is not None:
            total.addmm_(x.T, x)
            return
        # BLAS reads matrices in Fortran order: a C array as its transpose x', and the transpose of a C array as x. So
        # neither is copied. With ``trans`` 0, syrk adds a a' of its argument a, and with 1 it adds a'a. It fills the
        # upper triangle in Fortran order, which is the lower one in C order.
        a, trans = (x.T, 0) if x.flags.c_contiguous else (x, 1)
        with blas_threads(many=x.size * len(total) >= LARGE_PRODUCT):
            _add_square(1.0, a, beta=1.0, c=total.T, trans=trans, overwrite_c=1)


_current: ContextVar[Arithmetic] = ContextVar("arithmetic", default=Arithmetic())  # noqa: B039, it is frozen
arithmetic = _current.get
"""``arithmetic()`` returns the `Arithmetic` of the innermost `products_on`, by default that of NumPy."""


@contextmanager
def products_on(chosen: Arithmetic) -> Iterator[None]:
    """Fit all readouts within the context with the ``chosen`` arithmetic; on a device, TF32 is off there."""
    without_tf32: AbstractContextManager[None] = nullcontext()
    if chosen.device is not None:
        from reservoir.devices import exact_products  # imports torch

        without_tf32 = exact_products()
    token = _current.set(chosen)
    try:
        with without_tf32:
            yield
    finally:
        _current.reset(token)


def move_to_device_of(x: np.ndarray, matrix: Any) -> Any:
    """Return an array as a tensor on the device of a matrix, with its dtype; unchanged if the matrix is a NumPy array.

    The array can then be multiplied with the matrix.
    """
    return x if isinstance(matrix, np.ndarray) else matrix.new_tensor(x)


def fill_upper(matrix: Any) -> Any:
    """Mirror the lower triangle of a matrix (n, n) into the upper one, in place, and return the matrix."""
    if not isinstance(matrix, np.ndarray):  # a tensor
        return matrix.tril_().add_(matrix.tril(-1).T)
    # Row by row, because a mask of the triangle would take more memory.
    for row in range(1, len(matrix)):
        matrix[:row, row] = matrix[row, :row]
    return matrix
