"""Texts as sequences of letters, and the alphabet of the training rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reservoir.size_limits import check_padding
from reservoir.tasks.words import UNKNOWN, codes_of, text_lengths
from reservoir_pipelines.data.rows import Rows

# begins a note, which does not apply to a model's own tokenizer
UNSEEN = "letters that no training row has"
PIECE_LETTERS = 2**23  # code points, of at most 4 bytes, that are padded at a time


class TextCodes:
    """Texts as code points (rows, tokens), zero after their ends; encoded when they are read."""

    def __init__(self, where: str, texts: list[str], lengths: np.ndarray):
        self._where, self.texts = where, texts
        self.shape = (len(texts), int(lengths.max()))
        self.dtype = np.min_scalar_type(max(ord(max(text)) for text in texts))
        check_padding(where, lengths, self.dtype.itemsize)

    def __getitem__(self, rows: slice) -> np.ndarray:
        codes, _ = codes_of(self._where, self.texts[rows])
        x = np.zeros((len(codes), self.shape[1]), self.dtype)
        x[:, : codes.shape[1]] = codes
        return x


def text_rows(where: str, texts: Sequence[str], others: Mapping[str, Any], **fields: Any) -> Rows:
    """Return texts as rows of letters, with ``others``, arrays (rows, ...), and further fields of the rows."""
    texts = [text.strip() for text in texts]
    lengths = text_lengths(where, texts)
    x = TextCodes(where, texts, lengths)
    piece_rows = max(1, PIECE_LETTERS // x.shape[1])
    return Rows(x=x, lengths=lengths, **others, holds="letters", piece_rows=piece_rows, **fields)


def alphabet_of(batches: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[str, str]:
    """Return `UNKNOWN` and the sorted letters of the training rows, and the letters that only other rows have.

    A batch is code points (rows, tokens), lengths (rows,), and a mask (rows,) of the training rows.
    """
    in_training = in_any = np.empty(0, np.int64)
    for codes, lengths, is_training in batches:
        real = np.arange(codes.shape[1]) < lengths[:, None]
        in_training = np.union1d(in_training, codes[is_training][real[is_training]])
        in_any = np.union1d(in_any, codes[real])
    letters, unseen = (
        "".join(map(chr, codes)) for codes in (in_training, np.setdiff1d(in_any, in_training))
    )
    return UNKNOWN + letters.replace(UNKNOWN, ""), unseen
