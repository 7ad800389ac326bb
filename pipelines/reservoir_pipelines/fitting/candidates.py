"""What a fit tries: columns, the fitter with its settings, and the cross-validation that compares them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.column import RAW, ROLLING, Baseline, Column, Columns, names_of, parse_columns
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
from reservoir_pipelines.fitting.source import EntrySource
from reservoir_pipelines.output import count_text

# In a race, all columns are fitted to some of the rows, and only the best third to all rows.
RACED_COLUMNS = 4  # number of default columns from which a race saves time
RACED_ROWS = 2000  # number of training rows from which a race saves time
RACE_SHARE = 1 / 10  # share of the training rows that are in the race
MIN_RACE_ROWS, MAX_RACE_ROWS = 600, 5000  # limits of the number of training rows in the race
RACED_WIDTH = LARGE_MATRIX  # number of features, and of rows, from which even two columns are worth a race
RACE_VALID_ROWS = 2000  # most validation rows in the race, if these choose the readout


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The columns that a fit tries, and the fitter that compares their readouts on folds or on validation rows.

    A candidate is one column, or several columns side by side.
    """

    all_columns: tuple[Columns, ...]  # one item for each candidate
    # The candidate that is chosen unless another is clearly better; None to choose the best.
    default: Columns | None
    fitter: Fitter
    chooses: bool  # False if the folds cannot tell readouts apart (see `can_choose`)
    baseline_may_win: bool  # whether a baseline is saved if it is clearly better
    # The columns in some of the rows, to which all are fitted first; None without a race.
    race: Known | None = None
    grouped: bool = False  # whether the rows have groups, which folds do not split
    curve_sizes: tuple[int, ...] = ()  # numbers of training rows of the learning curve; empty without one

    @property
    def columns(self) -> tuple[Columns, ...]:
        """The candidates that are fitted: if nothing can be chosen, the first alone."""
        return self.all_columns if self.chooses else self.all_columns[:1]


def candidates_of_fit(known: Known, options: FitOptions, *, every_column: bool = False) -> Candidates:
    """Return the columns to try, the fitter that compares their readouts, and the rows of a race and a curve.

    With ``every_column``, the default candidates are followed by each column alone, and no race leaves any of them out.
    """
    task, rows, groups = known.task, known.rows, known.groups
    number_of_groups = None if groups is None else len(np.unique(groups))
    folds, repeats = choose_folds(options, rows, number_of_groups, in_time=task.horizon > 0)
    # The columns are those that the user names, or the defaults of the task.
    named = named_columns(options.columns, known.columns, task)
    default: Columns | None = None
    if named is None:
        columns, default = _default_columns(known, cross_validated=bool(folds), every_column=every_column)
    else:
        columns = named
    if not columns or (named is None and not known.columns):
        remedy = "extract or import it to the end, or name the key of another entry"
        if known.columns:
            remedy = f"name some of {', '.join(names_of(known.columns))}"
        raise InputError(f"{known.view.path}: no columns to fit", remedy)
    # Opening a source refuses raw input whose prepared data is missing.
    sources = [known.source(candidate) for candidate in columns]
    curve_sizes = tuple(sorted({min(size, rows["train"]) for size in parse_curve(options)}))
    # All columns that the user names are fitted to all rows. Forecasts have no race, because random rows have no folds
    # in time.
    may_race = named is None and options.select == "auto" and not every_column and not task.horizon
    race = None
    if may_race and _race_saves_time(sources, rows["train"]):
        race = _race(known, groups, cross_validated=bool(folds))
    fitter = make_fitter(options, task.classes, folds, repeats, gap_of(task))
    # Validation rows can always choose. If folds cannot, there is nothing to compare settings or columns with.
    chooses = not folds or folds_can_choose(sources[0], task.classes)
    if not chooses:
        fitter = fitter.with_fixed_penalty()
        race = None
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


def gap_of(task: Task) -> int | None:
    """Return the number of windows before a window whose labels overlap with its own; None unless it is a forecast."""
    # The labels of a window are ``horizon`` steps, so those of the windows that begin in the ``horizon`` - 1 steps
    # before it overlap with them. If there are several series, as many windows begin at each step.
    return task.horizon * int(task.parameters.get("series", 1)) - 1 if task.horizon else None


def named_columns(
    columns: str | Sequence[str], cached: Sequence[Column], task: Task
) -> tuple[Columns, ...] | None:
    """Return the candidates that the option ``columns`` names, without duplicates; None for ``all``, its default.

    Raise `InputError` if a column is neither ``cached`` nor a baseline of the task.
    """
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if names == ["all"]:
        return None
    candidates = [parse_columns(name) for name in names]
    for column in itertools.chain.from_iterable(candidates):
        if column not in (*cached, *_baselines(task)):
            cached_names = ", ".join(names_of(cached)) or "none"
            raise InputError(f"column {str(column)!r}: not cached", f"the cached ones are {cached_names}")
    return tuple(dict.fromkeys(candidates))


def _baselines(task: Task) -> tuple[Baseline, ...]:
    """Return the baselines that a candidate may contain: the raw input, and rolling statistics of steps with labels."""
    labels_each_step = task.labels_each_token and isinstance(task.form, Vectors)
    return (RAW, ROLLING) if labels_each_step else (RAW,)


def _default_columns(
    known: Known, *, cross_validated: bool, every_column: bool
) -> tuple[tuple[Columns, ...], Columns | None]:
    """Return the default candidates of a task, and the one that is chosen unless another is clearly better.

    The latter is None if the best is chosen. With ``every_column``, each column alone is one more candidate, unless the
    task is a forecast, whose columns all stand beside the raw past.
    """
    task = known.task
    # The rules for windows of values and symbols hold for a single model that reads such windows.
    native = len(known.views) > 1 or known.view.spec.input.kind == "native"
    candidates = readout_candidates(
        task,
        kind_of(task),
        known.columns,
        known.widths,
        known.rows["train"],
        cross_validated=cross_validated,
        native=native,
    )
    # Rolling statistics are computed from the prepared data. Without it, candidates lose them.
    if not known.view.has_raw:
        candidates = tuple(
            tuple(column for column in candidate if column != ROLLING) for candidate in candidates
        )
    default = default_columns(candidates, task)
    if every_column and not task.horizon:
        candidates = tuple(dict.fromkeys([*candidates, *((column,) for column in known.columns)]))
    return candidates, default


def make_fitter(
    options: FitOptions, classes: int, folds: int = 0, repeats: int = 1, gap: int | None = None
) -> Fitter:
    """Return the fitter for the options, the number of classes (0 for values), and the folds of `choose_folds`.

    Raise `InputError` for options that the kind of readout does not have. ``folds`` is 0 if validation rows choose.
    Forecasts have a ``gap``, see `ForecastFitter`; it is None for all other tasks.
    """
    readout, balanced = options.readout, options.class_weight == "balanced"
    kind = _kind_of_readout(readout)
    _check_readout(options, kind, classes, folds, is_forecast=gap is not None)
    if kind == "estimator":
        return EstimatorFitter.parse(readout, classes, balanced=balanced)
    # Penalties that the user names are all that are tried.
    defaults = {"ridge": DEFAULT_ALPHAS, "logistic": LOGISTIC_ALPHAS, "arccos": KERNEL_ALPHAS}
    alphas = parse_alphas(options.alphas) if options.alphas else defaults[kind]
    if kind == "arccos":
        return KernelFitter(
            classes=classes,
            alphas=alphas,
            rows=parse_rows(readout),
            refits=options.select == "auto",
        )
    shared: dict[str, Any] = {
        "classes": classes,
        "alphas": alphas,
        "balanced": balanced,
        "widens": not options.alphas,
    }
    if kind == "logistic":
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


def _kind_of_readout(readout: str) -> str:
    """Return the kind of the readout that an option names: ``ridge``, ``logistic``, ``arccos`` or ``estimator``."""
    if readout in ("ridge", "logistic"):
        return readout
    # "arccos" may have settings after a colon. Any other name is the import path of an estimator.
    return "arccos" if readout.partition(":")[0] == "arccos" else "estimator"


def _check_readout(options: FitOptions, kind: str, classes: int, folds: int, *, is_forecast: bool) -> None:
    """Raise `InputError` for options, labels or folds that a kind of readout does not have."""
    is_balanced = options.class_weight == "balanced"
    if not classes and (is_balanced or kind == "logistic"):
        flag = "--class-weight balanced" if is_balanced else "--readout logistic"
        raise InputError(f"{flag}: the task has no classes", "remove the flag")
    if folds and kind != "ridge":
        raise InputError(
            f"--select {options.select}: cross-validation is only for ridge", "pass --select valid"
        )
    if kind == "arccos" and (is_balanced or is_forecast):
        unsupported = "--class-weight balanced" if is_balanced else "forecasts"
        raise InputError(f"--readout arccos: not for {unsupported}", "use --readout ridge")
    if kind == "estimator" and options.alphas:
        problem = f"--alphas: {options.readout} takes its parameters after a colon"
        raise InputError(f"{problem}, as in sklearn.svm.LinearSVC:C=0.1,1")


def parse_curve(options: FitOptions) -> tuple[int, ...]:
    """Return the numbers of rows of the learning curve; empty if the user asks for no curve."""
    curve = options.curve
    if not curve:
        return ()
    if options.readout != "ridge":
        raise InputError(f"--curve {curve}: a learning curve needs --readout ridge")
    with as_input_error(f"--curve {curve}: not a list of numbers of rows", "write 100,1000"):
        sizes = tuple(map(int, curve.split(",")))
    if min(sizes) < 1:
        raise InputError(f"--curve {curve}: give positive numbers of rows")
    return sizes


def curve_notes(options: FitOptions, train_rows: int) -> list[str]:
    """Return a note that the learning curve ends at all training rows, if the user asks for more than there are."""
    if not options.curve or max(parse_curve(options)) <= train_rows:
        return []
    return [f"--curve {options.curve}: the curve ends at all {count_text(train_rows, 'training row')}"]


def _race_saves_time(sources: Sequence[EntrySource], train_rows: int) -> bool:
    """Return whether the columns of the ``sources`` are so many, or so wide, that a race saves time."""
    are_many = len(sources) >= RACED_COLUMNS
    widest = max(source.width() for source in sources)
    are_wide = len(sources) > 1 and min(widest, train_rows) >= RACED_WIDTH
    return are_many or are_wide


def _race(known: Known, groups: np.ndarray | None, *, cross_validated: bool) -> Known | None:
    """Return the columns in random rows of each split, for a race (see `Candidates.race`).

    None if train has few rows, or if a class of train, or a group, has none of the drawn rows. ``groups`` are those of
    the rows of train, then valid.
    """
    train, valid = known.view["train"], known.view["valid"]
    if train.rows < RACED_ROWS:
        return None
    # In cross-validation, the same share of both splits is drawn. Otherwise, the rows of valid only score the readouts,
    # which is fast, so they may be more.
    train_size = min(max(round(RACE_SHARE * train.rows), MIN_RACE_ROWS), MAX_RACE_ROWS)
    valid_size = min(valid.rows, RACE_VALID_ROWS)
    if cross_validated:
        valid_size = round(train_size * valid.rows / train.rows)
    generator = np.random.default_rng(0)
    row_numbers = {
        "train": np.sort(generator.permutation(train.rows)[:train_size]),
        "valid": np.sort(generator.permutation(valid.rows)[:valid_size]),
    }
    # Fits to these rows can only stand for fits to all rows if no class and no group is missing.
    drawn = np.concatenate([row_numbers["train"], train.rows + row_numbers["valid"]])  # as in ``groups``
    has_all_groups = groups is None or len(np.unique(groups[drawn])) == len(np.unique(groups))
    are_targets = train.labels.dtype.kind == "f"  # numbers, which have no classes
    has_all_classes = are_targets or np.isin(train.labels, train.labels[row_numbers["train"]]).all()
    return replace(known, row_numbers=row_numbers) if has_all_groups and has_all_classes else None
