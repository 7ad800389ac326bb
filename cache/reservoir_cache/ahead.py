"""Compute items in a thread before they are asked for."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item], depth: int = 1) -> Generator[Item]:
    """Yield the items, which another thread makes in order, up to ``depth`` of them before they are asked for.

    An error of the thread is raised where its item would be. Close the iterator if it is left early: the thread then
    ends with the item that it is making.
    """
    iterator, end = iter(items), object()
    thread = ThreadPoolExecutor(1)
    made = deque[Future[Any]](thread.submit(next, iterator, end) for _ in range(depth))
    try:
        while (item := made.popleft().result()) is not end:
            made.append(thread.submit(next, iterator, end))
            yield item
            del item  # it may be large
    finally:
        thread.shutdown(cancel_futures=True)
