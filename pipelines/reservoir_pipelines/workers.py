"""Independent pieces of work, in this process, in local processes, or on a dask cluster.

Workers of a cluster that would compute other results are left out. A worker computes other results if its code differs:
`program_versions` has a checksum of each package of this program, and the versions of its libraries.
"""

import hashlib
import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir.errors import InputError, as_input_error, first_line
from reservoir_pipelines.output import count_text, notify

if TYPE_CHECKING:
    from distributed import Client

PAYS_OFF = 5.0
"""Seconds of work below which starting processes takes longer than it saves (``benchmarks/host.py prepare``)."""

PATIENCE = 30  # seconds to wait for the answer of a scheduler
CHECK = 2.0  # seconds between questions to the scheduler about its workers
QUEUED = 2  # pieces for each thread of a worker: one that it computes, and one that waits for it
SAME_MACHINES = "give all machines the same commit, libraries and files, and pass --compute"
PACKAGES = ("reservoir", "reservoir_cache", "reservoir_pipelines")
CODE = (".py", ".toml")  # suffixes of the files that decide what is computed


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


class UnfitWorker(InputError):
    """Raised in a worker whose results would differ from those of the process that started the command."""


@dataclass(frozen=True)
class Refusal:
    """A worker's answer in place of a result: its address, and how its results would differ."""

    worker: str
    problem: str


def connect(address: str) -> "Client":
    """Return a client of the scheduler at an address, for the caller to close; raise `InputError` if none answers."""
    with as_input_error(
        "--scheduler needs the package distributed", "install distributed, or pass --workers N"
    ):
        from distributed import Client
    try:
        return Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no dask scheduler answers at {address} ({error})", "start one, or pass --workers N"
        ) from None


def compute_on_cluster(
    work: Callable[..., Any], tasks: Mapping[int, tuple], address: str
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the result of each task as soon as a worker has computed it.

    A task has a number and the arguments of ``work``. If the connection to the scheduler is lost, the unfinished
    tasks are submitted again, so that ``work`` may be called more than once for a task.
    """
    unfinished = dict(tasks)
    while unfinished:
        with connect(address) as client:
            # Imported only now: `connect` says in one line if the package is not installed.
            from distributed import CancelledError, KilledWorker
            from distributed.comm.core import CommClosedError

            try:
                for number, result in _results(Crew(client, address), work, unfinished):
                    del unfinished[number]
                    yield number, result
            except KilledWorker as error:
                raise InputError(
                    f"{address}: {error}", "if memory ran out, give each worker more memory"
                ) from None
            except (CancelledError, CommClosedError):
                # When the connection closes, the scheduler forgets the pieces that were submitted. The next turn of
                # the loop connects again.
                notify(f"{address}: the connection was lost; submitting unfinished pieces again")


def _results(
    crew: "Crew", work: Callable[..., Any], tasks: Mapping[int, tuple]
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the result of each task; raise `InputError` if no worker may compute them."""
    from distributed import Future, wait

    waiting = deque(tasks)  # numbers of tasks
    running: dict[Future[Any], tuple[int, set[str]]] = {}  # number of the task, workers that may compute it
    while waiting or running:
        crew.update()
        # Take back the pieces of lost workers: the scheduler would keep a piece for the workers that it may run on,
        # even if all of them have ended.
        for future, (number, workers) in list(running.items()):
            if not workers & crew.names.keys():
                del running[future]
                future.cancel()
                waiting.appendleft(number)
        # Few pieces are submitted at a time, so that later ones can go to workers that join.
        while waiting and len(running) < QUEUED * crew.threads:
            number = waiting.popleft()
            workers = set(crew.names)
            # Without ``pure=False``, dask would return the result of an earlier call with equal arguments.
            future = crew.client.submit(
                attempt, work, tasks[number], pure=False, workers=sorted(workers), allow_other_workers=False
            )
            running[future] = number, workers
        if not running:
            time.sleep(CHECK)
            continue
        # Wait until a piece has ended, but ask for workers again after ``CHECK`` seconds.
        with suppress(TimeoutError), crew.client.as_current():
            wait(list(running), timeout=CHECK, return_when="FIRST_COMPLETED")
        for future in [future for future in running if future.done()]:
            number, _ = running.pop(future)
            result = future.result()
            if isinstance(result, Refusal):  # another worker has to compute the piece
                crew.leave_out(result.worker, result.problem)
                waiting.appendleft(number)
            else:
                yield number, result
    # The scheduler may have given the last pieces of a lost worker to others since the last question.
    crew.report_lost(crew.present())


def attempt(work: Callable[..., Any], task: tuple) -> Any:
    """Return the result of a piece, or a `Refusal` if this worker would compute another one."""
    from distributed import get_worker

    try:
        return work(*task)
    except UnfitWorker as error:
        return Refusal(get_worker().address, str(error))


@dataclass
class Crew:
    """The workers of a scheduler that compute what this process would compute."""

    client: "Client"
    scheduler: str  # its address, for messages
    names: dict[str, str] = field(default_factory=dict)  # name of each worker by its address
    # Reason why a worker is left out, because its results would differ, by its address.
    left_out: dict[str, str] = field(default_factory=dict)
    threads: int = 0  # of all workers in ``names``
    _updated: float = 0.0  # when the scheduler was asked last, by the monotonic clock
    _waiting_was_reported: bool = False  # since there was a worker

    def update(self) -> None:
        """Ask for the present workers, compare the programs of new ones with this one, and report changes.

        Raise `InputError` if there are workers, but each of them would compute other results.
        """
        # At most one question in ``CHECK`` seconds, unless there is no worker: then the caller pauses by itself.
        if self.names and time.monotonic() < self._updated + CHECK:
            return
        present = self.present()
        self._updated = time.monotonic()
        self.report_lost(present)
        self._check_new_workers(present)
        self.threads = sum(present[worker]["nthreads"] for worker in self.names)
        reasons = [self.left_out[worker] for worker in present if worker in self.left_out]
        if reasons and not self.names:
            raise InputError(f"{self.scheduler}: no worker can be used", reasons[0])
        if not present and not self._waiting_was_reported:
            notify(f"{self.scheduler}: waiting for a worker")
        self._waiting_was_reported = not present

    def _check_new_workers(self, present: Mapping[str, Any]) -> None:
        """Add the new workers among those ``present`` to the names, but leave out those with another program."""
        new_workers = [
            worker for worker in present if worker not in self.names.keys() | self.left_out.keys()
        ]
        if not new_workers:
            return
        # Without this annotation, type checkers take the answers of `Client.run` for a coroutine.
        run: Callable[..., Any] = self.client.run
        # Each worker answers with its versions, or with the exception that it raised.
        for worker, answer in run(program_versions, workers=new_workers, on_error="return").items():
            if isinstance(answer, OSError):
                continue  # it has ended meanwhile; if not, it is new again and is asked next time
            # `leave_out` removes a worker from the names, so it must be among them first.
            self.names[worker] = str(present[worker]["name"])
            if problem := difference(answer):
                self.leave_out(worker, f"worker {self.names[worker]}: {problem}; {SAME_MACHINES}")

    def present(self) -> Mapping[str, Any]:
        """Ask the scheduler for its workers, each with its name and its number of threads, by address."""
        # Without ``n_workers``, distributed 2025.5 to 2025.12 returns five workers at most.
        return self.client.scheduler_info(n_workers=-1)["workers"]

    def report_lost(self, present: Mapping[str, Any]) -> None:
        """Forget the workers that are no longer ``present``, and say of each that it was lost."""
        for worker in [worker for worker in self.names if worker not in present]:
            name = self.names.pop(worker)
            others = (
                count_text(len(self.names), "other worker") if self.names else "the next worker that joins"
            )
            notify(
                f"{self.scheduler}: worker {name} was lost with the pieces that it was computing; "
                f"the job goes on with {others}"
            )

    def leave_out(self, worker: str, problem: str) -> None:
        """Send no more pieces to a worker, and say why, once."""
        if worker in self.names:
            del self.names[worker]
            self.left_out[worker] = problem
            notify(f"{self.scheduler}: continuing without {problem}")


def difference(answer: "Mapping[str, str] | Exception") -> str:
    """Return how a worker's answer to `program_versions` differs from that of this process; empty if it does not."""
    if isinstance(answer, Exception):
        return f"it cannot import this program ({first_line(answer)})"
    for name, own_version in program_versions().items():
        if answer.get(name) != own_version:
            other_version = answer.get(name, "another version")
            return f"{name} is {other_version} there, but {own_version} where the command was started"
    return ""


@cache  # a process keeps the code that it has imported, even if the files change later
def program_versions() -> dict[str, str]:
    """Return a checksum of each package of this program, and the versions of the libraries that affect its results."""
    packages = {package: f"SHA-256 {package_digest(package)[:16]}" for package in PACKAGES}
    return packages | {name: version(name) for name in ("torch", "transformers")}


def package_digest(package: str) -> str:
    """Return the SHA-256 of the names and contents of a package's Python and TOML files, sorted by relative path."""
    spec = find_spec(package)
    assert spec and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix in CODE}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
