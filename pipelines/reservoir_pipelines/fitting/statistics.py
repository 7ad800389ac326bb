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
from reservoir.tasks.texts import are_words, chat_text, texts_of

# Limits of vocabularies, which have the most frequent items of the training rows:
MAX_FEATURES = 1000  # k-mers
MAX_WORDS = 3000  # words of tf-idf. With 1,000, tf-idf falls behind that of all words as rows become more.
MAX_LETTERS = 150  # letters of k-mers: a table of all triples then has 27 MB
WORDS = re.compile(r"\w+|[^\w\s]")  # words of one letter and punctuation are included
# Names of statistics:
MEAN = "the mean"
SUMMARIES = "summary statistics"
COMPOSITION = "composition"
K_MERS = "k-mer counts"
TF_IDF = "tf-idf"
KNOWN_PAST = "newest known values"  # what forecasts that repeat values read, if some are missing
SIZES = {COMPOSITION: (1,), K_MERS: (1, 2, 3)}  # numbers of letters of the k-mers that a statistic counts

ReadRows = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Reads the training rows anew with each call: blocks of stored sequences (rows, tokens, ...) and lengths (rows,)."""


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A statistic of sequences: a function of a row and of a vocabulary that was learnt from training rows.

    A field of the vocabulary is empty unless the statistic of this ``name`` uses it.
    """

    name: str
    # The code points of the counted letters, or the counted symbols, ascending.
    letters: tuple[int, ...] = ()
    # The numbers of the counted k-mers, ascending: letter i of n has the number i, the pair (i, j) the number
    # n + i n + j, the triple (i, j, k) the number n + n^2 + i n^2 + j n + k.
    terms: tuple[int, ...] = ()
    words: tuple[str, ...] = ()  # of tf-idf
    idf: tuple[float, ...] = ()  # the inverse document frequency of each of the words
    of_chats: bool = False  # whether tf-idf counts the words of chats, which are stored as JSON
    # Of the windows of rolling statistics, the only ones with features for every token.
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # A statistic may come from the file of a readout, so everything that features are computed from is checked.
        if self.name not in (MEAN, SUMMARIES, ROLLING.name, TF_IDF, KNOWN_PAST, *SIZES):
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
        has_repeated_words = len(set(self.words)) < len(self.words)
        if len(self.words) != len(self.idf) or has_repeated_words:
            raise ValueError("its words and their frequencies do not match")
        letters_ascend = list(self.letters) == sorted(set(self.letters))
        terms_ascend = list(self.terms) == sorted(set(self.terms))
        if not letters_ascend or not terms_ascend:
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
        if self.name == KNOWN_PAST:
            return known_past(x)
        if self.name == TF_IDF:
            return self._tf_idf(_texts(x, lengths, are_chats=self.of_chats))
        return self._counts(x, lengths)

    def _tf_idf(self, texts: Sequence[str]) -> np.ndarray:
        """Return (1 + log n) idf for each word that is n > 0 times in a text, (texts, words), scaled to rows of norm 1.

        Words that are not in a text have 0, and so have all words of a text without known ones.
        """
        index_of_word = {word: index for index, word in enumerate(self.words)}
        counts = np.zeros((len(texts), len(self.words)))
        for row, text in enumerate(texts):
            indices = [index_of_word[word] for word in words_in(text) if word in index_of_word]
            counts[row] = np.bincount(indices, minlength=len(self.words))
        # The maximum only avoids log 0, whose result is not used.
        frequencies = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0)
        weights = frequencies * np.array(self.idf)
        norms = np.linalg.norm(weights, axis=1, keepdims=True)
        return (weights / np.where(norms > 0, norms, 1)).astype(np.float32)

    def _counts(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the number of each k-mer of ``terms`` in each row, (rows, terms).

        Of a composition, return the share of each letter among the counted letters of the row.
        """
        terms = np.array(self.terms, np.int64)
        counts = np.zeros((len(x), len(terms)), np.float32)
        for rows, numbers in _k_mers(x, lengths, np.array(self.letters), SIZES[self.name]):
            # Find the index of each k-mer among the terms. One that is not a term gets some index, and is left out.
            indices = np.minimum(np.searchsorted(terms, numbers), len(terms) - 1)
            is_term = terms[indices] == numbers
            # Count the cells of the table, row by row: the cell of a k-mer is that of its row and term.
            cells = rows[is_term] * len(terms) + indices[is_term]
            counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
        if self.name == COMPOSITION:
            letters_of_row = counts.sum(axis=1, keepdims=True)
            counts /= np.maximum(letters_of_row, 1)  # a row without counted letters keeps its zeros
        return counts


def rolling_statistics(task: Task) -> Statistic:
    """Return the rolling statistics of a task whose tokens are vectors, in windows that its sequences fill."""
    return Statistic(name=ROLLING.name, widths=window_widths(widths_within(task.max_tokens)))


def learn_statistics(task: Task, rows: ReadRows) -> list[Statistic]:
    """Return the statistics that suit a task, their vocabularies learnt from its training rows.

    Pictures have none, nor have symbols that have a label each.
    """
    has_vectors = isinstance(task.form, Vectors)
    if task.labels_each_token:
        return [rolling_statistics(task)] if has_vectors else []
    if task.pictures:
        return []
    if has_vectors:
        return [Statistic(name=SUMMARIES)]
    if are_words(task.alphabet):
        return [_learn_words(rows, are_chats=bool(task.parameters.get("chat")))]
    return [_learn_k_mers(name, _letters(rows), rows) for name in SIZES]


def words_in(text: str) -> list[str]:
    """Return the words and punctuation of a text, in lower case."""
    return WORDS.findall(text.lower())


def _texts(x: np.ndarray, lengths: np.ndarray, *, are_chats: bool) -> list[str]:
    """Return the texts of stored sequences; of chats, what is written in their messages."""
    texts = texts_of(x, lengths)
    return [chat_text(text) for text in texts] if are_chats else texts


def _learn_words(rows: ReadRows, *, are_chats: bool) -> Statistic:
    """Return tf-idf with the most frequent words of the training rows, as `TfidfVectorizer` learns it."""
    # scikit-learn's class is not used, because importing it takes longer than all else that this baseline does.
    occurrences: Counter[str] = Counter()  # of each word, in all texts
    texts_with_word: Counter[str] = Counter()  # the number of texts in which each word occurs
    number_of_texts = 0
    for x, lengths in rows():
        for text in _texts(x, lengths, are_chats=are_chats):
            words_of_text = words_in(text)
            occurrences.update(words_of_text)
            texts_with_word.update({*words_of_text})
            number_of_texts += 1
    # Of words that are equally frequent, the first ones of the alphabet are used.
    most_frequent = sorted(occurrences, key=lambda word: (-occurrences[word], word))[:MAX_WORDS]
    words = sorted(most_frequent)
    # The inverse document frequency, as if one more text had every word.
    idf = [math.log((1 + number_of_texts) / (1 + texts_with_word[word])) + 1 for word in words]
    return Statistic(name=TF_IDF, words=tuple(words), idf=tuple(idf), of_chats=are_chats)


def _letters(rows: ReadRows) -> np.ndarray:
    """Return the letters (as code points) or symbols of the training rows, (letters,), the most frequent ones first."""
    counts = np.zeros(1, np.int64)  # of each code point; grows with the largest one
    for x, lengths in rows():
        counts_of_block = np.bincount(x[_is_token(x, lengths)].astype(np.int64), minlength=len(counts))
        counts_of_block[: len(counts)] += counts
        counts = counts_of_block
    letters = np.flatnonzero(counts)
    return letters[np.argsort(-counts[letters], kind="stable")]


def _learn_k_mers(name: str, letters: np.ndarray, rows: ReadRows) -> Statistic:
    """Return the statistic that counts the `MAX_FEATURES` most frequent k-mers of the training rows.

    ``letters`` are those of the rows, the most frequent ones first. Of k-mers that are equally frequent, those with the
    lowest numbers are counted.
    """
    sizes = SIZES[name]
    # The table of counts has a cell for each k-mer of the letters, letters ** k of each size, so only the most frequent
    # letters are used. Single letters are features themselves, whose number has a limit of its own.
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


def _is_token(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return which positions of stored sequences hold tokens, not padding, (rows, tokens)."""
    return np.arange(x.shape[1]) < lengths[:, None]


def _k_mers(
    x: np.ndarray, lengths: np.ndarray, letters: np.ndarray, sizes: Iterable[int]
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Yield for each size the row and the number of every k-mer in stored sequences, (k-mers,) each.

    ``letters`` are ascending; k-mers with others are left out. `Statistic.terms` describes the numbers.
    """
    # The index of each token's letter, (rows, tokens), and which tokens have a letter of the vocabulary.
    # A token without one gets the index of another letter, which does not count.
    n = len(letters)
    letter_index = np.minimum(np.searchsorted(letters, x), n - 1)
    has_letter = _is_token(x, lengths) & (letters[letter_index] == x)
    first_number = 0  # of the k-mers of a size
    for size in sizes:
        # A k-mer may start at each of the first positions, (rows, starts). Its letters are the digits of its number in
        # base n.
        starts = max(0, x.shape[1] - size + 1)
        numbers = np.zeros((len(x), starts), np.int64)
        has_all_letters = np.ones((len(x), starts), bool)
        for offset in range(size):
            numbers = numbers * n + letter_index[:, offset : offset + starts]
            has_all_letters &= has_letter[:, offset : offset + starts]
        rows = np.nonzero(has_all_letters)[0]
        yield rows, first_number + numbers[has_all_letters]
        first_number += n**size


def summaries(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return mean, deviation, minimum, maximum and slope of each channel of rows, (rows, 5 * channels).

    A channel without values has zeros.
    """
    # Padding and missing values count nowhere: they add 0 to sums, and are no minimum or maximum. NumPy's functions for
    # NaN do the same, but copy the values each time; they took a tenth of a fit of 54,000 pictures.
    is_present = _is_token(x, lengths)[:, :, None] & np.isfinite(x)
    # The number of values of each channel, (rows, channels); 1 for a channel without values, whose sums are 0.
    count = np.maximum(is_present.sum(axis=1), 1)
    values = np.where(is_present, x.astype(np.float64), 0.0)
    mean = values.sum(axis=1) / count
    centred = np.where(is_present, values - mean[:, None], 0.0)
    deviation = np.sqrt(np.square(centred).sum(axis=1) / count)
    low = np.min(values, axis=1, where=is_present, initial=np.inf)
    high = np.max(values, axis=1, where=is_present, initial=-np.inf)
    # The slope of the least-squares line through the values of a channel. With a single value, both sums are 0.
    time = np.where(is_present, np.arange(x.shape[1], dtype=np.float64)[:, None], 0.0)
    time = np.where(is_present, time - (time.sum(axis=1) / count)[:, None], 0.0)
    squares = np.square(time).sum(axis=1)
    slope = (time * centred).sum(axis=1) / np.where(squares > 0, squares, 1)
    has_values = is_present.any(axis=1)
    statistics = [mean, deviation, np.where(has_values, low, 0), np.where(has_values, high, 0), slope]
    return np.concatenate(statistics, axis=1).astype(np.float32)


def known_past(x: np.ndarray) -> np.ndarray:
    """Return the newest known value of the first channel at each step of full windows, (rows, tokens).

    A step before the first known value has that one. A row without any has NaN.
    """
    values = x[:, :, 0]
    is_known = np.isfinite(values)
    known_steps = np.where(is_known, np.arange(x.shape[1]), -1)
    first_known_step = is_known.argmax(axis=1)[:, None]
    newest_known_step = np.maximum(np.maximum.accumulate(known_steps, axis=1), first_known_step)
    return np.take_along_axis(values, newest_known_step, axis=1).astype(np.float32)


def rolling(x: np.ndarray, lengths: np.ndarray, widths: Iterable[int]) -> np.ndarray:
    """Return each value with the statistics of the windows around it, (rows, tokens, width); zeros at padding.

    Of stored sequences ``x`` (rows, tokens, channels), a token has the value of each channel and then, for windows of
    each of the ``widths``, the mean, the standard deviation, the minimum and the maximum of each channel.
    """
    import torch  # which other baselines do not need

    from reservoir.centred_windows import CentredWindows

    is_token = _is_token(x, lengths)[:, :, None]
    values = np.where(is_token, x.astype(np.float64), np.nan)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a channel may have no values
        mean = np.nan_to_num(np.nanmean(values, axis=1, keepdims=True))
    # A missing value becomes the mean of its row and channel, and padding becomes 0.
    values = np.where(is_token, np.where(np.isfinite(values), values, mean), 0.0)
    windows = CentredWindows(torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64)))
    statistics = [torch.from_numpy(values).float()]
    for width in widths:
        statistics += [
            windows.mean(width).float(),
            windows.deviation(width).float(),
            windows.minimum(width).float(),
            windows.maximum(width).float(),
        ]
    return np.where(is_token, torch.cat(statistics, dim=2).numpy(), np.float32(0))
