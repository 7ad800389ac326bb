"""What a fit tries: columns, the fitter with its settings, and the cross-validation that compares them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir.column import RAW, Columns, names_of, parse_columns
from reservoir.errors import InputError
from reservoir.options import FitOptions
from reservoir.plan import choose_folds, default_columns, readout_candidates
from reservoir.readouts.penalties import DEFAULT_ALPHAS, LOGISTIC_ALPHAS, parse_alphas
from reservoir.tasks import TASKS
from reservoir_pipelines.fitting.fitter import Fitter
from reservoir_pipelines.fitting.folds import folds_can_choose, groups_of_splits
from reservoir_pipelines.fitting.logistic_fitter import LogisticFitter
from reservoir_pipelines.fitting.pool import Known
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.sklearn_fitter import EstimatorFitter
from reservoir_pipelines.fitting.source import ColumnSource

RACED_COLUMNS = 4  # default columns from which a race saves time


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The columns that a fit tries, and the cross-validation that chooses among their readouts."""

    all_columns: tuple[Columns, ...]
    default: Columns | None  # the columns that are chosen unless others are clearly better
    folds: int  # 0 for a choice on validation rows
    repeats: int
    chooses: bool  # False if the folds cannot tell readouts apart (see `can_choose`)
    baseline_may_win: bool  # whether a baseline is saved if it is clearly better
    races: bool = False  # whether fits to some of the rows may exclude columns
    groups: np.ndarray | None = None  # of each row in train, then valid

    @property
    def columns(self) -> tuple[Columns, ...]:
        """The columns that are fitted: if nothing can be chosen, the first alone."""
        return self.all_columns if self.chooses else self.all_columns[:1]


def choose_candidates(known: Known, options: FitOptions) -> Candidates:
    """Return the columns to try, and the cross-validation that chooses among their readouts."""
    groups = groups_of_splits(known.view)
    folds, repeats = choose_folds(options, known.rows, None if groups is None else len(np.unique(groups)))
    # The columns are those that the user names, or the defaults of the task.
    named = _named_columns(known, options.columns)
    columns = _default_columns(known, cross_validated=bool(folds)) if named is None else named
    if not columns:
        remedy = "extract it to the end, or name the key of another entry"
        if known.columns:
            remedy = f"name some of {', '.join(names_of(known.columns))}"
        raise InputError(f"{known.entry.path}: no columns to fit", remedy)
    chooses = not folds or folds_can_choose(known.source(columns[0]), known.task.classes)
    # A named task is a benchmark of the reservoir. On the user's own data, a baseline is saved if it is better.
    is_own_data = known.task.name not in TASKS and not known.task.each
    return Candidates(
        all_columns=columns,
        default=default_columns(columns) if named is None else None,
        folds=folds,
        repeats=repeats,
        groups=groups,
        races=named is None and options.select == "auto" and chooses and len(columns) >= RACED_COLUMNS,
        chooses=chooses,
        baseline_may_win=options.columns == "all" and is_own_data and chooses,
    )


def _named_columns(known: Known, columns: str | Sequence[str]) -> tuple[Columns, ...] | None:
    """Return the candidates that an option names, without duplicates; None for ``all``, the default."""
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if names == ["all"]:
        return None
    candidates = [parse_columns(name) for name in names]
    for column in itertools.chain.from_iterable(candidates):
        if column not in (*known.columns, RAW):
            cached = ", ".join(names_of(known.columns)) or "none"
            raise InputError(f"column {str(column)!r}: not cached", f"the cached ones are {cached}")
        known.column(column)  # refuses the raw input if its prepared data was removed
    return tuple(dict.fromkeys(candidates))


def _default_columns(known: Known, *, cross_validated: bool) -> tuple[Columns, ...]:
    """Return the columns, alone and joined, among which a readout is chosen by default."""
    sources = {column: known.column(column) for column in known.columns}
    widths = {
        column: source.width()
        for column, source in sources.items()
        if isinstance(source, ColumnSource) and source.tokens() == 1
    }
    native = len(known.views) > 1 or known.entry.spec.input.kind == "native"
    return readout_candidates(
        known.task,
        known.columns,
        widths,
        known.rows["train"],
        cross_validated=cross_validated,
        native=native,
    )


def make_fitter(options: FitOptions, classes: int, folds: int = 0, repeats: int = 1) -> Fitter:
    """Return the fitter for the options, the number of classes, and the folds that `choose_folds` returned."""
    readout, balanced = options.readout, options.class_weight == "balanced"
    if not classes and (balanced or readout == "logistic"):
        flag = "--class-weight balanced" if balanced else "--readout logistic"
        raise InputError(f"{flag}: the task has no classes", "remove the flag")
    if folds and readout != "ridge":
        raise InputError(
            f"--select {options.select}: cross-validation is only for ridge", "pass --select valid"
        )
    if readout not in ("ridge", "logistic"):
        if options.alphas:
            problem = f"--alphas: {readout} takes its parameters after a colon"
            raise InputError(f"{problem}, as in sklearn.svm.LinearSVC:C=0.1,1")
        return EstimatorFitter.parse(readout, classes, balanced=balanced)
    default = LOGISTIC_ALPHAS if readout == "logistic" else DEFAULT_ALPHAS
    alphas = parse_alphas(options.alphas) if options.alphas else default
    shared: dict[str, Any] = {
        "classes": classes,
        "alphas": alphas,
        "balanced": balanced,
        "widens": not options.alphas,
    }
    if readout == "logistic":
        return LogisticFitter(**shared)
    return RidgeFitter(
        **shared,
        folds=folds,
        repeats=repeats,
        refits=options.select == "auto" and not folds,
    )
