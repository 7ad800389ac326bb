"""Layers and poolings: each layer under each pooling is a column of the cache.

The defaults of a kind of data are the first columns that fit a budget: `column_sets` lists the sets that data can have
from most to fewest columns, and `Budget.first_that_fits` takes one, so that more rows have fewer columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from reservoir.column import Column, check_layers, column_shapes, layer_names
from reservoir.errors import InputError
from reservoir.options import ExtractOptions
from reservoir.plan.basis import DataView, Kind, ModelView, is_given
from reservoir.pooling import MAX_TOKEN_FEATURES, check_poolings, find_pooling, widths_within
from reservoir.tasks.task import Task, Tokens, Vectors, holds_samples
from reservoir.tasks.texts import are_words

if TYPE_CHECKING:
    from reservoir.inputs.native import Reader

Names: TypeAlias = tuple[str, ...]
"""Names of layers, or of poolings."""

INPUT_NAME = "embed"
INPUT_LAYER: Names = (INPUT_NAME,)  # the layers that are read, if it is the input layer alone
MAX_KERNEL_ROWS = 3000  # training rows of wide columns, whose kernel matrix is rows x rows

VALUE_POOLINGS = ("quantiles9", "shares13", "max", "min")  # for windows of values
SYMBOL_POOLINGS = ("shares13", "max", "min")  # for windows of symbols
SEGMENTS = "segments8"  # keeps the position of values in the sequence
# For random kernels without blocks, 12 features of each. On 24 sets of series (the publisher's split and 2 resamples),
# above3 and sustained4 added .016 to the accuracy of compete8. places3 added .002 where leave-one-out chose to read it.
KERNEL_VALUE_POOLINGS = ("compete8", "above3", "sustained4")
KERNEL_POOLINGS = (*KERNEL_VALUE_POOLINGS, "places3")
# For pictures read by patches. Of 1,500 training rows, excess2 has 97.7% of 1,500 validation rows of MNIST and 61.1% of
# CIFAR-10, mirrored3 has 94.7% and 66.9%: digits are not symmetric, photographs are.
PICTURE_POOLINGS = ("excess2", "mirrored3")

# Poolings for more rows than the default poolings of a kind can have, from most to fewest columns. Those without shares
# are stored as float16. Series and symbols lose their blocks before they get poolings without segments, see
# `INPUT_POOLINGS`.
FEWER_POOLINGS: Mapping[Kind, Sequence[Names]] = {
    "series": (
        ("quantiles9", "shares7", "max", "min", "segments4"),
        ("mean", "quantiles9", "max", "min", "segments8"),
        ("mean", "quantiles5", "max", "min", "segments4"),
        ("mean", "quantiles3", "max", "min", "segments2"),
        ("mean", "quantiles3", "max"),
        ("mean", "max"),
        ("mean",),
    ),
    "symbols": (
        ("mean", "max", "min", "segments8", "tokens"),
        ("shares13", "max", "min", "segments8"),
        ("shares7", "max", "min", "segments4"),
        ("mean", "max", "min", "segments4"),
        ("mean", "max", "segments2"),
        ("mean", "max"),
        ("mean",),
    ),
    "tokens": (("last", "mean", "segments8"), ("last", "mean"), ("mean",)),
    "pictures": (("last", "mean"), ("mean",)),
    "vectors": (("last", "mean"), ("mean",)),
}
# For the input layer alone. The kernels sum to zero, so the means of whole rows show little. On a million rows of 32
# values (series.py --waveforms) the last two tell waveforms apart as well as the default on 10,000 rows does.
INPUT_POOLINGS: Sequence[Names] = (
    ("std", "max", "min", "segments4"),
    ("quantiles5", "max", "min"),
    ("quantiles3", "max", "min"),
    ("std", "max", "min"),
    ("std", "max"),
)

# For random kernels of more rows, from most to fewest columns. With 256 kernels on 40,000 generated chirps and waves
# (benchmarks/series.py), the default had 99.3 and 74.8%, these 97.9 and 75.6, 98.2 and 74.7, 98.2 and 73.3, 98.3 and
# 72.8%; compete8 and above3 had 95.5 and 75.3%, and compete8 alone 94.3 and 73.1%.
FEWER_KERNEL_POOLINGS: Sequence[Names] = (
    ("compete8", "above3", "std", "max"),
    ("compete8", "std", "max", "min"),
    ("std", "max", "min"),
    ("std", "max"),
)

# Default columns may take either of these, whichever is more: bytes, or times the bytes of the input.
MAX_BYTES = 2e8
MAX_RATIO = 4
# The limit of random kernels: with fewer features, more rows would not be read more accurately than few.
MAX_KERNEL_BYTES = 1e9
TOO_LARGE = "all columns would take more than {:,.0f} MB and 4 times the input"
# The work of default columns is limited by the windows of all rows together. Processor seconds of one core for 2**21
# windows of 32 values: block of mini 16, input layer with its largest values 2, with quantiles and shares also 4.
MAX_BLOCK_WINDOWS = 2**21  # more windows pass through the input layer alone
MAX_SORTED_WINDOWS = 2**24  # more windows are not sorted for quantiles and shares


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of a plan."""

    layers: Names  # each of them under each of the poolings is a column
    poolings: Names
    shapes: Mapping[Column, tuple[int, int]]  # tokens and width of a row of each column
    note_on_fewer_columns: str | None  # None if fewer rows would have the same columns
    reasons: Mapping[str, str]  # of each option, unless the user gives it


def choose_columns(data: DataView, options: ExtractOptions, view: ModelView) -> ColumnChoice:
    """Return the layers and poolings that are stored for some data, as the model sees them in ``view``."""
    task, kind = data.task, data.kind
    width, depth = view.width, view.depth
    default_layers_text, why_layers = default_layers(kind, depth, native=view.native)
    default_pool, why_pool = _default_poolings(task, kind, view)
    reasons = {"layers": why_layers, "pool": why_pool}
    # Names that the user gives win over the defaults.
    layers = split_names(default_layers_text if options.layers is None else options.layers)
    layers = layer_names(depth) if layers == ("all",) else layers
    poolings = split_names(default_pool if options.pool is None else options.pool)
    _check_columns(task, view.reader, layers, poolings)
    check_layers(layers, view.family.name, depth)
    layers_in_order = tuple(layer for layer in layer_names(depth) if layer in layers)
    columns = ColumnSet(layers_in_order, poolings)
    note_on_fewer_columns = None
    # A named task keeps the columns of the paper. Other tasks take the first columns that fit the budget.
    if kind != "named task":
        columns, reasons_of_changes, note_on_fewer_columns = _fit_budget(columns, data, options, view)
        reasons |= reasons_of_changes
    shapes = column_shapes(view.seen_task, width, columns.columns)
    return ColumnChoice(columns.layers, columns.poolings, shapes, note_on_fewer_columns, reasons)


def _fit_budget(
    default: ColumnSet, data: DataView, options: ExtractOptions, view: ModelView
) -> tuple[ColumnSet, dict[str, str], str | None]:
    """Return the first columns within the budget, the reason for each changed option, and a note, None if none changed.

    The changed options are those in which the columns differ from the ``default``.
    """
    free_layers, free_poolings = not is_given(options, "layers"), not is_given(options, "pool")
    # Series and symbols are read in windows, which usually overlap and hold each value several times, so the work is
    # limited, too. Poolings that the user named are stored, whatever their size.
    reads_windows = data.kind in ("series", "symbols") and not view.native
    budget = Budget(
        task=data.task,
        seen_task=view.seen_task,
        width=view.width,
        rows=data.all_rows,
        least_bytes=MAX_KERNEL_BYTES if default.poolings == KERNEL_POOLINGS else MAX_BYTES,
        limits_size=free_poolings,
        limits_work=reads_windows,
    )
    # The first candidate has all default columns.
    candidates = column_sets(
        data.kind,
        default,
        native=view.native,
        free_layers=free_layers,
        free_poolings=free_poolings,
        allows_tokens="tokens" in default.poolings and data.train_rows <= MAX_KERNEL_ROWS,
    )
    columns, reasons_of_changes = budget.first_that_fits(candidates)
    note = budget.note(default) if reasons_of_changes else None
    return columns, reasons_of_changes, note


def split_names(value: str | Sequence[str]) -> Names:
    """Return the names of a comma-separated list, or of a sequence, without duplicates and empty names."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def default_layers(kind: Kind, depth: int, *, native: bool = False) -> tuple[str, str]:
    """Return the default layers of a backbone with ``depth`` blocks, as `--layers` takes them, and the reason."""
    if not depth:
        return "embed", "the backbone has no blocks"
    if native or kind in ("named task", "pictures", "vectors"):
        return "all", "any layer may be best"
    if kind == "forecasts":
        return "block01", "the last step of its first block has seen the whole past"
    layers = "embed,block01,block02" if kind == "tokens" else "embed,block01"
    return layers, f"deeper layers cost more than they add for {kind}"


def _default_poolings(task: Task, kind: Kind, view: ModelView) -> tuple[str, str]:
    """Return the default poolings, as `--pool` takes them, and the reason."""
    if kind == "labels of every token":
        return _step_poolings(task, has_blocks=view.depth > 0)
    if view.reader:
        return _native_poolings(task, view.reader)
    if kind == "forecasts":
        return "last", "the newest step has seen all steps before it"
    if kind in ("series", "pictures") and not view.depth:
        return _poolings_without_blocks(kind)
    if kind == "named task" or task.readout_tokens > 1:
        return "last,mean", "the last token, as in the paper, and the mean of all"
    poolings_of_windows = {"series": VALUE_POOLINGS, "symbols": SYMBOL_POOLINGS}
    poolings = [*poolings_of_windows.get(kind, ("last", "mean")), SEGMENTS]
    # All tokens of a short sequence of symbols are few enough features.
    if isinstance(task.form, Tokens) and task.max_tokens * view.width <= MAX_TOKEN_FEATURES:
        poolings.append("tokens")
    what = "values" if kind == "series" else kind
    return ",".join(poolings), f"these show which {what} occur, and where"


def _step_poolings(task: Task, *, has_blocks: bool) -> tuple[str, str]:
    """Return the default poolings if every token has a label, and the reason."""
    if has_blocks:
        return "all", "every token has a label"
    around = widths_within(task.max_tokens)  # of windows around each token
    return f"all,around{around}", "a kernel sees few of the values on which the label of a token depends"


def _poolings_without_blocks(kind: Kind) -> tuple[str, str]:
    """Return the default poolings of random kernels or of patches of pictures, and the reason."""
    if kind == "pictures":
        return ",".join(PICTURE_POOLINGS), "these show how strongly patches occur, and where"
    why = "these show which kernels respond most, how often, for how long, and where"
    return ",".join(KERNEL_POOLINGS), why


def _native_poolings(task: Task, reader: Reader) -> tuple[str, str]:
    """Return the default poolings of a model that reads the task natively, and the reason."""
    if holds_samples(task):
        return "mean,std", "sounds"
    if task.parameters.get("chat"):
        return "last-prompt,last,mean", "the model's state before and after the answer, and the whole chat"
    poolings, why = ("cls,mean", "a class token") if reader.has_cls else ("last,mean", "no class token")
    if task.parameters.get("span"):
        return f"span,{poolings}", f"a span is marked in each text, and {why}"
    if task.alphabet and not are_words(task.alphabet) and any(reader.special):
        # The usual embedding of a protein is the mean over its residues, without special tokens.
        return f"{poolings},words", f"{why}; words is the mean over letters alone"
    return poolings, why


def _check_columns(
    task: Task, reader: Reader | None, layers: Sequence[str], poolings: Sequence[str]
) -> None:
    """Refuse unknown poolings, those that do not fit the task or the model, and a choice without columns."""
    check_poolings(poolings)
    each_token_has_a_label = task.labels_each_token or task.labels_text_tokens
    if each_token_has_a_label and not all(find_pooling(name).per_token for name in poolings):
        problem = "--pool: every token has its own label"
        raise InputError(problem, "pass --pool all or around4, or leave --pool out")
    has_class_token = reader is not None and reader.has_cls
    poolings_of_class_token = [name for name in poolings if find_pooling(name).needs_class_token]
    if poolings_of_class_token and not has_class_token:
        raise InputError(
            f"--pool {poolings_of_class_token[0]}: the sequences have no class token",
            "take first, last or mean",
        )
    for name in poolings:
        if obstacle := _mask_obstacle(reader, find_pooling(name).mask):
            raise InputError(f"--pool {name}: {obstacle}")
    if not layers or not poolings:
        raise InputError("no columns: name a layer and a pooling")


def _mask_obstacle(reader: Reader | None, mask: str) -> str:
    """Return why a model's reader cannot make the mask of this name, with what to do; empty if it can.

    ``mask`` is empty for a pooling that reads no mask.
    """
    needs_no_places = mask in ("", "words")  # of tokens in the text
    if needs_no_places:
        return ""
    from reservoir.inputs.native import TextReader  # imports torch, which fit does not need

    if not isinstance(reader, TextReader):
        return "only models that read texts by their own tokenizer have this pooling; take last or mean"
    return reader.mask_obstacle(mask)


def column_sets(
    kind: Kind,
    default: ColumnSet,
    *,
    native: bool,
    free_layers: bool,
    free_poolings: bool,
    allows_tokens: bool,
) -> list[ColumnSet]:
    """Return the default columns and those for more rows, from most to fewest.

    ``free_layers`` and ``free_poolings`` say whether layers and poolings may be changed, because the user did not give
    them. ``allows_tokens`` allows the pooling ``tokens`` in the columns for more rows. ``native`` says whether the
    model reads the data by its own input.
    """
    # A random input layer reads series and symbols in windows, and is useful without any block of the model.
    reads_windows = kind in ("series", "symbols") and not native
    # With the user's poolings, only the blocks can be left out.
    if not free_poolings:
        without_blocks = [ColumnSet(INPUT_LAYER, default.poolings)] if free_layers and reads_windows else []
        return [default, *without_blocks]
    # Patches of pictures and random kernels have poolings of their own.
    if default.poolings == PICTURE_POOLINGS:
        return [default, *(ColumnSet(default.layers, (name,)) for name in PICTURE_POOLINGS)]
    if default.poolings == KERNEL_POOLINGS:
        return [default, *(ColumnSet(default.layers, names) for names in FEWER_KERNEL_POOLINGS)]
    # The candidates for the poolings of the default layers, from most to fewest columns.
    fewer = () if native else _fewer_poolings(kind, default.poolings)
    candidates = [names for names in (default.poolings, *fewer) if allows_tokens or "tokens" not in names]
    # For windows, the last sets are those of the input layer alone. They come before poolings without segments,
    # which lose where in a sequence a value occurs.
    ends_with_input = reads_windows and (free_layers or default.layers == INPUT_LAYER)
    if ends_with_input:
        candidates = [names for names in candidates if by_segment(names)]
    sets = [default]
    for names in candidates:
        of_poolings = ColumnSet(default.layers, names)
        sets.append(of_poolings)
        # Layers are left out in two places: after poolings with ``tokens``, whose column is the widest, and after the
        # last poolings, unless the input layer alone follows.
        is_last = names == candidates[-1] and not ends_with_input
        if free_layers and ("tokens" in names or is_last):
            sets += _with_fewer_layers(of_poolings)
    # The input layer alone has the same poolings, and then its own with ever fewer columns.
    if ends_with_input:
        without_tokens = [names for names in candidates if "tokens" not in names]
        sets += [ColumnSet(INPUT_LAYER, names) for names in (*without_tokens, *INPUT_POOLINGS)]
    return sets


def _fewer_poolings(kind: Kind, default: Names) -> Sequence[Names]:
    """Return the poolings for more rows than the ``default`` poolings of a kind can have, from most to fewest."""
    if kind != "labels of every token":
        return FEWER_POOLINGS.get(kind, ())
    # The widest windows tell most, so none is left out.
    around = tuple(name for name in default if find_pooling(name).pattern == "aroundK")
    return [around] if around else []


def _with_fewer_layers(columns: ColumnSet) -> list[ColumnSet]:
    """Return the columns of every second layer, of every fourth, and so on to one layer."""
    sets: list[ColumnSet] = []
    layers = columns.layers
    while len(layers) > 1:
        # Labels of every token depend on the neighbouring tokens, which the first layers show best, so the first one
        # stays. For other labels, the last one stays.
        keeps_first = columns.poolings == ("all",)
        layers = layers[::2] if keeps_first else layers[::-2][::-1]
        sets.append(replace(columns, layers=layers))
    return sets


def by_segment(poolings: Sequence[str]) -> bool:
    """Return whether one of the poolings keeps where in a sequence a value occurs."""
    return any(find_pooling(name).by_segment for name in poolings)


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
        return self.layers != INPUT_LAYER

    @property
    def sorts(self) -> bool:
        """Whether a pooling sorts the values of each channel."""
        return any(find_pooling(name).sorts for name in self.poolings)

    @property
    def value_bytes(self) -> int:
        """Bytes of a stored value: one pooling that needs float32 decides for all."""
        return 4 if any(find_pooling(name).needs_float32 for name in self.poolings) else 2


@dataclass(frozen=True)
class BudgetExcess:
    """Which limits some columns exceed: a message for each limit, which is empty if they are within it."""

    size: str = ""  # bytes on disk
    blocks: str = ""  # windows that pass through blocks of the model
    sorting: str = ""  # windows that are sorted by a pooling

    @property
    def any(self) -> bool:
        """Whether a limit is exceeded."""
        return bool(self.size or self.blocks or self.sorting)


@dataclass(frozen=True)
class Budget:
    """The limits of default columns for a number of rows in all splits."""

    task: Task  # describes sequences as stored
    seen_task: Task  # the task as the model sees it, with windows as tokens
    width: int  # of hidden states
    rows: int  # in all splits
    least_bytes: float  # bytes that are allowed, however small the input is
    limits_size: bool  # whether the bytes on disk are limited
    limits_work: bool  # whether the windows of blocks and of sorting are limited

    def first_that_fits(self, sets: Sequence[ColumnSet]) -> tuple[ColumnSet, dict[str, str]]:
        """Return the first columns within the budget, else the last, and the reason for each changed option.

        The first of the ``sets`` has the default columns. An option is changed if the returned columns differ from them
        in it: ``layers`` or ``pool``.
        """
        default = sets[0]
        chosen = next((columns for columns in sets if not self.excess(columns).any), sets[-1])
        # What is wrong with the default is the reason for each option that differs from it.
        excess = self.excess(default)
        reasons: dict[str, str] = {}
        if chosen.layers != default.layers:
            reasons["layers"] = excess.blocks or excess.size
        if chosen.poolings != default.poolings:
            reasons["pool"] = "; ".join(filter(None, [excess.sorting, excess.size]))
        return chosen, reasons

    def note(self, default: ColumnSet) -> str:
        """Return a note that names the columns that fewer rows would have."""
        options = f"--layers {','.join(default.layers)} --pool {','.join(default.poolings)}"
        takes = f"{options} takes {self._bytes(default) / 1e9:.1f} GB"
        return f"with {self.rows:,} rows, fewer columns are stored by default; {takes}"

    def excess(self, columns: ColumnSet) -> BudgetExcess:
        """Return which limits columns exceed."""
        windows = self.rows * self.seen_task.max_tokens
        size = blocks = sorting = ""
        if self.limits_size and self._bytes(columns) > self._most_bytes:
            size = TOO_LARGE.format(self.least_bytes / 1e6)
        if self.limits_work and columns.has_blocks and windows > MAX_BLOCK_WINDOWS:
            blocks = f"{windows:,} windows; blocks read at most {MAX_BLOCK_WINDOWS:,} by default"
        if self.limits_work and columns.sorts and windows > MAX_SORTED_WINDOWS:
            sorting = f"{windows:,} windows; at most {MAX_SORTED_WINDOWS:,} are sorted by default"
        return BudgetExcess(size=size, blocks=blocks, sorting=sorting)

    @property
    def _most_bytes(self) -> float:
        """The limit of the bytes on disk; the input is taken as float32."""
        channels = self.task.form.dim if isinstance(self.task.form, Vectors) else 1
        input_bytes = 4 * self.rows * self.task.max_tokens * channels
        return max(self.least_bytes, MAX_RATIO * input_bytes)

    def _bytes(self, columns: ColumnSet) -> int:
        """Return the bytes of columns on disk."""
        shapes = column_shapes(self.seen_task, self.width, columns.columns)
        return self.rows * columns.value_bytes * sum(tokens * width for tokens, width in shapes.values())
