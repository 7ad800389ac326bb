"""Compute items in a thread before they are needed."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item], depth: int = 1) -> Generator[Item]:
    """Yield the items in order; another thread computes up to ``depth`` of them in advance.

    An error is raised in place of its item. Close the iterator to end the thread if you do not read
    all items.
    """
    iterator, end = iter(items), object()
    thread = ThreadPoolExecutor(1)
    made = deque[Future[Any]](thread.submit(next, iterator, end) for _ in range(depth))
    try:
        while (item := made.popleft().result()) is not end:
            made.append(thread.submit(next, iterator, end))
            yield item
            del item  # frees its memory before the next is awaited
    finally:
        thread.shutdown(cancel_futures=True)
