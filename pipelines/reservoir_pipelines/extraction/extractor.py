"""The extractor: a frozen model with prepared data, ready to compute the features of one entry."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import STORES, Arrays, Entry, Layout, Spec, rows_per_block

from reservoir import devices
from reservoir.backbones import describe_weights
from reservoir.features import Loaded, launch, load
from reservoir.inputs.native import TextReader
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, FeatureOptions, RowOptions
from reservoir.plan import Plan, resolve
from reservoir.reservoir import LoadedModel, load_model
from reservoir_pipelines.extraction.blocks import Advance, Compute, Load, compute_missing
from reservoir_pipelines.extraction.encoding import start_encoding
from reservoir_pipelines.extraction.entries import data_record, entry_folder, start_entry, write_labels
from reservoir_pipelines.extraction.spec import draw_rows, make_spec
from reservoir_pipelines.files import versions
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.weight_files import weight_stamps

MAX_TOKENS = 2**17  # tokens of a block of several parts: a minute of GPT-2 on two cores
MIN_BLOCKS = 8  # blocks of an entry of several parts, so that workers can share them
CHECKED_ROWS = 256  # texts that are tokenized at a time before an extraction


def plan_of(prepared: Prepared, options: ExtractOptions, rows: Mapping[str, int] | None = None) -> Plan:
    """Return the plan of an extraction of prepared data, or of a similar task with ``rows`` in each split."""
    options = replace(options, limit=None) if rows else options
    return resolve(
        prepared.task, options, rows or prepared.rows, int(prepared.split("train").lengths.max())
    )


def load_extractor(
    options: ExtractOptions,
    prepared: Prepared,
    root: Path,
    splits: Sequence[str] | None = None,
    planned: Mapping[str, int] | None = None,
) -> "Extractor":
    """Resolve the plan and load the model; ``planned`` is the third argument of `plan_of`.

    ``splits`` are those to compute, by default all.
    """
    plan = plan_of(prepared, options, planned)
    model = load_model(prepared.task, plan.reservoir, plan.device, plan.compute)
    if model.reader:
        notify(f"{prepared.task.name}: read by {model.reader.description}")
    notify(*filter(None, (plan.input_note, plan.precision_note(model.compute), plan.note)))
    rows = draw_rows(prepared, options.limit)
    for split, index in rows.items():
        model.windows.checked_counts(prepared.split(split).lengths[index])
    spec = make_spec(prepared, rows, model, plan.store)
    return Extractor(
        root=root,
        prepared=prepared,
        title=plan.title,
        shapes={str(column): shape for column, shape in plan.shapes.items()},  # the cache knows names only
        layout=_layout(plan, prepared, sum((planned or spec.rows).values())),
        model=model,
        rows=rows,
        spec=spec,
        settings=_settings(plan, options, prepared),
        splits=splits or list(rows),
    )


def _layout(plan: Plan, prepared: Prepared, rows: int) -> Layout:
    """Return the division into files of a new entry of ``rows`` rows in all."""
    # A file holds several blocks of the plan if they are small and quick to compute.
    row_bytes = STORES[plan.store] * sum(tokens * width for tokens, width in plan.shapes.values())
    most_rows = min(MAX_TOKENS // prepared.task.max_tokens, rows // MIN_BLOCKS)
    block_rows = rows_per_block(row_bytes, plan.block_rows, most_rows)
    return Layout(block_rows=block_rows, batch_rows=plan.batch_rows, offset_rows=plan.block_rows)


def _settings(plan: Plan, options: ExtractOptions, prepared: Prepared) -> dict[str, Any]:
    """Return the options that the entry records, with all defaults resolved."""
    return {
        **plan.reservoir.to_dict(),
        **as_group(options, FeatureOptions).to_dict(),
        **as_group(options, RowOptions).to_dict(),
        "layers": ",".join(plan.layers),
        "pool": ",".join(plan.poolings),
        "waveform": bool(prepared.task.parameters.get("waveform")),
    }


@dataclass
class Extractor:
    """A frozen model with prepared data, ready to compute the features of one entry."""

    root: Path
    prepared: Prepared
    title: str  # first part of the name of the entry
    shapes: Mapping[str, tuple[int, int]]  # (tokens, width) of each column
    layout: Layout  # for a new entry; an existing entry keeps its own
    model: LoadedModel
    rows: dict[str, np.ndarray]
    spec: Spec
    settings: dict[str, Any]  # options that the entry records
    splits: Sequence[str]

    def open(self, call: Mapping[str, Any]) -> tuple[Entry, list[tuple[str, int]]]:
        """Create or open the entry, which records the call; return it and the blocks that it lacks."""
        model = self.model
        made_with = {
            "call": {**call, "settings": self.settings},
            "reservoir": model.settings.to_dict(),
            "weights": describe_weights(model.fpt.backbone, model.settings.init),
            "weight_files": weight_stamps(model.settings),
            "device": str(model.device),
            "instructions": devices.describe(model.device),
            "versions": versions("torch", "transformers", "h5py", "numpy"),
            **data_record(self.prepared),
        }
        if not entry_folder(self.root, self.title, self.spec).is_dir():
            self._refuse_long_texts()
        return start_entry(
            self.root,
            self.title,
            self.spec,
            self.layout,
            self.shapes,
            self.splits,
            made_with,
            label=partial(write_labels, prepared=self.prepared, rows=self.rows),
        )

    def _refuse_long_texts(self) -> None:
        """Refuse texts of too many tokens before the first batch, if every token has a label."""
        reader = self.model.reader
        if not (self.prepared.task.each and isinstance(reader, TextReader)):
            return
        for name in self.splits:
            split = self.prepared.split(name)
            index = self.rows[name][reader.may_be_long(split.lengths[self.rows[name]])]
            for start in range(0, len(index), CHECKED_ROWS):
                part = split.take(index[start : start + CHECKED_ROWS])
                reader.check_places(part.x, part.lengths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, layer by layer."""
        return tuple(self.shapes)

    def compute(self, entry: Entry, advance: Advance = lambda rows, written: None) -> int:
        """Compute all missing blocks; return the number of rows computed by this process."""
        computed = compute_missing(entry, self.splits, self.columns, *self.steps(entry), advance)
        if note := self.model.reader.note if self.model.reader else "":
            notify(f"{self.spec.task_name}: {note}")
        return computed

    def steps(self, entry: Entry) -> tuple[Load, Compute]:
        """Return two functions for `compute_blocks`; values do not depend on blocks, only on `Layout.offset_rows`."""
        layout, store = entry.layout, entry.spec.store

        def read(split: str, low: int, high: int) -> Iterator[tuple[int, Loaded]]:
            for start in range(low, high, layout.offset_rows):
                rows = self.rows[split][start : min(start + layout.offset_rows, high)]
                part = self.prepared.split(split).take(rows)
                loaded = load(self.model, self.prepared.scaling, part.x, part.lengths, layout.batch_rows)
                yield start, loaded

        def compute(
            part: tuple[int, Loaded], columns: Sequence[str], count: Callable[[int], None]
        ) -> Callable[[], Arrays]:
            return start_encoding(launch(self.model, part[1], columns, count), store, part[0])

        return read, compute
