"""The stage ``extract``: one frozen forward pass over a task, its pooled hidden states cached to HDF5."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import (
    Entry,
    FeatureStore,
    Layout,
    Spec,
    check_space,
    entry_bytes,
    repair,
    required_bytes,
    write_targets,
)

from reservoir.defaults import choose_reservoir, default_layers, default_pools, default_store
from reservoir.features import column_shapes, forward
from reservoir.option_fields import as_group
from reservoir.options import FeatureOptions, PlaceOptions, ReservoirOptions, RowOptions, TaskOptions
from reservoir.reservoir import LoadedModel, Reservoir, load_model
from reservoir.tasks import TASKS
from reservoir_pipelines.extraction.compute import compute_missing
from reservoir_pipelines.extraction.plan import check_windows, choose_columns, choose_layout, draw_rows, make_spec
from reservoir_pipelines.output import meter, say, size_text
from reservoir_pipelines.preparation.prepare import Prepared, prepare
from reservoir_pipelines.preparation.prepared import scaling_to_json
from reservoir_pipelines.stage import stage
from reservoir_pipelines.workspace import cache_root, versions

if TYPE_CHECKING:
    from reservoir_cache import SplitFeatures


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What `extract` made or found.

    Parameters
    ----------
    entry : Path
        Folder of the entry.
    rows : dict of str to int
        Rows of each split.
    columns : tuple of str
        Every column that was asked for.
    bytes : int
        Size of the entry on disk.
    seconds : float
        Wall time of the call.
    reused : bool
        True if everything was there already and no forward pass ran.
    computed_rows : int
        Rows that went through the model in this call.
    """

    entry: Path
    rows: dict[str, int]
    columns: tuple[str, ...]
    bytes: int
    seconds: float
    reused: bool
    computed_rows: int

    @property
    def store(self) -> FeatureStore:
        """The cached features."""
        return FeatureStore(self.entry)

    def __getitem__(self, split: str) -> SplitFeatures:
        return self.store[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.splits)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        plain = {"entry": str(self.entry), "columns": list(self.columns), "seconds": round(self.seconds, 3)}
        return {**vars(self), **plain}


@stage
def extract(
    task: str,
    reservoir: ReservoirOptions,
    source: RowOptions,
    keep: FeatureOptions,
    place: PlaceOptions,
    *,
    splits: Sequence[str] | None = None,
) -> Extraction:
    """Run a frozen transformer over a task once and cache its pooled hidden states.

    Whatever is cached already is reused: a finished extraction runs nothing, an interrupted one goes on, a new column
    is added without computing the others again. The same settings give the same bytes, however often it was stopped.

    Parameters
    ----------
    task : str
        Name of a task, or the path of your own data.
    splits : sequence of str, optional
        Compute these alone; a later call adds the others. All by default.
    **options
        Fields of `ReservoirOptions`, `RowOptions`, `FeatureOptions` and `PlaceOptions`. ``batch_rows`` is of a new
        entry: an existing one keeps its own, because the batch size changes the last bits. A larger ``limit`` contains
        the rows of a smaller one.

    Returns
    -------
    Extraction
        ``extraction["train"]["block06/mean"]`` is an array (rows, width).
    """
    started = time.monotonic()
    Reservoir.choose(reservoir, published=source.published)  # refuses what cannot be meant before any data is read
    root = cache_root(place.cache)
    prepared = prepare(task, as_group(source, TaskOptions), cache=root)
    for note in prepared.notes():
        say(note)
    count = sum(prepared.rows.values())
    settings = choose_reservoir(reservoir, prepared.task, count, published=source.published)
    model = load_model(prepared.task, settings, place.device, keep.compute)
    if model.reader:
        say(f"{prepared.task.name}: read by {model.reader.said}")
    columns = choose_columns(
        model,
        default_layers(prepared.task, native=bool(model.reader)) if keep.layers is None else keep.layers,
        default_pools(prepared.task, model.fpt.backbone.width, model.reader) if keep.pool is None else keep.pool,
    )
    rows = draw_rows(prepared, source.limit)
    check_windows(prepared, rows, model.windows)
    spec = make_spec(prepared, rows, model, keep.store or default_store(prepared.task, native=bool(model.reader)))
    layout = choose_layout(model, columns, keep.batch_rows)
    asked = replace(
        keep,
        layers=",".join(dict.fromkeys(column.partition("/")[0] for column in columns)),
        pool=",".join(dict.fromkeys(column.partition("/")[2] for column in columns)),
    )
    call = {
        "task": str(Path(task).resolve()) if task not in TASKS and Path(task).exists() else task,
        "settings": settings.to_dict() | source.to_dict() | asked.to_dict(),
    }
    run = _Run(root, prepared, model, rows, columns, spec, layout, call, splits or list(rows))
    entry, computed = run.execute()
    if note := model.reader.note() if model.reader else "":
        say(f"{prepared.task.name}: {note}")
    return Extraction(
        entry=entry.path,
        rows={split: len(index) for split, index in rows.items()},
        columns=columns,
        bytes=entry_bytes(entry),
        seconds=time.monotonic() - started,
        reused=computed == 0,
        computed_rows=computed,
    )


@dataclass
class _Run:
    """One call of `extract` after its input has been read."""

    root: Path
    prepared: Prepared
    model: LoadedModel
    rows: dict[str, np.ndarray]
    columns: tuple[str, ...]
    spec: Spec
    layout: Layout
    call: dict[str, Any]
    splits: Sequence[str]

    def execute(self) -> tuple[Entry, int]:
        """Compute what is missing; return the entry and the number of rows computed."""
        name = f"{self.spec.task['name']} x {self.model.settings.title}"
        shapes = column_shapes(self.model.fpt.task, self.model.fpt.backbone.width, self.columns)
        space = required_bytes(self.spec, self.layout, self.spec.rows, shapes)
        exists = (self.root / "features" / self.spec.task["name"] / self._folder()).is_dir()
        if not exists:
            rows = sum(self.spec.rows.values())
            say(f"{name}: {rows:,} rows, {len(self.columns)} columns, {size_text(space)} on disk")
            check_space(self.root, space)
        entry = Entry.create(self.root, self.model.settings.title, self.spec, self.layout, self._made_with())
        repair(entry)
        for split, index in self.rows.items():
            whole = self.prepared.split(split)
            targets = {"y": whole.y[index], "lengths": whole.lengths[index], "index": index.astype(np.int64)}
            groups = {} if whole.groups is None else {"groups": whole.groups[index]}
            write_targets(entry, split, targets | groups)
        todo = {split: entry.missing(split, self.columns) for split in self.splits}
        ranges = [entry.blocks(split)[block] for split, blocks in todo.items() for block in blocks]
        count = sum(high - low for low, high in ranges)
        if exists and ranges:
            lacking = max(len(columns) for blocks in todo.values() for columns in blocks.values())
            part = space * count * lacking // (sum(self.spec.rows.values()) * len(self.columns))
            say(f"{name}: {count:,} rows still to compute, at most {size_text(part)} more on disk")
            check_space(self.root, part)
        if not ranges:
            say(f"{name}: everything is cached already in {entry.path}; no forward pass")
        compute = partial(self._forward, batch_rows=entry.layout.batch_rows)
        with meter("extract", count) as bar:
            return entry, compute_missing(entry, self.splits, self.columns, compute, bar.advance)

    def _forward(
        self, split: str, low: int, high: int, columns: Sequence[str], batch_rows: int
    ) -> dict[str, np.ndarray]:
        index = self.rows[split][low:high]
        part = self.prepared.split(split).read(int(index[0]), int(index[-1]) + 1)
        x, lengths = part.x[index - index[0]], part.lengths[index - index[0]]
        return forward(self.model, self.prepared.scaling, x, lengths, columns, batch_rows)

    def _folder(self) -> str:
        return f"{self.model.settings.title}-{self.spec.key[:16]}"

    def _made_with(self) -> dict[str, Any]:
        import torch

        from reservoir.backbones import describe_weights

        on_cpu = self.model.device.type == "cpu"
        return {
            "call": self.call,
            "reservoir": self.model.settings.to_dict(),
            "prepared": str(self.prepared.path),
            "kept": {split: self.prepared.kept(split) for split in self.rows},
            "scaling": scaling_to_json(self.prepared.scaling),
            "weights": describe_weights(self.model.fpt.backbone, self.model.settings.init),
            "device": str(self.model.device),
            "instructions": torch.backends.cpu.get_cpu_capability() if on_cpu else torch.cuda.get_device_name(),
            "versions": versions("torch", "transformers", "h5py", "numpy"),
        }
