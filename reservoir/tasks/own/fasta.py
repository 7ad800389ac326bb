"""FASTA: sequences of letters under headers, from which come their names and labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from reservoir.errors import InputError
from reservoir.tasks.own.tables import Table, lines_of


def read_fasta(path: Path) -> Table:
    """Return the columns ``id``, ``header`` and ``sequence`` of a FASTA file."""
    headers: list[str] = []
    sequences: list[list[str]] = []
    for number, line in enumerate(lines_of(path), 1):
        if line.startswith(">"):
            headers.append(line[1:].strip())
            sequences.append([])
        elif not headers and line.strip():
            raise InputError(f"{path}, line {number}: no header; a FASTA file has a line with > before each sequence")
        elif headers:
            sequences[-1].append(line.strip())
    if not headers:
        raise InputError(f"{path}: no sequences; a FASTA file has a line with > before each")
    ids = [header.split(maxsplit=1)[0] if header else str(row) for row, header in enumerate(headers)]
    return {"id": ids, "header": headers, "sequence": ["".join(parts) for parts in sequences]}


def header_labels(path: Path, headers: Sequence[str], pattern: str) -> tuple[list[str], str]:
    """Return the label of each header, and a note: a pattern's group, or the last word, or what follows the last |."""
    if pattern:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise InputError(f"--label {pattern}: no pattern ({error}); give one with a group in parentheses") from None
        if compiled.groups != 1:
            raise InputError(f"--label {pattern}: {compiled.groups} groups; give a pattern with one, in parentheses")
        matches = [compiled.search(header) for header in headers]
        for row, match in enumerate(matches):
            if match is None or match.group(1) is None:
                raise InputError(
                    f"{path}, row {row}: the header {headers[row][:60]!r} does not match --label {pattern}"
                )
        return [match.group(1) for match in matches if match], f"the label is what {pattern} finds in the header"
    if all(len(header.split()) > 1 for header in headers):
        return [header.split()[-1] for header in headers], "the label is the last word of the header"
    if all("|" in header for header in headers):
        return [
            header.rsplit("|", 1)[1].strip() for header in headers
        ], "the label is what follows the last | of the header"
    raise InputError(f"{path}: no label in headers like {headers[0][:60]!r}; say where, as in --label 'class=(\\w+)'")
