"""What a fit tries: the columns among which a readout is chosen, alone or side by side, and the folds that choose."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reservoir.column import RAW, ROLLING, Column, Columns
from reservoir.errors import InputError
from reservoir.options import FitOptions
from reservoir.plan.basis import DataView, Kind
from reservoir.plan.budget import (
    FEWER_KERNEL_POOLINGS,
    FEWER_POOLINGS,
    INPUT_LAYER,
    KERNEL_POOLINGS,
    MAX_KERNEL_ROWS,
    PICTURE_POOLINGS,
    SEGMENTS,
    SYMBOL_POOLINGS,
    VALUE_POOLINGS,
    Names,
    by_segment,
)
from reservoir.plan.columns import default_layers, split_names
from reservoir.pooling import Pooling, find_pooling
from reservoir.tasks.task import Task, Vectors

AUTO_FOLDS = 5  # for fewer rows than `MANY_ROWS`
TIME_FOLDS = 10  # of forecasts: each readout is fitted to nearly all of the past of its held-out rows
MANY_ROWS, FEWER_FOLDS = 2000, 3  # rows of train and valid for which 3 folds are enough
MIN_VALID_ROWS = 1000  # two standard errors of an accuracy are then 3 points or less

# Width of concatenated columns: 12 features of 256 random kernels. The time of a sweep grows with its cube.
MAX_JOINED_WIDTH = 3072
MAX_ALL_WIDTH = 8192  # width of all columns concatenated, for few rows
MAX_TARGETS = 1000  # most labels of a row for which one readout is fitted by default

# Kinds of data whose best columns are known, and their poolings with the most columns.
KNOWN_POOLINGS: Mapping[Kind, Names] = {
    "series": (*VALUE_POOLINGS, SEGMENTS),
    "symbols": (*SYMBOL_POOLINGS, SEGMENTS),
    "labels of every token": ("all",),
}


@dataclass(frozen=True)
class ReadoutPlan:
    """How a readout will be chosen by default."""

    candidates: tuple[Columns, ...]
    folds: int  # 0 if the validation split chooses
    repeats: int
    reasons: Mapping[str, str]  # of each option, unless the user gives it


def choose_candidates(
    data: DataView, shapes: Mapping[Column, tuple[int, int]], *, native: bool
) -> ReadoutPlan:
    """Return what a fit of columns with these ``shapes`` tries."""
    task, kind = data.task, data.kind
    folds, repeats = (TIME_FOLDS, 1) if task.horizon else default_folds(data.train_rows, data.valid_rows)
    # The width of a sample matters for columns with one sample per row; others have one for each readout token.
    widths = {
        column: tokens * width
        for column, (tokens, width) in shapes.items()
        if tokens == 1 or tokens != task.readout_tokens
    }
    candidates = readout_candidates(
        task, kind, [*shapes], widths, data.train_rows, cross_validated=folds > 0, native=native
    )
    poolings = {column: find_pooling(column.pooling) for column in shapes}
    best_of_kind = _candidates_of_kernels(kind, poolings) or _known_candidates(kind, poolings)
    are_known = task.horizon or best_of_kind == candidates
    few_rows = f"{data.valid_rows:,} validation rows; {MIN_VALID_ROWS:,} are enough"
    reasons = {
        "select": "each fold is later than the rows that its readout is fitted to"
        if task.horizon
        else few_rows,
        "columns": f"known to suit {kind}" if are_known else "each alone, and each layer as a whole",
    }
    return ReadoutPlan(candidates, folds, repeats, reasons)


def default_folds(train: int, valid: int) -> tuple[int, int]:
    """Return the number of folds that choose a readout, 0 for the validation split, and of repeats."""
    if valid >= MIN_VALID_ROWS:
        return 0, 1
    # A smaller validation split cannot tell readouts apart. The time of a fold grows with the cube of its rows.
    return (FEWER_FOLDS if train + valid >= MANY_ROWS else AUTO_FOLDS), _repeats_of(train)


def choose_folds(
    options: FitOptions, rows: Mapping[str, int], groups: int | None = None, *, in_time: bool = False
) -> tuple[int, int]:
    """Return the folds, 0 for the validation split, and the repeats of a fit.

    ``groups`` is the number of groups. Folds ``in_time``, those of forecasts, cannot be drawn again.
    """
    select = options.select
    if select == "valid" or (select == "auto" and options.readout != "ridge"):
        return 0, 1
    if select == "auto" and in_time:
        return TIME_FOLDS, 1
    if select == "auto":
        folds, repeats = default_folds(rows["train"], rows["valid"])
        return min(folds, groups or rows["train"] + rows["valid"]), repeats
    number = select.removeprefix("cv")
    if not select.startswith("cv") or not number.isdigit() or int(number) < 2:
        raise InputError(f"--select {select}: choose auto, valid, or cvK with 2 or more folds, such as cv5")
    return int(number), 1


def _repeats_of(train_rows: int) -> int:
    """Return how often cross-validation is repeated: scores of few rows depend on the folds that are drawn."""
    return 5 if train_rows < 200 else 3 if train_rows < 600 else 1


def readout_candidates(
    task: Task,
    kind: Kind,
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
    if task.horizon:
        # The raw past alone is an autoregression, which hidden states can only complete.
        return (*((column, RAW) for column in available), (RAW,))
    best_of_kind: tuple[Columns, ...] = ()
    if not native:
        poolings = {column: find_pooling(column.pooling) for column in available}
        best_of_kind = _candidates_around_tokens(task, poolings) or _candidates_of_kernels(kind, poolings)
        if not best_of_kind and rows <= MAX_KERNEL_ROWS:
            best_of_kind = _known_candidates(kind, poolings)
    if best_of_kind:
        return best_of_kind
    # With many rows, a readout needs moments, whose size limits the width; it cannot fit the labels
    # of all tokens.
    many_targets = task.readout_tokens * task.outputs > MAX_TARGETS
    max_width = 0 if many_targets else MAX_ALL_WIDTH if rows > MAX_KERNEL_ROWS else math.inf
    # The columns to try alone, without those that are too wide, unless all are.
    alone = _without_token_columns(available)
    alone = [column for column in alone if widths.get(column, 0) <= max_width] or alone
    singles = [(column,) for column in alone]
    # All columns of a layer side by side, if they are not too wide.
    layers: dict[str, list[Column]] = {}
    for column in widths:
        if column in alone:
            layers.setdefault(column.place, []).append(column)
    whole_layers = [
        tuple(columns)
        for columns in layers.values()
        if len(columns) > 1 and sum(widths[column] for column in columns) <= MAX_JOINED_WIDTH
    ]
    together = tuple(column for columns in layers.values() for column in columns)
    # All columns of all layers side by side, for few rows.
    few_rows = cross_validated and rows <= MAX_KERNEL_ROWS
    narrow = sum(widths[column] for column in together) <= MAX_ALL_WIDTH
    if not (few_rows and len(layers) > 1 and narrow):
        return tuple(dict.fromkeys([*singles, *whole_layers]))
    # All columns together do best on most small data sets, and need no choice of a layer. If a row has several
    # readout tokens, columns with a sample per token are none of them, and often better.
    if task.readout_tokens == 1:
        return tuple(dict.fromkeys([together, *singles, *whole_layers]))
    return tuple(dict.fromkeys([*singles, *whole_layers, together]))


def default_columns(candidates: Sequence[Columns], task: Task | None = None) -> Columns | None:
    """Return the candidate that is chosen unless another is clearly better; None if no default is known.

    It is the first one, if it concatenates columns: `readout_candidates` puts columns that are known
    to do well together first. For forecasts it is the raw past, which needs no model.
    """
    if task and task.horizon:
        return (RAW,)
    return candidates[0] if candidates and len(candidates[0]) > 1 else None


def _without_token_columns(available: Sequence[Column]) -> list[Column]:
    """Return the columns to try alone: wide columns of all tokens only if there are no others."""
    of_rows = [column for column in available if column.pooling != "all"]
    return of_rows or [*available]


def _candidates_around_tokens(task: Task, available: Mapping[Column, Pooling]) -> tuple[Columns, ...]:
    """Return the candidates for labels of every token of a series; none without columns of windows around tokens.

    The windows around each token, beside those of the raw input, are the default. Labels that depend on
    single values, such as the start of an event, also need the kernels at the token itself.
    """
    around = [column for column, pooling in available.items() if pooling.pattern == "aroundK"]
    if not (task.labels_each_token and around and isinstance(task.form, Vectors)):
        return ()
    at_token = [column for column in available if column.pooling == "all"]
    return tuple(dict.fromkeys([(*around, ROLLING), (*at_token, *around, ROLLING)]))


def _candidates_of_kernels(kind: Kind, available: Mapping[Column, Pooling]) -> tuple[Columns, ...]:
    """Return the candidates for the default columns of random kernels, for few or many rows; none for others."""
    for poolings in (KERNEL_POOLINGS, *FEWER_KERNEL_POOLINGS):
        columns = tuple(Column(*INPUT_LAYER, name) for name in poolings)
        if kind == "series" and {*available} == {*columns}:
            # Places come second, because they mislead if test rows begin at other times than training rows, which folds
            # of the training rows cannot show.
            values = tuple(column for column in columns if available[column].pattern != "placesK")
            return tuple(dict.fromkeys([values, columns]))
    return ()


def _known_candidates(kind: Kind, available: Mapping[Column, Pooling]) -> tuple[Columns, ...]:
    """Return the candidates known to suit a kind of data; none if the available columns are others."""
    if kind == "pictures":
        return _picture_candidates(available)
    if kind not in KNOWN_POOLINGS:
        return ()
    layers = _layers_with_columns(kind, available)
    if layers is None:
        return ()
    # The poolings with the most columns, or those for more rows, of which those without segments have no known
    # candidates.
    with_segments = [names for names in FEWER_POOLINGS.get(kind, ()) if by_segment(names)]
    for poolings in (KNOWN_POOLINGS[kind], *with_segments):
        if candidates := _candidates_of(kind, layers, poolings, available):
            return candidates
    return ()


def _picture_candidates(available: Mapping[Column, Pooling]) -> tuple[Columns, ...]:
    """Return the candidates for the default columns of pictures read by patches; none for others."""
    columns_of_patches = tuple(Column(*INPUT_LAYER, name) for name in PICTURE_POOLINGS)
    if {*available} != {*columns_of_patches}:
        return ()
    return (columns_of_patches, *((column,) for column in columns_of_patches))


def _layers_with_columns(kind: Kind, available: Mapping[Column, Pooling]) -> tuple[str, ...] | None:
    """Return the default layers of a kind that have columns; None if the available columns have other layers."""
    layer_names, _ = default_layers(kind, depth=1)
    default_names = split_names(layer_names)
    layers_here = {column.place for column in available}
    layers = tuple(layer for layer in default_names if layer in layers_here)
    # All default layers must have columns, unless there are so many rows that only one layer has: for series the input
    # layer, for the others any one of the defaults.
    is_reduced_to_one_layer = layers_here < {*default_names}
    if kind == "series":
        is_reduced_to_one_layer = layers_here == {*INPUT_LAYER}
    return layers if layers == default_names or is_reduced_to_one_layer else None


def _candidates_of(
    kind: Kind, layers: Sequence[str], poolings: Names, available: Mapping[Column, Pooling]
) -> tuple[Columns, ...]:
    """Return the candidates of these ``poolings`` of some layers; none unless all their columns are available."""
    columns = [Column(layer, name) for layer in layers for name in poolings if name != "tokens"]
    if not {*columns} <= {*available}:
        return ()
    # All columns that show which values occur; with those that show where; and of symbols, all tokens.
    columns_of_values = [column for column in columns if not available[column].by_segment]
    columns_of_places = [column for column in columns if available[column].by_segment]
    columns_of_tokens = [(Column(layer, "tokens"),) for layer in layers] if kind == "symbols" else []
    # For series, the layers are compared, so that a fit shows what the block adds to the input layer.
    columns_of_layers = [
        tuple(column for column in columns_of_values if column.place == layer)
        for layer in (layers if kind == "series" else ())
    ]
    candidates = dict.fromkeys(
        [
            tuple(columns_of_values),
            (*columns_of_values, *columns_of_places),
            *columns_of_tokens,
            *columns_of_layers,
        ]
    )
    # Only columns of all tokens may be missing, which long sequences do not have by default.
    return tuple(candidate for candidate in candidates if {*candidate} <= {*available})
