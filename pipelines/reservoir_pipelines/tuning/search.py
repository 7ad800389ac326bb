"""The search: all candidates are tried on few rows, and the best ones on more rows, within a time budget."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import FeatureStore, path_below, untracked

from reservoir.backbone_names import full_name
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
from reservoir.tasks.task import Vectors
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


def draw_candidate(number: int, data: "SearchData") -> dict[str, Any]:
    """Return a candidate by its number from 1, as options of `extract`; data and seed determine it."""
    task, backbone = data.prepared.task, data.options.backbone
    draw = generator(data.options.seed, f"tune-{number}")
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
    aligned = ["mean,tokens", "mean,segments8,tokens"] if tokens * data.width <= MAX_TOKEN_FEATURES else []
    if kind == "series":
        stride = default_windows(task)["stride"]
        found = {"stride": stride, "pad": "same", "normalise": one(*SCALES)}
        if draw.random() < 0.75:
            patch = one(5, 7, SERIES_KERNEL, SERIES_KERNEL, 11, 15)
            found |= {
                "input": "kernels",
                "patch": patch,
                "dilations": "auto",
                "gain": one(2.0, 4.0, 6.0, 9.0, 15.0),
            }
        else:
            patch, dilations = one(4, 8, 16, 32), one("1", "1,4", "auto")
            found |= {
                "input": "orthogonal",
                "patch": patch,
                "dilations": dilations,
                "gain": one(1.41, 3.0, 6.0),
            }
        found |= weights(-(-tokens // stride))
        layers = one("embed", "embed", "embed,block01", "embed,block01", "embed,block01,block02")
        layers = "embed,block01" if "backbone" in found else layers
        pool = ",".join([*VALUE_POOLINGS, one("segments4", SEGMENTS, SEGMENTS, "segments16")])
    else:
        if isinstance(task.form, Vectors):  # tokens themselves, such as the rows of an image
            found, layers = {"gain": one(0.3, 0.7, 1.41, 3.0, 6.0)}, "all"
            pools = [
                "last,mean",
                "mean,max,min",
                "last,mean,segments4",
                "mean,segments8",
                "quantiles5,segments4",
            ]
        elif kind == "symbols" and draw.random() < 0.6:
            found, layers = default_windows(task), default_layers(kind)[0]
            found |= {"patch": one(3, SYMBOL_KERNEL, 7, 9), "gain": one(3.0, 6.0, 9.0)}
            pools = [
                "shares13,max,min,segments8",
                "shares13,max,min,segments16",
                "quantiles9,max,min,segments4",
            ]
        else:
            found, layers = {"input": "gaussian", "patch": 1}, default_layers(kind)[0]
            found["gain"] = one(0.35, 0.7, 1.41, 2.8, 5.6)
            pools = ["last,mean,segments8", "mean,max,min,segments4", "mean,segments8,segments16"]
        found |= weights(tokens)
        pool = "last" if task.readout_tokens > 1 else one(*pools, *aligned)
    if backbone:
        found.pop("backbone", None)
        found["backbone"] = backbone
    return found | {"seed": data.options.seed + number, "layers": layers, "pool": pool}


def title_of(candidate: dict[str, Any]) -> str:
    """Return the options of a candidate that differ from the defaults, as a short text."""
    shown = {name: value for name, value in candidate.items() if name not in ("pad", "layers", "pool")}
    plain = ("backbone", "init", "input")
    options = [str(value) if name in plain else f"{name} {value}" for name, value in shown.items()]
    return f"{', '.join(options) or 'the default'}; {candidate['layers']}"


ROUNDS = 25, 100, 400, 800  # rows of each split; larger kernel matrices take too long
FIRST_ROUNDS = 3  # the search begins with one of the first three numbers
AT_LEAST = 10  # candidates of the first round
SURVIVORS = 0.25  # share of candidates that the next round tries again
PROBE_SHARE = 0.2  # share of the time for trials that may measure costs
END_SHARE = 0.4  # share of the budget that the final extraction and fit may take
FIRST_SHARE = 0.6  # share of the time for trials that a round before the last may use
CAUTION = 1.2  # factor on predicted costs, because the load varies
CONSTANT = 0.5  # assumed share of a trial's cost that does not grow with the rows
RAW_NUMBER = -1  # number of the raw input among the candidates that may be joined
START_UP = 6.0  # seconds of a final fit of any size
FIT_JUDGINGS = 2.0  # time of a fit, relative to judging a trial on the same rows
JOIN_JUDGINGS = 6.0  # time of joining, relative to judging a trial


@dataclass(frozen=True, kw_only=True)
class ReservoirTrial(Record):
    """The held-out results of a candidate's best columns, concatenated."""

    number: int  # 0 for the default
    limit: int | None  # rows of each split, at most; None for all
    title: str  # the options that differ from the default
    entry: str
    columns: tuple[str, ...]
    metric: str
    score: float
    loss: float  # mean squared error
    alpha: float  # the best penalty
    samples: int  # held-out rows, or tokens, of train and valid
    seconds: float
    judging: float  # part of ``seconds`` after the extraction


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
    folder: Path  # folder of the trials
    width: int  # hidden width of the default backbone
    default: dict[str, Any]  # the candidate that `extract` would compute

    @classmethod
    def read(cls, task: str, options: ExtractOptions) -> "SearchData":
        """Prepare the data as `extract` does, and load the default reservoir."""
        root = cache_root(options.cache)
        prepared = prepare(task, options, cache=root, model=options)
        options = replace(options, waveform=bool(prepared.task.parameters.get("waveform")))
        if prepared.task.each:
            raise InputError(
                f"{task}: every token has a label, which tune does not support; use extract and fit"
            )
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
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
        default = {"backbone": options.backbone} if options.backbone else {}
        default["layers"] = "all" if plan.layers == model.fpt.backbone.layers else ",".join(plan.layers)
        return cls(
            task=task,
            options=options,
            prepared=prepared,
            folder=path_below(root, "tuning", f"{prepared.task.name}-{digest}"),
            width=model.fpt.backbone.width,
            default=default | {"pool": ",".join(plan.poolings)},
        )

    def rows(self, limit: int | None, splits: tuple[str, ...]) -> int:
        """Return the number of rows of some splits, with at most ``limit`` rows of each."""
        most = min(each or sys.maxsize for each in (limit, self.options.limit))
        return sum(min(self.prepared.rows[split], most) for split in splits)

    def candidate(self, number: int) -> dict[str, Any]:
        """Return a candidate by its number; 0 is the default."""
        return draw_candidate(number, self) if number else self.default

    def extract(
        self, number: int, limit: int | None, splits: tuple[str, ...] | None, cluster: ClusterOptions
    ) -> Extraction:
        """Compute the columns of a candidate that are not cached."""
        return extract(self.task, self.options_of(number, limit), cluster, splits=splits)

    def options_of(self, number: int, limit: int | None) -> ExtractOptions:
        """Return the options with which a candidate is extracted."""
        given = vars(ReservoirOptions()) | self.candidate(number)
        return replace(self.options, **given, limit=limit or self.options.limit)


@dataclass
class Search:
    """Trials within a time budget; the time of earlier trials in the file of trials counts too."""

    data: SearchData
    budget: float
    join: int
    cluster: ClusterOptions
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.file = self.data.folder / "trials.jsonl"
        self.features: dict[tuple[int, int | None], tuple[FeatureStore, tuple[str, ...]]] = {}
        self.trials: dict[tuple[int, int | None], ReservoirTrial] = {}
        for trial in read_trials(self.file):
            self._count(trial)
        self._end = self.clock() + self.budget - sum(trial.seconds for trial in self.trials.values())

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self._end - self.clock()

    def run(self, most: int | None) -> list[ReservoirTrial]:
        """Try at most ``most`` candidates while time is left, and return the trials of the last round, best first."""
        first, *later = self._affordable()
        found = self._round(first, ((number, None) for number in islice(count(), most)), last=not later)
        for limit in later:
            if 3 * self._seconds(limit) > self._trial_seconds():
                break  # a round with only the default compares nothing
            kept = found[: max(2, round(SURVIVORS * len(found)))]
            default = next(trial for trial in found if trial.number == 0)
            candidates = {trial.number: trial.columns for trial in (default, *kept)}
            found = self._round(limit, candidates.items(), last=limit == later[-1])
        return found

    def add(self, trial: ReservoirTrial) -> None:
        """Record a new trial, and write it to disk."""
        self._count(trial)
        text = "".join(checked_line(each.to_dict()) for each in self.trials.values())
        self.file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.file, lambda part: part.write_text(text))

    def _count(self, trial: ReservoirTrial) -> None:
        """Keep a trial, and print it."""
        self.trials[trial.number, trial.limit] = trial
        rows = "all rows" if trial.limit is None else f"{trial.limit:,} rows per split"
        score = score_text(trial.score, trial.metric)
        notify(f"{trial.number:3d}  {score:>6}  {trial.seconds:5.1f} s  {rows}  {trial.title}")

    def kernels(self, trials: list[ReservoirTrial]) -> tuple[dict[int, ColumnKernel], Judge]:
        """Return the kernels of the raw input and of each trial's best columns, by trial number, and their judge."""
        stores = [self._features(trial.number, trial.limit)[0] for trial in trials]
        found: dict[int, ColumnKernel] = {}
        judge = Judge.of(ColumnSource(stores[0], trials[0].columns[0]), self.data.prepared.task.classes)
        for trial, store in zip(trials, stores, strict=True):
            found[trial.number] = sum(
                column_kernels(store, trial.columns, judge).values(), start=ColumnKernel()
            )
        raw = Pool.of(stores[0]).raw()
        if raw and raw.tokens() == judge.tokens:
            found[RAW_NUMBER] = ColumnKernel.of(raw)
        return found, judge

    def final_seconds(self, number: int, limit: int | None = None) -> float:
        """Return the estimated seconds for extracting and fitting ``number`` reservoirs."""
        if not self.trials:
            return START_UP
        last = [*self.trials.values()][-1]
        rows = self.data.rows(limit, tuple(self.data.prepared.rows))
        known = self.data.rows(last.limit, KNOWN)
        missing = rows - known if last.limit == limit else rows
        extracting = self._extrapolate(missing, lambda trial: trial.seconds - trial.judging)
        judging = np.median([trial.judging for trial in self.trials.values() if trial.limit == last.limit])
        return START_UP + number * (extracting + FIT_JUDGINGS * float(judging) * rows / known)

    def joined(self) -> int:
        """Return how many reservoirs may be joined if the final fit takes at most `END_SHARE` of the budget."""
        numbers, most = range(2, self.join + 1), END_SHARE * self.budget
        return max((number for number in numbers if self.final_seconds(number) <= most), default=1)

    def final_limit(self, number: int, at_least: int | None) -> int | None:
        """Return the rows per split on which ``number`` reservoirs can be fitted in time; None for all."""
        if at_least is None or self.final_seconds(number) <= self.left:
            return None
        limit = max(self.data.prepared.rows.values())
        while limit > at_least and self.final_seconds(number, limit) > self.left:
            limit = int(0.8 * limit)
        return max(limit, at_least)

    def _affordable(self) -> list[int | None]:
        """Return the rows per split of each round that the budget allows; None means all."""
        each, first = self.data.prepared.task.readout_tokens, 0
        samples = max(self.data.rows(None, (split,)) for split in KNOWN) * each
        limits: list[int | None] = [max(1, rows // each) for rows in ROUNDS[:-1] if samples > 1.5 * rows]
        limits.append(None if samples <= 1.5 * ROUNDS[-1] else max(1, ROUNDS[-1] // each))
        for place, limit in enumerate(limits[:FIRST_ROUNDS]):
            known = place == 0 or (0, limit) in self.trials
            if not known and self._seconds(limit) > PROBE_SHARE * self._trial_seconds():
                break
            self._try(0, limit)  # measures the cost of a round
            cost = AT_LEAST * CAUTION * self.trials[0, limit].seconds
            if place and cost > FIRST_SHARE * self._trial_seconds():
                break
            first = place
        return limits[first:]

    def _trial_seconds(self) -> float:
        """Return the seconds for trials: the time left minus that for all later steps."""
        judging = [trial.judging for trial in self.trials.values()] or [0.0]
        # If a fit on all rows takes longer than its share, the winner is fitted on fewer rows.
        final = min(self.final_seconds(self.joined()), END_SHARE * self.budget)
        return max(0.0, self.left - JOIN_JUDGINGS * float(np.median(judging)) - final)

    def _round(
        self, limit: int | None, candidates: Iterable[tuple[int, tuple[str, ...] | None]], *, last: bool
    ) -> list[ReservoirTrial]:
        """Try candidates, or their known best columns, on ``limit`` rows; return the trials, best first."""
        found: list[ReservoirTrial] = []
        reserve = 0.0 if last else (1 - FIRST_SHARE) * self._trial_seconds()
        for number, columns in candidates:
            known = number == 0 or (number, limit) in self.trials
            # The first candidates may use all time except that for fitting the rows of this round.
            few = len(found) < AT_LEAST
            left = self.left - self.final_seconds(1, limit) if few else self._trial_seconds() - reserve
            if not known and self._seconds(limit) > left:
                break
            if trial := self._try(number, limit, columns):
                found.append(trial)
        return sorted(found, key=lambda trial: (trial.score, -trial.loss), reverse=True)

    def _seconds(self, limit: int | None) -> float:
        """Return the most seconds that a trial is expected to take; 0 before the first trial."""
        return self._extrapolate(self.data.rows(limit, KNOWN), lambda trial: trial.seconds, CONSTANT)

    def _extrapolate(
        self, rows: int, cost: Callable[[ReservoirTrial], float], constant: float = 0.0
    ) -> float:
        """Return the cost of a trial on a number of rows, of which a ``constant`` share is assumed at first."""
        seen: dict[int, list[float]] = {}
        for trial in self.trials.values():
            seen.setdefault(self.data.rows(trial.limit, KNOWN), []).append(cost(trial))
        if not seen:
            return 0.0
        low, high = min(seen), max(seen)
        least, most = (CAUTION * max(seen[end][-5:]) for end in (low, high))
        if high < 2 * low:  # too close to measure the constant part
            return most * (constant + (1 - constant) * max(1.0, rows / high))
        slope = max(0.0, (most - least) / (high - low))
        return max(most + slope * (rows - high), 0.5 * least)

    def _features(self, number: int, limit: int | None) -> tuple[FeatureStore, tuple[str, ...]]:
        """Return the features of a candidate for train and valid, and the names of its columns."""
        if (number, limit) not in self.features:
            with silenced(), untracked():
                extraction = self.data.extract(number, limit, KNOWN, self.cluster)
            self.features[number, limit] = extraction.store, extraction.columns
        return self.features[number, limit]

    def _try(
        self, number: int, limit: int | None, known: tuple[str, ...] | None = None
    ) -> ReservoirTrial | None:
        """Return the trial of a candidate's ``known`` or best columns; None if the candidate does not suit the data."""
        if (number, limit) in self.trials:
            return self.trials[number, limit]
        started = self.clock()
        try:
            store, available = self._features(number, limit)
        except InputError:
            if number == 0:
                raise
            return None
        extracted = self.clock()
        classes = self.data.prepared.task.classes
        judge = Judge.of(ColumnSource(store, available[0]), classes)
        kernels = column_kernels(store, known or available, judge)
        best, found = (known, judge(kernels.values())) if known else best_columns(kernels, judge)
        ended = self.clock()
        trial = ReservoirTrial(
            number=number,
            limit=limit,
            title=title_of(self.data.candidate(number)),
            entry=store.entry.path.name,
            columns=best,
            metric=metric_name(classes),
            score=found.score,
            loss=found.loss,
            alpha=found.alpha,
            samples=len(judge.y),
            seconds=ended - started,
            judging=ended - extracted,
        )
        self.add(trial)
        return trial
