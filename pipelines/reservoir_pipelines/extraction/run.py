"""One extraction: its plan, its model, and the blocks that its entry still lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import (
    STORES,
    Entry,
    Layout,
    ShardWriter,
    Spec,
    check_space,
    repair,
    required_bytes,
    rows_per_block,
    verify,
    write_targets,
)

from reservoir.features import column_shapes, forward
from reservoir.option_fields import as_group, typed
from reservoir.options import ExtractOptions, FeatureOptions, RowOptions
from reservoir.plan import Plan, resolve
from reservoir.reservoir import LoadedModel, load_model
from reservoir.tasks import TASKS
from reservoir_pipelines.extraction.spec import check_windows, draw_rows, make_spec
from reservoir_pipelines.output import notify, size_text
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json
from reservoir_pipelines.workspace import versions

Compute = Callable[[str, int, int, Sequence[str]], Mapping[str, np.ndarray]]
"""Called with a split, its first and last row, and columns; returns their values (rows, tokens, width)."""

MOST_TOKENS = 2**17  # of a block of several parts: what a kill may lose, about a minute of GPT-2 on two cores
LEAST_BLOCKS = 8  # which several workers can share
POLL = 0.5  # seconds between looks at the blocks that other processes have claimed


def plan_of(prepared: Prepared, options: ExtractOptions) -> Plan:
    """Return the plan of an extraction of prepared data."""
    return resolve(prepared.task, options, prepared.rows, int(prepared.split("train").lengths.max()))


def start_run(
    task: str, options: ExtractOptions, prepared: Prepared, root: Path, splits: Sequence[str] | None = None
) -> Run:
    """Decide what will be computed, and load the model."""
    plan = plan_of(prepared, options)
    model = load_model(prepared.task, plan.reservoir, plan.device, plan.compute)
    if note := f"{prepared.task.name}: read by {model.reader.description}" if model.reader else plan.note:
        notify(note)
    rows = draw_rows(prepared, options.limit)
    check_windows(prepared, rows, model.windows)
    kept = as_group(options, FeatureOptions).to_dict()
    kept |= {"layers": ",".join(plan.layers), "pool": ",".join(plan.poolings)}
    call = {
        "task": str(Path(task).resolve()) if task not in TASKS and Path(task).exists() else task,
        "settings": plan.reservoir.to_dict() | as_group(options, RowOptions).to_dict() | kept,
        "command": typed("extract", [str(task)], options),
    }
    spec = make_spec(prepared, rows, model, plan.store)
    return Run(root, prepared, plan, model, rows, spec, call, splits or list(rows))


@dataclass
class Run:
    """An extraction that is ready to be computed."""

    root: Path
    prepared: Prepared
    plan: Plan
    model: LoadedModel
    rows: dict[str, np.ndarray]
    spec: Spec
    call: dict[str, Any]
    splits: Sequence[str]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the entry will hold."""
        return self.plan.columns

    @property
    def layout(self) -> Layout:
        """How a new entry is cut: a file for several of the blocks of the plan, where they are small and quick."""
        unit, shapes = self.plan.block_rows, self._shapes
        row_bytes = STORES[self.spec.store] * sum(tokens * width for tokens, width in shapes.values())
        most = min(MOST_TOKENS // self.prepared.task.max_tokens, sum(self.spec.rows.values()) // LEAST_BLOCKS)
        block_rows = rows_per_block(row_bytes, unit, most)
        return Layout(block_rows=block_rows, batch_rows=self.plan.batch_rows, offset_rows=unit)

    @property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        return column_shapes(self.model.fpt.task, self.model.fpt.backbone.width, self.columns)

    def open(self) -> tuple[Entry, list[tuple[str, int]]]:
        """Create or open the entry, write its labels, drop damaged blocks; return it and the blocks that it lacks."""
        name = f"{self.spec.task['name']} x {self.model.settings.title}"
        space = required_bytes(self.spec, self.layout, self.spec.rows, self._shapes)
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
        todo = missing_blocks(entry, self.splits, self.columns)
        if exists and todo:
            count = row_count(entry, todo)
            lacking = max(len(entry.lacking(split, block, self.columns)) for split, block in todo)
            part = space * count * lacking // (sum(self.spec.rows.values()) * len(self.columns))
            notify(f"{name}: {count:,} rows still to compute, at most {size_text(part)} more on disk")
            check_space(self.root, part)
        return entry, todo

    def compute(self, entry: Entry, advance: Callable[[int, int], None]) -> int:
        """Compute all missing blocks; return the number of rows computed by this process."""
        computed = compute_missing(entry, self.splits, self.columns, partial(self._forward, entry.layout), advance)
        if note := self.model.reader.note if self.model.reader else "":
            notify(f"{self.spec.task['name']}: {note}")
        return computed

    def compute_blocks(self, entry: Entry, blocks: Sequence[tuple[str, int]], columns: Sequence[str]) -> int:
        """Compute some blocks; return the number of rows."""
        return compute_blocks(entry, blocks, columns, partial(self._forward, entry.layout))

    def _forward(
        self, layout: Layout, split: str, low: int, high: int, columns: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Compute the columns of some rows, `Layout.offset_rows` at a time: values do not depend on the blocks."""
        parts = []
        for start in range(low, high, layout.offset_rows):
            rows = self.rows[split][start : min(start + layout.offset_rows, high)]
            part = self.prepared.split(split).take(rows)
            parts.append(forward(self.model, self.prepared.scaling, part.x, part.lengths, columns, layout.batch_rows))
        return {column: np.concatenate([part[column] for part in parts]) for column in columns}

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


def missing_blocks(entry: Entry, splits: Sequence[str], columns: Sequence[str]) -> list[tuple[str, int]]:
    """Return the split and the number of every block that lacks one of the columns."""
    return [(split, block) for split in splits for block in sorted(entry.missing(split, columns))]


def row_count(entry: Entry, blocks: Sequence[tuple[str, int]]) -> int:
    """Return the rows of some blocks."""
    ranges = (entry.layout.block(entry.spec.rows[split], block) for split, block in blocks)
    return sum(high - low for low, high in ranges)


def compute_blocks(
    entry: Entry,
    blocks: Sequence[tuple[str, int]],
    columns: Sequence[str],
    compute: Compute,
    advance: Callable[[int, int], None] = lambda rows, written: None,
) -> int:
    """Compute the blocks that no other process has claimed; return the number of rows computed."""
    computed = 0
    with ShardWriter(entry) as writer:
        for split, block in blocks:
            low, high = entry.layout.block(entry.spec.rows[split], block)
            with entry.claim(split, block) as mine:
                # Another process may have published it since it was listed.
                lacking = entry.lacking(split, block, columns) if mine else ()
                if lacking:
                    writer.put(split, block, dict(compute(split, low, high, lacking)))
                    computed += high - low
            advance(high - low, writer.bytes_written)
    return computed


def compute_missing(
    entry: Entry,
    splits: Sequence[str],
    columns: Sequence[str],
    compute: Compute,
    advance: Callable[[int, int], None] = lambda rows, written: None,
) -> int:
    """Compute what is missing, wait for blocks that others compute; return the number of rows computed here."""
    computed = 0
    while todo := missing_blocks(entry, splits, columns):
        rows = compute_blocks(entry, todo, columns, compute, advance)
        computed += rows
        if not rows and missing_blocks(entry, splits, columns):
            time.sleep(POLL)
    return computed
