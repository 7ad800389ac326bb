"""Tables and facts: how results are shown, made once and then printed in a terminal or written to a page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from reservoir_pipelines.output import printable, value_text


@dataclass(frozen=True)
class TableColumn:
    """The name of a column, and whether it holds numbers, which are aligned on the right."""

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Rows of values with named columns, and perhaps a title."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Any]]
    title: str = ""

    def titled(self, title: str) -> Self:
        """Return a copy with a title."""
        return replace(self, title=title)


@dataclass(frozen=True)
class Facts:
    """Names with values, in their order, and perhaps a title."""

    pairs: Sequence[tuple[str, Any]]
    title: str = ""

    def titled(self, title: str) -> Self:
        """Return a copy with a title."""
        return replace(self, title=title)


@dataclass(frozen=True)
class Lines:
    """Sentences, one per line."""

    texts: Sequence[str]


Shown = ResultTable | Facts | Lines
"""What a command prints."""


def texts(*names: str) -> tuple[TableColumn, ...]:
    """Return columns of text."""
    return tuple(TableColumn(name) for name in names)


def numbers(*names: str) -> tuple[TableColumn, ...]:
    """Return columns of numbers."""
    return tuple(TableColumn(name, numeric=True) for name in names)


def print_shown(shown: Shown) -> None:
    """Print a table, facts or sentences to stdout, aligned and never cut or wrapped, and an empty line."""
    if isinstance(shown, Lines):
        lines = [printable(text) for text in shown.texts]
    elif isinstance(shown, Facts):
        lines = _aligned([printable(shown.title)] if shown.title else [], texts("", ""), shown.pairs)
    else:
        lines = _aligned([printable(shown.title)] if shown.title else [], shown.columns, shown.rows)
    sys.stdout.write("\n".join(lines) + "\n\n")


def _aligned(
    above: Sequence[str], columns: Sequence[TableColumn], rows: Sequence[Sequence[Any]]
) -> list[str]:
    """Return the lines of a table below ``above``; its headings are left out if all are empty."""
    cells = [[printable(cell) for cell in row] for row in rows]
    names = [printable(column.name) for column in columns]
    widths = [max(map(len, texts_of_column)) for texts_of_column in zip(names, *cells, strict=True)]
    head = [names, ["-" * width for width in widths]] if any(names) else []
    lines = [*above]
    for row in [*head, *cells]:
        aligned = (
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    return lines


def record_facts(record: Any, *names: str) -> Facts:
    """Return the fields of a record, or some of them, as facts; fields without a text are left out."""
    values = record if isinstance(record, Mapping) else vars(record)
    shown = {name: value_text(values[name], name) for name in names or values}
    return Facts([(name.replace("_", " "), text) for name, text in shown.items() if text])


def record_table(records: Sequence[Any], *names: str) -> ResultTable:
    """Return a table with one record per row, and some of the fields as columns."""
    rows = [record if isinstance(record, Mapping) else vars(record) for record in records]
    columns = [
        TableColumn(name.replace("_", " "), all(isinstance(row[name], int | float) for row in rows))
        for name in names
    ]
    return ResultTable(columns, [[value_text(row[name], name) for name in names] for row in rows])
