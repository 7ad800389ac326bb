"""The extractor: a frozen model with prepared data, which computes and encodes the features of one entry.

Features are encoded as the cache stores them where they were computed, and then copied to the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reservoir_cache import (
    STORED_DTYPE,
    Arrays,
    Encoded,
    Entry,
    Layout,
    Spec,
    encode,
    load_arrays,
    save_arrays,
)
from torch import Tensor

from reservoir import devices
from reservoir.backbones import describe_weights
from reservoir.backbones.backbone import Backbone
from reservoir.batches import Loaded, load
from reservoir.column import Column
from reservoir.errors import InputError, first_line
from reservoir.features import Launched, column_masks, launch
from reservoir.inputs.native import TextReader
from reservoir.inputs.patch_units import UNITS
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, FeatureOptions, RowOptions
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
from reservoir_pipelines.extraction.entry_tokens import EntryTokens
from reservoir_pipelines.extraction.planning import patch_units, plan_of, task_of_entry
from reservoir_pipelines.extraction.spec import model_spec
from reservoir_pipelines.files import versions
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepared import Prepared, data_spec, draw_rows
from reservoir_pipelines.weight_files import weight_stamps

CHECKED_ROWS = 256  # texts that are tokenized at a time before an extraction
SUMMED = 256  # rows whose float64 copy, from which offsets are computed, is in memory at once


def load_extractor(
    options: ExtractOptions,
    prepared: Prepared,
    root: Path,
    splits: Sequence[str] | None = None,
    planned: Mapping[str, int] | None = None,
) -> "Extractor":
    """Resolve the plan and load the model; ``planned`` are the ``rows`` of `plan_of`.

    ``splits`` are those to compute, by default all.
    """
    # What is read, and how: rows, task and plan, and the units that only training rows give.
    rows = draw_rows(prepared, options.limit)
    data = data_spec(prepared, rows)
    task = task_of_entry(prepared.task, each_token=options.each_token)
    plan = plan_of(prepared, task, options, planned)
    units = patch_units(prepared, plan.reservoir, rows) if plan.reservoir.input == "patches" else None
    # The model, and the words or tokens that its tokenizer finds, if they are the rows of the entry.
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
    entry_tokens = EntryTokens.read(prepared, task, rows, model) if task.labels_text_tokens else None
    for split, index in rows.items():  # refuse rows that are shorter than a window
        model.windows.checked_counts(prepared.split(split).lengths[index])
    # The entry: its specification, from which its key follows, and its division into files.
    if entry_tokens:
        data = replace(data, rows=entry_tokens.counts)
    spec = model_spec(model, task.to_dict(), data, plan.store)
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
        add_labels = partial(write_labels, prepared=self.prepared, rows=self.rows)
        if self.entry_tokens:
            add_labels = self.entry_tokens.write_labels
        entry, missing = start_entry(
            self.root,
            self.title,
            self.spec,
            self.layout,
            self.shapes,
            self.splits,
            made_with,
            add_labels=add_labels,
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
            smaller_batch = (
                f"run reservoir cache remove {entry.key[:12]}, then extract with --batch-rows {rows // 2}"
            )
            raise InputError(problem, smaller_batch)
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


def start_encoding(features: Launched, store: str, first_row: int) -> Callable[[], dict[str, Encoded]]:
    """Encode rows that share an offset; return a function that waits for the device and returns encoded columns.

    Raises CacheError as `reservoir_cache.encode` does.
    """
    in_pieces = features.loaded.owner is not None  # pieces of texts are combined on the host
    if in_pieces or not devices.on_gpu(features.device):
        return lambda: {
            column: encode(x, store, column=column, first_row=first_row) for column, x in features().items()
        }
    rounded = {column: round_on_device(x, store) for column, x in features.columns.items()}
    are_finite = torch.cat([column.is_finite for column in rounded.values()])
    return Drain(features.columns, rounded, are_finite, store, first_row, devices.computed(features.device))


@dataclass(frozen=True)
class Rounded:
    """A column as the cache stores it, on the device that computes it."""

    offset: Tensor  # (width,) of float32
    values: Tensor  # (rows, tokens, width) in the data type of the cache
    is_finite: Tensor  # (1,) of bool: whether all values can be stored; on the device, so that nothing waits for it


def round_on_device(x: Tensor, store: str) -> Rounded:
    """Return offset and stored values of features (rows, tokens, width).

    The offset is the mean in float64, summed in the device's own order, and rounded to float32.
    Equal offsets give the bits of `reservoir_cache.encode`.
    """
    total = torch.stack([part.sum((0, 1), dtype=torch.float64) for part in x.split(SUMMED)]).sum(0)
    offset = (total / (x.shape[0] * x.shape[1])).float()
    values = x
    if store != "float32":
        values = torch.sub(x, offset, out=torch.empty_like(x, dtype=getattr(torch, store)))
    return Rounded(offset, values, values.isfinite().all().reshape(1))


@dataclass(eq=False)
class Drain:
    """Columns that a GPU computes and encodes; a call waits for them, copies them to the host and returns them.

    A thread of the writer calls it once, while the GPU computes the next rows, and then writes what it has returned.
    So there are as many page-locked buffers as such threads, and each is reused when its block is on disk.
    """

    columns: Mapping[str, Tensor]  # the features in float32
    rounded: Mapping[str, Rounded]
    are_finite: Tensor  # (columns,) of bool
    store: str
    first_row: int
    computed: Any  # the event after which all of these have their values

    def __call__(self) -> dict[str, Encoded]:
        """Return the encoded columns; raises CacheError for a value that cannot be stored."""
        offsets = [column.offset for column in self.rounded.values()]
        are_finite, *offset_bytes = self._fetch([self.are_finite, *offsets])
        self._check(are_finite)
        # The features in float32 are not needed any more. They take two thirds of the memory of a block on the GPU.
        self.columns = {}
        value_bytes = self._fetch([column.values for column in self.rounded.values()])
        encoded: dict[str, Encoded] = {}
        for name, offset, stored in zip(self.rounded, offset_bytes, value_bytes, strict=True):
            values = stored.view(STORED_DTYPE[self.store])
            encoded[name] = Encoded(
                values, None if self.store == "float32" else offset.view(np.float32)[None]
            )
        self.rounded = {}
        return encoded

    def _check(self, are_finite: np.ndarray) -> None:
        """Raise CacheError for the first value that cannot be stored."""
        for (name, x), is_finite in zip(self.columns.items(), are_finite, strict=True):
            if not is_finite:  # encoding on the host finds the value, for its message
                encode(x.cpu().numpy(), self.store, column=name, first_row=self.first_row)

    def _fetch(self, tensors: list[Tensor]) -> list[np.ndarray]:
        """Return the bytes of tensors, copied together."""
        return devices.fetch([tensor.view(torch.uint8) for tensor in tensors], self.computed)
