"""One call of extract whose outcome is not known yet: its model, what it will compute, and computing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import Entry, Layout, Spec, check_space, repair, required_bytes, verify, write_targets

from reservoir.defaults import MOST_WINDOWS, choose_reservoir, default_layers, default_pools, default_store
from reservoir.features import column_shapes, forward
from reservoir.option_fields import as_group, typed
from reservoir.options import ExtractOptions, FeatureOptions, ReservoirOptions, RowOptions
from reservoir.reservoir import LoadedModel, load_model
from reservoir.tasks import TASKS, Task
from reservoir.tasks.windows import Windows
from reservoir_pipelines.extraction.compute import compute_blocks, compute_missing
from reservoir_pipelines.extraction.plan import check_windows, choose_columns, choose_layout, draw_rows, make_spec
from reservoir_pipelines.output import notify, size_text
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json
from reservoir_pipelines.workspace import versions


def plan_run(
    task: str, options: ExtractOptions, prepared: Prepared, root: Path, splits: Sequence[str] | None = None
) -> Run:
    """Load the model, and choose what will be computed."""
    count = sum(prepared.rows.values())
    said = as_group(options, ReservoirOptions)
    settings = choose_reservoir(said, prepared.task, count, published=options.published)
    model = load_model(prepared.task, settings, options.device, options.compute)
    if model.reader:
        notify(f"{prepared.task.name}: read by {model.reader.said}")
    elif options.stride is None and model.windows.read_share < 1:
        notify(_gaps(prepared.task, model.windows))
    columns = choose_columns(
        model,
        default_layers(prepared.task, native=bool(model.reader)) if options.layers is None else options.layers,
        default_pools(prepared.task, model.fpt.backbone.width, model.reader) if options.pool is None else options.pool,
    )
    rows = draw_rows(prepared, options.limit)
    check_windows(prepared, rows, model.windows)
    spec = make_spec(prepared, rows, model, options.store or default_store(prepared.task, native=bool(model.reader)))
    layout = choose_layout(model, columns, options.batch_rows)
    kept = replace(
        as_group(options, FeatureOptions),
        layers=",".join(dict.fromkeys(column.partition("/")[0] for column in columns)),
        pool=",".join(dict.fromkeys(column.partition("/")[2] for column in columns)),
    )
    made = {
        "task": str(Path(task).resolve()) if task not in TASKS and Path(task).exists() else task,
        "settings": settings.to_dict() | as_group(options, RowOptions).to_dict() | kept.to_dict(),
        "command": typed("extract", [str(task)], options),
    }
    return Run(root, prepared, model, rows, columns, spec, layout, made, splits or list(rows))


def _gaps(task: Task, windows: Windows) -> str:
    """Say how much of each row the windows hold that nobody asked for, and what reads more."""
    nearer = max(windows.patch, -(-task.max_tokens // MOST_WINDOWS))
    more = f"--stride {nearer}" if nearer < windows.stride else f"--patch {windows.stride}"
    what = f"windows of {windows.patch} at every {windows.stride}th place hold {windows.read_share:.0%} of each row"
    return f"{task.name}: {what}; {more} reads more"


@dataclass
class Run:
    """One call of extract after its input has been read."""

    root: Path
    prepared: Prepared
    model: LoadedModel
    rows: dict[str, np.ndarray]
    columns: tuple[str, ...]
    spec: Spec
    layout: Layout
    call: dict[str, Any]
    splits: Sequence[str]

    def open(self) -> tuple[Entry, int]:
        """Open the entry, with its labels and without what is damaged; return it and the rows still to compute."""
        name = f"{self.spec.task['name']} x {self.model.settings.title}"
        shapes = column_shapes(self.model.fpt.task, self.model.fpt.backbone.width, self.columns)
        space = required_bytes(self.spec, self.layout, self.spec.rows, shapes)
        folder = f"{self.model.settings.title}-{self.spec.key[:16]}"
        exists = (self.root / "features" / self.spec.task["name"] / folder).is_dir()
        if not exists:
            rows = sum(self.spec.rows.values())
            notify(f"{name}: {rows:,} rows, {len(self.columns)} columns, {size_text(space)} on disk")
            check_space(self.root, space)
        entry = Entry.create(self.root, self.model.settings.title, self.spec, self.layout, self._made_with())
        repair(entry, verify(entry, contents=False))
        for split, index in self.rows.items():
            whole = self.prepared.split(split)
            targets = {"y": whole.y[index], "lengths": whole.lengths[index], "index": index.astype(np.int64)}
            groups = {} if whole.groups is None else {"groups": whole.groups[index]}
            write_targets(entry, split, targets | groups)
        todo = {split: entry.missing(split, self.columns) for split in self.splits}
        cut = {split: entry.blocks(split) for split in todo}
        ranges = [cut[split][block] for split, blocks in todo.items() for block in blocks]
        count = sum(high - low for low, high in ranges)
        if exists and ranges:
            lacking = max(len(columns) for blocks in todo.values() for columns in blocks.values())
            part = space * count * lacking // (sum(self.spec.rows.values()) * len(self.columns))
            notify(f"{name}: {count:,} rows still to compute, at most {size_text(part)} more on disk")
            check_space(self.root, part)
        return entry, count

    def compute(self, entry: Entry, advance: Callable[[int, int], None]) -> int:
        """Compute all that is missing; return the number of rows computed here."""
        forward = partial(self._forward, entry.layout.batch_rows)
        computed = compute_missing(entry, self.splits, self.columns, forward, advance)
        if note := self.model.reader.note if self.model.reader else "":
            notify(f"{self.spec.task['name']}: {note}")
        return computed

    def compute_blocks(self, entry: Entry, blocks: Sequence[tuple[str, int]], columns: Sequence[str]) -> int:
        """Compute some blocks; return the number of rows."""
        return compute_blocks(entry, blocks, columns, partial(self._forward, entry.layout.batch_rows))

    def _forward(
        self, batch_rows: int, split: str, low: int, high: int, columns: Sequence[str]
    ) -> dict[str, np.ndarray]:
        part = self.prepared.split(split).take(self.rows[split][low:high])
        return forward(self.model, self.prepared.scaling, part.x, part.lengths, columns, batch_rows)

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
