"""Synthetic streams of tokens with a known least possible loss.

After Chiang and Lee 2020, "Pre-Training a Language Model Without Human Language": the gain from a corpus without words
shows the gain from the order of tokens alone. They train masked models and fine-tune them on language; here models
predict the next token, so that the least possible loss is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from reservoir.pretraining.corpora.corpus import HeldOut
from reservoir.random import generator

HELD_OUT_TOKENS = 1 << 18
"""Tokens of a held-out part, rounded down to whole windows."""

ENTROPY_TOKENS = 1 << 19
"""Tokens over which the entropy of nested tokens is averaged, for an error of about 0.001 bits."""


class Stream(ABC):
    """A corpus that is drawn at random; ``facts`` are its parameters."""

    unit = "token"

    def __init__(self, name: str, vocabulary: int, **facts: object) -> None:
        self.vocabulary = vocabulary
        self._name, self._facts = name, facts

    @abstractmethod
    def windows(self, draw: np.random.Generator, count: int, tokens: int) -> np.ndarray:
        """Return windows, int64 (count, tokens)."""

    @abstractmethod
    def entropy(self, tokens: int) -> float:
        """Return the mean entropy of each token but the first of a window, given those before it, in bits.

        It is the least possible mean loss over all windows; that of the held-out parts differs by thousandths.
        """

    def draw(self, seed: int, step: int, count: int, tokens: int) -> np.ndarray:
        """Return the windows of a step, int64 (count, tokens)."""
        return self.windows(generator(seed, self._name, step), count, tokens)

    def held_out(self, split: str, tokens: int) -> HeldOut:
        """Return windows that are independent of all training seeds, the same at every call."""
        count = max(1, HELD_OUT_TOKENS // tokens)
        windows = self.windows(generator("held out", self._name, split), count, tokens)
        return HeldOut(windows, np.ones(count, np.int64))

    def describe(self) -> dict[str, object]:
        """Return the name, the vocabulary and the parameters of the stream."""
        return {"corpus": self._name, "vocabulary": self.vocabulary, **self._facts}


class Independent(Stream):
    """Tokens drawn independently of each other, with probabilities (vocabulary,)."""

    def __init__(self, name: str, probabilities: np.ndarray) -> None:
        super().__init__(name, len(probabilities))
        self._probabilities = probabilities

    def windows(self, draw: np.random.Generator, count: int, tokens: int) -> np.ndarray:
        """Return windows of independent tokens, int64 (count, tokens)."""
        return draw.choice(self.vocabulary, (count, tokens), p=self._probabilities)

    def entropy(self, tokens: int) -> float:
        """Return Shannon's entropy of a token; earlier tokens do not change it."""
        return shannon(self._probabilities)


class Nesting(Stream):
    r"""Balanced sequences of nested tokens, one after another: a stack-based Bernoulli grammar.

    The length of each sequence is even and uniform from ``shortest`` to ``longest``. At each position a token is opened
    with probability ``push``; otherwise the token that was opened last is closed. An empty stack always opens, and a
    stack as deep as the number of remaining tokens always closes, so that the sequence ends balanced. Opened tokens
    follow Zipf's law. An opening and its closing token are two symbols, ``k`` and ``k + vocabulary / 2``, so that the
    tokens determine the stack; other corpora of nested pairs (Papadimitriou and Jurafsky 2020) close a token by the
    same symbol. A window begins with a sequence and holds several.

    The only unknown of a perfect predictor is the number :math:`r` of tokens that the sequence has left. With
    :math:`b_t` the distribution of :math:`r` given the tokens before position :math:`t`, and :math:`d_t` the depth of
    the stack there, the next token is an opening one with probability

    .. math:: q_t = 1 \text{ if } d_t = 0, \text{ else } p \, (1 - b_t(d_t)).

    Which token is opened is as uncertain as Zipf's law, and a closing token is certain. The entropy of the token is
    :math:`h(q_t) + q_t H_{Zipf}`, with :math:`h` the entropy of a coin.
    """

    def __init__(self, vocabulary: int, push: float = 0.4, shortest: int = 90, longest: int = 120) -> None:
        super().__init__("nesting", vocabulary, push=push, lengths=[shortest, longest])
        self._kinds = zipf_law(vocabulary // 2)
        self._push, self._longest = push, longest
        self._lengths = np.arange(shortest, longest + 1, 2)

    def windows(self, draw: np.random.Generator, count: int, tokens: int) -> np.ndarray:
        """Return windows that begin with a sequence and are cut at ``tokens`` tokens, int64 (count, tokens)."""
        each = -(-tokens // int(self._lengths[0]))
        sequences, lengths = self._sequences(draw, count * each)
        is_real = np.arange(self._longest) < lengths[:, None]
        windows = zip(np.split(sequences, count), np.split(is_real, count), strict=True)
        return np.stack([sequence[kept][:tokens] for sequence, kept in windows])

    def _sequences(self, draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sequences, int64 (count, longest), and their lengths."""
        half, rows = len(self._kinds), np.arange(count)
        lengths = draw.choice(self._lengths, count)
        chance = draw.random((self._longest, count))
        opened = draw.choice(half, (self._longest, count), p=self._kinds)
        stack = np.zeros((self._longest // 2 + 1, count), np.int64)
        depth = np.zeros(count, np.int64)
        sequences = np.empty((count, self._longest), np.int64)
        for at in range(self._longest):
            # After its end a sequence continues with tokens that are not read.
            opens = (depth == 0) | ((depth < lengths - at) & (chance[at] < self._push))
            top = depth - ~opens
            stack[top, rows] = np.where(opens, opened[at], stack[top, rows])
            sequences[:, at] = stack[top, rows] + half * ~opens
            depth = top + opens
        return sequences, lengths

    def opening(self, opens: np.ndarray) -> np.ndarray:
        """Return the probability (windows, tokens) that a token opens, given which of the earlier tokens open."""
        rows = np.arange(len(opens))
        start = np.zeros(self._longest + 1)
        start[self._lengths] = 1 / len(self._lengths)
        left = np.tile(start, (len(opens), 1))  # the distribution of the number of tokens left
        depth = np.zeros(len(opens), np.int64)
        found = np.empty(opens.shape)
        for at, opened in enumerate(opens.T):
            must_close = left[rows, depth]
            found[:, at] = np.where(depth == 0, 1.0, self._push * (1 - must_close))
            # Bayes' rule: only a sequence whose remaining tokens all close has another probability than the others.
            chance = np.where(opened, found[:, at], 1 - found[:, at])
            left *= np.where(depth == 0, 1.0, np.where(opened, self._push, 1 - self._push) / chance)[:, None]
            left[rows, depth] = np.where(opened, 0.0, must_close / chance)
            depth += np.where(opened, 1, -1)
            ended = left[:, 1].copy()
            left[:, :-1] = left[:, 1:]
            left[:, -1] = 0.0
            left[:, 0] = 0.0
            left += ended[:, None] * start
        return found

    def entropy(self, tokens: int) -> float:
        """Return the mean entropy of a token but a window's first, given those before it, in bits.

        It is the mean over a fixed draw of the exact entropy at every position. The entropy of the opened token is
        counted at opening tokens instead of weighted by their probability: the mean is the same, and it hardly varies.
        """
        windows = self.windows(generator("entropy", "nesting"), max(1, ENTROPY_TOKENS // tokens), tokens)
        opens = windows < len(self._kinds)
        probability = self.opening(opens)[:, 1:]
        coins = shannon(np.stack([probability, 1 - probability])) / probability.size
        return coins + float(opens[:, 1:].mean()) * shannon(self._kinds)


def shannon(probabilities: np.ndarray) -> float:
    """Return the sum of :math:`-p log2 p`, in bits."""
    some = probabilities[probabilities > 0]
    return float(-(some * np.log2(some)).sum())


def zipf_law(count: int) -> np.ndarray:
    """Return Zipf's law (1949) for ``count`` tokens: probabilities proportional to one over the rank."""
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


STREAMS: dict[str, Callable[[int], Stream]] = {
    "uniform": lambda vocabulary: Independent("uniform", np.full(vocabulary, 1 / vocabulary)),
    "zipf": lambda vocabulary: Independent("zipf", zipf_law(vocabulary)),
    "nesting": Nesting,
}
"""Constructor of each stream, by name; the argument is the vocabulary."""
