"""The extractor: a frozen model with prepared data, which computes and encodes the features of one entry."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import (
    Arrays,
    Entry,
    Layout,
    Spec,
    load_arrays,
    save_arrays,
)

from reservoir import devices
from reservoir.backbones import describe_weights, find_shape
from reservoir.backbones.backbone import Backbone
from reservoir.batches import Loaded, load
from reservoir.column import Column
from reservoir.errors import InputError, first_line
from reservoir.features import column_masks, launch
from reservoir.inputs.native import TextReader
from reservoir.inputs.patch_units import UNITS, PatchUnits, draw_units
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, FeatureOptions, RowOptions
from reservoir.plan.resolved import Plan, resolve
from reservoir.random import generator
from reservoir.raw_input import read_values
from reservoir.reservoir import Reservoir
from reservoir.tasks.patches import joined
from reservoir.tasks.picture_windows import Picture
from reservoir_pipelines.extraction.encoding import start_encoding
from reservoir_pipelines.extraction.entries import (
    Advance,
    Compute,
    Load,
    compute_missing,
    data_record,
    entry_folder,
    missing_blocks,
    new_layout,
    start_entry,
    token_layout,
    write_labels,
)
from reservoir_pipelines.extraction.entry_tokens import (
    EntryTokens,
    estimated_counts,
    require_tokenizer,
    task_of_entry,
)
from reservoir_pipelines.extraction.spec import make_spec
from reservoir_pipelines.files import versions
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepared import Prepared, draw_rows
from reservoir_pipelines.weight_files import weight_stamps

CHECKED_ROWS = 256  # texts that are tokenized at a time before an extraction
PICTURES = 4000  # training pictures from which patches are drawn; more would take memory and add nothing


def plan_of(prepared: Prepared, options: ExtractOptions, rows: Mapping[str, int] | None = None) -> Plan:
    """Return the plan of an extraction of prepared data, or of a similar task with ``rows`` in each split."""
    options = replace(options, limit=None) if rows else options
    task = task_of_entry(prepared.task, each_token=options.each_token)
    if task.labels_text_tokens:
        # Rows are words or tokens, each of which is all that its row has.
        tokens = rows or estimated_counts(prepared)
        return resolve(replace(task, max_tokens=1), replace(options, limit=None), tokens, 1)
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
    task, entry_tokens = task_of_entry(prepared.task, each_token=options.each_token), None
    if task.labels_text_tokens and plan.reservoir.input != "native":
        require_tokenizer(task, None)
    rows = draw_rows(prepared, options.limit)
    units = patch_units(prepared, plan.reservoir, rows) if plan.reservoir.input == "patches" else None
    model = load_model(
        task,
        plan.reservoir,
        plan.device,
        plan.compute,
        units=units,
        stream=options.stream,
        reader=plan.reader,
        compiled=plan.compiled,
    )
    if task.labels_text_tokens:
        entry_tokens = EntryTokens.read(prepared, task, rows, model)
    for split, index in rows.items():  # refuse rows that are shorter than a window
        model.windows.checked_counts(prepared.split(split).lengths[index])
    spec = make_spec(prepared, rows, model, plan.store, entry_tokens)
    if entry_tokens:
        layout = token_layout(plan, sum(spec.rows.values()))
    else:
        layout = new_layout(plan, task.max_tokens, sum((planned or spec.rows).values()))
    notes = (
        f"{prepared.task.name}: read by {model.reader.description}" if model.reader else "",
        *(entry_tokens.notes if entry_tokens else ()),
        *(plan.input_note, plan.model_note(model.compute), plan.note),
        _padding_note(prepared, rows, model.fpt.backbone),
        _stream_note(prepared, options, model.fpt.backbone),
    )
    return Extractor(
        root=root,
        prepared=prepared,
        title=plan.title,
        shapes={str(column): shape for column, shape in plan.shapes.items()},  # the cache knows names only
        layout=layout,
        model=model,
        rows=rows,
        entry_tokens=entry_tokens,
        spec=spec,
        settings={
            **plan.reservoir.to_dict(),
            **as_group(options, FeatureOptions).to_dict(),
            **as_group(options, RowOptions).to_dict(),
            "layers": ",".join(plan.layers),
            "pool": ",".join(plan.poolings),
            "waveform": bool(prepared.task.parameters.get("waveform")),
        },
        splits=splits or list(rows),
        notes=[*filter(None, notes)],
    )


def _padding_note(prepared: Prepared, rows: Mapping[str, np.ndarray], backbone: Backbone) -> str:
    """Return that all rows of a batch have one length, if the rows have several and the model allows no padding."""
    lengths = [len(np.unique(prepared.split(split).lengths[index])) for split, index in rows.items()]
    if backbone.can_pad or max(lengths) <= 1:
        return ""
    return (
        f"{backbone.family.name}: padding changes its hidden states, so all rows of a batch have one length"
    )


def _stream_note(prepared: Prepared, options: ExtractOptions, backbone: Backbone) -> str:
    """Return that blocks are read while they run, if they are, and why."""
    if not backbone.streamed:
        return ""
    reason = "the model does not fit into memory" if options.stream == "auto" else "--stream always"
    return f"{prepared.task.name}: {reason}, so its blocks are read from their file while they run"


def patch_units(prepared: Prepared, reservoir: Reservoir, rows: Mapping[str, np.ndarray]) -> PatchUnits:
    """Return the units of ``--input patches``, drawn from some of the training ``rows`` of an extraction."""
    picture = Picture.of(prepared.task, reservoir.patch, reservoir.stride)
    index = rows["train"]
    if len(index) > PICTURES:
        drawn = generator(reservoir.seed, "pictures").permutation(len(index))[:PICTURES]
        index = index[np.sort(drawn)]
    part = prepared.split("train").take(index)
    values = read_values(prepared.task, prepared.scaling, part.x, part.lengths)
    pictures = joined(values, picture.side, picture.patch).astype(np.float32, copy=False)
    width = find_shape(reservoir.backbone, reservoir.depth)[1].width
    return draw_units(pictures, picture, width, reservoir.seed)


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
    settings: dict[str, Any]  # options that the entry records, with all defaults resolved
    splits: Sequence[str]
    notes: list[str]  # lines to print on the input and the precision of the model
    entry_tokens: EntryTokens | None = None  # if rows are words or tokens of ``rows``

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
        label = partial(write_labels, prepared=self.prepared, rows=self.rows)
        if self.entry_tokens:
            label = self.entry_tokens.write_labels
        entry, missing = start_entry(
            self.root,
            self.title,
            self.spec,
            self.layout,
            self.shapes,
            self.splits,
            made_with,
            label=label,
        )
        # `fit` saves the units with its readout, because new rows have no training rows to draw them from.
        if model.units and not load_arrays(entry, UNITS):
            save_arrays(entry, UNITS, model.units.to_arrays(), {})
        return entry, missing

    def _refuse_long_texts(self) -> None:
        """Refuse texts of too many tokens before the first batch, if every token has a label.

        The model would cut such a text, and the labels of the tokens after the cut would be lost.
        """
        reader = self.model.reader
        if not (self.prepared.task.labels_each_token and isinstance(reader, TextReader)):
            return
        for name in self.splits:
            split = self.prepared.split(name)
            rows_to_check = self.rows[name][reader.may_be_long(split.lengths[self.rows[name]])]
            for start in range(0, len(rows_to_check), CHECKED_ROWS):
                part = split.take(rows_to_check[start : start + CHECKED_ROWS])
                reader.check_places(part.x, part.lengths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, layer by layer."""
        return tuple(self.shapes)

    def compute(self, entry: Entry, advance: Advance = lambda rows, written: None) -> int:
        """Compute all missing blocks; return the number of rows computed by this process."""
        if missing_blocks(entry, self.splits, self.columns):
            self.make_ready(entry)
        computed = compute_missing(entry, self.splits, self.columns, *self.steps(entry), advance)
        if note := self.model.reader.note if self.model.reader else "":
            notify(f"{self.spec.task_name}: {note}")
        return computed

    def make_ready(self, entry: Entry) -> None:
        """Compile the model and its poolings before the first batch, if the entry has compiled features."""
        batch_rows = entry.layout.batch_rows
        if not self.model.compiled or self.model.fpt.compiled_for == batch_rows:
            return
        columns, masks = [*map(Column.parse, self.columns)], column_masks(self.columns)
        try:
            self.model.fpt.compile_for_gpu(batch_rows, columns, masks)
        except Exception as error:
            if devices.is_out_of_memory(error):
                raise
            problem = f"{self.spec.task_name}: torch cannot compile the model ({first_line(error)})"
            raise InputError(problem, "leave out --compile-blocks") from error

    def with_smaller_batches(self, entry: Entry) -> "Extractor":
        """Return the same extractor with half as many rows in a batch, for an entry that has no features yet.

        Raises
        ------
        InputError
            If the entry has features, or a batch is a single row.
        """
        rows = entry.layout.batch_rows
        has_features = any(finished for finished, _ in entry.progress().values())
        if has_features or rows == 1:
            problem = f"{entry.path.name}: out of memory with {rows} rows in a batch"
            if rows == 1:
                raise InputError(problem, "extract fewer --layers, shorter rows, or on another --device")
            again = (
                f"run reservoir cache remove {entry.key[:12]}, then extract with --batch-rows {rows // 2}"
            )
            raise InputError(problem, again)
        return replace(self, layout=replace(self.layout, batch_rows=rows // 2))

    def load(self, split: str, low: int, high: int, batch_rows: int) -> Loaded:
        """Return the rows of the entry from ``low`` to ``high`` (not included), ready for the model."""
        if self.entry_tokens:
            return self.entry_tokens.load(self.model, split, low, high, batch_rows)
        part = self.prepared.split(split).take(self.rows[split][low:high])
        masks = column_masks(self.columns)
        return load(self.model, self.prepared.scaling, part.x, part.lengths, batch_rows, masks)

    def steps(self, entry: Entry) -> tuple[Load, Compute]:
        """Return two functions for `compute_blocks`; values do not depend on blocks, only on `Layout.offset_rows`."""
        layout, store = entry.layout, entry.spec.store

        def read(split: str, low: int, high: int) -> Iterator[tuple[int, Loaded]]:
            for start in range(low, high, layout.offset_rows):
                yield (
                    start,
                    self.load(split, start, min(start + layout.offset_rows, high), layout.batch_rows),
                )

        def compute(
            numbered_part: tuple[int, Loaded], columns: Sequence[str], count_rows: Callable[[int], None]
        ) -> Callable[[], Arrays]:
            """Start the columns of a part without waiting for the device; the returned function waits for the result.

            So the host prepares the next part while the device computes this one (see `Compute`).
            """
            first_row, loaded = numbered_part
            return start_encoding(launch(self.model, loaded, columns, count_rows), store, first_row)

        return read, compute
