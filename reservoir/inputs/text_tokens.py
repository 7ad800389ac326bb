"""The words or tokens of texts that have labels of their own, and the sequences in which a model reads them.

A word has the features of one token, the first that has a letter of it; the features of its other tokens are not used.
Without words, each token that has letters has its own features and label. Special tokens are read by the model, but
their features are not used. Neither are those of a token that is only the mark of a space, which some tokenizers put in
front of a word, if it has the place of the first letter of the next token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reservoir.inputs.text_reader import TextReader
from reservoir.tasks.texts import is_in_word, texts_of, word_starts


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
        The row of ``x`` that holds the token of each word, or each token, and its position in that row.
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
    space_marks : int
        The number of words whose first letter is also the place of a token that is left out, as the mark of a space.
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
    space_marks: int
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
        """Return the words or tokens from ``low`` to ``high`` (not included), with the whole sequences of tokens."""
        places = self.places[low:high]
        sequence_of_place = np.searchsorted(self.sequences, places, side="right") - 1
        # The sequences that are needed become the rows of the part.
        sequence_of_row, row_of_place = np.unique(sequence_of_place, return_inverse=True)
        begins, ends = self.sequences[sequence_of_row], self.sequences[sequence_of_row + 1]
        lengths = ends - begins
        x = np.full((len(begins), lengths.max()), self.pad, np.int64)
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            x[row, : end - begin] = self.ids[begin:end]
        return TokenPart(
            x=x, lengths=lengths, sequence=row_of_place, position=places - begins[row_of_place]
        )


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
    read_batches = [
        _read_batch(reader, codes, lengths, words=words, in_pieces=in_pieces) for codes, lengths in batches
    ]
    counts = np.concatenate([batch.counts for batch in read_batches])
    sequence_lengths = np.concatenate([batch.sequence_lengths for batch in read_batches])
    # The places of a batch count from its first token ID, and are moved by the number of IDs before it.
    ids_before = np.cumsum([0, *(len(batch.ids) for batch in read_batches)])[:-1]
    places = [batch.places + before for batch, before in zip(read_batches, ids_before, strict=True)]
    return TextTokens(
        pointers=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        spans=np.concatenate([batch.spans for batch in read_batches]).astype(np.int32),
        labelled=np.concatenate([batch.labelled for batch in read_batches]).astype(np.int32),
        places=np.concatenate(places),
        ids=np.concatenate([batch.ids for batch in read_batches]).astype(np.int32),
        sequences=np.concatenate([[0], np.cumsum(sequence_lengths)]).astype(np.int64),
        long=sum(batch.long for batch in read_batches),
        unread=sum(batch.unread for batch in read_batches),
        space_marks=sum(batch.space_marks for batch in read_batches),
        pad=reader.pad,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """The words or tokens of a batch of texts; fields without a comment are those of `TextTokens` for this batch."""

    counts: np.ndarray  # (texts,): words or tokens of each text
    spans: np.ndarray
    labelled: np.ndarray
    places: np.ndarray
    ids: np.ndarray
    sequence_lengths: np.ndarray  # (sequences,): tokens of each sequence
    long: int
    unread: int
    space_marks: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tokens:
    """The tokens with letters of a batch of texts, or one token for each word; see `TextTokens`."""

    text: np.ndarray  # (n,): number of the text of each
    # (n, 2): the first letter of each token, and the letter after its last; or those of each word.
    spans: np.ndarray
    places: np.ndarray  # (n,): position among the token IDs of the batch


def _read_batch(
    reader: TextReader, codes: np.ndarray, lengths: np.ndarray, *, words: bool, in_pieces: bool
) -> _Batch:
    """Tokenize texts, given by the codes of their letters; find the token of each word, or the label of each token."""
    # Each piece of a text is a sequence. The tokens of all sequences stand one after the other.
    encodings = reader.encodings(texts_of(codes, lengths), in_pieces=in_pieces)
    pieces = [piece for pieces_of_text in encodings.pieces for piece in pieces_of_text]
    pieces_per_text = [len(pieces_of_text) for pieces_of_text in encodings.pieces]
    text_of_piece = np.repeat(np.arange(len(lengths)), pieces_per_text)
    sequence_lengths = np.array([len(ids) for ids, _ in pieces], np.int64)
    # The empty arrays serve batches without texts.
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in pieces)]).astype(np.int64)
    spans = np.concatenate([np.empty((0, 2), np.int64), *(spans for _, spans in pieces)])
    # Leave out special tokens, and others without a letter, whose spans are empty.
    places = np.flatnonzero(spans[:, 1] > spans[:, 0])
    text_of_token = np.repeat(text_of_piece, sequence_lengths)[places]
    tokens = _Tokens(text=text_of_token, spans=spans[places], places=places)
    # Leave out marks of spaces at the place of a letter, such as the one that Llama's tokenizer puts before a text.
    is_mark = _are_space_marks(tokens, ids, reader.space_mark_ids)
    is_word_start = word_starts(codes, lengths)[tokens.text, tokens.spans[:, 0]]
    space_marks = int((is_mark & is_word_start).sum())
    tokens = _Tokens(
        text=tokens.text[~is_mark], spans=tokens.spans[~is_mark], places=tokens.places[~is_mark]
    )
    # Words are labelled by their numbers, tokens by their first letters.
    unread = 0
    if words:
        read_words = _tokens_of_words(tokens, _find_words(codes, lengths), codes.shape[1])
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
        long=encodings.long_texts,
        unread=unread,
        space_marks=space_marks,
    )


def _are_space_marks(tokens: _Tokens, ids: np.ndarray, mark_ids: Sequence[int]) -> np.ndarray:
    """Return which tokens are only the mark of a space and begin at the letter of the next token, (n,) of bool.

    ``ids`` are all token IDs of the batch, and ``mark_ids`` those of tokens that are a mark alone. A mark that has the
    place of a space in the text begins before the next token.
    """
    first = tokens.spans[:, 0]
    is_mark = np.isin(ids[tokens.places], mark_ids)
    is_mark[-1:] = False  # no token follows the last one
    is_mark[:-1] &= (tokens.text[:-1] == tokens.text[1:]) & (first[:-1] == first[1:])
    return is_mark


@dataclass(frozen=True, kw_only=True, eq=False)
class _Words:
    """The words of a batch of texts, one after the other."""

    text: np.ndarray  # (n,): number of the text of each word
    first: np.ndarray  # (n,): its first letter
    after: np.ndarray  # (n,): the letter after its last
    number: np.ndarray  # (n,): its number in the text


def _find_words(codes: np.ndarray, lengths: np.ndarray) -> _Words:
    """Return the words of texts, given by the codes of their letters (texts, letters)."""
    is_first = word_starts(codes, lengths)
    # The last letter of a word is one that no letter of a word follows.
    in_word = is_in_word(codes, lengths)
    is_last = in_word.copy()
    is_last[:, :-1] &= ~in_word[:, 1:]
    text, first = np.nonzero(is_first)
    after = np.nonzero(is_last)[1] + 1
    # Number all words, and subtract the number of the first word of the text.
    counts = is_first.sum(axis=1)
    first_words = np.cumsum(counts) - counts
    number = np.arange(len(text)) - np.repeat(first_words, counts)
    return _Words(text=text, first=first, after=after, number=number)


@dataclass(frozen=True, kw_only=True, eq=False)
class _ReadWords:
    """The words of a batch of texts that have a token."""

    tokens: _Tokens  # the text and the span of each word, and the place of its first token
    numbers: np.ndarray  # (n,): the number of each word in its text
    unread: int  # words without a token


def _tokens_of_words(tokens: _Tokens, words: _Words, letters: int) -> _ReadWords:
    """Return the words that have a token, with the first token of each; texts have at most a number of ``letters``."""
    if not len(tokens.places):
        no_tokens = _Tokens(text=words.text[:0], spans=tokens.spans, places=tokens.places)
        return _ReadWords(tokens=no_tokens, numbers=words.number[:0], unread=len(words.text))
    # Put the letters of all texts in one line, in which tokens and words ascend. The token of a word is the first one
    # that ends after the beginning of the word, if it begins before the end of the word.
    line_width = letters + 1
    text_begins = words.text * line_width
    token_begins = tokens.text * line_width + tokens.spans[:, 0]
    token_ends = tokens.text * line_width + tokens.spans[:, 1]
    token_ends = np.maximum.accumulate(token_ends)  # in ascending order, as the search needs
    candidate = np.searchsorted(token_ends, text_begins + words.first, side="right")
    has_candidate = candidate < len(token_ends)  # False for last words, if no token ends after they begin
    candidate = np.where(has_candidate, candidate, 0)  # 0 is not used
    is_read = has_candidate & (token_begins[candidate] < text_begins + words.after)
    spans = np.stack([words.first, words.after], axis=1)[is_read]
    first_tokens = _Tokens(text=words.text[is_read], spans=spans, places=tokens.places[candidate[is_read]])
    return _ReadWords(tokens=first_tokens, numbers=words.number[is_read], unread=int((~is_read).sum()))


def _first_letters(tokens: _Tokens, codes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the first letter of each token that is not white space, (n,); its first letter if all are white space."""
    in_word = is_in_word(codes, lengths)
    # For each letter, the first letter from it on that is not white space; the width of the row if there is none.
    letters = np.where(in_word, np.arange(codes.shape[1]), codes.shape[1])
    next_in_word = np.minimum.accumulate(letters[:, ::-1], axis=1)[:, ::-1]
    first, after = tokens.spans.T
    candidate = next_in_word[tokens.text, first]
    return np.where(candidate < after, candidate, first)
