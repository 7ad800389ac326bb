"""Corpora for pretraining: the bytes of a text, and synthetic streams of tokens.

The streams follow Chiang and Lee 2020, "Pre-Training a Language Model Without Human Language": the
gain from a corpus without words is that from the order of tokens alone. The paper trains masked
models; here they predict the next token.
"""

import gzip
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.file_checks import FREE_BYTES, MAX_EXPANSION, check_expansion
from reservoir.random import generator
from reservoir.tasks.task import SPLITS

HELD_OUT_SPLITS = ("valid", "test")
BYTES = 256
TRAIN, VALID = 0.90, 0.05  # shares of a text that these splits get; test gets the rest
# share of a held-out window that repeats the window before, so that every counted token has a context
SEEN = 0.25
HELD_OUT_TOKENS = 1 << 18  # tokens of a held-out part of a stream, rounded down to whole windows


class HeldOut(NamedTuple):
    """Windows of a held-out part, each of whose tokens is predicted at most once."""

    windows: np.ndarray  # (count, tokens) of int
    # (count,): the first predicted token of each window, at least 1; earlier tokens are context
    first: np.ndarray


class Text:
    """The bytes of a file, gzipped or not, or of a folder's files in the order of their names, split 90/5/5%."""

    unit = "byte"  # what a token is, for messages
    vocabulary = BYTES  # number of tokens
    entropy = None  # the least possible loss of a text is not known

    def __init__(self, path: Path) -> None:
        text = _read(path)
        self._name = path.name
        self._sha256 = hashlib.sha256(text).hexdigest()
        self.tokenizer = byte_tokenizer()
        # The training part is the first 90%, the validation part the next 5%.
        ends = [int(len(text) * TRAIN), int(len(text) * (TRAIN + VALID))]
        parts = np.split(np.frombuffer(text, np.uint8), ends)
        self._tokens: dict[str, np.ndarray] = dict(zip(SPLITS, parts, strict=True))

    def draw(self, seed: int, step: int, count: int, tokens: int) -> np.ndarray:
        """Return windows at random positions of the training part, int64 (count, tokens)."""
        train = self._tokens_of("train", tokens)
        starts = generator(seed, "windows", step).integers(0, len(train) - tokens + 1, count)
        return train[starts[:, None] + np.arange(tokens)].astype(np.int64)

    def held_out(self, split: str, tokens: int) -> HeldOut:
        """Return the windows of a held-out part, each overlapping the one before by a quarter."""
        part = self._tokens_of(split, tokens)
        overlap = max(1, int(tokens * SEEN))
        starts = np.arange(0, max(1, len(part) - tokens + 1), tokens - overlap)
        # Tokens of the overlap are predicted in the window before. The first window has none before it, and predicts
        # all of its tokens but the first, which has no context.
        first = np.full(len(starts), overlap)
        first[0] = 1
        return HeldOut(np.lib.stride_tricks.sliding_window_view(part, tokens)[starts], first)

    def describe(self) -> dict[str, object]:
        """Return name and digest of the text, and the vocabulary."""
        return {
            "corpus": "text",
            "name": self._name,
            "sha256": self._sha256,
            "vocabulary": self.vocabulary,
        }

    def _tokens_of(self, split: str, window: int) -> np.ndarray:
        """Return the tokens of a split, uint8; raise `InputError` if it is shorter than a window of so many tokens."""
        part = self._tokens[split]
        if len(part) < window:
            raise InputError(
                f"{self._name}: its {split} part has {len(part):,} tokens, but a window has {window:,}",
                "give more text, or a smaller --context",
            )
        return part


def _read(path: Path) -> bytes:
    """Return the bytes of a file, or of the files of a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    with as_input_error(f"corpus {path}: not readable", "give another file or folder"):
        return b"".join(_unpacked(file) if file.suffix == ".gz" else file.read_bytes() for file in files)


def _unpacked(path: Path) -> bytes:
    """Return the content of a gzip file; raise `InputError` if it is much larger than the file, as in an attack."""
    size = path.stat().st_size
    with gzip.open(path) as file:
        # One byte more than is allowed is enough to notice a larger text, however large it is.
        text = file.read(max(FREE_BYTES, MAX_EXPANSION * size) + 1)
    check_expansion(path, "text", len(text), size)
    return text


def byte_tokenizer() -> Any:
    """Return a `tokenizers.Tokenizer` whose tokens are bytes, numbered by their values."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    # `ByteLevel` writes each byte as a printable character; without merges, each character is a token.
    byte_of_character = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=byte_of_character, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Stream:
    """Independent tokens with probabilities (vocabulary,). ``entropy`` is the least mean loss in bits, or None."""

    unit = "token"  # what a token is, for messages
    tokenizer = None  # there is no text whose tokens these are

    def __init__(self, name: str, probabilities: np.ndarray) -> None:
        self._name = name
        self._probabilities = probabilities
        self.vocabulary = len(probabilities)
        # Shannon's entropy; tokens of probability 0 add nothing to it.
        positive = probabilities[probabilities > 0]
        self.entropy: float | None = float(-(positive * np.log2(positive)).sum())

    def windows(self, draw: np.random.Generator, count: int, tokens: int) -> np.ndarray:
        """Draw windows, int64 (count, tokens)."""
        return draw.choice(self.vocabulary, (count, tokens), p=self._probabilities)

    def draw(self, seed: int, step: int, count: int, tokens: int) -> np.ndarray:
        """Return the windows of a step, int64 (count, tokens)."""
        return self.windows(generator(seed, self._name, step), count, tokens)

    def held_out(self, split: str, tokens: int) -> HeldOut:
        """Return windows that are independent of all training seeds, the same for every call."""
        count = max(1, HELD_OUT_TOKENS // tokens)
        windows = self.windows(generator("held out", self._name, split), count, tokens)
        # Windows of a stream do not overlap, so each predicts all of its tokens from the second on.
        first = np.ones(count, np.int64)
        return HeldOut(windows, first)

    def describe(self) -> dict[str, object]:
        """Return the name, the vocabulary and the parameters of the stream."""
        return {"corpus": self._name, "vocabulary": self.vocabulary}


class Nesting(Stream):
    """Balanced sequences of nested tokens, one after another: a stack-based Bernoulli grammar.

    The length of each sequence is even and uniform from ``shortest`` to ``longest``. At each position
    a token is opened with probability ``push``; otherwise the token that was opened last is closed. A
    token is always opened if the stack is empty, and closed if the stack is as deep as the number of
    remaining tokens. Opened tokens follow Zipf's law. The closing token of ``k`` is ``k + vocabulary
    / 2``.
    """

    push = 0.4
    shortest, longest = 90, 120  # tokens of a sequence

    def __init__(self, vocabulary: int) -> None:
        super().__init__("nesting", zipf_law(vocabulary // 2))  # of the opened tokens
        self.vocabulary = vocabulary
        self.entropy = None  # not known, because the tokens depend on each other

    def windows(self, draw: np.random.Generator, count: int, tokens: int) -> np.ndarray:
        """Draw windows that begin with a sequence and are cut at ``tokens`` tokens, int64 (count, tokens)."""
        # As many sequences for each window as fill it even if all are of the shortest length.
        sequences, lengths = self.sequences(draw, count * -(-tokens // self.shortest))
        is_in_sequence = np.arange(self.longest) < lengths[:, None]
        # The sequences of each window, (sequences, longest), are joined without what follows their ends.
        groups = zip(np.split(sequences, count), np.split(is_in_sequence, count), strict=True)
        return np.stack([group[is_real][:tokens] for group, is_real in groups])

    def sequences(self, draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw sequences, int64 (count, longest), and their lengths; tokens after the end of one have no meaning."""
        half = len(self._probabilities)  # of the vocabulary
        rows = np.arange(count)
        lengths = draw.choice(np.arange(self.shortest, self.longest + 1, 2), count)
        # For each position, as if a token were opened there.
        uniform = draw.random((self.longest, count))
        new_tokens = draw.choice(half, (self.longest, count), p=self._probabilities)
        # The open tokens of all sequences side by side, and their number in each sequence.
        stack = np.zeros((self.longest // 2 + 1, count), np.int64)
        depth = np.zeros(count, np.int64)
        sequences = np.empty((count, self.longest), np.int64)
        for position in range(self.longest):
            # With as many open tokens as remaining positions, all of them must be closed. After the end of a sequence,
            # none remain.
            remaining = lengths - position
            opens = (depth == 0) | ((depth < remaining) & (uniform[position] < self.push))
            # A new token goes onto the stack, to the index ``depth``. A closing one is the token below that, which was
            # opened last, plus half the vocabulary; it leaves the stack.
            top = depth - ~opens
            stack[top, rows] = np.where(opens, new_tokens[position], stack[top, rows])
            sequences[:, position] = stack[top, rows] + half * ~opens
            depth = top + opens
        return sequences, lengths

    def describe(self) -> dict[str, object]:
        """Return the name, the vocabulary and the parameters of the stream."""
        return super().describe() | {"push": self.push, "lengths": [self.shortest, self.longest]}


def zipf_law(count: int) -> np.ndarray:
    """Return Zipf's law (1949) for ``count`` tokens: probabilities proportional to one over the rank."""
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


class Mixture:
    """Windows of several corpora in turn, which share one vocabulary: token 65 is the same token in all of them."""

    unit = "token"  # what a token is, for messages
    entropy = None  # the least possible loss is not known

    def __init__(self, corpora: Sequence["Stream | Text"]) -> None:
        self._corpora = corpora
        self.vocabulary = corpora[0].vocabulary  # that of all of them
        # All tokenizers are those of bytes; streams have none.
        self.tokenizer = next((corpus.tokenizer for corpus in corpora if corpus.tokenizer), None)

    def draw(self, seed: int, step: int, count: int, tokens: int) -> np.ndarray:
        """Return the windows of a step, int64 (count, tokens)."""
        # Draw all windows of each corpus, (corpora, count, tokens), and take each window from the corpus whose turn it
        # is. The turns continue from step to step.
        windows = np.stack([corpus.draw(seed, step, count, tokens) for corpus in self._corpora])
        turns = (step * count + np.arange(count)) % len(self._corpora)
        return windows[turns, np.arange(count)]

    def held_out(self, split: str, tokens: int) -> HeldOut:
        """Return equally many windows of each corpus, in turn."""
        held_out = [corpus.held_out(split, tokens) for corpus in self._corpora]
        count = min(len(part.windows) for part in held_out)
        # Stacked on axis 1, so that the windows of the corpora alternate when the first two axes are joined.
        windows = np.stack([part.windows[:count] for part in held_out], axis=1)
        first = np.stack([part.first[:count] for part in held_out], axis=1)
        return HeldOut(windows.reshape(-1, tokens), first.ravel())

    def describe(self) -> dict[str, object]:
        """Return the names and the descriptions of the corpora."""
        descriptions = [corpus.describe() for corpus in self._corpora]
        name = ",".join(str(description["corpus"]) for description in descriptions)
        return {"corpus": name, "vocabulary": self.vocabulary, "parts": descriptions}


# Constructor of each stream, by name; the argument is the vocabulary size.
STREAMS: dict[str, Callable[[int], Stream]] = {
    "uniform": lambda vocabulary: Stream("uniform", np.full(vocabulary, 1 / vocabulary)),
    "zipf": lambda vocabulary: Stream("zipf", zipf_law(vocabulary)),
    "nesting": Nesting,
}
Corpus = Stream | Text | Mixture


def corpus_named(name: str, vocabulary: int) -> Corpus:
    """Return the stream with this name, or the text at this path, or a mixture of these if the name has commas.

    A stream precedes a file of the same name. A path that exists may have a comma.
    """
    if "," in name and not Path(name).exists():
        return Mixture([_single_corpus(part.strip(), vocabulary) for part in name.split(",")])
    return _single_corpus(name, vocabulary)


def _single_corpus(name: str, vocabulary: int) -> Stream | Text:
    """Return a stream by its name, or the text of a file or folder; refuse a vocabulary that it cannot have."""
    if name in STREAMS:
        if name == "nesting" and vocabulary % 2:
            raise InputError(
                f"--vocabulary {vocabulary}: give an even number", "nesting pairs each token with another"
            )
        return STREAMS[name](vocabulary)
    if not name or not Path(name).exists():
        streams = f"{', '.join(STREAMS)}, or bit-memory, which cannot be mixed"
        raise InputError(
            f"corpus {name!r}: no such file or folder", f"name a text file, a folder, one of {streams}"
        )
    if vocabulary != BYTES:
        raise InputError(
            f"--vocabulary {vocabulary}: the tokens of a text are {BYTES} bytes", "leave --vocabulary out"
        )
    return Text(Path(name))
