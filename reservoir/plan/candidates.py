"""What a fit tries: the columns among which a readout is chosen, alone or side by side, and the folds that choose."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reservoir.column import RAW, ROLLING, Column, Columns
from reservoir.errors import InputError
from reservoir.options import FitOptions
from reservoir.plan.basis import DataView, Kind
from reservoir.plan.columns import (
    FEWER_KERNEL_POOLINGS,
    FEWER_POOLINGS,
    INPUT_NAME,
    KERNEL_POOLINGS,
    MAX_KERNEL_ROWS,
    PICTURE_POOLINGS,
    SEGMENTS,
    SYMBOL_POOLINGS,
    VALUE_POOLINGS,
    Names,
    by_segment,
    default_layers,
    split_names,
)
from reservoir.pooling import Pooling, find_pooling
from reservoir.tasks.task import Task, Vectors

AUTO_FOLDS = 5  # for fewer rows than `MANY_ROWS`
TIME_FOLDS = 10  # of forecasts: each readout is fitted to nearly all of the past of its held-out rows
MANY_ROWS, FEWER_FOLDS = 2000, 3  # rows of train and valid for which 3 folds are enough
MIN_VALID_ROWS = 1000  # two standard errors of an accuracy are then 3 points or less

# Width of the columns of one layer side by side: 12 features of 256 random kernels. The time of a sweep grows with its
# cube.
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

    candidates: tuple[Columns, ...]  # one is chosen; the columns of a candidate are side by side
    folds: int  # of cross-validation; 0 if the validation split chooses
    repeats: int  # of cross-validation, with folds that are drawn again
    reasons: Mapping[str, str]  # of each option, unless the user gives it


def choose_candidates(
    data: DataView, shapes: Mapping[Column, tuple[int, int]], *, native: bool
) -> ReadoutPlan:
    """Return what a fit tries by default, from columns with these ``shapes``: tokens and width of a row.

    ``native`` says whether the model reads the task by its own input.
    """
    task, kind = data.task, data.kind
    folds, repeats = (TIME_FOLDS, 1) if task.horizon else default_folds(data.train_rows, data.valid_rows)
    # The width of a sample matters for columns with one sample per row: those of one token, or whose tokens are joined
    # because they are not the readout tokens.
    widths = {
        column: tokens * width
        for column, (tokens, width) in shapes.items()
        if tokens == 1 or tokens != task.readout_tokens
    }
    candidates = readout_candidates(
        task, kind, [*shapes], widths, data.train_rows, cross_validated=folds > 0, native=native
    )
    # The candidates are known to suit the data, unless they are those of any columns.
    poolings = {column: find_pooling(column.pooling) for column in shapes}
    best_of_kind = _candidates_of_kernels(kind, poolings) or _known_candidates(kind, poolings)
    are_known = task.horizon or best_of_kind == candidates
    why_select = f"{data.valid_rows:,} validation rows; {MIN_VALID_ROWS:,} are enough"
    if task.horizon:
        why_select = "each fold is later than the rows that its readout is fitted to"
    why_columns = f"known to suit {kind}" if are_known else "each alone, and each layer as a whole"
    return ReadoutPlan(candidates, folds, repeats, {"select": why_select, "columns": why_columns})


def default_folds(train: int, valid: int) -> tuple[int, int]:
    """Return the number of folds that choose a readout, 0 for the validation split, and of repeats.

    ``train`` and ``valid`` are the rows of these splits.
    """
    if valid >= MIN_VALID_ROWS:
        return 0, 1
    # A smaller validation split cannot tell readouts apart. The time of a fold grows with the cube of its rows.
    folds = FEWER_FOLDS if train + valid >= MANY_ROWS else AUTO_FOLDS
    return folds, _repeats_of(train)


def choose_folds(
    options: FitOptions, rows: Mapping[str, int], groups: int | None = None, *, in_time: bool = False
) -> tuple[int, int]:
    """Return the folds, 0 for the validation split, and the repeats of a fit.

    ``rows`` are those of each split, and ``groups`` is the number of groups, None without groups. Folds ``in_time``,
    those of forecasts, cannot be drawn again.
    """
    select = options.select
    # Only for ridge do folds take little more time than one fit.
    is_too_slow_for_folds = select == "auto" and options.readout != "ridge"
    if select == "valid" or is_too_slow_for_folds:
        return 0, 1
    if select == "auto":
        if in_time:
            return TIME_FOLDS, 1
        folds, repeats = default_folds(rows["train"], rows["valid"])
        # No fold is empty: each has at least one group, or one row.
        return min(folds, groups or rows["train"] + rows["valid"]), repeats
    number = select.removeprefix("cv")  # the K of cvK
    if not select.startswith("cv") or not number.isdigit() or int(number) < 2:
        raise InputError(f"--select {select}: choose auto, valid, or cvK with 2 or more folds, such as cv5")
    return int(number), 1


def _repeats_of(train_rows: int) -> int:
    """Return how often cross-validation is repeated: scores of few rows depend on the folds that are drawn."""
    if train_rows < 200:
        return 5
    return 3 if train_rows < 600 else 1


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
    """Return the candidates: the columns, alone or side by side, among which a readout is chosen.

    The first one is the default if it has several columns (see `default_columns`). ``widths`` holds the widths of
    columns with one sample per row; ``rows`` counts training rows. ``cross_validated`` says whether folds choose.
    ``native`` is True for native input and for several entries, for which no best columns are known.
    """
    if task.horizon:
        # The raw past alone is an autoregression, which hidden states can only complete.
        return (*((column, RAW) for column in available), (RAW,))
    best_of_kind = () if native else _best_of_kind(task, kind, available, rows)
    if best_of_kind:
        return best_of_kind
    alone = _columns_alone(task, available, widths, rows)
    singles = [(column,) for column in alone]
    # All columns of a layer side by side, if they have one sample per row and are not too wide.
    layers: dict[str, list[Column]] = {}
    for column in widths:
        if column in alone:
            layers.setdefault(column.place, []).append(column)
    whole_layers = [
        tuple(columns)
        for columns in layers.values()
        if len(columns) > 1 and sum(widths[column] for column in columns) <= MAX_JOINED_WIDTH
    ]
    # All columns of all layers side by side, for few rows.
    together = tuple(column for columns in layers.values() for column in columns)
    few_rows = cross_validated and rows <= MAX_KERNEL_ROWS
    is_narrow = sum(widths[column] for column in together) <= MAX_ALL_WIDTH
    if not (few_rows and len(layers) > 1 and is_narrow):
        return _without_duplicates([*singles, *whole_layers])
    # All columns together do best on most small data sets, and need no choice of a layer, so they come first. If a row
    # has several readout tokens, ``together`` lacks the columns with a sample per token, which are often better.
    if task.readout_tokens == 1:
        return _without_duplicates([together, *singles, *whole_layers])
    return _without_duplicates([*singles, *whole_layers, together])


def _without_duplicates(candidates: Iterable[Columns]) -> tuple[Columns, ...]:
    """Return each of the candidates once, in the order of their first occurrences."""
    return tuple(dict.fromkeys(candidates))


def _best_of_kind(task: Task, kind: Kind, available: Sequence[Column], rows: int) -> tuple[Columns, ...]:
    """Return the candidates that are known to suit a kind of data; none for other data, and other columns."""
    poolings = {column: find_pooling(column.pooling) for column in available}
    candidates = _candidates_around_tokens(task, poolings) or _candidates_of_kernels(kind, poolings)
    if not candidates and rows <= MAX_KERNEL_ROWS:
        candidates = _known_candidates(kind, poolings)
    return candidates


def _columns_alone(
    task: Task, available: Sequence[Column], widths: Mapping[Column, int], rows: int
) -> list[Column]:
    """Return the columns to try alone, without those that are too wide, unless all are.

    ``widths`` holds the widths of columns with one sample per row; ``rows`` counts training rows.
    """
    # Columns of all tokens are tried only if there are no others.
    columns = [column for column in available if column.pooling != "all"] or [*available]
    # With many rows, a readout needs moments, whose size limits the width.
    max_width = MAX_ALL_WIDTH if rows > MAX_KERNEL_ROWS else math.inf
    # A sample with the labels of very many tokens is too much for a readout. Then only columns with one sample per
    # token, which have no entry in ``widths``, are narrow enough.
    if task.readout_tokens * task.outputs > MAX_TARGETS:
        max_width = 0
    return [column for column in columns if widths.get(column, 0) <= max_width] or columns


def default_columns(candidates: Sequence[Columns], task: Task | None = None) -> Columns | None:
    """Return the candidate that is chosen unless another is clearly better; None if no default is known.

    It is the first one, if it has several columns: `readout_candidates` puts columns that are known
    to do well together first. For forecasts it is the raw past, which needs no model. Without ``task``, the candidates
    are not those of forecasts.
    """
    if task and task.horizon:
        return (RAW,)
    return candidates[0] if candidates and len(candidates[0]) > 1 else None


def _candidates_around_tokens(task: Task, available: Mapping[Column, Pooling]) -> tuple[Columns, ...]:
    """Return the candidates for labels of every token of a series; none without columns of windows around tokens.

    The windows around each token, beside those of the raw input, are the default. Labels that depend on
    single values, such as the start of an event, also need the kernels at the token itself.
    """
    around = [column for column, pooling in available.items() if pooling.pattern == "aroundK"]
    if not (task.labels_each_token and around and isinstance(task.form, Vectors)):
        return ()
    at_token = [column for column in available if column.pooling == "all"]
    return _without_duplicates([(*around, ROLLING), (*at_token, *around, ROLLING)])


def _candidates_of_kernels(kind: Kind, available: Mapping[Column, Pooling]) -> tuple[Columns, ...]:
    """Return the candidates for the default columns of random kernels, for few or many rows; none for others.

    ``available`` holds the columns with their poolings.
    """
    for poolings in (KERNEL_POOLINGS, *FEWER_KERNEL_POOLINGS):
        columns = tuple(Column(INPUT_NAME, name) for name in poolings)
        if kind == "series" and {*available} == {*columns}:
            # Columns that show where a kernel responds are only in the second candidate, because they mislead if test
            # rows begin at other times than training rows, which folds of the training rows cannot show.
            without_places = tuple(column for column in columns if available[column].pattern != "placesK")
            return _without_duplicates([without_places, columns])
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
    # The poolings with the most columns, or else those for more rows; without segments, no candidates are known.
    with_segments = [names for names in FEWER_POOLINGS.get(kind, ()) if by_segment(names)]
    for poolings in (KNOWN_POOLINGS[kind], *with_segments):
        if candidates := _candidates_of(kind, layers, poolings, available):
            return candidates
    return ()


def _picture_candidates(available: Mapping[Column, Pooling]) -> tuple[Columns, ...]:
    """Return the candidates for the default columns of pictures read by patches; none for others."""
    columns_of_patches = tuple(Column(INPUT_NAME, name) for name in PICTURE_POOLINGS)
    if {*available} != {*columns_of_patches}:
        return ()
    return (columns_of_patches, *((column,) for column in columns_of_patches))


def _layers_with_columns(kind: Kind, available: Mapping[Column, Pooling]) -> tuple[str, ...] | None:
    """Return the default layers of a kind that have columns; None if no candidates are known for these layers.

    Candidates are known for all default layers, even if other layers have columns, too. If only some of the default
    layers have columns, as with many rows, candidates are known as long as no other layer has any.
    """
    default_text, _ = default_layers(kind, depth=1)  # any depth but 0 has the same ones
    defaults = split_names(default_text)
    available_layers = {column.place for column in available}
    layers = tuple(layer for layer in defaults if layer in available_layers)
    if layers == defaults:
        return layers
    # With many rows, fewer layers are read: for series the input layer alone, for the others any of the defaults.
    if kind == "series":
        return layers if available_layers == {INPUT_NAME} else None
    return layers if available_layers < {*defaults} else None


def _candidates_of(
    kind: Kind, layers: Sequence[str], poolings: Names, available: Mapping[Column, Pooling]
) -> tuple[Columns, ...]:
    """Return the candidates of these ``poolings`` of some layers; none unless all their columns are available."""
    columns = [Column(layer, name) for layer in layers for name in poolings if name != "tokens"]
    if not {*columns} <= {*available}:
        return ()
    # The columns that show which values occur, and those that show where, too.
    of_values = tuple(column for column in columns if not available[column].by_segment)
    of_places = tuple(column for column in columns if available[column].by_segment)
    candidates = [of_values, (*of_values, *of_places)]
    # Of symbols, also all tokens of a layer; long sequences do not have such columns by default.
    if kind == "symbols":
        of_tokens = [Column(layer, "tokens") for layer in layers]
        candidates += [(column,) for column in of_tokens if column in available]
    # For series, the layers are compared, so that a fit shows what the block adds to the input layer.
    if kind == "series":
        for layer in layers:
            candidates.append(tuple(column for column in of_values if column.place == layer))
    return _without_duplicates(candidates)
