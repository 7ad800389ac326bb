"""Text as a corpus: its bytes, or the tokens of a tokenizer trained on it; 90% train, 5% valid, 5% test, in order."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.pretraining.corpora.corpus import HeldOut
from reservoir.pretraining.corpora.tokens import byte_tokenizer, encode, first_invalid, train_tokenizer
from reservoir.random import generator

BYTES = 256
TRAIN, VALID = 0.90, 0.05

SEEN = 0.25
"""Share of a held-out window that repeats the window before, so that every counted token has a context."""


class Text:
    """The text of a file, gzipped or not, or of all files of a folder in the order of their names.

    With a vocabulary of 256 a token is a byte. With a larger one, a byte-level BPE tokenizer is trained on the training
    part, and the text must be UTF-8.
    """

    unit = "byte"

    def __init__(self, path: Path, vocabulary: int = BYTES) -> None:
        if vocabulary < BYTES:
            raise InputError(f"--vocabulary {vocabulary}: give {BYTES} for bytes, or more for a trained tokenizer")
        text = _read(path)
        if vocabulary > BYTES and (at := first_invalid(text)) is not None:
            raise InputError(f"corpus {path}: not UTF-8 at byte {at:,}; convert it, or use --vocabulary {BYTES}")
        self._name, self._sum = path.name, hashlib.sha256(text).hexdigest()
        ends = [0, int(len(text) * TRAIN), int(len(text) * (TRAIN + VALID)), len(text)]
        parts = {name: text[a:b] for name, a, b in zip(("train", "valid", "test"), ends, ends[1:], strict=False)}
        self.tokenizer = byte_tokenizer() if vocabulary == BYTES else train_tokenizer(parts["train"], vocabulary)
        self.vocabulary = vocabulary
        self._tokens = {
            name: np.frombuffer(part, np.uint8) if vocabulary == BYTES else encode(self.tokenizer, part)
            for name, part in parts.items()
        }
        self._bytes = {name: len(part) for name, part in parts.items()}

    def draw(self, seed: int, step: int, count: int, tokens: int) -> np.ndarray:
        """Return windows at random positions of the training part, int64 (count, tokens)."""
        train = self._part("train", tokens)
        places = generator(seed, "windows", step).integers(0, len(train) - tokens + 1, count)
        return train[places[:, None] + np.arange(tokens)].astype(np.int64)

    def held_out(self, split: str, tokens: int) -> HeldOut:
        """Return the windows of a part, each overlapping the one before by a quarter."""
        part = self._part(split, tokens)
        stride = tokens - max(1, int(tokens * SEEN))
        starts = np.arange(0, max(1, len(part) - tokens + 1), stride)
        windows = np.lib.stride_tricks.sliding_window_view(part, tokens)[starts]
        first = np.full(len(starts), tokens - stride)
        first[0] = 1
        return HeldOut(windows, first, self._bytes[split] / len(part))

    def entropy(self, tokens: int) -> float | None:
        """Return None: the entropy of text is not known."""
        return None

    def describe(self) -> dict[str, object]:
        """Return name and digest of the text, and the vocabulary."""
        return {"corpus": "text", "name": self._name, "sha256": self._sum, "vocabulary": self.vocabulary}

    def _part(self, split: str, tokens: int) -> np.ndarray:
        part = self._tokens[split]
        if len(part) < tokens:
            raise InputError(
                f"{self._name}: its {split} part has {len(part):,} tokens, and a window {tokens:,}; give more text, "
                "or a smaller --context"
            )
        return part


def _read(path: Path) -> bytes:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    try:
        text = b"".join(gzip.decompress(f.read_bytes()) if f.suffix == ".gz" else f.read_bytes() for f in files)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"corpus {path}: not readable ({error})") from error
    if not text:
        raise InputError(f"corpus {path}: it has no text; give another file or folder")
    return text
