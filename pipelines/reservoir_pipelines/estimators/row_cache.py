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

ROWS_TASK = "rows"  # name of the task whose rows are those of X
# Size of the features in a cache: 17,000 rows of 20 columns of 768 features. Each process of ``n_jobs`` has one.
MAX_BYTES = 2**30


def shared_model(
    task: Task, settings: Reservoir, device: str = "auto", compute: str = "auto"
) -> LoadedModel:
    """Return the model that reads the rows of a task; it is loaded once per process, and again if its files change."""
    # The backbone may be a folder, or the name of a model, which has no files to look at.
    folder = Path(settings.backbone)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    stamps = tuple((file.name, *stamp(file)) for file in files)
    return _loaded_model(task.form, task.max_tokens, settings, device, compute, stamps)


# Models are large, so only the last two are kept. The arguments are all that decides about the loaded model.
@lru_cache(maxsize=2)
def _loaded_model(
    form: Vectors | Tokens, max_tokens: int, settings: Reservoir, device: str, compute: str, _stamps: tuple
) -> LoadedModel:
    """Load a model; ``_stamps``, the states of its files, are only a key of the cache."""
    task = Task(name=ROWS_TASK, form=form, max_tokens=max_tokens, classes=0)
    return load_model(task, settings, device, compute)


class RowCache:
    """The features of rows in all columns of a plan, so that each distinct row goes through a model once.

    If the features need more than ``max_bytes``, those that were not used for the longest time are
    forgotten. The last bits of features depend on the rows that were computed together.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0  # size of all features in the cache
        # Float32 features of one row in all columns of a plan, (width,), by the key of model and plan, and the digest
        # of the row; the longest unused first.
        self._rows: OrderedDict[tuple[str, bytes], np.ndarray] = OrderedDict()
        self._widths: dict[str, list[int]] = {}  # of each column, by the key of model and plan
        # Of the threads of joblib, one computes at a time: a forward pass changes the blocks of the backbone.
        self._lock = threading.Lock()

    def features(
        self, model: LoadedModel, plan: Plan, x: np.ndarray, lengths: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the features (rows, width) of each column of a plan; only new rows go through the model.

        ``x`` (rows, values, channels) or (rows, tokens) is padded, and ``lengths`` (rows,) are without padding.
        """
        # The key of model and plan. Batches of another size change the last bits of features, so their rows are cached
        # apart. A row's features do not depend on the other rows, so the specification describes no data.
        names = [str(column) for column in plan.columns]
        any_rows = DataSpec(digest="", rows={"rows": 1})
        spec = model_spec(model, model.fpt.task.to_dict(), any_rows, "float32")
        settings = (spec.key, names, plan.batch_rows)
        plan_key = hashlib.sha256(repr(settings).encode()).hexdigest()
        # The key of each row, from its values without padding.
        digests = [
            hashlib.sha256(row[:length].tobytes()).digest() for row, length in zip(x, lengths, strict=True)
        ]
        with self._lock:
            # The features of this call are held apart from the cache, which may forget some of them.
            features: dict[bytes, np.ndarray] = {}
            new_rows: dict[bytes, int] = {}  # the number of the first row with each new digest
            for number, digest in enumerate(digests):
                key = (plan_key, digest)
                if key in self._rows:
                    features[digest] = self._rows[key]
                    self._rows.move_to_end(key)  # it is now the one used last
                else:
                    new_rows.setdefault(digest, number)
            # Compute a block at a time, because loaded rows with their windows are larger than their features.
            for start in range(0, len(new_rows), plan.block_rows):
                block = dict(list(new_rows.items())[start : start + plan.block_rows])
                numbers = list(block.values())
                computed = self._compute(
                    model, plan_key, names, x[numbers], lengths[numbers], plan.batch_rows
                )
                features |= dict(zip(block, computed, strict=True))
            for digest in new_rows:
                self._add((plan_key, digest), features[digest])
            widths = self._widths[plan_key]
        # (rows, width of all columns), divided into the columns again.
        features_of_rows = np.stack([features[digest] for digest in digests])
        features_of_columns = np.split(features_of_rows, np.cumsum(widths)[:-1], axis=1)
        return dict(zip(names, features_of_columns, strict=True))

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
            wait_for_features = launch(model, loaded, names)  # a device may still compute them
            features = wait_for_features()
        columns = [np.asarray(features[name], np.float32).reshape(len(x), -1) for name in names]
        self._widths[plan_key] = [column.shape[1] for column in columns]
        # Copies, so that no row keeps the features of its whole block in memory.
        return [row.copy() for row in np.concatenate(columns, axis=1)]

    def _add(self, key: tuple[str, bytes], row: np.ndarray) -> None:
        """Add the features of a row, and forget those that were unused for the longest time if they are too many."""
        self._rows[key] = row
        self._bytes += row.nbytes
        while self._bytes > self.max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._bytes -= oldest.nbytes


row_cache = RowCache()  # of this process
