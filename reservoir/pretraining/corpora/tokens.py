"""Byte-level tokenizers: one token per byte, or pairs merged by frequency (BPE, Sennrich et al. 2016)."""

from __future__ import annotations

import codecs
from typing import Any

import numpy as np

from reservoir.errors import InputError

CHUNK = 1 << 16
"""Bytes of text that are tokenized together; long enough that the cuts between chunks hardly matter."""


def byte_tokenizer() -> Any:
    """Return a `tokenizers.Tokenizer` whose tokens are the 256 bytes, numbered by their values."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(text: bytes, vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer trained on a text; its first 256 tokens are the bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_chunks(text), trainer)
    if (found := tokenizer.get_vocab_size()) < vocabulary:
        raise InputError(f"--vocabulary {vocabulary}: the text gives only {found:,} tokens; give at most {found}")
    return tokenizer


def encode(tokenizer: Any, text: bytes) -> np.ndarray:
    """Return the tokens of a text, uint32."""
    return np.concatenate([np.array(e.ids, np.uint32) for e in tokenizer.encode_batch(_chunks(text))])


def first_invalid(text: bytes) -> int | None:
    """Return the position of the first byte that is not UTF-8, or None; a character may be cut at the end."""
    try:
        codecs.utf_8_decode(text)
    except UnicodeDecodeError as error:
        return error.start
    return None


def _chunks(text: bytes) -> list[str]:
    """Return the text in chunks of whole characters; a character cut at the edges of the text is replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(text[at : at + CHUNK], at + CHUNK >= len(text)) for at in range(0, len(text), CHUNK)]
