"""The search: all candidates are tried on few rows, and the best ones on more rows, within a time budget."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import FeatureStore, path_below, untracked

from reservoir.backbone_names import DEFAULT_BACKBONE, full_name
from reservoir.errors import InputError
from reservoir.options import ClusterOptions, ExtractOptions, ReservoirOptions
from reservoir.plan import (
    SEGMENTS,
    SERIES_KERNEL,
    SYMBOL_KERNEL,
    VALUE_POOLINGS,
    default_layers,
    default_windows,
    kind_of,
)
from reservoir.pooling import MAX_TOKEN_FEATURES
from reservoir.random import generator
from reservoir.readouts.linear import metric_name
from reservoir.reservoir import load_model
from reservoir.tasks.task import Task, Vectors
from reservoir_pipelines.extraction.extract import Extraction, extract
from reservoir_pipelines.extraction.run import data_digest, draw_rows, plan_of
from reservoir_pipelines.files import cache_root, checked_line, read_lines, replace_file
from reservoir_pipelines.fitting.sources import KNOWN, ColumnSource, Pool
from reservoir_pipelines.output import Record, notify, score_text, silenced
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.tuning.judge import ColumnKernel, Judge, best_columns, column_kernels

RECURRENT_TOKENS = 64
SCALES = "channel", "series", "both", "differences", "differences"


def draw_candidate(
    number: int, task: Task, rows: int, width: int, *, seed: int, backbone: str | None
) -> dict[str, Any]:
    """Return a candidate by its number from 1, as options of `extract`; data and seed determine it."""
    draw = generator(seed, f"tune-{number}")
    kind, tokens = kind_of(task), task.max_tokens
    found: dict[str, Any]

    def one(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    def weights(tokens: int) -> dict[str, Any]:
        """Draw a backbone that comes with this package; recurrent ones are too slow for long sequences."""
        share = draw.random()
        if share < 0.1 and tokens <= RECURRENT_TOKENS:
            return {"backbone": "esn"}
        return {"init": "random"} if share < 0.35 else {}

    # Aligned sequences need their positions, so poolings that keep every token are included if they are not too wide.
    aligned = ["mean,tokens", "mean,segments8,tokens"] if tokens * width <= MAX_TOKEN_FEATURES else []
    if kind == "series":
        stride = default_windows(task, rows, tokens)["stride"]
        found = {"stride": stride, "pad": "same", "normalise": one(*SCALES)}
        if draw.random() < 0.75:
            patch = one(5, 7, SERIES_KERNEL, SERIES_KERNEL, 11, 15)
            found |= {"input": "kernels", "patch": patch, "dilations": "auto", "gain": one(2.0, 4.0, 6.0, 9.0, 15.0)}
        else:
            found |= {"input": "orthogonal", "patch": one(4, 8, 16, 32), "dilations": one("1", "1,4", "auto")}
            found["gain"] = one(1.41, 3.0, 6.0)
        found |= weights(-(-tokens // stride))
        layers = one("embed", "embed", "embed,block01", "embed,block01", "embed,block01,block02")
        layers = "embed,block01" if "backbone" in found else layers
        pool = ",".join([*VALUE_POOLINGS, one("segments4", SEGMENTS, SEGMENTS, "segments16")])
    else:
        if isinstance(task.form, Vectors):  # tokens themselves, such as the rows of an image
            found, layers = {"gain": one(0.3, 0.7, 1.41, 3.0, 6.0)}, "all"
            pools = ["last,mean", "mean,max,min", "last,mean,segments4", "mean,segments8", "quantiles5,segments4"]
        elif kind == "symbols" and draw.random() < 0.6:
            found, layers = default_windows(task, rows, tokens), default_layers(kind)[0]
            found |= {"patch": one(3, SYMBOL_KERNEL, 7, 9), "gain": one(3.0, 6.0, 9.0)}
            pools = ["shares13,max,min,segments8", "shares13,max,min,segments16", "quantiles9,max,min,segments4"]
        else:
            found, layers = {"input": "gaussian", "patch": 1}, default_layers(kind)[0]
            found["gain"] = one(0.35, 0.7, 1.41, 2.8, 5.6)
            pools = ["last,mean,segments8", "mean,max,min,segments4", "mean,segments8,segments16"]
        found |= weights(tokens)
        pool = "last" if task.readout_tokens > 1 else one(*pools, *aligned)
    if backbone:
        found.pop("backbone", None)
        found["backbone"] = backbone
    return found | {"seed": seed + number, "layers": layers, "pool": pool}


def title_of(candidate: dict[str, Any]) -> str:
    """Return the options of a candidate that differ from the defaults, as a short text."""
    shown = {name: value for name, value in candidate.items() if name not in ("pad", "layers", "pool")}
    plain = ("backbone", "init", "input")
    options = [str(value) if name in plain else f"{name} {value}" for name, value in shown.items()]
    return f"{', '.join(options) or 'the default'}; {candidate['layers']}"


ROUNDS = (25, 100, 400, 800)
"""Rows of each split in the rounds of the search. Kernel matrices (samples, samples) would be too large for more."""

USUAL = 400  # rows of the first round if the budget allows it
AT_LEAST = 10  # smallest number of candidates of the first round
SURVIVORS = 0.25  # share of a round's candidates that are tried again in the next one
PROBE_SHARE = 0.2  # limit of the time for measuring the cost on more rows, as a share of the time for trials
END_SHARE = 0.4  # share of the budget for the final extraction and fit; it limits the joined reservoirs
FIRST_SHARE = 0.6  # share of the remaining time for trials that a round other than the last may use
CAUTION = 1.2  # factor on the predicted cost, because the machine's load varies
CONSTANT = 0.5  # assumed share of a trial's cost that does not grow with the work: loading, files
UNKNOWN = 3.0  # factor on the predicted cost of a backbone that was not tried yet
RAW_NUMBER = -1  # number of the raw input among the candidates that may be joined
START_UP = 4.0  # seconds of the final fit on an idle machine that do not depend on its size: libraries, plots, files
MAX_DELAY = 2.5  # the largest factor on `START_UP` for a machine that also runs other programs
FIT_JUDGINGS = 2.0  # time of fitting and scoring, relative to judging a trial on the same rows
JOIN_JUDGINGS = 6.0  # time of joining, relative to judging a trial


@dataclass(frozen=True, kw_only=True)
class ReservoirTrial(Record):
    """The held-out results of a candidate's best columns, concatenated."""

    number: int  # 0 for the default
    limit: int | None  # largest number of rows of each split; None for all rows
    title: str  # the options that differ from the default
    entry: str
    columns: tuple[str, ...]
    metric: str
    score: float
    loss: float  # mean squared error
    alpha: float  # the best penalty
    samples: int  # number of held-out rows, or tokens, of train and valid
    seconds: float
    judging: float  # the part of ``seconds`` after the columns were extracted

    @property
    def merit(self) -> tuple[float, float]:
        """The rank: by score, then by smaller loss."""
        return self.score, -self.loss


def read_trials(file: Path) -> list[ReservoirTrial]:
    """Return the trials of a file of lines with checksums; damaged lines are skipped."""
    lines = [line for _, line in read_lines(file) if line]
    return [ReservoirTrial(**{**line, "columns": tuple(line["columns"])}) for line in lines]


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """The prepared data of a search, and the options that all its candidates share."""

    task: str
    options: ExtractOptions
    prepared: Prepared
    folder: Path  # holds the trials; its name identifies rows, seed, backbone, weights and precision
    width: int  # hidden width of the default backbone
    default: dict[str, Any]  # the candidate that `extract` would compute

    @classmethod
    def read(cls, task: str, options: ExtractOptions) -> "SearchData":
        """Prepare the data as `extract` does, and load the default reservoir."""
        root = cache_root(options.cache)
        prepared = prepare(task, options, cache=root, model=options)
        options = replace(options, waveform=bool(prepared.task.parameters.get("waveform")))
        if prepared.task.each:
            raise InputError(f"{task}: every token has a label, which tune does not support; use extract and fit")
        plan = plan_of(prepared, options)
        model = load_model(prepared.task, plan.reservoir, plan.device, plan.compute)
        identity = [
            data_digest(prepared, draw_rows(prepared, options.limit)),
            options.backbone and full_name(options.backbone),
            options.seed,
            options.device,
            model.compute,
            model.digest,
        ]
        layers = "all" if plan.layers == model.fpt.backbone.layers else ",".join(plan.layers)
        pool = ",".join(plan.poolings)
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
        return cls(
            task=task,
            options=options,
            prepared=prepared,
            folder=path_below(root, "tuning", f"{prepared.task.name}-{digest}"),
            width=model.fpt.backbone.width,
            default=({"backbone": options.backbone} if options.backbone else {}) | {"layers": layers, "pool": pool},
        )

    def rows(self, limit: int | None, splits: tuple[str, ...]) -> int:
        """Return the number of rows of some splits, with at most ``limit`` rows of each."""
        most = min((each for each in (limit, self.options.limit) if each), default=None)
        return sum(min(self.prepared.rows[split], most or self.prepared.rows[split]) for split in splits)

    def candidate(self, number: int) -> dict[str, Any]:
        """Return a candidate by its number; 0 is the default."""
        if number == 0:
            return self.default
        rows, given = sum(self.prepared.rows.values()), {"seed": self.options.seed, "backbone": self.options.backbone}
        return draw_candidate(number, self.prepared.task, rows, self.width, **given)

    def extract(
        self, number: int, limit: int | None, splits: tuple[str, ...] | None, cluster: ClusterOptions
    ) -> Extraction:
        """Compute the columns of a candidate that are not cached."""
        return extract(self.task, self.options_of(number, limit), cluster, splits=splits)

    def work(self, number: int, rows: int) -> float:
        """Return the relative cost of a candidate: tokens of the rows, times layers computed or pooled."""
        candidate = self.candidate(number)
        windows = -(-self.prepared.task.max_tokens // int(candidate.get("stride", 1)))
        layers = 4 if candidate["layers"] == "all" else candidate["layers"].count(",") + 1
        return float(rows * windows * (2 * layers - 1))

    def options_of(self, number: int, limit: int | None) -> ExtractOptions:
        """Return the options with which a candidate is extracted."""
        given = vars(ReservoirOptions()) | self.candidate(number)
        return replace(self.options, **given, limit=limit or self.options.limit)


@dataclass
class Costs:
    """Seconds of trials by backbone, as a constant and a part that grows with the work."""

    constant: float  # assumed constant share of the cost, until trials of different sizes have been measured
    seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def observe(self, backbone: str, work: float, seconds: float) -> None:
        """Record the cost of a trial."""
        self.seen.setdefault(backbone, []).append((work, seconds))

    def predict(self, backbone: str, work: float) -> float:
        """Return the most seconds that a trial is expected to take; 0 before the first trial."""
        if backbone in self.seen:
            return CAUTION * _extrapolate(self.seen[backbone], work, self.constant)
        others = [_extrapolate(seen, work, self.constant) for seen in self.seen.values()]
        return UNKNOWN * CAUTION * max(others, default=0.0)


def _extrapolate(seen: list[tuple[float, float]], work: float, constant: float) -> float:
    """Return the seconds for some work, extrapolated from the smallest and the largest work seen."""
    works = sorted({size for size, _ in seen})
    slowest = {size: max([took for each, took in seen if each == size][-5:]) for size in (works[0], works[-1])}
    low, high = works[0], works[-1]
    if high < 2 * low:  # too close to estimate the constant part
        return max(slowest.values()) * (constant + (1 - constant) * max(1.0, work / low))
    slope = max(0.0, (slowest[high] - slowest[low]) / (high - low))
    return max(slowest[high] + slope * (work - high), 0.5 * slowest[low])


@dataclass
class Search:
    """Trials within a time budget; the time of earlier trials in the file of trials counts too."""

    data: SearchData
    budget: float
    join: int
    cluster: ClusterOptions
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.started, self._used = self.clock(), time.process_time()
        self.file = self.data.folder / "trials.jsonl"
        self.trials = {(trial.number, trial.limit): trial for trial in read_trials(self.file)}
        self.costs, self.extracting = Costs(CONSTANT), Costs(0.0)  # the final extraction must not be underestimated
        self.judges: dict[int | None, Judge] = {}
        self.stores: dict[tuple[int, int | None], FeatureStore] = {}
        self._seen: set[tuple[int, int | None]] = set()
        self._spent = sum(trial.seconds for trial in self.trials.values())

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget - self._spent - (self.clock() - self.started)

    def run(self, most: int | None) -> list[ReservoirTrial]:
        """Try at most ``most`` candidates while time is left, and return the trials of the last round, best first."""
        first, *later = self._affordable()
        found = self._round(first, most=most, last=not later)
        for limit in later:
            kept = found[: max(2, round(SURVIVORS * len(found)))]
            default = next(trial for trial in found if trial.number == 0)
            columns = {trial.number: trial.columns for trial in (default, *kept)}
            if sum(self._seconds(number, limit) for number in [*columns][:3]) > self._trial_seconds():
                break  # a round with only the default compares nothing
            found = self._round(limit, columns, last=limit == later[-1])
        return found

    def add(self, trial: ReservoirTrial) -> None:
        """Record a trial, and write it to disk."""
        self.trials[trial.number, trial.limit] = trial
        text = "".join(checked_line(each.to_dict()) for each in self.trials.values())
        self.file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.file, lambda part: part.write_text(text))

    def judge(self, store: FeatureStore, limit: int | None, column: str) -> Judge:
        """Return the labels and folds of at most ``limit`` rows of each split, from any ``column``."""
        if limit not in self.judges:
            self.judges[limit] = Judge.of(ColumnSource(store, column), self.data.prepared.task.classes)
        return self.judges[limit]

    def kernels(self, trials: list[ReservoirTrial]) -> dict[int, ColumnKernel]:
        """Return the kernels of the raw input and of each trial's best columns, by trial number."""
        found: dict[int, ColumnKernel] = {}
        with silenced():
            for trial in trials:
                store = self.stores.get((trial.number, trial.limit))
                if store is None:  # tried by an earlier call
                    with untracked():
                        store = self.data.extract(trial.number, trial.limit, KNOWN, self.cluster).store
                judge = self.judge(store, trial.limit, trial.columns[0])
                found[trial.number] = sum(column_kernels(store, trial.columns, judge).values(), start=ColumnKernel())
                raw = Pool.of(store).raw() if RAW_NUMBER not in found else None
                if raw and raw.tokens() == judge.tokens:
                    found[RAW_NUMBER] = ColumnKernel.of(raw)
        return found

    def final_seconds(self, number: int, limit: int | None = None) -> float:
        """Return the estimated seconds for extracting ``number`` reservoirs on all splits and fitting them."""
        trials = list(self.trials.values())
        delay = (self.clock() - self.started) / max(time.process_time() - self._used, 1e-3)
        # Time for a slow start is reserved only after the first candidates, because a search needs several candidates.
        start_up = START_UP * (min(max(delay, 1.0), MAX_DELAY) if len(trials) >= AT_LEAST else 1.0)
        if not trials:
            return start_up
        rows = self.data.rows(limit, tuple(self.data.prepared.rows))
        last = trials[-1]
        known = self.data.rows(last.limit, KNOWN)
        missing = rows - known if last.limit == limit else rows
        extracting = self.extracting.predict(self._backbone(0), self.data.work(0, missing))
        judging = float(np.median([trial.judging for trial in trials if trial.limit == last.limit]))
        return start_up + number * (extracting + FIT_JUDGINGS * judging * rows / known)

    def joined(self) -> int:
        """Return how many reservoirs may be joined if the final fit takes at most `END_SHARE` of the budget."""
        fitting = [
            number for number in range(2, self.join + 1) if self.final_seconds(number) <= END_SHARE * self.budget
        ]
        return max(fitting, default=1)

    def final_limit(self, number: int, at_least: int | None) -> int | None:
        """Return the number of rows per split on which ``number`` reservoirs can be fitted in time, or None for all."""
        rows = max(self.data.prepared.rows.values())
        if at_least is None or self.final_seconds(number) <= self.left:
            return None
        fitting = [limit for limit in (int(rows * 0.8**n) for n in range(1, 50)) if limit > at_least]
        return next((limit for limit in fitting if self.final_seconds(number, limit) <= self.left), at_least)

    def _affordable(self) -> list[int | None]:
        """Return the number of rows per split for each round that the budget allows; None means all rows."""
        each = self.data.prepared.task.readout_tokens
        samples = max(self.data.rows(None, (split,)) for split in KNOWN) * each
        limits: list[int | None] = [max(1, rows // each) for rows in ROUNDS[:-1] if samples > 1.5 * rows]
        limits.append(None if samples <= 1.5 * ROUNDS[-1] else max(1, ROUNDS[-1] // each))
        usual = USUAL // each
        chosen = 0
        for place, limit in enumerate(limits):  # trying the default measures the cost of a round
            known = self.trials.get((0, limit))
            if place and not known and self._seconds(0, limit) > PROBE_SHARE * self._trial_seconds():
                break
            trial = self._try(0, limit)
            share = FIRST_SHARE if limit != limits[-1] else 1.0
            if trial is None or (place and AT_LEAST * CAUTION * trial.seconds > share * self._trial_seconds()):
                break
            chosen = place
            if limit is None or limit >= usual:
                break
        return limits[chosen:]

    def _trial_seconds(self) -> float:
        """Return the seconds for trials: the time left minus that for joining, the final extraction and the fit."""
        judging = [trial.judging for trial in self.trials.values()]
        joining = JOIN_JUDGINGS * float(np.median(judging)) if judging else 0.0
        # If all rows take longer, the winner is fitted on fewer rows.
        final = min(self.final_seconds(self.joined()), END_SHARE * self.budget)
        return max(0.0, self.left - joining - final)

    def _round(
        self,
        limit: int | None,
        columns: Mapping[int, tuple[str, ...]] | None = None,
        *,
        most: int | None = None,
        last: bool,
    ) -> list[ReservoirTrial]:
        """Try new candidates, or the best ``columns`` of earlier ones, on ``limit`` rows; return trials, best first."""
        found: list[ReservoirTrial] = []
        reserve = 0.0 if last else (1 - FIRST_SHARE) * self._trial_seconds()
        for number in islice(columns or count(), most):
            known = number == 0 or self.trials.get((number, limit))
            # The first candidates may use all time except that for fitting the rows of this round.
            few = len(found) < AT_LEAST
            left = self.left - self.final_seconds(1, limit) if few else self._trial_seconds() - reserve
            if not known and self._seconds(number, limit) > left:
                break
            if trial := self._try(number, limit, columns[number] if columns else None):
                found.append(trial)
        return sorted(found, key=lambda trial: trial.merit, reverse=True)

    def _seconds(self, number: int, limit: int | None) -> float:
        return self.costs.predict(self._backbone(number), self.data.work(number, self.data.rows(limit, KNOWN)))

    def _try(self, number: int, limit: int | None, known: tuple[str, ...] | None = None) -> ReservoirTrial | None:
        """Return the stored or a new trial of a candidate; None if the candidate does not suit the data.

        A new trial extracts train and valid, and scores the ``known`` best columns, or all columns to find the best.
        """
        trial = self.trials.get((number, limit))
        if trial is None:
            started = self.clock()
            try:
                with silenced(), untracked():
                    extraction = self.data.extract(number, limit, KNOWN, self.cluster)
            except InputError:
                if number == 0:
                    raise
                return None
            extracted, self.stores[number, limit] = self.clock(), extraction.store
            judge = self.judge(extraction.store, limit, extraction.columns[0])
            kernels = column_kernels(extraction.store, known or extraction.columns, judge)
            columns, found = (known, judge(kernels.values())) if known else best_columns(kernels, judge)
            ended = self.clock()
            trial = ReservoirTrial(
                number=number,
                limit=limit,
                title=title_of(self.data.candidate(number)),
                entry=extraction.entry.name,
                columns=columns,
                metric=metric_name(self.data.prepared.task.classes),
                score=found.score,
                loss=found.loss,
                alpha=found.alpha,
                samples=len(judge.y),
                seconds=ended - started,
                judging=ended - extracted,
            )
            self.add(trial)
        if (number, limit) in self._seen:
            return trial
        self._seen.add((number, limit))
        rows = "all rows" if limit is None else f"{limit:,} rows per split"
        score = score_text(trial.score, trial.metric)
        notify(f"{number:3d}  {score:>6}  {trial.seconds:5.1f} s  {rows}  {trial.title}")
        backbone, work = self._backbone(number), self.data.work(number, self.data.rows(limit, KNOWN))
        self.costs.observe(backbone, work, trial.seconds)
        self.extracting.observe(backbone, work, trial.seconds - trial.judging)
        return trial

    def _backbone(self, number: int) -> str:
        return str(self.data.candidate(number).get("backbone", DEFAULT_BACKBONE))
