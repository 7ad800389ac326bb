"""FASTA: sequences of letters under headers, which may have their names, labels and groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.arrays import Arrays
from reservoir.tasks.own.folders import labels_from_table
from reservoir.tasks.own.table_reader import TableReader
from reservoir.tasks.own.tables import BadRows, Table, lines_of


def fasta_arrays(path: Path, asked: OwnDataOptions, known: Mapping[str, Any] | None) -> Arrays:
    """Return the sequences of a FASTA file, the names of the records, and their labels and groups.

    These come from the table that ``asked.labels`` names, joined by the name of the record, or from the headers: the
    label is what the pattern ``asked.label`` finds, or the last word, or what follows the last ``|``; the group is what
    the pattern ``asked.group`` finds. New sequences (``known`` has the task's parameters) need neither.
    """
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
    columns: dict[str, Any] = {"id": ids, "sequence": ["".join(parts) for parts in sequences]}
    bad, notes = BadRows(str(path), places, skip=asked.skip_bad_rows if known is None else None), []
    if known is None and asked.labels:
        arrays, notes = labels_from_table(asked, ids)
        columns |= {"label" if name == "y" else name: list(array) for name, array in arrays.items()}
    elif known is None:
        columns["label"], notes = _header_labels(bad, headers, asked.label or "")
        if asked.group:
            columns["groups"] = _found_in_headers(bad, headers, asked.group, "group")
    options = OwnDataOptions(id="id", text="sequence")
    found = TableReader(Table(path, pd.DataFrame(columns), bad), options, known).arrays_of_table()
    found.notes += notes
    found.chosen = {}  # new files need no choice
    return found


def _header_labels(bad: BadRows, headers: Sequence[str], pattern: str) -> tuple[list[str], list[str]]:
    """Return the label of each header, and a note on its place."""
    if pattern:
        found = _found_in_headers(bad, headers, pattern, "label")
        return found, [f"the label is what {pattern} finds in the header"]
    if all(len(header.split()) > 1 for header in headers):
        return [header.split()[-1] for header in headers], ["the label is the last word of the header"]
    if all("|" in header for header in headers):
        found = [header.rsplit("|", 1)[1].strip() for header in headers]
        return found, ["the label is what follows the last | of the header"]
    raise InputError(
        f"{bad.where}: no label in headers like {headers[0][:60]!r}; say where, as in --label 'class=(\\w+)', "
        "or pass a table with --labels"
    )


def _found_in_headers(bad: BadRows, headers: Sequence[str], pattern: str, flag: str) -> list[str]:
    """Return what a pattern's group finds in each header."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--{flag} {pattern}: no pattern ({error}); give one with a group in parentheses") from None
    if compiled.groups != 1:
        raise InputError(f"--{flag} {pattern}: {compiled.groups} groups; give a pattern with one, in parentheses")
    found = []
    for place, header in zip(bad.places, headers, strict=True):
        match = compiled.search(header)
        if match is None or match.group(1) is None:
            raise InputError(f"{bad.where}, {place}: the header {header[:60]!r} does not match --{flag} {pattern}")
        found.append(match.group(1))
    return found
