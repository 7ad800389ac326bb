"""The arrays of a table while they are read: what the forms of a table (values, sequences, long) have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.columns import require_column
from reservoir_pipelines.data.label_cells import joined_labels
from reservoir_pipelines.data.roles import Roles
from reservoir_pipelines.data.table import Table


@dataclass
class TableArrays:
    """A table with the roles of its columns, and its arrays (rows, ...) so far.

    ``fitted`` has the parameters of the readout's task if these are new sequences, else it is None.
    ``chosen`` are the choices that are needed to read new data.
    """

    table: Table
    roles: Roles
    options: OwnDataOptions
    fitted: Mapping[str, Any] | None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)

    @property
    def new(self) -> bool:
        """Whether these are new sequences, which need no labels."""
        return self.fitted is not None

    @property
    def remembered(self) -> Mapping[str, Any]:
        """The parameters of the readout's task; empty while a task is made."""
        return self.fitted or {}

    @property
    def fill(self) -> bool:
        """Whether missing values are filled later, so that an empty cell is NaN."""
        return self.options.missing != "refuse"

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as texts."""
        return [str(cell).strip() for cell in self.table.frame[name]]

    def read_labels(self) -> None:
        """Read the columns of labels, if any, as ``y``."""
        labels = [name for name in self.roles.labels if name in self.table.frame]
        if labels:
            self.arrays["y"] = joined_labels(self.table, labels, self.options, required=not self.new)

    def read_groups_and_split(self) -> None:
        """Read the columns of groups and splits, if any; an empty cell is a bad row while a task is made."""
        for array, name in {"split": self.roles.split, "groups": self.roles.group}.items():
            if not name:
                continue
            for row in np.flatnonzero(self.table.frame[name].isna()) if not self.new else ():
                self.table.bad.add(row, f"no {array} in column {name!r}")
            self.arrays[array] = np.array(self.texts(name))

    def value_columns(self) -> list[str]:
        """Return the columns of values: those of the readout's task, in its order, or all without another role.

        If rows of the task may end early, the last columns may be missing.
        """
        table = self.table
        names = list(self.remembered.get("columns", self.roles.values))
        present = [name for name in names if name in table.frame]
        required = names[: max(len(present), 1)] if self.remembered.get("early") else names
        for name in required:
            require_column(table.path, table.names, name, fitted=names)
        if not present:
            raise InputError(
                f"{table.path}: no columns of values", "give one column per value of a sequence"
            )
        self.chosen["columns"] = present
        return present
