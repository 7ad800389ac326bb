"""Texts as rows of a task: letters as symbols, the places of words, and spans that are marked in a text.

A text is stored as the code points of its letters. The alphabet of a task is `UNKNOWN`, followed by the letters of
its training rows; the symbol of a letter is its place in the alphabet, and all other letters share one.

A marked span stands between two letters that no text has. The marks are part of the stored text, so that whatever
stores, splits, hashes or sends rows treats a marked text as any other text. A model's own tokenizer reads the text
without marks (`parse_marks`), and the spans become masks of its tokens; a model that reads letters as symbols sees the
marks, as relation extraction marks entities.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.file_checks import check_padding

UNKNOWN = "\ufffd"  # comes first in every alphabet, for the letters that no training row has
GAPS = " \t\n\r"  # the white space between words; others, such as a no-break space, may be part of a word
MAX_LETTERS = 64  # proteins, genomes and molecules are written with fewer letters; only texts use more
MAX_SHOWN = 60  # letters in a message

# Two of the noncharacters that Unicode reserves for the internal use of programs.
SPAN_START, SPAN_END = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"[{SPAN_START}{SPAN_END}]")


def codes_of(where: str, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return texts as code points (rows, longest) in the smallest type, zero after their ends, and their lengths.

    Errors begin with ``where``, the file.
    """
    lengths = text_lengths(where, texts)
    # All letters are encoded at once, and the mask of the real letters places them row by row. Python's texts may hold
    # half of a surrogate pair, which UTF-32 does not allow otherwise.
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    smallest_type = np.min_scalar_type(int(codes.max()))
    check_padding(where, lengths, smallest_type.itemsize)
    x = np.zeros((len(texts), lengths.max()), smallest_type)
    is_real = np.arange(x.shape[1]) < lengths[:, None]
    x[is_real] = codes
    return x, lengths


def text_lengths(where: str, texts: Sequence[str]) -> np.ndarray:
    """Return the number of letters of each text, (rows,) of int64.

    Raise `InputError`, which begins with ``where``, for an empty text, also one of white space alone, and for one with
    NUL, which pads shorter texts.
    """
    for row, text in enumerate(texts):
        has_nul = "\0" in text
        if not text.strip() or has_nul:
            problem = "a NUL in the text" if has_nul else "an empty text"
            raise InputError(f"{where}, row {row}: {problem}", "remove the row")
    return np.array([len(text) for text in texts], np.int64)


def texts_of(codes: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Return code points as texts, the inverse of `codes_of`; invalid code points become U+FFFD."""
    rows = codes.astype("<u4")
    return [row[:n].tobytes().decode("utf-32-le", "replace") for row, n in zip(rows, lengths, strict=True)]


def word_starts(codes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return which letters of code points (rows, letters) are the first of a word, (rows, letters) of bool."""
    in_word = is_in_word(codes, lengths)
    is_start = in_word.copy()
    is_start[:, 1:] &= ~in_word[:, :-1]  # not after another letter of the word
    return is_start


def is_in_word(codes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return which letters of code points (rows, letters) are real and not one of `GAPS`, (rows, letters) of bool."""
    is_real = np.arange(codes.shape[1]) < lengths[:, None]
    is_gap = np.isin(codes, [ord(gap) for gap in GAPS])
    return is_real & ~is_gap


def to_symbols(codes: np.ndarray, lengths: np.ndarray, alphabet: str) -> np.ndarray:
    """Return code points (rows, tokens) as indices in the alphabet, 0 after each row's end and for unknown letters."""
    # The symbol of each code point up to the largest letter, and a last entry, 0, that all larger code points share.
    symbol_of_code = np.zeros(max(map(ord, alphabet)) + 2, np.min_scalar_type(len(alphabet) - 1))
    symbol_of_code[[ord(letter) for letter in alphabet]] = np.arange(len(alphabet))
    symbols = symbol_of_code[np.minimum(codes.astype(np.int32), len(symbol_of_code) - 1)]
    is_real = np.arange(codes.shape[1]) < lengths[:, None]
    return np.where(is_real, symbols, 0)


def are_words(alphabet: str) -> bool:
    """Return whether texts of these letters consist of words: there are spaces, or more than `MAX_LETTERS` letters."""
    letters = alphabet.removeprefix(UNKNOWN)
    return " " in letters or len(letters) > MAX_LETTERS


def hold_words(texts: Iterable[str]) -> bool:
    """Return whether texts, without white space at their ends, consist of words, as `are_words` decides for letters."""
    letters = set[str]()
    for text in texts:
        letters.update(text.strip())
        if are_words("".join(letters)):
            return True
    return False


def chat_text(messages: str) -> str:
    """Return what is written in a chat, the JSON list of its messages: a line for each text and number in them.

    The names of the roles are texts, too. Escapes of JSON, which would become letters of words, are resolved.
    """
    return "\n".join(_written_in(json.loads(messages)))


def _written_in(value: Any) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, in their order."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _written_in(part)
    else:
        yield str(value)


def shown(letters: str) -> str:
    """Return at most `MAX_SHOWN` letters for a message, with escapes for those that are not printable."""
    # Without its quotes, the representation of such a letter is an escape, such as \t.
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in letters)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


@dataclass(frozen=True)
class MarkedText:
    """A text without marks, and its marked spans.

    Parameters
    ----------
    text : str
        The text.
    spans : tuple of (int, int), optional
        The first letter of each span and the one after its last, ascending; None if the places are not known.
    ends_with_answer : bool, default False
        Whether the last span is an answer, so that the text before it is a prompt.
    """

    text: str
    spans: tuple[tuple[int, int], ...] | None = ()
    ends_with_answer: bool = False

    @property
    def prompt_end(self) -> int | None:
        """The number of letters before the last answer; None if the whole text is a prompt."""
        if not self.ends_with_answer:
            return None
        assert self.spans  # the last of them is the answer
        answer_start, _ = self.spans[-1]
        return answer_start


def has_marks(text: str) -> bool:
    """Return whether a text has letters that mark spans."""
    return _MARKS.search(text) is not None


def with_span(text: str, start: int, end: int) -> str:
    """Return a text with marks around the letters from ``start`` to before ``end``."""
    return f"{text[:start]}{SPAN_START}{text[start:end]}{SPAN_END}{text[end:]}"


def parse_marks(marked: str) -> MarkedText:
    """Return a text without its marks, with the spans between them."""
    # The n-th mark, from 0, has n marks before it, which the text without marks lacks. Starts and ends take turns.
    places = [mark.start() - number for number, mark in enumerate(_MARKS.finditer(marked))]
    starts, ends = places[::2], places[1::2]
    return MarkedText(_MARKS.sub("", marked), tuple(zip(starts, ends, strict=True)))
