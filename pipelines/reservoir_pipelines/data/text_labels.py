"""Labels inside texts: of each word of a list of words, or of spans of letters; tokens get them in an extraction."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.file_checks import check_padding
from reservoir.tasks.texts import GAPS
from reservoir_pipelines.data.columns import as_written
from reservoir_pipelines.data.rows import BadRows
from reservoir_pipelines.data.table_forms import TableArrays
from reservoir_pipelines.data.table_labels import padded_labels

OUTSIDE = "O"  # the class of letters outside all spans, as in CoNLL
SPAN_KEYS = ("start", "end", "label")
"""What each span has: the number of its first letter, that of the one after its last, and its class."""

WORD = re.compile(rf"[^{GAPS}\0]+")  # NUL ends a stored text


def holds_word_lists(column: Any) -> bool:
    """Return whether the cells of a column that are lists hold only texts and nulls, and there is at least one text."""
    if column.dtype != object:
        return False
    lists = [cell for cell in column if isinstance(cell, list | np.ndarray)]
    # A null makes its own row bad, and no other.
    kinds = {type(word) for words in lists for word in words if word is not None}
    return bool(kinds) and all(issubclass(kind, str) for kind in kinds)


def holds_spans(column: Any) -> bool:
    """Return whether the cells of a column that are lists hold mappings only, and there is at least one: a span."""
    if column.dtype != object:
        return False
    lists = [cell for cell in column if isinstance(cell, list | np.ndarray) and len(cell)]
    return bool(lists) and all(isinstance(span, Mapping) for spans in lists for span in spans)


def read_word_labels(reading: TableArrays, sequence: str) -> None:
    """Read a column of lists of words as ``x``, texts with a space between words, and the label of each word as ``y``.

    ``sequence`` is the name of the column. New texts may be lists of words too, or texts, which white space divides
    into words. New labels are lists in an array of objects (rows,), or None; others are an array (rows, most words).
    """
    bad = reading.table.bad
    cells = reading.table.frame[sequence].tolist()
    words_of_rows = [_words(cell) for cell in cells]
    _check_words(bad, words_of_rows, sequence)
    # Rows with words that are no texts are bad, and are left out later.
    texts = [
        cell if isinstance(cell, str) else " ".join(map(str, words))
        for cell, words in zip(cells, words_of_rows, strict=True)
    ]
    reading.arrays["x"] = np.array(texts, object)
    reading.parameters |= {"text": sequence, "each": "word"}
    # The one column of labels, which new rows may lack.
    labels = [name for name in reading.roles.labels if name in reading.table.frame]
    if not labels:
        return
    if len(labels) > 1:
        raise InputError(
            f"{bad.where}: words have one label each, not {', '.join(labels)}",
            "pass --label NAME, and --drop the others",
        )
    (label,) = labels
    labels_of_rows = [_as_list(cell) for cell in reading.table.frame[label]]
    _check_label_counts(reading, words_of_rows, labels_of_rows, label)
    if reading.is_new:
        reading.arrays["y"] = _objects(labels_of_rows)
        return
    where = f"{bad.where}, column {label!r}"
    # Rows without labels are bad, and are left out later.
    lists_of_labels = [labels_of_words or [] for labels_of_words in labels_of_rows]
    reading.arrays["y"] = padded_labels(where, lists_of_labels, reading.options)
    reading.notes.append(f"the column {label!r} labels every word of {sequence!r}")


def _check_words(bad: BadRows, words_of_rows: Sequence[Sequence[Any]], sequence: str) -> None:
    """Note rows of the column ``sequence`` as bad that have no words, white space within a word, or other values."""
    for row, words in enumerate(words_of_rows):
        others = [word for word in words if not isinstance(word, str)]
        if others:
            bad.add(row, f"{str(others[0])[:40]} in column {sequence!r} is not a word")
            continue
        odd = next((word for word in words if WORD.fullmatch(word) is None), None)
        # Words of no-break spaces alone match `WORD`, but a text of such words counts as empty.
        is_empty = not "".join(words).strip()
        if is_empty and odd is None:
            bad.add(row, f"no words in column {sequence!r}")
        elif odd is not None:
            bad.add(
                row, f"{odd[:40]!r} in column {sequence!r} is not a word without white space", "divide it"
            )


def _check_label_counts(
    reading: TableArrays,
    words_of_rows: Sequence[Sequence[Any]],
    labels_of_rows: list[list[Any] | None],
    label: str,
) -> None:
    """Note rows as bad that do not have a label for each word in the column ``label``.

    The labels of a row are None if its cell is not a list; new rows may have none at all, or nulls among them. In a
    fit, the labels of a row become None if one of them is null, which would have another type than those of other rows.
    """
    for row, (words, labels_of_words) in enumerate(zip(words_of_rows, labels_of_rows, strict=True)):
        may_lack_labels = reading.is_new and labels_of_words is None
        count = 0 if labels_of_words is None else len(labels_of_words)
        if not may_lack_labels and count != len(words):
            reading.table.bad.add(row, f"{count} labels in column {label!r} for {len(words)} words")
        elif not reading.is_new and any(map(_is_null, labels_of_words or [])):
            reading.table.bad.add(row, f"a word without a label in column {label!r}")
            labels_of_rows[row] = None


def read_span_labels(reading: TableArrays, label: str, sequence: str) -> tuple[str, ...]:
    """Read spans of letters with labels as ``y``, (rows, most letters): the number of the class of each letter.

    ``label`` names the column of spans, and ``sequence`` that of texts. Return the names of the classes. Of spans that
    overlap, the last one counts. For new rows, ``y`` has lists of the names of the classes of all letters instead, or
    None, and no names are returned.
    """
    bad, frame = reading.table.bad, reading.table.frame
    texts = as_written(frame[sequence]).tolist()
    spans_of_rows = _checked_spans(reading, label, texts)
    reading.parameters["each"] = "span"
    # Number the classes, and give each letter the class of its span, if it is in one.
    names = {str(span["label"]) for spans in spans_of_rows for span in spans or []}
    classes = tuple(sorted({*names, OUTSIDE}))
    number_of_class = {name: number for number, name in enumerate(classes)}
    # All rows get as many labels as the longest text has letters: refuse one text that makes the array far larger than
    # the labels in it.
    lengths = [len(text) for text in texts]
    check_padding(f"{bad.where}, column {sequence!r}", np.array(lengths), np.dtype(np.int32).itemsize)
    outside = number_of_class[OUTSIDE]
    y = np.full((len(texts), max(lengths)), outside, np.int32)
    rows_with_overlap = set()
    for row, spans in enumerate(spans_of_rows):
        for span in spans or []:
            number = number_of_class[str(span["label"])]
            letters = y[row, span["start"] : span["end"]]
            if not np.isin(letters, [outside, number]).all():
                rows_with_overlap.add(row)
            letters[:] = number
    if reading.is_new:
        names_of_letters = [
            None if spans is None else [classes[number] for number in y[row, : lengths[row]]]
            for row, spans in enumerate(spans_of_rows)
        ]
        reading.arrays["y"] = _objects(names_of_letters)
        return ()
    reading.arrays["y"] = y
    reading.notes.append(
        f"the column {label!r} labels spans of {sequence!r}; other letters have the class {OUTSIDE!r}"
    )
    if rows_with_overlap:
        reading.notes.append(
            f"texts with spans of different labels that overlap: {len(rows_with_overlap):,}; the last span counts"
        )
    return classes


def _checked_spans(reading: TableArrays, label: str, texts: Sequence[str]) -> list[list[Any] | None]:
    """Return the spans of each text, (rows,), from the column ``label``; None if they are missing or malformed.

    A row of a fit without a list of spans is bad, and so is one with a malformed span. New rows may lack the column.
    """
    bad, frame = reading.table.bad, reading.table.frame
    cells = frame[label] if label in frame else [None] * len(frame)
    spans_of_rows: list[list[Any] | None] = [_as_list(cell) for cell in cells]
    for row, spans in enumerate(spans_of_rows):
        if spans is None and not reading.is_new:
            bad.add(row, f"no list of spans in column {label!r}")
        if problem := _problem(spans or [], len(texts[row])):
            bad.add(row, f"{problem} in column {label!r}")
            spans_of_rows[row] = None
    return spans_of_rows


def _problem(spans: list[Any], letters: int) -> str:
    """Return what is wrong with the first wrong span of a text of so many ``letters``; empty if all are right."""
    for span in spans:
        shown = str(span)[:80]
        if not isinstance(span, Mapping) or not {*SPAN_KEYS} <= span.keys():
            return f"{shown} is not a span with {', '.join(SPAN_KEYS)}"
        if span["label"] is None:
            return f"the span {shown} has no label"
        start, end = span["start"], span["end"]
        # Python takes true and false for integers.
        are_whole = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (start, end))
        if not are_whole or not 0 <= start < end <= letters:
            return f"the span {shown} is not within the {letters} letters of the text"
    return ""


def _words(cell: Any) -> list[Any]:
    """Return a list of words as it is, or the words of a text; an empty list for other cells."""
    return WORD.findall(cell) if isinstance(cell, str) else _as_list(cell) or []


def _as_list(cell: Any) -> list[Any] | None:
    """Return a cell that is a list, and None for others."""
    return list(cell) if isinstance(cell, list | np.ndarray) else None


def _is_null(label: Any) -> bool:
    """Return whether a label is null, which is NaN among the whole numbers of a Parquet file."""
    return label is None or (isinstance(label, float) and math.isnan(label))


def _objects(cells: list[Any]) -> np.ndarray:
    """Return cells of any kind as an array (rows,) of objects."""
    objects = np.empty(len(cells), object)  # ``np.array(cells)`` would make two axes of lists of one length
    objects[:] = cells
    return objects
