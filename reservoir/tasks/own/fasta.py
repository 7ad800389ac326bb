"""FASTA: sequences of letters under headers, which may have their names, labels and groups."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.arrays import Arrays
from reservoir.tasks.own.folders import labels_from_table
from reservoir.tasks.own.table_reader import columns_as_arrays
from reservoir.tasks.own.tables import lines_of


def fasta_arrays(path: Path, asked: OwnDataOptions, *, labelled: bool) -> Arrays:
    """Return the sequences of a FASTA file, the names of the records, and their labels and groups.

    These come from the table that ``asked.labels`` names, joined by the name of the record, or from the headers: the
    label is what the pattern ``asked.label`` finds, or the last word, or what follows the last ``|``; the group is what
    the pattern ``asked.group`` finds. New sequences, which are not ``labelled``, need neither.
    """
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
    arrays, notes, where = {}, [], list(zip([f"{path}, {place}" for place in places], headers, strict=True))
    if labelled and asked.labels:
        arrays, notes = labels_from_table(asked, ids)
        columns["label"] = list(arrays.pop("y"))
    elif labelled:
        if asked.label:
            columns["label"] = _found_in_headers(where, asked.label, "label")
            notes = [f"the label is what {asked.label} finds in the header"]
        elif all(len(header.split()) > 1 for header in headers):
            columns["label"] = [header.split()[-1] for header in headers]
            notes = ["the label is the last word of the header"]
        elif all("|" in header for header in headers):
            columns["label"] = [header.rsplit("|", 1)[1].strip() for header in headers]
            notes = ["the label is what follows the last | of the header"]
        else:
            raise InputError(
                f"{path}: no label in headers like {headers[0][:60]!r}; say where, as in --label 'class=(\\w+)', "
                "or pass a table with --labels"
            )
        if asked.group:
            columns["groups"] = _found_in_headers(where, asked.group, "group")
    roles = {"id": "id", "text": "sequence"}
    found = columns_as_arrays(str(path), columns, places, arrays, skip=asked.skip_bad_rows, labelled=labelled, **roles)
    found.notes += notes
    return found


def _found_in_headers(headers: Sequence[tuple[str, str]], pattern: str, flag: str) -> list[str]:
    """Return what a pattern's group finds in each header, beside its place."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--{flag} {pattern}: no pattern ({error}); give one with a group in parentheses") from None
    if compiled.groups != 1:
        raise InputError(f"--{flag} {pattern}: {compiled.groups} groups; give a pattern with one, in parentheses")
    found = []
    for where, header in headers:
        match = compiled.search(header)
        if match is None or match.group(1) is None:
            raise InputError(f"{where}: the header {header[:60]!r} does not match --{flag} {pattern}")
        found.append(match.group(1))
    return found
