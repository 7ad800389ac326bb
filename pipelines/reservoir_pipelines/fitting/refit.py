"""The last step before the test rows: chosen readouts predict held-out rows, and are fitted to all that may be used."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from reservoir.pooling import find_pooling
from reservoir.readouts.directions import ReadColumn
from reservoir.readouts.evaluation import Evaluation, balanced_interval, evaluate_labels
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
    KNOWN_SPLITS,
    ColumnSource,
    EntrySamples,
    EntrySource,
    EntryView,
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

    Held-out rows are those to which a readout of the same setting was not fitted: with cross-validation all rows of
    train and valid, which the models of the other folds predict (of folds in time, all but the oldest), else those of
    valid, which the readout that was fitted to train predicts.
    """

    result: Result
    readout: Readout
    source: EntrySource
    # Returns the scores of `nonconformity_scores` or, for forecasts, the errors of `forecast_errors`.
    held_out: Callable[[], np.ndarray]
    predictions: dict[KnownSplit, Predicted]  # of the held-out rows, by split
    # The numbers of the held-out rows in their split, or a slice of all.
    rows: dict[KnownSplit, slice | np.ndarray]
    # 95% interval of the validation score; None if there is none.
    valid_interval: tuple[float, float] | None
    held_out_rmse: float  # root mean squared error on the held-out rows; NaN for classes
    # The probability of the second of two classes, for each held-out row of the first one, (n,); empty for other tasks.
    held_out_negatives: np.ndarray
    control: Control | None  # the same setting fitted to random labels; None if not requested


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
    layers: list[Layer]  # in the order of the model; empty for fewer than two layers

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
    choices_of_title = {"refit": selection.choices}
    if other_layers:
        choices_of_title["layers"] = [*other_layers.values()]
    finals: list[FinalReadout] = []
    for title, choices in choices_of_title.items():
        works = [refit_work(choice) for choice in choices]
        with work_meter(title, works) as counting:
            for choice, work in zip(choices, works, strict=True):
                with counting(work):
                    finals.append(refit(choice, task, extras))
    # ``finals`` are in the order of the titles: the best readout, the baselines, and the other layers.
    best, *baselines = finals[: len(selection.choices)]
    final_of_layer = dict(zip(other_layers, finals[len(selection.choices) :], strict=True))
    layers = [
        Layer(name=name, result=choice.fit.result, final=final_of_layer.get(name, best))
        for name, choice in selection.layers.items()
    ]
    return FinalReadouts(best=best, baselines=baselines, saved=finals[selection.saved], layers=layers)


def refit(choice: Choice, task: Task, extras: Extras = Extras()) -> FinalReadout:
    """Return a chosen readout, calibrated and fitted to all rows that may be used, with predictions of held-out rows.

    All that needs held-out rows is computed from the readout that was chosen, before it is fitted to these rows.
    """
    fit, source, fitter = choice.fit, choice.source, choice.fitter
    assert isinstance(source, EntrySamples), "a readout of arrays has been fitted to all of them"
    # The choice of a layer has no model, so its setting is fitted once more.
    if fit.solve is None:
        fit = fitter.fit(source)
    readout, alpha = fit.readout, fit.result.alpha
    # Calibrate the probabilities on valid. Cross-validation has calibrated its readout on held-out rows.
    calibrates = task.classes and fitter.calibrates and not fitter.folds
    if calibrates and isinstance(readout, LinearReadout | KernelReadout):
        readout = readout.calibrate(source.blocks("valid"))
    scores_of_rows = partial(nonconformity_scores, readout, source, fitter, alpha)
    if task.horizon and fit.held_out:
        scores_of_rows = partial(forecast_errors, fit.held_out)
    # The source may have only some of the rows, such as that of logistic regression of the raw input. Cross-validation
    # has scored all rows, not only these; and the labels of all rows are encoded below.
    source_of_all_rows = replace(source, row_numbers=None) if isinstance(source, RawSource) else source
    # Predict the held-out rows, and judge the predictions.
    predicted_source = source_of_all_rows if fit.held_out else source
    predictions = _predict_held_out(fit, predicted_source, readout)
    labels = _held_out_labels(predictions, predicted_source)
    negatives = _held_out_negatives(predictions, labels, predicted_source, task)
    valid = _evaluate_held_out(predictions, labels, predicted_source, task)
    result = fit.result
    if extras.mdl and fitter.has_code:
        code = code_length(source_of_all_rows, task.classes)
        result = replace(result, description_bits=code.bits, compression=code.compression)
    # From here on, the readout may have seen valid.
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
            split: _held_out_rows(predicted_source, split, len(predicted.labels))
            for split, predicted in predictions.items()
        },
        valid_interval=_valid_interval(valid, fit.result, repeats=fitter.repeats),
        held_out_rmse=valid.scores.get("rmse", math.nan),
        held_out_negatives=negatives,
        control=fit_control(choice, readout, task) if extras.control else None,
    )


def _read_columns(source: EntrySource) -> tuple[ReadColumn, ...]:
    """Return the name, the width and the number of vectors of each column whose features a source has."""
    parts = source.parts if isinstance(source, JoinedSource) else (source,)
    columns: list[ReadColumn] = []
    for part in parts:
        vectors = 1  # of baselines, and of imported columns, whose names need not have a pooling
        if isinstance(part, ColumnSource) and part.view.spec.init.kind != IMPORTED:
            # A sample has the stored tokens of its row side by side, unless each token is a sample. A pooling with a
            # number, such as segments8, has so many vectors for each token.
            stored_tokens, _ = part.view["train"].shape(part.column.name)
            tokens_of_sample = stored_tokens // part.tokens()
            vectors = tokens_of_sample * max(1, find_pooling(part.column.pooling).number)
        columns.append(ReadColumn(part.name, part.width(), vectors))
    return tuple(columns)


def _predict_held_out(
    fit: ColumnFit, source: EntrySource, calibrated: Readout
) -> dict[KnownSplit, Predicted]:
    """Return the predictions for held-out rows (see `FinalReadout`), by split: of valid, or of train and valid."""
    if fit.held_out is None:
        parts = [predict_block(calibrated, x) for x, _ in source.blocks("valid")]
        return {"valid": join_predictions(parts)}
    assert isinstance(calibrated, LinearReadout | IdentityReadout), "other readouts are chosen on valid"
    # The held-out scores (n, T) are those of the samples of train, then of valid. Folds in time never hold out the
    # oldest samples.
    scores, _ = fit.held_out()
    samples = {split: len(source.labels(split)) for split in KNOWN_SPLITS}
    held_out_in_train = max(0, len(scores) - samples["valid"])
    assert held_out_in_train <= samples["train"], "only samples have held-out scores"
    predictions: dict[KnownSplit, Predicted] = {}
    for split, scores_of_split in zip(KNOWN_SPLITS, np.split(scores, [held_out_in_train]), strict=True):
        if not len(scores_of_split):  # of train, if folds in time hold out newer samples alone
            continue
        labels = calibrated.targets.predict(scores_of_split)
        predictions[split] = _predicted(labels, _probabilities_of_scores(calibrated, scores_of_split))
    return predictions


def _probabilities_of_scores(
    readout: LinearReadout | IdentityReadout, scores: np.ndarray
) -> np.ndarray | None:
    """Return the probabilities (n, outputs, classes) that a readout gives to scores (n, T); None if it has none."""
    if not readout.has_probabilities:
        return None
    if isinstance(readout, IdentityReadout):
        return readout.shares(scores)
    return readout.targets.probabilities(scores, readout.temperature, readout.link)


def _held_out_rows(source: EntrySource, split: KnownSplit, samples: int) -> slice | np.ndarray:
    """Return the numbers of the held-out rows of a split, or a slice of all, from their number of ``samples``."""
    all_samples = len(source.labels(split))
    if samples == all_samples:
        return source.selected_rows(split)
    # Folds in time never hold out the oldest windows, each of which is a row and a sample.
    return np.arange(all_samples - samples, all_samples)


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
    """Return labels (n, outputs) with one probability of each, from those of all classes, (n, outputs, classes).

    It is the probability of class 1 of two classes, else that of the label. Without probabilities, labels are values
    or classes as they are.
    """
    if probabilities is None:
        return Predicted(labels, None)
    labels = labels.astype(np.int32)
    if probabilities.shape[-1] == 2:
        return Predicted(labels, probabilities[..., 1].astype(np.float32))
    of_labels = np.take_along_axis(probabilities, labels[..., None].astype(np.int64), axis=-1)[..., 0]
    return Predicted(labels, of_labels.astype(np.float32))


def _evaluate_held_out(
    predictions: Mapping[KnownSplit, Predicted], labels: np.ndarray, source: EntrySource, task: Task
) -> Evaluation:
    """Return all scores of the ``predictions`` for held-out rows, with their ``labels`` (n, outputs)."""
    splits = list(predictions)
    predicted = np.concatenate([predictions[split].labels for split in splits])
    # Folds in time never hold out the oldest samples, each of which is a row.
    counts = np.concatenate([source.counts(split) for split in splits])[-len(predicted) :]
    names = [str(task.label(number)) for number in range(task.classes)]
    groups = groups_of_splits(source.view, splits)
    if task.horizon > 1:  # windows overlap in their labels, as those of `row_units` do
        groups = _stretches_of_splits(source.view, splits, len(predicted))
    return evaluate_labels(labels, predicted, names, counts=counts, groups=groups)


def _valid_interval(valid: Evaluation, result: Result, *, repeats: int) -> tuple[float, float] | None:
    """Return the 95% interval of the validation score of ``result``, from the evaluation of held-out rows, ``valid``.

    ``repeats`` is the number of draws of folds. None if rows are too few, or if a balanced accuracy is of several
    labels per row, or of groups.
    """
    interval = balanced_interval(valid) if result.metric == "balanced_accuracy" else valid.interval
    if interval is None or repeats == 1:
        return interval
    # The score is the mean over repeated folds, but the predictions are those of the first repeat. Without this shift,
    # the interval would be that of another score, and might not even contain the mean. It stays within the range of
    # the metric: R² has no least value.
    shift = result.valid_score - valid.scores[result.metric]
    least = 0.0 if is_share(result.metric) else -math.inf
    low, high = (min(max(end + shift, least), 1.0) for end in interval)
    return low, high


def _stretches_of_splits(
    view: EntryView[KnownSplit], splits: Sequence[KnownSplit], windows: int
) -> np.ndarray | None:
    """Return the stretch of steps in which the labels of each of the last windows begin, numbered from 0, (windows,).

    None for an entry of an earlier version, which does not store stretches.
    """
    stretches = [stored for split in splits if (stored := view[split].stretches) is not None]
    if len(stretches) < len(splits):
        return None
    return np.unique(np.concatenate(stretches)[-windows:], return_inverse=True)[1]


def _held_out_labels(predictions: Mapping[KnownSplit, Predicted], source: EntrySource) -> np.ndarray:
    """Return the labels (n, outputs) of the samples that have predictions."""
    # Folds in time never hold out the oldest samples, so the samples that have predictions are the last ones.
    samples = sum(len(predicted.labels) for predicted in predictions.values())
    return np.concatenate([source.labels(split) for split in predictions])[-samples:]


def _held_out_negatives(
    predictions: Mapping[KnownSplit, Predicted], labels: np.ndarray, source: EntrySource, task: Task
) -> np.ndarray:
    """Return the probability of the second of two classes for each held-out row of the first one, (n,).

    Empty for other tasks, for several labels per row, and for a readout without probabilities. ``labels`` (n, outputs)
    are those of the held-out rows.
    """
    has_one_label_per_row = source.tokens() == 1 and labels.shape[1] == 1
    probabilities = [part.probabilities for part in predictions.values() if part.probabilities is not None]
    has_probabilities = len(probabilities) == len(predictions)
    if task.classes != 2 or not has_one_label_per_row or not has_probabilities:
        return np.zeros(0)
    probabilities_of_negatives = np.concatenate(probabilities)[labels == 0]
    # Rounded as predict does, so that equal probabilities compare equal.
    return np.round(probabilities_of_negatives.astype(np.float64), 6)


def nonconformity_scores(
    readout: Readout, source: EntrySource, fitter: Fitter, alpha: float | None
) -> np.ndarray:
    """Return the nonconformity score of every validation row, ascending, (n,).

    It is one minus the probability of the row's class, or the distance of the predicted value from the true one (Vovk
    et al. 2005). The result is empty for several labels per row, and for a readout of classes without probabilities.
    ``alpha`` is the penalty of the ``readout``.
    """
    targets = readout.targets
    has_several_labels_per_row = source.tokens() > 1 or targets.outputs > 1
    lacks_probabilities = bool(targets.classes) and not readout.has_probabilities
    if has_several_labels_per_row or lacks_probabilities:
        return np.zeros(0)
    # The scores of validation rows are valid only if the readout was not fitted to these rows. Cross-validation fits
    # the readout to valid, too, so that its setting is fitted again to train alone.
    readout_without_valid = fitter.fitted_without_valid(source, readout, alpha)
    scores: list[np.ndarray] = []  # of each block
    for x, y in source.blocks("valid"):
        if targets.classes:
            # Of the only output, (m, classes). Rounded as predict does, so that equal probabilities compare equal.
            probabilities = np.round(readout_without_valid.probabilities(x)[:, 0], 6)
            of_true_class = np.take_along_axis(probabilities, y.astype(int), axis=1)[:, 0]
            scores.append(1 - of_true_class)
        else:
            scores.append(np.abs(readout_without_valid.predict(x) - y)[:, 0])
    return np.sort(np.concatenate(scores).astype(np.float64))


def forecast_errors(held_out: Callable[[], tuple[np.ndarray, ...]]) -> np.ndarray:
    """Return the absolute errors of the forecasts of held-out windows, (n, horizon), ascending for each step ahead.

    ``held_out`` returns the forecasts and the labels of these windows, (n, horizon) each.
    """
    forecasts, labels = held_out()
    return np.sort(np.abs(forecasts - labels).astype(np.float64), axis=0)
