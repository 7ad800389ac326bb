"""The limits of default columns: bytes on disk, and windows that pass through a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from reservoir.column import Column
from reservoir.features import column_shapes
from reservoir.pooling import find_pooling
from reservoir.tasks.task import Task, Vectors

Names: TypeAlias = tuple[str, ...]

MAX_BYTES, MAX_RATIO = 2e8, 4  # limit of default columns: the larger of bytes and times the input
TOO_LARGE = "all columns would take more than 200 MB and 4 times the input"
# The work of default columns is limited by the windows of all rows together. Processor seconds of one core for 2**21
# windows of 32 values: block of mini 16, input layer with its largest values 2, with quantiles and shares also 4.
MAX_BLOCK_WINDOWS = 2**21  # more windows pass through the input layer alone
MAX_SORTED_WINDOWS = 2**24  # more windows are not sorted for quantiles and shares


@dataclass(frozen=True)
class ColumnSet:
    """Each of the layers under each of the poolings."""

    layers: Names
    poolings: Names

    @property
    def columns(self) -> list[Column]:
        """The columns, layer by layer."""
        return [Column(layer, pooling) for layer in self.layers for pooling in self.poolings]

    @property
    def has_blocks(self) -> bool:
        """Whether a block of the model runs."""
        return self.layers != ("embed",)

    @property
    def sorts(self) -> bool:
        """Whether a pooling sorts the values of each channel."""
        return any(find_pooling(name).sorts for name in self.poolings)

    @property
    def value_bytes(self) -> int:
        """Bytes of a stored value: one pooling that needs float32 decides for all."""
        return 4 if any(find_pooling(name).needs_float32 for name in self.poolings) else 2


@dataclass(frozen=True)
class Excess:
    """Which limits some columns exceed, each with a message; empty messages for limits that they keep."""

    size: str = ""
    blocks: str = ""
    sorting: str = ""

    @property
    def any(self) -> bool:
        """Whether a limit is exceeded."""
        return bool(self.size or self.blocks or self.sorting)


@dataclass(frozen=True)
class Budget:
    """The limits of default columns for a number of rows in all splits."""

    task: Task
    seen: Task  # the task as the model sees it, with windows as tokens
    width: int
    rows: int
    limits_size: bool  # whether bytes count
    limits_work: bool  # whether windows count

    def first_that_fits(self, sets: Sequence[ColumnSet]) -> tuple[ColumnSet, dict[str, str]]:
        """Return the first columns within the budget, else the last, and the reason for each changed option."""
        default = sets[0]
        chosen = next((columns for columns in sets if not self.excess(columns).any), sets[-1])
        excess, changes = self.excess(default), dict[str, str]()
        if chosen.layers != default.layers:
            changes["layers"] = excess.blocks or excess.size
        if chosen.poolings != default.poolings:
            changes["pool"] = "; ".join(filter(None, [excess.sorting, excess.size]))
        return chosen, changes

    def note(self, default: ColumnSet) -> str:
        """Return a note that names the columns that fewer rows would have."""
        options = f"--layers {','.join(default.layers)} --pool {','.join(default.poolings)}"
        takes = f"{options} takes {self._bytes(default) / 1e9:.1f} GB"
        return f"with {self.rows:,} rows, fewer columns are stored by default; {takes}"

    def excess(self, columns: ColumnSet) -> Excess:
        """Return which limits columns exceed."""
        channels = self.task.form.dim if isinstance(self.task.form, Vectors) else 1
        input_bytes = 4 * self.rows * self.task.max_tokens * channels
        windows = self.rows * self.seen.max_tokens
        large = self.limits_size and self._bytes(columns) > max(MAX_BYTES, MAX_RATIO * input_bytes)
        long_blocks = self.limits_work and columns.has_blocks and windows > MAX_BLOCK_WINDOWS
        long_sorting = self.limits_work and columns.sorts and windows > MAX_SORTED_WINDOWS
        return Excess(
            size=TOO_LARGE if large else "",
            blocks=f"{windows:,} windows; blocks read at most {MAX_BLOCK_WINDOWS:,} by default"
            if long_blocks
            else "",
            sorting=f"{windows:,} windows; at most {MAX_SORTED_WINDOWS:,} are sorted by default"
            if long_sorting
            else "",
        )

    def _bytes(self, columns: ColumnSet) -> int:
        """Return the bytes of columns on disk."""
        shapes: Mapping[Column, tuple[int, int]] = column_shapes(self.seen, self.width, columns.columns)
        return self.rows * columns.value_bytes * sum(tokens * width for tokens, width in shapes.values())
