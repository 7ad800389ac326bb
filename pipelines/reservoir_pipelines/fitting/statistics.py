"""Statistics of raw sequences that serve as baselines: their vocabulary is plain data, so a readout can store it."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reservoir.column import ROLLING
from reservoir.pooling import widths_within, window_widths
from reservoir.tasks.task import Task, Vectors
from reservoir.tasks.words import are_words, texts_of

MAX_FEATURES = 1000  # k-mers, the most frequent ones
# Words of tf-idf, the most frequent ones. With 1,000, tf-idf falls behind that of all words as rows become more.
MAX_WORDS = 3000
MAX_LETTERS = 150  # letters of k-mers, the most frequent ones: a table of all triples then has 27 MB
WORDS = re.compile(r"\w+|[^\w\s]")  # words of one letter and punctuation are included
MEAN = "the mean"
SUMMARIES = "summary statistics"
COMPOSITION = "composition"
K_MERS = "k-mer counts"
TF_IDF = "tf-idf"
SIZES = {COMPOSITION: (1,), K_MERS: (1, 2, 3)}  # letters of the counted k-mers

ReadRows = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Returns the training rows again: blocks of stored sequences (rows, tokens, ...) and their lengths (rows,)."""


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A statistic of sequences: a function of a row and of a vocabulary that was learnt from training rows.

    ``letters`` are the code points of the counted letters or symbols, ``terms`` the numbers of the
    counted k-mers: letter i of n has the number i, the pair (i, j) the number n + i n + j, and so on.
    ``words`` and their inverse document frequencies ``idf`` belong to tf-idf, and ``widths`` to rolling
    statistics, the only ones with features for every token.
    """

    name: str
    letters: tuple[int, ...] = ()
    terms: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    idf: tuple[float, ...] = ()
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in (MEAN, SUMMARIES, ROLLING.name, TF_IDF, *SIZES):
            raise ValueError(f"unknown statistic {self.name[:40]!r}")
        lacks_words = self.name == TF_IDF and not self.words
        lacks_k_mers = self.name in SIZES and not (self.letters and self.terms)
        if lacks_words or lacks_k_mers:
            raise ValueError("it has no letters, k-mers or words")
        # Only rolling statistics have windows, and they have some.
        should_have_windows = self.name == ROLLING.name
        are_odd = all(width > 0 and width % 2 for width in self.widths)
        if bool(self.widths) != should_have_windows or not are_odd:
            raise ValueError("it has no windows of odd widths")
        if len(self.words) != len(self.idf) or len(set(self.words)) < len(self.words):
            raise ValueError("its words and their frequencies do not match")
        if list(self.letters) != sorted(set(self.letters)) or list(self.terms) != sorted(set(self.terms)):
            raise ValueError("its letters or k-mers are not in ascending order")

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the features (rows, width) or (rows, tokens, width), float32, of stored sequences."""
        if self.name == MEAN:
            # A readout of a constant feature predicts the mean of the training rows.
            return np.ones((len(x), 1), np.float32)
        if self.name == SUMMARIES:
            return summaries(x, lengths)
        if self.name == ROLLING.name:
            return rolling(x, lengths, self.widths)
        if self.name == TF_IDF:
            return self._tf_idf(texts_of(x, lengths))
        return self._counts(x, lengths)

    def _tf_idf(self, texts: Sequence[str]) -> np.ndarray:
        """Return (1 + log n) idf for each word that is n > 0 times in a text, scaled to rows of norm 1."""
        numbers = {word: number for number, word in enumerate(self.words)}
        counts = np.zeros((len(texts), len(self.words)))
        for row, text in enumerate(texts):
            known_words = [numbers[word] for word in words_in(text) if word in numbers]
            counts[row] = np.bincount(known_words, minlength=len(self.words))
        weights = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * np.array(self.idf)
        norms = np.linalg.norm(weights, axis=1, keepdims=True)
        return (weights / np.where(norms > 0, norms, 1)).astype(np.float32)

    def _counts(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the number of each k-mer of ``terms`` in each row; of single letters, their share."""
        terms = np.array(self.terms, np.int64)
        counts = np.zeros((len(x), len(terms)), np.float32)
        for rows, numbers in _k_mers(x, lengths, np.array(self.letters), SIZES[self.name]):
            # Count the k-mers that are in the vocabulary, in the cell of their row and term.
            places = np.minimum(np.searchsorted(terms, numbers), len(terms) - 1)
            is_term = terms[places] == numbers
            cells = rows[is_term] * len(terms) + places[is_term]
            counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
        if self.name == COMPOSITION:
            counts /= np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return counts


def rolling_statistics(task: Task) -> Statistic:
    """Return the rolling statistics of a task whose tokens are vectors, in windows that its sequences fill."""
    return Statistic(name=ROLLING.name, widths=window_widths(widths_within(task.max_tokens)))


def learn_statistics(task: Task, rows: ReadRows) -> list[Statistic]:
    """Return the statistics that suit a task, their vocabularies learnt from its training rows."""
    if task.labels_each_token and isinstance(task.form, Vectors):
        return [rolling_statistics(task)]
    if task.labels_each_token or task.pictures:
        return []
    if isinstance(task.form, Vectors):
        return [Statistic(name=SUMMARIES)]
    if are_words(task.alphabet):
        return [_learn_words(rows)]
    return [_learn_k_mers(name, _letters(rows), rows) for name in SIZES]


def words_in(text: str) -> list[str]:
    """Return the words and punctuation of a text, in lower case."""
    return WORDS.findall(text.lower())


def _learn_words(rows: ReadRows) -> Statistic:
    """Return tf-idf with the most frequent words of the training rows, as scikit-learn's `TfidfVectorizer` learns it.

    Importing scikit-learn takes longer than all else that this baseline does.
    """
    occurrences: Counter[str] = Counter()
    texts_with: Counter[str] = Counter()  # in how many texts a word occurs
    texts = 0
    for x, lengths in rows():
        for text in texts_of(x, lengths):
            words_of_text = words_in(text)
            occurrences.update(words_of_text)
            texts_with.update({*words_of_text})
            texts += 1
    most_frequent = sorted(occurrences, key=lambda word: (-occurrences[word], word))[:MAX_WORDS]
    words = sorted(most_frequent)
    # The inverse document frequency, as if one more text had every word.
    idf = [math.log((1 + texts) / (1 + texts_with[word])) + 1 for word in words]
    return Statistic(name=TF_IDF, words=tuple(words), idf=tuple(idf))


def _letters(rows: ReadRows) -> np.ndarray:
    """Return the letters or symbols of the training rows, the most frequent ones first."""
    counts = np.zeros(1, np.int64)  # of each code point; grows with the largest one
    for x, lengths in rows():
        counts_of_block = np.bincount(x[_is_real(x, lengths)].astype(np.int64), minlength=len(counts))
        counts_of_block[: len(counts)] += counts
        counts = counts_of_block
    occurring = np.flatnonzero(counts)
    return occurring[np.argsort(-counts[occurring], kind="stable")]


def _learn_k_mers(name: str, letters: np.ndarray, rows: ReadRows) -> Statistic:
    """Return the statistic that counts the `MAX_FEATURES` most frequent k-mers of the training rows.

    ``letters`` are those of the rows, the most frequent ones first. Of k-mers that are equally frequent, those with the
    lowest numbers are counted.
    """
    sizes = SIZES[name]
    # The table of counts has letters ** k cells for the k-mers of each size, so the most frequent letters alone are
    # counted.
    counts_single_letters = sizes == (1,)
    most_letters = MAX_FEATURES if counts_single_letters else MAX_LETTERS
    letters = np.sort(letters[:most_letters])
    counts = np.zeros(sum(len(letters) ** size for size in sizes), np.int64)
    for x, lengths in rows():
        for _, numbers in _k_mers(x, lengths, letters, sizes):
            counts += np.bincount(numbers, minlength=len(counts))
    most_frequent = np.argsort(-counts, kind="stable")[:MAX_FEATURES]
    terms = np.sort(most_frequent[counts[most_frequent] > 0])
    return Statistic(name=name, letters=tuple(letters.tolist()), terms=tuple(terms.tolist()))


def _is_real(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return which tokens are not padding, (rows, tokens)."""
    return np.arange(x.shape[1]) < lengths[:, None]


def _k_mers(
    x: np.ndarray, lengths: np.ndarray, letters: np.ndarray, sizes: Iterable[int]
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Yield for each size the row and the number of every k-mer without unknown letters (see `Statistic`)."""
    # The number of each token's letter, (rows, tokens), and which tokens have a letter of the vocabulary.
    # A token without one gets the number of another letter, which does not count.
    n = len(letters)
    letter = np.minimum(np.searchsorted(letters, x), n - 1)
    has_letter = _is_real(x, lengths) & (letters[letter] == x)
    first = 0  # the number of the first k-mer of a size
    for size in sizes:
        # A k-mer starts at each of these positions. Its letters are the digits of its number in base n.
        starts = max(0, x.shape[1] - size + 1)
        numbers = np.zeros((len(x), starts), np.int64)
        is_whole = np.ones((len(x), starts), bool)
        for offset in range(size):
            numbers = numbers * n + letter[:, offset : offset + starts]
            is_whole &= has_letter[:, offset : offset + starts]
        yield np.nonzero(is_whole)[0], first + numbers[is_whole]
        first += n**size


def summaries(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return mean, deviation, minimum, maximum and slope of each channel of rows, (rows, 5 * channels)."""
    # Padding and missing values become NaN, which the statistics leave out.
    present = _is_real(x, lengths)[:, :, None] & np.isfinite(x)
    values = np.where(present, x.astype(np.float64), np.nan)
    time = np.where(present, np.arange(x.shape[1])[:, None], np.nan)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a channel may have no values
        mean = np.nanmean(values, axis=1)
        deviation = np.nanstd(values, axis=1)
        low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
        time -= np.nanmean(time, axis=1, keepdims=True)
    # The slope of the least-squares line through the values of a channel.
    products = np.nansum(time * (values - mean[:, None]), axis=1)
    slope = products / np.maximum(np.nansum(np.square(time), axis=1), 1)
    statistics = [mean, deviation, low, high, slope]
    return np.nan_to_num(np.concatenate(statistics, axis=1)).astype(np.float32)


def rolling(x: np.ndarray, lengths: np.ndarray, widths: Iterable[int]) -> np.ndarray:
    """Return each value with the statistics of the windows around it, (rows, tokens, width); zeros at padding.

    ``x`` (rows, tokens, channels) has the value of each channel, and in windows of each of the ``widths`` its
    mean, standard deviation, minimum and maximum.
    """
    import torch

    from reservoir.centred_windows import CentredWindows

    is_real = _is_real(x, lengths)[:, :, None]
    values = np.where(is_real, x.astype(np.float64), np.nan)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a channel may have no values
        mean = np.nan_to_num(np.nanmean(values, axis=1, keepdims=True))
    # The mean of its row stands in for a missing value.
    values = np.where(is_real, np.where(np.isfinite(values), values, mean), 0.0)
    windows = CentredWindows(torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64)))
    statistics = [torch.from_numpy(values).float()]
    for width in widths:
        statistics += [
            windows.mean(width).float(),
            windows.deviation(width).float(),
            windows.minimum(width).float(),
            windows.maximum(width).float(),
        ]
    return np.where(is_real, torch.cat(statistics, dim=2).numpy(), np.float32(0))
