"""Folders of recordings: tables of steps, one sequence each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data import columns
from reservoir_pipelines.data.rows import Rows, padded
from reservoir_pipelines.data.tables import BadRows, Table, read_table

OTHER_RATE = 1.5  # ratio of the times between rows of recordings from which a note says that they differ


def recording_rows(
    files: Sequence[Path],
    others: Mapping[str, Any],
    bad: BadRows,
    options: OwnDataOptions,
    channels: Sequence[str],
) -> Rows:
    """Return the columns ``channels`` of recordings as rows, by default all values of the first; with other columns."""
    reader = RecordingReader(options, channels)
    sequences = bad.read_files(files, reader.read)
    readable = bad.kept()
    x, lengths = padded(str(files[0].parent), sequences)
    values = columns.listed(reader.channels)
    note = f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {values}"
    return Rows(
        x=x,
        lengths=lengths,
        **{name: array[readable] for name, array in others.items()},
        files=tuple(files),
        notes=(note, *reader.notes()),
        parameters={"columns": reader.channels, "recordings": True},
    )


class RecordingReader:
    """Reads recordings one after the other: the first decides the channels, unless a task has decided them."""

    def __init__(self, options: OwnDataOptions, channels: Sequence[str]):
        self.channels = list(channels)
        self._options, self._fitted = options, bool(channels)
        self._notes, self._steps = dict[str, None](), set[float]()

    def read(self, file: Path) -> np.ndarray:
        """Return the values of a recording, (steps, channels)."""
        options, table = self._options, read_table(file, decimal=self._options.decimal)
        columns.require_column(table, options.time, "" if self._fitted else "time")
        drop = columns.separated(options.drop)
        for name in () if self.channels else drop:
            columns.require_column(table, name, "drop")
        table.frame = table.frame.drop(columns=drop, errors="ignore")
        times = options.time or next((name for name in table.frame if name.lower() in columns.TIMES), "")
        if times:
            table, step = _in_order(table, times)
            self._steps |= {step} - {0.0}
        self._notes.update(dict.fromkeys(table.notes()))
        channels = self.channels or _channels(table.frame, times)
        if missing := [name for name in channels if name not in table.frame]:
            raise InputError(
                f"{file}: no column {missing[0]!r} among {columns.listed(list(table.frame))}",
                "give the same columns as in the other recordings",
            )
        if not channels or not len(table.frame):
            raise InputError(f"{file}: no values", "give a column per channel and a row per step")
        values = columns.values_of(table, channels, fill=options.missing != "refuse")
        table.bad.kept()
        self.channels = channels
        return values

    def notes(self) -> list[str]:
        """Return the notes on all recordings that were read."""
        notes = [*self._notes]
        if self._steps and max(self._steps) > OTHER_RATE * min(self._steps):
            ratio = max(self._steps) / min(self._steps)
            apart = (
                f"the rows of some recordings are {ratio:.3g} times as far apart in time as those of others"
            )
            notes.append(f"{apart}; resample them to one sampling rate")
        return notes


def _channels(frame: Any, times: str) -> list[str]:
    """Return the columns of values: all but times, and columns without a name that number the rows or are empty."""
    unnamed = [name for name in frame if columns.NO_NAME.fullmatch(name)]
    left_out = {name for name in unnamed if columns.counts_rows(frame[name]) or frame[name].isna().all()}
    return [name for name in frame if name.lower() not in columns.TIMES and name not in left_out | {times}]


def _in_order(table: Table, name: str) -> tuple[Table, float]:
    """Return the rows of a recording sorted by a column of times, which may repeat in order, and their median gap."""
    times = columns.sortable_times(table, name)
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
