"""The stage ``predict``: labels and probabilities for new sequences, through the same frozen model.

It refuses, in this order: a readout that is damaged, needs ``--trust`` or reads imported features
(`open_readout`); flags that do not fit the readout; a file of another kind of data than the readout was
fitted on (`read_new`); missing lengths; channels or a type that the model does not read (`encode_rows`);
labels of another shape; weights or a tokenizer that have changed since the fit (`load_part`); a file in
which no row has a length that the model reads; later, a row whose values overflow in the model. Single
bad rows are skipped and named.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir import InputError, devices
from reservoir.column import RAW, Column, parse_columns
from reservoir.features import column_shapes, forward, length_limits
from reservoir.options import PredictOptions
from reservoir.plan import BLOCK_ROWS, rows_at_a_time
from reservoir.pooling import find_pooling
from reservoir.raw_input import RawWindows, raw_features, with_tokens
from reservoir.readouts.linear import samples, unsample
from reservoir.reservoir import LoadedModel
from reservoir.tasks.task import Task
from reservoir.tasks.words import UNKNOWN, shown
from reservoir_pipelines.data.columns import listed
from reservoir_pipelines.data.formats import encode_rows, read_new
from reservoir_pipelines.data.rows import RecordingWindows, Rows, Skipped
from reservoir_pipelines.extraction.engine_folder import EngineFolder
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.source import rows_of_tokens
from reservoir_pipelines.output import notify
from reservoir_pipelines.prediction.load import load_part, notify_skipped, open_readout
from reservoir_pipelines.prediction.new_texts import BLOCK_TOKENS, NewTexts
from reservoir_pipelines.prediction.prediction import Prediction, join_windows
from reservoir_pipelines.prediction.request_rows import request_rows


def predict(readout: Path, file: Path, options: PredictOptions) -> "Predictions":
    """Label the sequences of a file with a saved readout; each block of rows is computed when it is reached."""
    # Refuse flags that do not fit the readout.
    bundle = open_readout(readout, trust=options.trust, requests=True)
    task = bundle.task
    if options.windows and not task.cuts_recordings:
        raise InputError(
            "--windows: the readout was not fitted on windows of recordings", "remove the flag"
        )
    if options.coverage is not None and task.cuts_recordings and not options.windows:
        raise InputError(
            "--coverage: sets and intervals are those of windows, and a recording has several",
            "add --windows for the predictions of windows",
        )
    if options.abstain and not task.classes:
        raise InputError("--abstain: the readout gives numbers, not classes", "remove the flag")
    radius = None if options.coverage is None else bundle.radius(options.coverage, readout)
    if radius is not None:
        notify(
            f"coverage {options.coverage:g} is approximate, because validation rows also chose the readout"
        )
    if any(part.engine for part in bundle.parts):
        rows, requests = request_rows(file, bundle, options.labels)
        truths = (
            [None] * len(rows) if rows.y is None else _truths(file, task, rows.y, np.asarray(rows.lengths))
        )
        models = [requests] * len(bundle.parts)
        return Predictions(bundle, models, file, rows, truths, radius, options.abstain)
    # Read the file, and refuse one that does not fit the task.
    new = read_new(file, task, options.labels)
    are_texts = new.x.dtype.kind == "U"  # whose lengths are known
    if bundle.lengths and new.lengths is None and not are_texts:
        raise InputError(
            f"{file}: no array 'lengths', but the readout was fitted on sequences of several lengths",
            "add the number of real tokens of each row",
        )
    rows = encode_rows(new, task, str(file))
    assert rows.lengths is not None
    if task.labels_each_token:  # new sequences may be longer than those of the task
        task = replace(task, readout_tokens=int(rows.lengths.max()))
        bundle = replace(bundle, task=task)
    y = new.y
    labels_per_row = task.readout_tokens * task.outputs
    # If each token has a label, rows have as many labels as tokens.
    may_have_any_number = y is None or task.labels_each_token or task.labels_text_tokens
    has_wrong_number = y is not None and not may_have_any_number and y.size != len(new) * labels_per_row
    if y is not None and (len(y) != len(new) or has_wrong_number):
        raise InputError(
            f"{file}: the labels have the shape {y.shape}, not {labels_per_row} for each of {len(new)} rows",
            "correct or remove them",
        )
    # Load the models, and leave out the rows that are too short or too long for them.
    models = [
        load_part(task, part, options.device, readout, stream="auto") if part.reservoir else None
        for part in bundle.parts
    ]
    rows = replace(rows, groups=rows.groups if bundle.groups else None)
    rows = _without_misfits(file, rows, [length_limits(model) for model in models if model])
    notify_skipped(file, rows.skipped, len(rows))
    _warn(bundle, file, rows, symbols=any(model is None or not model.reader for model in models))
    texts = None
    if task.labels_text_tokens:
        texts = NewTexts.read(file, rows, task, [model for model in models if model])
        rows = texts.as_rows()
    truths = [None] * len(rows) if rows.y is None else _truths(file, task, rows.y, np.asarray(rows.lengths))
    joined = None if options.windows else rows.windows
    return Predictions(bundle, models, file, rows, truths, radius, options.abstain, joined, texts)


def _without_misfits(file: Path, rows: Rows, limits: list[tuple[int, float]]) -> Rows:
    """Return the rows within all ``limits`` (see `length_limits`); the others are skipped, unless no row is left."""
    assert rows.lengths is not None
    fewest = max((low for low, _ in limits), default=0)
    most = min((high for _, high in limits), default=math.inf)
    fits = (rows.lengths >= fewest) & (rows.lengths <= most)
    if fits.all():
        return rows
    # The place of each row in the file, where rows that are skipped already count, too.
    places = np.setdiff1d(np.arange(len(fits) + len(rows.skipped)), [*rows.skipped])
    misfits: Skipped = {}
    for row in np.flatnonzero(~fits):
        length, place = int(rows.lengths[row]), int(places[row])
        limit = f"at least {fewest:,}" if length < fewest else f"at most {most:,.0f}"
        reason = f"row {place}: {length:,} tokens, but the model reads {limit}"
        misfits[place] = (rows.names[row].item(), reason)
    if not fits.any():
        raise InputError(
            f"{file}: no row has a length that the model reads ({reason})",
            "give rows of other lengths, or fit a readout of a backbone with more positions",
        )
    y, groups = (None if array is None else array[fits] for array in (rows.y, rows.groups))
    return replace(
        rows,
        x=np.asarray(rows.x[:])[fits],
        lengths=rows.lengths[fits],
        ids=rows.names[fits],
        y=y,
        groups=groups,
        windows=None if rows.windows is None else rows.windows.take(fits),
        skipped=rows.skipped | misfits,
    )


@dataclass(eq=False, repr=False)
class Predictions(Iterator[Prediction]):
    """The predictions of a file's rows in order, computed in blocks while they are iterated.

    ``rows`` holds the encoded sequences, ``truths`` the label of each row in the file, None for rows
    without one. ``radius`` is the largest nonconformity score of a class in a set, or of a value in an interval.
    If the rows are windows of recordings, ``joined`` says of which, and predictions are those of the recordings.
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
    texts: NewTexts | None = None

    def __post_init__(self) -> None:
        rows = self._all_rows()
        if self.bundle.task.horizon:
            self._stream = itertools.chain.from_iterable(map(steps_ahead, rows))
        else:
            self._stream = rows if self.joined is None else join_windows(rows, self.joined)
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
        if self.texts:
            device = next(model.device for model in self.models if isinstance(model, LoadedModel))
            self._block_rows = BLOCK_TOKENS[devices.kind(device)]

    def __len__(self) -> int:
        """Return the number of rows, recordings or steps of forecasts of the file, with those that cannot be read."""
        if self.texts:
            return len(self.texts) + len(self.rows.skipped)
        rows = len(self.rows) if self.joined is None else len(np.unique(self.joined.recording))
        return (rows + len(self.rows.skipped)) * max(1, self.bundle.task.horizon)

    @property
    def absent(self) -> tuple[str, ...]:
        """The columns of `outputs.columns_of` that would be empty: ``truth`` or ``problem``."""
        absent: list[str] = []
        if all(truth is None for truth in self.truths):
            absent.append("truth")
        if not self.rows.skipped and not (self.texts and self.texts.unread):
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
        for row in range(len(self.texts.rows if self.texts else self.rows) + len(skipped)):
            if row in skipped:
                name, problem = skipped[row]
                yield Prediction(
                    id=row if name is None else name, label=None, probabilities=[], problem=problem
                )
            elif self.texts:
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
                chances = zip(classes, probabilities, strict=True)
                class_set = [name for name, chance in chances if 1 - chance <= self.radius]
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
                truth=self.truths[start + row],
                group=groups[row],
                each=counts is not None,
                set=class_set,
                interval=interval,
            )

    def _features(self, rows: slice, counts: np.ndarray | None) -> np.ndarray:
        """Return the features (samples, width) of some rows; a row has one or several samples."""
        task, scaling = self.bundle.task, self.bundle.scaling
        if self.texts:
            models = [model for model in self.models if isinstance(model, LoadedModel)]
            names = [part.columns for part in self.bundle.parts]
            columns_of_tokens = self.texts.features(rows.start, rows.stop, models, names, self._batch_rows)
            self._refuse_overflow(columns_of_tokens, rows.start)
            return np.concatenate(columns_of_tokens, axis=1)
        x, lengths = self.rows.x[rows], np.asarray(self.rows.lengths)[rows]
        # Placeholders for unknown labels; NaN at tokens after the end of a row, so that they are no samples.
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
    task, long = model.fpt.task, model.settings.long == "windows"
    pieces = -(-task.max_tokens // model.reader.max_tokens) if model.reader and long else 1
    shapes = column_shapes(task, model.fpt.backbone.width, [*map(Column.parse, columns)])
    return rows_at_a_time(task, model.reader, shapes, devices.kind(model.device), pieces)


def _reads_by_position(name: str) -> bool:
    """Return whether the features of a column are those of single tokens, so that later tokens are not read."""
    (column,) = parse_columns(name)
    return find_pooling(column.pooling).by_position if isinstance(column, Column) else column == RAW


def _warn(bundle: Bundle, file: Path, rows: Rows, *, symbols: bool) -> None:
    """Print reasons why predictions are less reliable than they look; ``symbols`` if letters are read as symbols."""
    most, lengths = bundle.task.max_tokens, np.asarray(rows.lengths)
    long = int((lengths > most).sum())
    by_position = [name for part in bundle.parts for name in part.columns if _reads_by_position(name)]
    if long and by_position and not bundle.task.labels_each_token:
        read = f"{', '.join(by_position)} read the first {most:,} tokens"
        notify(f"{file}: {long:,} rows are longer than any that the readout was fitted on; {read}")
    if symbols and (alphabet := bundle.task.alphabet.removeprefix(UNKNOWN)):
        codes, numbers = np.unique(rows.x[:], return_counts=True)
        new = np.isin(codes, [0, *map(ord, alphabet)], invert=True)  # 0 is padding
        if number := int(numbers[new].sum()):
            share = f"{number:,} of {lengths.sum():,} letters ({number / lengths.sum():.1%})"
            notify(f"{file}: {share} are in no training row: {shown(''.join(map(chr, codes[new])))}")
    if rows.y is not None and bundle.origin and str(file.resolve()) == bundle.origin:
        fitted, by = ("run was trained", "train") if bundle.parts[0].run else ("readout was fitted", "fit")
        notify(f"{file}: the {fitted} on rows of this file; for new data trust the test score of {by}")


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
        rows = [[_without_single_outputs(values.tolist()) for values in of_rows] for of_rows in pieces]
    for label, *probabilities in zip(*rows, strict=True):
        yield label, probabilities[0] if probabilities else []


def _without_single_outputs(tokens: list[Any]) -> list[Any]:
    """Return a list of tokens, each a list of outputs, with the output itself for a token that has only one."""
    return [outputs[0] if len(outputs) == 1 else outputs for outputs in tokens]


def _truths(file: Path, task: Task, y: np.ndarray, lengths: np.ndarray) -> list[Any]:
    """Return the label of each row in the file, nested like predictions; None, with a note, if a row lacks labels."""
    classes = {str(task.label(number)) for number in range(task.classes)}
    truths: list[Any] = []
    unknown: set[str] = set()  # names of classes that the readout does not know
    for row, value in enumerate(y.tolist() if y.ndim == 1 and not task.labels_each_token else y):
        # The labels of a row in one list, without those of padding.
        without_padding: Any = (
            value[: lengths[row]] if task.labels_each_token and value is not None else value
        )
        has_several = isinstance(without_padding, np.ndarray | list)
        cells = np.ravel(without_padding).tolist() if has_several else [without_padding]
        labels = [_as_label(cell, is_class=task.classes > 0) for cell in cells]
        if None in labels:
            truths.append(None)
            continue
        if classes:
            unknown |= {*map(str, labels)} - classes
        # Nest them as `_labels` does.
        if task.labels_each_token:
            truths.append(labels)
        elif len(labels) == 1:
            truths.append(labels[0])
        else:
            tokens = _without_single_outputs(np.array(labels, object).reshape(-1, task.outputs).tolist())
            truths.append(tokens[0] if len(tokens) == 1 else tokens)
    if missing := sum(truth is None for truth in truths):
        notify(f"{file}: {missing:,} of {len(y):,} rows have no label, so the scores leave them out")
    if unknown:
        notify(f"{file}: classes that the readout does not know count as wrong: {listed(sorted(unknown))}")
    return truths


def _as_label(value: Any, *, is_class: bool) -> Any:
    """Return a label in the type of the class names, or as a finite number; None if it is missing or not a number."""
    if is_class:
        value = value.decode() if isinstance(value, bytes) else value  # HDF5 stores texts as bytes
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        return None if isinstance(value, float) and math.isnan(value) else value
    try:
        return float(value) if math.isfinite(float(value)) else None
    except (TypeError, ValueError):
        return None
