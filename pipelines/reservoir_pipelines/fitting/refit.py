"""The last step before the test rows: chosen readouts are calibrated, and fitted to all rows that may be used."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from reservoir.column import RAW, common_place, layers_first_to_last
from reservoir.readouts.linear import LinearReadout, Readout
from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.cost import work_meter
from reservoir_pipelines.fitting.fitter import Choice, ColumnFit, Fitter, size_of
from reservoir_pipelines.fitting.pool import Known
from reservoir_pipelines.fitting.predictions import Predicted, predict_blocks, predict_held_out
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.select import Selection
from reservoir_pipelines.fitting.source import EntrySamples, EntrySource, KnownSplit, RawSource


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalReadout:
    """A chosen readout, fitted to all rows that may be used; nothing about it can change any more.

    ``predictions`` are those of rows to which a readout of the same setting was not fitted: with
    cross-validation all rows of train and valid, which the models of the other folds predict, else
    those of valid, which the readout that was fitted to train predicts. ``rows`` are the numbers of
    these rows.
    """

    result: Result
    readout: Readout
    source: EntrySource
    held_out: Callable[[], np.ndarray]  # computes the scores of `nonconformity_scores`
    predictions: dict[KnownSplit, Predicted]
    rows: dict[KnownSplit, slice | np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A layer with the fit that was chosen among its columns, and the readout of this fit."""

    name: str
    fit: ColumnFit
    final: FinalReadout


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalReadouts:
    """All readouts that a fit shows."""

    best: FinalReadout  # of the reservoir
    baselines: list[FinalReadout]
    saved: FinalReadout  # the best of the reservoir, or a baseline that is clearly better
    layers: list[Layer]

    def __iter__(self) -> Iterator[FinalReadout]:
        """Yield the best readout, then those of baselines and of layers; the best one is again that of its layer."""
        yield self.best
        yield from self.baselines
        yield from (layer.final for layer in self.layers)


def refit_all(known: Known, selection: Selection) -> FinalReadouts:
    """Return the chosen readouts and those of layers, each fitted to all rows that may be used."""
    of_layers = _layer_choices(known, selection)
    works = [choice.refit_work for choice in selection.choices]
    finals: list[FinalReadout] = []
    with work_meter("refit", works) as part:
        for choice, work in zip(selection.choices, works, strict=True):
            with part(work):
                finals.append(refit(choice, known.task))
    layers = _refit_layers(of_layers, finals[0], known.task) if of_layers else []
    return FinalReadouts(best=finals[0], baselines=finals[1:], saved=finals[selection.saved], layers=layers)


def refit(choice: Choice, task: Task) -> FinalReadout:
    """Calibrate a chosen readout on valid, and fit it to train and valid."""
    fit, source, fitter = choice
    assert isinstance(source, EntrySamples), "a readout of arrays has been fitted to all of them"
    readout, alpha = fit.readout, fit.result.alpha
    # Cross-validation has calibrated its readout on held-out rows.
    calibrates = task.classes and fitter.calibrates and not fitter.folds
    if calibrates and isinstance(readout, LinearReadout):
        readout = readout.calibrate(source.blocks("valid"))
    scores_of_rows = partial(nonconformity_scores, readout, source, fitter, alpha)
    if task.horizon and fit.held_out:
        scores_of_rows = partial(forecast_errors, fit.held_out)
    # Rows of valid are predicted before the readout is fitted to them.
    predictions, rows = _predict_known(fit, source, readout)
    return FinalReadout(
        result=fit.result,
        readout=fitter.refit(source, readout, alpha),
        source=source,
        held_out=scores_of_rows,
        predictions=predictions,
        rows=rows,
    )


def _predict_known(
    fit: ColumnFit, source: EntrySource, calibrated: Readout
) -> tuple[dict[KnownSplit, Predicted], dict[KnownSplit, slice | np.ndarray]]:
    """Return the predictions of a readout for rows that it was not fitted to, and which rows these are."""
    if fit.held_out is None:
        predicted = predict_blocks(calibrated, source.blocks("valid"))
        return {"valid": predicted}, {"valid": source.selected_rows("valid")}
    assert isinstance(calibrated, LinearReadout), "cross-validation fits linear readouts"
    # A readout that was fitted to some of the rows has held-out scores of all of them.
    whole = replace(source, some=None) if isinstance(source, RawSource) else source
    return predict_held_out(calibrated, whole, fit.held_out()[0])


def nonconformity_scores(
    readout: Readout, source: EntrySource, fitter: Fitter, alpha: float | None
) -> np.ndarray:
    """Return the nonconformity score of every validation row, ascending, (n,); none for several labels per row.

    It is one minus the probability of the row's class, or the distance from the true value (Vovk et
    al. 2005).
    """
    targets = readout.targets
    if source.tokens() > 1 or targets.outputs > 1 or (targets.classes and not readout.has_probabilities):
        return np.zeros(0)
    readout = fitter.holdout(source, readout, alpha)
    scores = []
    for x, y in source.blocks("valid"):
        if targets.classes:
            # Rounded as predict does, so that equal probabilities compare equal.
            chances = np.round(readout.probabilities(x)[:, 0], 6)
            scores.append(1 - np.take_along_axis(chances, y.astype(int), axis=1)[:, 0])
        else:
            scores.append(np.abs(readout.predict(x) - y)[:, 0])
    return np.sort(np.concatenate(scores).astype(np.float64))


def forecast_errors(held_out: Callable[[], tuple[np.ndarray, ...]]) -> np.ndarray:
    """Return the absolute errors of forecasts of later windows than those that were fitted, ascending, (n, horizon)."""
    scores, labels = held_out()
    return np.sort(np.abs(scores - labels).astype(np.float64), axis=0)


def _layer_choices(known: Known, selection: Selection) -> dict[str, Choice]:
    """Return the best column of each layer, with a fitter of its setting alone; none for fewer than two layers.

    Columns of several layers belong to none.
    """
    of_layers = best_of_layers(selection.fits)
    if len(of_layers) < 2:
        return {}
    fitter = selection.best.fitter
    return {
        name: Choice(fit, known.source(fit.columns), fitter.with_setting_of(fit))
        for name, fit in of_layers.items()
    }


def _refit_layers(choices: dict[str, Choice], best: FinalReadout, task: Task) -> list[Layer]:
    """Return the final readout of each layer; ``best``, the best one of all columns, is not fitted again."""
    # The fits of columns do not keep their models, which together need much memory, so the chosen setting of each
    # layer is fitted once more.
    works = [size_of(choice.source, choice.fitter).work + choice.refit_work for choice in choices.values()]
    layers: list[Layer] = []
    with work_meter("layers", works) as part:
        for (name, choice), work in zip(choices.items(), works, strict=True):
            fit, source, fitter = choice
            with part(work):
                final = best
                if fit.result != best.result:
                    final = refit(Choice(fitter.fit(source), source, fitter), task)
                layers.append(Layer(name=name, fit=fit, final=final))
    return layers


def best_of_layers(fits: Sequence[ColumnFit]) -> dict[str, ColumnFit]:
    """Return the fit with the best validation score among the columns of each layer, in the order of the layers."""
    best: dict[str, ColumnFit] = {}
    for fit in fits:
        layer = common_place(fit.columns)
        if layer is not None and fit.columns != (RAW,):
            best[layer] = max(best.get(layer, fit), fit, key=lambda candidate: candidate.result.sort_key)
    return {layer: best[layer] for layer in layers_first_to_last(best)}
