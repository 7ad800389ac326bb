"""The stage ``fit``: every column under every setting of a readout, chosen by validation and scored on test once.

With several seeds, the task is extracted and fitted once for each: how a score depends on the random weights.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from reservoir_cache import Entry, make_folder, untracked

from reservoir.column import Column
from reservoir.errors import InputError, as_input_error, writing
from reservoir.machine import may_have_gpu
from reservoir.option_fields import without_where
from reservoir.options import DeviceOptions, ExtractOptions, FitOptions
from reservoir.plan.candidates import choose_folds
from reservoir.readouts.products import Arithmetic, products_on
from reservoir.tasks.task import Task
from reservoir_pipelines.data.labels import require_labels
from reservoir_pipelines.extraction.extract import Extraction, extract
from reservoir_pipelines.files import IMPORTED
from reservoir_pipelines.fitting.baselines import fit_baselines
from reservoir_pipelines.fitting.bundle import READOUT_FILE
from reservoir_pipelines.fitting.candidates import (
    candidates_of_fit,
    curve_notes,
    gap_of,
    make_fitter,
    named_columns,
    parse_curve,
)
from reservoir_pipelines.fitting.cost import announce
from reservoir_pipelines.fitting.evaluate import Scores, Test, evaluate_all, evaluate_curve
from reservoir_pipelines.fitting.fit_data import Features, FitData, Known
from reservoir_pipelines.fitting.predictions_csv import PREDICTIONS
from reservoir_pipelines.fitting.refit import Extras, FinalReadout, FinalReadouts, refit_all
from reservoir_pipelines.fitting.results import RESULTS, Fit
from reservoir_pipelines.fitting.save import save
from reservoir_pipelines.fitting.select import select
from reservoir_pipelines.fitting.verdicts import judge, patches_note, raw_choice_notes
from reservoir_pipelines.output import notify


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredFit:
    """A fit with its readouts and their test predictions, which another fit of the same rows is compared with."""

    fit: Fit
    known: Known  # the columns of train and valid
    finals: FinalReadouts
    scores: Mapping[FinalReadout, Scores]  # on test, of each of ``finals``
    task: Task


def fit(
    features: Features | Sequence[Features] | FitData, options: FitOptions, place: DeviceOptions
) -> Fit:
    """Fit a readout to every column under every setting, choose one by validation, and write the files of the fit.

    ``place`` says which device computes products.
    """
    scored = fit_and_score(features, options, place)
    notify(*patches_note(scored.known, scored.fit.saved.parent, options))
    return scored.fit


def fit_and_score(
    features: Features | Sequence[Features] | FitData,
    options: FitOptions,
    place: DeviceOptions,
    *,
    every_column: bool = False,
) -> ScoredFit:
    """Fit and score the columns of entries, and write the files of the fit.

    With ``every_column``, each column is fitted to all rows, so that no layer is missing.
    """
    started = time.monotonic()
    data = FitData.open_entries(features)
    # All that selects gets ``known``, which has no test rows.
    known, task = data.known, data.task
    candidates = candidates_of_fit(known, options, every_column=every_column)
    _check_extras(options, task, candidates.fitter.kind)
    # Make the folder of the results, so that a long fit does not fail at its end.
    arithmetic = _arithmetic(place)
    default_folder = known.folder(candidates.all_columns, options)
    folder = Path(options.out) if options.out else default_folder
    with writing(folder):
        make_folder(folder)
    announce(known, candidates)
    notify(*curve_notes(options, known.rows["train"]))
    with products_on(arithmetic), _within_memory(arithmetic):
        # Choose readouts, and fit them to all rows that may be used.
        selection = select(known, candidates, fit_baselines)
        finals = refit_all(selection, task, Extras(control=options.control, mdl=options.mdl))
        # Nothing can change any more. Read the test rows, once for each readout that is shown.
        test = Test(data.stores)
        scores = evaluate_all(finals, test, task)
        curve = evaluate_curve(selection.curve, finals.best.source, test)
    # Print what the test rows show. Extraction has printed the note on repeated rows, too, but it belongs to the
    # scores, which may be read much later.
    verdicts = judge(finals, scores, selection.valid_error, task)
    table = tuple(result for fit in selection.fits for result in fit.results)
    notes_on_raw = raw_choice_notes(scores[finals.best].result, table)
    notify(*verdicts.notices, *notes_on_raw, *known.view.notes_on_repeats)
    baselines = tuple(scores[baseline].result for baseline in finals.baselines)
    result = Fit(
        entry=known.view.path,
        entries=tuple(view.path for view in known.views),
        best=scores[finals.saved].result,
        evaluation=scores[finals.saved].evaluation,
        reservoir=scores[finals.best].result,
        raw=baselines[0] if baselines else None,
        baselines=baselines,
        against=verdicts.against,
        left_out=selection.left_out,
        table=table,
        layer_scores=verdicts.layer_scores,
        curve=curve,
        operating_points=verdicts.operating_points,
        readout=finals.saved.readout,
        results=folder / RESULTS,
        plot=folder / "sweep.png",
        saved=folder / READOUT_FILE,
        predictions=folder / PREDICTIONS,
        seconds=round(time.monotonic() - started, 3),
    )
    save(result, known, finals, scores, default_folder, options)
    return ScoredFit(fit=result, known=known, finals=finals, scores=scores, task=task)


def check_options(options: FitOptions, task: Task, columns: Sequence[Column]) -> None:
    """Raise the `InputError` of a fit of some ``columns`` of a task, if the options alone show that it would fail."""
    require_labels(task, "fit")
    named_columns(options.columns, columns, task)
    parse_curve(options)
    # Folds that the user names do not depend on the rows, whose numbers are not known yet.
    folds = 0 if options.select == "auto" else choose_folds(options, {})[0]
    _check_extras(options, task, make_fitter(options, task.classes, folds, gap=gap_of(task)).kind)


def _check_extras(options: FitOptions, task: Task, kind: str) -> None:
    """Raise `InputError` if a curve or an option of probing has no meaning for a task, or for a ``kind`` of readout."""
    if options.curve and task.horizon:
        raise InputError(
            "--curve: forecasts have no learning curve, because their rows are ordered in time",
            "remove the flag",
        )
    if options.control and task.horizon:
        raise InputError("--control: forecasts have no control task", "remove the flag")
    if options.control and kind not in ("ridge", "logistic"):
        raise InputError(f"--control: {kind} readouts have no control task", "use ridge or logistic")
    if options.mdl and (task.horizon or not task.classes):
        raise InputError("--mdl: only labels of classes have a description length", "remove the flag")


def _arithmetic(place: DeviceOptions) -> Arithmetic:
    """Return what computes products on the device of the options; by default not on a GPU that is slow in float64.

    Raise `InputError` for a device that is neither a CPU nor a GPU of CUDA.
    """
    if place.device == "cpu" or (place.device == "auto" and not may_have_gpu()):
        return Arithmetic()
    from reservoir import devices  # imports torch, which takes a third of a small fit

    device = devices.choose_device(place.device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {place.device}: readouts are fitted on cpu or cuda")
    if device.type == "cpu":
        return Arithmetic()
    if place.device == "auto" and not devices.multiplies_float64(device):
        name = devices.describe(device)
        notify(f"fit: on the CPU, because {name} is slow in float64; pass --device cuda to use it")
        return Arithmetic()
    return Arithmetic(str(device))


@contextmanager
def _within_memory(arithmetic: Arithmetic) -> Iterator[None]:
    """Raise `InputError` in place of the error of a GPU that has no memory left; other errors pass.

    A fit needs a matrix of width x width for each fold, and more, in its memory.
    """
    try:
        yield
    except RuntimeError as error:  # the type of torch's errors; torch is only imported if there is one
        from reservoir.devices import is_out_of_memory

        if arithmetic.device is None or not is_out_of_memory(error):
            raise
        raise InputError(f"fit: {arithmetic.device} has no memory left", "pass --device cpu") from error


@dataclass(frozen=True, kw_only=True)
class SeedsFit:
    """The fits of seeds 0, 1, 2 ..., each chosen by validation among the same columns."""

    fits: tuple[Fit, ...]

    @property
    def test_scores(self) -> list[float]:
        """The test score of the chosen reservoir of each seed, also if a baseline was better and is saved instead."""
        return [fit.reservoir.test_score for fit in self.fits if fit.reservoir.test_score is not None]

    @property
    def mean(self) -> float:
        """Mean test score."""
        return fmean(self.test_scores)

    @property
    def deviation(self) -> float:
        """Standard deviation of the test score over seeds; 0 for a single seed."""
        return stdev(self.test_scores) if len(self.fits) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return as JSON values the fields of the seed with the best validation score, and all seeds."""
        best = max(self.fits, key=lambda fit: fit.best.valid_score)
        return best.to_dict() | {
            "seeds": [fit.to_dict() for fit in self.fits],
            "test_mean": self.mean,
            "test_deviation": self.deviation,
        }


def fit_seeds(
    entries: Sequence[Entry],
    seeds: int,
    options: FitOptions = FitOptions(),
    place: DeviceOptions = DeviceOptions(),
    *,
    data: Path | None = None,
) -> SeedsFit:
    """Extract an entry's task with its options and seeds 0 to ``seeds - 1``, and fit the common columns.

    ``data`` is the folder of downloaded data, as for `extract`. Raise `InputError` if the task's data is no longer that
    of the entry.
    """
    if len(entries) != 1:
        raise InputError("--seeds: give exactly one task or entry")
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: give at least 1")
    entry = entries[0]
    task, recorded_options = _recorded_extraction(entry)
    cache = entry.path.resolve().parents[2]  # an entry is the folder <cache>/features/<task>/<entry>
    extractions: list[Extraction] = []
    with untracked():
        for seed in range(seeds):
            seed_options = replace(recorded_options, cache=cache, device=place.device, data=data, seed=seed)
            extraction = extract(task, seed_options)
            if extraction.store.entry.spec.data != entry.spec.data:
                problem = f"--seeds: the data of {task} has changed since {entry.path} was extracted"
                raise InputError(problem, "extract it again, and pass the new entry")
            extractions.append(extraction)
    data_of_seeds = [FitData.open_entries(extraction) for extraction in extractions]
    # Scores of seeds can be compared if all are chosen among the same columns.
    in_every_seed = set.intersection(*(set(of_seed.columns()) for of_seed in data_of_seeds))
    shared = tuple(column for column in data_of_seeds[0].columns() if column in in_every_seed)
    fits: list[Fit] = []
    for seed, data_of_seed in enumerate(data_of_seeds):
        out = options.out / f"seed{seed}" if options.out else None
        scored = fit_and_score(replace(data_of_seed, only=shared), replace(options, out=out), place)
        fits.append(scored.fit)
    return SeedsFit(fits=tuple(fits))


def _recorded_extraction(entry: Entry) -> tuple[str, ExtractOptions]:
    """Return the task and the options with which an entry was extracted; raise `InputError` if it records none."""
    problem, remedy = (
        f"--seeds: {entry.path} does not record how it was extracted",
        "extract its task again",
    )
    with as_input_error(problem, remedy):
        call = entry.made_with["call"]
        task = call["task"]
        # A file may not decide where files are and where work runs: the recorded folder of data is dropped, and other
        # such options are refused.
        settings = {name: value for name, value in call["settings"].items() if name != "data"}
        options = ExtractOptions(**without_where(settings, str(entry.path)))
    if not isinstance(task, str) or entry.spec.init.kind == IMPORTED:
        raise InputError(problem, remedy)
    return task, options
