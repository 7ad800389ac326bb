"""The long form of a table: a row per step, and all rows with one id are a sequence, ordered by their times."""

from shlex import quote

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.columns import listed, require_column
from reservoir_pipelines.data.rows import Skipped
from reservoir_pipelines.data.table_arrays import TableArrays
from reservoir_pipelines.data.times import sortable_times
from reservoir_pipelines.data.value_cells import values_of


def read_long_form(reading: TableArrays) -> Skipped:
    """Read ``x`` as sequences (steps, values) in an array of objects, and the other arrays, a row per sequence.

    Return why sequences are left out: a sequence with a bad row is left out as a whole, because a
    missing step would shift the later steps.
    """
    import pandas as pd

    table, roles = reading.table, reading.roles
    if reading.new:  # without these columns, rows of several sequences would be mixed
        for name in (reading.options.id or "id", reading.options.time or "time"):
            require_column(table.path, table.names, name, fitted=reading.remembered.get("columns", ()))
    for row in np.flatnonzero(table.frame[roles.id].isna()):
        table.bad.add(row, f"no id in column {roles.id!r}")
    ids = np.array(reading.texts(roles.id))

    # Often only one row of a sequence has its label.
    for label in {*roles.labels} & {*table.frame}:
        column = table.frame[label]
        table.frame[label] = column.fillna(column.groupby(ids).transform("first"))
    reading.read_labels()
    reading.read_groups_and_split()
    times = sortable_times(table, roles.time)
    names = reading.value_columns()
    steps = values_of(table, names, reading.options, fill=reading.fill)

    # ``member`` is the number of each row's sequence, and ``first`` the first row of each sequence.
    member, sequence_ids = pd.factorize(ids)
    for row in np.flatnonzero(pd.DataFrame({"member": member, "time": times}).duplicated()):
        table.bad.add(row, f"{str(ids[row])!r} has two rows at {roles.time} {times[row]}")
    first = np.unique(member, return_index=True)[1]
    _check_constant(reading, first[member])
    good = np.setdiff1d(np.arange(len(sequence_ids)), member[~table.bad.readable()])
    if not len(good):
        raise InputError(
            f"{table.path}: every sequence has a line that cannot be read ({table.bad.notes()[0]})",
            "fix these lines",
        )
    skipped: Skipped = {}
    for row, (_, reason) in table.bad.skipped(ids).items():
        skipped.setdefault(int(member[row]), (str(ids[row]), reason))

    # Sorting by sequence and then by time puts the rows of each sequence next to each other, in order.
    ordered_rows = np.split(np.lexsort((times, member)), np.cumsum(np.bincount(member))[:-1])
    reading.arrays = {array: values[first[good]] for array, values in reading.arrays.items()}
    reading.arrays["ids"] = sequence_ids[good]
    if reading.options.symbols and len(names) == 1:
        steps = steps[:, 0]
    reading.arrays["x"] = np.fromiter((steps[ordered_rows[sequence]] for sequence in good), object)
    reading.chosen |= {"long": True, "time": roles.time}
    reading.notes.append(
        f"long form: {len(ids):,} rows make {len(sequence_ids):,} sequences, one per {roles.id!r}, "
        f"ordered by {roles.time!r}, with the values {listed(names)}"
    )
    return skipped


def _check_constant(reading: TableArrays, first: np.ndarray) -> None:
    """Refuse rows whose label, group or split differs from that of the ``first`` row (rows,) of their sequence."""
    table, name = reading.table, reading.roles.id
    for array, values in reading.arrays.items():
        differs = (values != values[first]).reshape(len(values), -1).any(axis=1)
        if not differs.any():
            continue
        row = int(np.argmax(differs))
        what = "label" if array == "y" else array
        raise InputError(
            f"{table.path}, {table.bad.places[row]}: the {what} differs from earlier rows with this {name!r}",
            f"make them equal, or pass --group {quote(name)} or --drop {quote(name)} if each row is a whole sequence",
        )
