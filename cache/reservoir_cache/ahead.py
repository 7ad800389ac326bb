"""Compute items in a thread before they are asked for."""

from collections.abc import Generator, Iterable
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item], depth: int = 1) -> Generator[Item]:
    """Yield the items, which another thread makes in order, up to ``depth`` of them before they are asked for.

    An error of the thread is raised where its item would be. Close the iterator if it is left early: the thread then
    ends with the item that it is making.
    """
    made: SimpleQueue[tuple[Item] | BaseException | None] = SimpleQueue()
    room, left = Semaphore(depth - 1), False

    def make() -> None:
        try:
            for item in items:
                made.put((item,))
                del item  # it may be large
                room.acquire()
                if left:
                    return
            made.put(None)
        except BaseException as error:  # raised in the thread that asks
            made.put(error)

    thread = Thread(target=make, daemon=True)
    thread.start()
    try:
        while found := made.get():
            if isinstance(found, BaseException):
                raise found
            room.release()
            yield found[0]
            del found
    finally:
        left = True
        room.release()
        thread.join()
