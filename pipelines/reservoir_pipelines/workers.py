"""Many independent pieces of work: in this process, in local processes, or on a dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from reservoir.errors import InputError

PAYS_OFF = 5.0
"""Seconds of work below which starting processes costs more than they save (``benchmarks/prepare.py``)."""

PATIENCE = 30
"""Seconds in which a scheduler has to answer."""


def map_pieces(
    work: Callable[..., Any],
    arguments: Iterable[tuple],
    *,
    workers: int = 0,
    scheduler: str | None = None,
    done: Callable[[Any], None] = lambda result: None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Any]:
    """Return ``work(*a)`` for each tuple of arguments, in their order.

    ``work`` is a function of a module, as it is sent to other processes by name, and must give the same whenever it is
    called again: what was in hand when a worker died, or the connection to a scheduler broke, is done once more. With 0
    or 1 workers the work is done here, one piece after the other, and also where the time of the first piece says that
    processes would not pay off. The address of a ``scheduler`` (``tcp://host:port``) goes before ``workers``. ``done``
    is given each result when it is there, ``notify`` what a person should know meanwhile.
    """
    tasks = list(arguments)
    if scheduler is not None:
        return _on_cluster(work, tasks, scheduler, done, notify)
    if workers > 1 and len(tasks) > 1:
        return _in_processes(work, tasks, workers, done)
    return _here(work, tasks, {}, done)


def _here(
    work: Callable[..., Any], tasks: list[tuple], found: dict[int, Any], done: Callable[[Any], None]
) -> list[Any]:
    """Do what is not found yet, and return all."""
    for number, task in enumerate(tasks):
        if number not in found:
            found[number] = work(*task)
            done(found[number])
    return [found[number] for number in range(len(tasks))]


def _in_processes(work: Callable[..., Any], tasks: list[tuple], workers: int, done: Callable[[Any], None]) -> list[Any]:
    import dask
    from dask.callbacks import Callback
    from dask.delayed import delayed

    found: dict[int, Any] = {}

    def keep(key: str, result: Any, *_: Any) -> None:
        found[int(key.rpartition("-")[2])] = result
        done(result)

    started = time.perf_counter()
    keep("piece-0", work(*tasks[0]))
    if (time.perf_counter() - started) * (len(tasks) - 1) < PAYS_OFF:
        return _here(work, tasks, found, done)
    settings: dict[str, Any] = {"scheduler": "processes", "initializer": end_with_parent, "chunksize": 1}
    while workers > 1 and len(found) < len(tasks):
        left = [number for number in range(len(tasks)) if number not in found]
        graph = [delayed(work)(*tasks[number], dask_key_name=f"piece-{number}") for number in left]
        try:
            with child_environment(), Callback(posttask=keep):
                dask.compute(*graph, num_workers=workers, **settings)  # pyright: ignore
        except BrokenProcessPool:
            workers //= 2  # one was killed, by the system for want of memory, say: fewer need less of it
    return _here(work, tasks, found, done)


@contextmanager
def child_environment(**more: str) -> Iterator[None]:
    """Set environment variables for the processes that are started within the context.

    ``PYTHONSAFEPATH`` keeps the current folder off their import path: a file ``multiprocessing.py`` that lies beside
    somebody's data must not be executed.
    """
    wanted = {"PYTHONSAFEPATH": "1", **more}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def run_processes(work: Callable[..., Any], arguments: Sequence[tuple]) -> None:
    """Call ``work(*a)`` for each tuple of arguments in a process of its own, and wait until all have ended.

    The processes share the cores, unless ``OMP_NUM_THREADS`` is set, and end when this process does.
    """
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // len(arguments)))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work_until_parent_ends, args=(work, each)) for each in arguments]
    with child_environment(OMP_NUM_THREADS=threads):
        for process in processes:
            process.start()
    for process in processes:
        process.join()


def _work_until_parent_ends(work: Callable[..., Any], arguments: tuple) -> None:
    end_with_parent()
    work(*arguments)


def end_with_parent() -> None:
    """Have this process end when its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_cluster(
    work: Callable[..., Any],
    tasks: list[tuple],
    address: str,
    done: Callable[[Any], None],
    notify: Callable[[str], None],
) -> list[Any]:
    try:
        from distributed import CancelledError, Client, KilledWorker, as_completed
        from distributed.comm.core import CommClosedError
    except ImportError:
        raise InputError("a scheduler needs a package: pip install distributed; or give --workers N") from None
    found: dict[int, Any] = {}
    while len(found) < len(tasks):
        try:
            client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            told = f"no dask scheduler answers at {address} ({error})"
            since = f"; {len(found)} of {len(tasks)} pieces are done, and stay so" if found else ""
            raise InputError(f"{told}{since}; start one, or give --workers N") from None
        with client:
            if not client.scheduler_info()["workers"]:
                notify(f"{address}: the scheduler has no worker yet; it is waited for")
            left = [number for number in range(len(tasks)) if number not in found]
            numbers = {client.submit(work, *tasks[number], pure=False): number for number in left}
            try:
                for future in as_completed(numbers, loop=client.loop):
                    found[numbers[future]] = result = future.result()
                    done(result)
            except KilledWorker as error:
                raise InputError(f"{address}: {error}; for want of memory, say: give each worker more") from None
            except (CancelledError, CommClosedError):  # what was submitted is forgotten with the connection
                notify(f"{address}: the connection broke; what was under way is asked for again")
    return [found[number] for number in range(len(tasks))]
