"""The baseline of words or tokens with labels: what each tells by itself, whatever stands around it.

The score of a word is the mean of the coded labels of its occurrences, drawn towards the mean of all words as if some
more occurrences had that. For classes this is the most frequent label of the word. It is ridge regression of one-hot
words to labels without their mean, in closed form, so that the vocabulary may be of any size.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from reservoir.column import Baseline, Columns, names_of
from reservoir.readouts.linear import Block, Readout, Tally, Targets
from reservoir.tasks.texts import texts_of
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.fitter import Choice, ColumnFit, Fitter, targets_of
from reservoir_pipelines.fitting.folds import assign_folds
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.source import (
    KNOWN_SPLITS,
    EntrySamples,
    EntryView,
    KnownSource,
    KnownSplit,
    Labelling,
)

SMOOTHINGS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Numbers of occurrences with the mean of all words that are added to those of each word."""

TEXTS_READ = 256  # texts that are read at a time
WORD, TOKEN = Baseline("the word alone"), Baseline("the token alone")

S = TypeVar("S", bound=str)  # the names of the splits that a view reads
T = TypeVar("T", bound=str)  # those of another view, where a function has two


@dataclass(frozen=True)
class IdentitySource(EntrySamples[S]):
    """The words or tokens of an entry as numbers; all that are neither in train nor in valid share the last number."""

    view: EntryView[S]
    baseline: Baseline  # `WORD` or `TOKEN`
    numbers: Mapping[Hashable, int]  # of the words or tokens of train and valid, from 0

    @classmethod
    def of(cls, known: Known) -> "IdentitySource[KnownSplit]":
        """Return the words of train and valid, in lower case, or their tokens."""
        baseline = WORD if known.task.labels_words else TOKEN
        # Words or tokens are numbered in the order in which they first occur.
        numbers: dict[Hashable, int] = {}
        for split in KNOWN_SPLITS:
            for word_or_token in _words_or_tokens(known.view, split, baseline):
                numbers.setdefault(word_or_token, len(numbers))
        return IdentitySource(known.view, baseline, numbers)

    @property
    def columns(self) -> Columns:
        """The baseline alone."""
        return (self.baseline,)

    def on(self, views: Mapping[Path, EntryView[T]]) -> "IdentitySource[T]":
        """Return the words or tokens of other splits, with the same numbers."""
        return IdentitySource(views[self.view.path], self.baseline, self.numbers)

    def tokens(self) -> int:
        """Return 1: each row is a word or a token."""
        return 1

    def width(self) -> int:
        """Return 1: a sample is a number."""
        return 1

    def blocks(self, split: S) -> Iterator[Block]:
        """Yield a single block: the numbers (n, 1) of all words or tokens, and their labels (n, outputs)."""
        # The number of every word or token that is neither in train nor in valid.
        unknown = len(self.numbers)
        words_or_tokens = _words_or_tokens(self.view, split, self.baseline)
        numbers = [self.numbers.get(word_or_token, unknown) for word_or_token in words_or_tokens]
        yield np.array(numbers, np.int64)[:, None], self.labels(split)


def _words_or_tokens(view: EntryView[Any], split: str, baseline: Baseline) -> Sequence[Hashable]:
    """Return the word in lower case, or the ID of the model's token, that each row of a split is."""
    rows = view[split]
    if baseline == TOKEN:
        return rows.token_ids.tolist()
    # Read each text once. `index` has the number of each row's text among all prepared ones; ``text_of_row`` has its
    # index in ``texts``.
    text_numbers, text_of_row = np.unique(rows.index, return_inverse=True)
    texts: list[str] = []
    for start in range(0, len(text_numbers), TEXTS_READ):
        block = view.raw(split).take(text_numbers[start : start + TEXTS_READ])
        texts += texts_of(block.x, block.lengths)
    # Each word is a span of characters in its text.
    words: list[str] = []
    for text_index, (start, end) in zip(text_of_row.tolist(), rows.spans.tolist(), strict=True):
        words.append(texts[text_index][start:end].lower())
    return words


@dataclass(frozen=True, eq=False)
class IdentityReadout:
    """The scores of each word or token, by its number."""

    table: np.ndarray  # (words + 1, T); the last row is that of all higher numbers, whose words are unknown
    targets: Targets

    @property
    def has_probabilities(self) -> bool:
        """Whether the scores stand for shares of classes (see `shares`); values have none."""
        return self.targets.classes > 0

    def scores(self, x: np.ndarray, /) -> np.ndarray:
        """Return the scores (n, T) of numbers (n, 1)."""
        last_row = len(self.table) - 1
        return self.table[np.minimum(x[:, 0], last_row)]

    def predict(self, x: np.ndarray, /) -> np.ndarray:
        """Return the labels (n, outputs) of numbers (n, 1)."""
        return self.targets.predict(self.scores(x))

    def probabilities(self, x: np.ndarray, /) -> np.ndarray:
        """Return the share of each class, (n, outputs, classes), among the occurrences of words of numbers (n, 1)."""
        return self.shares(self.scores(x))

    def shares(self, scores: np.ndarray) -> np.ndarray:
        """Return the shares of the classes, (n, outputs, classes), that scores (n, T) stand for."""
        # Labels are coded by -1 and 1, so a mean of m stands for the share (m + 1) / 2.
        shares = (scores + 1) / 2
        if self.targets.classes == 2:
            return np.stack([1 - shares, shares], axis=-1)
        return shares.reshape(len(scores), self.targets.outputs, self.targets.classes)


@dataclass(frozen=True, kw_only=True)
class IdentityFitter(Fitter):
    """Means of the labels of each word or token, with a smoothing that is chosen on held-out rows.

    A smoothing takes the place of a penalty: it is the ``alpha`` of the results.
    """

    kind = "counts"
    calibrates = False  # the scores stand for shares already
    has_code = False  # the features are numbers of words, which no linear readout could read

    @property
    def settings(self) -> int:
        """The number of smoothings."""
        return len(SMOOTHINGS)

    @property
    def fitted_splits(self) -> Sequence[KnownSplit]:
        """The splits to which the final means are fitted."""
        return KNOWN_SPLITS if self.folds or self.refits else ("train",)

    def fit(self, source: KnownSource) -> ColumnFit:
        """Try each smoothing on valid, or by cross-validation over train and valid."""
        # Class weights count all rows to which the final means are fitted.
        targets = targets_of(source, self.classes, balanced=self.balanced, splits=self.fitted_splits)
        x, y = _samples(source, KNOWN_SPLITS)
        folds = self._masks_of_folds(source, len(y))
        held_out = np.concatenate([np.flatnonzero(is_held_out) for _, is_held_out in folds])  # fold by fold
        results: list[Result] = []
        scores_of_smoothings: dict[float, np.ndarray] = {}  # (n, T), in the order of the samples
        for smoothing in SMOOTHINGS:
            # Score the held-out samples of each fold by the means of the others.
            scores_of_folds: list[np.ndarray] = []
            for is_fitted, is_held_out in folds:
                readout = _readout(x[is_fitted], y[is_fitted], targets, smoothing)
                scores_of_folds.append(readout.scores(x[is_held_out]))
            scores = np.concatenate(scores_of_folds)
            scores_of_smoothings[smoothing] = np.empty((len(y), scores.shape[1]))
            scores_of_smoothings[smoothing][held_out] = scores
            # A tally counts for several settings, along the first axis of the scores; here it is one.
            tally = Tally(targets).update(scores[None], y[held_out])
            results.append(
                Result(
                    columns=names_of(source.columns),
                    readout=self.kind,
                    metric=targets.metric,
                    alpha=smoothing,
                    valid_score=float(tally.accuracy()[0]),
                    valid_loss=float(tally.loss()[0]),
                )
            )
        best = results.index(max(results, key=lambda result: result.sort_key))
        best_smoothing = SMOOTHINGS[best]
        best_scores = scores_of_smoothings[best_smoothing]
        return ColumnFit(
            columns=source.columns,
            results=tuple(results),
            best=best,
            solve=partial(self._fitted, source, targets, best_smoothing, ("train",)),
            held_out=(lambda: (best_scores, y)) if self.folds else None,
        )

    def _masks_of_folds(self, source: KnownSource, samples: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each fold which of the ``samples`` in train, then valid, are fitted and which held out, (n,) each.

        Without folds, train is fitted and valid is held out.
        """
        if self.folds:
            fold_of_sample = assign_folds(source, self.folds, self.classes)[:, 0]  # of the only repeat
            return [(fold_of_sample != fold, fold_of_sample == fold) for fold in np.unique(fold_of_sample)]
        is_valid = np.arange(samples) >= len(source.labels("train"))
        return [(~is_valid, is_valid)]

    def refit(self, source: KnownSource, chosen: Readout, alpha: float | None) -> Readout:
        """Return the means over all rows that may be used; ``alpha`` is the chosen smoothing."""
        assert alpha is not None, "every result of `fit` has a smoothing"
        return self._fitted(source, chosen.targets, alpha, self.fitted_splits)

    def refit_labels(
        self, source: KnownSource, chosen: Readout, alpha: float | None, labellings: Sequence[Labelling]
    ) -> list[Readout]:
        """Return the means of other labels, for each labelling; ``alpha`` is the chosen smoothing."""
        assert alpha is not None, "every result of `fit` has a smoothing"
        splits = self.fitted_splits
        x, _ = _samples(source, splits)
        labels = [np.concatenate([labelling[split] for split in splits]) for labelling in labellings]
        return [_readout(x, y, chosen.targets, alpha) for y in labels]

    def without_wider_grid(self) -> "IdentityFitter":
        """Return this fitter, whose grid is fixed."""
        return self

    def with_fixed_penalty(self) -> "IdentityFitter":
        """Return this fitter, which has no penalties."""
        return self

    def with_setting_of(self, fit: ColumnFit) -> "IdentityFitter":
        """Return this fitter, because all settings take no time."""
        return self

    def _fitted(
        self, source: KnownSource, targets: Targets, smoothing: float, splits: Sequence[KnownSplit]
    ) -> IdentityReadout:
        """Return the means over some splits."""
        x, y = _samples(source, splits)
        return _readout(x, y, targets, smoothing)


def fit_identity(known: Known, fitter: Fitter) -> Choice | None:
    """Return what words or tokens tell alone, chosen on the same folds as columns are by a ``fitter``.

    None if words cannot be read, because the prepared texts were removed.
    """
    # Words are read from the prepared texts, at the spans that the entry stores. Tokens need no texts, because the
    # entry stores their ids.
    needs_texts = known.task.labels_words
    if needs_texts and not known.view.has_prepared:
        return None
    source = IdentitySource.of(known)
    identity_fitter = IdentityFitter(
        classes=fitter.classes, balanced=fitter.balanced, folds=fitter.folds, refits=fitter.refits
    )
    return Choice(identity_fitter.fit(source), source, identity_fitter)


def _samples(source: KnownSource, splits: Sequence[KnownSplit]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (n, 1) and the labels (n, outputs) of some splits, one after the other."""
    blocks = [block for split in splits for block in source.blocks(split)]
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])


def _readout(x: np.ndarray, y: np.ndarray, targets: Targets, smoothing: float) -> IdentityReadout:
    """Return the mean label of each word or token, as if ``smoothing`` more occurrences had the mean of all.

    ``x`` (n, 1) holds the number of the word or token of each occurrence, and ``y`` (n, outputs) its labels.
    """
    numbers = x[:, 0]
    coded = targets.coded(y).astype(np.float64)  # (n, T)
    weights = targets.weights(y)
    weights = np.ones(len(y)) if weights is None else weights
    # The weighted number of occurrences of each word, (words,), and the weighted sum of their labels, (words, T).
    words = int(numbers.max()) + 1
    counts = np.bincount(numbers, weights, words)
    sums = np.stack([np.bincount(numbers, weights * column, words) for column in coded.T], axis=1)
    mean = weights @ coded / weights.sum()
    means = (sums + smoothing * mean) / (counts + smoothing)[:, None]
    # One more row, for words or tokens that are not among these: the mean of all.
    return IdentityReadout(np.vstack([means, mean]), targets)
