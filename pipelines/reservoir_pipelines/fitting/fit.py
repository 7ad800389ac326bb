"""The stage ``fit``: every column under every setting of a readout, chosen by validation and scored on test once."""

import time
from collections.abc import Sequence
from pathlib import Path

from reservoir_cache import make_folder

from reservoir.errors import InputError
from reservoir.options import DeviceOptions, FitOptions
from reservoir.readouts.products import Arithmetic, products_on
from reservoir.reservoir import choose_device
from reservoir.tasks import source_of
from reservoir_pipelines.data.labels import require_labels
from reservoir_pipelines.files import writing
from reservoir_pipelines.fitting.baselines import fit_baselines
from reservoir_pipelines.fitting.bundle import CARD
from reservoir_pipelines.fitting.candidates import announce, choose_candidates
from reservoir_pipelines.fitting.evaluate import Test, evaluate_all, evaluate_curve
from reservoir_pipelines.fitting.pool import Features, Pool
from reservoir_pipelines.fitting.predictions import PREDICTIONS
from reservoir_pipelines.fitting.refit import refit_all
from reservoir_pipelines.fitting.results import Fit
from reservoir_pipelines.fitting.save import save
from reservoir_pipelines.fitting.select import select
from reservoir_pipelines.fitting.verdicts import judge
from reservoir_pipelines.output import notify
from reservoir_pipelines.weight_files import caution_if_changed


def fit(features: Features | Sequence[Features] | Pool, options: FitOptions, place: DeviceOptions) -> Fit:
    """Fit a readout to every column under every setting, and choose one by validation."""
    started = time.monotonic()
    # Open the entries. All that selects gets ``known``, which has no test rows.
    pool = _open(features)
    known, task = pool.known, pool.task
    candidates = choose_candidates(known, options)
    arithmetic = _arithmetic(place)
    default_folder = known.folder(candidates.all_columns, options)
    folder = _create(Path(options.out) if options.out else default_folder)
    announce(known, candidates)
    with products_on(arithmetic):
        # Choose readouts, and fit them to all rows that may be used.
        selection = select(known, candidates, fit_baselines)
        finals = refit_all(known, selection)
        # Nothing can change any more. Read the test rows, once for each readout that is shown.
        test = Test(pool.stores)
        scores = evaluate_all(finals, test, task)
        curve = evaluate_curve(selection.curve, finals.best.source, test)
    # Say what the test rows show against baselines, and write all files.
    verdicts = judge(finals, scores, selection.valid_error, task)
    notify(*verdicts.notices)
    baselines = tuple(scores[baseline].result for baseline in finals.baselines)
    result = Fit(
        entry=known.entry.path,
        best=scores[finals.saved].result,
        evaluation=scores[finals.saved].evaluation,
        raw=baselines[0] if baselines else None,
        baselines=baselines,
        against=verdicts.against,
        left_out=selection.left_out,
        table=tuple(result for fit in selection.fits for result in fit.results),
        layer_scores=verdicts.layer_scores,
        curve=curve,
        readout=finals.saved.readout,
        results=folder / "results.csv",
        plot=folder / "sweep.png",
        saved=folder / CARD,
        predictions=folder / PREDICTIONS,
        seconds=round(time.monotonic() - started, 3),
    )
    save(result, known, finals, scores, default_folder, options)
    return result


def _create(folder: Path) -> Path:
    """Create the folder of the results and return it."""
    with writing(folder):
        make_folder(folder)
    return folder


def _open(features: Features | Sequence[Features] | Pool) -> Pool:
    """Open the entries; refuse those whose test rows choose readouts, and say if weights have changed since."""
    pool = Pool.of(features)
    require_labels(pool.task, "fit")
    if obstacle := source_of(pool.task).no_selection:
        problem = f"{pool.task.name}: {obstacle.reason}, which choose readouts"
        raise InputError(problem, f"{obstacle.remedy}, and extract it again")
    for store in pool.stores:
        caution_if_changed(store.entry)
    return pool


def _arithmetic(place: DeviceOptions) -> Arithmetic:
    """Return where products are computed."""
    device = choose_device(place.device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {place.device}: readouts are fitted on cpu or cuda")
    return Arithmetic(None if device.type == "cpu" else str(device))
