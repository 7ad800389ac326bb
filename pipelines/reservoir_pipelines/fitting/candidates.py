"""What a fit tries: columns, the fitter with its settings, and the cross-validation that compares them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.column import RAW, ROLLING, Baseline, Columns, names_of, parse_columns
from reservoir.errors import InputError, as_input_error
from reservoir.options import FitOptions
from reservoir.plan.basis import kind_of
from reservoir.plan.candidates import choose_folds, default_columns, readout_candidates
from reservoir.readouts.penalties import DEFAULT_ALPHAS, KERNEL_ALPHAS, LOGISTIC_ALPHAS, parse_alphas
from reservoir.readouts.products import LARGE_MATRIX
from reservoir.tasks import TASKS
from reservoir.tasks.task import Task, Vectors
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.fitter import Fitter
from reservoir_pipelines.fitting.folds import folds_can_choose
from reservoir_pipelines.fitting.forecast_fitter import ForecastFitter
from reservoir_pipelines.fitting.kernel_fitter import KernelFitter, parse_rows
from reservoir_pipelines.fitting.logistic_fitter import LogisticFitter
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.sklearn_fitter import EstimatorFitter

RACED_COLUMNS = 4  # default columns from which a race saves time
RACED_ROWS = 2000  # training rows from which a race saves time
RACE_SHARE = 1 / 10  # of the training rows are in the race
MIN_RACE_ROWS, MAX_RACE_ROWS = 600, 5000  # limits of that number of rows
RACED_WIDTH = LARGE_MATRIX  # features and rows from which the time of two columns is worth a race
RACE_VALID_ROWS = 2000  # most validation rows in the race, if these choose the readout


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The columns that a fit tries, and the fitter that compares their readouts on folds or on validation rows."""

    all_columns: tuple[Columns, ...]
    default: Columns | None  # the columns that are chosen unless others are clearly better
    fitter: Fitter
    chooses: bool  # False if the folds cannot tell readouts apart (see `can_choose`)
    baseline_may_win: bool  # whether a baseline is saved if it is clearly better
    race: Known | None = None  # some of the rows, to which all columns are fitted first
    grouped: bool = False  # whether groups of rows never split
    curve_sizes: tuple[int, ...] = ()  # numbers of training rows of the learning curve

    @property
    def columns(self) -> tuple[Columns, ...]:
        """The columns that are fitted: if nothing can be chosen, the first alone."""
        return self.all_columns if self.chooses else self.all_columns[:1]


def candidates_of_fit(known: Known, options: FitOptions, *, every_column: bool = False) -> Candidates:
    """Return the columns to try, the fitter that compares their readouts, and the rows of a race and a curve.

    With ``every_column``, the defaults are joined by each column alone, and none is left out by a race.
    """
    task, rows, groups = known.task, known.rows, known.groups
    number_of_groups = None if groups is None else len(np.unique(groups))
    folds, repeats = choose_folds(options, rows, number_of_groups, in_time=task.horizon > 0)
    # The columns are those that the user names, or the defaults of the task.
    named = _named_columns(known, options.columns)
    default: Columns | None = None
    if named is None:
        columns, default = _default_columns(known, cross_validated=bool(folds))
    else:
        columns = named
    if every_column and named is None and not (task.horizon or task.labels_each_token):
        columns = tuple(dict.fromkeys([*columns, *((column,) for column in known.widths)]))
    if not columns:
        remedy = "extract it to the end, or name the key of another entry"
        if known.columns:
            remedy = f"name some of {', '.join(names_of(known.columns))}"
        raise InputError(f"{known.view.path}: no columns to fit", remedy)
    # Opening a source refuses raw input whose prepared data was removed.
    sources = [known.source(names) for names in columns]
    curve_sizes = _curve_sizes(options, rows["train"])
    # Columns race (are fitted to some rows first) if they are many. Those that the user names are all fitted to all.
    widest = max(source.width() for source in sources)
    are_wide = len(columns) > 1 and min(widest, rows["train"]) >= RACED_WIDTH
    may_race = named is None and options.select == "auto" and (len(columns) >= RACED_COLUMNS or are_wide)
    may_race &= not every_column
    may_race &= not task.horizon  # random rows have no folds in time
    race = _race(known, groups, cross_validated=bool(folds)) if may_race else None
    # Of several series, as many windows begin at one time.
    gap = task.horizon * int(task.parameters.get("series", 1)) - 1 if task.horizon else None
    fitter = make_fitter(options, task.classes, folds, repeats, gap)
    # Validation rows can always choose. If folds cannot, there is nothing to compare settings or columns with.
    chooses = not folds or folds_can_choose(sources[0], task.classes)
    if not chooses:
        fitter, race = fitter.with_fixed_penalty(), None
    # A named task is a benchmark of the reservoir, with exact sweeps over all penalties. On the user's own data, few
    # penalties are tried on all of many rows, and a baseline is saved if it is better. What words or tokens tell alone
    # is only shown, because a saved readout needs a model, whose tokens they are.
    is_own_data = task.name not in TASKS
    if is_own_data and isinstance(fitter, RidgeFitter) and not (options.alphas or task.horizon):
        fitter = replace(fitter, narrows=True)
    baseline_may_win = options.columns == "all" and is_own_data and chooses and not task.labels_text_tokens
    return Candidates(
        all_columns=columns,
        default=default,
        fitter=fitter,
        chooses=chooses,
        baseline_may_win=baseline_may_win,
        race=race,
        grouped=groups is not None,
        curve_sizes=curve_sizes,
    )


def _named_columns(known: Known, columns: str | Sequence[str]) -> tuple[Columns, ...] | None:
    """Return the candidates that an option names, without duplicates; None for ``all``, the default."""
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if names == ["all"]:
        return None
    candidates = [parse_columns(name) for name in names]
    for column in itertools.chain.from_iterable(candidates):
        if column not in (*known.columns, *_baselines(known.task)):
            cached = ", ".join(names_of(known.columns)) or "none"
            raise InputError(f"column {str(column)!r}: not cached", f"the cached ones are {cached}")
    return tuple(dict.fromkeys(candidates))


def _baselines(task: Task) -> tuple[Baseline, ...]:
    """Return the baselines that may stand beside columns."""
    return (RAW, ROLLING) if task.labels_each_token and isinstance(task.form, Vectors) else (RAW,)


def _default_columns(known: Known, *, cross_validated: bool) -> tuple[tuple[Columns, ...], Columns | None]:
    """Return the columns, alone and joined, among which a readout is chosen, and those that are chosen by default."""
    # The rules for windows of values and symbols hold for a single model that reads such windows.
    native = len(known.views) > 1 or known.view.spec.input.kind == "native"
    kind = kind_of(known.task)
    candidates = readout_candidates(
        known.task,
        kind,
        known.columns,
        known.widths,
        known.rows["train"],
        cross_validated=cross_validated,
        native=native,
    )
    # Without the prepared data, columns have no statistics of the raw input beside them.
    if not known.view.has_raw:
        candidates = tuple(tuple(name for name in names if name != ROLLING) for names in candidates)
    return candidates, default_columns(candidates, known.task)


def make_fitter(
    options: FitOptions, classes: int, folds: int = 0, repeats: int = 1, gap: int | None = None
) -> Fitter:
    """Return the fitter for the options, the number of classes, and the folds that `choose_folds` returned.

    Forecasts have a ``gap``, see `ForecastFitter`.
    """
    readout, balanced = options.readout, options.class_weight == "balanced"
    # Refuse what this kind of readout does not do.
    if not classes and (balanced or readout == "logistic"):
        flag = "--class-weight balanced" if balanced else "--readout logistic"
        raise InputError(f"{flag}: the task has no classes", "remove the flag")
    if folds and readout != "ridge":
        raise InputError(
            f"--select {options.select}: cross-validation is only for ridge", "pass --select valid"
        )
    if readout.partition(":")[0] == "arccos":
        if balanced or gap is not None:
            unsupported = "--class-weight balanced" if balanced else "forecasts"
            raise InputError(f"--readout arccos: not for {unsupported}", "use --readout ridge")
        kernel_alphas = parse_alphas(options.alphas) if options.alphas else KERNEL_ALPHAS
        return KernelFitter(
            classes=classes,
            alphas=kernel_alphas,
            rows=parse_rows(readout),
            refits=options.select == "auto",
        )
    # Any other name is the import path of an estimator.
    if readout not in ("ridge", "logistic"):
        if options.alphas:
            problem = f"--alphas: {readout} takes its parameters after a colon"
            raise InputError(f"{problem}, as in sklearn.svm.LinearSVC:C=0.1,1")
        return EstimatorFitter.parse(readout, classes, balanced=balanced)
    # Penalties that the user names are all that are tried.
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
    if gap is not None:
        return ForecastFitter(**shared, folds=folds, gap=gap)
    # A readout that validation rows chose is fitted again to train and valid. Folds hold both, so their readout has
    # seen both already; with --select valid the user asks for the readout that was scored, fitted to train alone.
    return RidgeFitter(
        **shared,
        folds=folds,
        repeats=repeats,
        refits=options.select == "auto" and not folds,
    )


def _curve_sizes(options: FitOptions, rows: int) -> tuple[int, ...]:
    """Return the ascending numbers of rows of the learning curve, none larger than ``rows``; none without a curve."""
    curve = options.curve
    if not curve:
        return ()
    if options.readout != "ridge":
        raise InputError(f"--curve {curve}: a learning curve needs --readout ridge")
    with as_input_error(f"--curve {curve}: not a list of numbers of rows", "write 100,1000"):
        sizes = {min(int(part), rows) for part in curve.split(",")}
    if min(sizes) < 1:
        raise InputError(f"--curve {curve}: give positive numbers of rows")
    return tuple(sorted(sizes))


def _race(known: Known, groups: np.ndarray | None, *, cross_validated: bool) -> Known | None:
    """Return the columns in random rows of each split; None if rows are few, or a class or group would be missing.

    ``groups`` are those of the rows of train, then valid.
    """
    train, valid = known.view["train"], known.view["valid"]
    if train.rows < RACED_ROWS:
        return None
    # In cross-validation, both splits are thinned alike. Rows of valid that score all readouts can be more.
    train_size = min(max(round(RACE_SHARE * train.rows), MIN_RACE_ROWS), MAX_RACE_ROWS)
    thinned_valid_size = round(train_size * valid.rows / train.rows)
    valid_size = thinned_valid_size if cross_validated else min(valid.rows, RACE_VALID_ROWS)
    generator = np.random.default_rng(0)
    some = {
        "train": np.sort(generator.permutation(train.rows)[:train_size]),
        "valid": np.sort(generator.permutation(valid.rows)[:valid_size]),
    }
    # Fits to these rows can only stand for fits to all rows if no class and no group is missing.
    drawn = np.concatenate([some["train"], train.rows + some["valid"]])
    same_groups = groups is None or len(np.unique(groups)) == len(np.unique(groups[drawn]))
    are_targets = train.labels.dtype.kind == "f"  # numbers, which have no classes
    same_labels = are_targets or np.isin(train.labels, train.labels[some["train"]]).all()
    return replace(known, some=some) if same_groups and same_labels else None
