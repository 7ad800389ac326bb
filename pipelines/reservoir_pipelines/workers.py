"""Many independent pieces of work: in this process, in local processes, or on a dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from reservoir.errors import InputError

PAYS_OFF = 5.0
"""Seconds of work below which starting processes costs more than they save (``benchmarks/prepare.py``)."""


def map_pieces(
    work: Callable[..., Any],
    arguments: Iterable[tuple],
    *,
    workers: int = 0,
    scheduler: str | None = None,
    done: Callable[[Any], None] = lambda result: None,
) -> list[Any]:
    """Return ``work(*a)`` for each tuple of arguments, in their order.

    ``work`` is a function of a module, as it is sent to other processes by name, and must give the same whenever it is
    called again: a worker that dies has its pieces done once more. With 0 or 1 workers the work is done here, one piece
    after the other, and also where the time of the first piece says that processes would not pay off. The address of a
    ``scheduler`` (``tcp://host:port``) goes before ``workers``. ``done`` is given each result when it is there.
    """
    tasks = list(arguments)
    if scheduler is not None:
        return _on_cluster(work, tasks, scheduler, done)
    if workers > 1 and len(tasks) > 1:
        return _in_processes(work, tasks, workers, done)
    return [_counted(work, task, done) for task in tasks]


def _counted(work: Callable[..., Any], task: tuple, done: Callable[[Any], None]) -> Any:
    result = work(*task)
    done(result)
    return result


def _in_processes(work: Callable[..., Any], tasks: list[tuple], workers: int, done: Callable[[Any], None]) -> list[Any]:
    import dask
    from dask.callbacks import Callback
    from dask.delayed import delayed

    started = time.perf_counter()
    first = _counted(work, tasks[0], done)
    rest = tasks[1:]
    if (time.perf_counter() - started) * len(rest) < PAYS_OFF:
        return [first, *(_counted(work, task, done) for task in rest)]
    graph = [delayed(work, pure=False)(*task) for task in rest]
    settings = {"scheduler": "processes", "num_workers": workers, "initializer": end_with_parent}
    try:
        with Callback(posttask=lambda _key, result, *_: done(result)):
            return [first, *dask.compute(*graph, **settings)]  # pyright: ignore
    except BrokenProcessPool:
        # A worker was killed, by the system for want of memory, say; one process needs the least of it.
        return [first, *(work(*task) for task in rest)]


def end_with_parent() -> None:
    """Have this worker end when its parent has, however that ended: nobody is left who would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_cluster(work: Callable[..., Any], tasks: list[tuple], address: str, done: Callable[[Any], None]) -> list[Any]:
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise InputError("a scheduler needs a package: pip install distributed; or give --workers N") from None
    try:
        client = Client(address, timeout=30, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no dask scheduler answers at {address} ({error}); start one, or give --workers N") from None
    with client:
        futures = [client.submit(work, *task, pure=False) for task in tasks]
        for _, result in as_completed(futures, loop=client.loop, with_results=True):
            done(result)
        return client.gather(futures)  # pyright: ignore[reportReturnType]
