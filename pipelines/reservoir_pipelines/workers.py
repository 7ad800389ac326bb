"""Independent pieces of work, in this process, in local processes, or on a dask cluster."""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any

from reservoir_pipelines.cluster import compute_on_cluster
from reservoir_pipelines.output import notify

PAYS_OFF = 5.0
"""Seconds of work below which starting processes takes longer than it saves (``benchmarks/host.py prepare``)."""


def map_pieces(
    work: Callable[..., Any],
    arguments: Iterable[tuple],
    *,
    workers: int = 0,
    scheduler: str | None = None,
    on_result: Callable[[Any], None] = lambda result: None,
) -> list[Any]:
    """Return ``work(*a)`` for each tuple of arguments, in their order; ``on_result`` is called with each result.

    The pieces are computed by a dask ``scheduler`` (``tcp://host:port``), by ``workers`` local
    processes, or in this process. A piece is computed again if its worker dies or the scheduler
    disconnects: the result must not depend on how often ``work`` is called.
    """
    tasks = list(arguments)
    results = dict[int, Any]()
    if scheduler is not None:
        for number, result in compute_on_cluster(work, dict(enumerate(tasks)), scheduler):
            results[number] = result
            on_result(result)
    elif workers > 1 and len(tasks) > 1:
        _in_processes(work, tasks, workers, results, on_result)
    # This process computes what is left: all pieces without workers, those that are too quick to be worth processes,
    # and those of a worker that was killed.
    for number, task in enumerate(tasks):
        if number not in results:
            results[number] = work(*task)
            on_result(results[number])
    return [results[number] for number in range(len(tasks))]


def _in_processes(
    work: Callable[..., Any],
    tasks: list[tuple],
    workers: int,
    results: dict[int, Any],
    on_result: Callable[[Any], None],
) -> None:
    """Compute pieces in local processes, and add their results by number; the caller computes the missing ones."""
    import dask
    from dask.callbacks import Callback
    from dask.delayed import delayed

    def add(number: int, result: Any) -> None:
        results[number] = result
        on_result(result)

    # The time of the first piece, which this process computes, tells whether processes are worth their start.
    started = time.perf_counter()
    add(0, work(*tasks[0]))
    seconds_of_others = (time.perf_counter() - started) * (len(tasks) - 1)
    if seconds_of_others < PAYS_OFF:
        return

    # dask names each task by a key, here "piece-" and the number, and passes it on with the result.
    def after_task(key: str, result: Any, *_: Any) -> None:
        add(int(key.removeprefix("piece-")), result)

    other_tasks = list(enumerate(tasks))[1:]
    graph = [delayed(work)(*task, dask_key_name=f"piece-{number}") for number, task in other_tasks]
    # Pieces are sent one at a time, so that no process has several left while others have none.
    settings: dict[str, Any] = {"scheduler": "processes", "initializer": end_with_parent, "chunksize": 1}
    try:
        with child_environment(), Callback(posttask=after_task):
            dask.compute(*graph, num_workers=workers, **settings)  # pyright: ignore
    except BrokenProcessPool:
        notify("a worker process was killed; this process computes the rest")  # memory may have run out


@contextmanager
def child_environment(**variables: str) -> Iterator[None]:
    """Set environment variables for the processes that are started within the context, and ``PYTHONSAFEPATH``."""
    # PYTHONSAFEPATH keeps the current folder, where downloads may include a multiprocessing.py, off their import path.
    new_values = {"PYTHONSAFEPATH": "1", **variables}
    old_values = {name: os.environ[name] for name in new_values if name in os.environ}
    os.environ.update(new_values)
    try:
        yield
    finally:
        for name in new_values:
            os.environ.pop(name, None)
        os.environ.update(old_values)


def run_processes(work: Callable[..., Any], arguments: Sequence[tuple]) -> None:
    """Call ``work(*a)`` for each tuple of arguments in a separate process, and wait until all have ended."""
    # The processes share the cores, unless the user has set the number of threads of each.
    cores_for_each = max(1, (os.cpu_count() or 1) // len(arguments))
    threads = os.environ.get("OMP_NUM_THREADS") or str(cores_for_each)
    # A forked process could hang if this process has other threads, and could not use a GPU that this process uses.
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_work_until_parent_ends, args=(work, values)) for values in arguments
    ]
    with child_environment(OMP_NUM_THREADS=threads):
        for process in processes:
            process.start()
    for process in processes:
        process.join()


def _work_until_parent_ends(work: Callable[..., Any], arguments: tuple) -> None:
    """Call ``work(*arguments)`` in a process that ends as soon as its parent has ended."""
    end_with_parent()
    work(*arguments)


def end_with_parent() -> None:
    """Start a thread that ends this process as soon as its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent  # this is a child process

    def watch() -> None:
        parent.join()
        os._exit(1)  # at once, without waiting for the thread that works

    threading.Thread(target=watch, daemon=True).start()


def process_number() -> int:
    """Return the number of this process among those that its parent started, from 1; 0 for the first process."""
    number = multiprocessing.current_process().name.rpartition("-")[2]  # a name such as SpawnProcess-2
    return int(number) if number.isdigit() else 0


def this_worker() -> str:
    """Return the name of this process for messages, which for a worker of dask is its name there."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        with suppress(ValueError):  # this process is not a worker of dask
            return f"worker {get_worker().name}"
    return f"worker {os.uname().nodename}, process {os.getpid()}"
