"""Windows of series in time, with the values that follow each as its labels: a table with a row per step.

The newest steps are the test split. A training or validation row has no label in them: the few windows
whose labels reach into the test steps are left out. Later windows may read earlier labels as their past,
which is known when they are forecast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.rows import SHARES
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
from reservoir_pipelines.data.roles import INDEX, conventional
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.data.table import SUFFIXES, Table, read_table

TIMES = ("time", "timestamp", "date", "datetime", "year")
"""Conventional names of the column of times of a series, in lower or upper case."""

MAX_PAST = 104
"""Most steps that are read by default: two years of weeks, or four days of hours."""

PAST_SHARE = 1 / 8
"""Share of a series that a window reads by default, so that most steps have a whole window before them."""

MAX_PAST_VALUES = 6144
"""Most values of a window: the raw past is a feature of readouts value by value, see `MAX_WIDTH` of `raw_input`."""

PIECE_VALUES = 2**22  # values of the windows that are in memory at a time

UNUSED = (
    "group", "text", "labels", "skip_bad_rows", "values", "symbols", "regression", "classes", "waveform",
)  # fmt: skip
"""Options that do not apply to series in time."""


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether the rows of an origin are steps in time."""
    return options.forecast is not None


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the windows of the series in a table; for a fitted ``task``, the newest window of each series."""
    path = Path(origin)
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        raise InputError(
            f"{origin}: --forecast reads a table with a row per step", f"give one of {', '.join(SUFFIXES)}"
        )
    table = read_table(path, lambda names: {name for name in names if name == options.id}, options.decimal)
    columns = _columns_of(table, options) if task is None else _columns_of_readout(table, task.parameters)
    series = _read_series(table, columns, options)
    assert options.forecast is not None
    if task is not None:
        assert options.past is not None, "a readout of forecasts remembers the length of its past"
        return _newest_windows(origin, series, options.past)
    return _labelled_windows(origin, series, columns, options.forecast, options)


# ---- columns


@dataclass(frozen=True)
class StepColumns:
    """The columns of a table of steps: the values, the one to forecast first, and those of times and of series."""

    values: tuple[str, ...]
    time: str = ""  # empty if the rows are in order
    id: str = ""  # names the series of each row; empty if all rows are one series
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        """What is needed to read new steps in the same way."""
        named = {"label": self.values[0], "time": self.time, "id": self.id}
        return {"columns": [*self.values], **{flag: name for flag, name in named.items() if name}}


def _columns_of_readout(table: Table, fitted: Mapping[str, Any]) -> StepColumns:
    """Return the columns that a readout was fitted on; refuse a table that lacks one."""
    columns = StepColumns(tuple(fitted["columns"]), fitted.get("time", ""), fitted.get("id", ""))
    for name in (*columns.values, columns.time, columns.id):
        require_column(table.path, table.names, name, fitted=columns.values)
    return columns


def _columns_of(table: Table, options: OwnDataOptions) -> StepColumns:
    """Return the columns by flags, conventional names, and what is left; refuse a table that leaves the label open."""
    for flag in ("label", "id", "time"):
        require_column(table.path, table.names, getattr(options, flag), flag)
    for name in separated(options.drop):
        require_column(table.path, table.names, name, "drop")
    dropped = {name for name in table.names if name in separated(options.drop) or INDEX.fullmatch(name)}
    names = [name for name in table.names if name not in dropped]
    # The columns of ids and times have roles of their own. Of the others, only numbers can be read.
    series_id = options.id or next(iter(conventional("id", names)), "")
    time = options.time or next((name for name in names if name.lower() in TIMES), "")
    rest = [name for name in names if name not in {series_id, time}]
    numbers = [name for name in rest if holds_single_numbers(table, name)]
    texts = [name for name in rest if name not in numbers]
    notes = [f"the column {name!r} is left out, because it holds no numbers" for name in texts]
    if time and not options.time and times_of(table.frame[time]) is None:
        notes.append(f"rows are steps in their order, because the cells of {time!r} are not sortable times")
        time = ""
    # The column to forecast, which is also the first one that is read.
    label = options.label or next(iter(conventional("label", numbers)), "")
    if not label and len(numbers) != 1:
        raise InputError(
            f"{table.path}: --forecast needs one column to forecast among {listed(numbers or rest)}",
            f"pass --label NAME, for example: {example(table.path, options, label=(numbers or rest or ['y'])[-1])}",
        )
    label = label or numbers[0]
    values = (label, *(name for name in numbers if name != label))
    what = f"forecasts {label!r}" + (f" from it and {listed(values[1:])}" if len(values) > 1 else "")
    return StepColumns(values, time, series_id, (what, *notes))


# ---- series


@dataclass(frozen=True, eq=False)
class Series:
    """Steps of one series in time: values (steps, channels), NaN if missing, and the name of each step."""

    name: str
    values: np.ndarray
    steps: np.ndarray
    times: np.ndarray  # (steps,), sortable


def _read_series(table: Table, columns: StepColumns, options: OwnDataOptions) -> list[Series]:
    """Return the series of a table, each sorted by its times; refuse cells that are not numbers."""
    import pandas as pd

    frame = table.frame
    values = values_of(table, columns.values, options, fill=options.missing != "refuse")
    times = sortable_times(table, columns.time) if columns.time else np.arange(len(frame))
    member, names = np.zeros(len(frame), np.int64), [""]
    if columns.id:
        member, names = pd.factorize(as_texts(frame[columns.id]))
    repeated = pd.DataFrame({"member": member, "time": times}).duplicated().to_numpy()
    for row in np.flatnonzero(repeated):
        table.bad.add(
            row,
            f"a second row at {columns.time} {frame[columns.time][row]}",
            "pass --id NAME if the table holds several series",
        )
    table.bad.skip = None  # a step that is left out would shift the steps before it
    table.bad.readable()
    steps = (
        as_texts(frame[columns.time]).to_numpy(str) if columns.time else np.arange(len(frame)).astype(str)
    )
    series: list[Series] = []
    for number, name in enumerate(names):
        rows = np.flatnonzero(member == number)
        rows = rows[np.argsort(times[rows], kind="stable")]
        series.append(Series(str(name), values[rows], steps[rows], times[rows]))
    return series


# ---- windows


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows (rows, past, channels) of steps (steps, channels) that begin at ``starts`` (rows,); read by range."""

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


def _newest_windows(origin: str, series: Sequence[Series], past: int) -> Rows:
    """Return the last ``past`` steps of each series, without labels."""
    for part in series:
        if len(part.steps) < past:
            name = f" {part.name!r}" if part.name else ""
            raise InputError(
                f"{origin}: the series{name} has {len(part.steps):,} steps, but the readout reads {past:,}",
                "give more of its past",
            )
    names = [part.name for part in series]
    is_single_series = names == [""]  # without a column of ids, the table is one series, which has no name
    ids = None if is_single_series else np.array(names)
    return Rows(x=np.stack([part.values[-past:] for part in series]), ids=ids)


def _labelled_windows(
    origin: str, series: Sequence[Series], columns: StepColumns, horizon: int, options: OwnDataOptions
) -> Rows:
    """Return every window that has ``horizon`` steps after it, oldest first, with these as labels, and its split."""
    # How many steps a window has: the same in all series, by their median length.
    typical = int(np.median([len(part.steps) for part in series]))
    past = options.past or max(1, min(MAX_PAST, round(PAST_SHARE * typical)))
    read = past * len(columns.values) * (2 if options.missing == "mask" else 1)
    if read > MAX_PAST_VALUES:
        raise InputError(
            f"{origin}: --past {past:,} reads {read:,} values of {listed(columns.values)}",
            f"lower it, so that at most {MAX_PAST_VALUES:,} values are read, or leave out columns with --drop",
        )
    # All series one after the other; ``offsets`` has the first row of each.
    offsets = np.cumsum([0, *(len(part.steps) for part in series)])
    steps = np.concatenate([part.values for part in series])
    # Each window by its first label: the row of the table, and its distance to the end of the series. Series are
    # taken to end at the same time, so that windows at one distance from the end are of one time.
    first_label, from_end = [], []
    for part, offset in zip(series, offsets, strict=False):
        inside = np.arange(past, len(part.steps) - horizon + 1)
        first_label.append(offset + inside)
        from_end.append(len(part.steps) - inside)
    first, distance = np.concatenate(first_label), np.concatenate(from_end)
    order = np.argsort(-distance, kind="stable")
    first, distance = first[order], distance[order]
    windows = Windows(steps, first - past, past)
    y = steps[first[:, None] + np.arange(horizon), 0]
    # The newest steps are test, those before them valid. Windows with labels in test and before it are in no split.
    test = max(horizon, round(SHARES["test"] * typical))
    valid = max(horizon, round(SHARES["valid"] * typical))
    split = np.select([distance <= test, distance >= test + horizon], ["test", "train"], "")
    split[(split == "train") & (distance <= test + valid)] = "valid"
    is_used = (split != "") & np.isfinite(y).all(axis=1) & _has_values(windows)
    for name in SHARES:
        if not (split[is_used] == name).any():
            raise InputError(
                f"{origin}: {typical:,} steps are too few for --past {past} --forecast {horizon}: "
                f"no window is left for the split {name!r}",
                "lower the two, or give more steps",
            )
    names = np.concatenate([_step_names(part) for part in series])
    times = np.concatenate([part.times for part in series])
    member = np.repeat(np.arange(len(series)), np.diff(offsets))
    return Rows(
        x=Windows(steps, first[is_used] - past, past),
        y=y[is_used],
        split=split[is_used],
        ids=names[first[is_used]],
        piece_rows=max(1, PIECE_VALUES // (past * steps.shape[1])),
        notes=(
            *columns.notes,
            f"windows of {past} steps; the newest {test:,} steps are test, the {valid:,} before them valid",
            *notes_on_gaps(times, member),
        ),
        roles={flag: name for flag, name in columns.parameters.items() if flag != "columns"},
        parameters={**columns.parameters, "past": past, "series": len(series)},
        label=columns.values[0],
        unused=UNUSED,
    )


def _step_names(part: Series) -> np.ndarray:
    """Return the names of the steps of a series, which begin with its own name if there are several."""
    return part.steps if not part.name else np.char.add(f"{part.name} ", part.steps)


def _has_values(windows: Windows) -> np.ndarray:
    """Return which windows have a value of every channel, (rows,): those without cannot be filled."""
    present = np.isfinite(windows.steps)
    counts = np.concatenate([np.zeros((1, present.shape[1]), np.int64), present.cumsum(axis=0)])
    numbers = counts[windows.starts + windows.past] - counts[windows.starts]
    return numbers.min(axis=1) > 0
