"""The stage ``tune``: a search for reservoirs within a time budget, by scores on held-out training rows."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir import options as opt
from reservoir.option_fields import seconds_of, typed
from reservoir.plan import RAW
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.fitting.results import Fit
from reservoir_pipelines.output import Record, as_json, notify
from reservoir_pipelines.tuning.judge import join
from reservoir_pipelines.tuning.search import AT_LEAST, RAW_NUMBER, ReservoirTrial, Search, SearchData

FINALISTS = 8  # candidates that may be joined, besides the default and the raw input


@dataclass(frozen=True, kw_only=True)
class Tuning(Record):
    """The result of `tune`.

    Parameters
    ----------
    trials : tuple of ReservoirTrial
        The candidates of the last round, the best first.
    tried : int
        Number of candidates that were tried, on any number of rows.
    valid_score, default_valid_score, raw_valid_score : float
        Scores by which the winner was chosen, on held-out rows of train and valid: of the winner, of the default, and
        of the raw input (None if it cannot be compared).
    metric : {"accuracy", "R²"}
        The metric of the scores.
    fit : Fit
        The winner, fitted to train and valid, with its score on test.
    commands : tuple of str
        Commands that reproduce the entries and the readout.
    folder : Path
        Folder of the trials, from which another call continues.
    seconds : float
        Wall time of this call.
    """

    trials: tuple[ReservoirTrial, ...]
    tried: int
    valid_score: float
    default_valid_score: float
    raw_valid_score: float | None
    metric: str
    fit: Fit
    commands: tuple[str, ...]
    folder: Path
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the result on test under the names that `fit` and `train` use."""
        final = {
            "test_score": self.fit.best.test_score,
            "evaluation": self.fit.evaluation,
            "readout": self.fit.saved,
        }
        return as_json(vars(self) | final)


def tune(
    task: str,
    options: opt.TuneOptions,
    shape: opt.ShapeOptions,
    source: opt.RowOptions,
    place: opt.PlaceOptions,
    cluster: opt.ClusterOptions,
    result: opt.OutOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
    started: float | None = None,
) -> Tuning:
    """Search for the reservoirs that suit a data set, within a budget that begins at ``started``; see `api.tune`."""
    started = clock() if started is None else started
    data = SearchData.read(task, opt.ExtractOptions(**vars(shape), **vars(source), **vars(place)))
    notify(*data.prepared.notes)
    search = Search(data, seconds_of(options.budget) - (clock() - started), options.join, cluster, clock)
    ranked = search.run(options.trials)
    tried = len({trial.number for trial in search.trials.values()})
    if tried < AT_LEAST and not options.trials:
        notify(
            f"the budget allowed only {tried} candidates; give a larger --budget, or fewer rows with --limit"
        )
    default = next(trial for trial in ranked if trial.number == 0)
    finalists = [default, *[trial for trial in ranked if trial.number][:FINALISTS]]
    kernels, judge = search.kernels(finalists)
    most = search.joined()
    chosen, found = join(kernels, judge, most, lambda: search.final_seconds(most) <= search.left)
    limit = search.final_limit(len(chosen), default.limit)
    if limit:
        notify(
            f"the budget allows only {limit:,} rows of each split; give a larger --budget to use all rows"
        )
    columns = {RAW_NUMBER: (RAW,)} | {trial.number: trial.columns for trial in finalists}
    numbers = [number for number in chosen if number != RAW_NUMBER] or [0]
    entries = [data.extract(number, limit, None, cluster) for number in numbers]
    prefixes = {number: f"{place}:" for place, number in enumerate(numbers, start=1) if len(numbers) > 1}
    names = [prefixes.get(number, "") + column for number in chosen for column in columns[number]]
    fitting = opt.FitOptions(
        columns="+".join(names), alphas=f"{found.alpha!r}:{found.alpha!r}:1", out=result.out
    )
    keys = [entry.store.entry.key[:16] for entry in entries]
    extracting = [typed("extract", [task], data.options_of(number, limit)) for number in numbers]
    return Tuning(
        trials=tuple(ranked),
        tried=tried,
        valid_score=found.score,
        default_valid_score=default.score,
        raw_valid_score=judge([kernels[RAW_NUMBER]]).score if RAW_NUMBER in kernels else None,
        metric=default.metric,
        fit=fit([entry.entry for entry in entries], fitting, place),
        commands=(*extracting, typed("fit", keys, fitting, place)),
        folder=data.folder,
        seconds=round(clock() - started, 3),
    )
