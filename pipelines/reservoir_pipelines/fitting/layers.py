"""The best column of each layer: its scores with their intervals, and its difference to the best layer on test rows.

Nothing is chosen here: `refit_layers` fits the readouts after all choices, and `layer_scores` compares them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reservoir.column import RAW, common_place, layers_first_to_last
from reservoir.readouts.evaluation import Evaluation, balanced_interval, evaluate_labels
from reservoir.readouts.paired import Difference, paired_difference
from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.column_fit import ColumnFit
from reservoir_pipelines.fitting.cost import work_meter
from reservoir_pipelines.fitting.evaluate import Scores
from reservoir_pipelines.fitting.fitter import Choice, Fitter, size_of
from reservoir_pipelines.fitting.folds import groups_of_splits
from reservoir_pipelines.fitting.layer_score import LayerScore
from reservoir_pipelines.fitting.pool import Known
from reservoir_pipelines.fitting.refit import FinalReadout, refit


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A layer with the fit that was chosen among its columns, and the readout of this fit."""

    name: str
    fit: ColumnFit
    final: FinalReadout


def refit_layers(
    known: Known, fits: Sequence[ColumnFit], fitter: Fitter, best: FinalReadout
) -> list[Layer]:
    """Return the best column of each layer with its final readout; none for fewer than two layers.

    ``best`` is the best readout of all columns, which is not fitted again. Columns of several layers
    belong to none.
    """
    of_layers = best_of_layers(fits)
    if len(of_layers) < 2:
        return []
    # The fits of columns do not keep their models, which together need much memory, so the chosen setting of each
    # layer is fitted once more.
    choices: dict[str, Choice] = {}
    for name, fit in of_layers.items():
        choices[name] = Choice(fit, known.source(fit.columns), fitter.with_setting_of(fit))
    works = [size_of(choice.source, choice.fitter).work + choice.refit_work for choice in choices.values()]
    layers: list[Layer] = []
    with work_meter("layers", works) as part:
        for (name, choice), work in zip(choices.items(), works, strict=True):
            fit, source, single = choice
            with part(work):
                final = best
                if fit.result != best.result:
                    final = refit(Choice(single.fit(source), source, single), known.task)
                layers.append(Layer(name=name, fit=fit, final=final))
    return layers


def layer_scores(
    layers: Sequence[Layer], scores: Mapping[FinalReadout, Scores], task: Task
) -> tuple[LayerScore, ...]:
    """Return the scores of layers, each with its difference to the layer with the best validation score."""
    if not layers:
        return ()
    # Test scores are only shown.
    leader = max(layers, key=lambda layer: layer.fit.result.sort_key)
    of_layers: list[LayerScore] = []
    for layer in layers:
        of_layer, of_leader = scores[layer.final], scores[leader.final]
        difference = None if layer is leader else _difference(of_layer, of_leader, task)
        of_layers.append(_score(layer, of_layer, difference, task))
    return tuple(of_layers)


def best_of_layers(fits: Sequence[ColumnFit]) -> dict[str, ColumnFit]:
    """Return the fit with the best validation score among the columns of each layer, in the order of the layers."""
    best: dict[str, ColumnFit] = {}
    for fit in fits:
        layer = common_place(fit.columns)
        if layer is not None and fit.columns != (RAW,):
            best[layer] = max(best.get(layer, fit), fit, key=lambda candidate: candidate.result.sort_key)
    return {layer: best[layer] for layer in layers_first_to_last(best)}


def _evaluate_validation(final: FinalReadout, task: Task) -> Evaluation:
    """Return the evaluation of a readout on the validation rows, or on the held-out rows of all folds."""
    source, splits = final.source, list(final.predictions)
    predicted = np.concatenate([final.predictions[split].labels for split in splits])
    labels = np.concatenate([source.labels(split) for split in splits])
    counts = np.concatenate([source.counts(split) for split in splits])
    names = [str(task.label(number)) for number in range(task.classes)]
    return evaluate_labels(labels, predicted, names, None, counts, groups_of_splits(source.view, splits))


def _score(layer: Layer, scores: Scores, difference: Difference | None, task: Task) -> LayerScore:
    """Return the score of a layer, and on test its ``difference`` to the best layer, if it is another."""
    test = scores.result
    # The grid of penalties was scored by another solver than a single one, so its score is the one that was compared.
    result = replace(layer.fit.result, test_score=test.test_score, test_interval=test.test_interval)
    valid = _evaluate_validation(layer.final, task)
    balanced = result.metric == "balanced_accuracy"
    return LayerScore(
        layer=layer.name,
        result=result,
        valid_interval=balanced_interval(valid) if balanced else valid.interval,
        difference=difference and difference.value,
        difference_interval=difference and difference.interval,
        p_value=difference and difference.p_value,
    )


def _difference(scores: Scores, of_leader: Scores, task: Task) -> Difference:
    """Return the difference of two layers on the test rows."""
    # Tokens of a row are samples in one column and outputs of a sample in another; their labels have the same order.
    outputs = 1 if task.classes else task.outputs
    truth, first, second = (
        labels.reshape(-1, outputs)
        for labels in (scores.labels, scores.predicted.labels, of_leader.predicted.labels)
    )
    # Rows, or their groups or distinct inputs, are independent.
    unit_of_row = np.arange(len(scores.counts)) if scores.units is None else scores.units
    units = np.repeat(unit_of_row, scores.counts * (scores.labels.shape[1] // outputs))
    return paired_difference((scores.evaluation, of_leader.evaluation), truth, (first, second), units)
