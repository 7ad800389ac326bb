"""How a model computes: its device, the precision of products and on disk, and the rows of a block and of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from reservoir import devices
from reservoir.backbones.family import Family
from reservoir.column import Column
from reservoir.devices import choose_compute, choose_device
from reservoir.errors import InputError
from reservoir.inputs.native import Reader
from reservoir.options import ExtractOptions
from reservoir.plan.basis import Kind, ModelView
from reservoir.pooling import find_pooling
from reservoir.tasks.task import Task, Vectors

# Tokens of a batch: enough to keep the device busy, and few enough for its caches.
BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}
# Rows of a block. A killed process loses the blocks that are not listed yet, often one. With this many rows, padding is
# under 5% of the tokens of a batch.
BLOCK_ROWS = {"cpu": 256, "cuda": 4096}
IMAGE_BLOCK_ROWS = 64  # fewer, because the file of a photograph takes megabytes
BLOCK_BYTES = 2**28  # largest block, as float32; the writer's queue holds several blocks


@dataclass(frozen=True)
class Precision:
    """The device of a plan and its precisions."""

    device: torch.device
    compute: str  # one of `PRECISIONS`
    store: str  # precision on disk
    reasons: Mapping[str, str]  # of each option, unless the user gives it


def choose_precision(
    options: ExtractOptions, family: Family, kind: Kind, poolings: Sequence[str], *, native: bool
) -> Precision:
    """Return the device and the precisions; options that the user gave win over the defaults.

    ``native`` says whether the model reads the task by its own input.
    """
    device = choose_device(options.device)
    compute = choose_compute(options.compute, device) if family.allows_bfloat16 else "float32"
    # Only your own series and symbols, unless read natively, are stored as float32 if a pooling needs it: float16
    # would add rounding errors to values that are nearly always 0 (see `Pooling.needs_float32`).
    is_own_series = kind in ("series", "symbols") and not native
    needs_float32 = is_own_series and any(find_pooling(name).needs_float32 for name in poolings)
    reasons = {
        "device": "a GPU is used if there is one",
        "compute": "the faster one here",
        "store": "shares near 0 need float32" if needs_float32 else "half the size of float32",
    }
    if not family.allows_bfloat16:
        reasons["compute"] = f"{family.name} computes in float32 alone"
    store = options.store or ("float32" if needs_float32 else "float16")
    return Precision(device, compute, store, reasons)


@dataclass(frozen=True)
class Blocks:
    """The rows of a block and of a batch of a new entry."""

    block_rows: int
    batch_rows: int  # of the longest sequences
    reasons: Mapping[str, str]  # of each option, unless the user gives it


def check_compilation(options: ExtractOptions, view: ModelView, device: torch.device) -> None:
    """Raise `InputError` if ``--compile-blocks`` is given and blocks cannot be compiled, or would not be faster."""
    obstacle = ""
    if not view.depth or not view.family.compiles:
        obstacle = f"the blocks of {view.family.name} cannot be compiled"
    elif not devices.on_gpu(device):
        obstacle = "compiled blocks are faster on GPUs only"
    elif device.type == "cuda" and not find_spec("triton"):
        obstacle = "triton is not installed"
    if obstacle and options.compile_blocks:
        raise InputError(f"--compile-blocks: {obstacle}", "leave it out")


def choose_blocks(
    options: ExtractOptions, view: ModelView, shapes: Mapping[Column, tuple[int, int]], device_kind: str
) -> Blocks:
    """Return the rows of a block and of a batch, which is at most a block.

    ``shapes`` holds the tokens and width of a row of each column, and ``device_kind`` is "cpu" or "cuda".
    """
    block_rows, batch_rows = rows_at_a_time(view.seen_task, view.reader, shapes, device_kind, view.pieces)
    reasons = {
        "compile_blocks": "compiled features differ in their last bits",
        "block_rows": "a killed run loses little",
        "batch_rows": f"about {BATCH_TOKENS[device_kind]:,} tokens, or a block",
    }
    if options.batch_rows is not None:
        batch_rows = options.batch_rows
    return Blocks(block_rows, min(block_rows, batch_rows), reasons)


def rows_at_a_time(
    seen_task: Task,
    reader: Reader | None,
    shapes: Mapping[Column, tuple[int, int]],
    device_kind: str,
    pieces: int,
) -> tuple[int, int]:
    """Return the number of rows per block and per batch.

    ``seen_task`` is the task as the model sees it, and a row has up to ``pieces`` pieces. ``shapes`` holds the tokens
    and width of a row of each column.
    """
    # Tokens of a row, and bytes of its features, which are float32 in memory.
    row_tokens = reader.row_tokens if reader else seen_task.max_tokens
    row_bytes = 4 * pieces * sum(tokens * width for tokens, width in shapes.values())
    # The vectors that a reader makes of a whole block are in memory, too.
    if reader and isinstance(seen_task.form, Vectors):
        row_bytes = max(row_bytes, 4 * row_tokens * seen_task.form.dim)
    most_rows = IMAGE_BLOCK_ROWS if seen_task.pictures else BLOCK_ROWS[device_kind]
    block_rows = max(1, min(most_rows, BLOCK_BYTES // row_bytes))
    return block_rows, max(1, BATCH_TOKENS[device_kind] // row_tokens)
