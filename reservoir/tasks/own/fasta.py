"""FASTA: sequences of letters under headers, which may have their names, labels and groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.arrays import Arrays
from reservoir.tasks.own.media import labels_from_table
from reservoir.tasks.own.table_reader import TableReader
from reservoir.tasks.own.tables import Table, lines_of


def fasta_arrays(path: Path, asked: OwnDataOptions, known: Mapping[str, Any] | None) -> Arrays:
    """Return the sequences of a FASTA file, the names of the records, and their labels and groups.

    These come from the table that ``asked.labels`` names, joined by the name of the record, or from the headers: the
    label is what the pattern ``asked.label`` finds, or the last word, or what follows the last ``|``; the group is what
    the pattern ``asked.group`` finds. New sequences (``known`` has the task's parameters) need neither.
    """
    table = read_fasta(path)
    headers = list(table.frame.pop("header"))
    arrays, notes = {}, []
    if known is None and asked.labels:
        arrays, notes = labels_from_table(asked, list(table.frame["id"]))
        table.frame["label"] = "0"  # stands in for the labels of the table
    elif known is None:
        table.frame["label"], note = header_labels(table, headers, asked.label or "")
        notes = [note]
        if asked.group:
            table.frame["groups"] = found_in_headers(table, headers, asked.group, "group")
    options = OwnDataOptions(id="id", text="sequence", skip_bad_rows=asked.skip_bad_rows)
    reader = TableReader(table, options, known)
    columns = reader.arrays_of_table()
    if arrays:
        kept = reader.bad.kept()
        columns.replace({name: array[kept] for name, array in arrays.items()})
    columns.notes += notes
    columns.chosen.clear()
    return columns


def read_fasta(path: Path) -> Table:
    """Return the columns ``id``, ``header`` and ``sequence`` of a FASTA file."""
    import pandas as pd

    headers: list[str] = []
    sequences: list[list[str]] = []
    places: list[str] = []
    for number, line in enumerate(lines_of(path), 1):
        if line.startswith(">"):
            headers.append(line[1:].strip())
            places.append(f"line {number}")
            sequences.append([])
        elif headers:
            sequences[-1].append(line.strip())
        elif line.strip():
            raise InputError(f"{path}, line {number}: no header; a FASTA file has a line with > before each sequence")
    if not headers:
        raise InputError(f"{path}: no sequences; a FASTA file has a line with > before each")
    ids = [header.split(maxsplit=1)[0] if header else str(row) for row, header in enumerate(headers)]
    letters = ["".join(parts) for parts in sequences]
    return Table(path, pd.DataFrame({"id": ids, "header": headers, "sequence": letters}), places, {})


def header_labels(table: Table, headers: Sequence[str], pattern: str) -> tuple[list[str], str]:
    """Return the label of each header, and a note on its place."""
    if pattern:
        return found_in_headers(table, headers, pattern, "label"), f"the label is what {pattern} finds in the header"
    if all(len(header.split()) > 1 for header in headers):
        return [header.split()[-1] for header in headers], "the label is the last word of the header"
    if all("|" in header for header in headers):
        labels = [header.rsplit("|", 1)[1].strip() for header in headers]
        return labels, "the label is what follows the last | of the header"
    raise InputError(
        f"{table.path}: no label in headers like {headers[0][:60]!r}; say where, as in --label 'class=(\\w+)', "
        "or pass a table with --labels"
    )


def found_in_headers(table: Table, headers: Sequence[str], pattern: str, flag: str) -> list[str]:
    """Return what a pattern's group finds in each header."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--{flag} {pattern}: no pattern ({error}); give one with a group in parentheses") from None
    if compiled.groups != 1:
        raise InputError(f"--{flag} {pattern}: {compiled.groups} groups; give a pattern with one, in parentheses")
    found = []
    for row, header in enumerate(headers):
        match = compiled.search(header)
        if match is None or match.group(1) is None:
            raise InputError(
                f"{table.path}, {table.places[row]}: the header {header[:60]!r} does not match --{flag} {pattern}"
            )
        found.append(match.group(1))
    return found
