"""The extractor: a frozen model with prepared data, which computes and encodes the features of one entry.

Features are encoded as the cache stores them where they were computed, and then copied to the host.
"""

from collections import Counter
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
    load_input,
    save_input,
)
from torch import Tensor

from reservoir import devices
from reservoir.backbones import describe_weights
from reservoir.backbones.backbone import Backbone
from reservoir.backbones.vector_model import SOUND_INPUTS, VectorModel
from reservoir.batches import LoadedBatch, check_lengths, load
from reservoir.column import Column
from reservoir.errors import InputError, first_line
from reservoir.features import Launched, column_masks, launch
from reservoir.inputs.native import TextReader
from reservoir.inputs.patch_units import UNITS
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, FeatureOptions, RowOptions
from reservoir.plan.resolved import Plan
from reservoir.tasks.task import Vectors, holds_samples
from reservoir_pipelines.data.sounds import BANDS
from reservoir_pipelines.extraction.entries import (
    Advance,
    Compute,
    Load,
    compute_missing,
    data_record,
    entry_folder,
    has_features,
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
SUMMED_ROWS = 256  # rows whose float64 copy, from which offsets are computed, is in memory at once


def load_extractor(
    options: ExtractOptions,
    prepared: Prepared,
    root: Path,
    splits: Sequence[str] | None = None,
    assumed_rows: Mapping[str, int] | None = None,
) -> "Extractor":
    """Decide the plan of an extraction, load its model, and return both as an extractor for its entry.

    Parameters
    ----------
    options : ExtractOptions
        The options as they were given; the plan decides the others.
    prepared : Prepared
        The data.
    root : Path
        The folder of the cache.
    splits : sequence of str, optional
        The splits to compute, by default all.
    assumed_rows : mapping of str to int, optional
        Rows of each split for which the plan and the files of the entry are chosen, if an extraction of similar data of
        another size is only estimated; by default the rows of ``prepared``.

    Raises
    ------
    InputError
        If the options do not fit the data, or a row is shorter than a window.
    """
    # 1. The rows, their task, and the plan.
    rows = draw_rows(prepared, options.limit)
    task = task_of_entry(prepared.task, each_token=options.each_token)
    plan = plan_of(prepared, task, options, assumed_rows)
    # 2. The model. Only patches have units that training rows give.
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
    # 3. The words or tokens that the model's tokenizer finds, if they are the rows of the entry.
    entry_tokens = EntryTokens.read(prepared, task, rows, model) if task.labels_text_tokens else None
    for name, index in rows.items():
        # Refuses rows that are shorter than a window, or than the model needs.
        split = prepared.split(name)
        model.windows.checked_counts(split.lengths[index])
        check_lengths(model, split.lengths[index], f"{task.name}: row", split.ids[index])
    # 4. The specification of the entry, from which its key follows, and its division into files.
    data = data_spec(prepared, rows)
    if entry_tokens:
        data = replace(data, rows=entry_tokens.counts)
    spec = model_spec(model, task.to_dict(), data, plan.store)
    if entry_tokens:
        spec = entry_tokens.with_space_marks(spec)
        layout = token_layout(plan, sum(spec.rows.values()))
    else:
        rows_of_layout = assumed_rows or spec.rows
        layout = new_layout(plan, task.max_tokens, sum(rows_of_layout.values()))
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
        settings=_resolved_settings(plan, options, prepared),
        splits=splits or list(rows),
        notes=_notes(plan, options, prepared, rows, model, entry_tokens),
    )


def _resolved_settings(plan: Plan, options: ExtractOptions, prepared: Prepared) -> dict[str, Any]:
    """Return the options that an entry records, as JSON values; those of the plan replace defaults of the user's."""
    return {
        **plan.reservoir.to_dict(),
        **as_group(options, FeatureOptions).to_dict(),
        **as_group(options, RowOptions).to_dict(),
        "layers": ",".join(plan.layers),
        "pool": ",".join(plan.poolings),
        "waveform": bool(prepared.task.parameters.get("waveform")),
    }


def _notes(
    plan: Plan,
    options: ExtractOptions,
    prepared: Prepared,
    rows: Mapping[str, np.ndarray],
    model: LoadedModel,
    entry_tokens: EntryTokens | None,
) -> list[str]:
    """Return the lines to print on the rows, the input and the precision of a model."""
    lines = [
        f"{prepared.task.name}: read by {model.reader.description}" if model.reader else "",
        *(entry_tokens.notes if entry_tokens else ()),
        plan.input_note,
        _sound_note(plan, model.fpt.backbone),
        plan.model_note(model.compute),
        plan.note,  # on columns or values that the defaults leave out
        _padding_note(prepared, rows, model.fpt.backbone),
        _stream_note(prepared, options, model.fpt.backbone),
    ]
    return [line for line in lines if line]


def _sound_note(plan: Plan, backbone: Backbone) -> str:
    """Return a note if a pretrained model of sounds does not read sounds by its own input, otherwise an empty text."""
    # Mel bands are not marked in a task: their number stands for them.
    has_sounds = holds_samples(plan.task) or plan.task.form == Vectors(BANDS)
    inner = backbone.model
    reads_sounds = isinstance(inner, VectorModel) and inner.input_name in SOUND_INPUTS
    if not (has_sounds and reads_sounds and plan.reservoir.init == "pretrained"):
        return ""
    values = "samples" if holds_samples(plan.task) else f"{BANDS} values a step (of sounds, mel bands)"
    return (
        f"{backbone.family.name}: its own input for sounds is not supported, so {values} enter through a random layer; "
        "wav2vec2 and hubert read samples by their own"
    )


def _padding_note(prepared: Prepared, rows: Mapping[str, np.ndarray], backbone: Backbone) -> str:
    """Return a note if rows of several lengths cannot share a batch of the model, otherwise an empty text."""
    distinct_lengths = [
        len(np.unique(prepared.split(split).lengths[index])) for split, index in rows.items()
    ]
    if backbone.can_pad or max(distinct_lengths) <= 1:
        return ""
    return (
        f"{backbone.family.name}: padding changes its hidden states, so all rows of a batch have one length"
    )


def _stream_note(prepared: Prepared, options: ExtractOptions, backbone: Backbone) -> str:
    """Return why the blocks of a model are read from disk while they run; an empty text if they are in memory."""
    if not backbone.streamed:
        return ""
    reason = "the model does not fit into memory" if options.stream == "auto" else "--stream always"
    return f"{prepared.task.name}: {reason}, so its blocks are read from their file while they run"


@dataclass
class Extractor:
    """A frozen model with prepared data, ready to compute the features of one entry."""

    root: Path  # folder of the cache
    prepared: Prepared
    title: str  # first part of the name of the entry
    shapes: Mapping[str, tuple[int, int]]  # (tokens, width) of each column
    layout: Layout  # for a new entry; an existing entry keeps its own
    model: LoadedModel
    rows: dict[str, np.ndarray]  # numbers of the prepared rows to read, by split
    spec: Spec  # of the entry
    settings: dict[str, Any]  # options that the entry records, with all defaults resolved
    splits: Sequence[str]  # the splits to compute
    notes: list[str]  # lines to print on the rows, the input and the precision of the model
    # Words or tokens of the texts that ``rows`` numbers; None if the texts or sequences are the rows of the entry.
    entry_tokens: EntryTokens | None = None

    def open(self, call: Mapping[str, Any]) -> tuple[Entry, list[tuple[str, int]]]:
        """Create or open the entry on disk, with its labels.

        Return it and the split and number of each block that it lacks. A new entry records ``call``, the task and the
        command of the user.
        """
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
        # An existing entry was checked when it was created.
        if not entry_folder(self.root, self.title, self.spec).is_dir():
            self._refuse_long_texts()
        if self.entry_tokens:
            add_labels = self.entry_tokens.write_labels
        else:
            add_labels = partial(write_labels, prepared=self.prepared, rows=self.rows)
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
        if model.units and load_input(entry, UNITS) is None:
            save_input(entry, UNITS, model.units.to_arrays())
        return entry, missing

    def _refuse_long_texts(self) -> None:
        """Refuse texts of too many tokens before the first batch, if every token has a label.

        The model would cut such a text, and the labels of the tokens after the cut would be lost.
        """
        reader = self.model.reader
        if not (self.prepared.task.labels_each_token and isinstance(reader, TextReader)):
            return
        for name in self.splits:
            split, rows = self.prepared.split(name), self.rows[name]
            # Short texts need not be tokenized.
            long_rows = rows[reader.may_be_long(split.lengths[rows])]
            for start in range(0, len(long_rows), CHECKED_ROWS):
                part = split.take(long_rows[start : start + CHECKED_ROWS])
                reader.check_places(part.x, part.lengths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, layer by layer."""
        return tuple(self.shapes)

    @property
    def text_counts(self) -> Counter[str]:
        """A copy of the counts of the texts that the model's tokenizer has read; empty if it reads none."""
        reader = self.model.reader
        return Counter(reader.counts) if isinstance(reader, TextReader) else Counter()

    def set_text_counts(self, counts: Counter[str]) -> None:
        """Replace the counts of the texts that the model's tokenizer has read, if it reads texts."""
        if isinstance(self.model.reader, TextReader):
            self.model.reader.counts = counts

    def compute(self, entry: Entry, advance: Advance = lambda rows, written: None) -> int:
        """Compute all missing blocks, and print what the reader noticed; return the rows computed by this process."""
        if missing_blocks(entry, self.splits, self.columns):
            self.make_ready(entry)
        read, compute = self.steps(entry)
        computed_rows = compute_missing(entry, self.splits, self.columns, read, compute, advance)
        reader = self.model.reader
        if reader and reader.note:
            notify(f"{self.spec.task_name}: {reader.note}")
        return computed_rows

    def make_ready(self, entry: Entry) -> None:
        """Compile the model and its poolings for the batches of an entry, once, if the entry has compiled features."""
        batch_rows = entry.layout.batch_rows
        needs_compilation = self.model.compiled  # says what the options ask for, not what has been done
        if not needs_compilation or self.model.fpt.compiled_for == batch_rows:
            return
        columns = [Column.parse(name) for name in self.columns]
        masks = column_masks(self.columns)
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
            If the entry has features, whose last bits depend on the batches, or a batch is a single row.
        """
        rows = entry.layout.batch_rows
        problem = f"{entry.path.name}: out of memory with {rows} rows in a batch"
        if rows == 1:
            raise InputError(problem, "extract fewer --layers, shorter rows, or on another --device")
        if has_features(entry):
            raise InputError(
                problem,
                f"run reservoir cache remove {entry.key[:12]}, then extract with --batch-rows {rows // 2}",
            )
        return replace(self, layout=replace(self.layout, batch_rows=rows // 2))

    def load(self, split: str, low: int, high: int, batch_rows: int) -> LoadedBatch:
        """Return the rows ``low`` to ``high`` (not included) of a split of the entry, in batches for the model."""
        if self.entry_tokens:
            return self.entry_tokens.load(self.model, split, low, high, batch_rows)
        part = self.prepared.split(split).take(self.rows[split][low:high])
        masks = column_masks(self.columns)
        return load(self.model, self.prepared.scaling, part.x, part.lengths, batch_rows, masks)

    def steps(self, entry: Entry) -> tuple[Load, Compute]:
        """Return the functions with which `compute_blocks` reads the rows of a block, and computes their columns.

        A block is read and computed in parts of `Layout.offset_rows` rows. The values of a part do not depend on the
        other parts.
        """
        layout, store = entry.layout, entry.spec.store

        def read(split: str, low: int, high: int) -> Iterator[tuple[int, LoadedBatch]]:
            """Yield the parts of a block, its rows ``low`` to ``high``: the number of the first row, and the rows."""
            for start in range(low, high, layout.offset_rows):
                end = min(start + layout.offset_rows, high)
                yield start, self.load(split, start, end, layout.batch_rows)

        def compute(
            numbered_part: tuple[int, LoadedBatch],
            columns: Sequence[str],
            count_rows: Callable[[int], None],
        ) -> Callable[[], Arrays]:
            """Start the columns of a part without waiting for the device; the returned function waits for the result.

            So the host prepares the next part while the device computes this one (see `Compute`).
            """
            first_row, loaded = numbered_part
            return start_encoding(launch(self.model, loaded, columns, count_rows), store, first_row)

        return read, compute


def start_encoding(features: Launched, store: str, first_row: int) -> Callable[[], dict[str, Encoded]]:
    """Return a function that waits for the device and returns the encoded columns of rows that share an offset.

    A GPU begins to encode at once, behind the features; on a CPU the returned function encodes. ``store`` is the data
    type of the cache, and ``first_row`` the number of the first row in the split, for messages. The returned function
    raises CacheError as `reservoir_cache.encode` does.
    """
    are_pieces = features.loaded.owner is not None  # of texts, which are joined on the host
    if are_pieces or not devices.on_gpu(features.device):

        def encode_on_host() -> dict[str, Encoded]:
            """Wait for the features, and encode them."""
            columns = features()
            return {name: encode(x, store, column=name, first_row=first_row) for name, x in columns.items()}

        return encode_on_host
    rounded = {name: round_on_device(x, store) for name, x in features.columns.items()}
    are_sound = torch.cat([column.is_sound for column in rounded.values()])
    return ColumnsOnGpu(
        columns=features.columns,
        rounded=rounded,
        are_sound=are_sound,
        store=store,
        first_row=first_row,
        computed=devices.computed(features.device),  # after the GPU was given all of the above
    )


@dataclass(frozen=True)
class Rounded:
    """A column as the cache stores it, on the device that computes it."""

    offset: Tensor  # (width,) of float32, which has been subtracted from the values, unless the cache stores float32
    values: Tensor  # (rows, tokens, width) in the data type of the cache
    # (1,) of bool: whether all values are finite, and some not 0, so that rounding has certainly not made all values
    # 0; on the device, so that nothing waits for it
    is_sound: Tensor


def round_on_device(x: Tensor, store: str) -> Rounded:
    """Return offset and stored values of features (rows, tokens, width).

    The offset is the mean in float64, summed in the device's own order, and rounded to float32.
    Equal offsets give the bits of `reservoir_cache.encode`.
    """
    # A few rows at a time become float64, because a copy of all of them would need twice the memory of the features.
    # Each sum is (width,).
    sums_of_parts = [part.sum((0, 1), dtype=torch.float64) for part in x.split(SUMMED_ROWS)]
    total = torch.stack(sums_of_parts).sum(0)
    offset = (total / (x.shape[0] * x.shape[1])).float()
    if store == "float32":  # stored as it is
        return Rounded(offset, x, x.isfinite().all().reshape(1))
    values = torch.sub(x, offset, out=torch.empty_like(x, dtype=getattr(torch, store)))
    return Rounded(offset, values, (values.isfinite().all() & values.any()).reshape(1))


@dataclass(eq=False)
class ColumnsOnGpu:
    """Columns that a GPU computes and encodes; a call waits for them, copies them to the host and returns them.

    A thread of the writer calls it once, while the GPU computes the next rows, and then writes what it has returned.
    So there are as many page-locked buffers as such threads, and each is reused when its block is on disk.
    """

    columns: Mapping[str, Tensor]  # the features in float32, by the name of the column
    rounded: Mapping[str, Rounded]  # by the name of the column
    are_sound: Tensor  # (columns,) of bool: `Rounded.is_sound` of each column
    store: str  # data type of the cache
    first_row: int  # number of the first row in its split, for messages
    computed: Any  # the event of the GPU after which all of these tensors have their values

    def __call__(self) -> dict[str, Encoded]:
        """Return the encoded columns, and free those on the GPU; raise CacheError for a value that cannot be stored."""
        offsets = [column.offset for column in self.rounded.values()]
        sound_bytes, *offset_bytes = self._fetch_bytes([self.are_sound, *offsets])
        self._check(sound_bytes)
        # The features in float32 are not needed any more. They take two thirds of the memory of a block on the GPU, so
        # they are freed before the values are copied.
        self.columns = {}
        value_bytes = self._fetch_bytes([column.values for column in self.rounded.values()])
        encoded: dict[str, Encoded] = {}
        for name, offset, stored in zip(self.rounded, offset_bytes, value_bytes, strict=True):
            # These rows share an offset, (1, width); float32 values have none.
            shared_offset = None if self.store == "float32" else offset.view(np.float32)[None]
            encoded[name] = Encoded(stored.view(STORED_DTYPE[self.store]), shared_offset)
        self.rounded = {}
        return encoded

    def _check(self, are_sound: np.ndarray) -> None:
        """Raise CacheError for the first value that cannot be stored; ``are_sound`` (columns,) is 0 for its column."""
        for (name, x), is_sound in zip(self.columns.items(), are_sound, strict=True):
            if not is_sound:  # encoding on the host finds the value, if there is one, and raises the error
                encode(x.cpu().numpy(), self.store, column=name, first_row=self.first_row)

    def _fetch_bytes(self, tensors: list[Tensor]) -> list[np.ndarray]:
        """Return the bytes of tensors, copied together; `devices.fetch` copies tensors of one data type."""
        return devices.fetch([tensor.view(torch.uint8) for tensor in tensors], self.computed)
