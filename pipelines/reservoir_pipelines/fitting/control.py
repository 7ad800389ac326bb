"""Control tasks: the chosen readout fitted to random labels; the score beyond theirs is the selectivity of the readout.

If every token or word has a label, each symbol or word gets a random label, everywhere the same (Hewitt and Liang
2019): a readout that knows the symbols by heart does well. Otherwise the labels of the training rows are permuted
(Ojala and Garriga 2010): the score on the true labels of test rows is then that of chance. The score minus that of the
control task is the selectivity of a readout.

References: Hewitt and Liang (2019), Designing and interpreting probes with control tasks; Ojala and Garriga (2010),
Permutation tests for studying classifier performance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.evaluation import evaluate_labels
from reservoir.readouts.linear import Readout, has_labels
from reservoir.tasks.task import Task, Tokens
from reservoir_pipelines.fitting.fitter import Choice
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, EntrySamples, KnownSplit, Labelling, TestSplit

DRAWS = 5  # random labellings, over whose scores the mean is taken
S = TypeVar("S", bound=str)  # the names of the splits that samples are of


@dataclass(frozen=True, eq=False)
class SymbolLabels:
    """Random labels of symbols, everywhere the same."""

    symbols: np.ndarray  # the distinct symbols of train and valid, ascending, (symbols,)
    labels: np.ndarray  # (draws, symbols + 1, outputs): of each symbol, and at the end of all other symbols

    @classmethod
    def draw(cls, symbols: np.ndarray, labels: np.ndarray) -> "SymbolLabels":
        """Draw labels for the distinct ones of symbols (n,).

        Each symbol gets the labels of a random sample of ``labels`` (m, outputs), so that these decide the shares of
        classes.
        """
        distinct = np.unique(symbols)
        samples = np.random.default_rng(0).integers(0, len(labels), (DRAWS, len(distinct) + 1))
        return cls(distinct, labels[samples])

    def of(self, symbols: np.ndarray) -> np.ndarray:
        """Return the labels of symbols (n,) in each draw, (draws, n, outputs)."""
        # A symbol that has no labels of its own is found at the index of another one, and gets the last labels.
        index = np.searchsorted(self.symbols, symbols).clip(max=len(self.symbols) - 1)
        has_labels_of_its_own = self.symbols[index] == symbols
        index_of_others = len(self.symbols)
        return self.labels[:, np.where(has_labels_of_its_own, index, index_of_others)]


@dataclass(frozen=True, eq=False)
class Control:
    """The readouts of one setting that were fitted to random labels, one for each draw."""

    readouts: tuple[Readout, ...]
    symbol_labels: SymbolLabels | None  # None if the labels of rows were permuted

    def score(
        self, samples: EntrySamples[TestSplit], predicted: np.ndarray, names: list[str], metric: str
    ) -> float:
        """Return the mean score of the control task on test, over the draws.

        ``predicted`` (draws, n, outputs) are the labels that each of the readouts predicts for the test samples.
        ``names`` are those of the classes; ``metric`` is the name of the score.
        """
        # The labels of each draw. Random labels of symbols hold on test, too. Permuted labels of training rows do not,
        # so predictions are compared with the true labels.
        if self.symbol_labels:
            labels_of_draws = self.symbol_labels.of(symbols_of_samples(samples, "test"))
        else:
            labels_of_draws = [samples.labels("test")] * len(predicted)
        counts = samples.counts("test")
        is_balanced = metric == "balanced_accuracy"
        scores: list[float] = []
        for labels, predicted_labels in zip(labels_of_draws, predicted, strict=True):
            evaluated = evaluate_labels(
                labels, predicted_labels, names, counts=counts, balanced=is_balanced
            )
            scores.append(evaluated.scores[metric])
        return float(np.mean(scores))


def fit_control(choice: Choice, readout: Readout, task: Task) -> Control:
    """Return the control of a chosen readout: the same setting, fitted to the same samples with random labels.

    ``readout`` is the chosen model.
    """
    source = choice.source
    assert isinstance(source, EntrySamples), "a control task needs the rows of an entry"
    labels = {split: source.labels(split) for split in KNOWN_SPLITS}
    symbol_labels = None
    # The labels of each draw, (n, outputs), by split.
    labels_of_draws: dict[KnownSplit, Sequence[np.ndarray]] = {}
    samples_are_symbols = task.labels_each_token and isinstance(task.form, Tokens)
    if samples_are_symbols or task.labels_text_tokens:
        symbols = {split: symbols_of_samples(source, split) for split in KNOWN_SPLITS}
        symbol_labels = SymbolLabels.draw(np.concatenate([*symbols.values()]), labels["train"])
        labels_of_draws = {split: [*symbol_labels.of(symbols[split])] for split in KNOWN_SPLITS}
    else:
        # Each split is permuted by itself, so each keeps its shares of classes, whether a readout is fitted to train
        # alone or to both.
        for split in KNOWN_SPLITS:
            generators = map(np.random.default_rng, range(DRAWS))
            labels_of_draws[split] = [generator.permutation(labels[split]) for generator in generators]
    labellings: list[Labelling] = [
        {split: labels_of_draws[split][draw] for split in KNOWN_SPLITS} for draw in range(DRAWS)
    ]
    readouts = choice.fitter.refit_labels(source, readout, choice.fit.result.alpha, labellings)
    return Control(tuple(readouts), symbol_labels)


def symbols_of_samples(samples: EntrySamples[S], split: S) -> np.ndarray:
    """Return the symbol of each sample of a split, (n,), of a task whose tokens have labels.

    Of tokens of texts, and of words, whose first token stands for them, it is the ID of the token; else the symbol as
    it is stored. Raise `InputError` if stored symbols are gone with the prepared data.
    """
    view, rows = samples.view, samples.selected_rows(split)
    rows_are_words_or_tokens = view[split].pointers is not None
    if rows_are_words_or_tokens:
        return view[split].token_ids[rows].astype(np.int64)
    if not view.has_raw:
        raise InputError("--control: the prepared data is missing", view.data_remedy)
    labels = view[split].labels[rows]  # (rows, labels per row, outputs)
    stored = view.raw(split).take(view[split].index[rows]).x  # (rows, tokens)
    # Short rows are padded, in labels and in stored symbols, but not always to the same length. So the symbols are cut
    # or padded to the length of the labels. This loses none that is needed, because only labelled tokens are samples.
    number_of_rows, labels_per_row, _ = labels.shape
    symbols = np.zeros((number_of_rows, labels_per_row), np.int64)
    tokens_with_labels = min(labels_per_row, stored.shape[1])
    symbols[:, :tokens_with_labels] = stored[:, :tokens_with_labels]
    return symbols[has_labels(labels)]
