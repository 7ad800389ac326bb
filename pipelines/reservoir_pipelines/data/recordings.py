"""Recordings: tables with a row per step and a column per channel, each of which is one sequence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.bad_rows import BadRows
from reservoir_pipelines.data.columns import example, listed, require_column, separated
from reservoir_pipelines.data.roles import INDEX, conventional
from reservoir_pipelines.data.rows import Rows, padded
from reservoir_pipelines.data.table import Table, read_table
from reservoir_pipelines.data.times import sortable_times
from reservoir_pipelines.data.value_cells import values_of

OTHER_RATE = 1.5
"""Ratio of the times between rows of recordings from which a note says that they differ."""


class RecordingReader:
    """Reads recordings of the same channels; those of the first one count if ``channels`` is empty."""

    def __init__(self, options: OwnDataOptions, where: str, channels: Sequence[str]):
        self.options, self.where = options, where
        self.channels = list(channels)
        self.fitted = bool(channels)
        self.steps: set[float] = set()  # median time from row to row of each recording

    def read(self, file: Path) -> np.ndarray:
        """Return the values of a recording, (steps, channels), in the order of its times."""
        table = read_table(file, decimal=self.options.decimal)
        require_column(file, table.names, self.options.time, "" if self.fitted else "time")
        dropped = separated(self.options.drop)
        for name in () if self.channels else dropped:
            require_column(file, table.names, name, "drop")
        table.frame = table.frame.drop(columns=dropped, errors="ignore")
        time = self._time_column(table)
        if time:
            table, step = _in_order(table, time)
            self.steps |= {step} - {0.0}
        channels = self.channels or [
            name for name in table.names if name != time and not INDEX.fullmatch(name)
        ]
        missing = [name for name in channels if name not in table.frame]
        if missing:
            raise InputError(
                f"{file}: no column {missing[0]!r} among {listed(table.names)}",
                "give the same columns as in the other recordings",
            )
        if not channels or not len(table.frame):
            raise InputError(f"{file}: no values", "give a column per channel and a row per step")
        fill = self.options.missing != "refuse"
        values = values_of(table, channels, self.options, fill=fill, data=self.where)
        table.bad.readable()
        self.channels = channels
        return values

    def notes(self) -> list[str]:
        """Return a note if the sampling rates of the recordings differ."""
        if not self.steps or max(self.steps) <= OTHER_RATE * min(self.steps):
            return []
        ratio = max(self.steps) / min(self.steps)
        return [
            f"the rows of some recordings are {ratio:.3g} times as far apart in time as those of others; "
            "resample them to one sampling rate"
        ]

    def _time_column(self, table: Table) -> str:
        if self.options.time:
            return self.options.time
        names = conventional("time", [name for name in table.names if name not in self.channels])
        if len(names) > 1 and not self.fitted:
            command = example(self.where, self.options, time=names[0])
            raise InputError(
                f"{table.path}: the columns {listed(names)} all have conventional names of the time",
                f"pass --time NAME, for example: {command}",
            )
        return names[0] if names else ""


def recording_rows(
    files: Sequence[Path],
    others: Mapping[str, Any],
    bad: BadRows,
    options: OwnDataOptions,
    channels: Sequence[str],
) -> Rows:
    """Return recordings as rows, with their other arrays (files,); ``channels`` are those of a readout, if any."""
    reader = RecordingReader(options, bad.where, channels)
    sequences = bad.read_files(files, reader.read)
    readable = bad.readable()
    x, lengths = padded(str(files[0].parent), sequences)
    values = listed(reader.channels)
    note = f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {values}"
    return Rows(
        x=x,
        lengths=lengths,
        **{name: array[readable] for name, array in others.items()},
        files=tuple(files),
        notes=(note, *reader.notes()),
        parameters={"columns": reader.channels, "recordings": True},
    )


def _in_order(table: Table, name: str) -> tuple[Table, float]:
    """Return the rows of a recording sorted by a column of times, which may repeat in order, and their median gap."""
    times = sortable_times(table, name)
    gaps = np.diff(np.sort(times)) / (np.timedelta64(1, "s") if times.dtype.kind == "M" else 1)
    step = float(np.median(gaps)) if len(gaps) else 0.0
    if (times[1:] >= times[:-1]).all():
        return table, step
    if len(np.unique(times)) < len(times):
        raise InputError(
            f"{table.path}: the times in {name!r} repeat and are not in order",
            f"sort the rows, or pass --drop {quote(name)} if they are sorted",
        )
    return table.take(np.argsort(times).tolist()), step
