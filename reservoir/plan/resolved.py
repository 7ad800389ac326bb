"""`Plan`: every option of an extraction and of the fit that follows; `resolve` is the list of its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reservoir import devices
from reservoir.backbone_names import DEFAULT_BACKBONE
from reservoir.column import Column, Columns, joined_name
from reservoir.inputs.native import Reader
from reservoir.options import ExtractOptions
from reservoir.plan.basis import GIVEN, DataView, ModelView, reasons_of
from reservoir.plan.candidates import choose_candidates
from reservoir.plan.columns import choose_columns
from reservoir.plan.model import choose_backbone, choose_model, random_input_note
from reservoir.plan.precision import check_compilation, choose_blocks, choose_precision
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every option of an extraction, and of the fit that follows, with its value and the reason for it."""

    task: Task  # describes sequences as stored
    reservoir: Reservoir  # with "auto" dilations resolved
    # Why a model of this kind of data, which the user named, does not read it by its own input; else empty.
    native_obstacle: str
    # Of native input; else None. It is kept because opening a tokenizer takes seconds.
    reader: Reader | None = field(repr=False, compare=False)
    has_blocks: bool  # whether the model has blocks behind its input layer
    layers: tuple[str, ...]  # each layer under each pooling is a column of the cache
    poolings: tuple[str, ...]
    shapes: Mapping[Column, tuple[int, int]]  # tokens and width of a row of each column
    device: str  # named as in torch
    compute: str  # precision of the model, one of `PRECISIONS`
    store: str  # precision on disk
    compiled: bool  # whether blocks and poolings are compiled
    block_rows: int  # rows of a shard of a new entry
    batch_rows: int  # rows per batch of the longest sequences
    folds: int  # folds of cross-validation; 0 if the validation split chooses the readout
    repeats: int  # of cross-validation, with folds that are drawn again
    candidates: tuple[Columns, ...]  # one is chosen; columns of a candidate are side by side
    note_on_fewer_columns: str | None  # None if fewer rows would have the same columns
    reasons: Mapping[str, str]  # the reason for the value of each option

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, layer by layer."""
        return tuple(self.shapes)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the value of each option and the reason for it, as JSON values."""
        select = f"cv{self.folds}" if self.folds else "valid"
        select += f", repeated {self.repeats} times" if self.repeats > 1 else ""
        values = {
            **self.reservoir.to_dict(),
            "layers": ",".join(self.layers),
            "pool": ",".join(self.poolings),
            "device": self.device,
            "compute": self.compute,
            "store": self.store,
            "compile_blocks": self.compiled,
            "block_rows": self.block_rows,
            "batch_rows": self.batch_rows,
            "select": select,
            "columns": [joined_name(columns) for columns in self.candidates],
        }
        return {name: {"value": value, "why": self.reasons[name]} for name, value in values.items()}

    def table(self) -> list[tuple[str, str, str]]:
        """Return a line for each option: its name, its value, and the reason for it."""
        values = {name: option["value"] for name, option in self.to_dict().items()}
        values["columns"] = f"{len(self.candidates)}, which --json lists"
        return [
            (name, "-" if value is None else str(value), self.reasons[name])
            for name, value in values.items()
        ]

    @property
    def title(self) -> str:
        """Short name for folders and tables.

        It ends in the input layer if that replaces the model's own input.
        """
        return self.reservoir.title + (f"-{self.reservoir.input}" if self.native_obstacle else "")

    @property
    def input_note(self) -> str:
        """A message if a random input layer replaces the model's own input; else empty."""
        return random_input_note(self.task, self.reservoir, self.native_obstacle)

    def model_note(self, compute: str) -> str:
        """Return a message on the model, which was computed in the precision ``compute``.

        It says that there is no transformer, or how the features compare with published activations.
        """
        if not self.has_blocks:
            names_of_inputs = {"patches": "patches of training rows", "counter": "a counter of brackets"}
            units = names_of_inputs.get(self.reservoir.input, "random kernels")
            return f"{self.task.name}: {units}, no transformer; --backbone {DEFAULT_BACKBONE} adds one"
        how = f"{self.task.name}: computed in {compute} ({self.reasons['compute']})"
        is_native = self.reservoir.input == "native"
        if compute != "float32":
            exact = "published activations" if is_native else "those in float32"
            share = "3%" if compute == "bfloat16-all" else "2%"
            difference = f"features differ from {exact} by about {share} of their standard deviation"
            return f"{how}: {difference}; --compute float32 avoids this"
        # Behind a random input layer there are no published activations to compare with.
        if not is_native:
            return how
        return f"{how}: features equal published activations in float32, up to rounding to {self.store}"

    @property
    def note(self) -> str:
        """A message if there are fewer columns by default, or else if default windows skip values; else empty."""
        if self.note_on_fewer_columns:
            return f"{self.task.name}: {self.note_on_fewer_columns}"
        windows = self.reservoir.windows(self.task)
        # Windows that the user has chosen may skip values on purpose.
        is_default_stride = self.reasons["stride"] != GIVEN
        if not is_default_stride or windows.read_share >= 1:
            return ""
        cover = f"windows of {windows.patch} with stride {windows.stride} cover {windows.read_share:.0%} of each row"
        return f"{self.task.name}: {cover}; reduce --stride or raise --patch to cover more"


def resolve(
    task: Task, options: ExtractOptions, rows: Mapping[str, int], longest: int | None = None
) -> Plan:
    """Return the plan of a task; raise `InputError` for options that do not fit the task, the model or the device.

    ``rows`` are those of each split, and ``longest`` is the length of the longest training row, by default that of the
    longest row of the task.
    """
    # A run with --limit has the plan of the rows that it reads.
    rows = {split: min(number, options.limit or number) for split, number in rows.items()}
    data = DataView.of(task, rows, longest or task.max_tokens)
    # Each decision depends on those before it.
    backbone = choose_backbone(data, options)
    model = choose_model(data, options, backbone)
    view = ModelView.of(task, model.reservoir)
    columns = choose_columns(data, options, view)
    precision = choose_precision(options, view.family, data.kind, columns.poolings, native=view.native)
    check_compilation(options, view, precision.device)
    blocks = choose_blocks(options, view, columns.shapes, devices.kind(precision.device))
    readouts = choose_candidates(data, columns.shapes, native=view.native)
    # Each decision gives the reasons of its defaults, which `reasons_of` replaces for options that the user gave.
    reasons_of_defaults: dict[str, str] = {}
    for choice in (model, columns, precision, blocks, readouts):
        reasons_of_defaults |= choice.reasons
    return Plan(
        task=task,
        reservoir=model.reservoir,
        native_obstacle=model.native_obstacle,
        reader=view.reader,
        has_blocks=view.depth > 0,
        layers=columns.layers,
        poolings=columns.poolings,
        shapes=columns.shapes,
        device=str(precision.device),
        compute=precision.compute,
        store=precision.store,
        compiled=options.compile_blocks,
        block_rows=blocks.block_rows,
        batch_rows=blocks.batch_rows,
        folds=readouts.folds,
        repeats=readouts.repeats,
        candidates=readouts.candidates,
        note_on_fewer_columns=columns.note_on_fewer_columns,
        reasons=reasons_of(options, reasons_of_defaults),
    )
