"""Texts as symbols: each letter of the training rows is one, and all other letters share one."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.arrays import COLUMN_FLAGS, Arrays, check_padding

UNKNOWN = "\ufffd"  # comes first in every alphabet, for the letters that no training row has
UNSEEN = (
    "letters that no training row has"  # begins a note, which does not apply to a model's own tokenizer
)
MAX_LETTERS = 64
PIECE_LETTERS = 2**23


class Texts(Arrays):
    """Texts (rows,) as ``x``, with other arrays; encoded in batches, so that not all are padded at once."""

    letters = True
    unused_options = ("rate", "waveform")

    def __init__(self, where: str, texts: Sequence[str], arrays: Mapping[str, np.ndarray]):
        self.texts, self._where = [text.strip() for text in texts], where
        lengths = _text_lengths(where, self.texts)
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


def codes_of(where: str, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return texts as code points (rows, longest) in the smallest type, zero after their ends, and their lengths."""
    texts = [text.strip() for text in texts]
    lengths = _text_lengths(where, texts)
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    kind = np.min_scalar_type(int(codes.max()))
    check_padding(where, lengths, kind.itemsize)
    x = np.zeros((len(texts), lengths.max()), kind)
    x[np.arange(x.shape[1]) < lengths[:, None]] = codes
    return x, lengths


def _text_lengths(where: str, texts: Sequence[str]) -> np.ndarray:
    """Return the number of letters of each text; refuse an empty text, and one with a NUL."""
    for row, text in enumerate(texts):
        if not text or "\0" in text:
            raise InputError(
                f"{where}, row {row}: {'a NUL in the text' if text else 'an empty text'}", "remove the row"
            )
    return np.array([len(text) for text in texts], np.int64)


def texts_of(codes: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Return code points as texts, the inverse of `codes_of`; invalid code points become U+FFFD."""
    rows = codes.astype("<u4")
    return [row[:n].tobytes().decode("utf-32-le", "replace") for row, n in zip(rows, lengths, strict=True)]


def alphabet_of(batches: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[str, str]:
    """Return `UNKNOWN` and the sorted letters of the training rows, and the letters that only other rows have."""
    known = every = np.empty(0, np.int64)  # a batch: code points (rows, tokens), lengths, a mask (rows,)
    for codes, lengths, train in batches:
        real = np.arange(codes.shape[1]) < lengths[:, None]
        known = np.union1d(known, codes[train][real[train]])
        every = np.union1d(every, codes[real])
    letters, others = ("".join(map(chr, kind)) for kind in (known, np.setdiff1d(every, known)))
    return UNKNOWN + letters.replace(UNKNOWN, ""), others


def are_words(alphabet: str) -> bool:
    """Return whether texts of these letters consist of words: there are spaces, or more than 64 letters."""
    return " " in alphabet or len(alphabet.removeprefix(UNKNOWN)) > MAX_LETTERS


def to_symbols(codes: np.ndarray, lengths: np.ndarray, alphabet: str) -> np.ndarray:
    """Return code points (rows, tokens) as indices in the alphabet, 0 after each row's end and for unknown letters."""
    place = np.zeros(max(map(ord, alphabet)) + 2, np.min_scalar_type(len(alphabet) - 1))
    place[[ord(letter) for letter in alphabet]] = np.arange(len(alphabet))
    symbols = place[np.minimum(codes.astype(np.int32), len(place) - 1)]
    return np.where(np.arange(codes.shape[1]) < lengths[:, None], symbols, 0)


def shown(letters: str) -> str:
    """Return at most 60 letters for a message, with escapes for those that are not printable."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in letters)
    return text if len(text) <= 60 else f"{text[:60]}..."
