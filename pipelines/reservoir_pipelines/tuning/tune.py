"""The stage ``tune``: which reservoirs suit some data, within a budget of time, by held-out training rows alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reservoir.option_fields import as_group, seconds_of, typed
from reservoir.options import (
    CacheOptions,
    ClusterOptions,
    DeviceOptions,
    ExtractOptions,
    FitOptions,
    PlaceOptions,
    RowOptions,
    ShapeOptions,
    TuneOptions,
)
from reservoir.plan import RAW as RAW_COLUMN
from reservoir.readouts import HeldOutScore
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.fitting.results import Fit
from reservoir_pipelines.output import Record, notify, silenced
from reservoir_pipelines.tuning.budget import Budget
from reservoir_pipelines.tuning.joining import choose
from reservoir_pipelines.tuning.reserve import Reserve
from reservoir_pipelines.tuning.search import FINALISTS, RAW, Search
from reservoir_pipelines.tuning.trials import Trial, Trials
from reservoir_pipelines.tuning.where import Where


@dataclass(frozen=True, kw_only=True)
class Tuning(Record):
    """What `tune` found.

    Parameters
    ----------
    trials : tuple of Trial
        Every reservoir that was tried, best first, of the last round.
    valid_score, raw_valid_score : float
        Of the winner and of the raw input on held-out rows of train and valid, by which they were chosen; None where
        the raw input cannot be judged beside.
    metric : {"accuracy", "R²"}
        What scores are.
    fit : Fit
        The winner, fitted to train and valid, with the one score on test.
    commands : tuple of str
        They make the same entries and the same readout.
    folder : Path
        Where the trials are kept: another call goes on from them.
    seconds : float
        Wall time of this call.
    """

    trials: tuple[Trial, ...]
    valid_score: float
    raw_valid_score: float | None
    metric: str
    fit: Fit
    commands: tuple[str, ...]
    folder: Path
    seconds: float


def tune(
    task: str,
    options: TuneOptions,
    shape: ShapeOptions,
    source: RowOptions,
    place: PlaceOptions,
    cluster: ClusterOptions,
    *,
    show: Callable[[Trial], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Search for the reservoirs that suit some data, and fit a readout to the best of them side by side.

    The default and draws around it, by the form of the data, are extracted one by one and judged by cross-validation on
    train and valid; where rows are many on few of them first, and the best quarter on more. The best are joined as long
    as held-out rows gain by more than noise. Test is neither read nor run through a reservoir until the winner is
    fitted, and scored once. All features stay in the cache; a search that was stopped goes on, and one that has ended
    does too, with a larger budget.
    """
    budget = Budget(seconds_of(options.budget), clock=clock)
    where = Where.of(task, ExtractOptions(**vars(shape), **vars(source), **vars(place)))
    for note in where.prepared.notes():
        notify(note)
    trials = Trials(where.folder())
    budget.spent = trials.seconds()
    search = Search(where, budget, trials, show, cluster)
    reserve = Reserve(search, options.join, clock() - budget.started)
    ranked = search.run(reserve.seconds, options.trials)
    default = next(trial for trial in ranked if not trial.number)
    finalists = [default, *(trial for trial in ranked[:FINALISTS] if trial.number)]
    with silenced():
        kernels = search.kernels(finalists)
    judge = search.attempts.judges[default.limit]
    most = reserve.joined()
    goes_on = lambda: budget.allows(reserve.final(most))  # noqa: E731
    chosen, found = choose(kernels, judge, most, goes_on)
    raw = judge([kernels[RAW]]).score if RAW in kernels else None
    limit = None if budget.allows(reserve.final(len(chosen))) else default.limit
    fitted, commands = _finish(where, {t.number: t for t in finalists}, chosen, found, limit, cluster)
    return Tuning(
        trials=tuple(ranked),
        valid_score=found.score,
        raw_valid_score=raw,
        metric=default.metric,
        fit=fitted,
        commands=commands,
        folder=trials.path.parent,
        seconds=round(clock() - budget.started, 3),
    )


def _finish(
    where: Where,
    trials: dict[int, Trial],
    chosen: Sequence[int],
    found: HeldOutScore,
    limit: int | None,
    cluster: ClusterOptions,
) -> tuple[Fit, tuple[str, ...]]:
    """Extract the winners whole, fit their columns side by side, and return the commands that do the same."""
    numbers = [number for number in chosen if number != RAW] or [0]
    if limit:
        notify(f"the budget allows only {limit:,} rows of each split; give a larger --budget to use all rows")
    entries = [where.extract(where.candidate(number), limit, None, cluster) for number in numbers]
    names: list[str] = []
    for number in chosen:
        prefix = f"{numbers.index(number) + 1}:" if number != RAW and len(numbers) > 1 else ""
        names += [RAW_COLUMN] if number == RAW else [prefix + column for column in trials[number].columns]
    options = FitOptions(columns="+".join(names), alphas=f"{found.alpha!r}:{found.alpha!r}:1")
    device, place = as_group(where.options, DeviceOptions), as_group(where.options, CacheOptions)
    shared = replace(options, workers=cluster.workers, scheduler=cluster.scheduler)
    fitted = fit([entry.entry for entry in entries], shared, device)
    said = [where.typed(number, limit) for number in numbers]
    keys = [entry.store.entry.key[:16] for entry in entries]
    return fitted, (*said, typed("fit", keys, options, device, place))
