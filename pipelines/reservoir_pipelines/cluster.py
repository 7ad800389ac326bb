"""Independent pieces of work on a dask cluster, without its workers that would compute other results.

A worker computes other results if its code differs: `program_versions` has a checksum of each package of this program,
and the versions of its libraries.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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

PATIENCE = 30  # seconds to wait for the answer of a scheduler
CHECK = 2.0  # seconds between questions to the scheduler about its workers
QUEUED = 2  # pieces for each thread of a worker: one that it computes, and one that waits for it
REMEDY = "give all machines the same commit, libraries and files, and pass --compute"
PACKAGES = ("reservoir", "reservoir_cache", "reservoir_pipelines")
CODE = (".py", ".toml")  # suffixes of the files that decide what is computed


class UnfitWorker(InputError):
    """Raised in a worker whose results would differ from those of the process that started the command."""


@dataclass(frozen=True)
class Refusal:
    """A worker's answer in place of a result: its address, and how its results would differ."""

    worker: str
    problem: str


def compute_on_cluster(
    work: Callable[..., Any], tasks: Mapping[int, tuple], address: str
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the result of each task as soon as a worker has computed it.

    A task has a number and the arguments of ``work``. If the connection to the scheduler is lost, the unfinished
    tasks are submitted again, so that ``work`` may be called more than once for a task.
    """
    with as_input_error(
        "--scheduler needs the package distributed", "install distributed, or pass --workers N"
    ):
        from distributed import CancelledError, Client, KilledWorker
        from distributed.comm.core import CommClosedError
    unfinished = dict(tasks)
    while unfinished:
        try:
            client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no dask scheduler answers at {address} ({error})", "start one, or pass --workers N"
            ) from None
        with client:
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
                self.leave_out(worker, f"worker {self.names[worker]}: {problem}; {REMEDY}")

    def present(self) -> Mapping[str, Any]:
        """Ask the scheduler for its workers, each with its name and its number of threads, by address."""
        return self.client.scheduler_info()["workers"]

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
