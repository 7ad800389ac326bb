"""A cache of features by the content of each row, and the conversion of X to padded rows."""

import hashlib
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import (
    DataSpec,
    Entry,
    FeatureStore,
    Layout,
    Spec,
    SplitFeatures,
    check_space,
    required_bytes,
    write_targets,
)
from sklearn.preprocessing import StandardScaler

from reservoir.devices import exact_products
from reservoir.features import Loaded, column_shapes, launch, load
from reservoir.plan import Plan
from reservoir.reservoir import LoadedModel, Reservoir, load_model
from reservoir.tasks.source import clean_symbols
from reservoir.tasks.task import Scaling, Task, Tokens, Vectors
from reservoir_pipelines.data.arrays import padded
from reservoir_pipelines.data.labels import read_integers
from reservoir_pipelines.data.values import as_values, check_rounding, rounding
from reservoir_pipelines.extraction.blocks import compute_missing
from reservoir_pipelines.extraction.spec import model_spec
from reservoir_pipelines.files import ROWS, stamp, writing


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences in the form that a frozen model reads, padded with zeros."""

    x: np.ndarray  # (rows, values, channels) of float32 or (rows, tokens) of int64
    lengths: np.ndarray  # (rows,) of int32

    @property
    def real(self) -> np.ndarray:
        """Mask (rows, values) of the values that are not padding."""
        return np.arange(self.x.shape[1]) < self.lengths[:, None]

    @property
    def channels(self) -> int:
        """Number of values of each token; 1 for symbols."""
        return self.x.shape[2] if self.x.ndim == 3 else 1

    def scaled(self, scaling: Scaling | None) -> "Rows":
        """Return the rows with scaled values."""
        if scaling is None:
            return self
        return Rows(np.where(self.real[:, :, None], scaling(self.x), np.float32(0)), self.lengths)


def is_list(x: Any) -> bool:
    """Return whether X is a list of sequences, each an array or a list."""
    listed = isinstance(x, list | tuple) or (
        isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 1
    )
    return listed and len(x) > 0 and hasattr(x[0], "__len__")


def unnested(x: Any) -> Any:
    """Return a table or column of series as a list of sequences, masked values as NaN, and any other X unchanged."""
    if is_list(x) and any(map(np.ma.is_masked, x)):
        return [unnested(row) for row in x]
    if np.ma.is_masked(x):
        return x.astype(float).filled(np.nan)
    if hasattr(x, "to_list"):
        return x.to_list()
    names = list(getattr(x, "columns", ()))
    first = [x[name][:1].to_list()[0] for name in names] if names and len(x) else []
    # In a table of several columns, texts are numbers that pandas did not convert.
    if not any(hasattr(cell, "__len__") for cell in first if not (isinstance(cell, str) and names[1:])):
        return x
    if len(names) == 1:
        return x[names[0]].to_list()
    rows = list(zip(*(x[name].to_list() for name in names), strict=True))
    for row, cells in enumerate(rows):
        if len({np.shape(cell) for cell in cells}) > 1:
            shapes = ", ".join(
                f"{name!r} {np.shape(cell)}" for name, cell in zip(names, cells, strict=True)
            )
            raise ValueError(
                f"X[{row}] holds series of several lengths: {shapes}; drop or resample some columns"
            )
    return [np.stack([np.asarray(cell, float) for cell in cells], axis=1) for cells in rows]


def with_channels_last(x: Any, *, channels_first: bool, warn: bool) -> Any:
    """Return X with the channels as its last axis; with ``warn``, warn if they seem to be the second axis."""
    if channels_first:
        if is_list(x):
            return [np.asarray(row).T if np.ndim(row) == 2 else row for row in x]
        return np.swapaxes(x, 1, 2) if np.ndim(x) == 3 else x
    shape = getattr(x, "shape", ())
    if warn and len(shape) == 3 and shape[2] > shape[1]:
        warnings.warn(
            f"X of shape {shape} is read as {shape[1]} values of {shape[2]} channels; "
            "if it is (samples, channels, values), pass channels_first=True",
            stacklevel=4,
        )
    return x


def joined(x: Sequence[Any], shortest: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences as one array of at least ``shortest`` values, padded with zeros, and their lengths."""
    # Lists of polars hold None for a missing value.
    items = [
        item.astype(float) if item.dtype == object and None in item else item for item in map(np.asarray, x)
    ]
    for row, item in enumerate(items):
        fits = item.size and item.ndim in (1, 2) and item.shape[1:] == items[0].shape[1:]
        if not fits or item.dtype.kind not in "biuf":
            problem = f"X[{row}] has the shape {item.shape} and type {item.dtype}"
            raise ValueError(
                f"{problem}; give (values,) or (values, channels) of numbers, all with the same channels"
            )
    values, lengths = padded("X", items)
    short = max(0, shortest - values.shape[1])
    return np.pad(values, [(0, 0), (0, short), (0, 0)][: values.ndim]), lengths.astype(np.int32)


def read_vocabulary(x: np.ndarray, lengths: np.ndarray) -> int | None:
    """Return the vocabulary of X, or None for values; for integers, `read_integers` decides, with a warning."""
    if x.ndim != 2 or x.dtype.kind not in "ui":
        return None
    reading = read_integers(x, lengths)
    vocabulary = int(x.max()) + 1 if reading.names else None
    what, other = (f"{vocabulary:,} symbols", "floats") if vocabulary else ("values", "a vocabulary")
    warnings.warn(f"X read as {what} ({reading.why}); if this is wrong, pass {other}", stacklevel=4)
    return vocabulary


def as_rows(x: np.ndarray, lengths: np.ndarray, vocabulary: int | None, missing: str) -> Rows:
    """Return checked X as rows; ``missing`` decides what happens to NaN (see `as_values`)."""
    if x.ndim > 3 or (vocabulary is not None and x.ndim > 2):
        want = "(rows, values) or (rows, values, channels)" if vocabulary is None else "(rows, tokens)"
        raise ValueError(f"X has the shape {x.shape}; give {want}")
    if vocabulary is not None:
        return Rows(clean_symbols("X", x, lengths, vocabulary).astype(np.int64), lengths)
    gaps = np.isnan(x).reshape(len(x), -1).any(axis=1)
    if missing == "refuse" and gaps.any():
        raise ValueError(
            f"Input X contains NaN in row {gaps.argmax()}; pass missing='mask' or missing='interpolate'"
        )
    values = x.reshape(*x.shape[:2], -1).astype(np.result_type(x.dtype, np.float32), copy=False)
    return Rows(as_values("X", values, lengths, missing), lengths)


def scaling_of(
    x: np.ndarray, rows: Rows, task: Task, weights: np.ndarray | None, *, standardise: bool
) -> Scaling | None:
    """Return the standardisation of the values of all rows, with ``weights`` (n,), as `standardisation` does for files.

    ``x`` holds the rows as they were given. The result is None for symbols.
    """
    if isinstance(task.form, Tokens):
        return None
    if not standardise:
        return Scaling.constant(1.0, task.form.dim)
    given = x.reshape(*rows.x.shape[:2], -1)[rows.real]
    tokens = rows.x[rows.real][:, : given.shape[1]].astype(np.float64)
    check_rounding("X", [rounding(given, tokens)])
    counted = None if weights is None else np.repeat(weights, rows.lengths)
    with np.errstate(invalid="ignore"):  # a channel without any value has neither a mean nor a deviation
        found = StandardScaler().fit(tokens, sample_weight=counted)
    mean = np.nan_to_num(np.asarray(found.mean_))
    deviation = np.nan_to_num(np.asarray(found.scale_), nan=1.0)
    # If values are near 1e-40, 1 / deviation overflows float32.
    scale = np.minimum(1 / deviation, np.finfo(np.float32).max)
    marks = np.zeros(rows.channels - len(mean))  # channels that mark missing values stay 0 and 1
    offset, scale = np.append(mean, marks), np.append(scale, marks + 1)
    return Scaling(offset=offset.astype(np.float32), scale=scale.astype(np.float32))


FEW = 8  # fewer new rows are not stored, because each batch of new rows on disk needs a folder

_one_at_a_time = threading.Lock()  # a forward pass changes the list of blocks of the backbone


class RowCache:
    """The features of all rows that one frozen model has read, in some columns.

    On disk they are entries of the cache, one for each batch of new rows, whose labels are the
    SHA-256 of the rows. Features are stored in float32, so computed features equal those read later;
    their last bits depend on the batch.
    """

    def __init__(
        self, root: Path, title: str, spec: Spec, columns: tuple[str, ...], layout: Layout
    ) -> None:
        self.root, self.columns, self.layout = root, columns, layout
        self._spec, self._name = spec, f"{title}-{spec.key[:12]}"
        self._batches: list[SplitFeatures] = []
        # the batch of each row, and its number in the batch
        self._places: dict[bytes, tuple[int, int]] = {}

    def find(self, model: LoadedModel, x: np.ndarray, lengths: np.ndarray) -> Callable[[str], np.ndarray]:
        """Compute features of new rows; return a function from a column's name to its values (rows, width)."""
        digests = [
            hashlib.sha256(row[:end].tobytes()).digest() for row, end in zip(x, lengths, strict=True)
        ]
        with _one_at_a_time:
            self._read_entries(digests)
            new = {digest: row for row, digest in enumerate(digests) if digest not in self._places}
            numbers, few = list(new.values()), dict[str, np.ndarray]()
            if len(new) >= FEW:
                self._compute(model, x[numbers], lengths[numbers], list(new))
            elif new:
                with exact_products():
                    loaded = load(model, None, x[numbers], lengths[numbers], self.layout.batch_rows)
                    few = launch(model, loaded, self.columns)()
            batches: list[Any] = [*self._batches, few]
            unstored = {digest: (len(self._batches), row) for row, digest in enumerate(new)}
            found = [self._places.get(digest) or unstored[digest] for digest in digests]

        def column(name: str) -> np.ndarray:
            values = {
                number: np.asarray(batches[number][name]) for number in {number for number, _ in found}
            }
            return np.stack([values[number][row].ravel() for number, row in found])

        return column

    def _read_entries(self, digests: Sequence[bytes]) -> None:
        """Add the entries of other processes if rows are missing; forget all rows if an entry was removed."""
        known = {batch.entry.path for batch in self._batches}
        if not all(path.is_dir() for path in known):
            self._batches, self._places, known = [], {}, set()
        if any(digest not in self._places for digest in digests):
            for path in sorted((self.root / "features" / ROWS).glob(f"*{self._spec.key[:12]}-*")):
                if path not in known:
                    self._add(Entry.open(path))

    def _add(self, entry: Entry) -> None:
        stored = FeatureStore(entry)[ROWS]
        same = replace(entry.spec, data=self._spec.data) == self._spec
        if same and all(column in stored for column in self.columns):
            for row, label in enumerate(stored.labels[:, 0]):
                self._places.setdefault(label.tobytes(), (len(self._batches), row))
            self._batches.append(stored)

    def _compute(
        self, model: LoadedModel, x: np.ndarray, lengths: np.ndarray, digests: list[bytes]
    ) -> None:
        rows, joined = {ROWS: len(digests)}, b"".join(digests)
        spec = replace(self._spec, data=DataSpec(digest=hashlib.sha256(joined).hexdigest(), rows=rows))
        shapes = column_shapes(model.fpt.task, model.fpt.backbone.width, self.columns)
        check_space(self.root, required_bytes(spec, self.layout, rows, shapes))
        with writing(self.root, "pass another folder as cache, or set RESERVOIR_CACHE"):
            entry = Entry.create(
                self.root, self._name, spec, self.layout, {"reservoir": model.settings.to_dict()}
            )
        labels = np.frombuffer(joined, np.uint8).reshape(len(digests), 1, -1)
        write_targets(entry, ROWS, {"y": labels, "lengths": lengths, "index": np.arange(len(digests))})

        def read(_: str, low: int, high: int) -> list[Loaded]:
            return [load(model, None, x[low:high], lengths[low:high], entry.layout.batch_rows)]

        compute_missing(entry, [ROWS], self.columns, read, partial(launch, model))
        self._add(entry)


_caches: dict[tuple[Any, ...], RowCache] = {}


def shared_cache(root: Path, model: LoadedModel, plan: Plan) -> RowCache:
    """Return the row cache of a model, one per process."""
    data = DataSpec(digest="", rows={ROWS: 1})
    spec = model_spec(model, model.fpt.task.to_dict(), data, "float32")
    layout = Layout(block_rows=plan.block_rows, batch_rows=plan.batch_rows)
    made = RowCache(root, plan.title, spec, plan.columns, layout)
    return _caches.setdefault((root, spec.key, plan.columns, layout), made)


def shared_model(
    task: Task, settings: Reservoir, device: str = "auto", compute: str = "auto"
) -> LoadedModel:
    """Return the model that reads these rows, loaded once per process."""
    folder = Path(settings.backbone)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    stamps = tuple((file.name, *stamp(file)) for file in files)
    return _loaded(task.form, task.max_tokens, settings, device, compute, stamps)


@lru_cache(maxsize=2)
def _loaded(
    form: Vectors | Tokens, tokens: int, settings: Reservoir, device: str, compute: str, _stamps: tuple
) -> LoadedModel:
    return load_model(Task(name=ROWS, form=form, max_tokens=tokens, classes=0), settings, device, compute)
