"""Masks of tokens, for poolings that read masks: which tokens of a text belong to a span, an answer or a prompt.

A mask has the name of the pooling that reads it. It is made from the places of tokens in the text, which a fast
tokenizer gives as offsets:

| mask | tokens |
|---|---|
| ``span``, ``assistant`` | those within the spans of the text; the spans of a chat are the assistant's answers |
| ``last-prompt`` | the last one of the prompt, before the last answer |
| ``words`` | all but special tokens; for chats only, because in other texts the added ones stand at the ends |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.texts import MarkedText

Offsets = Sequence[tuple[int, int]]
"""The first letter of each token in the text, and the letter after its last; equal for added special tokens."""


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
        The number of the text of each piece, ascending, if long texts are read in pieces; None if each row is a text.
    masks : mapping of str to array (rows, longest) of bool
        The masks by name; they are True at the tokens that belong to the mask.
    """

    ids: np.ndarray
    lengths: np.ndarray
    owner: np.ndarray | None = None
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)


def tokens_within(offsets: Offsets, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return which tokens have a letter of one of the spans, (tokens,) of bool."""
    begins, ends = np.asarray(offsets, np.int64).reshape(-1, 2).T
    has_letters = ends > begins
    is_inside = np.zeros(len(begins), bool)
    for start, end in spans:
        is_inside |= has_letters & (begins < end) & (ends > start)
    return is_inside


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
        The places of the tokens of each row. They may be empty for the mask ``words``, and for ``last-prompt`` of texts
        that are not chats.
    special_ids : sequence of int
        The IDs of special tokens.
    are_chats : bool
        Whether a chat template has made the texts.
    """

    rows: TokenRows
    texts: Sequence[MarkedText]
    offsets: Sequence[Offsets]
    special_ids: Sequence[int]
    are_chats: bool

    def mask(self, name: str) -> np.ndarray:
        """Return the mask of this name, (rows, longest) of bool.

        Raise `InputError` if it needs the places of answers, and a chat template has hidden them.
        """
        rows = self.rows
        if name == "words":
            is_token = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]  # False at padding
            return is_token & ~np.isin(rows.ids, self.special_ids)
        # The end of a prompt is where an answer begins; a text without an answer is a prompt as a whole, and needs no
        # spans.
        texts_needing_spans = [
            text for text in self.texts if name != "last-prompt" or text.ends_with_answer
        ]
        if text_without_spans := next((text for text in texts_needing_spans if text.spans is None), None):
            start = text_without_spans.text[:60]
            raise InputError(
                f"pooling {name}: the chat template changes what the assistant says in {start!r}...",
                "pool mean or last",
            )
        return self._last_of_prompts() if name == "last-prompt" else self._within_spans()

    def texts_without(self, mask: np.ndarray) -> int:
        """Return the number of texts that have no token in a mask (rows, tokens)."""
        has_token = mask.any(axis=1)  # of each row
        if self.rows.owner is not None:  # of each text
            has_token = np.bincount(self.rows.owner[has_token], minlength=len(self.texts)) > 0
        return int((~has_token).sum())

    def _rows_of(self, text: int) -> np.ndarray:
        """Return the numbers of the rows of a text, in order; ``text`` is its number."""
        return np.array([text]) if self.rows.owner is None else np.flatnonzero(self.rows.owner == text)

    def _within_spans(self) -> np.ndarray:
        """Return the mask (rows, longest) of the tokens within the spans of each text."""
        mask = np.zeros(self.rows.ids.shape, bool)
        for text, marked in enumerate(self.texts):
            for row in self._rows_of(text):
                offsets = self.offsets[row]
                mask[row, : len(offsets)] = tokens_within(offsets, marked.spans or ())
        return mask

    def _last_of_prompts(self) -> np.ndarray:
        """Return the mask (rows, longest) of the last token of each prompt.

        A token with letters on both sides of the end of the prompt does not belong to it. A chat that the model cut
        before the end of its prompt has none.
        """
        mask = np.zeros(self.rows.ids.shape, bool)
        for text, marked in enumerate(self.texts):
            rows_of_text = self._rows_of(text)
            # If no answer follows, the prompt is the whole text.
            if not self.are_chats:
                last_row = rows_of_text[-1]
                mask[last_row, self.rows.lengths[last_row] - 1] = True
                continue
            prompt_end = len(marked.text) if marked.prompt_end is None else marked.prompt_end
            last_offsets = np.asarray(self.offsets[rows_of_text[-1]], np.int64)
            unread = marked.text[last_offsets[:, 1].max(initial=0) : prompt_end]
            if unread.strip():  # a tokenizer may leave out white space
                continue
            # Search the rows of the text backwards: the last row with a token that ends by ``prompt_end`` has the last
            # token of the prompt. A special token that a tokenizer adds would have the place (0, 0), and seem to be
            # part of the prompt. But only chats have answers, and the tokenizer adds no special tokens to a chat: they
            # come from its template, as letters.
            for row in rows_of_text[::-1]:
                token_ends = np.asarray(self.offsets[row], np.int64)[:, 1]
                prompt_tokens = np.flatnonzero(token_ends <= prompt_end)
                if len(prompt_tokens):
                    mask[row, prompt_tokens[-1]] = True
                    break
        return mask
