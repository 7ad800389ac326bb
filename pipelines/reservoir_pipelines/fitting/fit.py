"""The stage ``fit``: every column under every setting of a readout, chosen by validation and scored on test once."""

import time
from collections.abc import Sequence
from pathlib import Path

from reservoir_cache import make_folder

from reservoir.errors import InputError, as_input_error
from reservoir.options import DeviceOptions, FitOptions
from reservoir.plan import RAW
from reservoir.readouts.ridge import Arithmetic, products_on
from reservoir.reservoir import choose_device
from reservoir.tasks import TASKS, valid_is_test
from reservoir_pipelines.files import writing
from reservoir_pipelines.fitting.baselines import CHEAP, fit_baselines
from reservoir_pipelines.fitting.bundle import CARD
from reservoir_pipelines.fitting.choice import better_baseline, cautions, choose_fit, compare_with
from reservoir_pipelines.fitting.cost import cost_line, work_meter
from reservoir_pipelines.fitting.fitters import (
    FinalReadout,
    Fitter,
    RidgeFitter,
    expected_sizes,
    finish_all,
    fit_columns,
    make_fitter,
    size_of,
    without_choice,
)
from reservoir_pipelines.fitting.layers import layer_scores
from reservoir_pipelines.fitting.predictions import final_predictions
from reservoir_pipelines.fitting.predictions_file import PREDICTIONS
from reservoir_pipelines.fitting.publish import publish
from reservoir_pipelines.fitting.results import Fit
from reservoir_pipelines.fitting.sources import KNOWN, Features, Pool, Tried, choose_columns, held_out_units
from reservoir_pipelines.output import count_text, notify
from reservoir_pipelines.weight_files import caution_if_changed


def fit(features: Features | Sequence[Features] | Pool, options: FitOptions, place: DeviceOptions) -> Fit:
    """Fit a readout to every column under every setting, and choose one by validation."""
    started = time.monotonic()
    pool = _open(features)
    task = pool.task
    tried = choose_columns(pool, options)
    fitter = make_fitter(options, task.classes, tried.folds, tried.repeats)
    fitter = fitter if tried.chooses else without_choice(fitter)
    sizes = _curve_sizes(options, fitter, pool.rows["train"])
    arithmetic = _arithmetic(place)
    folder = Path(options.out) if options.out else tried.folder
    with writing(folder):
        make_folder(folder)
    notify(f"fit {task.name}: {_how(tried, pool.rows['train'])}")
    raw_source = pool.raw()
    expected = expected_sizes(pool, tried, fitter) + ([size_of(raw_source, fitter)] if raw_source else [])
    notify(*filter(None, [cost_line(expected)]))
    with products_on(arithmetic):
        # Choose: every candidate is fitted and compared on validation rows, or on the held-out rows of the folds.
        fits, left_out = fit_columns(pool, tried, fitter)
        units = held_out_units(pool.source(tried.columns[0]), KNOWN if tried.folds else ("valid",))
        best = choose_fit(fits, units, tried.default)
        source = pool.source(best.result.name)
        curve = fitter.learning_curve(source, sizes) if sizes and isinstance(fitter, RidgeFitter) else ()
        # The raw input is fitted by ridge and perhaps by logistic regression, and statistics of it take less.
        work = 2 * expected[-1].work + (CHEAP if task.classes else 0)
        with work_meter("baselines", [work]) as part, part(work):
            baseline_fits = fit_baselines(pool, fits, fitter, chooses=tried.chooses)
        fitted = [(best, source, fitter), *baseline_fits]
        # A named task is a benchmark of the reservoir. On the user's own data, a baseline is saved if it is better.
        own = options.columns == "all" and task.name not in TASKS and not task.each
        rivals = [fit for fit, *_ in baseline_fits] if own and tried.chooses else []
        better = better_baseline(best, rivals, units)
        number = 0 if better is None else 1 + rivals.index(better)
        # Everything is chosen now. Refit, and score on the test rows.
        finals = finish_all(fitted, task)
        chosen, *baselines = finals
        kept = finals[number]
        # The raw input alone is no reservoir, so there is nothing to compare.
        compared = baselines if best.result.columns != (RAW,) else []
        against = tuple(compare_with(chosen, baseline) for baseline in compared)
        notify(*(one.sentence for one in against if one.verdict != "adds"))
        _warn(kept, cautions(kept, fitted[number][0], units))
        # Test rows of other layers are scored for display only.
        scores, of_layers = layer_scores(pool, fits, fitter, (fitted[0], chosen))
        predictions = [*final_predictions(fitted, finals, kept), *of_layers]
    done = Fit(
        entry=pool.entry.path,
        best=kept.result,
        evaluation=kept.evaluation,
        raw=baselines[0].result if baselines else None,
        baselines=tuple(one.result for one in baselines),
        against=against,
        left_out=left_out,
        table=tuple(result for fit in fits for result in fit.results),
        layer_scores=scores,
        curve=curve,
        readout=kept.readout,
        results=folder / "results.csv",
        plot=folder / "sweep.png",
        saved=folder / CARD,
        predictions=folder / PREDICTIONS,
        seconds=round(time.monotonic() - started, 3),
    )
    publish(done, pool, chosen.result, kept, predictions, tried.folder, options)
    return done


def _open(features: Features | Sequence[Features] | Pool) -> Pool:
    """Open the entries; refuse those whose test rows choose readouts, and say if weights have changed since."""
    pool = Pool.of(features)
    if valid_is_test(pool.task.name, pool.task.parameters):
        raise InputError(
            f"{pool.task.name}: with --protocol paper its test rows are its validation rows, which choose readouts; "
            "extract it without --protocol paper"
        )
    for store in pool.stores:
        caution_if_changed(store.entry)
    return pool


def _curve_sizes(options: FitOptions, fitter: Fitter, rows: int) -> tuple[int, ...]:
    """Return the numbers of rows of the learning curve, if one is asked for."""
    if not options.curve:
        return ()
    if not isinstance(fitter, RidgeFitter):
        raise InputError(f"--curve {options.curve}: a learning curve needs --readout ridge")
    return _parse_sizes(options.curve, rows)


def _arithmetic(place: DeviceOptions) -> Arithmetic:
    """Return where products are computed."""
    device = choose_device(place.device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {place.device}: readouts are fitted on cpu or cuda")
    return Arithmetic(None if device.type == "cpu" else str(device))


def _how(tried: Tried, rows: int) -> str:
    """Return what is fitted and how a readout is chosen, in words."""
    if not tried.chooses:
        problem = "nothing is chosen, because no fold can hold out most of the classes and still fit them"
        instead = (
            f"the readout is {tried.columns[0]} with a fixed penalty, and validation scores mean nothing"
        )
        return f"{problem}; {instead}; add rows (or groups) of each class"
    grouped = " by group" if tried.groups is not None else ""
    how = f"{tried.folds}-fold cross-validation{grouped}" if tried.folds else "valid"
    return f"{count_text(len(tried.columns), 'column')} on {rows:,} rows, chosen by {how}"


def _parse_sizes(text: str, rows: int) -> tuple[int, ...]:
    """Return ``100,1000,10000`` as ascending numbers of rows, none larger than ``rows``."""
    with as_input_error(f"--curve {text}: not a list of numbers of rows", "write 100,1000"):
        sizes = {min(int(part), rows) for part in text.split(",")}
    if min(sizes) < 1:
        raise InputError(f"--curve {text}: give positive numbers of rows")
    return tuple(sorted(sizes))


def _warn(chosen: FinalReadout, lines: Sequence[str]) -> None:
    """Print cautions: that all test rows get one label, and other ``lines``."""
    result, found = chosen.result, chosen.evaluation
    predicted = found.confusion.sum(axis=0).nonzero()[0]
    if len(predicted) == 1 < len(found.recall) and found.samples == found.rows:
        problem = f"CAUTION: all test rows get the label {found.classes[predicted[0]]!r}"
        balanced = "" if result.metric == "balanced_accuracy" else ", or pass --class-weight balanced"
        notify(f"{problem}, as by a constant; add rows of the other classes{balanced}")
    notify(*lines)
