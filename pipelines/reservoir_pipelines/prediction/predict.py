"""The stage ``predict``: labels and probabilities for new sequences, through the same frozen model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir import InputError
from reservoir.features import check_lengths, forward
from reservoir.options import DeviceOptions, TrustOptions
from reservoir.plan import RAW
from reservoir.raw_input import raw_features
from reservoir.readouts import samples, unsample
from reservoir.reservoir import LoadedModel, Reservoir
from reservoir.tasks import encode, read_new
from reservoir.tasks.own.each import units
from reservoir.tasks.own.encode import letter_symbols
from reservoir.tasks.own.letters import are_words
from reservoir.tasks.task import Task
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.output import notify
from reservoir_pipelines.prediction.opened import load_part, open_readout

BATCH_ROWS = 32
BLOCK_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a readout says of one sequence.

    Parameters
    ----------
    label : str, int, float or nested list of these
        The label; for a task with several outputs a list, for several readout tokens a list of lists.
    probabilities : list
        Of each class in the order of ``classes``, nested as the label; empty for regression, and where the readout
        has none.
    classes : tuple of str or int
        The task's classes; empty for regression.
    truth : str, int, float or nested list of these, optional
        The label that the file gives; None where it gives none.
    id : str, optional
        The name that the file gives the row.
    each : bool, default False
        Whether every token, or word, has a label; the lists are then as long as the sequence.
    """

    label: Any
    probabilities: list[Any]
    classes: tuple[str | int, ...] = ()
    truth: Any = None
    id: str | None = None
    each: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, each probability under the name of its class."""
        named = {} if self.id is None else {"id": self.id}
        found = {"label": self.written(self.label), "probabilities": self._named(self.probabilities)}
        return named | found | ({} if self.truth is None else {"truth": self.written(self.truth)})

    def written(self, label: Any) -> Any:
        """Return the label or the truth for a file: labels of every token that are single letters as one text."""
        letters = self.each and label and all(isinstance(one, str) and len(one) == 1 for one in label)
        return "".join(label) if letters else label

    def _named(self, chances: list[Any]) -> Any:
        if chances and isinstance(chances[0], list):
            return [self._named(inner) for inner in chances]
        return {str(name): chance for name, chance in zip(self.classes, chances, strict=True)} if chances else {}


def predict(readout: Path, file: Path, place: DeviceOptions, safety: TrustOptions = TrustOptions()) -> Predictions:
    """Apply a saved readout to the sequences of a file; each block of rows is computed when it is reached."""
    bundle = open_readout(readout, trust=safety.trust)
    raw, given, ids, y = read_new(file, bundle.task)
    if bundle.lengths and given is None and raw.dtype.kind != "U":  # texts are as long as they are
        raise InputError(
            f"{file}: it has no array 'lengths', and the readout was fitted on sequences of several lengths; give the "
            "number of real tokens of each row"
        )
    x, lengths = encode(bundle.task, raw, given)
    if bundle.task.alphabet and any(_by_letter(bundle.task, part.reservoir) for part in bundle.parts):
        letter_symbols(str(file), bundle.task, x, lengths)
    counts = units(bundle.task, x, lengths) if bundle.task.each else None
    if counts is not None:  # new sequences may be longer
        bundle = replace(bundle, task=replace(bundle.task, readout_tokens=int(counts.max())))
    if y is not None:
        _check_labels(bundle.task, file, y, len(x), each=counts is not None)
    _tell(bundle, file, lengths, labelled=y is not None)
    models = [load_part(bundle.task, p, place.device, readout) if p.reservoir else None for p in bundle.parts]
    for model in filter(None, models):
        check_lengths(model, lengths, f"{file}, row")
    return Predictions(bundle, models, NewRows(file=file, x=x, lengths=lengths, counts=counts, ids=ids, y=y))


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """Encoded sequences of a file: ``counts`` (rows,) labels of each where every token has one."""

    file: Path
    x: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray | None
    ids: list[str] | None
    y: np.ndarray | None


class Predictions(Iterator[Prediction]):
    """The predictions of a file's rows in order, computed in blocks while they are iterated."""

    def __init__(self, bundle: Bundle, models: Sequence[LoadedModel | None], rows: NewRows) -> None:
        self._bundle, self._models, self._rows = bundle, models, rows
        self._stream = self._predictions()

    @property
    def labelled(self) -> bool:
        """Whether the file gives any row a label."""
        y = self._rows.y
        return y is not None and (y.dtype != object or any(value is not None for value in y.ravel()))

    def __next__(self) -> Prediction:
        return next(self._stream)

    def _predictions(self) -> Iterator[Prediction]:
        ids = self._rows.ids
        for start in range(0, len(self._rows.x), BLOCK_ROWS):
            for number, answer in enumerate(self._block(start), start):
                yield replace(answer, id=ids[number]) if ids else answer

    def _block(self, start: int) -> Iterator[Prediction]:
        """Return the predictions of a block of rows; refuse one in which the model overflows."""
        bundle, rows = self._bundle, slice(start, start + BLOCK_ROWS)
        x, lengths = self._rows.x[rows], self._rows.lengths[rows]
        counts = None if self._rows.counts is None else self._rows.counts[rows]
        features = _features(bundle, self._models, x, lengths, counts)
        wrong = ~np.isfinite(features).all(axis=1)
        if wrong.any():
            shares = np.full(len(x), len(features) // len(x)) if counts is None else counts
            row = start + int(np.searchsorted(shares.cumsum(), np.argmax(wrong), "right"))
            file = self._rows.file
            raise InputError(f"{file}: the model overflows in row {row}; its values are too large: repair or remove it")
        truths = _truths(bundle.task, self._rows, rows)
        return _answers(bundle, features, truths, counts)


def _tell(bundle: Bundle, file: Path, lengths: np.ndarray, *, labelled: bool) -> None:
    """Say what makes predictions worth less than they look."""
    short = 0 if bundle.lengths else int((lengths < bundle.task.max_tokens).sum())
    if short:
        every = f"the {bundle.task.max_tokens:,} tokens of every row that the readout was fitted on"
        notify(f"{file}: {short:,} rows are shorter than {every}")
    long = int((lengths > bundle.task.max_tokens).sum())
    by_position = [c for part in bundle.parts for c in part.columns if c == RAW or c.endswith("/tokens")]
    if long and by_position and not bundle.task.each:
        notify(
            f"{file}: {long:,} rows are longer than any that the readout was fitted on; "
            f"{', '.join(by_position)} read the first {bundle.task.max_tokens:,} tokens"
        )
    if labelled and bundle.origin and file.resolve() == Path(bundle.origin):
        notify(f"{file}: the readout was fitted on rows of this file; how it does on new ones is what fit says of test")


def _by_letter(task: Task, reservoir: Reservoir | None) -> bool:
    """Return whether texts are read letter by letter, as many as the task has: by drawn embeddings, or one-hot."""
    return reservoir.input != "native" if reservoir else not are_words(task.alphabet)


def _features(
    bundle: Bundle,
    models: Sequence[LoadedModel | None],
    x: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray | None,
) -> np.ndarray:
    """Return what the readout reads of sequences, (samples, width); a row has one sample or more."""
    empty = np.zeros((len(x), bundle.task.readout_tokens, bundle.task.outputs))
    if counts is not None:
        empty[np.arange(empty.shape[1]) >= counts[:, None]] = np.nan
    read = []
    for part, model in zip(bundle.parts, models, strict=True):
        if model is None:
            raw = raw_features(bundle.task, bundle.scaling, x, lengths)
            read.append(samples(raw if raw.ndim == 3 else raw[:, None], empty)[0])
            continue
        features = forward(model, bundle.scaling, x, lengths, part.columns, BATCH_ROWS)
        read += [samples(features[column], empty)[0] for column in part.columns]
    return np.concatenate(read, axis=1)


def _answers(
    bundle: Bundle, features: np.ndarray, truths: Sequence[Any], counts: np.ndarray | None
) -> Iterator[Prediction]:
    """Yield the prediction of each row; of ``counts`` labels where every token has one."""
    task, predicted, chances = bundle.task, bundle.readout.predict(features), None
    if bundle.readout.has_probabilities:
        chances = bundle.readout.probabilities(features).reshape(*predicted.shape, task.classes)
    if counts is None:
        labels = unsample(predicted, task.readout_tokens, task.outputs)
        likely = [] if chances is None else chances.reshape(*labels.shape, task.classes)
    else:
        ends = np.cumsum(counts)[:-1]
        labels, likely = np.split(predicted, ends), [] if chances is None else np.split(chances, ends)
    classes = tuple(task.label(number) for number in range(task.classes))
    for row, values in enumerate(labels):
        named = np.vectorize(task.label, otypes=[object])(values) if task.classes else values.astype(float)
        yield Prediction(
            label=_bare(named.tolist(), each=counts is not None),
            probabilities=_bare(np.round(likely[row], 6).tolist(), each=counts is not None) if len(likely) else [],
            classes=classes,
            truth=truths[row],
            each=counts is not None,
        )


def _bare(nested: list[Any], *, each: bool = False) -> Any:
    """Return (tokens, outputs, ...) without the levels that have a single member; with ``each`` tokens stay a level."""
    outer = [inner[0] if len(inner) == 1 else inner for inner in nested]
    return outer[0] if len(outer) == 1 and not each else outer


def _check_labels(task: Task, file: Path, y: np.ndarray, rows: int, *, each: bool) -> None:
    """Refuse labels of another shape than the readout's."""
    if len(y) == rows and (each or y.size == rows * task.readout_tokens * task.outputs):
        return
    raise InputError(
        f"{file}: y has the shape {y.shape}, and the readout gives {rows} rows {task.readout_tokens} x "
        f"{task.outputs} labels; give as many, or leave y out"
    )


def _truths(task: Task, new: NewRows, rows: slice) -> list[Any]:
    """Return the labels that the file gives some rows, nested as predictions are; None where it gives none."""
    if new.y is None:
        return [None] * len(new.x[rows])
    y = new.y[rows]

    def plain(values: list[Any]) -> list[Any]:
        return [_as_class(value) if task.classes else _as_number(new.file, value) for value in values]

    if new.counts is not None:
        cut = [None if row is None else list(row)[:count] for row, count in zip(y, new.counts[rows], strict=True)]
        return [None if row is None else plain(np.asarray(row).ravel().tolist()) for row in cut]
    shaped = np.array(plain(y.ravel().tolist()), object).reshape(len(y), task.readout_tokens, task.outputs)
    unknown = np.equal(shaped, None).any(axis=(1, 2))  # pyright: ignore
    return [None if no else _bare(row) for row, no in zip(shaped.tolist(), unknown, strict=True)]


def _as_class(value: Any) -> Any:
    """Return a label as a class is named, whatever type the file has it in."""
    if isinstance(value, bytes):  # of HDF5
        return value.decode()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_number(file: Path, value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        raise InputError(f"{file}: the label {value!r} is no number, and the readout gives numbers") from None
