"""CoNLL files: a word and its label on each line, and an empty line after each sentence."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import BadRows, Rows
from reservoir_pipelines.data.table import lines_of
from reservoir_pipelines.data.table_rows import columns_as_rows

SUFFIXES = (".conll", ".iob", ".iob2", ".bio")
DOCUMENT = "-DOCSTART-"  # the word on a line before each document of CoNLL-2003


@dataclass
class _Sentence:
    """The words and labels of a sentence, the line on which it begins, and the number of its document, from 1."""

    place: str
    document: int
    words: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the sentences of a file; the label of a word is the last column of its line, or that of ``--label``.

    New sentences of a ``task`` may have words alone. The sentences of a document (between lines with -DOCSTART-)
    are a group.
    """
    # A readout that was fitted on a table has the name of its column of labels.
    by_number = task is None or (options.label or "").isdecimal()
    label_column = _label_column(options.label if by_number else None)
    sentences = _sentences(Path(origin), label_column, is_new=task is not None)
    bad = BadRows(origin, [sentence.place for sentence in sentences], skip=options.skip_bad_rows)
    columns: dict[str, list] = {"tokens": [sentence.words for sentence in sentences]}
    if all(sentence.labels for sentence in sentences):
        columns["label"] = [sentence.labels for sentence in sentences]
    if task is None and sentences[-1].document > 1:
        columns["groups"] = [str(sentence.document) for sentence in sentences]
    parameters = None if task is None else {"each": "word"}
    rows = columns_as_rows(columns, bad, options, parameters, text="tokens")
    return replace(rows, unused=("time", "text", "drop", "id", "group", "labels"))


def _label_column(number: str | None) -> int:
    """Return the index of the column of labels, the last one by default; ``number`` counts from 1."""
    if number is None:
        return -1
    if not number.isdecimal() or not 2 <= int(number) <= 1000:
        raise InputError(
            f"--label {number}: columns of a CoNLL file have numbers, and the words are column 1",
            "give the number of a column, from 2",
        )
    return int(number) - 1


def _sentences(path: Path, label: int, *, is_new: bool) -> list[_Sentence]:
    """Return the sentences of a file; columns are divided by tabs if a line has one, else by spaces."""
    sentences: list[_Sentence] = []
    document = 1
    current: _Sentence | None = None
    for number, line in enumerate(lines_of(path), 1):
        cells = line.strip("\r\n").split("\t") if "\t" in line else line.split()
        if not any(cells):
            current = None
            continue
        if cells[0] == DOCUMENT:
            # The sentences before the first such line, if there are any, are a document too.
            document += bool(sentences)
            current = None
            continue
        if current is None:
            current = _Sentence(f"line {number}", document)
            sentences.append(current)
        current.words.append(cells[0].strip())
        if len(cells) > max(1, label):
            current.labels.append(cells[label].strip())
        elif not is_new:
            raise InputError(f"{path}, line {number}: a word without a label", "give a word and its label")
    if not sentences:
        raise InputError(f"{path}: no sentences", "give a word and its label on each line")
    return sentences
