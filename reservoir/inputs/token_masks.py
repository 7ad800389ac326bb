"""Masks of tokens: which tokens of a text belong to a span, an answer or a prompt, for poolings that read masks.

A mask has a name, which is also that of the pooling that reads it, and comes with the tokens of a row. The places of
tokens in a text are those that a fast tokenizer gives (its offsets).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

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


def tokens_within_spans(
    offsets: Sequence[Offsets], spans: Sequence[Sequence[tuple[int, int]]], longest: int
) -> np.ndarray:
    """Return the tokens within the spans of each row as a mask (rows, longest)."""
    mask = np.zeros((len(offsets), longest), bool)
    for row, (of_row, of_text) in enumerate(zip(offsets, spans, strict=True)):
        mask[row, : len(of_row)] = tokens_within(of_row, of_text)
    return mask


def last_tokens(tokens: TokenRows, ends: Sequence[int | None], offsets: Sequence[Offsets]) -> np.ndarray:
    """Return the last token of each text that ends before a place, as a mask of the texts' pieces (rows, longest).

    ``ends`` has the place for each text, None for the end of the text. A token that lies on both sides of the place
    is not before it. A text without a token before its place has no token in the mask.
    """
    mask = np.zeros(tokens.ids.shape, bool)
    owner = np.arange(len(mask)) if tokens.owner is None else tokens.owner
    for text, end in enumerate(ends):
        pieces = np.flatnonzero(owner == text) if tokens.owner is not None else np.array([text])
        if end is None:
            mask[pieces[-1], tokens.lengths[pieces[-1]] - 1] = True
            continue
        for piece in pieces[::-1]:
            token_ends = np.asarray(offsets[piece], np.int64)[:, 1]
            before = np.flatnonzero(token_ends <= end)
            if len(before):
                mask[piece, before[-1]] = True
                break
    return mask
