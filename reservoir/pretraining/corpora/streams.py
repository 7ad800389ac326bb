"""Synthetic streams of tokens, of which the least possible loss is known.

After Chiang and Lee 2020, "Pre-Training a Language Model Without Human Language": what a model gains from a corpus
without words tells what it gains from the order of tokens alone. Theirs are masked models that read both ways and are
fine-tuned on language; ours predict the next token, so that the least possible loss can be told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from reservoir.pretraining.corpora.corpus import HeldOut
from reservoir.random import generator

HELD_OUT_TOKENS = 1 << 18
"""Tokens of a held-out part, less what does not fill a window."""

ENTROPY_TOKENS = 1 << 19
"""Tokens over which the entropy of nested tokens is averaged: it is then known to about 0.001 bits."""


class Stream(ABC):
    """A corpus that is drawn rather than read; ``facts`` are what tells it from others of its name."""

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

        It is the least mean loss, expected over all windows; the held-out parts differ by thousandths.
        """

    def draw(self, seed: int, step: int, count: int, tokens: int) -> np.ndarray:
        """Return the windows of a step, int64 (count, tokens)."""
        return self.windows(generator(seed, self._name, step), count, tokens)

    def held_out(self, split: str, tokens: int) -> HeldOut:
        """Return windows that no seed's training draws but by chance; the same at every call."""
        count = max(1, HELD_OUT_TOKENS // tokens)
        windows = self.windows(generator("held out", self._name, split), count, tokens)
        return HeldOut(windows, np.ones(count, np.int64))

    def describe(self) -> dict[str, object]:
        """Return the name, the vocabulary, and what else tells this stream from others."""
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
        """Return Shannon's entropy of a token, which those before it do not change."""
        return shannon(self._probabilities)


class Nesting(Stream):
    r"""Balanced sequences of nested tokens, one after another: a stack-based Bernoulli grammar.

    Every sequence first draws an even number of tokens to have, uniformly from ``shortest`` to ``longest``. Then at
    each place a token is opened with the probability ``push``, and else the one that was opened last is closed; but an
    empty stack always opens, and a stack as deep as there are tokens left always closes, so that the sequence ends
    balanced. What is opened follows Zipf's law. A token and the one that closes it are two symbols, ``k`` and
    ``k + vocabulary / 2``, so that the tokens alone tell the stack; corpora of nested pairs elsewhere (Papadimitriou
    and Jurafsky 2020) close a token by the same one again. Windows begin with a sequence and hold several.

    A reader who knows all this does not know one thing: how many tokens :math:`r` the sequence has left. With
    :math:`b_t` the distribution of :math:`r` given the tokens before place :math:`t`, and :math:`d_t` the depth of
    the stack there, the next token is opened with probability

    .. math:: q_t = 1 \text{ if } d_t = 0, \text{ else } p \, (1 - b_t(d_t)),

    and which one then is as uncertain as Zipf's law; what closes is certain. So the entropy of the token is
    :math:`h(q_t) + q_t H_{Zipf}`, with :math:`h` that of a coin.
    """

    def __init__(self, vocabulary: int, push: float = 0.4, shortest: int = 90, longest: int = 120) -> None:
        super().__init__("nesting", vocabulary, push=push, lengths=[shortest, longest])
        self._kinds = zipf_law(vocabulary // 2)
        self._push, self._longest = push, longest
        self._lengths = np.arange(shortest, longest + 1, 2)

    def windows(self, draw: np.random.Generator, count: int, tokens: int) -> np.ndarray:
        """Return windows that begin with a sequence and are cut at so many tokens, int64 (count, tokens)."""
        each = -(-tokens // int(self._lengths[0]))
        sequences, lengths = self._sequences(draw, count * each)
        there = np.arange(self._longest) < lengths[:, None]
        windows = zip(np.split(sequences, count), np.split(there, count), strict=True)
        return np.stack([sequence[kept][:tokens] for sequence, kept in windows])

    def _sequences(self, draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sequences, int64 (count, longest), and how many tokens of each count."""
        half, rows = len(self._kinds), np.arange(count)
        lengths = draw.choice(self._lengths, count)
        chance = draw.random((self._longest, count))
        opened = draw.choice(half, (self._longest, count), p=self._kinds)
        stack = np.zeros((self._longest // 2 + 1, count), np.int64)
        depth = np.zeros(count, np.int64)
        sequences = np.empty((count, self._longest), np.int64)
        for at in range(self._longest):
            # Past its end a sequence goes on with tokens that nobody reads.
            opens = (depth == 0) | ((depth < lengths - at) & (chance[at] < self._push))
            top = depth - ~opens
            stack[top, rows] = np.where(opens, opened[at], stack[top, rows])
            sequences[:, at] = stack[top, rows] + half * ~opens
            depth = top + opens
        return sequences, lengths

    def opening(self, opens: np.ndarray) -> np.ndarray:
        """Return the probability (windows, tokens) that a token opens, given which of those before it open."""
        rows = np.arange(len(opens))
        start = np.zeros(self._longest + 1)
        start[self._lengths] = 1 / len(self._lengths)
        left = np.tile(start, (len(opens), 1))  # the distribution of the number of tokens left
        depth = np.zeros(len(opens), np.int64)
        found = np.empty(opens.shape)
        for at, opened in enumerate(opens.T):
            must_close = left[rows, depth]
            found[:, at] = np.where(depth == 0, 1.0, self._push * (1 - must_close))
            # Bayes' rule: only a sequence whose rest is all closing tokens is told from the others by what comes.
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

        The mean over a fixed draw of the exact entropy at every place. What is opened counts where a token opens
        instead of with its probability: this has the same mean, and hardly varies, as half of all tokens open.
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
    """Return Zipf's law (1949): the probability of each of so many tokens falls as one over its rank."""
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


STREAMS: dict[str, Callable[[int], Stream]] = {
    "uniform": lambda vocabulary: Independent("uniform", np.full(vocabulary, 1 / vocabulary)),
    "zipf": lambda vocabulary: Independent("zipf", zipf_law(vocabulary)),
    "nesting": Nesting,
}
"""From the name of a stream to what makes it from a vocabulary."""
