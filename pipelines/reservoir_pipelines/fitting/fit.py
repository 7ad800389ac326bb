"""The stage ``fit``: every cached column under every setting of a readout, chosen by validation, test scored once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from reservoir import InputError
from reservoir.readouts import LinearReadout, NumpyArithmetic, TorchArithmetic, forward_selection, products_on
from reservoir.reservoir import choose_device
from reservoir_pipelines.fitting.bundle import Bundle, input_scaling
from reservoir_pipelines.fitting.column_moments import compute_moments
from reservoir_pipelines.fitting.curve import learning_curve, parse_sizes
from reservoir_pipelines.fitting.engines import Engine, RidgeEngine, make_engine
from reservoir_pipelines.fitting.pool import Features, Pool, choose_columns
from reservoir_pipelines.fitting.raw import RawSource
from reservoir_pipelines.fitting.results import Fit, Readout, Result, merit, wilson, write_table
from reservoir_pipelines.fitting.sources import ColumnSource, JoinedSource, Source, SplitBlocks
from reservoir_pipelines.fitting.trials import Trial, make_targets, score_test, trial_of
from reservoir_pipelines.output import meter, say
from reservoir_pipelines.plots import plot_curve, plot_sweep
from reservoir_pipelines.preparation.prepare import Prepared

# Greedy selection holds the moments of all candidates side by side, of order the square of their joint width.
SHORTLIST_WIDTH = 6144


def fit(
    features: Features | Sequence[Features],
    *,
    columns: str | Sequence[str] = "all",
    readout: str = "ridge",
    alphas: str | None = None,
    select: str = "valid",
    class_weight: str | None = None,
    curve: str | None = None,
    device: str = "auto",
    workers: int = 0,
    scheduler: str | None = None,
    out: Path | None = None,
) -> Fit:
    """Fit a readout to every column under every setting and choose one by validation.

    Parameters
    ----------
    features : Extraction, FeatureStore or Path, or a sequence of these
        What `extract` returned, or the folder of an entry; several entries of the same rows are fitted together, their
        columns named ``1:block06/mean``, ``2:block06/mean`` and so on.
    columns : str or sequence of str, default "all"
        Columns to try, comma-separated; ``a+b`` reads two side by side; ``all`` that are cached, each alone; ``best:4``
        adds up to four of them greedily by validation.
    readout : str, default "ridge"
        ``ridge``, ``logistic``, or an estimator's import path; see `make_engine`.
    alphas : str, optional
        Penalties on standardised features, LO:HI:N in equal ratios.
    select : str, default "valid"
        ``valid``, or ``cvK``: K-fold cross-validation over train and valid.
    class_weight : {"balanced"}, optional
        Count all classes the same in fitting.
    curve : str, optional
        Numbers of training rows, such as ``100,1000,10000``, for a learning curve of the chosen columns.
    device : str, default "auto"
        Where the products of ridge readouts run: ``auto`` is a GPU where there is one.
    workers : int, default 0
        Local processes that read the training features; 0 for none.
    scheduler : str, optional
        Address of a running dask.distributed scheduler whose workers share this file system.
    out : Path, optional
        Folder of the results; by default under the cache's ``readouts``.

    Returns
    -------
    Fit

    Raises
    ------
    InputError, CacheError
        Where a column is not cached, an entry is not whole, or settings do not go together.
    """
    started = time.monotonic()
    if class_weight not in (None, "balanced"):
        raise InputError(f"--class-weight {class_weight}: choose balanced, or leave it out")
    pool = Pool.of(features)
    classes = int(pool.entry.spec.task["classes"])
    engine = make_engine(readout, classes, alphas, select, balanced=class_weight == "balanced")
    if curve and not isinstance(engine, RidgeEngine):
        raise InputError(f"--curve: a learning curve comes from the moments of ridge readouts, not of {readout}")
    names, most = choose_columns(pool, columns)
    if most and (not isinstance(engine, RidgeEngine) or engine.folds):
        raise InputError("--columns best:K goes with ridge readouts chosen on valid; name the columns as a+b instead")
    rows = {split: pool.store[split].rows for split in ("train", "valid", "test")}
    sizes = parse_sizes(curve, rows["train"]) if curve else ()
    scaling = input_scaling(pool.entry)
    folder = _folder(pool, out)
    for number, store in enumerate(pool.stores, start=1):
        if len(pool.stores) > 1:
            say(f"{number}: {store.entry.path.name}")
    say(f"fit {pool.entry.spec.task['name']}: {len(names)} columns on {rows['train']:,} rows, chosen by {select}")
    with _products(device):
        if workers or scheduler:
            _share_out(pool, names, engine, workers, scheduler)
        trials = _sweep(pool, names, engine)
        if most and isinstance(engine, RidgeEngine):
            trials += _greedy(pool, trials, engine, most)
        best = max(trials, key=lambda trial: merit(trial.result))
        source = pool.source("+".join(best.result.columns))
        raw = _raw(pool, engine, classes, rows["test"])
        points = ()
        if sizes and isinstance(engine, RidgeEngine):
            points = learning_curve(source, engine, sizes)
    model = best.readout
    if classes and isinstance(model, LinearReadout) and select == "valid":
        model = model.calibrate(source.blocks("valid"))
    chosen = _tested(best.result, model, source, classes, rows["test"])
    table = tuple(result for trial in trials for result in trial.results)
    _draw(folder, pool, table, chosen, raw, points)
    return Fit(
        entry=pool.entry.path,
        best=chosen,
        raw=raw,
        table=table,
        curve=points,
        readout=model,
        results=folder / "results.csv",
        plot=folder / "sweep.png",
        saved=Bundle.of(pool.stores, scaling, model, chosen).save(folder),
        seconds=time.monotonic() - started,
    )


def _products(device: str) -> AbstractContextManager[None]:
    """Return the context in which products run on a device."""
    place = choose_device(device)
    if place.type not in ("cpu", "cuda"):
        raise InputError(f"--device {device}: readouts are fitted on cpu or cuda")
    return products_on(NumpyArithmetic() if place.type == "cpu" else TorchArithmetic(str(place)))


def _share_out(pool: Pool, names: Sequence[str], engine: Engine, workers: int, scheduler: str | None) -> None:
    """Have other processes compute what moments of the columns are not kept yet; they are kept from then on."""
    wanted = [moments for name in names if (moments := engine.moments(pool.source(name))) and not moments.load()]
    with meter("read", len(wanted), unit="columns") as bar:
        for _ in compute_moments(wanted, workers=workers, scheduler=scheduler):
            bar.advance(1)


def _sweep(pool: Pool, names: Sequence[str], engine: Engine) -> list[Trial]:
    trials: list[Trial] = []
    with meter("fit", len(names), unit="columns") as bar:
        for name in names:
            trials.append(engine.run(pool.source(name)))
            bar.advance(1)
    return trials


def _greedy(pool: Pool, trials: Sequence[Trial], engine: RidgeEngine, most: int) -> list[Trial]:
    """Add columns to the best one as long as validation gains; return the trial of each number of columns."""
    ranked = sorted(trials, key=lambda trial: merit(trial.result), reverse=True)
    parts: list[ColumnSource] = []
    places: dict[str, slice] = {}
    for trial in ranked:
        source = pool.column(trial.result.columns[0])
        start = max((place.stop for place in places.values()), default=0)
        width = next(source.blocks("valid"))[0].shape[1]
        if not parts or (source.tokens() == parts[0].tokens() and start + width <= SHORTLIST_WIDTH):
            parts.append(source)
            places[source.name] = slice(start, start + width)
    joined = JoinedSource(tuple(parts))
    targets = make_targets(joined, engine.classes, engine.balanced)
    train, valid = SplitBlocks(joined, "train"), SplitBlocks(joined, "valid")
    steps = forward_selection(train, valid, places, targets, engine.alphas, limit=most)
    return [trial_of("ridge", pool.source("+".join(step.columns)), step.sweep) for step in steps[1:]]


def _tested(result: Result, model: Readout, source: Source, classes: int, rows: int) -> Result:
    """Return the result with the model's test accuracy: the one time that test is looked at for it."""
    accuracy = score_test(model, source)
    return replace(result, test_accuracy=accuracy, test_interval=wilson(accuracy, rows) if classes else None)


def _raw(pool: Pool, engine: Engine, classes: int, rows: int) -> Result | None:
    place = Path(pool.entry.made_with.get("prepared", ""))
    if not place.is_dir():
        say("raw input: the prepared data is gone, so it is left out; reservoir prepare brings it back")
        return None
    source = RawSource(Prepared.open(place), pool.store)
    trial = engine.run(source)
    return _tested(trial.result, trial.readout, source, classes, rows)


def _folder(pool: Pool, out: Path | None) -> Path:
    folder = Path(out) if out else pool.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: no results can be kept there ({error.strerror}); name another --out") from error
    return folder


def _draw(
    folder: Path,
    pool: Pool,
    table: Sequence[Result],
    chosen: Result,
    raw: Result | None,
    points: Sequence[tuple[int, float, float]],
) -> None:
    """Write the table of every readout and the pictures."""
    task = pool.entry.spec.task["name"]
    write_table(folder / "results.csv", table, chosen, raw)
    plot_sweep(folder / "sweep.png", table, chosen, raw, title=f"{task}, {pool.title}")
    if points:
        plot_curve(folder / "curve.png", points, chosen, title=f"{task}, {'+'.join(chosen.columns)}")
