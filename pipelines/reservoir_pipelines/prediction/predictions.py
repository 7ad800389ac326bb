"""The predictions of a file's rows, computed in blocks: the features of each part of a readout, then its labels."""

import itertools
from collections.abc import Iterator, Sequence
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
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.source import rows_of_tokens
from reservoir_pipelines.prediction.new_texts import BLOCK_TOKENS, NewTexts
from reservoir_pipelines.prediction.prediction import Prediction, join_windows, step_predictions


@dataclass(eq=False, repr=False, kw_only=True)
class Predictions(Iterator[Prediction]):
    """The predictions of a file's rows in order, computed in blocks while they are iterated.

    ``rows`` holds the encoded sequences, ``truths`` the label of each row in the file, None for rows
    without one. ``radius`` is the largest nonconformity score of a class in a set, or of a value in an interval.
    If the rows are windows of recordings, ``joined`` says of which, and predictions are those of the recordings. If
    the rows of the table are ``steps`` of one recording, predictions and ``truths`` are those of the rows of the table.
    A forecast has a prediction for each step. If words or tokens have labels, they are the rows, and ``texts`` holds
    the texts of the file.
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
        rows = self._all_rows()
        if self.bundle.task.horizon:
            self._stream = itertools.chain.from_iterable(map(steps_ahead, rows))
        else:
            self._stream = rows if self.joined is None else join_windows(rows, self.joined)
        if self.steps is not None:
            window = self.bundle.task.parameters["window"]
            self._stream = step_predictions(self._stream, self.steps, self.truths, window)
        # Once for all blocks, because the names are compared with each other.
        self._names = self.rows.names
        # Blocks and batches have the sizes of an extraction, so that a row takes the same time.
        parts = zip(self.bundle.parts, self.models, strict=True)
        task, raw_rows = self.bundle.task, BLOCK_ROWS["cpu"]
        if task.labels_each_token:
            raw_rows = rows_of_tokens(raw_rows, task.readout_tokens)
        sizes = [
            _sizes(model, part.columns) if isinstance(model, LoadedModel) else (raw_rows, 1)
            for part, model in parts
        ]
        self._block_rows = min(block for block, _ in sizes)
        self._batch_rows = [batch for _, batch in sizes]
        if self.texts is not None:
            device = next(model.device for model in self.models if isinstance(model, LoadedModel))
            self._block_rows = BLOCK_TOKENS[devices.kind(device)]

    def __len__(self) -> int:
        """Return the number of rows, recordings or steps of forecasts of the file, with those that cannot be read."""
        if self.texts is not None:
            return len(self.texts) + len(self.rows.skipped)
        if self.steps is not None:
            return len(self.steps.names)
        rows = len(self.rows) if self.joined is None else len(np.unique(self.joined.recording))
        return (rows + len(self.rows.skipped)) * max(1, self.bundle.task.horizon)

    @property
    def absent(self) -> tuple[str, ...]:
        """The columns of `outputs.columns_of` that would be empty: ``truth`` or ``problem``."""
        absent: list[str] = []
        if all(truth is None for truth in self.truths):
            absent.append("truth")
        has_problems = bool(self.rows.skipped or (self.steps is not None and self.steps.problems))
        if not has_problems and not (self.texts is not None and self.texts.unread):
            absent.append("problem")
        return tuple(absent)

    def __next__(self) -> Prediction:
        return next(self._stream)

    def _all_rows(self) -> Iterator[Prediction]:
        """Yield the predictions of all rows of the file, and what is wrong with those that cannot be read."""
        starts = range(0, len(self.rows), self._block_rows)
        blocks = itertools.chain.from_iterable(map(self._block, starts))
        skipped = self.rows.skipped
        readable = itertools.count()  # the numbers of the texts that can be read
        rows = self.rows if self.texts is None else self.texts.rows
        for row in range(len(rows) + len(skipped)):
            if row in skipped:
                name, problem = skipped[row]
                yield Prediction(
                    id=row if name is None else name, label=None, probabilities=[], problem=problem
                )
            elif self.texts is not None:
                yield from self.texts.with_places(next(readable), blocks)
            else:
                yield next(blocks)

    def _block(self, start: int) -> Iterator[Prediction]:
        """Yield the predictions of the rows from ``start``."""
        part = slice(start, start + self._block_rows)
        new = self.rows
        blank = [None] * self._block_rows
        # The samples of each row, if each token is one.
        counts = np.asarray(new.lengths)[part] if self.bundle.task.labels_each_token else None
        ids = self._names[part].tolist()
        groups = blank if new.groups is None else new.groups[part].tolist()
        classes = tuple(map(self.bundle.task.label, range(self.bundle.task.classes)))
        labelled = _labels(self.bundle, self._features(part, counts), counts)
        for row, (label, probabilities) in enumerate(labelled):
            # With coverage: the classes, or the interval of values, whose nonconformity is at most the radius.
            class_set = interval = None
            if self.radius is not None and classes:
                class_probabilities = zip(classes, probabilities, strict=True)
                class_set = [name for name, p in class_probabilities if 1 - p <= self.radius]
            elif self.radius is not None:
                interval = np.stack(
                    [np.subtract(label, self.radius), np.add(label, self.radius)], axis=-1
                ).tolist()
            is_unsure = class_set is not None and len(class_set) != 1
            yield Prediction(
                id=ids[row],
                label=None if self.abstain and is_unsure else label,
                probabilities=probabilities,
                classes=classes,
                truth=self.truths[start + row] if self.steps is None else None,
                group=groups[row],
                each=counts is not None,
                set=class_set,
                interval=interval,
            )

    def _features(self, rows: slice, counts: np.ndarray | None) -> np.ndarray:
        """Return the features (samples, width) of some rows; a row has one or several samples."""
        task, scaling = self.bundle.task, self.bundle.scaling
        if self.texts is not None:
            models = [model for model in self.models if isinstance(model, LoadedModel)]
            names = [part.columns for part in self.bundle.parts]
            columns_of_tokens = self.texts.features(rows.start, rows.stop, models, names, self._batch_rows)
            self._refuse_overflow(columns_of_tokens, rows.start)
            return np.concatenate(columns_of_tokens, axis=1)
        x, lengths = self.rows.x[rows], np.asarray(self.rows.lengths)[rows]
        # Placeholders for unknown labels; NaN at tokens after the end of a row, so that they are not samples.
        labels = np.zeros((len(x), task.readout_tokens, task.outputs))
        if counts is not None:
            labels[np.arange(labels.shape[1]) >= counts[:, None]] = np.nan
        # The features of each part, side by side in the order of the fit.
        features: list[np.ndarray] = []
        for part, model, batch_rows in zip(self.bundle.parts, self.models, self._batch_rows, strict=True):
            if part.statistic:
                values = part.statistic(x, lengths)
                values = with_tokens(values, task.readout_tokens) if task.labels_each_token else values
                columns = {part.columns[0]: values}
            elif part.windows:
                columns = {part.columns[0]: RawWindows(task, scaling, part.windows)(x, lengths)}
            elif part.engine:
                assert isinstance(model, EngineFolder)
                columns = model.pooled(rows.start, rows.start + len(x), part.engine.layers, part.columns)
            elif model is None:
                columns = {RAW.name: raw_features(task, scaling, x, lengths)}
            else:
                assert isinstance(model, LoadedModel)
                columns = forward(model, scaling, x, lengths, part.columns, batch_rows)
            for column in part.columns:
                values = columns[column].reshape(len(x), -1, columns[column].shape[-1])
                self._refuse_overflow([values], rows.start)
                of_samples, _ = samples(values, labels)
                features.append(of_samples)
        return np.concatenate(features, axis=1)

    def _refuse_overflow(self, columns: Sequence[np.ndarray], start: int) -> None:
        """Refuse features (rows, ...) with a value that is not finite; ``start`` is the number of the first row."""
        for values in columns:
            is_finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if not is_finite.all():
                row = f"row {start + np.argmin(is_finite)}, whose values are too large"
                raise InputError(f"{self.file}: the model overflows in {row}", "correct or remove it")


def steps_ahead(forecast: Prediction) -> Iterator[Prediction]:
    """Yield a prediction for each step of the forecast of a series, whose id is ``+1`` for the first."""
    values = np.atleast_1d(forecast.label).tolist()
    intervals = (
        [None] * len(values) if forecast.interval is None else np.atleast_2d(forecast.interval).tolist()
    )
    series = f"{forecast.id} " if isinstance(forecast.id, str) else ""
    for ahead, (value, interval) in enumerate(zip(values, intervals, strict=True), start=1):
        yield replace(forecast, id=f"{series}+{ahead}", label=value, interval=interval)


def _sizes(model: LoadedModel, columns: Sequence[str]) -> tuple[int, int]:
    """Return the number of rows of a block and of a batch."""
    task = model.fpt.task
    # A long text may become several pieces, each of which is a sequence of the batch.
    pieces = 1
    if model.reader and model.settings.long == "windows":
        pieces = -(-task.max_tokens // model.reader.max_tokens)
    shapes = column_shapes(task, model.fpt.backbone.width, [*map(Column.parse, columns)])
    return rows_at_a_time(task, model.reader, shapes, devices.kind(model.device), pieces)


def _labels(bundle: Bundle, features: np.ndarray, counts: np.ndarray | None) -> Iterator[tuple[Any, Any]]:
    """Yield the label and the probabilities of each row, or of each of the ``counts`` samples of a row."""
    task, readout = bundle.task, bundle.readout
    labels = readout.predict(features)
    names = np.array([task.label(number) for number in range(task.classes)], object)
    # The labels, and the probabilities if the readout has some, of all samples.
    outputs = [names[labels.astype(int)] if task.classes else labels.astype(float)]
    if readout.has_probabilities:
        outputs.append(np.round(readout.probabilities(features).reshape(*labels.shape, task.classes), 6))
    if counts is None:
        # (rows, readout_tokens, outputs), without an axis for a single token or output.
        nested = (unsample(values, task.readout_tokens, task.outputs) for values in outputs)
        sizes = {1: task.readout_tokens, 2: task.outputs}
        single_axes = tuple(axis for axis, size in sizes.items() if size == 1)
        rows = [values.squeeze(single_axes).tolist() for values in nested]
    else:
        pieces = (np.split(values, np.cumsum(counts)[:-1]) for values in outputs)
        # Each row has its own number of tokens; tasks with a label per token have one output or several.
        rows = [[without_single_outputs(values.tolist()) for values in of_rows] for of_rows in pieces]
    for label, *probabilities in zip(*rows, strict=True):
        yield label, probabilities[0] if probabilities else []


def without_single_outputs(tokens: list[Any]) -> list[Any]:
    """Return a list of tokens, each a list of outputs, with the output itself for a token that has only one."""
    return [outputs[0] if len(outputs) == 1 else outputs for outputs in tokens]
