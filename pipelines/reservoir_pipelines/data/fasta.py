"""FASTA files: a header with a name, and often a label, before each sequence."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from reservoir.errors import InputError, as_input_error
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import BadRows, Rows
from reservoir_pipelines.data.table import lines_of
from reservoir_pipelines.data.table_labels import labels_from_table
from reservoir_pipelines.data.table_rows import columns_as_rows

SUFFIXES = (".fasta", ".fa", ".faa", ".fna")
LAST_WORD = r"[\s|]([^\s|]+)$"  # the label in a header without --label
ENTRY = re.compile(r"(?<![^\s|])(\w+)=")  # a name with a value, such as OX=9606


class Record(NamedTuple):
    """A sequence with its header, and where the header stands."""

    header: str
    place: str
    sequence: str


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return sequences, names, labels and groups of the records of a FASTA file; a ``task`` reads new ones."""
    path, is_new = Path(origin), task is not None
    # Lower case marks repeats (soft masking), unless the readout was fitted on a table with lower-case letters.
    upper = task is None or not any(map(str.islower, task.alphabet))
    records = _read_records(path, upper=upper)
    headers = [record.header for record in records]
    bad = BadRows(origin, [record.place for record in records], skip=options.skip_bad_rows)
    # The labels are in a table, or in the headers.
    ids, notes = _names(headers, options, is_new=is_new)
    columns: dict[str, Any] = {"id": ids, "sequence": [record.sequence for record in records]}
    if options.labels:
        table = labels_from_table(options, ids, bad, is_new=is_new)
        notes += table.notes
        columns |= {"label" if name == "y" else name: list(array) for name, array in table.arrays.items()}
    # A readout that was fitted on a table, or with --labels, has names of columns instead of patterns.
    elif task is None or not {"text", "labels", "columns"} & task.parameters.keys():
        label_pattern = options.label or ""
        if task is None and not options.label:
            label_pattern, notes_on_label = _default_pattern(headers)
            notes += notes_on_label
        labels = _matches(bad, headers, label_pattern, "label", is_new=is_new)
        if task is not None and not options.label:
            label_pattern, labels = LAST_WORD, _classes_at_end(headers, task)
        groups = _matches(bad, headers, options.group or "", "group", is_new=is_new)
        if any(labels):
            columns["label"] = labels
            notes.append(f"the label is the match of {label_pattern} in the header")
        if groups and None not in groups:
            columns["groups"] = groups
    parameters = None if task is None else {"each": "token"} if task.labels_each_token else {}
    rows = columns_as_rows(columns, bad, options, parameters, id="id", text="sequence")
    unused = ("time", "text", "drop", *(() if options.labels else ("id",)))
    return replace(rows, notes=(*rows.notes, *notes), unused=unused)


def _read_records(path: Path, *, upper: bool) -> list[Record]:
    """Return the records of a file, with their sequences in upper case if ``upper``; refuse a file without any."""
    records: list[Record] = []
    letters: list[str] = []  # the lines of the last record so far

    def end_record() -> None:
        if records:
            records[-1] = records[-1]._replace(sequence="".join(letters))
            letters.clear()

    for number, line in enumerate(lines_of(path), 1):
        if line.startswith(">"):
            end_record()
            records.append(Record(line[1:].strip(), f"line {number}", ""))
        elif records:
            block = "".join(line.split())  # spaces divide a sequence into blocks
            letters.append(block.upper() if upper else block)
        elif line.strip():
            raise InputError(
                f"{path}, line {number}: no header", "a FASTA file has a line with > before each sequence"
            )
    end_record()
    if not records:
        raise InputError(f"{path}: no sequences", "a FASTA file has a line with > before each")
    return records


def _default_pattern(headers: Sequence[str]) -> tuple[str, list[str]]:
    """Return the pattern of the label in headers without ``--label``, empty if there is none, and notes.

    It is the last word. But if headers have several entries such as ``OX=9606 GN=INS SV=2``, the last one is probably
    not the label.
    """
    last_words = [match.group(1) for header in headers if (match := re.search(LAST_WORD, header))]
    keys = [*dict.fromkeys(ENTRY.findall(headers[0]))]
    are_entries = sum(map(bool, map(ENTRY.match, last_words))) > len(headers) / 2
    if are_entries and len(keys) > 1:
        pattern = quote(rf"{keys[0]}=([^\s|]+)")
        note = (
            f"headers have the entries {', '.join(keys)}, of which none is read as the label; pass --label"
        )
        return "", [f"{note} with a pattern, such as --label {pattern}"]
    if last_words:
        return LAST_WORD, []
    how = r"pass --label with a pattern of it, such as 'class=(\w+)', or --labels with a table of names and labels"
    return "", [f"no header has a label after its name; {how}"]


def _classes_at_end(headers: Sequence[str], task: Task) -> list[str | None]:
    """Return the last word of each new header if it is the name of a class, else None."""
    words = [match and match.group(1) for match in (re.search(LAST_WORD, header) for header in headers)]
    return [word if word in task.labels else None for word in words]


def _names(headers: Sequence[str], options: OwnDataOptions, *, is_new: bool) -> tuple[list[str], list[str]]:
    """Return the first word of each header, with the row's number if most of these words repeat, and notes."""
    ids = [header.split(maxsplit=1)[0] if header else str(row) for row, header in enumerate(headers)]
    are_names = 2 * len(set(ids)) > len(ids)
    if are_names or options.labels:
        return ids, []
    numbered = [f"{name}#{row}" for row, name in enumerate(ids)]
    if is_new or options.group or ids == list(headers):
        return numbered, []
    note = "most names of records repeat, so records of one name may be in several splits"
    return numbered, [f"{note}; pass --group '^(\\S+)' to keep them in one"]


def _matches(
    bad: BadRows, headers: Sequence[str], pattern: str, flag: str, *, is_new: bool
) -> list[str | None]:
    """Return the match of a pattern's group in each header, or nothing without a pattern; new headers may lack it."""
    if not pattern:
        return []
    with as_input_error(f"--{flag} {pattern}: not a regular expression", "give one with a group"):
        compiled = re.compile(pattern)
    if compiled.groups != 1:
        raise InputError(
            f"--{flag} {pattern}: {compiled.groups} groups", "give a pattern with one, in parentheses"
        )
    matches = [match and match.group(1) for match in map(compiled.search, headers)]
    if None in matches and not is_new:
        row = matches.index(None)
        raise InputError(
            f"{bad.where}, {bad.places[row]}: no {flag} in the header {headers[row][:60]!r} by --{flag} {pattern}",
            "pass another pattern, such as 'class=(\\w+)', or a table with --labels",
        )
    return matches
