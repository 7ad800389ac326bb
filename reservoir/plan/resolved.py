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
from reservoir.plan.backbone import choose_backbone
from reservoir.plan.basis import GIVEN, DataView, ModelView, reasons_of
from reservoir.plan.candidates import choose_candidates
from reservoir.plan.columns import choose_columns
from reservoir.plan.precision import check_compilation, choose_blocks, choose_precision
from reservoir.plan.windows import choose_model
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every option of an extraction, and of the fit that follows, with its value and the reason for it."""

    task: Task  # describes sequences as stored
    reservoir: Reservoir  # with "auto" dilations resolved
    native_obstacle: str  # why a named model of this kind of data does not read it natively; else empty
    reader: Reader | None = field(
        repr=False, compare=False
    )  # of native input; opening a tokenizer takes seconds
    has_blocks: bool  # whether the model has blocks behind its input layer
    layers: tuple[str, ...]  # each layer under each pooling is a column of the cache
    poolings: tuple[str, ...]
    shapes: Mapping[Column, tuple[int, int]]  # tokens and width of a row of each column
    device: str
    compute: str  # precision of the model, one of `PRECISIONS`
    store: str  # precision on disk
    compiled: bool  # whether blocks and poolings are compiled
    block_rows: int  # rows of a shard of a new entry
    batch_rows: int  # rows per batch of the longest sequences
    folds: int  # folds of cross-validation; 0 if the validation split chooses the readout
    repeats: int
    candidates: tuple[Columns, ...]  # one is chosen; columns of a candidate are side by side
    note_on_fewer_columns: str | None  # None if fewer rows would have the same columns
    reasons: Mapping[str, str]

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
        return {option: {"value": value, "why": self.reasons[option]} for option, value in values.items()}

    def table(self) -> list[tuple[str, str, str]]:
        """Return a line for each option: its name, its value, and the reason for it."""
        values = {name: entry["value"] for name, entry in self.to_dict().items()}
        values["columns"] = f"{len(self.candidates)}, which --json lists"
        return [
            (name, "-" if value is None else str(value), self.reasons[name])
            for name, value in values.items()
        ]

    @property
    def title(self) -> str:
        """Short name for folders and tables; it ends in the input layer if a model of such data does not read it."""
        return self.reservoir.title + (f"-{self.reservoir.input}" if self.native_obstacle else "")

    @property
    def input_note(self) -> str:
        """A message if a named model of this kind of data does not read it natively."""
        how = f"a random input layer ({self.reservoir.input}) replaces the one of {self.reservoir.title}"
        return f"{self.task.name}: {how}: {self.native_obstacle}" if self.native_obstacle else ""

    def model_note(self, compute: str) -> str:
        """Return that there is no transformer, or its precision and how features compare with published activations."""
        if not self.has_blocks:
            named = {"patches": "patches of training rows", "counter": "a counter of brackets"}
            units = named.get(self.reservoir.input, "random kernels")
            return f"{self.task.name}: {units}, no transformer; --backbone {DEFAULT_BACKBONE} adds one"
        how = f"{self.task.name}: computed in {compute} ({self.reasons['compute']})"
        native = self.reservoir.input == "native"
        if compute != "float32":
            exact = "published activations" if native else "those in float32"
            share = "3%" if compute == "bfloat16-all" else "2%"
            differ = f"features differ from {exact} by about {share} of their standard deviation"
            return f"{how}: {differ}; --compute float32 avoids this"
        equal = f": features equal published activations in float32, up to rounding to {self.store}"
        return how + (equal if native else "")

    @property
    def note(self) -> str:
        """A message if default poolings are few, or if default windows skip a part of each row."""
        windows = self.reservoir.windows(self.task)
        note = self.note_on_fewer_columns
        # Windows that the user has chosen may skip values on purpose.
        if not note and self.reasons["stride"] != GIVEN and windows.read_share < 1:
            cut = f"windows of {windows.patch} with stride {windows.stride}"
            note = f"{cut} cover {windows.read_share:.0%} of each row; reduce --stride or raise --patch to cover more"
        return f"{self.task.name}: {note}" if note else ""


def resolve(
    task: Task, options: ExtractOptions, rows: Mapping[str, int], longest: int | None = None
) -> Plan:
    """Return the plan of a task with ``rows`` in each split and a ``longest`` training row; refuse misfits."""
    # A limited run has the plan of its own rows.
    rows = {split: min(number, options.limit or number) for split, number in rows.items()}
    data = DataView.of(task, rows, longest or task.max_tokens)
    backbone = choose_backbone(data, options)
    model = choose_model(data, options, backbone)
    view = ModelView.of(task, model.reservoir)
    columns = choose_columns(data, options, view)
    precision = choose_precision(options, view.family, data.kind, columns.poolings, native=view.native)
    check_compilation(options, view, precision.device)
    blocks = choose_blocks(options, view, columns.shapes, devices.kind(precision.device))
    readouts = choose_candidates(data, columns.shapes, native=view.native)
    # Each decision gives the reason of a default; an option that the user gave needs none.
    choices = (model, columns, precision, blocks, readouts)
    reasons_of_defaults = {option: why for choice in choices for option, why in choice.reasons.items()}
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
