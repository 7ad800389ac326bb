"""The description length of labels given features: a prequential (online) code by ridge readouts, in bits.

The labels are sent portion by portion (Voita and Titov 2020). The first portion is sent with log2 K bits for each of K
classes. Each later label costs -log2 p, where p is the probability that a readout of all portions before gives it. The
fewer bits, the more regular are the labels in these features, and the fewer samples show it.

Ridge has no probabilities of its own: they are the softmax of the scores, divided by a temperature. A receiver must be
able to repeat all choices, so the penalty and the temperature of a portion are those that would have coded the portion
before in the fewest bits, with the readout that coded it. No label is used before it has been sent. A portion has the
code of an equal mixture of this readout with uniform labels, which bounds what a readout costs that is sure and wrong.

Reference: Voita and Titov (2020), Information-theoretic probing with minimum description length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from reservoir.readouts.linear import Scorer, Targets
from reservoir.readouts.moments import Accumulator, Moments, accumulate
from reservoir.readouts.penalties import FIXED_ALPHA
from reservoir.readouts.ridge import FewSamples, TrainingData, ridge_path

# Features (m, w), labels (m, outputs), and ranks (m,) in the order in which labels are sent.
RankedBlock = tuple[np.ndarray, np.ndarray, np.ndarray]

# The shares of the samples at which portions end, as in the paper.
BLOCK_SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
# The first portion has at least this many samples, and two for each class: a readout of fewer has nothing to say.
MIN_SAMPLES = 16
# The penalties, each ten times the one before; one of them is FIXED_ALPHA, which the first readout has.
ALPHAS = np.geomspace(1e-1, 1e5, 7)
MAX_TUNED = 2000  # samples of a portion that choose penalty and temperature of the next one


@dataclass(frozen=True)
class CodeLength:
    """The length of a prequential code of labels, in bits."""

    bits: float
    uniform_bits: float  # of a code that gives every class the same probability
    portions: tuple[tuple[int, float], ...]  # the number of samples and the bits of each portion

    @property
    def compression(self) -> float:
        """How many times shorter the code is than the uniform one."""
        return self.uniform_bits / self.bits


@dataclass(frozen=True)
class _Setting:
    """The penalty and the temperature of a readout that codes a portion."""

    index: int  # of the penalty in `ALPHAS`
    temperature: float  # by which the logits are divided


def portion_ends(samples: int, classes: int) -> np.ndarray:
    """Return the numbers of samples after which portions end, ascending; the last is the number of all samples."""
    ends = np.ceil(np.array(BLOCK_SHARES) * samples).astype(np.int64)
    min_samples = max(MIN_SAMPLES, 2 * classes)
    # Few samples have equal ends, or none that is large enough: then all samples are one portion.
    return np.unique(np.append(ends[ends >= min_samples], samples))


def prequential_code(
    blocks: Iterable[RankedBlock],
    ends: np.ndarray,
    targets: Targets,
    feature_weights: np.ndarray | None = None,
) -> CodeLength:
    """Return the length of the code of the labels in blocks, which are iterated three times.

    Each sample has a rank from 0, its position in the order in which labels are sent. ``ends`` are the ascending
    numbers of samples after which portions end, as returned by `portion_ends`. ``feature_weights`` (w,) multiply the
    standardised features.
    """
    # Readout k is fitted to portions 0 to k and codes portion k + 1, with the scorer and the setting of number k.
    paths = [ridge_path(prefix, ALPHAS, feature_weights) for prefix in _prefixes(blocks, ends, targets)]
    scorers = [Scorer(path, targets) for path in paths]
    settings = _choose_settings(blocks, ends, targets, scorers)
    # Code every sample by the readout of the portions before its own.
    bits, labels = np.zeros(len(ends)), np.zeros(len(ends))  # of each portion
    for portion, x, y, _ in _by_portion(blocks, ends):
        labels[portion] += y.size
        if portion > 0:  # no readout codes the first portion
            setting = settings[portion - 1]
            scores = scorers[portion - 1](x, slice(setting.index, setting.index + 1))[0]
            bits[portion] += _bits(targets, scores, y, setting.temperature)
    uniform_bits = labels * np.log2(targets.classes)
    bits[0] = uniform_bits[0]
    # Each later portion has the code of an equal mixture of its readout with uniform labels, -log2(p / 2 + u / 2). So a
    # readout that is sure and wrong costs at most one bit more than uniform labels, and one that is right at most one
    # bit more than alone.
    bits[1:] = 1 - np.logaddexp2(-bits[1:], -uniform_bits[1:])
    return CodeLength(
        bits=float(bits.sum()),
        uniform_bits=float(uniform_bits.sum()),
        portions=tuple(zip(np.diff(ends, prepend=0).tolist(), bits.tolist(), strict=True)),
    )


def _by_portion(
    blocks: Iterable[RankedBlock], ends: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the samples of each block portion by portion: the portion's number, features, labels and ranks."""
    for x, y, ranks in blocks:
        portion_of_sample = np.searchsorted(ends, ranks, side="right")  # how many portions end before it
        for portion in np.unique(portion_of_sample).tolist():
            is_in_portion = portion_of_sample == portion
            yield portion, x[is_in_portion], y[is_in_portion], ranks[is_in_portion]


def _prefixes(blocks: Iterable[RankedBlock], ends: np.ndarray, targets: Targets) -> list[TrainingData]:
    """Return the training data of the first portion, of the first two, and so on, without the last portion."""
    # Portions that end before there are as many samples as features are kept as samples. The later ones are summed as
    # moments, one set for each portion.
    last = len(ends) - 1
    sample_blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # features, targets and ranks
    accumulators: dict[int, Accumulator] = {}  # by portion
    for portion, x, y, ranks in _by_portion(blocks, ends):
        if portion == last:  # no readout is fitted to it
            continue
        if ends[portion] < x.shape[1]:
            sample_blocks.append((x, targets.coded(y), ranks))
        else:
            accumulators.setdefault(portion, Accumulator()).update(x, targets.coded(y))
    prefixes: list[TrainingData] = []
    moments: Moments | None = None  # of all portions so far; None before the first
    if sample_blocks:
        x, y, ranks = (np.concatenate(arrays) for arrays in zip(*sample_blocks, strict=True))
        # The portions that are kept as samples come before those of the accumulators.
        prefixes = [
            FewSamples(x=x[ranks < end], y=y[ranks < end], weights=None)
            for end in ends[: last - len(accumulators)]
        ]
        moments = accumulate([(x, y)])
    # The prefix that ends with a portion has the moments of all portions before it, and its own.
    for portion in sorted(accumulators):
        of_portion = accumulators[portion].moments()
        moments = of_portion if moments is None else moments + of_portion
        prefixes.append(moments)
    return prefixes


def _choose_settings(
    blocks: Iterable[RankedBlock], ends: np.ndarray, targets: Targets, scorers: Sequence[Scorer]
) -> list[_Setting]:
    """Return the setting of each readout, which codes the portion after those that it was fitted to.

    It is the one that would have coded the portion before in the fewest bits, with the readout before.
    """
    # Readout k is fitted to the portions from 0 to k, and codes portion k + 1. Its setting is the best one for the
    # scores that readout k - 1 gives the first samples of portion k. So the first portion, which no readout codes, and
    # the last, after which none follows, choose no setting.
    scores: dict[int, list[np.ndarray]] = {}  # by portion, under every penalty
    labels: dict[int, list[np.ndarray]] = {}
    for portion, x, y, ranks in _by_portion(blocks, ends):
        is_coded_before_another = 0 < portion < len(scorers)
        if is_coded_before_another:
            first_rank = ends[portion - 1]  # where the portion before ends
            is_tuned_on = ranks < first_rank + MAX_TUNED
            scores.setdefault(portion, []).append(scorers[portion - 1](x[is_tuned_on], slice(None)))
            labels.setdefault(portion, []).append(y[is_tuned_on])
    # No readout has coded anything when the first one is used, so its penalty is fixed: the one that equals
    # `FIXED_ALPHA` up to rounding.
    fixed_index = int(np.argmin(np.abs(np.log(ALPHAS / FIXED_ALPHA))))
    settings = [_Setting(fixed_index, temperature=1.0)]
    for portion in range(1, len(scorers)):
        scores_by_penalty = np.concatenate(scores[portion], axis=1)  # (A, samples, T)
        y = np.concatenate(labels[portion])
        temperatures = [targets.fit_temperature(penalty_scores, y) for penalty_scores in scores_by_penalty]
        bits_by_penalty = [
            _bits(targets, penalty_scores, y, temperature)
            for penalty_scores, temperature in zip(scores_by_penalty, temperatures, strict=True)
        ]
        best_index = int(np.argmin(bits_by_penalty))
        settings.append(_Setting(best_index, temperatures[best_index]))
    return settings


def _bits(targets: Targets, scores: np.ndarray, y: np.ndarray, temperature: float) -> float:
    """Return the bits of labels (n, outputs), the sum of -log2 of their probabilities by scores (n, t)."""
    logits = targets.logits(scores.astype(np.float64)) / temperature
    log_probabilities = log_softmax(logits, axis=-1)  # (n, outputs, classes)
    of_labels = np.take_along_axis(log_probabilities, y[..., None].astype(np.int64), axis=-1)
    return -float(of_labels.sum()) / np.log(2)  # natural logarithms become bits
