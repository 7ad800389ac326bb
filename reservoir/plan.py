"""Decide every default once: turn a task and the given options into a frozen plan, each value with its reason.

The defaults were tuned on six sets of series (``benchmarks/series.py``) and on generated symbols
(``benchmarks/symbols.py``). Named tasks follow the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from reservoir import devices
from reservoir.backbone_names import DEFAULT_BACKBONE, full_name
from reservoir.backbones import check_layers, choose_init, find, find_shape, layer_names
from reservoir.backbones.names import SHIPPED
from reservoir.column import Column, Columns, joined_name
from reservoir.errors import InputError
from reservoir.features import column_shapes
from reservoir.inputs.native import Reader, TextReader, has_tokenizer, open_reader
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, FitOptions, ModelOptions, ReservoirOptions
from reservoir.pooling import MAX_TOKEN_FEATURES, check_poolings, find_pooling
from reservoir.reservoir import MAX_SYMBOLS, Reservoir, choose_compute, choose_device
from reservoir.tasks import TASKS
from reservoir.tasks.sound import holds_samples
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.variants import variant_of
from reservoir.tasks.words import UNKNOWN, are_words

Names = tuple[str, ...]
Kind = Literal["named task", "labels of every token", "series", "symbols", "tokens", "vectors"]

GIVEN, PLAIN = "given", "default"
WINDOW_OPTIONS = ("input", "patch", "stride", "dilations", "pad", "normalise", "gain")

SERIES_KERNEL = 9  # values of a window of a series, as in MiniRocket
SYMBOL_KERNEL = 5  # symbols of each window: the length of a motif
KERNEL_GAIN = 6.0  # makes the learned positions small compared with the values
MAX_WINDOWS = 1024  # windows of a row: the positions of GPT-2 and mini
# The work of default columns is limited by the windows of all rows together. Processor seconds of one core for 2**21
# windows of 32 values: block of mini 16, input layer with its largest values 2, with quantiles and shares also 4.
INPUT_LAYER = ("embed",)
MAX_BLOCK_WINDOWS = 2**21  # more windows pass through the input layer alone
MAX_SORTED_WINDOWS = 2**24  # more windows are not sorted for quantiles and shares

VALUE_POOLINGS = ("quantiles9", "shares13", "max", "min")  # for windows of values
SYMBOL_POOLINGS = ("shares13", "max", "min")  # for windows of symbols
SEGMENTS = "segments8"  # keeps the position of values in the sequence

# Poolings for more rows, from most to fewest columns: the first that fits is the default. With
# ``tokens``, and with the last poolings, every second layer is left out until the columns fit.
# Columns without shares are stored as float16. Windows of series and symbols lose their blocks before
# the last poolings, see `INPUT_POOLINGS`.
FEWER_POOLINGS: Mapping[str, Sequence[str]] = {
    "series": (
        "quantiles9,shares7,max,min,segments4",
        "mean,quantiles9,max,min,segments8",
        "mean,quantiles5,max,min,segments4",
        "mean,quantiles3,max,min,segments2",
        "mean,quantiles3,max",
        "mean,max",
        "mean",
    ),
    "symbols": (
        "mean,max,min,segments8,tokens",
        "shares13,max,min,segments8",
        "shares7,max,min,segments4",
        "mean,max,min,segments4",
        "mean,max,segments2",
        "mean,max",
        "mean",
    ),
    "tokens": ("last,mean,segments8", "last,mean", "mean"),
    "vectors": ("last,mean", "mean"),
}
# For the input layer alone. The kernels sum to zero, so the means of whole rows show little. On a million rows of 32
# values (benchmarks/many_rows.py) the last two tell waveforms apart as well as the default on 10,000 rows does.
INPUT_POOLINGS = (
    "std,max,min,segments4",
    "quantiles5,max,min",
    "quantiles3,max,min",
    "std,max,min",
    "std,max",
)
FEWER = "all columns would take more than 200 MB and 4 times the input"
MAX_BYTES, MAX_RATIO = 2e8, 4  # limit of default columns: the larger of bytes and times the input

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}  # keep the device busy, and fit its caches
# A killed process loses at most a block. With this many rows, padding is under 5% of the tokens of a batch.
BLOCK_ROWS = {"cpu": 256, "cuda": 4096}
IMAGE_BLOCK_ROWS = 64  # fewer, because the file of a photograph takes megabytes
BLOCK_BYTES = 2**28  # as float32; the writer's queue holds several blocks

AUTO_FOLDS = 5
MANY_ROWS, FEWER_FOLDS = 2000, 3  # rows of train and valid for which 3 folds are enough
MIN_VALID_ROWS = 1000  # two standard errors of an accuracy are then 3 points or less

MAX_JOINED_WIDTH = 2048  # width of concatenated columns; the time of a sweep grows with its cube
MAX_ALL_WIDTH = 8192  # width of all columns concatenated, for few rows
MAX_TARGETS = 1000  # most labels of a row for which one readout is fitted by default
MAX_KERNEL_ROWS = 3000  # training rows of wide columns, whose kernel matrix is rows x rows


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every option of an extraction, and of the fit that follows, with its value and the reason for it."""

    task: Task  # describes sequences as stored
    reservoir: Reservoir  # with "auto" dilations resolved
    native_obstacle: str  # why a named model of this kind of data does not read it natively; else empty
    layers: tuple[str, ...]  # each layer under each pooling is a column of the cache
    poolings: tuple[str, ...]
    shapes: Mapping[Column, tuple[int, int]]  # tokens and width of a row of each column
    device: str
    compute: str  # precision of matrix products
    store: str  # precision on disk
    block_rows: int  # rows of a shard of a new entry
    batch_rows: int  # rows per batch of the longest sequences
    folds: int  # folds of cross-validation; 0 if the validation split chooses the readout
    repeats: int
    candidates: tuple[Columns, ...]  # one is chosen; columns of a candidate are side by side
    more: str  # a note if fewer rows would have more columns; else empty
    reasons: Mapping[str, str]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, layer by layer."""
        return tuple(self.shapes)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the value of each option and the reason for it, as JSON values."""
        select = f"cv{self.folds}" if self.folds else "valid"
        select += f", repeated {self.repeats} times" if self.repeats > 1 else ""
        values = self.reservoir.to_dict() | {
            "layers": ",".join(self.layers),
            "pool": ",".join(self.poolings),
        }
        values |= {
            name: getattr(self, name) for name in ("device", "compute", "store", "block_rows", "batch_rows")
        }
        values |= {"select": select, "columns": [*map(joined_name, self.candidates)]}
        return {option: {"value": value, "why": self.reasons[option]} for option, value in values.items()}

    def table(self) -> list[tuple[str, str, str]]:
        """Return a line for each option: its name, its value, and the reason for it."""
        shown = {name: entry["value"] for name, entry in self.to_dict().items()}
        shown["columns"] = f"{len(self.candidates)}, which --json lists"
        return [
            (name, "-" if value is None else str(value), self.reasons[name])
            for name, value in shown.items()
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

    def precision_note(self, compute: str) -> str:
        """Return in which precision the model computes, why, and how features compare with published activations."""
        how = f"{self.task.name}: computed in {compute} ({self.reasons['compute']})"
        native = self.reservoir.input == "native"
        if compute == "bfloat16":
            exact = "published activations" if native else "those in float32"
            differ = f"features differ from {exact} by about 2% of their standard deviation"
            return f"{how}: {differ}; --compute float32 avoids this"
        return how + (
            f": features equal published activations in float32, up to rounding to {self.store}"
            if native
            else ""
        )

    @property
    def note(self) -> str:
        """A message if default poolings are few, or if default windows skip a part of each row."""
        windows, note = self.reservoir.windows(self.task), self.more
        if not note and self.reasons["stride"] != GIVEN and windows.read_share < 1:
            cut = f"windows of {windows.patch} with stride {windows.stride}"
            note = f"{cut} cover {windows.read_share:.0%} of each row; reduce --stride or raise --patch to cover more"
        return f"{self.task.name}: {note}" if note else ""


def resolve(
    task: Task, options: ExtractOptions, rows: Mapping[str, int], longest: int | None = None
) -> Plan:
    """Return the plan of a task with ``rows`` in each split and a ``longest`` training row; refuse misfits."""
    reasons: dict[str, str] = {}
    # A limited run has the plan of its own rows.
    rows = {split: min(number, options.limit or number) for split, number in rows.items()}
    defaults = {item.name: item.default for item in fields(options)}

    def decide(option: str, value: Any, why: str) -> Any:
        """Return the value given for an option, or its default if that is None; record the reason."""
        given = getattr(options, option, None)
        reasons[option] = GIVEN if given != defaults.get(option) else why
        return value if given is None or defaults[option] is not None else given

    kind, train, valid = kind_of(task), rows.get("train", 0), rows.get("valid", 0)
    reservoir, why, obstacle = _resolve_reservoir(task, options, longest or task.max_tokens)
    for option, reason in why.items():
        decide(option, None, reason)
    family, shape = find_shape(reservoir.backbone, reservoir.depth)
    seen, native = reservoir.windowed(task), reservoir.input == "native"
    reader = open_reader(seen, reservoir.backbone, reservoir.init) if native else None
    seen = replace(seen, form=reader.form, max_tokens=reader.max_tokens) if reader else seen
    layers = split_names(decide("layers", *default_layers(kind, native=native)))
    layers = layer_names(shape.depth) if layers == ("all",) else layers
    poolings = split_names(decide("pool", *_default_poolings(task, kind, shape.width, reader)))
    check_layers(layers, family, shape.depth)
    _check_columns(task, reader, layers, poolings)
    layers, more = tuple(layer for layer in layer_names(shape.depth) if layer in layers), ""
    if kind != "named task":
        tokens = "tokens" in poolings and train <= MAX_KERNEL_ROWS
        choices = _column_choices(kind, _Columns(layers, poolings), reasons, native=native, tokens=tokens)
        limits = {"size": reasons["pool"] != GIVEN, "work": kind in ("series", "symbols") and not native}
        budget = _Budget(task, seen, shape.width, sum(rows.values()), **limits)
        layers, poolings, changed = budget.first_that_fits(choices)
        reasons |= changed
        more = budget.note(choices[0]) if changed else ""
    device = choose_device(options.device)
    compute = choose_compute(options.compute, device) if family.allows_bfloat16 else "float32"
    # Many shares are 0 in nearly all rows. In float16 the offset of a block adds rounding errors to
    # these zeros, and standardisation scales the errors up to variance 1 if all training rows are 0.
    exact = any(find_pooling(name).needs_float32 for name in poolings)
    precise = not native and kind in ("series", "symbols") and exact
    store = "float32" if precise else "float16"
    stored = "shares near 0 need float32" if precise else "half the size of float32"
    shapes = column_shapes(seen, shape.width, _Columns(layers, poolings).columns)
    place = devices.kind(device)
    pieces = -(-task.max_tokens // seen.max_tokens) if reservoir.long == "windows" else 1
    block_rows, batch_rows = rows_at_a_time(seen, reader, shapes, place, pieces)
    batch_rows = decide("batch_rows", batch_rows, f"about {BATCH_TOKENS[place]:,} tokens, or a block")
    folds, repeats = default_folds(train, valid)
    widths = {
        c: tokens * width for c, (tokens, width) in shapes.items() if not task.readout_tokens == tokens > 1
    }
    columns = [*shapes]
    candidates = readout_candidates(task, columns, widths, train, cross_validated=folds > 0, native=native)
    known = _known_columns(task, columns) == candidates
    tried = f"known to suit {kind}" if known else "each alone, and each layer as a whole"
    return Plan(
        task=task,
        reservoir=reservoir,
        native_obstacle=obstacle,
        layers=layers,
        poolings=poolings,
        shapes=shapes,
        device=decide("device", str(device), "a GPU is used if there is one"),
        compute=decide("compute", compute, "the faster one here; recurrent states need float32"),
        store=decide("store", store, stored),
        block_rows=decide("block_rows", block_rows, "a killed run loses little"),
        batch_rows=min(block_rows, batch_rows),
        folds=decide("select", folds, f"{valid:,} validation rows; {MIN_VALID_ROWS:,} are enough"),
        repeats=repeats,
        candidates=decide("columns", candidates, tried),
        more=more,
        reasons=reasons,
    )


def kind_of(task: Task) -> Kind:
    """Return the kind of data of a task; defaults depend on it."""
    if task.each:
        return "labels of every token"
    if task.name in TASKS:
        return "named task"
    whole = task.readout_tokens == 1
    if isinstance(task.form, Tokens):
        short = task.form.vocabulary <= MAX_SYMBOLS and task.max_tokens >= SYMBOL_KERNEL
        return "symbols" if whole and short else "tokens"
    return "series" if whole and not task.pictures and task.max_tokens >= SERIES_KERNEL else "vectors"


def is_native(task: Task, reservoir: Reservoir) -> bool:
    """Return whether a model was pretrained on the task's kind of data, and can read it by its own input."""
    return suits(task, reservoir) and not native_obstacle(task, reservoir)


def suits(task: Task, reservoir: Reservoir) -> bool:
    """Return whether a model was pretrained on the task's kind of data: text or letters, images, or sounds."""
    media = "pixels" if task.pictures else "sounds" if holds_samples(task) else ""
    if reservoir.init != "pretrained" or not (task.alphabet or media):
        return False
    reads = find(reservoir.backbone)[0].reads
    return reads == media if media else reads in ("letters", "text")


def native_obstacle(task: Task, reservoir: Reservoir) -> str:
    """Return why a model that suits the task cannot read it natively; empty if it can."""
    if not reservoir.plain:
        return "the options of windows, such as --patch, do not fit its own input"
    if task.alphabet and not has_tokenizer(reservoir.backbone):
        return "its folder has no tokenizer, such as a tokenizer.json or a vocab.txt"
    words = are_words(task.alphabet) and find(reservoir.backbone)[0].reads == "text"
    if words or not task.alphabet:  # the processor of images or sounds is checked when it is opened
        return ""
    if reservoir.backbone in SHIPPED:
        return "random kernels suit letters better than a model of words"
    try:
        reader = open_reader(task, reservoir.backbone, reservoir.init)
    except InputError as error:  # with a random input layer the model needs no tokenizer
        return str(error)
    letters = task.alphabet.removeprefix(UNKNOWN).replace(" ", "")
    return reader.obstacle(letters) if isinstance(reader, TextReader) else ""


def split_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of a comma-separated list, without duplicates."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def default_folds(train: int, valid: int) -> tuple[int, int]:
    """Return the number of folds that choose a readout, 0 for the validation split, and of repeats."""
    if valid >= MIN_VALID_ROWS:
        return 0, 1
    # A smaller validation split cannot tell readouts apart. The time of a fold grows with the cube of its rows.
    return (FEWER_FOLDS if train + valid >= MANY_ROWS else AUTO_FOLDS), repeats_of(train)


def choose_folds(
    options: FitOptions, rows: Mapping[str, int], groups: int | None = None
) -> tuple[int, int]:
    """Return the folds, 0 for the validation split, and the repeats of a fit; ``groups`` is the number of groups."""
    select = options.select
    if select == "valid" or (select == "auto" and options.readout != "ridge"):
        return 0, 1
    if select == "auto":
        folds, repeats = default_folds(rows["train"], rows["valid"])
        return min(folds, groups or rows["train"] + rows["valid"]), repeats
    number = select.removeprefix("cv")
    if not select.startswith("cv") or not number.isdigit() or int(number) < 2:
        raise InputError(f"--select {select}: choose auto, valid, or cvK with 2 or more folds, such as cv5")
    return int(number), 1


def repeats_of(rows: int) -> int:
    """Return how often cross-validation is repeated with this number of training rows."""
    return 5 if rows < 200 else 3 if rows < 600 else 1


def readout_candidates(
    task: Task,
    available: Sequence[Column],
    widths: Mapping[Column, int],
    rows: int,
    *,
    cross_validated: bool,
    native: bool = False,
) -> tuple[Columns, ...]:
    """Return the columns, alone or side by side, among which a readout is chosen (see `default_columns`).

    ``widths`` holds the widths of columns with one sample per row; ``rows`` counts training rows.
    ``native`` is True for native input and for several entries.
    """
    if not native and rows <= MAX_KERNEL_ROWS and (known := _known_columns(task, available)):
        return known
    # With many rows, a readout needs moments, whose size limits the width; it cannot fit the labels
    # of all tokens.
    many_targets = task.readout_tokens * task.outputs > MAX_TARGETS
    wide = 0 if many_targets else MAX_ALL_WIDTH if rows > MAX_KERNEL_ROWS else math.inf
    alone = single_columns(available)
    alone = [column for column in alone if widths.get(column, 0) <= wide] or alone
    singles = [(column,) for column in alone]
    layers: dict[str, list[Column]] = {}
    for column in widths:
        if column in alone:
            layers.setdefault(column.place, []).append(column)
    joined = [
        tuple(of)
        for of in layers.values()
        if len(of) > 1 and sum(widths[c] for c in of) <= MAX_JOINED_WIDTH
    ]
    whole = [column for of in layers.values() for column in of]
    few = cross_validated and rows <= MAX_KERNEL_ROWS
    if few and len(layers) > 1 and sum(widths[column] for column in whole) <= MAX_ALL_WIDTH:
        # All columns together do best on most small data sets, and need no choice of a layer. If a row has several
        # readout tokens, columns with a sample per token are none of them, and often better.
        together = tuple(whole)
        first, last = ([together], []) if task.readout_tokens == 1 else ([], [together])
        return tuple(dict.fromkeys([*first, *singles, *joined, *last]))
    return tuple(dict.fromkeys([*singles, *joined]))


def default_columns(candidates: Sequence[Columns]) -> Columns | None:
    """Return the candidate that is chosen unless another is clearly better; None if no default is known.

    It is the first one, if it concatenates columns: `readout_candidates` puts columns that are known
    to do well together first.
    """
    return candidates[0] if len(candidates[0]) > 1 else None


def single_columns(available: Sequence[Column]) -> list[Column]:
    """Return the columns to try alone: wide columns of all tokens only if there are no others."""
    return [column for column in available if not _keeps_tokens(column)] or [*available]


def _keeps_tokens(column: Column) -> bool:
    return column.pooling == "all"


def _known_columns(task: Task, available: Sequence[Column]) -> tuple[Columns, ...]:
    """Return the columns known to suit the kind of a task's data; none if it is unknown."""
    kind, given = kind_of(task), {column.place for column in available}
    default = split_names(default_layers(kind)[0])
    layers = tuple(layer for layer in default if layer in given)
    # With many rows, only one layer of symbols, or the input layer of series, may have columns.
    if layers != default and not (given == {*INPUT_LAYER} if kind == "series" else given < {*default}):
        return ()
    most = {
        "series": (*VALUE_POOLINGS, SEGMENTS),
        "symbols": (*SYMBOL_POOLINGS, SEGMENTS),
        "labels of every token": ("all",),
    }
    fewer = [names for names in map(split_names, FEWER_POOLINGS.get(kind, ())) if _by_segment(names)]
    for poolings in (most[kind], *fewer) if kind in most else ():
        columns = [Column(layer, name) for layer in layers for name in poolings if name != "tokens"]
        values = [column for column in columns if not find_pooling(column.pooling).by_segment]
        whole = [*values, *(column for column in columns if column not in values)]
        if {*whole} <= {*available}:
            tokens = [(Column(layer, "tokens"),) for layer in layers] if kind == "symbols" else []
            tried = (tuple(values), tuple(whole), *tokens)
            return tuple(c for c in dict.fromkeys(tried) if {*c} <= {*available})
    return ()


def _resolve_reservoir(
    task: Task, options: ExtractOptions, longest: int
) -> tuple[Reservoir, dict[str, str], str]:
    """Return the model for a task, the reason for each option, and why a model of such data does not read it natively.

    Native input is the default if the model can read the data.
    """
    random_inits = variant_of(options.given).random_inits
    reservoir, why = resolve_model(options, random_inits=random_inits), PLAIN
    suited, obstacle = suits(task, reservoir), ""
    if suited and options.input is None:
        obstacle = native_obstacle(task, reservoir)
    elif suited and options.input != "native":
        obstacle = "--input was given"
    native = suited and options.input is None and not obstacle
    if reservoir.backbone in SHIPPED:  # the defaults for letters are found with it, so nothing is missed
        obstacle = ""
    windows = {"input": "native"} if native else default_windows(task)
    # Windows that suit one input layer may not suit another, which gets plain windows.
    if windows and options.input in (None, windows["input"]):
        reservoir = resolve_model(options, windows, random_inits=random_inits)
        why = "the model reads this kind of data" if native else f"found best for {kind_of(task)}"
    reasons = dict.fromkeys(Reservoir.__dataclass_fields__, PLAIN) | dict.fromkeys(WINDOW_OPTIONS, why)
    reasons["input"] += f"; not native, because {obstacle}" if obstacle else ""
    if reservoir.stride > 1 and why != PLAIN and not native:
        reasons["stride"] = (
            f"rows of up to {task.max_tokens:,} values become at most {MAX_WINDOWS:,} windows"
        )
    reasons |= {
        "backbone": "comes with this package" if options.init is None else "has the weights of --init",
        "init": "published" if reservoir.init == "pretrained" else "no published weights",
        "depth": "all blocks",
    }
    return reservoir.with_dilations(longest), reasons, obstacle


def resolve_model(
    options: ModelOptions, windows: Mapping[str, Any] | None = None, *, random_inits: Mapping[str, str] = {}
) -> Reservoir:
    """Return the options of a model, all resolved.

    ``windows`` are the default windows for the data, and ``random_inits`` those of a `Variant`.
    """
    backbone, init = options.backbone, options.init
    if init is not None and Path(init).is_dir():
        if backbone is not None:
            raise InputError(f"--init {init}: the folder holds a backbone", "leave out --backbone")
        backbone, init = str(Path(init).resolve()), "pretrained"
    name = full_name(backbone or DEFAULT_BACKBONE)
    if init is None or init.startswith("random"):
        init = choose_init(name, init, random_inits=random_inits)
    given = vars(as_group(options, ReservoirOptions))
    values = {**(windows or {}), **{key: value for key, value in given.items() if value is not None}}
    values |= {"backbone": name, "init": init, "stride": values.get("stride", values.get("patch", 1))}
    if values.get("input") == "kernels":
        values.setdefault("gain", KERNEL_GAIN)
    return Reservoir(**values)


def default_windows(task: Task) -> dict[str, Any]:
    """Return the default windows for a task; empty if each value or symbol is a token."""
    kind = kind_of(task)
    if task.each and not (isinstance(task.form, Tokens) and task.form.vocabulary > MAX_SYMBOLS):
        # Each token with a label is in the middle of its window.
        around = {"stride": 1, "pad": "same", "patch": SERIES_KERNEL}
        if isinstance(task.form, Tokens):  # an invertible map shows the neighbouring symbols
            return around | {"input": "orthogonal"}
        return around | {"input": "kernels", "dilations": "auto", "normalise": "both"}
    # Only long rows have a stride: many rows get fewer columns and layers, because skipped values cost accuracy.
    kernels = {"input": "kernels", "stride": -(-task.max_tokens // MAX_WINDOWS), "pad": "same"}
    if kind == "series":
        # The kernels read values on the scale of the channel, values on the scale of the row, and differences.
        return kernels | {"patch": SERIES_KERNEL, "dilations": "auto", "normalise": "differences"}
    return kernels | {"patch": SYMBOL_KERNEL} if kind == "symbols" else {}


def default_layers(kind: Kind, *, native: bool = False) -> tuple[str, str]:
    """Return the default layers, and the reason."""
    if native or kind in ("named task", "vectors"):
        return "all", "any layer may be best"
    layers = "embed,block01,block02" if kind == "tokens" else "embed,block01"
    return layers, f"deeper layers cost more than they add for {kind}"


def _default_poolings(task: Task, kind: Kind, width: int, reader: Reader | None) -> tuple[str, str]:
    """Return the default poolings at a hidden width, and the reason."""
    if kind == "labels of every token":
        return "all", "every token has a label"
    if reader:
        return _native_poolings(task, reader)
    if kind == "series":
        return ",".join([*VALUE_POOLINGS, SEGMENTS]), "these show which values occur, and where"
    if kind == "named task" or task.readout_tokens > 1:
        return "last,mean", "the last token, as in the paper, and the mean of all"
    aligned = isinstance(task.form, Tokens) and task.max_tokens * width <= MAX_TOKEN_FEATURES
    whole = SYMBOL_POOLINGS if kind == "symbols" else ("last", "mean")
    poolings = ",".join([*whole, SEGMENTS, *(["tokens"] if aligned else [])])
    return poolings, f"these show which {kind} occur, and where"


def _native_poolings(task: Task, reader: Reader) -> tuple[str, str]:
    """Return the default poolings of a model that reads the task natively, and the reason."""
    if holds_samples(task):
        return "mean,std", "sounds"
    poolings, why = ("cls,mean", "a class token") if reader.has_cls else ("last,mean", "no class token")
    if task.alphabet and not are_words(task.alphabet) and any(reader.special):
        # The usual embedding of a protein is the mean over its residues, without special tokens.
        return f"{poolings},words", f"{why}; words is the mean over letters alone"
    return poolings, why


@dataclass(frozen=True)
class _Columns:
    """A choice of columns: each of the layers under each of the poolings."""

    layers: Names
    poolings: Names

    @property
    def columns(self) -> list[Column]:
        return [Column(layer, pooling) for layer in self.layers for pooling in self.poolings]

    @property
    def has_blocks(self) -> bool:
        return self.layers != INPUT_LAYER

    @property
    def sorts(self) -> bool:
        """Whether a pooling sorts the values of each channel."""
        return any(find_pooling(name).sorts for name in self.poolings)


def _column_choices(
    kind: Kind, default: _Columns, reasons: Mapping[str, str], *, native: bool, tokens: bool
) -> list[_Columns]:
    """Return the default columns, and those for more rows, from most to fewest; ``tokens`` allows this pooling."""
    thin, layers = reasons["layers"] != GIVEN, default.layers
    kernels = kind in ("series", "symbols") and not native
    if reasons["pool"] == GIVEN:
        return [default, *([_Columns(INPUT_LAYER, default.poolings)] if thin and kernels else [])]
    fewer = [default.poolings, *map(split_names, () if native else FEWER_POOLINGS.get(kind, ()))]
    fewer = [names for names in fewer if tokens or "tokens" not in names]
    by_kernels = kernels and (thin or layers == INPUT_LAYER)
    if by_kernels:  # the poolings without segments are those of the input layer
        fewer = [names for names in fewer if _by_segment(names)]
    choices = [default]
    for names in fewer:
        of = layers
        choices.append(_Columns(of, names))
        while thin and len(of) > 1 and ("tokens" in names or (names == fewer[-1] and not by_kernels)):
            # Labels of every token depend on the neighbouring tokens, which the first layers show best.
            of = of[::2] if default.poolings == ("all",) else of[::-2][::-1]
            choices.append(_Columns(of, names))
    if by_kernels:
        alone = [names for names in fewer if "tokens" not in names]
        choices += [_Columns(INPUT_LAYER, names) for names in [*alone, *map(split_names, INPUT_POOLINGS)]]
    return choices


@dataclass(frozen=True)
class _Budget:
    """The limits of default columns: ``size`` limits their bytes, ``work`` their windows."""

    task: Task
    seen: Task  # with windows as tokens
    width: int
    rows: int
    size: bool
    work: bool

    def first_that_fits(self, choices: Sequence[_Columns]) -> tuple[Names, Names, dict[str, str]]:
        """Return layers and poolings of the first choice within the budget, else of the last, and why they changed."""
        chosen = next((choice for choice in choices if not self._exceeded(choice)), choices[-1])
        exceeded, changed = self._exceeded(choices[0]), dict[str, str]()
        if chosen.layers != choices[0].layers:
            changed["layers"] = exceeded.get("blocks") or exceeded["size"]
        if chosen.poolings != choices[0].poolings:
            changed["pool"] = "; ".join(exceeded[name] for name in ("sorting", "size") if name in exceeded)
        return chosen.layers, chosen.poolings, changed

    def note(self, default: _Columns) -> str:
        """Return a note that names the columns that fewer rows would have."""
        given = f"--layers {','.join(default.layers)} --pool {','.join(default.poolings)}"
        takes = f"{given} takes {self._bytes(default) / 1e9:.1f} GB"
        return f"with {self.rows:,} rows, fewer columns are stored by default; {takes}"

    def _exceeded(self, columns: _Columns) -> dict[str, str]:
        """Return what columns exceed, with a message for each."""
        exceeded, windows = dict[str, str](), self.rows * self.seen.max_tokens
        values = self.rows * self.task.max_tokens
        values *= self.task.form.dim if isinstance(self.task.form, Vectors) else 1
        if self.size and self._bytes(columns) > max(MAX_BYTES, MAX_RATIO * 4 * values):
            exceeded["size"] = FEWER
        if self.work and columns.has_blocks and windows > MAX_BLOCK_WINDOWS:
            exceeded["blocks"] = (
                f"{windows:,} windows; blocks read at most {MAX_BLOCK_WINDOWS:,} by default"
            )
        if self.work and columns.sorts and windows > MAX_SORTED_WINDOWS:
            exceeded["sorting"] = (
                f"{windows:,} windows; at most {MAX_SORTED_WINDOWS:,} are sorted by default"
            )
        return exceeded

    def _bytes(self, columns: _Columns) -> int:
        shapes = column_shapes(self.seen, self.width, columns.columns)
        values = sum(tokens * width for tokens, width in shapes.values())
        return (
            self.rows
            * values
            * (4 if any(find_pooling(name).needs_float32 for name in columns.poolings) else 2)
        )


def _by_segment(poolings: Sequence[str]) -> bool:
    """Return whether one of the poolings keeps where in a sequence a value occurs."""
    return any(find_pooling(name).by_segment for name in poolings)


def _check_columns(
    task: Task, reader: Reader | None, layers: Sequence[str], poolings: Sequence[str]
) -> None:
    """Refuse unknown poolings, and layers or poolings that do not fit the task or the model."""
    check_poolings(list(poolings))
    if task.each and poolings != ("all",):
        raise InputError("--pool: every token has its own label", "pass --pool all, or leave --pool out")
    needs_class_token = [name for name in poolings if find_pooling(name).needs_class_token]
    if needs_class_token and not (reader and reader.has_cls):
        raise InputError(
            f"--pool {needs_class_token[0]}: the sequences have no class token", "take first, last or mean"
        )
    if not layers or not poolings:
        raise InputError("no columns: name a layer and a pooling")


def rows_at_a_time(
    seen: Task, reader: Reader | None, sizes: Mapping[Column, tuple[int, int]], place: str, pieces: int
) -> tuple[int, int]:
    """Return the number of rows per block and per batch; a row has up to ``pieces`` pieces."""
    tokens = reader.row_tokens if reader else seen.max_tokens
    row_bytes = 4 * pieces * sum(kept * width for kept, width in sizes.values())
    if reader and isinstance(seen.form, Vectors):  # the input of a whole block is in memory
        row_bytes = max(row_bytes, 4 * tokens * seen.form.dim)
    most = IMAGE_BLOCK_ROWS if seen.pictures else BLOCK_ROWS[place]
    return max(1, min(most, BLOCK_BYTES // row_bytes)), max(1, BATCH_TOKENS[place] // tokens)
