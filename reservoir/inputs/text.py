"""Texts as token numbers of a model's own tokenizer, with the special tokens that the model was trained with."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.backbones.family import local_files_only, silence_transformers
from reservoir.backbones.names import SHIPPED, gguf_argument
from reservoir.errors import InputError, as_input_error
from reservoir.tasks.own.texts import texts_of
from reservoir.tasks.task import Tokens

TEXT_TOKENS = 64  # typical tokens of a text, from which the batch size is computed
MOST_TOKENS = 2048  # longest text, if neither the model nor its tokenizer states a limit
HIGHEST_TOKEN = 2**24  # upper bound for token numbers; no vocabulary is larger
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json")


class TextReader:
    """Converts texts to token numbers; texts that are too long for the model are counted, and cut or read in pieces."""

    kind, row_tokens = "tokenizer", TEXT_TOKENS

    def __init__(self, tokenizer: Any, positions: int | None, embeddings: int | None = None) -> None:
        self._tokenizer, self.embeddings = tokenizer, embeddings
        highest = max(tokenizer.get_vocab().values(), default=0)
        if highest > HIGHEST_TOKEN:  # writing its rules as JSON would take minutes
            raise ValueError(f"it numbers a token {highest:,}, more than {HIGHEST_TOKEN:,}")
        stated = tokenizer.model_max_length if tokenizer.model_max_length < 2**31 else None
        self.max_tokens = min(positions or stated or MOST_TOKENS, stated or positions or MOST_TOKENS)
        self.form = Tokens(len(tokenizer))
        special = tokenizer("")["input_ids"]
        self.has_cls = bool(special) and special[0] == tokenizer.cls_token_id
        self.description = f"the model's own tokenizer, of {len(tokenizer):,} tokens"
        # Everything that decides the token numbers of a text.
        rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
        names = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        content = [type(tokenizer).__name__, rules, names, self.max_tokens]
        self.digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        self.read = self.long = 0
        self._whole, self.spaced = False, _letters_apart(tokenizer)

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return token numbers (rows, longest) of stored texts, right-padded, and the number of tokens of each."""
        texts = self._texts(x, lengths)
        found = self._tokenize(texts, return_attention_mask=False)["input_ids"]
        long = [row for row, numbers in enumerate(found) if len(numbers) > self.max_tokens]
        for row in long:
            found[row] = self._tokenize(texts[row], truncation=True, max_length=self.max_tokens)["input_ids"]
        self.read, self.long = self.read + len(found), self.long + len(long)
        return self._padded(texts, found)

    def pieces(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return token numbers and lengths of pieces that fit the model, and the row of each piece, ascending."""
        if not self._tokenizer.is_fast:
            raise InputError("--long windows needs a tokenizer.json, which the model does not have; leave --long out")
        self._whole = True
        texts = self._texts(x, lengths)
        found = self._tokenize(texts, truncation=True, max_length=self.max_tokens, return_overflowing_tokens=True)
        owner = np.array(found["overflow_to_sample_mapping"])
        self.read, self.long = self.read + len(texts), self.long + int((np.bincount(owner) > 1).sum())
        return *self._padded([texts[row] for row in owner], found["input_ids"]), owner

    def save(self, path: Path) -> None:
        """Write the rules, with truncation and padding as the model needs them, as the file of a fast tokenizer."""
        from tokenizers import Tokenizer

        tokenizer = self._tokenizer
        if not tokenizer.is_fast:
            raise InputError("export needs a tokenizer.json, which the model does not have; use another model")
        saved = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        saved.enable_truncation(self.max_tokens)
        saved.enable_padding(pad_id=tokenizer.pad_token_id or 0, pad_token=tokenizer.pad_token or "")
        saved.save(str(path))

    def places(self, x: np.ndarray, lengths: np.ndarray, *, words: bool) -> np.ndarray:
        """Return the last token of each letter, or word, of stored texts, (rows, most); -1 after the end of a text."""
        found = [self._places(text, words=words) for text in self._texts(x, lengths)]
        places = np.full((len(found), max(map(len, found))), -1, np.int64)
        for row, tokens in enumerate(found):
            places[row, : len(tokens)] = tokens
        return places

    def _places(self, text: str, *, words: bool) -> np.ndarray:
        read = self._tokenize(text, return_offsets_mapping=self._tokenizer.is_fast)
        tokens = len(read["input_ids"])
        ends = np.array([match.end() for match in re.finditer(r"\S+" if words or self.spaced else r".", text, re.S)])
        if tokens > self.max_tokens:
            start = f"the text {text[:40]!r} has {tokens:,} tokens with labels, and the model reads"
            raise InputError(f"{start} {self.max_tokens:,}; split the row, or leave it out")
        if self._tokenizer.is_fast:
            spans = [(low, token) for token, (low, high) in enumerate(read["offset_mapping"]) if high > low]
            begins, numbers = np.array(spans).T
            return numbers[np.searchsorted(begins, ends) - 1]  # the last token that begins before each end
        special = self._tokenizer("")["input_ids"]
        if tokens - len(special) != len(ends):
            raise InputError("labels of every token need a model with a tokenizer.json; use another model")
        return np.arange(len(ends)) + int(bool(special) and special[0] == read["input_ids"][0])

    def _tokenize(self, texts: str | list[str], **options: Any) -> Any:
        # The rules in a damaged tokenizer.json fail only on some texts.
        remedy = "repair its tokenizer.json, or use --input gaussian"
        with as_input_error("tokenizer: it cannot read the texts", remedy):
            return self._tokenizer(texts, **options)

    def _texts(self, x: np.ndarray, lengths: np.ndarray) -> list[str]:
        texts = texts_of(x, lengths)
        return [" ".join(text) for text in texts] if self.spaced else texts

    def _padded(self, texts: Sequence[str], found: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.array([len(numbers) for numbers in found], np.int32)
        if not lengths.all():
            text = texts[int(np.argmin(lengths))]
            raise InputError(f"the text {text[:40]!r} has no token of the model; leave the row out")
        x = np.full((len(found), lengths.max()), self._tokenizer.pad_token_id or 0, np.int64)
        x[np.arange(x.shape[1]) < lengths[:, None]] = np.concatenate(found)
        if self.embeddings is not None and (x.min() < 0 or x.max() >= self.embeddings):
            start = f"tokenizer: it gives token {x.max():,}, and the model has embeddings for"
            raise InputError(f"{start} {self.embeddings:,}; use the tokenizer that the model was trained with")
        return x, lengths

    @property
    def note(self) -> str:
        """How many texts were too long and how they were read, or an empty string."""
        if not self.long:
            return ""
        how = "read in pieces and their features averaged" if self._whole else "cut (--long windows reads all of them)"
        return f"{self.long:,} of {self.read:,} texts have more than {self.max_tokens:,} tokens and are {how}"


def _letters_apart(tokenizer: Any) -> bool:
    """Return whether a tokenizer's words are single letters that must be separated by spaces, as ProtBert's."""
    words = [word for word in tokenizer.get_vocab() if word not in tokenizer.all_special_tokens]
    if not words or any(len(word) > 1 for word in words):
        return False
    first, last = min(words), max(words)
    return tokenizer.tokenize(f"{first} {last}") == [first, last] != tokenizer.tokenize(first + last)


def has_tokenizer(name: str) -> bool:
    """Return whether a backbone's folder has a tokenizer; True for a file or a hub name, which may have one."""
    folder = Path(SHIPPED.get(name, name))
    return not folder.is_dir() or any((folder / file).is_file() for file in TOKENIZERS)


def read_tokenizer(name: str, positions: int | None, embeddings: int | None = None) -> TextReader:
    """Return the reader of a model with this many positions and embeddings, by its folder, GGUF file or hub name."""
    from transformers import AutoTokenizer

    silence_transformers()
    source = str(SHIPPED.get(name, Path(name).parent if gguf_argument(name) else name))
    remedy = "give a folder with a tokenizer.json, or use --input gaussian"
    with as_input_error(f"backbone {name!r}: its tokenizer is not readable", remedy):
        tokenizer = AutoTokenizer.from_pretrained(
            source,
            trust_remote_code=False,
            use_fast=True,
            local_files_only=local_files_only(source),
            **gguf_argument(name),
        )
        # This class pads and cuts texts itself; the file may set other lengths.
        tokenizer.padding_side = tokenizer.truncation_side = "right"
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        return TextReader(tokenizer, positions, embeddings)
