"""The words or tokens of texts that have labels of their own, and the sequences in which a model reads them.

A word has the features of one token, the first that has a letter of it; the other tokens of a word stand for nothing.
Without words, every token that has letters stands for itself. Special tokens are read, but stand for nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reservoir.inputs.text_reader import TextReader
from reservoir.tasks.words import is_in_word, texts_of, word_starts


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenPart:
    """Some words or tokens of texts, and the sequences that hold them.

    Parameters
    ----------
    x : array (sequences, longest) of int64
        Token IDs, right-padded.
    lengths : array (sequences,) of int64
        The tokens of each sequence.
    sequence, position : array (n,) of int64
        The sequence that holds each word or token, and its position in it.
    """

    x: np.ndarray
    lengths: np.ndarray
    sequence: np.ndarray
    position: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class TextTokens:
    """The words or tokens of some texts, one after the other, and where a model reads each of them.

    Parameters
    ----------
    pointers : array (texts + 1,) of int64
        The words or tokens of text t are those from ``pointers[t]`` to ``pointers[t + 1]``, the latter not included.
    spans : array (n, 2) of int32
        The first letter of each word or token in its text, and the letter after its last.
    labelled : array (n,) of int32
        The number of the label of each: that of the word, or of the first letter of a token that is not white space.
    places : array (n,) of int64
        The position among ``ids`` of the token, or of the token that stands for the word.
    ids : array (m,) of int32
        The token IDs of all sequences, one after the other, with special tokens. A sequence is a text, or a piece of a
        text that is longer than the model reads.
    sequences : array (sequences + 1,) of int64
        The first position of each sequence among ``ids``, and ``m``.
    long : int
        The number of texts with more tokens than the model reads.
    unread : int
        The number of words of which no letter is in a token, most of them after the end of what the model reads.
    pad : int
        The token ID that pads sequences.
    """

    pointers: np.ndarray
    spans: np.ndarray
    labelled: np.ndarray
    places: np.ndarray
    ids: np.ndarray
    sequences: np.ndarray
    long: int
    unread: int
    pad: int

    def __len__(self) -> int:
        return len(self.places)

    @property
    def token_ids(self) -> np.ndarray:
        """The token ID of each word or token, (n,) of int32; for a word, that of the token that stands for it."""
        return self.ids[self.places]

    @cached_property
    def texts(self) -> np.ndarray:
        """The number of the text of each word or token, (n,) of int32."""
        return np.repeat(np.arange(len(self.pointers) - 1, dtype=np.int32), np.diff(self.pointers))

    def part(self, low: int, high: int) -> TokenPart:
        """Return the words or tokens from ``low`` to ``high`` (not included), with their whole sequences."""
        places = self.places[low:high]
        sequence_of_place = np.searchsorted(self.sequences, places, side="right") - 1
        used, sequence = np.unique(sequence_of_place, return_inverse=True)
        first, after = self.sequences[used], self.sequences[used + 1]
        lengths = after - first
        x = np.full((len(used), lengths.max()), self.pad, np.int64)
        for row, (begin, end) in enumerate(zip(first.tolist(), after.tolist(), strict=True)):
            x[row, : end - begin] = self.ids[begin:end]
        return TokenPart(x=x, lengths=lengths, sequence=sequence, position=places - first[sequence])


def read_tokens(
    reader: TextReader, batches: Iterable[tuple[np.ndarray, np.ndarray]], *, words: bool, in_pieces: bool
) -> TextTokens:
    """Tokenize texts, and return their words or tokens.

    Parameters
    ----------
    reader : TextReader
        The tokenizer of a model.
    batches : iterable of tuple of arrays
        Texts as code points (texts, letters), zero after their ends, and their lengths (texts,).
    words : bool
        Whether white space divides the texts into words; else every token stands for itself.
    in_pieces : bool
        Whether texts that are too long are read in several pieces; else they are cut.
    """
    parts = [
        _read_batch(reader, codes, lengths, words=words, in_pieces=in_pieces) for codes, lengths in batches
    ]
    counts = np.concatenate([part.counts for part in parts])
    sequence_lengths = np.concatenate([part.sequence_lengths for part in parts])
    # The places of a batch count from its first token ID.
    firsts = np.cumsum([0, *(len(part.ids) for part in parts)])
    places = [part.places + first for part, first in zip(parts, firsts[:-1], strict=True)]
    return TextTokens(
        pointers=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        spans=np.concatenate([part.spans for part in parts]).astype(np.int32),
        labelled=np.concatenate([part.labelled for part in parts]).astype(np.int32),
        places=np.concatenate(places),
        ids=np.concatenate([part.ids for part in parts]).astype(np.int32),
        sequences=np.concatenate([[0], np.cumsum(sequence_lengths)]).astype(np.int64),
        long=sum(part.long for part in parts),
        unread=sum(part.unread for part in parts),
        pad=reader.pad,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """The words or tokens of a batch of texts; the fields are those of `TextTokens`, or numbers of each text."""

    counts: np.ndarray  # (texts,): words or tokens of each text
    spans: np.ndarray
    labelled: np.ndarray
    places: np.ndarray
    ids: np.ndarray
    sequence_lengths: np.ndarray
    long: int
    unread: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tokens:
    """The tokens with letters of a batch of texts: the text, the span (n, 2) and the place of each."""

    text: np.ndarray
    spans: np.ndarray
    places: np.ndarray


def _read_batch(
    reader: TextReader, codes: np.ndarray, lengths: np.ndarray, *, words: bool, in_pieces: bool
) -> _Batch:
    """Tokenize texts, given by the codes of their letters; find the token of each word, or the label of each token."""
    # A text has one sequence of tokens, or several pieces; the tokens of all pieces stand one after the other.
    encodings = reader.encodings(texts_of(codes, lengths), in_pieces=in_pieces)
    pieces = [piece for of_text in encodings.pieces for piece in of_text]
    owner = np.repeat(np.arange(len(lengths)), [len(of_text) for of_text in encodings.pieces])
    sequence_lengths = np.array([len(ids) for ids, _ in pieces], np.int64)
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in pieces)]).astype(np.int64)
    spans = np.concatenate([np.empty((0, 2), np.int64), *(spans for _, spans in pieces)])
    # Special tokens, and others without a letter, stand for nothing.
    places = np.flatnonzero(spans[:, 1] > spans[:, 0])
    text_of_token = np.repeat(owner, sequence_lengths)[places]
    tokens = _Tokens(text=text_of_token, spans=spans[places], places=places)
    # Words are labelled by their numbers, tokens by their first letters.
    unread = 0
    if words:
        read_words = _find_words(tokens, codes, lengths)
        tokens, labelled, unread = read_words.tokens, read_words.numbers, read_words.unread
    else:
        labelled = _first_letters(tokens, codes, lengths)
    return _Batch(
        counts=np.bincount(tokens.text, minlength=len(lengths)),
        spans=tokens.spans,
        labelled=labelled,
        places=tokens.places,
        ids=ids,
        sequence_lengths=sequence_lengths,
        long=encodings.long,
        unread=unread,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Words:
    """The words of a batch of texts that have a token."""

    tokens: _Tokens  # the text and the span of each word, and the place of its first token
    numbers: np.ndarray  # (n,): the number of each word in its text
    unread: int  # words without a token


def _find_words(tokens: _Tokens, codes: np.ndarray, lengths: np.ndarray) -> _Words:
    """Return the words of texts, given by the codes of their letters, with the first token of each."""
    # The first letter of each word and the place behind its last one, by text; and the number of the word in its text.
    starts = word_starts(codes, lengths)
    is_last = np.zeros_like(starts)  # the last letter of each word
    in_word = is_in_word(codes, lengths)
    is_last[:, :-1] = in_word[:, :-1] & ~in_word[:, 1:]
    is_last[:, -1] = in_word[:, -1]
    text, first = np.nonzero(starts)
    after = np.nonzero(is_last)[1] + 1
    counts = starts.sum(axis=1)
    number = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    if not len(tokens.places):
        no_tokens = _Tokens(text=text[:0], spans=tokens.spans, places=tokens.places)
        return _Words(tokens=no_tokens, numbers=number[:0], unread=len(text))
    # Letters of all texts in one line, in which tokens and words ascend: the token of a word is the first one that
    # ends after the beginning of the word, if it begins before the end of the word.
    width = codes.shape[1] + 1
    token_begins = tokens.text * width + tokens.spans[:, 0]
    token_ends = np.maximum.accumulate(tokens.text * width + tokens.spans[:, 1])
    candidate = np.searchsorted(token_ends, text * width + first, side="right")
    is_inside = candidate < len(token_ends)
    candidate = np.where(is_inside, candidate, 0)
    is_read = is_inside & (token_begins[candidate] < text * width + after)
    spans = np.stack([first, after], axis=1)[is_read]
    of_words = _Tokens(text=text[is_read], spans=spans, places=tokens.places[candidate[is_read]])
    return _Words(tokens=of_words, numbers=number[is_read], unread=int((~is_read).sum()))


def _first_letters(tokens: _Tokens, codes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the first letter of each token that is not white space, (n,); its first letter if all are white space."""
    in_word = is_in_word(codes, lengths)
    # The number of the next letter of a word, from each letter on; past the end of the row if there is none.
    letters = np.where(in_word, np.arange(codes.shape[1]), codes.shape[1])
    following = np.minimum.accumulate(letters[:, ::-1], axis=1)[:, ::-1]
    first, after = tokens.spans.T
    in_token = following[tokens.text, first]
    return np.where(in_token < after, in_token, first)
