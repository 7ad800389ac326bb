"""Trying a reservoir: extracting a candidate's columns and judging them, here or in another process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reservoir_cache import FeatureStore, aside
from threadpoolctl import threadpool_limits

from reservoir.errors import InputError
from reservoir.options import ClusterOptions, ExtractOptions
from reservoir.readouts import metric_name
from reservoir.tasks import TASKS
from reservoir_pipelines.extraction.shares import with_full_paths
from reservoir_pipelines.fitting.sources import ColumnSource
from reservoir_pipelines.output import notify, silenced
from reservoir_pipelines.tuning.judge import KNOWN, Judge, best_of, column_kernels
from reservoir_pipelines.tuning.trials import Trial
from reservoir_pipelines.tuning.where import Where
from reservoir_pipelines.workers import map_pieces

_alone = threading.Lock()  # a pass takes blocks out of the backbone, so that no other may run in this process meanwhile


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A candidate by its number, the rows of a split that it is judged on, and what that will take at most.

    ``columns`` are those known to be best; without them the best are found.
    """

    number: int
    limit: int | None
    columns: tuple[str, ...] | None
    work: float
    seconds: float


@dataclass
class Attempts:
    """The data of a search, and the labels and folds of so many rows."""

    where: Where
    clock: Callable[[], float] = time.monotonic
    judges: dict[int | None, Judge] = field(default_factory=dict)

    def make(self, attempt: Attempt) -> Trial | None:
        """Extract train and valid and judge the columns; None where these data refuse the candidate."""
        started = self.clock()
        chosen = self.where.candidate(attempt.number)
        try:
            with silenced(), aside():
                extraction = self.where.extract(chosen, attempt.limit, KNOWN)
        except InputError:
            if not attempt.number:
                raise
            return None
        extracted = self.clock()
        judge = self.judge(extraction.store, attempt.limit, extraction.columns[0])
        kernels = column_kernels(extraction.store, attempt.columns or extraction.columns, judge)
        known = attempt.columns
        columns, found = (known, judge(kernels.values())) if known else best_of(kernels, judge)
        ended = self.clock()
        return Trial(
            number=attempt.number,
            limit=attempt.limit,
            title=chosen.title,
            entry=extraction.entry.name,
            columns=columns,
            metric=metric_name(self.where.prepared.task.classes),
            score=found.score,
            loss=found.loss,
            alpha=found.alpha,
            samples=len(judge.y),
            work=attempt.work,
            seconds=ended - started,
            spent=ended - started,
            judging=ended - extracted,
        )

    def judge(self, store: FeatureStore, limit: int | None, column: str) -> Judge:
        """Return the labels and folds of so many rows, as a column has them."""
        if limit not in self.judges:
            self.judges[limit] = Judge.of(ColumnSource(store, column), self.where.prepared.task.classes)
        return self.judges[limit]


@dataclass(frozen=True)
class Share:
    """A search as another process repeats it: it has to come to the same ``digest``, with so many threads."""

    task: str
    options: ExtractOptions
    digest: str
    threads: int | None


_opened: dict[str, Attempts] = {}


def share_attempts(
    attempts: Attempts,
    wanted: Sequence[Attempt],
    cluster: ClusterOptions,
    left: float,
    done: Callable[[Trial | None], None],
) -> None:
    """Have processes make attempts that end within the seconds that are left; each trial is told when it is there."""
    import torch

    where = attempts.where
    threads = max(1, torch.get_num_threads() // cluster.workers) if cluster.workers else None
    own = Path(where.task).exists() and where.task not in TASKS
    task, options = str(Path(where.task).resolve()) if own else where.task, with_full_paths(where.options, where.root)
    share, until = Share(task, options, where.digest, threads), time.time() + left
    tasks = [(share, attempt, until) for attempt in wanted]
    _opened[where.digest] = attempts  # this process has the data already
    try:
        map_pieces(make_there, tasks, workers=cluster.workers, scheduler=cluster.scheduler, done=done, notify=notify)
    finally:
        del _opened[where.digest]


def make_there(share: Share, attempt: Attempt, until: float) -> Trial | None:
    """Make an attempt in whichever process this is; None also where it would end later than a time of day."""
    with _alone, threadpool_limits(share.threads):
        if time.time() + attempt.seconds > until:
            return None
        if share.digest not in _opened:
            _opened.clear()
            _opened[share.digest] = Attempts(_open(share))
        return _opened[share.digest].make(attempt)


def _open(share: Share) -> Where:
    """Open the data of a search in this process, and refuse other data or another model."""
    with silenced():
        where = Where.of(share.task, share.options)
    if where.digest != share.digest:
        raise InputError(
            "a worker comes to another search: its model, data, precision or version of this program differ; give all "
            "workers the same, and name --device"
        )
    return where
