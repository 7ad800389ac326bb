"""Frozen models that the estimators of a process share, and the features that they have computed, by row."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from reservoir_cache import DataSpec

from reservoir.batches import load
from reservoir.devices import exact_products
from reservoir.features import launch
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.plan.resolved import Plan
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir_pipelines.extraction.spec import model_spec
from reservoir_pipelines.files import stamp

TASK = "rows"  # name of the task whose rows are those of X
# 17,000 rows of 20 columns of 768 features. Each process of ``n_jobs`` has a cache of its own.
MAX_BYTES = 2**30


def shared_model(
    task: Task, settings: Reservoir, device: str = "auto", compute: str = "auto"
) -> LoadedModel:
    """Return the model that reads these rows, loaded once per process."""
    folder = Path(settings.backbone)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    # A model is loaded again if its files have changed.
    stamps = tuple((file.name, *stamp(file)) for file in files)
    return _loaded(task.form, task.max_tokens, settings, device, compute, stamps)


@lru_cache(maxsize=2)
def _loaded(
    form: Vectors | Tokens, tokens: int, settings: Reservoir, device: str, compute: str, _stamps: tuple
) -> LoadedModel:
    return load_model(Task(name=TASK, form=form, max_tokens=tokens, classes=0), settings, device, compute)


class RowCache:
    """The features of rows in all columns of a plan, so that each distinct row goes through a model once.

    If the features need more than ``max_bytes``, those that were not used for the longest time are
    forgotten. The last bits of features depend on the rows that were computed together.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        # Float32 features of one row in all columns of a plan, (width,), the longest unused first.
        self._rows: OrderedDict[tuple[str, bytes], np.ndarray] = OrderedDict()
        self._widths: dict[str, list[int]] = {}  # of each column, by model and plan
        # Of the threads of joblib, one computes at a time: a forward pass changes the blocks of the backbone.
        self._lock = threading.Lock()

    def features(
        self, model: LoadedModel, plan: Plan, x: np.ndarray, lengths: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the features (rows, width) of each column of a plan; only new rows go through the model."""
        names = [str(column) for column in plan.columns]
        any_rows = DataSpec(digest="", rows={"rows": 1})  # a row's features do not depend on the others
        spec = model_spec(model, model.fpt.task.to_dict(), any_rows, "float32")
        # Batches of another size change the last bits of features, so their rows are cached apart.
        settings = (spec.key, names, plan.batch_rows)
        plan_key = hashlib.sha256(repr(settings).encode()).hexdigest()
        digests = [
            hashlib.sha256(row[:end].tobytes()).digest() for row, end in zip(x, lengths, strict=True)
        ]
        with self._lock:
            # The rows of this call are held apart from the cache, which may forget some of them.
            rows: dict[bytes, np.ndarray] = {}
            new_rows: dict[bytes, int] = {}  # the number of the first row with each new content
            for number, digest in enumerate(digests):
                if (row := self._rows.get((plan_key, digest))) is None:
                    new_rows.setdefault(digest, number)
                else:
                    rows[digest] = row
                    self._rows.move_to_end((plan_key, digest))
            # A block at a time, because loaded rows with their windows are larger than their features.
            for start in range(0, len(new_rows), plan.block_rows):
                block = dict(list(new_rows.items())[start : start + plan.block_rows])
                numbers = list(block.values())
                computed = self._compute(
                    model, plan_key, names, x[numbers], lengths[numbers], plan.batch_rows
                )
                rows |= dict(zip(block, computed, strict=True))
            for digest in new_rows:
                self._add((plan_key, digest), rows[digest])
            widths = self._widths[plan_key]
        together = np.stack([rows[digest] for digest in digests])
        parts = np.split(together, np.cumsum(widths)[:-1], axis=1)
        return dict(zip(names, parts, strict=True))

    def clear(self) -> None:
        """Forget all rows."""
        with self._lock:
            self._rows.clear()
            self._bytes = 0

    def _compute(
        self,
        model: LoadedModel,
        plan_key: str,
        names: Sequence[str],
        x: np.ndarray,
        lengths: np.ndarray,
        batch_rows: int,
    ) -> list[np.ndarray]:
        """Return the features of each row in all columns, (width,); record each column's width under ``plan_key``."""
        with exact_products():
            # The estimators have scaled the rows already.
            loaded = load(model, scaling=None, x=x, lengths=lengths, batch_rows=batch_rows)
            launched = launch(model, loaded, names)
            features = launched()  # waits for the device
        parts = [np.asarray(features[name], np.float32).reshape(len(x), -1) for name in names]
        self._widths[plan_key] = [part.shape[1] for part in parts]
        # Copies, so that no row keeps the features of its whole block in memory.
        return [row.copy() for row in np.concatenate(parts, axis=1)]

    def _add(self, key: tuple[str, bytes], row: np.ndarray) -> None:
        self._rows[key] = row
        self._bytes += row.nbytes
        while self._bytes > self.max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._bytes -= oldest.nbytes


row_cache = RowCache()  # of this process
