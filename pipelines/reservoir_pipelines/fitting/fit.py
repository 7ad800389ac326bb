"""The stage ``fit``: every column under every setting of a readout, chosen by validation and scored on test once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reservoir_cache import make_folder

from reservoir.column import RAW, joined_name
from reservoir.errors import InputError, as_input_error
from reservoir.options import DeviceOptions, FitOptions
from reservoir.readouts.products import Arithmetic, products_on
from reservoir.reservoir import choose_device
from reservoir.tasks import source_of
from reservoir_pipelines.files import writing
from reservoir_pipelines.fitting.baselines import fit_baselines
from reservoir_pipelines.fitting.bundle import CARD
from reservoir_pipelines.fitting.candidates import Candidates, choose_candidates, make_fitter
from reservoir_pipelines.fitting.cost import cost_line
from reservoir_pipelines.fitting.evaluate import Scores, Test, evaluate_all, evaluate_curve, predictions_of
from reservoir_pipelines.fitting.fitter import Fitter
from reservoir_pipelines.fitting.pool import Features, Known, Pool
from reservoir_pipelines.fitting.predictions import BEST, PREDICTIONS, ReadoutPredictions
from reservoir_pipelines.fitting.refit import FinalReadout, Layer, refit_all, refit_layers
from reservoir_pipelines.fitting.results import CurvePoint, Fit
from reservoir_pipelines.fitting.save import save
from reservoir_pipelines.fitting.select import Selection, expected_sizes, select
from reservoir_pipelines.fitting.verdicts import cautions, compare_with, layer_scores
from reservoir_pipelines.output import count_text, notify
from reservoir_pipelines.weight_files import caution_if_changed


def fit(features: Features | Sequence[Features] | Pool, options: FitOptions, place: DeviceOptions) -> Fit:
    """Fit a readout to every column under every setting, and choose one by validation."""
    started = time.monotonic()
    # Open the entries. All that selects gets ``known``, which has no test rows.
    pool = _open(features)
    known, task = pool.known, pool.task
    candidates = choose_candidates(known, options)
    fitter = make_fitter(options, task.classes, candidates.folds, candidates.repeats)
    fitter = fitter if candidates.chooses else fitter.without_choice()
    sizes = _curve_sizes(options, fitter, known.rows["train"])
    arithmetic = _arithmetic(place)
    default_folder = known.folder(candidates.all_columns, options)
    folder = _create(Path(options.out) if options.out else default_folder)
    _announce(known, candidates, fitter)
    with products_on(arithmetic):
        # Choose readouts, and fit them to all rows that may be used.
        selection = select(known, candidates, fitter, fit_baselines, sizes)
        finals = refit_all(selection.choices, task)
        layers = refit_layers(known, selection.fits, fitter, finals[0])
        # Nothing can change any more. Read the test rows, once for each readout that is shown.
        test = Test(pool.stores)
        scores = evaluate_all([*finals, *(layer.final for layer in layers)], test, task)
        curve = evaluate_curve(selection.curve, finals[0].source, test)
    # Compare with baselines, save the chosen readout, and write what it predicts.
    readouts = _Readouts(finals=finals, saved=finals[selection.saved], layers=layers, scores=scores)
    result = _result(known, selection, readouts, curve, folder, started)
    save(
        result,
        known,
        scores[finals[0]].result,
        readouts.saved,
        readouts.predictions,
        scores[readouts.saved].rows,
        default_folder,
        options,
    )
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class _Readouts:
    """All readouts that a fit shows, with their scores on test."""

    finals: list[FinalReadout]  # the best of the reservoir, then that of each baseline
    saved: FinalReadout
    layers: list[Layer]
    scores: dict[FinalReadout, Scores]

    @property
    def predictions(self) -> list[ReadoutPredictions]:
        """The predictions of the readout that is saved, of every baseline and of every layer."""
        named = [(BEST, self.saved)]
        named += [(final.result.name, final) for final in self.finals[1:]]
        named += [(layer.name, layer.final) for layer in self.layers]
        return [predictions_of(name, final, self.scores[final]) for name, final in named]


def _result(
    known: Known,
    selection: Selection,
    readouts: _Readouts,
    curve: tuple[CurvePoint, ...],
    folder: Path,
    started: float,
) -> Fit:
    """Return the result of a fit; print what the test rows show against baselines, and cautions."""
    chosen, *baselines = (readouts.scores[final] for final in readouts.finals)
    saved = readouts.scores[readouts.saved]
    # The raw input alone is no reservoir, so there is nothing to compare.
    compared = baselines if readouts.finals[0].source.columns != (RAW,) else []
    against = tuple(compare_with(chosen, baseline) for baseline in compared)
    notify(*(comparison.sentence for comparison in against if comparison.verdict != "adds"))
    notify(*cautions(saved, selection.choices[selection.saved].fit, selection.units))
    return Fit(
        entry=known.entry.path,
        best=saved.result,
        evaluation=saved.evaluation,
        raw=baselines[0].result if baselines else None,
        baselines=tuple(baseline.result for baseline in baselines),
        against=against,
        left_out=selection.left_out,
        table=tuple(result for fit in selection.fits for result in fit.results),
        layer_scores=layer_scores(readouts.layers, readouts.scores, known.task),
        curve=curve,
        readout=readouts.saved.readout,
        results=folder / "results.csv",
        plot=folder / "sweep.png",
        saved=folder / CARD,
        predictions=folder / PREDICTIONS,
        seconds=round(time.monotonic() - started, 3),
    )


def _create(folder: Path) -> Path:
    """Create the folder of the results and return it."""
    with writing(folder):
        make_folder(folder)
    return folder


def _announce(known: Known, candidates: Candidates, fitter: Fitter) -> None:
    """Print what is fitted and what it will cost, if this is much."""
    notify(f"fit {known.task.name}: {_how(candidates, known.rows['train'])}")
    notify(*filter(None, [cost_line(expected_sizes(known, candidates, fitter))]))


def _open(features: Features | Sequence[Features] | Pool) -> Pool:
    """Open the entries; refuse those whose test rows choose readouts, and say if weights have changed since."""
    pool = Pool.of(features)
    if obstacle := source_of(pool.task).no_selection:
        problem = f"{pool.task.name}: {obstacle.reason}, which choose readouts"
        raise InputError(problem, f"{obstacle.remedy}, and extract it again")
    for store in pool.stores:
        caution_if_changed(store.entry)
    return pool


def _curve_sizes(options: FitOptions, fitter: Fitter, rows: int) -> tuple[int, ...]:
    """Return the numbers of rows of the learning curve, if one is asked for."""
    if not options.curve:
        return ()
    if not fitter.has_curve:
        raise InputError(f"--curve {options.curve}: a learning curve needs --readout ridge")
    return _parse_sizes(options.curve, rows)


def _arithmetic(place: DeviceOptions) -> Arithmetic:
    """Return where products are computed."""
    device = choose_device(place.device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {place.device}: readouts are fitted on cpu or cuda")
    return Arithmetic(None if device.type == "cpu" else str(device))


def _how(candidates: Candidates, rows: int) -> str:
    """Return what is fitted and how a readout is chosen, in words."""
    if not candidates.chooses:
        problem = "nothing is chosen, because no fold can hold out most of the classes and still fit them"
        name = joined_name(candidates.columns[0])
        instead = f"the readout is {name} with a fixed penalty, and validation scores mean nothing"
        return f"{problem}; {instead}; add rows (or groups) of each class"
    grouped = " by group" if candidates.groups is not None else ""
    how = f"{candidates.folds}-fold cross-validation{grouped}" if candidates.folds else "valid"
    return f"{count_text(len(candidates.columns), 'column')} on {rows:,} rows, chosen by {how}"


def _parse_sizes(text: str, rows: int) -> tuple[int, ...]:
    """Return ``100,1000,10000`` as ascending numbers of rows, none larger than ``rows``."""
    with as_input_error(f"--curve {text}: not a list of numbers of rows", "write 100,1000"):
        sizes = {min(int(part), rows) for part in text.split(",")}
    if min(sizes) < 1:
        raise InputError(f"--curve {text}: give positive numbers of rows")
    return tuple(sorted(sizes))
