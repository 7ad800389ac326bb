"""Masks of tokens: which tokens of a text belong to a span, an answer or a prompt, for poolings that read masks.

A mask has a name, which is also that of the pooling that reads it, and comes with the tokens of a row. The places of
tokens in a text are those that a fast tokenizer gives (its offsets).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.marked_texts import MarkedText

Offsets = Sequence[tuple[int, int]]
"""Where each token of a text begins and ends; special tokens that a tokenizer adds are empty."""


@dataclass(frozen=True)
class TokenRows:
    """Texts, or the pieces of long texts, as tokens.

    Parameters
    ----------
    ids : array (rows, longest) of int64
        Token IDs, right-padded.
    lengths : array (rows,) of int32
        The number of tokens of each row.
    owner : array (rows,) of int, optional
        The text of each piece, ascending, if long texts are read in pieces.
    masks : mapping of str to array (rows, longest) of bool
        Which tokens each mask has.
    """

    ids: np.ndarray
    lengths: np.ndarray
    owner: np.ndarray | None = None
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)


def tokens_within(offsets: Offsets, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return which tokens have a letter of one of the spans, (tokens,) of bool."""
    begins, ends = np.asarray(offsets, np.int64).reshape(-1, 2).T
    inside = np.zeros(len(begins), bool)
    for start, end in spans:
        inside |= (begins < end) & (ends > start) & (ends > begins)
    return inside


@dataclass(frozen=True)
class MaskMaker:
    """Makes masks of some rows of tokens.

    Parameters
    ----------
    rows : TokenRows
        Texts, or the pieces of long texts, as tokens.
    texts : sequence of MarkedText
        The texts, with their spans.
    offsets : sequence
        The places of the tokens of each row; only ``words``, and ``last-prompt`` of texts without answers, need none.
    special_ids : sequence of int
        The IDs of special tokens.
    """

    rows: TokenRows
    texts: Sequence[MarkedText]
    offsets: Sequence[Offsets]
    special_ids: Sequence[int]

    def mask(self, name: str) -> np.ndarray:
        """Return a mask (rows, longest) of bool; raise `InputError` if the places of answers are not known."""
        rows = self.rows
        if name == "words":
            is_real = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
            return is_real & ~np.isin(rows.ids, self.special_ids)
        # The end of a prompt is where an answer begins; a text without an answer is a prompt as a whole.
        reads_spans = [text for text in self.texts if name != "last-prompt" or text.ends_with_answer]
        if unknown := next((text for text in reads_spans if text.spans is None), None):
            raise InputError(
                f"pooling {name}: the chat template changes what the assistant says in {unknown.text[:60]!r}...",
                "pool mean or last",
            )
        return self._last_of_prompts() if name == "last-prompt" else self._within_spans()

    def texts_without(self, mask: np.ndarray) -> int:
        """Return the number of texts that have no token in a mask."""
        is_in_row = mask.any(axis=1)
        if self.rows.owner is not None:
            is_in_row = np.bincount(self.rows.owner[is_in_row], minlength=len(self.texts)) > 0
        return int((~is_in_row).sum())

    def _rows_of(self, text: int) -> np.ndarray:
        """Return the rows of a text, in order."""
        return np.array([text]) if self.rows.owner is None else np.flatnonzero(self.rows.owner == text)

    def _within_spans(self) -> np.ndarray:
        """Return the tokens within the spans of each text."""
        mask = np.zeros(self.rows.ids.shape, bool)
        for text, marked in enumerate(self.texts):
            for row in self._rows_of(text):
                of_row = self.offsets[row]
                mask[row, : len(of_row)] = tokens_within(of_row, marked.spans or ())
        return mask

    def _last_of_prompts(self) -> np.ndarray:
        """Return the last token of each prompt; a token on both sides of its end is not one of its tokens."""
        mask = np.zeros(self.rows.ids.shape, bool)
        for text, marked in enumerate(self.texts):
            rows_of_text = self._rows_of(text)
            prompt_end = marked.prompt_end
            # If no answer follows, the prompt is the whole text.
            if prompt_end is None:
                last_row = rows_of_text[-1]
                mask[last_row, self.rows.lengths[last_row] - 1] = True
                continue
            # From the last row to the first: the first row with a token before the end has the last such token.
            # A special token that a tokenizer adds would have the place (0, 0), and seem to be before the end. There is
            # none, because only chats have answers, and a chat gets its special tokens from its template, as letters.
            for row in rows_of_text[::-1]:
                token_ends = np.asarray(self.offsets[row], np.int64)[:, 1]
                tokens_before_end = np.flatnonzero(token_ends <= prompt_end)
                if len(tokens_before_end):
                    mask[row, tokens_before_end[-1]] = True
                    break
        return mask
