"""The stage ``fit``: every column under every setting of a readout, chosen by validation and scored on test once."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

from reservoir_cache import make_folder

from reservoir.errors import InputError, as_input_error
from reservoir.options import DeviceOptions, FitOptions
from reservoir.plan import RAW
from reservoir.readouts.evaluation import compare
from reservoir.readouts.ridge import Arithmetic, products_on
from reservoir.reservoir import choose_device
from reservoir.tasks import TASKS
from reservoir_pipelines.files import writing
from reservoir_pipelines.fitting.baselines import CHEAP, fit_baselines
from reservoir_pipelines.fitting.bundle import CARD
from reservoir_pipelines.fitting.cost import cost_line, work_meter
from reservoir_pipelines.fitting.fitters import (
    FinalReadout,
    RidgeFitter,
    expected_sizes,
    finish_all,
    fit_columns,
    make_fitter,
    size_of,
)
from reservoir_pipelines.fitting.layers import layer_scores
from reservoir_pipelines.fitting.predictions import final_predictions
from reservoir_pipelines.fitting.predictions_file import PREDICTIONS
from reservoir_pipelines.fitting.publish import publish
from reservoir_pipelines.fitting.results import Fit
from reservoir_pipelines.fitting.sources import Features, Pool, choose_columns
from reservoir_pipelines.output import count_text, notify

FAR_BELOW = 0.2  # difference of R² between validation and test rows from which a caution is printed


def fit(features: Features | Sequence[Features] | Pool, options: FitOptions, place: DeviceOptions) -> Fit:
    """Fit a readout to every column under every setting, and choose one by validation."""
    started = time.monotonic()
    pool = Pool.of(features)
    tried = choose_columns(pool, options)
    task, rows, folds = pool.task, pool.rows, tried.folds
    fitter = make_fitter(options, task.classes, folds, tried.repeats)
    ridge = fitter if isinstance(fitter, RidgeFitter) else None
    sizes = _parse_sizes(options.curve, rows["train"]) if options.curve else ()
    if sizes and not ridge:
        raise InputError(f"--curve {options.curve}: a learning curve needs --readout ridge")
    device = choose_device(place.device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {place.device}: readouts are fitted on cpu or cuda")
    folder = Path(options.out) if options.out else tried.folder
    with writing(folder):
        make_folder(folder)
    grouped = " by group" if tried.groups is not None else ""
    how = f"{folds}-fold cross-validation{grouped}" if folds else "valid"
    notify(
        f"fit {task.name}: {count_text(len(tried.columns), 'column')} on {rows['train']:,} rows, chosen by {how}"
    )
    raw_source = pool.raw()
    expected = expected_sizes(pool, tried, fitter) + ([size_of(raw_source, fitter)] if raw_source else [])
    notify(*filter(None, [cost_line(expected)]))
    arithmetic = Arithmetic(None if device.type == "cpu" else str(device))
    with products_on(arithmetic):
        fits, left_out = fit_columns(pool, tried, fitter)
        best = max(fits, key=lambda fit: fit.result.merit)
        source = pool.source(best.result.name)
        curve = ridge.learning_curve(source, sizes) if sizes and ridge else ()
        # The raw input is fitted by ridge and perhaps by logistic regression, and statistics of it take less.
        work = 2 * expected[-1].work + (CHEAP if task.classes else 0)
        with work_meter("baselines", [work]) as part, part(work):
            baseline_fits = fit_baselines(pool, fits, fitter)
        fitted = [(best, source, fitter), *baseline_fits]
        finals = finish_all(fitted, task)
    chosen, *baselines = finals
    raw = baselines[0] if baselines else None
    ours = max([fit.result.valid_score for fit in fits if fit.result.columns != (RAW,)], default=math.inf)
    level = tuple(one.result.name for one in baselines if one.result.valid_score >= ours)
    notify(
        *(f"This reservoir adds nothing to {'the raw input' if name == RAW else name}." for name in level)
    )
    # A named task is a benchmark of the reservoir. On the user's own data, the raw input is saved if it scores better.
    own = options.columns == "all" and task.name not in TASKS and not task.each
    kept = raw if own and raw and raw.result.merit > chosen.result.merit else chosen
    # Everything is chosen now. Test rows of other layers are scored after this line, for display only.
    with products_on(arithmetic):
        scores, of_layers = layer_scores(pool, fits, fitter, (fitted[0], chosen))
        predictions = [*final_predictions(fitted, finals, kept), *of_layers]
    table = tuple(result for fit in fits for result in fit.results)
    _warn(kept)
    done = Fit(
        entry=pool.entry.path,
        best=kept.result,
        evaluation=kept.evaluation,
        raw=raw and raw.result,
        baselines=tuple(one.result for one in baselines),
        adds_nothing_to=level,
        left_out=left_out,
        p_value=compare(chosen.evaluation, raw.evaluation) if raw else None,
        table=table,
        layer_scores=scores,
        curve=curve,
        layer_weights=best.layer_weights,
        readout=kept.readout,
        results=folder / "results.csv",
        plot=folder / "sweep.png",
        saved=folder / CARD,
        predictions=folder / PREDICTIONS,
        seconds=round(time.monotonic() - started, 3),
    )
    publish(done, pool, chosen.result, kept.held_out(), predictions, tried.folder, options)
    return done


def _parse_sizes(text: str, rows: int) -> tuple[int, ...]:
    """Return ``100,1000,10000`` as ascending numbers of rows, none larger than ``rows``."""
    with as_input_error(f"--curve {text}: not a list of numbers of rows", "write 100,1000"):
        sizes = {min(int(part), rows) for part in text.split(",")}
    if min(sizes) < 1:
        raise InputError(f"--curve {text}: give positive numbers of rows")
    return tuple(sorted(sizes))


def _warn(chosen: FinalReadout) -> None:
    result, found = chosen.result, chosen.evaluation
    predicted = found.confusion.sum(axis=0).nonzero()[0]
    if len(predicted) == 1 < len(found.recall) and found.samples == found.rows:
        problem = f"CAUTION: all test rows get the label {found.classes[predicted[0]]!r}"
        balanced = "" if result.metric == "balanced accuracy" else ", or pass --class-weight balanced"
        notify(f"{problem}, as by a constant; add rows of the other classes{balanced}")
    if result.metric == "R²" and result.test_score is not None:
        problem = f"CAUTION: R² {result.test_score:.3f} on {found.rows:,} test rows is"
        if result.test_score < 0:
            notify(f"{problem} worse than predicting the mean; add rows or discard the readout")
        elif result.valid_score - result.test_score > FAR_BELOW:
            notify(f"{problem} far below {result.valid_score:.3f} on validation rows")
