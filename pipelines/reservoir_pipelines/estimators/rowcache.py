"""Features cached under the content of a row: each distinct row goes through a frozen model once."""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from reservoir_cache import (
    Entry,
    FeatureStore,
    Layout,
    Spec,
    SplitFeatures,
    check_space,
    required_bytes,
    write_targets,
)

from reservoir.features import column_shapes, forward
from reservoir.plan import Plan
from reservoir.reservoir import LoadedModel, Reservoir, load_model
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir_pipelines.extraction.run import compute_missing, frozen_fields
from reservoir_pipelines.files import stamp
from reservoir_pipelines.workspace import ROWS

FEW = 8  # fewer new rows are kept in memory only: a folder for each would fill the disk with folders
HELD_BYTES = 2**28  # of features in memory; beyond it they are read from disk again

_one_at_a_time = threading.Lock()  # a forward pass takes blocks out of the backbone, so one runs at a time


@dataclass(eq=False)
class Block:
    """Some rows with their features: stored on disk, or in memory as columns (rows, width) of float32."""

    stored: SplitFeatures | None
    held: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return sum(values.nbytes for values in self.held.values())

    def column(self, name: str, *, hold: bool) -> np.ndarray:
        """Return a column (rows, width); with ``hold`` keep it in memory."""
        if name in self.held:
            return self.held[name]
        assert self.stored is not None
        values = self.stored[name].reshape(self.stored.rows, -1)
        if hold:
            self.held[name] = values
        return values


class RowCache:
    """The features of all rows that one frozen model has seen, in some columns.

    On disk they are ordinary entries of the cache, one for each batch of new rows, whose labels are the SHA-256 of the
    rows. Features are stored in float32, so computed and read ones are equal. Their last bits depend on the rows that
    were computed with them.
    """

    def __init__(self, root: Path, title: str, spec: Spec, columns: tuple[str, ...], layout: Layout) -> None:
        self.root, self.columns, self.layout = root, columns, layout
        self._spec, self._name = spec, f"{title}-{spec.key[:12]}"
        self._blocks: list[Block] = []
        self._place: dict[bytes, tuple[Block, int]] = {}
        self._known: set[Path] = set()

    def find(self, model: LoadedModel, x: np.ndarray, lengths: np.ndarray) -> Callable[[str], np.ndarray]:
        """Return a function from a column to the features (rows, width) of rows (rows, tokens, ...).

        Distinct new rows go through the model once.
        """
        digests = [hashlib.sha256(row[:end].tobytes()).digest() for row, end in zip(x, lengths, strict=True)]
        with _one_at_a_time:
            self._forget()
            if any(digest not in self._place for digest in digests):
                for path in sorted((self.root / "features" / ROWS).glob(f"*{self._spec.key[:12]}-*")):
                    if path not in self._known:  # another or an earlier process has written it
                        self._add_entry(Entry.open(path))
            new = {digest: row for row, digest in enumerate(digests) if digest not in self._place}
            if new:
                numbers = list(new.values())
                self._compute(model, x[numbers], lengths[numbers], list(new))
            places = [self._place[digest] for digest in digests]
        blocks = list(dict.fromkeys(block for block, _ in places))
        number = {block: i for i, block in enumerate(blocks)}
        block_of, row_of = np.array([(number[block], row) for block, row in places]).T

        def column(name: str) -> np.ndarray:
            parts = []
            for number, block in enumerate(blocks):
                room = sum(block.bytes for block in self._blocks) < HELD_BYTES
                parts.append(block.column(name, hold=room)[row_of[block_of == number]])
            return np.concatenate(parts)[np.argsort(np.argsort(block_of, kind="stable"))]

        return column

    def _forget(self) -> None:
        """Drop rows whose entry was removed, and those that are only in memory when these are many."""
        many = sum(block.bytes for block in self._blocks if block.stored is None) > HELD_BYTES
        kept = [b for b in self._blocks if (b.stored.entry.path.is_dir() if b.stored else not many)]
        if len(kept) < len(self._blocks):
            self._known = {b.stored.entry.path for b in kept if b.stored}
            self._place = {digest: place for digest, place in self._place.items() if place[0] in kept}
            self._blocks = kept

    def _add_entry(self, entry: Entry) -> None:
        stored = FeatureStore(entry)[ROWS]
        same = replace(entry.spec, data=self._spec.data) == self._spec
        if same and all(column in stored for column in self.columns):
            self._known.add(entry.path)
            self._add(Block(stored), [row.tobytes() for row in stored.labels[:, 0]])

    def _add(self, block: Block, digests: Sequence[bytes]) -> None:
        self._blocks.append(block)
        for row, digest in enumerate(digests):
            self._place.setdefault(digest, (block, row))

    def _compute(self, model: LoadedModel, x: np.ndarray, lengths: np.ndarray, digests: list[bytes]) -> None:
        if len(x) < FEW:
            values = forward(model, None, x, lengths, self.columns, self.layout.batch_rows)
            self._add(Block(None, {name: column.reshape(len(x), -1) for name, column in values.items()}), digests)
            return
        rows, joined = {ROWS: len(digests)}, b"".join(digests)
        spec = replace(self._spec, data={"digest": hashlib.sha256(joined).hexdigest(), "rows": rows})
        shapes = column_shapes(model.fpt.task, model.fpt.backbone.width, self.columns)
        check_space(self.root, required_bytes(spec, self.layout, rows, shapes))
        entry = Entry.create(self.root, self._name, spec, self.layout, {"reservoir": model.settings.to_dict()})
        labels = np.frombuffer(joined, np.uint8).reshape(len(digests), 1, -1)
        write_targets(entry, ROWS, {"y": labels, "lengths": lengths, "index": np.arange(len(digests))})

        def block(_: str, low: int, high: int, columns: Sequence[str]) -> dict[str, np.ndarray]:
            return forward(model, None, x[low:high], lengths[low:high], columns, entry.layout.batch_rows)

        compute_missing(entry, [ROWS], self.columns, block)
        self._add_entry(entry)


def shared_cache(root: Path, model: LoadedModel, plan: Plan) -> RowCache:
    """Return the row cache of a model, one per process."""
    task, data = model.fpt.task.to_dict(), {"digest": "", "rows": {ROWS: 1}}
    spec = Spec(task=task, data=data, **frozen_fields(model), store="float32")
    layout = Layout(block_rows=plan.block_rows, batch_rows=plan.batch_rows)
    return _shared(root, model.settings.title, json.dumps(spec.to_dict()), plan.columns, layout)


@lru_cache(maxsize=4)
def _shared(root: Path, title: str, spec: str, columns: tuple[str, ...], layout: Layout) -> RowCache:
    return RowCache(root, title, Spec(**json.loads(spec)), columns, layout)


def shared_model(task: Task, settings: Reservoir, device: str = "auto", compute: str = "auto") -> LoadedModel:
    """Return the model for such rows, loaded once per process."""
    folder = Path(settings.backbone)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    stamps = tuple((file.name, *stamp(file)) for file in files)
    return _loaded(task.form, task.max_tokens, settings, device, compute, stamps)


@lru_cache(maxsize=2)
def _loaded(
    form: Vectors | Tokens, tokens: int, settings: Reservoir, device: str, compute: str, _stamps: tuple
) -> LoadedModel:
    return load_model(Task(name=ROWS, form=form, max_tokens=tokens, classes=0), settings, device, compute)
