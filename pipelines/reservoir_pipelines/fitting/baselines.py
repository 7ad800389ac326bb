"""Baselines without a reservoir: linear models of the raw input, and of its simple statistics."""

from dataclasses import replace

import numpy as np

from reservoir.column import RAW, Baseline
from reservoir.raw_input import RawWindows
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir.tasks.task import Task
from reservoir.tasks.windows import Windows
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.fitter import Choice, ColumnFit, Fitter, fit_source
from reservoir_pipelines.fitting.forecast_fitter import ForecastFitter, simple_forecasts
from reservoir_pipelines.fitting.identity import fit_identity
from reservoir_pipelines.fitting.kernel_fitter import CHOICE_ROWS, KernelFitter
from reservoir_pipelines.fitting.logistic_fitter import LogisticFitter
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.source import KnownSplit, RawSource
from reservoir_pipelines.fitting.statistics import MEAN, Statistic, learn_statistics
from reservoir_pipelines.output import notify

WINDOW = 9  # tokens of a window, if the reservoir has no windows
ALPHAS = np.logspace(-1, 4, 6)  # penalties of logistic regression, which is solved for each fold
CHEAP = 4e10  # multiplications that logistic regression may always take: a few seconds
# Cost of the Python calls for an output of four classes, in multiplications: 1,000 outputs took a minute for each fold.
CALLS = 2e8
MIN_ROWS = 1000  # training samples; with fewer, logistic regression would not be a fair baseline


def fit_baselines(known: Known, fits: list[ColumnFit], fitter: Fitter, chooses: bool) -> list[Choice]:
    """Return the best readout of each baseline, the raw input first; none if the prepared data was removed.

    The only baseline of words or tokens with labels is what each tells alone.

    Baselines have the rows and the folds of the ``fits`` of columns; logistic regression has the first repeat of
    the folds alone. If the folds cannot tell readouts apart, ``chooses`` is False; baselines then have the same fixed
    penalty as the columns.
    """
    raw = known.raw()
    if known.task.labels_text_tokens and (identity := fit_identity(known, fitter)):
        return [identity]
    if raw is None:
        notify("baselines: skipped, because the prepared data was removed; run reservoir prepare")
        return []
    task = raw.task
    # The raw input may be among the columns; as a baseline it is not fitted again by the same fitter.
    fit_of_raw = next((fit for fit in fits if fit.columns == (RAW,)), None)
    # The baseline reads each token with its neighbours. The fit of the columns, to single tokens, has another input.
    if task.labels_each_token:
        raw = _with_windows(raw, known, task)
        fit_of_raw = None
    ridge = _ridge_of(fitter, chooses=chooses)
    if fitter.kind == "ridge" and ridge is not fitter:
        # That fit tried only the penalty that the user chose for the columns, while the baseline tries all.
        fit_of_raw = None
    # Fit the raw input by ridge, by the fitter of the columns, and by logistic regression, each once.
    sources_and_fitters: list[tuple[RawSource[KnownSplit], Fitter]] = [(raw, ridge)]
    # A kernel of many rows takes as long for the raw input as for a column, so this baseline is left out.
    rows_of_raw = known.rows["train"]
    takes_long = isinstance(fitter, KernelFitter) and rows_of_raw > CHOICE_ROWS
    if fitter.kind not in ("ridge", "logistic") and not takes_long:
        sources_and_fitters.append((raw, fitter))
    # Logistic regression, unless it is the fitter of the columns and has fitted the raw input already.
    if task.classes and chooses and not (fit_of_raw and fitter.kind == "logistic"):
        sources_and_fitters += _logistic(raw, known, fitter, fits)
    choices = [Choice(fit_of_raw, raw, fitter)] if fit_of_raw else []
    for source, raw_fitter in sources_and_fitters:
        is_fitted_already = fit_of_raw is not None and raw_fitter is fitter
        if not is_fitted_already:
            fit = _naming_rows(fit_source(raw_fitter, source), source)
            choices.append(Choice(fit, source, raw_fitter))
    baselines = [max(choices, key=lambda choice: choice.fit.result.sort_key)]
    if isinstance(ridge, ForecastFitter):
        return [*baselines, *simple_forecasts(raw, ridge)]
    # Statistics learn their vocabulary from the training rows.
    for statistic in learn_statistics(task, lambda: raw.rows("train")):
        source = replace(raw, baseline=Baseline(statistic.name), features=statistic)
        baselines.append(Choice(fit_source(ridge, source), source, ridge))
    if not task.classes:
        baselines.append(_mean(raw, ridge))
    return baselines


def _ridge_of(fitter: Fitter, *, chooses: bool) -> RidgeFitter:
    """Return the ridge fitter of a baseline beside a fitter of columns; ``chooses`` as in `Candidates`."""
    if not isinstance(fitter, RidgeFitter):
        return RidgeFitter(classes=fitter.classes, alphas=DEFAULT_ALPHAS, balanced=fitter.balanced)
    # A single penalty was chosen by the user for the columns, so a baseline tries all penalties. If the folds cannot
    # tell readouts apart (``chooses`` is False), the single penalty is `FIXED_ALPHA`, and baselines have it, too.
    if len(fitter.alphas) == 1 and chooses:
        return replace(fitter, alphas=DEFAULT_ALPHAS, widens=True)
    return fitter


def _logistic_of(fitter: Fitter) -> LogisticFitter:
    """Return the logistic fitter of a baseline, with the first folds of a fitter of columns and its rows."""
    alphas = ALPHAS
    if isinstance(fitter, LogisticFitter) and len(fitter.alphas) > 1:
        alphas = fitter.alphas
    return LogisticFitter(
        classes=fitter.classes,
        alphas=alphas,
        balanced=fitter.balanced,
        folds=fitter.folds,
        repeats=1,  # each fold is solved anew for each penalty, which took half the time of a fit of a few hundred rows
        refits=fitter.refits,
    )


def _naming_rows(fit: ColumnFit, source: RawSource[KnownSplit]) -> ColumnFit:
    """Return a fit that names its training rows beside its readout, if they are not all."""
    if not source.row_numbers:
        return fit
    rows = f"on {len(source.row_numbers['train']):,} of {source.view['train'].rows:,} training rows"
    results = tuple(replace(result, readout=f"{result.readout} {rows}") for result in fit.results)
    return replace(fit, results=results)


def _mean(raw: RawSource[KnownSplit], ridge: RidgeFitter) -> Choice:
    """Return the readout of a constant feature, which predicts the mean of the training rows."""
    mean = replace(raw, baseline=Baseline(MEAN), features=Statistic(name=MEAN))
    fit = fit_source(replace(ridge, alphas=np.ones(1), widens=False), mean)
    constant = replace(fit, results=(replace(fit.result, readout="constant", alpha=None),))
    return Choice(constant, mean, ridge)


def _logistic(
    raw: RawSource[KnownSplit], known: Known, fitter: Fitter, fits: list[ColumnFit]
) -> list[tuple[RawSource[KnownSplit], Fitter]]:
    """Return the raw input with the fitter of its logistic regression, as a list of one pair.

    The source reads every ``step``-th training row, with the smallest step for which logistic regression takes at most
    a quarter of the work of the columns, or `CHEAP`. The list is empty if no step that leaves enough rows does.
    """
    samples, outputs = raw.labels("train").shape
    width, classes = raw.width(), fitter.classes
    fits_of_logistic = fitter.folds + 1

    def work(step: int) -> float:
        """Return the number of multiplications of all fits to each ``step``-th training sample."""
        read_samples = samples / step
        axes = min(read_samples, width)  # number of principal axes, in which the solver works
        work_of_moments = axes * read_samples * width
        work_of_axes = 10 * axes**3
        # About a hundred passes, of ten multiplications for each value.
        work_of_passes = 1000 * axes * read_samples * outputs * classes
        work_of_calls = CALLS * outputs * max(1, classes / 4)
        return fits_of_logistic * (work_of_moments + work_of_axes + work_of_passes + work_of_calls)

    # The fits of columns take about samples * width * min(samples, width) multiplications each.
    widths = [known.source(fit.columns).width() for fit in fits]
    work_of_columns = sum(samples * column_width * min(samples, column_width) for column_width in widths)
    allowed_work = max(CHEAP, work_of_columns / 4)
    # The smallest step is the one that leaves out the fewest rows; `MIN_ROWS` limits it. A row may have many samples,
    # and a step beyond the number of rows would still read those of the first row.
    all_rows = raw.view["train"].rows
    steps = range(1, 1 + max(1, min(samples // MIN_ROWS, all_rows)))
    step = next((step for step in steps if work(step) <= allowed_work), None)
    if step is None:
        notify(f"{raw.name}: only ridge is fitted, because logistic regression takes too long")
        return []
    # With step 1, the source is that of the ridge baseline, whose features are already in memory if they are small.
    source = replace(raw, row_numbers={"train": np.arange(0, all_rows, step)}) if step > 1 else raw
    return [(source, _logistic_of(fitter))]


def _with_windows(raw: RawSource[KnownSplit], known: Known, task: Task) -> RawSource[KnownSplit]:
    """Return the raw input in windows around each token that has a label.

    They have the size of the reservoir's windows, or `WINDOW` tokens if it has none.
    """
    model_input = known.view.spec.input  # of imported features, too: their patch is 1
    patch = model_input.patch if model_input.patch > 1 else WINDOW
    windows = Windows(patch=patch, dilations=model_input.dilations, pad="same")
    features = RawWindows(task, raw.scaling, windows)
    return replace(raw, baseline=Baseline(f"{RAW}, windows of {patch}"), features=features)
