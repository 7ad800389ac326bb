"""CoNLL files: a word and its label on each line, and an empty line after each sentence.

Lines that begin with ``#`` before the first word of a sentence are comments if they have another number of columns
than the words; a word ``#`` has as many columns as the others. If every sentence begins with a line whose first column
is ``#``, these lines are comments too: those of MultiCoNER, ``# id 1 domain=en``, have as many columns as its words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import BadRows, Rows
from reservoir_pipelines.data.table import lines_of
from reservoir_pipelines.data.table_rows import columns_as_rows

SUFFIXES = (".conll", ".iob", ".iob2", ".bio")
DOCUMENT = "-DOCSTART-"  # the first word of a line before each document of CoNLL-2003


@dataclass(frozen=True)
class _Line:
    """A line that is not empty."""

    number: int  # from 1
    cells: Sequence[str]
    has_tabs: bool  # whether tabs divide the columns, not spaces

    @property
    def form(self) -> tuple[bool, int]:
        """What the lines of all words have in common: what divides the columns, and their number."""
        return self.has_tabs, len(self.cells)

    @property
    def may_be_comment(self) -> bool:
        """Whether the line begins as comments do."""
        return self.cells[0].lstrip().startswith("#")


@dataclass
class _Sentence:
    """The words of a sentence and their labels."""

    place: str  # where it begins, such as "line 12"
    document: int  # the number of its document, from 1
    words: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # of all words, or of some or none in new data


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the sentences of a file; the label of a word is the last column of its line, or that of ``--label``.

    New sentences of a ``task`` may have words alone. The sentences of a document (between lines with -DOCSTART-)
    are a group.
    """
    # A readout that was fitted on a table has the name of its column of labels, which is no column here.
    has_number = task is None or (options.label or "").isdecimal()
    label_column = _label_column(options.label if has_number else None)
    sentences, comments = _sentences(Path(origin), label_column, is_new=task is not None)
    bad = BadRows(origin, [sentence.place for sentence in sentences], skip=options.skip_bad_rows)
    columns: dict[str, list] = {"tokens": [sentence.words for sentence in sentences]}
    if all(sentence.labels for sentence in sentences):  # new sentences may lack them
        columns["label"] = [sentence.labels for sentence in sentences]
    if task is None and sentences[-1].document > 1:
        columns["groups"] = [str(sentence.document) for sentence in sentences]
    parameters = None if task is None else {"each": "word"}  # a mapping says that rows are new
    rows = columns_as_rows(columns, bad, options, parameters, text="tokens")
    notes = (f"{comments:,} lines that begin with # are comments",) if comments else ()
    return replace(
        rows, notes=(*notes, *rows.notes), unused=("time", "text", "drop", "id", "group", "labels")
    )


def _label_column(number: str | None) -> int:
    """Return the index of the column of labels, from 0; -1, the last one, by default.

    ``number`` is that of ``--label``, which counts from 1. The words are column 1.
    """
    if number is None:
        return -1
    if not number.isdecimal() or not 2 <= int(number) <= 1000:  # far more columns than any file has
        raise InputError(
            f"--label {number}: columns of a CoNLL file have numbers, and the words are column 1",
            "give the number of a column, from 2",
        )
    return int(number) - 1


def _sentences(path: Path, label: int, *, is_new: bool) -> tuple[list[_Sentence], int]:
    """Return the sentences of a file, and the number of comments before them.

    ``label`` is the index of the column of labels, which ``is_new`` data may lack.
    """
    blocks = list(_blocks(path))
    # What the whole file shows: the forms of its words, and whether each sentence begins with a line whose first column
    # is #. These lines are comments then, unless there is only one sentence.
    forms_of_file = {line.form for _, lines in blocks for line in lines if not line.may_be_comment}
    with_words = [lines for _, lines in blocks if not all(line.may_be_comment for line in lines)]
    all_begin_with_mark = len(with_words) > 1 and all(lines[0].cells[0] == "#" for lines in with_words)
    sentences: list[_Sentence] = []
    comment_count = 0
    for document, lines in blocks:
        is_comment = _are_comments(lines, forms_of_file)
        is_comment[0] |= all_begin_with_mark and lines[0].cells[0] == "#"
        # Comments may only stand before the words.
        leading_count = sum(takewhile(bool, is_comment))
        comment_count += leading_count
        words = lines[leading_count:]
        if any(is_comment[leading_count:]):
            line = lines[is_comment.index(True, leading_count)]
            raise InputError(
                f"{path}, line {line.number}: {' '.join(line.cells)[:40]!r} in a sentence has other columns than "
                "its words",
                "write comments before the first word of a sentence",
            )
        if words:
            sentence = _Sentence(f"line {words[0].number}", document)
            _read_words(path, sentence, words, label, is_new=is_new)
            sentences.append(sentence)
    if not sentences:
        raise InputError(f"{path}: no sentences", "give a word and its label on each line")
    return sentences, comment_count


def _are_comments(lines: Sequence[_Line], forms_of_file: set[tuple[bool, int]]) -> list[bool]:
    """Return which lines of a sentence begin with # and have another form than its words.

    If all begin with #, they are compared with ``forms_of_file``, the forms of the words of all sentences. Without any
    words in the file, no line is a comment.
    """
    forms = {line.form for line in lines if not line.may_be_comment} or forms_of_file
    if not forms:
        return [False] * len(lines)
    return [line.may_be_comment and line.form not in forms for line in lines]


def _blocks(path: Path) -> Iterator[tuple[int, list[_Line]]]:
    """Yield the number of the document, from 1, and the lines of each block between empty lines and -DOCSTART-."""
    document = 1
    has_blocks = False  # whether a block has been yielded
    block: list[_Line] = []
    for number, text in enumerate(lines_of(path), 1):
        has_tabs = "\t" in text
        line = _Line(number, text.strip("\r\n").split("\t") if has_tabs else text.split(), has_tabs)
        begins_document = bool(line.cells) and line.cells[0] == DOCUMENT
        if any(line.cells) and not begins_document:
            block.append(line)
            continue
        if block:
            yield document, block
            block = []
            has_blocks = True
        # Without a block before it, the first such line begins document 1; else the blocks before it are document 1.
        if begins_document and has_blocks:
            document += 1
    if block:
        yield document, block


def _read_words(
    path: Path, sentence: _Sentence, lines: Sequence[_Line], label: int, *, is_new: bool
) -> None:
    """Add the words of lines and their labels, from the column with the index ``label``, to a sentence.

    A word without a label is refused, except in new data. The index -1 is the last column, beside that of words.
    """
    for line in lines:
        sentence.words.append(line.cells[0].strip())
        has_label = len(line.cells) > max(1, label)
        if has_label:
            sentence.labels.append(line.cells[label].strip())
        elif not is_new:
            raise InputError(
                f"{path}, line {line.number}: a word without a label", "give a word and its label"
            )
