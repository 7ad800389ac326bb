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
# Penalties of logistic regression: few, because each is solved for each fold.
ALPHAS = np.logspace(-1, 4, 6)
CHEAP = 4e10  # multiplications that logistic regression may always take: a few seconds
# Cost of the Python calls for an output of four classes, in multiplications: 1,000 outputs took a minute for each fold.
CALLS = 2e8
# Least training samples of logistic regression: with fewer, it would not be a fair baseline.
MIN_ROWS = 1000


def fit_baselines(known: Known, fits: list[ColumnFit], fitter: Fitter, chooses: bool) -> list[Choice]:
    """Return the best readout of each baseline, the raw input first.

    The only baseline of words or tokens with labels is what each tells alone. If the prepared data is missing, there
    are no baselines, and a notice is printed.

    Baselines have the rows and the folds of the ``fits`` of columns; logistic regression has the first repeat of
    the folds alone. If the folds cannot tell readouts apart, ``chooses`` is False; baselines then have the same fixed
    penalty as the columns.
    """
    raw = known.raw()
    if known.task.labels_text_tokens and (identity := fit_identity(known, fitter)):
        return [identity]
    if raw is None:
        notify(f"baselines: skipped, because the prepared data is missing; {known.view.data_remedy}")
        return []
    task = raw.task
    # The raw input may be among the columns, and need not be fitted again by the same fitter.
    fit_of_raw = next((fit for fit in fits if fit.columns == (RAW,)), None)
    # If each token has a label, the baseline reads a token with its neighbours, the columns a single token.
    if task.labels_each_token:
        raw = _with_windows(raw, known, task)
        fit_of_raw = None
    # If the user chose a single penalty for the columns, the baseline tries others, too.
    ridge = _ridge_of(fitter, chooses=chooses)
    if fitter.kind == "ridge" and ridge is not fitter:
        fit_of_raw = None
    best_of_raw = _best_of_raw(raw, known, fits, fitter, ridge, fit_of_raw, chooses=chooses)
    if isinstance(ridge, ForecastFitter):
        return [best_of_raw, *simple_forecasts(raw, ridge)]
    # Statistics learn their vocabulary from the training rows.
    baselines = [best_of_raw]
    for statistic in learn_statistics(task, lambda: raw.rows("train")):
        source = replace(raw, baseline=Baseline(statistic.name), features=statistic)
        baselines.append(Choice(fit_source(ridge, source), source, ridge))
    if not task.classes:
        baselines.append(_mean(raw, ridge))
    return baselines


def _best_of_raw(
    raw: RawSource[KnownSplit],
    known: Known,
    fits: list[ColumnFit],
    fitter: Fitter,
    ridge: RidgeFitter,
    fit_of_raw: ColumnFit | None,
    *,
    chooses: bool,
) -> Choice:
    """Return the best readout of the raw input by ridge, by the fitter of columns, and by logistic regression.

    ``fits`` are those of columns by ``fitter``, and ``fit_of_raw`` is that of the raw input if it is one of them.
    """
    sources_and_fitters: list[tuple[RawSource[KnownSplit], Fitter]] = [(raw, ridge)]
    # A kernel of many rows takes as long for the raw input as for a column, so this baseline is left out.
    takes_long = isinstance(fitter, KernelFitter) and known.rows["train"] > CHOICE_ROWS
    if fitter.kind not in ("ridge", "logistic") and not takes_long:
        sources_and_fitters.append((raw, fitter))
    # Logistic regression, unless it is the fitter of the columns and has fitted the raw input already.
    if raw.task.classes and chooses and not (fit_of_raw and fitter.kind == "logistic"):
        sources_and_fitters += _logistic(raw, known, fitter, fits)
    choices = [Choice(fit_of_raw, raw, fitter)] if fit_of_raw else []
    for source, fitter_of_source in sources_and_fitters:
        is_fitted_already = fit_of_raw is not None and fitter_of_source is fitter
        if not is_fitted_already:
            fit = _naming_rows(fit_source(fitter_of_source, source), source)
            choices.append(Choice(fit, source, fitter_of_source))
    return max(choices, key=lambda choice: choice.fit.result.sort_key)


def _ridge_of(fitter: Fitter, *, chooses: bool) -> RidgeFitter:
    """Return the ridge fitter of baselines: the ``fitter`` of columns, if it is one of ridge with several penalties.

    ``chooses`` is as in `Candidates`.
    """
    if not isinstance(fitter, RidgeFitter):
        return RidgeFitter(
            classes=fitter.classes, alphas=DEFAULT_ALPHAS, balanced=fitter.balanced, refits=fitter.refits
        )
    # A single penalty was chosen by the user for the columns, so a baseline tries all penalties. If the folds cannot
    # tell readouts apart (``chooses`` is False), the single penalty is `FIXED_ALPHA`, and baselines have it, too.
    if len(fitter.alphas) == 1 and chooses:
        return replace(fitter, alphas=DEFAULT_ALPHAS, widens=True)
    return fitter


def _logistic_of(fitter: Fitter) -> LogisticFitter:
    """Return the logistic fitter of a baseline, with the first repeat of the folds of the ``fitter`` of columns."""
    # The penalties are those of a logistic fitter of columns, unless the user chose a single one for the columns.
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
    """Return a fit whose results say how many of the training rows were fitted, if these were not all."""
    if not source.row_numbers:
        return fit
    rows = f"on {len(source.row_numbers['train']):,} of {source.view['train'].rows:,} training rows"
    results = tuple(replace(result, readout=f"{result.readout} {rows}") for result in fit.results)
    return replace(fit, results=results)


def _mean(raw: RawSource[KnownSplit], ridge: RidgeFitter) -> Choice:
    """Return the readout of a constant feature, which predicts the mean of the training rows."""
    source = replace(raw, baseline=Baseline(MEAN), features=Statistic(name=MEAN))
    # Any penalty gives the same readout, so the result shows none.
    fit = fit_source(replace(ridge, alphas=np.ones(1), widens=False), source)
    constant_fit = replace(fit, results=(replace(fit.result, readout="constant", alpha=None),))
    return Choice(constant_fit, source, ridge)


def _logistic(
    raw: RawSource[KnownSplit], known: Known, fitter: Fitter, fits: list[ColumnFit]
) -> list[tuple[RawSource[KnownSplit], Fitter]]:
    """Return the raw input with the fitter of its logistic regression, as a list of one pair.

    The source reads every ``step``-th training row, with the smallest step for which logistic regression takes at most
    a quarter of the work of the columns, or `CHEAP`. If no step that leaves enough rows does, the list is empty, and a
    notice is printed. ``fits`` are those of columns by ``fitter``.
    """
    samples, outputs = raw.labels("train").shape
    width, classes = raw.width(), fitter.classes
    number_of_fits = fitter.folds + 1  # without each fold, and to all rows

    def work(step: int) -> float:
        """Return the estimated multiplications of all fits to every ``step``-th training sample."""
        fitted_samples = samples / step
        axes = min(fitted_samples, width)  # number of principal axes, along which the solver works
        # The products of features with each other, or of samples if these are fewer. They are a matrix (axes, axes),
        # whose eigenvectors, the axes, take about 10 axes^3 multiplications.
        work_of_products = axes * fitted_samples * width
        work_of_eigenvectors = 10 * axes**3
        # About a hundred passes, of ten multiplications for each value.
        work_of_passes = 1000 * axes * fitted_samples * outputs * classes
        work_of_calls = CALLS * outputs * max(1, classes / 4)
        return number_of_fits * (work_of_products + work_of_eigenvectors + work_of_passes + work_of_calls)

    # The fits of columns take about samples * width * min(samples, width) multiplications each.
    widths = [known.source(fit.columns).width() for fit in fits]
    work_of_columns = sum(samples * column_width * min(samples, column_width) for column_width in widths)
    allowed_work = max(CHEAP, work_of_columns / 4)
    # The smallest step leaves out the fewest rows. The largest one leaves about `MIN_ROWS` samples. If rows have many
    # samples, that step could be larger than the number of rows; but from this number on, every step leaves the first
    # row alone, so larger steps are not tried.
    all_rows = raw.view["train"].rows
    largest_step = max(1, min(samples // MIN_ROWS, all_rows))
    steps = range(1, largest_step + 1)
    step = next((step for step in steps if work(step) <= allowed_work), None)
    if step is None:
        notify(f"{raw.name}: only ridge is fitted, because logistic regression takes too long")
        return []
    # With step 1, the source is that of the ridge baseline, whose features are already in memory if they are small.
    source = raw
    if step > 1:
        source = replace(raw, row_numbers={"train": np.arange(0, all_rows, step)})
    return [(source, _logistic_of(fitter))]


def _with_windows(raw: RawSource[KnownSplit], known: Known, task: Task) -> RawSource[KnownSplit]:
    """Return the raw input in windows around each token that has a label.

    They have the size of the reservoir's windows, or `WINDOW` tokens if it has none.
    """
    model_input = known.view.spec.input
    has_windows = model_input.patch > 1  # the patch of imported features is 1
    patch = model_input.patch if has_windows else WINDOW
    windows = Windows(patch=patch, dilations=model_input.dilations, pad="same")
    features = RawWindows(task, raw.scaling, windows)
    return replace(raw, baseline=Baseline(f"{RAW}, windows of {patch}"), features=features)
