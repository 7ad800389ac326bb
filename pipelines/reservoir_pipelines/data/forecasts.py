"""Windows of series in time, with the values that follow each as its labels: a table with a row per step.

The newest steps are the test split. A training or validation row has no label in them: the few windows
whose labels reach into the test steps are left out. Later windows may read earlier labels as their past,
which is known when they are forecast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.rows import SPLIT_SHARES
from reservoir.tasks.task import Task
from reservoir_pipelines.data.columns import (
    as_texts,
    example,
    holds_single_numbers,
    listed,
    notes_on_gaps,
    require_column,
    separated,
    sortable_times,
    times_of,
    values_of,
)
from reservoir_pipelines.data.roles import INDEX_NAME, TIMES, conventional
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.data.table import SUFFIXES, Table, read_table

MAX_PAST = 104
"""Most steps that are read by default: two years of weeks, or four days of hours."""

PAST_SHARE = 1 / 8
"""Share of a series that a window reads by default, so that most steps have a whole window before them."""

MAX_PAST_VALUES = 6144
"""Most values of a window: the raw past is a feature of readouts value by value, see `MAX_WIDTH` of `raw_input`."""

PIECE_VALUES = 2**22  # values of the windows that are in memory at a time

UNUSED_OPTIONS = (
    "group", "text", "labels", "skip_bad_rows", "values", "symbols", "regression", "classes", "waveform",
)  # fmt: skip
"""Options that do not apply to series in time."""


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether the rows of an origin are read as steps in time: with ``--forecast`` only."""
    return options.forecast is not None


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the windows of the series in a table; for a fitted ``task``, the newest window of each series."""
    path = Path(origin)
    is_table = path.suffix.lower() in SUFFIXES and path.is_file()
    if not is_table:
        raise InputError(
            f"{origin}: --forecast reads a table with a row per step", f"give one of {', '.join(SUFFIXES)}"
        )
    # Ids stay as they are written: 007 is not 7.
    table = read_table(
        path,
        lambda names: [name for name in names if name == options.id] or [*conventional("id", names)],
        options.decimal,
    )
    columns = _columns_of(table, options) if task is None else _columns_of_readout(table, task.parameters)
    series = _read_series(table, columns, options)
    assert options.forecast is not None  # as `accepts` says
    if task is not None:
        assert options.past is not None, "a readout of forecasts remembers the length of its past"
        return _newest_windows(origin, series, options.past)
    return _labelled_windows(origin, series, columns, options.forecast, options)


# ---- columns


@dataclass(frozen=True)
class StepColumns:
    """The columns of a table of steps by their role."""

    values: tuple[str, ...]  # the columns that are read; the first is the one to forecast
    time: str = ""  # the times; empty if the rows are in order
    id: str = ""  # what names the series of each row; empty if all rows are one series
    notes: tuple[str, ...] = ()  # lines for the user on how the columns were chosen

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the task: ``columns``, and the columns by the flags that would name them."""
        return {"columns": [*self.values], **self.by_flag}

    @property
    def by_flag(self) -> dict[str, str]:
        """The columns by the flag that would name them, such as ``{"label": "sales"}``."""
        flags = {"label": self.values[0], "time": self.time, "id": self.id}
        return {flag: name for flag, name in flags.items() if name}


def _columns_of_readout(table: Table, fitted: Mapping[str, Any]) -> StepColumns:
    """Return the columns that a readout was fitted on; refuse a table that lacks one."""
    columns = StepColumns(tuple(fitted["columns"]), fitted.get("time", ""), fitted.get("id", ""))
    for name in (*columns.values, columns.time, columns.id):
        require_column(table.path, table.names, name, fitted=columns.values)
    return columns


def _columns_of(table: Table, options: OwnDataOptions) -> StepColumns:
    """Return the columns by flags and conventional names, and as values all other columns of numbers.

    Refuse a table that lacks a column that a flag names, or that leaves open which column to forecast.
    """
    for flag in ("label", "id", "time"):
        require_column(table.path, table.names, getattr(options, flag), flag)
    for name in separated(options.drop):
        require_column(table.path, table.names, name, "drop")
    # Columns without a name are left out, as those of --drop.
    dropped = {
        name for name in table.names if name in separated(options.drop) or INDEX_NAME.fullmatch(name)
    }
    names = [name for name in table.names if name not in dropped]
    # The columns of ids and times have roles of their own. Of the others, only numbers can be read.
    series_id = options.id or next(iter(conventional("id", names)), "")
    time = options.time or next((name for name in names if name.lower() in TIMES), "")
    others = [name for name in names if name not in {series_id, time}]
    numbers = [name for name in others if holds_single_numbers(table, name)]
    texts = [name for name in others if name not in numbers]
    notes = [f"the column {name!r} is left out, because it holds no numbers" for name in texts]
    has_time_by_name = bool(time) and not options.time
    if has_time_by_name and times_of(table.frame[time]) is None:
        notes.append(f"rows are steps in their order, because the cells of {time!r} are not sortable times")
        time = ""
    # The column to forecast, which is also the first one that is read.
    label = options.label or next(iter(conventional("label", numbers)), "")
    if not label and len(numbers) != 1:
        candidates = numbers or others
        likely = candidates[-1] if candidates else "y"
        raise InputError(
            f"{table.path}: --forecast needs one column to forecast among {listed(candidates)}",
            f"pass --label NAME, for example: {example(table.path, options, label=likely)}",
        )
    label = label or numbers[0]
    values = (label, *(name for name in numbers if name != label))
    forecast_note = f"forecasts {label!r}"
    if len(values) > 1:
        forecast_note += f" from it and {listed(values[1:])}"
    return StepColumns(values, time, series_id, (forecast_note, *notes))


# ---- series


@dataclass(frozen=True, eq=False)
class ForecastSeries:
    """The steps of one series, in the order of their times."""

    name: str  # its id; empty if the table is one series
    values: np.ndarray  # (steps, channels), NaN if missing
    # (steps,) of texts: the time of each step as it is written, or the number of its row
    step_names: np.ndarray
    times: np.ndarray  # (steps,) of numbers or datetime64


def _read_series(table: Table, columns: StepColumns, options: OwnDataOptions) -> list[ForecastSeries]:
    """Return the series of a table, each sorted by its times; refuse cells that are not numbers."""
    import pandas as pd

    frame = table.frame
    values = values_of(table, columns.values, options, fill=options.missing != "refuse")
    times = sortable_times(table, columns.time) if columns.time else np.arange(len(frame))
    # The number of the series of each row, and the names of the series. Without ids, all rows are one without a name.
    series_of_row, series_names = np.zeros(len(frame), np.int64), [""]
    if columns.id:
        ids = as_texts(frame[columns.id])
        for row in np.flatnonzero(ids == ""):
            table.bad.add(row, f"no id in column {columns.id!r}")
        series_of_row, series_names = pd.factorize(ids)
    is_repeated = pd.DataFrame({"series": series_of_row, "time": times}).duplicated().to_numpy()
    remedy = "pass --id NAME if the table holds several series"
    has_time_by_name = bool(columns.time) and not options.time
    if has_time_by_name:  # its name may mislead: a year beside a month repeats in every series
        dropped = ",".join([*separated(options.drop), columns.time])
        remedy += f", --time NAME for another column of times, or --drop {quote(dropped)} if the rows are in order"
    for row in np.flatnonzero(is_repeated):
        table.bad.add(row, f"a second row at {columns.time} {frame[columns.time][row]}", remedy)
    table.bad.skip = None  # never skip a bad row: the steps before it would shift
    table.bad.readable()  # refuses bad rows
    step_names = np.arange(len(frame)).astype(str)
    if columns.time:
        step_names = as_texts(frame[columns.time]).to_numpy(str)
    series: list[ForecastSeries] = []
    for number, name in enumerate(series_names):
        rows = np.flatnonzero(series_of_row == number)
        rows = rows[np.argsort(times[rows], kind="stable")]
        series.append(ForecastSeries(str(name), values[rows], step_names[rows], times[rows]))
    return series


# ---- windows


@dataclass(frozen=True, eq=False)
class ForecastWindows:
    """Windows of steps as an array (rows, past, channels) of which ranges of rows are read.

    Parameters
    ----------
    steps : array (steps, channels)
        The values of all steps.
    starts : array (rows,) of int
        The first step of each window.
    past : int
        The number of steps of each window.
    """

    steps: np.ndarray
    starts: np.ndarray
    past: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all windows."""
        return len(self.starts), self.past, self.steps.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """The type of the values."""
        return self.steps.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.steps[self.starts[rows, None] + np.arange(self.past)]


def _newest_windows(origin: str, series: Sequence[ForecastSeries], past: int) -> Rows:
    """Return the last ``past`` steps of each series as rows without labels; refuse a shorter series."""
    for one_series in series:
        step_count = len(one_series.values)
        if step_count < past:
            name = f" {one_series.name!r}" if one_series.name else ""
            raise InputError(
                f"{origin}: the series{name} has {step_count:,} steps, but the readout reads {past:,}",
                "give more of its past",
            )
    names = [one_series.name for one_series in series]
    is_single_series = names == [""]  # without a column of ids, the table is one series, which has no name
    ids = None if is_single_series else np.array(names)
    x = np.stack([one_series.values[-past:] for one_series in series])
    times = np.concatenate([one_series.times[-past:] for one_series in series])
    series_of_step = np.repeat(np.arange(len(series)), past)
    return Rows(x=x, ids=ids, notes=tuple(notes_on_gaps(times, series_of_step)))


def _labelled_windows(
    origin: str,
    series: Sequence[ForecastSeries],
    columns: StepColumns,
    horizon: int,
    options: OwnDataOptions,
) -> Rows:
    """Return the windows that have ``horizon`` steps after them, with these as labels, and their splits; oldest first.

    Windows that span two splits, or lack a value, are left out.
    """
    typical_steps = int(np.median([len(one_series.values) for one_series in series]))
    past = _past(origin, typical_steps, columns, options)
    # The steps of all series one after the other; ``offsets`` (series + 1,) has the first one of each, and the end.
    offsets = np.cumsum([0, *(len(one_series.values) for one_series in series)])
    steps = np.concatenate([one_series.values for one_series in series])
    first_label, from_end = _window_ends(offsets, past, horizon)
    windows = ForecastWindows(steps, first_label - past, past)
    y = steps[first_label[:, None] + np.arange(horizon), 0]  # the first channel is the one to forecast
    # The newest steps are test, those before them valid, and at least one horizon each.
    test_steps = max(horizon, round(SPLIT_SHARES["test"] * typical_steps))
    valid_steps = max(horizon, round(SPLIT_SHARES["valid"] * typical_steps))
    split = _split_of_windows(from_end, horizon, test_steps, valid_steps)
    is_used = (split != "") & np.isfinite(y).all(axis=1) & _has_values(windows)
    for name in SPLIT_SHARES:
        if not (split[is_used] == name).any():
            raise InputError(
                f"{origin}: {typical_steps:,} steps are too few for --past {past} --forecast {horizon}: "
                f"no window is left for the split {name!r}",
                "lower the two, or give more steps",
            )
    step_names = np.concatenate([_step_names(one_series) for one_series in series])
    times = np.concatenate([one_series.times for one_series in series])
    series_of_step = np.repeat(np.arange(len(series)), np.diff(offsets))
    stretches = _stretches(series_of_step[first_label], test_steps - from_end, horizon)
    return Rows(
        x=ForecastWindows(steps, first_label[is_used] - past, past),
        y=y[is_used],
        split=split[is_used],
        ids=step_names[first_label[is_used]],
        piece_rows=max(1, PIECE_VALUES // (past * steps.shape[1])),
        notes=(
            *columns.notes,
            f"windows of {past} steps; the newest {test_steps:,} steps are test, the {valid_steps:,} before them valid",
            *notes_on_gaps(times, series_of_step),
        ),
        roles=columns.by_flag,
        parameters={**columns.parameters, "past": past, "series": len(series)},
        label=columns.values[0],
        unused=UNUSED_OPTIONS,
        stretches=stretches[is_used],
    )


def _past(origin: str, typical_steps: int, columns: StepColumns, options: OwnDataOptions) -> int:
    """Return the steps of a window: ``--past``, or a number for series of ``typical_steps``; refuse too many values."""
    past = options.past or max(1, min(MAX_PAST, round(PAST_SHARE * typical_steps)))
    channels = len(columns.values)
    if options.missing == "mask":
        channels *= 2  # each channel has another one that marks its missing values
    value_count = past * channels
    if value_count > MAX_PAST_VALUES:
        raise InputError(
            f"{origin}: --past {past:,} reads {value_count:,} values of {listed(columns.values)}",
            f"lower it, so that at most {MAX_PAST_VALUES:,} values are read, or leave out columns with --drop",
        )
    return past


def _window_ends(offsets: np.ndarray, past: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the step of the first label of each window, and its distance to the end of its series, oldest first.

    Both are (windows,) of int. ``offsets`` (series + 1,) are the first steps of the series, and the end of the last.
    """
    first_labels, distances = [], []
    for start, end in pairwise(offsets.tolist()):
        # A window needs ``past`` steps before its first label, and ``horizon`` labels.
        first_label = np.arange(start + past, end - horizon + 1)
        first_labels.append(first_label)
        distances.append(end - first_label)
    first, distance = np.concatenate(first_labels), np.concatenate(distances)
    # Series are taken to end at the same time, so that windows at one distance from the end are of one time.
    order = np.argsort(-distance, kind="stable")
    return first[order], distance[order]


def _split_of_windows(from_end: np.ndarray, horizon: int, test_steps: int, valid_steps: int) -> np.ndarray:
    """Return the split of each window, (windows,) of str; "" for windows with labels in test and before it.

    ``from_end`` (windows,) is the distance of the first of ``horizon`` labels to the end of the series.
    """
    is_test = from_end <= test_steps
    is_before_test = from_end >= test_steps + horizon  # with all its labels
    split = np.select([is_test, is_before_test], ["test", "train"], "")
    split[is_before_test & (from_end <= test_steps + valid_steps)] = "valid"
    return split


def _stretches(series: np.ndarray, steps: np.ndarray, horizon: int) -> np.ndarray:
    """Return the number of the stretch of ``horizon`` steps in which the labels of each window begin, (windows,).

    A stretch belongs to one series. ``series`` (windows,) numbers the series of each window, and ``steps`` (windows,)
    is the step of its first label, counted from the first test step of its series: negative before it. Neighbouring
    windows share all labels but one, so their errors are alike, and single windows would count the same evidence many
    times. In a simulation of two equally good forecasts of six steps (75 windows, 400 draws), p was below .05 in 44% of
    draws over windows, and in 10% over stretches.
    """
    series_count = int(series.max()) + 1
    return steps // horizon * series_count + series


def _step_names(series: ForecastSeries) -> np.ndarray:
    """Return the names of the steps of a series, (steps,), after its own name if it has one."""
    return np.char.add(f"{series.name} ", series.step_names) if series.name else series.step_names


def _has_values(windows: ForecastWindows) -> np.ndarray:
    """Return which windows have a value of every channel, (rows,) of bool: those without cannot be filled."""
    # The number of values of each channel in a window is the difference of two cumulative counts.
    is_present = np.isfinite(windows.steps)
    no_steps = np.zeros((1, is_present.shape[1]), np.int64)
    counts_before = np.concatenate([no_steps, is_present.cumsum(axis=0)])  # (steps + 1, channels)
    value_counts = counts_before[windows.starts + windows.past] - counts_before[windows.starts]
    return value_counts.min(axis=1) > 0
