"""Texts as symbols: each letter of the training rows is one, and all other letters share one."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from reservoir.size_limits import check_padding
from reservoir.tasks.words import UNKNOWN, codes_of, text_lengths
from reservoir_pipelines.data.arrays import COLUMN_FLAGS, Arrays

UNSEEN = (
    "letters that no training row has"  # begins a note, which does not apply to a model's own tokenizer
)
PIECE_LETTERS = 2**23


class Texts(Arrays):
    """Texts (rows,) as ``x``, with other arrays; encoded in batches, so that not all are padded at once."""

    letters = True
    unused_options = ("rate", "waveform")

    def __init__(self, where: str, texts: Sequence[str], arrays: Mapping[str, np.ndarray]):
        self.texts, self._where = [text.strip() for text in texts], where
        lengths = text_lengths(where, self.texts)
        kind, longest = np.min_scalar_type(max(ord(max(text)) for text in self.texts)), int(lengths.max())
        check_padding(where, lengths, kind.itemsize)
        super().__init__({"lengths": lengths, **arrays}, x=((len(lengths), longest), kind))
        self.piece_rows = max(1, PIECE_LETTERS // longest)

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the code points of the rows ``lo`` to ``hi``, zero after their ends."""
        x = np.zeros((hi - lo, self.shapes["x"][1]), self.dtypes["x"])
        codes, _ = codes_of(self._where, self.texts[lo:hi])
        x[:, : codes.shape[1]] = codes
        return x


def with_letters(where: str, arrays: Arrays) -> Arrays:
    """Return the arrays of a file; if ``x`` holds texts (rows,), their letters become the sequences."""
    shape = arrays.shapes.get("x", ())
    if len(shape) != 1 or not shape[0] or arrays.dtypes["x"].kind != "U" or () in arrays.shapes.values():
        return arrays
    read = {name: arrays.read(name, 0, shape[0]) for name in arrays.shapes if name != "lengths"}
    found = Texts(where, read.pop("x").tolist(), read)
    found.unused_options += COLUMN_FLAGS
    return found


def alphabet_of(batches: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[str, str]:
    """Return `UNKNOWN` and the sorted letters of the training rows, and the letters that only other rows have."""
    known = every = np.empty(0, np.int64)  # a batch: code points (rows, tokens), lengths, a mask (rows,)
    for codes, lengths, train in batches:
        real = np.arange(codes.shape[1]) < lengths[:, None]
        known = np.union1d(known, codes[train][real[train]])
        every = np.union1d(every, codes[real])
    letters, others = ("".join(map(chr, kind)) for kind in (known, np.setdiff1d(every, known)))
    return UNKNOWN + letters.replace(UNKNOWN, ""), others
