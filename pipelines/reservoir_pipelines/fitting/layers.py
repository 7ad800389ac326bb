"""The best column of each layer: its scores with their intervals, and its difference to the best layer on test rows.

Nothing is chosen here. `fit` calls this after it has chosen the readout that it saves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reservoir.plan import RAW
from reservoir.readouts.evaluation import Evaluation, balanced_interval, evaluate_labels
from reservoir.readouts.paired import Difference, paired_difference
from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.cost import work_meter
from reservoir_pipelines.fitting.fitters import (
    ColumnFit,
    EstimatorFitter,
    FinalReadout,
    Fitted,
    Fitter,
    finish,
    finishing_work,
    size_of,
)
from reservoir_pipelines.fitting.predictions import predictions_of
from reservoir_pipelines.fitting.predictions_file import ReadoutPredictions
from reservoir_pipelines.fitting.results import LayerScore
from reservoir_pipelines.fitting.sources import Pool, SampleSource


@dataclass(frozen=True, kw_only=True, eq=False)
class _Scored:
    """A layer with its best fit, and what the readout of this fit predicts."""

    name: str
    fit: ColumnFit  # the fit that was chosen among the columns of the layer
    final: FinalReadout
    predictions: ReadoutPredictions
    valid: Evaluation


def layer_scores(
    pool: Pool, fits: Sequence[ColumnFit], fitter: Fitter, best: tuple[Fitted, FinalReadout]
) -> tuple[tuple[LayerScore, ...], list[ReadoutPredictions]]:
    """Return the score and the predictions of the best column of each layer; none for fewer than two layers.

    ``best`` is the best readout of the pool, which is not fitted again. Columns of several layers
    belong to none.
    """
    of_layers = best_of_layers(fits)
    if len(of_layers) < 2:
        return (), []
    scored: list[_Scored] = []
    sources = [pool.source(fit.result.name) for fit in of_layers.values()]
    fitters = [_with_one_setting(fitter, fit) for fit in of_layers.values()]
    works = [
        size_of(source, single).work + finishing_work(source, single)
        for source, single in zip(sources, fitters, strict=True)
    ]
    with work_meter("layers", works) as part:
        for (name, fit), source, single, work in zip(
            of_layers.items(), sources, fitters, works, strict=True
        ):
            with part(work):
                fitted, final = best
                if fit.result != fitted[0].result:
                    # The fits of a pool do not keep their models, which together need much memory.
                    fitted = single.fit(source), source, single
                    final = finish(*fitted, pool.task)
                predictions = predictions_of(name, fitted, final)
                valid = _evaluate_validation(predictions, fitted[1], pool.task)
                scored.append(
                    _Scored(name=name, fit=fit, final=final, predictions=predictions, valid=valid)
                )
    # The best layer is the one with the best validation score; test scores are only shown.
    leader = max(scored, key=lambda layer: layer.fit.result.merit)
    return tuple(_score(layer, leader, pool) for layer in scored), [layer.predictions for layer in scored]


def best_of_layers(fits: Sequence[ColumnFit]) -> dict[str, ColumnFit]:
    """Return the fit with the best validation score among the columns of each layer, in the order of the layers."""
    found: dict[str, ColumnFit] = {}
    for fit in fits:
        name, *others = {column.partition("/")[0] for column in fit.result.columns}
        if not others and name != RAW:
            found[name] = max(found.get(name, fit), fit, key=lambda one: one.result.merit)
    return {name: found[name] for name in sorted(found, key=lambda name: (name != "embed", name))}


def _with_one_setting(fitter: Fitter, fit: ColumnFit) -> Fitter:
    """Return a fitter that tries only the setting that a fit has chosen."""
    if isinstance(fitter, EstimatorFitter):
        return replace(fitter, grid=(fitter.grid[fit.best],))
    return replace(fitter, alphas=np.array([fit.result.alpha]), widens=False)


def _evaluate_validation(predictions: ReadoutPredictions, source: SampleSource, task: Task) -> Evaluation:
    """Return the evaluation of a readout on the validation rows, or on the held-out rows of all folds."""
    splits = [split for split in predictions.of_splits if split != "test"]
    parts = [predictions.of_splits[split].labels for split in splits]
    y, counts = (np.concatenate([of(split) for split in splits]) for of in (source.labels, source.counts))
    groups = [source.store[split].groups for split in splits]
    together = (
        None if any(of is None for of in groups) else np.concatenate([g for g in groups if g is not None])
    )
    names = [str(task.label(number)) for number in range(task.classes)]
    return evaluate_labels(y, np.concatenate(parts), names, None, counts, together)


def _score(layer: _Scored, leader: _Scored, pool: Pool) -> LayerScore:
    """Return the score of a layer, and on test its difference to the layer with the best validation score."""
    final, metric = layer.final.result, layer.fit.result.metric
    # The grid of penalties was scored by another solver than a single one, so its score is the one that was compared.
    result = replace(layer.fit.result, test_score=final.test_score, test_interval=final.test_interval)
    interval = balanced_interval(layer.valid) if metric == "balanced_accuracy" else layer.valid.interval
    difference = None
    if layer is not leader:
        difference = _difference(layer, leader, pool)
    return LayerScore(
        layer=layer.name,
        result=result,
        valid_interval=interval,
        difference=difference and difference.value,
        difference_interval=difference and difference.interval,
        p_value=difference and difference.p_value,
    )


def _difference(layer: _Scored, leader: _Scored, pool: Pool) -> Difference:
    """Return the difference of two layers on the test rows."""
    source, groups = pool.source(layer.fit.result.name), pool.store["test"].groups
    y, counts = source.labels("test"), source.counts("test")
    # Tokens of a row are samples in one column and outputs of a sample in another; their labels have the same order.
    outputs = 1 if pool.task.classes else pool.task.outputs
    truth, first, second = (
        labels.reshape(-1, outputs)
        for labels in (
            y,
            layer.predictions.of_splits["test"].labels,
            leader.predictions.of_splits["test"].labels,
        )
    )
    unit_of_row = np.arange(len(counts)) if groups is None else groups
    units = np.repeat(unit_of_row, counts * (y.shape[1] // outputs))
    evaluations = layer.final.evaluation, leader.final.evaluation
    return paired_difference(evaluations, truth, (first, second), units)
