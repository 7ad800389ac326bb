"""Recordings: one table per sequence, with a row per step and a column per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.arrays import Arrays, padded
from reservoir.tasks.own.bad_rows import BadRows, reason_of
from reservoir.tasks.own.cells import check_values, values_of
from reservoir.tasks.own.roles import NO_NAME, TIMES, counts_rows
from reservoir.tasks.own.tables import read_table


class Recordings(Arrays):
    """The values of recordings as ``x``, beside arrays that are known already.

    Parameters
    ----------
    files : sequence of Path
        Tables with the same columns, one per row.
    arrays : mapping
        The other arrays.
    bad : BadRows
        Where recordings that cannot be read are noted.
    asked : OwnDataOptions
        The columns that flags name.
    known : mapping, optional
        The parameters of a task, whose columns are then read.
    """

    def __init__(
        self,
        files: Sequence[Path],
        arrays: Mapping[str, np.ndarray],
        bad: BadRows,
        asked: OwnDataOptions,
        known: Mapping[str, Any] | None,
    ):
        names: list[str] = list((known or {}).get("columns", ()))
        read: dict[int, np.ndarray] = {}
        for row, file in enumerate(files):
            try:
                names, read[row] = _read(file, asked, names)
            except InputError as error:
                bad.add(row, reason_of(error, file))
        kept = bad.kept()
        x, lengths = padded(str(files[0].parent), [read[row] for row in np.flatnonzero(kept).tolist()])
        super().__init__({"x": x, "lengths": lengths} | {name: array[kept] for name, array in arrays.items()})
        self.files = list(files)
        self.chosen = {"columns": names, "recordings": True}
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        self.notes = [f"{len(lengths):,} recordings of up to {lengths.max():,} steps, with the values {shown}"]


def _read(path: Path, asked: OwnDataOptions, names: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the columns of values of a recording, those of the first one if ``names`` is empty, and the values."""
    table = read_table(path)
    bad = BadRows(str(path), table.places, skip=None)
    for row, reason in table.faults.items():
        bad.add(row, reason)
    frame = table.frame
    if not names:
        dropped = {*filter(None, map(str.strip, str(asked.drop or "").split(","))), asked.time}
        dropped |= {name for name in frame if name.lower() in TIMES}  # rows stand in the order of time
        dropped |= {name for name in frame if NO_NAME.fullmatch(name) and counts_rows(frame[name])}
        names = [name for name in frame if name not in dropped]
    if missing := [name for name in names if name not in frame]:
        raise InputError(f"{path}: no column {missing[0]!r}, as the first recording has, among {list(frame)}")
    if not names or not len(frame):
        raise InputError(f"{path}: no values; give a column per channel and a row per step")
    x = np.stack([values_of(table, name, bad) for name in names], axis=1)
    check_values(x, names, bad, fill=asked.missing != "refuse")
    bad.kept()
    return names, x
