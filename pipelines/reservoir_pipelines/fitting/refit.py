"""The last step before the test rows: chosen readouts predict held-out rows, and are fitted to all that may be used."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from reservoir.pooling import find_pooling
from reservoir.readouts.directions import ReadColumn
from reservoir.readouts.evaluation import balanced_interval, evaluate_labels
from reservoir.readouts.kernel_ridge import KernelReadout
from reservoir.readouts.linear import LinearReadout, Readout
from reservoir.tasks.task import Task
from reservoir_pipelines.files import IMPORTED
from reservoir_pipelines.fitting.control import Control, fit_control
from reservoir_pipelines.fitting.cost import refit_work, work_meter
from reservoir_pipelines.fitting.fitter import Choice, ColumnFit, Fitter
from reservoir_pipelines.fitting.folds import code_length
from reservoir_pipelines.fitting.identity import IdentityReadout
from reservoir_pipelines.fitting.predictions_csv import Predicted
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.select import Selection
from reservoir_pipelines.fitting.source import (
    KNOWN,
    ColumnSource,
    EntrySamples,
    EntrySource,
    JoinedSource,
    KnownSplit,
    RawSource,
    groups_of_splits,
)
from reservoir_pipelines.output import is_share


@dataclass(frozen=True)
class Extras:
    """What is computed of each readout that is shown, beside its score."""

    control: bool = False  # the score of a control task
    mdl: bool = False  # the description length of the training labels


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
    # 95% interval of the validation score
    valid_interval: tuple[float, float] | None
    # The probability of the second of two classes, for each held-out row of the first one, (n,); empty for other tasks.
    held_out_negatives: np.ndarray
    control: Control | None  # the same setting fitted to random labels, if requested


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A layer, with the readout of the fit that was chosen among its columns."""

    name: str
    # The result by which the fit was chosen. The grid of all penalties was scored by another solver than the
    # final readout, which is fitted with a single penalty and may have a slightly different score.
    result: Result
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


def refit_all(selection: Selection, task: Task, extras: Extras = Extras()) -> FinalReadouts:
    """Return the chosen readouts and those of layers, each fitted to all rows that may be used."""
    # The best readout of all columns is also that of its layer, and is not fitted twice.
    best_result = selection.best.fit.result
    other_layers = {
        name: choice for name, choice in selection.layers.items() if choice.fit.result != best_result
    }
    # The titles of the two lines of progress, with the readouts that each fits.
    stages = {"refit": selection.choices}
    if other_layers:
        stages["layers"] = [*other_layers.values()]
    finals: list[FinalReadout] = []
    for title, choices in stages.items():
        works = [refit_work(choice) for choice in choices]
        with work_meter(title, works) as part:
            for choice, work in zip(choices, works, strict=True):
                with part(work):
                    finals.append(refit(choice, task, extras))
    # They are in the order of the stages: the best readout, the baselines, and the other layers.
    best, *baselines = finals[: len(selection.choices)]
    final_of_layer = dict(zip(other_layers, finals[len(selection.choices) :], strict=True))
    layers = [
        Layer(name=name, result=choice.fit.result, final=final_of_layer.get(name, best))
        for name, choice in selection.layers.items()
    ]
    return FinalReadouts(best=best, baselines=baselines, saved=finals[selection.saved], layers=layers)


def refit(choice: Choice, task: Task, extras: Extras = Extras()) -> FinalReadout:
    """Return a chosen readout, calibrated on valid and fitted to train and valid, with predictions of held-out rows."""
    fit, source, fitter = choice
    assert isinstance(source, EntrySamples), "a readout of arrays has been fitted to all of them"
    # The choice of a layer has no model, so its setting is fitted once more.
    if fit.solve is None:
        fit = fitter.fit(source)
    readout, alpha = fit.readout, fit.result.alpha
    # Cross-validation has calibrated its readout on held-out rows.
    calibrates = task.classes and fitter.calibrates and not fitter.folds
    if calibrates and isinstance(readout, LinearReadout | KernelReadout):
        readout = readout.calibrate(source.blocks("valid"))
    scores_of_rows = partial(nonconformity_scores, readout, source, fitter, alpha)
    if task.horizon and fit.held_out:
        scores_of_rows = partial(forecast_errors, fit.held_out)
    # Rows of valid are predicted before the readout is fitted to them. In cross-validation, a readout that was fitted
    # to some of the rows has held-out scores of all of them.
    predicted_source = source
    if fit.held_out and isinstance(source, RawSource):
        predicted_source = replace(source, row_numbers=None)
    predictions = _predict_known(fit, predicted_source, readout)
    labels = _held_out_labels(predictions, predicted_source)
    negatives = _held_out_negatives(predictions, labels, predicted_source, task)
    result = fit.result
    valid_interval = _valid_interval(
        predictions, labels, predicted_source, result, task, repeats=fitter.repeats
    )
    if extras.mdl and fitter.has_code:
        # Logistic regression of the raw input may be fitted to some rows, but the labels of all rows are coded.
        all_rows = replace(source, row_numbers=None) if isinstance(source, RawSource) else source
        code = code_length(all_rows, task.classes)
        result = replace(result, description_bits=code.bits, compression=code.compression)
    final = fitter.refit(source, readout, alpha)
    if isinstance(final, LinearReadout):
        final = replace(final, columns=_read_columns(source))
    return FinalReadout(
        result=result,
        readout=final,
        source=source,
        held_out=scores_of_rows,
        predictions=predictions,
        rows={
            split: _predicted_rows(predicted_source, split, len(predicted.labels))
            for split, predicted in predictions.items()
        },
        valid_interval=valid_interval,
        held_out_negatives=negatives,
        control=fit_control(choice, readout, task) if extras.control else None,
    )


def _read_columns(source: EntrySource) -> tuple[ReadColumn, ...]:
    """Return what the features of a source are."""
    parts = source.parts if isinstance(source, JoinedSource) else (source,)
    columns: list[ReadColumn] = []
    for part in parts:
        vectors = 1
        # The names of imported columns need not have a pooling.
        if isinstance(part, ColumnSource) and part.view.spec.init.kind != IMPORTED:
            # A sample has the kept tokens of its row side by side, unless each token is a sample; the pooling has K
            # vectors for each token.
            tokens = part.view["train"].shape(part.column.name)[0] // part.tokens()
            vectors = tokens * max(1, find_pooling(part.column.pooling).number)
        columns.append(ReadColumn(part.name, part.width(), vectors))
    return tuple(columns)


def _predict_known(fit: ColumnFit, source: EntrySource, calibrated: Readout) -> dict[KnownSplit, Predicted]:
    """Return the predictions of a readout for rows that it was not fitted to: of valid, or of train and valid."""
    if fit.held_out is None:
        return {
            "valid": join_predictions([predict_block(calibrated, x) for x, _ in source.blocks("valid")])
        }
    assert isinstance(calibrated, LinearReadout | IdentityReadout), "other readouts are chosen on valid"
    # The held-out scores (n, T) are those of the samples of train, then of valid. Folds in time never hold out the
    # oldest samples.
    scores, _ = fit.held_out()
    samples = {split: len(source.labels(split)) for split in KNOWN}
    held_out_in_train = max(0, len(scores) - samples["valid"])
    assert held_out_in_train <= samples["train"], "only samples have held-out scores"
    predictions: dict[KnownSplit, Predicted] = {}
    for split, scores_of_split in zip(KNOWN, np.split(scores, [held_out_in_train]), strict=True):
        if not len(scores_of_split):
            continue
        labels, probabilities = calibrated.targets.predict(scores_of_split), None
        if isinstance(calibrated, IdentityReadout):
            probabilities = calibrated.shares(scores_of_split) if calibrated.has_probabilities else None
        elif calibrated.has_probabilities:
            probabilities = calibrated.targets.probabilities(
                scores_of_split, calibrated.temperature, calibrated.link
            )
        predictions[split] = _predicted(labels, probabilities)
    return predictions


def _predicted_rows(source: EntrySource, split: KnownSplit, samples: int) -> slice | np.ndarray:
    """Return the rows of a split whose last ``samples`` have predictions."""
    rows = len(source.labels(split))
    return source.selected_rows(split) if samples == rows else np.arange(rows - samples, rows)


def predict_block(readout: Readout, x: np.ndarray) -> Predicted:
    """Return the predictions for features (m, width)."""
    probabilities = readout.probabilities(x) if readout.has_probabilities else None
    return _predicted(readout.predict(x), probabilities)


def join_predictions(parts: Sequence[Predicted]) -> Predicted:
    """Return the predictions of blocks, one after the other."""
    labels = np.concatenate([part.labels for part in parts])
    probabilities = [part.probabilities for part in parts if part.probabilities is not None]
    return Predicted(labels, np.concatenate(probabilities) if probabilities else None)


def _predicted(labels: np.ndarray, probabilities: np.ndarray | None) -> Predicted:
    """Return the prediction for labels (n, outputs) and the probabilities of all classes, (n, outputs, classes).

    It has the probability of class 1 of two classes, else that of the label.
    """
    if probabilities is None:
        return Predicted(labels, None)
    labels = labels.astype(np.int32)
    if probabilities.shape[-1] == 2:
        return Predicted(labels, probabilities[..., 1].astype(np.float32))
    of_labels = np.take_along_axis(probabilities, labels[..., None].astype(np.int64), axis=-1)[..., 0]
    return Predicted(labels, of_labels.astype(np.float32))


def _valid_interval(
    predictions: Mapping[KnownSplit, Predicted],
    labels: np.ndarray,
    source: EntrySource,
    result: Result,
    task: Task,
    *,
    repeats: int,
) -> tuple[float, float] | None:
    """Return the 95% interval of the validation score of ``result``.

    It comes from the predictions for valid, or for the rows of all folds.
    """
    splits = list(predictions)
    predicted = np.concatenate([predictions[split].labels for split in splits])
    # Folds in time never hold out the oldest samples, each of which is a row.
    counts = np.concatenate([source.counts(split) for split in splits])[-len(predicted) :]
    names = [str(task.label(number)) for number in range(task.classes)]
    groups = groups_of_splits(source.view, splits)
    valid = evaluate_labels(labels, predicted, names, counts=counts, groups=groups)
    interval = balanced_interval(valid) if result.metric == "balanced_accuracy" else valid.interval
    if interval is None or repeats == 1:
        return interval
    # The score is the mean over repeated folds, but the predictions are those of the first repeat. Without this shift,
    # the interval would be that of another score, which it might not even contain.
    shift = result.valid_score - valid.scores[result.metric]
    least = 0.0 if is_share(result.metric) else -math.inf
    low, high = (min(max(end + shift, least), 1.0) for end in interval)
    return low, high


def _held_out_labels(predictions: Mapping[KnownSplit, Predicted], source: EntrySource) -> np.ndarray:
    """Return the labels (n, outputs) of the samples that have predictions."""
    # Folds in time never hold out the oldest samples.
    samples = sum(len(predicted.labels) for predicted in predictions.values())
    return np.concatenate([source.labels(split) for split in predictions])[-samples:]


def _held_out_negatives(
    predictions: Mapping[KnownSplit, Predicted], labels: np.ndarray, source: EntrySource, task: Task
) -> np.ndarray:
    """Return the probability of the second of two classes for each held-out row of the first; see `FinalReadout`."""
    has_one_label_per_row = source.tokens() == 1 and labels.shape[1] == 1
    probabilities = [part.probabilities for part in predictions.values() if part.probabilities is not None]
    if task.classes != 2 or not has_one_label_per_row or len(probabilities) < len(predictions):
        return np.zeros(0)
    # Rounded as predict does, so that equal probabilities compare equal.
    return np.round(np.concatenate(probabilities)[labels == 0].astype(np.float64), 6)


def nonconformity_scores(
    readout: Readout, source: EntrySource, fitter: Fitter, alpha: float | None
) -> np.ndarray:
    """Return the nonconformity score of every validation row, ascending, (n,); none for several labels per row.

    A nonconformity score is one minus the probability of the row's class, or the distance of the prediction from the
    true value (Vovk et al. 2005).
    """
    targets = readout.targets
    if source.tokens() > 1 or targets.outputs > 1 or (targets.classes and not readout.has_probabilities):
        return np.zeros(0)
    # The scores of validation rows are valid only if the readout was not fitted to these rows. Cross-validation fits
    # the readout to valid, too, so that its setting is fitted again to train alone.
    readout_without_valid = fitter.fitted_without_valid(source, readout, alpha)
    scores = []
    for x, y in source.blocks("valid"):
        if targets.classes:
            # Rounded as predict does, so that equal probabilities compare equal.
            probabilities = np.round(readout_without_valid.probabilities(x)[:, 0], 6)
            scores.append(1 - np.take_along_axis(probabilities, y.astype(int), axis=1)[:, 0])
        else:
            scores.append(np.abs(readout_without_valid.predict(x) - y)[:, 0])
    return np.sort(np.concatenate(scores).astype(np.float64))


def forecast_errors(held_out: Callable[[], tuple[np.ndarray, ...]]) -> np.ndarray:
    """Return the absolute errors of forecasts of later windows than those that were fitted, ascending, (n, horizon)."""
    scores, labels = held_out()
    return np.sort(np.abs(scores - labels).astype(np.float64), axis=0)
