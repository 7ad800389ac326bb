"""Texts in which spans are marked: a span stands between two letters that no text has.

The marks are part of the stored text, so that whatever stores, splits, hashes or sends rows treats a marked text as
any other text. A model's own tokenizer reads the text without marks (`parse_marks`), and the spans become masks of its
tokens; a model that reads letters as symbols sees the marks, as relation extraction marks entities.
"""

import re
from dataclasses import dataclass

# Two of the noncharacters that Unicode reserves for the internal use of programs.
SPAN_START, SPAN_END = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"[{SPAN_START}{SPAN_END}]")


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
