"""Tables with a row per sequence: a value per column, a list per channel, or a whole sequence in one cell."""

from typing import Any

import numpy as np

from reservoir_pipelines.data.bad_rows import EMPTY_CELL
from reservoir_pipelines.data.cells import (
    as_texts,
    holds_digits,
    holds_lists,
    holds_sequences,
    holds_words,
    numbers_of_list,
    numbers_of_text,
)
from reservoir_pipelines.data.columns import listed
from reservoir_pipelines.data.table_arrays import TableArrays
from reservoir_pipelines.data.value_cells import values_of


def read_values(reading: TableArrays) -> None:
    """Read columns with one value per cell as ``x``, floats (rows, values); rows may end early (``lengths``)."""
    table = reading.table
    names = reading.value_columns()
    if all(holds_lists(table.frame[name]) for name in names):
        _read_channels(reading, names)
        return

    # A row ends at its last filled cell; an empty cell before that is a missing value.
    empty = np.stack([_is_empty(table.frame[name]) for name in names], axis=1)
    lengths = len(names) - np.argmin(empty[:, ::-1], axis=1)
    for row in np.flatnonzero(empty.all(axis=1)):
        table.bad.add(row, "no value")
    short_rows = int((lengths < len(names)).sum())
    if short_rows:
        reading.notes.append(
            f"{short_rows:,} rows have no value in the last columns, and end at their last value"
        )
        reading.chosen["early"] = True
    if not reading.new and not all(name[-1:].isdigit() for name in names):
        reading.notes.append(f"{len(names)} values per row: {listed(names)}")
    reading.arrays["x"] = values_of(table, names, reading.options, fill=reading.fill, lengths=lengths)
    reading.arrays["lengths"] = lengths


def _is_empty(column: Any) -> np.ndarray:
    empty = column.isna()
    if column.dtype.kind not in "biuf":
        empty |= column.astype(object) == ""
    return empty.to_numpy()


def _read_channels(reading: TableArrays, names: list[str]) -> None:
    """Read columns of lists of numbers, one column per channel, as ``x``: objects (steps, channels)."""
    table = reading.table
    reading.notes.append(f"{len(names)} channels, one per column of lists: {listed(names)}")
    x = np.empty(len(table.frame), object)
    for row, cells in enumerate(zip(*(table.frame[name] for name in names), strict=True)):
        channels = [numbers_of_list(cell) for cell in cells]
        series = [channel for channel in channels if channel is not None and channel.ndim == 1]
        if len(series) < len(names) or len({channel.size for channel in series}) > 1:
            table.bad.add(row, f"the cells of {listed(names)} are not lists of numbers of one length")
            continue
        x[row] = np.stack(series, axis=1)
        if not reading.fill and np.isnan(x[row]).any():
            table.bad.add(row, f"{EMPTY_CELL} {listed(names)}")
    reading.arrays["x"] = x


def holds_letters(reading: TableArrays, name: str) -> bool:
    """Return whether the cells of a column of sequences are letters, not numbers."""
    if _holds_numbers(reading, name):
        return False
    cells = reading.table.frame[name]
    return bool(reading.options.text) or holds_digits(cells) or holds_words(cells)


def _holds_numbers(reading: TableArrays, name: str) -> bool:
    """Return whether the cells hold lists of numbers; for new data, the readout decides how texts are read."""
    cells = reading.table.frame[name]
    if holds_lists(cells) or reading.remembered.get("numbers"):
        return True
    return not reading.new and holds_sequences(cells)


def read_sequences(reading: TableArrays, name: str, *, letters: bool) -> None:
    """Read a column of ``letters``, or of lists or texts of numbers, as ``x``: an array of objects (rows,)."""
    table = reading.table
    if reading.roles.values:
        reading.notes.append(f"only {name!r} is read, not the columns {listed(reading.roles.values)}")
    if letters:
        reading.chosen["text"] = name
        reading.arrays["x"] = _letters(reading, name)
        return
    if _holds_numbers(reading, name) and name.lower() not in {"x", "sequence"}:
        reading.chosen |= {"text": name, "numbers": True}
    cells = table.frame[name]
    sequences = [
        numbers_of_text(cell) if isinstance(cell, str) else numbers_of_list(cell) for cell in cells
    ]
    shape = next((sequence.shape[1:] for sequence in sequences if sequence is not None), ())
    for row, sequence in enumerate(sequences):
        if sequence is None or not sequence.size:
            table.bad.add(row, f"{str(cells[row])[:40]!r} is not a sequence of numbers in column {name!r}")
        elif sequence.shape[1:] != shape:
            table.bad.add(row, f"tokens of shape {sequence.shape[1:]}, but {shape} in the rows before")
        elif not reading.fill and sequence.dtype.kind == "f" and np.isnan(sequence).any():
            table.bad.add(row, f"{EMPTY_CELL} {name!r}")
    reading.arrays["x"] = np.fromiter(sequences, object)


def _letters(reading: TableArrays, name: str) -> np.ndarray:
    """Return a column of texts, (rows,) of objects; an empty text, and one with a NUL, is a bad row."""
    texts = as_texts(reading.table.frame[name])
    for row in np.flatnonzero((texts == "") | texts.str.contains("\0", regex=False)):
        reading.table.bad.add(row, "a NUL in the text" if texts[row] else "an empty text")
    return texts.to_numpy(object)
