"""The columns among which a fit chooses, and the cross-validation that compares their readouts."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reservoir.errors import InputError
from reservoir.options import FitOptions
from reservoir.plan import RAW, choose_folds, default_column, readout_candidates
from reservoir.tasks import TASKS
from reservoir_pipelines.fitting.folds import can_choose, groups_of, held_out_units
from reservoir_pipelines.fitting.pool import Known
from reservoir_pipelines.fitting.source import KNOWN, ColumnSource

RACED_COLUMNS = 4  # default columns from which a race saves time


class Candidates(NamedTuple):
    """The columns that a fit tries, and the cross-validation that chooses among their readouts."""

    columns: tuple[str, ...]
    default: str | None  # the column that is chosen unless another is clearly better
    folds: int  # 0 for a choice on validation rows
    repeats: int
    groups: np.ndarray | None  # of each row in train, then valid
    races: bool  # whether fits to some of the rows may exclude columns
    chooses: bool  # False if the folds cannot tell readouts apart (see `can_choose`)
    baseline_may_win: bool  # whether a baseline is saved if it is clearly better
    folder: Path  # default folder of the results


def choose_candidates(known: Known, options: FitOptions) -> Candidates:
    """Return the columns to try, and the cross-validation that chooses among their readouts."""
    groups = groups_of(known.view)
    folds, repeats = choose_folds(options, known.rows, None if groups is None else len(np.unique(groups)))
    # The columns are those that the user names, or the defaults of the task.
    named = _named_columns(known, options.columns)
    names = _default_columns(known, cross_validated=bool(folds)) if named is None else named
    if not names:
        remedy = "extract it to the end, or name the key of another entry"
        if known.columns:
            remedy = f"name some of {', '.join(known.columns)}"
        raise InputError(f"{known.entry.path}: no columns to fit", remedy)
    folder = known.folder(names, options)
    # If no fold can both fit and hold out most classes, nothing is chosen, and the first column is fitted.
    chooses = not folds or _can_choose(known, names[0])
    names = names if chooses else names[:1]
    # A named task is a benchmark of the reservoir. On the user's own data, a baseline is saved if it is better.
    own = options.columns == "all" and known.task.name not in TASKS and not known.task.each
    return Candidates(
        columns=names,
        default=default_column(names) if named is None else None,
        folds=folds,
        repeats=repeats,
        groups=groups,
        races=named is None and options.select == "auto" and len(names) >= RACED_COLUMNS,
        chooses=chooses,
        baseline_may_win=own and chooses,
        folder=folder,
    )


def _named_columns(known: Known, columns: str | Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns that an option names, without duplicates; None for ``all``, the default."""
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if names == ["all"]:
        return None
    for part in "+".join(names).split("+") if names else ():
        if part not in (*known.columns, RAW):
            cached = ", ".join(known.columns) or "none"
            raise InputError(f"column {part!r}: not cached", f"the cached ones are {cached}")
        known.column(part)  # refuses the raw input if its prepared data was removed
    return tuple(dict.fromkeys(names))


def _default_columns(known: Known, *, cross_validated: bool) -> tuple[str, ...]:
    """Return the columns, alone and joined, among which a readout is chosen by default."""
    sources = {name: known.column(name) for name in known.columns}
    widths = {
        name: source.width()
        for name, source in sources.items()
        if isinstance(source, ColumnSource) and source.tokens() == 1
    }
    native = len(known.views) > 1 or known.entry.spec.input.kind == "native"
    names = readout_candidates(
        known.task,
        known.columns,
        widths,
        known.rows["train"],
        cross_validated=cross_validated,
        native=native,
    )
    return tuple(dict.fromkeys(names))


def _can_choose(known: Known, column: str) -> bool:
    """Return whether folds can choose among readouts of a column (see `can_choose`)."""
    source = known.source(column)
    labels = np.concatenate([source.labels(split) for split in KNOWN])
    # Values have no classes. With several labels per sample, a row holds out each of them in some class.
    if not known.task.classes or labels.shape[1] > 1:
        return True
    return can_choose(labels[:, 0], held_out_units(source, KNOWN))
