"""The predictions of a file's rows, computed in blocks: the features of each part of a readout, then its labels."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir import InputError, devices
from reservoir.column import RAW, Column, column_shapes
from reservoir.features import forward
from reservoir.loaded_model import LoadedModel
from reservoir.plan.precision import BLOCK_ROWS, rows_at_a_time
from reservoir.raw_input import RawWindows, raw_features, with_tokens
from reservoir.readouts.linear import samples, unsample
from reservoir_pipelines.data.rows import RecordingSteps, RecordingWindows, Rows
from reservoir_pipelines.extraction.engine_folder import EngineFolder
from reservoir_pipelines.fitting.bundle import Bundle, Part
from reservoir_pipelines.fitting.source import rows_of_tokens
from reservoir_pipelines.prediction.new_texts import BLOCK_TOKENS, NewTexts
from reservoir_pipelines.prediction.prediction import Prediction, join_windows, step_predictions


@dataclass(eq=False, repr=False, kw_only=True)
class Predictions(Iterator[Prediction]):
    """The predictions of a file's rows in order, computed in blocks while they are iterated.

    A forecast has a prediction for each step ahead. Rows that cannot be read have a prediction with a ``problem``.

    Parameters
    ----------
    bundle : Bundle
        The readout.
    models : sequence of LoadedModel, EngineFolder or None
        What computes the features of each part of the readout; None for the raw input and its statistics.
    file : Path
        The file of the rows, for messages.
    rows : Rows
        The encoded sequences; if words or tokens have labels, a row for each of these.
    truths : sequence
        The label of each row in the file, None for rows without one; with ``steps``, those of the table's rows.
    radius : float or array (horizon,), optional
        The largest nonconformity score of a class in a set, or of a value in an interval; None without ``--coverage``.
    abstain : bool
        Whether a row has no label if its set does not have exactly one class.
    joined : RecordingWindows, optional
        The recordings of which the rows are windows, if predictions are those of the recordings.
    steps : RecordingSteps, optional
        The rows of a table that are steps of one recording, if predictions are those of the table's rows.
    texts : NewTexts, optional
        The texts of the file, if their words or tokens have labels.
    """

    bundle: Bundle
    models: Sequence[LoadedModel | EngineFolder | None]
    file: Path
    rows: Rows
    truths: Sequence[Any]
    radius: float | np.ndarray | None
    abstain: bool
    joined: RecordingWindows | None = None
    steps: RecordingSteps | None = None
    texts: NewTexts | None = None

    def __post_init__(self) -> None:
        self._stream = self._predictions_of_file()
        # Once for all blocks, because `Rows.names` makes a new array.
        self._names = self.rows.names
        # Blocks and batches have the sizes of an extraction, so that a row takes the same time.
        task, raw_rows = self.bundle.task, BLOCK_ROWS["cpu"]
        if task.labels_each_token:
            raw_rows = rows_of_tokens(raw_rows, task.readout_tokens)
        sizes = [
            # Without a model there are no batches.
            _block_and_batch_rows(model, part.columns) if isinstance(model, LoadedModel) else (raw_rows, 1)
            for part, model in zip(self.bundle.parts, self.models, strict=True)
        ]
        # All parts of the readout are computed for the same block of rows, each in batches of its own.
        self._block_rows = min(block_rows for block_rows, _ in sizes)
        self._batch_rows = [batch_rows for _, batch_rows in sizes]
        if self.texts is not None:  # the rows are words or tokens
            device = next(model.device for model in self.models if isinstance(model, LoadedModel))
            self._block_rows = BLOCK_TOKENS[devices.kind(device)]

    def _predictions_of_file(self) -> Iterator[Prediction]:
        """Return an iterator over the predictions of the rows, or of what the rows are parts of; it is lazy."""
        predictions = self._predictions_of_rows()
        if self.bundle.task.horizon:
            predictions = itertools.chain.from_iterable(map(steps_ahead, predictions))
        elif self.joined is not None:
            predictions = join_windows(predictions, self.joined)
        if self.steps is not None:
            window = self.bundle.task.parameters["window"]
            predictions = step_predictions(predictions, self.steps, self.truths, window)
        return predictions

    def __len__(self) -> int:
        """Return the number of all predictions, with those of rows that cannot be read."""
        if self.texts is not None:
            return len(self.texts) + len(self.rows.skipped)
        if self.steps is not None:
            return len(self.steps.names)
        rows = len(self.rows) if self.joined is None else len(np.unique(self.joined.recording))
        # The horizon is 0 if the task is no forecast.
        predictions_per_row = max(1, self.bundle.task.horizon)
        return (rows + len(self.rows.skipped)) * predictions_per_row

    @property
    def absent(self) -> tuple[str, ...]:
        """The columns of `outputs.columns_of` that would be empty: ``truth`` or ``problem``."""
        absent: list[str] = []
        if all(truth is None for truth in self.truths):
            absent.append("truth")
        has_bad_steps = self.steps is not None and bool(self.steps.problems)
        has_unread_texts = self.texts is not None and self.texts.unread > 0
        if not (self.rows.skipped or has_bad_steps or has_unread_texts):
            absent.append("problem")
        return tuple(absent)

    def __next__(self) -> Prediction:
        return next(self._stream)

    def _predictions_of_rows(self) -> Iterator[Prediction]:
        """Yield the predictions of all rows of the file, and what is wrong with those that cannot be read."""
        starts = range(0, len(self.rows), self._block_rows)
        readable_predictions = itertools.chain.from_iterable(map(self._predictions_of_block, starts))
        skipped = self.rows.skipped  # by the number of the row in the file
        texts_so_far = itertools.count()  # numbers the texts that can be read
        rows_or_texts = self.rows if self.texts is None else self.texts.rows
        for row in range(len(rows_or_texts) + len(skipped)):
            if row in skipped:
                name, problem = skipped[row]
                yield Prediction(
                    id=row if name is None else name, label=None, probabilities=[], problem=problem
                )
            elif self.texts is not None:
                yield from self.texts.with_token_fields(next(texts_so_far), readable_predictions)
            else:
                yield next(readable_predictions)

    def _predictions_of_block(self, start: int) -> Iterator[Prediction]:
        """Yield the predictions of a block of rows, which begins at the row ``start``."""
        block = slice(start, start + self._block_rows)
        task, rows = self.bundle.task, self.rows
        # The number of samples of each row, if each token is one.
        counts = np.asarray(rows.lengths)[block] if task.labels_each_token else None
        ids = self._names[block].tolist()
        groups = None if rows.groups is None else rows.groups[block].tolist()
        classes = tuple(map(task.label, range(task.classes)))
        features = self._features(block, counts)
        for row, (label, probabilities) in enumerate(_labels(self.bundle, features, counts)):
            class_set = self._class_set(classes, probabilities)
            is_unsure = class_set is not None and len(class_set) != 1
            yield Prediction(
                id=ids[row],
                label=None if self.abstain and is_unsure else label,
                probabilities=probabilities,
                classes=classes,
                # With steps, truths are not those of these rows; `step_predictions` adds them.
                truth=self.truths[start + row] if self.steps is None else None,
                group=None if groups is None else groups[row],
                each=counts is not None,
                set=class_set,
                interval=None if classes else self._interval(label),
            )

    def _class_set(
        self, classes: Sequence[str | int], probabilities: Sequence[float]
    ) -> list[str | int] | None:
        """Return the classes whose nonconformity, 1 - p, is at most the radius; None for values or without a radius."""
        if self.radius is None or not classes:
            return None
        return [name for name, p in zip(classes, probabilities, strict=True) if 1 - p <= self.radius]

    def _interval(self, value: Any) -> list[Any] | None:
        """Return both ends of the interval around a value, or around each value of a list; None without a radius."""
        if self.radius is None:
            return None
        ends = [np.subtract(value, self.radius), np.add(value, self.radius)]
        return np.stack(ends, axis=-1).tolist()

    def _features(self, block: slice, counts: np.ndarray | None) -> np.ndarray:
        """Return the features (samples, width) of the rows of a block, for the readout.

        A row is one sample; with ``counts`` (rows,), each of its tokens is one.
        """
        if self.texts is not None:
            models = [model for model in self.models if isinstance(model, LoadedModel)]
            names = [part.columns for part in self.bundle.parts]
            columns_of_tokens = self.texts.features(
                block.start, block.stop, models, names, self._batch_rows
            )
            self._refuse_overflow(columns_of_tokens, block.start)
            return np.concatenate(columns_of_tokens, axis=1)
        task = self.bundle.task
        x = self.rows.x[block]
        # `samples` finds the tokens that are samples by their labels. These are placeholders: 0, or NaN at tokens after
        # the end of a row, so that they are no samples.
        placeholders = np.zeros((len(x), task.readout_tokens, task.outputs))
        if counts is not None:
            is_padding = np.arange(task.readout_tokens) >= counts[:, None]  # (rows, tokens)
            placeholders[is_padding] = np.nan
        # The features of each part, side by side in the order of the fit.
        features: list[np.ndarray] = []
        for part, model, batch_rows in zip(self.bundle.parts, self.models, self._batch_rows, strict=True):
            columns = self._columns_of_part(part, model, batch_rows, x, block)
            for name in part.columns:
                values = columns[name].reshape(len(x), -1, columns[name].shape[-1])  # (rows, tokens, width)
                self._refuse_overflow([values], block.start)
                features_of_samples, _ = samples(values, placeholders)
                features.append(features_of_samples)
        return np.concatenate(features, axis=1)

    def _columns_of_part(
        self,
        part: Part,
        model: LoadedModel | EngineFolder | None,
        batch_rows: int,
        x: np.ndarray,
        block: slice,
    ) -> Mapping[str, np.ndarray]:
        """Return the columns that a part of the readout reads, (rows, width) or (rows, tokens, width), by name.

        ``x`` has the sequences of the rows of the block.
        """
        task, scaling = self.bundle.task, self.bundle.scaling
        lengths = np.asarray(self.rows.lengths)[block]
        if part.statistic:
            values = part.statistic(x, lengths)
            if task.labels_each_token:
                values = with_tokens(values, task.readout_tokens)
            return {part.columns[0]: values}
        if part.windows:
            return {part.columns[0]: RawWindows(task, scaling, part.windows)(x, lengths)}
        if part.engine:
            assert isinstance(model, EngineFolder)
            return model.pooled(block.start, block.start + len(x), part.engine.layers, part.columns)
        if model is None:
            return {RAW.name: raw_features(task, scaling, x, lengths)}
        assert isinstance(model, LoadedModel)
        return forward(model, scaling, x, lengths, part.columns, batch_rows)

    def _refuse_overflow(self, columns: Sequence[np.ndarray], start: int) -> None:
        """Refuse features (rows, ...) with a value that is not finite; ``start`` is the number of the first row."""
        for values in columns:
            is_finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)  # (rows,)
            if not is_finite.all():
                row = f"row {start + np.argmin(is_finite)}, whose values are too large"
                raise InputError(f"{self.file}: the model overflows in {row}", "correct or remove it")


def steps_ahead(forecast: Prediction) -> Iterator[Prediction]:
    """Yield a prediction for each step of the forecast of a series, with an id such as ``+1``, or ``series +1``.

    The id begins with the name of the series if the file names it. The label of a forecast of one step is a number, not
    a list.
    """
    values = np.atleast_1d(forecast.label).tolist()
    intervals: list[Any] = [None] * len(values)
    if forecast.interval is not None:
        intervals = np.atleast_2d(forecast.interval).tolist()
    prefix = f"{forecast.id} " if isinstance(forecast.id, str) else ""
    for step, (value, interval) in enumerate(zip(values, intervals, strict=True), start=1):
        yield replace(forecast, id=f"{prefix}+{step}", label=value, interval=interval)


def _block_and_batch_rows(model: LoadedModel, columns: Sequence[str]) -> tuple[int, int]:
    """Return the number of rows of a block and of a batch in which a model computes these columns."""
    task = model.fpt.task
    # A long text may become several pieces, each of which is a sequence of the batch.
    pieces = 1
    if model.reader and model.settings.long == "windows":
        pieces = -(-task.max_tokens // model.reader.max_tokens)  # rounded up
    parsed_columns = [Column.parse(name) for name in columns]
    shapes = column_shapes(task, model.fpt.backbone.width, parsed_columns)
    return rows_at_a_time(task, model.reader, shapes, devices.kind(model.device), pieces)


def _labels(bundle: Bundle, features: np.ndarray, counts: np.ndarray | None) -> Iterator[tuple[Any, Any]]:
    """Yield the label and the probabilities of each row, nested as in `Prediction`, from features (samples, width).

    A row is one sample; with ``counts`` (rows,), it has this number of samples, its tokens. The probabilities are an
    empty list if the readout has none.
    """
    task, readout = bundle.task, bundle.readout
    labels = readout.predict(features)
    class_names = np.array([task.label(number) for number in range(task.classes)], object)
    # The labels, and the probabilities if the readout has some, of all samples.
    outputs = [class_names[labels.astype(int)] if task.classes else labels.astype(float)]
    if readout.has_probabilities:
        outputs.append(np.round(readout.probabilities(features).reshape(*labels.shape, task.classes), 6))
    if counts is None:
        # (rows, readout_tokens, outputs), without an axis for a single token or output.
        nested = (unsample(values, task.readout_tokens, task.outputs) for values in outputs)
        size_of_axis = {1: task.readout_tokens, 2: task.outputs}
        single_axes = tuple(axis for axis, size in size_of_axis.items() if size == 1)
        rows_of_outputs = [values.squeeze(single_axes).tolist() for values in nested]
    else:
        # The samples of a row end where those of the next one begin.
        ends = np.cumsum(counts)[:-1]
        rows_of_outputs = [
            [without_single_outputs(tokens.tolist()) for tokens in np.split(values, ends)]
            for values in outputs
        ]
    for label, *probabilities in zip(*rows_of_outputs, strict=True):
        yield label, probabilities[0] if probabilities else []


def without_single_outputs(tokens: list[Any]) -> list[Any]:
    """Return a list of tokens, each a list of outputs, with the output itself for a token that has only one."""
    return [outputs[0] if len(outputs) == 1 else outputs for outputs in tokens]
