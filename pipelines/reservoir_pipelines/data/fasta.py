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
from reservoir_pipelines.data.labels import classes_by_name
from reservoir_pipelines.data.rows import BadRows, Rows
from reservoir_pipelines.data.table import lines_of
from reservoir_pipelines.data.table_labels import labels_from_table
from reservoir_pipelines.data.table_rows import columns_as_rows

SUFFIXES = (".fasta", ".fa", ".faa", ".fna")
LAST_WORD = r"[\s|]([^\s|]+)$"
"""Pattern of the label in a header by default: the last word, after a space or a bar."""

ENTRY = re.compile(r"(?<![^\s|])(\w+)=")
"""Pattern of an entry with a name and a value, such as OX=9606, at the beginning of a word."""


class FastaRecord(NamedTuple):
    """A sequence with its header."""

    header: str  # without the > before it
    place: str  # where the header is, such as "line 12"
    sequence: str


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return sequences, names, labels and groups of the records of a FASTA file; a ``task`` reads new ones."""
    path, is_new = Path(origin), task is not None
    # Lower case marks repeats (soft masking), unless the readout was fitted on a table with lower-case letters.
    upper = task is None or not any(map(str.islower, task.alphabet))
    records = _read_records(path, upper=upper)
    headers = [record.header for record in records]
    bad = BadRows(origin, [record.place for record in records], skip=options.skip_bad_rows)
    ids, notes = _names(headers, options, is_new=is_new)
    columns: dict[str, Any] = {"id": ids, "sequence": [record.sequence for record in records]}
    # The labels are in a table, or in the headers.
    if options.labels:
        table = labels_from_table(options, ids, bad, is_new=is_new)
        notes += table.notes
        columns |= {"label" if name == "y" else name: list(array) for name, array in table.arrays.items()}
    elif _may_have_labels_in_headers(task):
        labels_and_groups, notes_on_labels = _columns_of_headers(bad, headers, options, task)
        columns |= labels_and_groups
        notes += notes_on_labels
    rows = columns_as_rows(columns, bad, options, _fitted_parameters(task), id="id", text="sequence")
    # The flags that do nothing for a FASTA file, and are refused. --id names a column of the table of labels, if any.
    unused = ("time", "text", "drop") if options.labels else ("time", "text", "drop", "id")
    return replace(rows, notes=(*rows.notes, *notes), unused=unused)


def _may_have_labels_in_headers(task: Task | None) -> bool:
    """Return whether labels and groups are looked for in headers if there is no table of labels.

    They are while a task is made, and for new records of a readout that was fitted on FASTA files with labels in their
    headers. A readout that was fitted on a table, or with ``--labels``, has stored names of columns as its label and
    group, which are no patterns of headers.
    """
    if task is None:
        return True
    # A table of sequences stores the parameter "text", a table of values "columns", and a table of labels "labels".
    has_names_of_columns = not {"text", "labels", "columns"}.isdisjoint(task.parameters)
    return not has_names_of_columns


def _fitted_parameters(task: Task | None) -> dict[str, str] | None:
    """Return the parameters of a readout's task by which `columns_as_rows` reads new records; None without a task.

    They say whether each letter has a label. If not, they are empty, which still tells new records from those of a fit.
    """
    if task is None:
        return None
    return {"each": "token"} if task.labels_each_token else {}


def _columns_of_headers(
    bad: BadRows, headers: Sequence[str], options: OwnDataOptions, task: Task | None
) -> tuple[dict[str, list[str | None]], list[str]]:
    """Return the columns ``label`` and ``groups`` of the headers, as far as they have them, and notes.

    The patterns of ``--label`` and ``--group`` find them. Without ``--label``, the label is the last word of a header,
    of new headers only if it is the name of a class of the ``task``.
    """
    is_new = task is not None
    columns: dict[str, list[str | None]] = {}
    notes: list[str] = []
    label_pattern = options.label or ""
    if label_pattern:
        labels = _matches(bad, headers, label_pattern, "label", is_new=is_new)
    elif task is not None:
        label_pattern = LAST_WORD
        labels = _classes_at_end(headers, task)
    else:
        label_pattern, notes = _default_pattern(headers)
        labels = _matches(bad, headers, label_pattern, "label", is_new=is_new)
    groups = _matches(bad, headers, options.group or "", "group", is_new=is_new)
    if any(labels):
        columns["label"] = labels
        notes.append(f"the label is the match of {label_pattern} in the header")
    if groups and None not in groups:  # new headers may lack a group
        columns["groups"] = groups
    return columns, notes


def _read_records(path: Path, *, upper: bool) -> list[FastaRecord]:
    """Return the records of a file, with sequences in upper case if ``upper`` is set; refuse a file without records."""
    records: list[FastaRecord] = []
    lines: list[str] = []  # the lines of the last record's sequence so far

    def end_record() -> None:
        """Give the last record, if there is one, its sequence."""
        if records:
            records[-1] = records[-1]._replace(sequence="".join(lines))
            lines.clear()

    for number, line in enumerate(lines_of(path), 1):
        if line.startswith(">"):
            end_record()
            records.append(FastaRecord(line[1:].strip(), f"line {number}", sequence=""))
        elif records:
            letters = "".join(line.split())  # spaces divide a sequence into blocks
            lines.append(letters.upper() if upper else letters)
        elif line.strip():
            raise InputError(
                f"{path}, line {number}: no header", "a FASTA file has a line with > before each sequence"
            )
    end_record()
    if not records:
        raise InputError(f"{path}: no sequences", "a FASTA file has a line with > before each")
    return records


def _default_pattern(headers: Sequence[str]) -> tuple[str, list[str]]:
    """Return the pattern of the label in headers without ``--label``, empty if they have no label, and notes.

    The label is the last word. But if headers have several entries such as ``OX=9606 GN=INS SV=2``, the last one is
    probably not the label.
    """
    last_words = [match.group(1) for header in headers if (match := re.search(LAST_WORD, header))]
    keys = [*dict.fromkeys(ENTRY.findall(headers[0]))]  # of the entries of the first header, each once
    entry_count = sum(ENTRY.match(word) is not None for word in last_words)
    most_end_with_entry = entry_count > len(headers) / 2
    if most_end_with_entry and len(keys) > 1:
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
    names_of_classes = classes_by_name(task)
    classes: list[str | None] = []
    for header in headers:
        match = re.search(LAST_WORD, header)
        word = match.group(1) if match else None
        classes.append(word if word in names_of_classes else None)
    return classes


def _names(headers: Sequence[str], options: OwnDataOptions, *, is_new: bool) -> tuple[list[str], list[str]]:
    """Return the names of records, and notes: the first word of each header, with the row's number if most repeat.

    Words that repeat are names of classes, for example. An empty header has the row's number alone.
    """
    ids = [header.split(maxsplit=1)[0] if header else str(row) for row, header in enumerate(headers)]
    most_differ = 2 * len(set(ids)) > len(ids)
    if most_differ or options.labels:  # a table of labels has these names
        return ids, []
    numbered = [f"{name}#{row}" for row, name in enumerate(ids)]
    # The note is on splits, which new rows do not have, and suggests --group. Headers of one word that repeat are no
    # names of records.
    if is_new or options.group or ids == list(headers):
        return numbered, []
    note = "most names of records repeat, so records of one name may be in several splits"
    return numbered, [f"{note}; pass --group '^(\\S+)' to keep them in one"]


def _matches(
    bad: BadRows, headers: Sequence[str], pattern: str, flag: str, *, is_new: bool
) -> list[str | None]:
    """Return the match of a pattern's group in each header; an empty list if the pattern is empty.

    New headers without a match have None, others are refused. ``flag`` is the option that has the pattern.
    """
    if not pattern:
        return []
    with as_input_error(f"--{flag} {pattern}: not a regular expression", "give one with a group"):
        compiled = re.compile(pattern)
    if compiled.groups != 1:
        raise InputError(
            f"--{flag} {pattern}: {compiled.groups} groups", "give a pattern with one, in parentheses"
        )
    matches = [match.group(1) if match else None for match in map(compiled.search, headers)]
    if None in matches and not is_new:
        row = matches.index(None)
        raise InputError(
            f"{bad.where}, {bad.places[row]}: no {flag} in the header {headers[row][:60]!r} by --{flag} {pattern}",
            "pass another pattern, such as 'class=(\\w+)', or a table with --labels",
        )
    return matches
