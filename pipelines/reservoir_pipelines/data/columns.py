"""Names of columns in options and messages, and the command that a message shows."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reservoir.errors import InputError, nearest
from reservoir.option_fields import typed
from reservoir.options import OwnDataOptions

MAX_SHOWN = 20
"""Number of names of columns in a message."""


def listed(names: Sequence[str]) -> str:
    """Return the first names as text, for a message."""
    more = f" and {len(names) - MAX_SHOWN:,} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


def separated(names: object) -> list[str]:
    """Return the names of columns that an option gives, separated by commas."""
    return [name for name in map(str.strip, str(names or "").split(",")) if name]


def example(path: Path | str, options: OwnDataOptions, **changes: Any) -> str:
    """Return the command that reads a file with the user's options and these changes, to copy from a message."""
    return typed("prepare", [str(path)], replace(options, **changes))


def require_column(
    path: Path, names: Sequence[str], name: str | None, role: str = "", fitted: Collection[str] = ()
) -> None:
    """Refuse a table without a column (if any) that the flag ``role`` names, or that a readout needs.

    ``fitted`` are the columns that the readout has, so the remedy does not suggest them.
    """
    if not name or name in names:
        return
    if role:
        problem = f"{path}: no column {name!r} (--{role}) among {listed(names)}"
    else:
        problem = (
            f"{path}: no column {name!r}, which the readout was fitted on, among {listed(names)}; "
            f"rename the column that holds it to {name!r}"
        )
    several = separated(name)
    if len(several) > 1 and {*several} <= {*names}:
        hint = f"; give one column: add one that joins the cells of {listed(several)}"
    else:
        hint = nearest(name, [other for other in names if other not in fitted])
    raise InputError(problem + hint)
