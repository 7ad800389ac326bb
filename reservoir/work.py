"""The work of a computation: code that multiplies large matrices reports it, and a caller may show it as progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listeners: ContextVar[tuple[Callable[[float], object], ...]] = ContextVar("listeners", default=())


def report_work(multiplications: float) -> None:
    """Report that work is done, in multiplications of numbers in a product of large matrices."""
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
