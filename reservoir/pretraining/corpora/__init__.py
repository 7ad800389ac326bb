"""Corpora for pretraining.

text : a file or folder, as bytes or as the tokens of a tokenizer trained on it.
uniform, zipf, nesting : synthetic streams of tokens with a known entropy.
"""

from pathlib import Path

from reservoir.errors import InputError
from reservoir.pretraining.corpora.corpus import HELD_OUT, HeldOut
from reservoir.pretraining.corpora.streams import STREAMS, Stream
from reservoir.pretraining.corpora.text import BYTES, Text

__all__ = ["BYTES", "HELD_OUT", "MOST_TOKENS", "STREAMS", "Corpus", "HeldOut", "Text", "corpus_named"]

MOST_TOKENS = 2**20
"""Largest vocabulary: larger than that of any tokenizer, and small enough for its embeddings to fit in memory."""

Corpus = Stream | Text
"""A corpus: training windows, held-out parts, the least possible loss if known, and a description."""


def corpus_named(name: str, vocabulary: int) -> Corpus:
    """Return the stream with a name, even if a file has the same name, or else the text at a path."""
    known = ", ".join((*STREAMS, "bit-memory"))
    if not name:
        raise InputError(f"corpus '': give text, or one of {known}")
    if vocabulary > MOST_TOKENS:
        raise InputError(f"--vocabulary {vocabulary}: give at most {MOST_TOKENS:,}")
    if name in STREAMS:
        if vocabulary < 2:
            raise InputError(f"--vocabulary {vocabulary}: {name} has at least 2 tokens")
        if name == "nesting" and vocabulary % 2:
            raise InputError(
                f"--vocabulary {vocabulary}: nesting needs an even number, because every token has a closing token"
            )
        return STREAMS[name](vocabulary)
    if not Path(name).exists():
        raise InputError(f"corpus {name}: no such file or folder; give text, or one of {known}")
    return Text(Path(name), vocabulary)
