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
from reservoir_pipelines.fitting.source import KNOWN, EntrySamples, KnownSplit, Labelling, TestSplit

DRAWS = 5  # random labellings, over whose scores the mean is taken
S = TypeVar("S", bound=str)


@dataclass(frozen=True, eq=False)
class SymbolLabels:
    """Random labels of symbols: ``labels`` (draws, symbols + 1, outputs), the last of them for all other symbols."""

    symbols: np.ndarray  # the symbols of train and valid, ascending
    labels: np.ndarray

    @classmethod
    def draw(cls, symbols: np.ndarray, labels: np.ndarray) -> "SymbolLabels":
        """Draw labels for the distinct symbols (n,), with the shares that ``labels`` (m, outputs) have."""
        distinct = np.unique(symbols)
        drawn = np.random.default_rng(0).integers(0, len(labels), (DRAWS, len(distinct) + 1))
        return cls(distinct, labels[drawn])

    def of(self, symbols: np.ndarray) -> np.ndarray:
        """Return the labels of symbols (n,) in each draw, (draws, n, outputs)."""
        place = np.searchsorted(self.symbols, symbols).clip(max=len(self.symbols) - 1)
        is_known = self.symbols[place] == symbols
        return self.labels[:, np.where(is_known, place, len(self.symbols))]


@dataclass(frozen=True, eq=False)
class Control:
    """The readouts of one setting that were fitted to random labels, one for each draw."""

    readouts: tuple[Readout, ...]
    symbol_labels: SymbolLabels | None  # None if the labels of rows were permuted

    def score(
        self, samples: EntrySamples[TestSplit], predicted: np.ndarray, names: list[str], metric: str
    ) -> float:
        """Return the mean score of the labels that each readout predicts for the test samples, (draws, n, outputs)."""
        # Random labels of symbols hold on test too; permuted labels of training rows do not, so true ones are compared.
        if self.symbol_labels:
            truths = self.symbol_labels.of(symbols_of_samples(samples, "test"))
        else:
            truths = [samples.labels("test")] * len(predicted)
        counts = samples.counts("test")
        scores = [
            evaluate_labels(y, labels, names, None, counts).scores[metric]
            for y, labels in zip(truths, predicted, strict=True)
        ]
        return float(np.mean(scores))


def fit_control(choice: Choice, readout: Readout, task: Task) -> Control:
    """Return the control of a chosen readout: the same setting, fitted to the same samples with random labels."""
    source = choice.source
    assert isinstance(source, EntrySamples), "a control task needs the rows of an entry"
    labels = {split: source.labels(split) for split in KNOWN}
    symbol_labels = None
    of_splits: dict[KnownSplit, Sequence[np.ndarray]] = {}  # the labels of each draw
    are_symbols = task.labels_each_token and isinstance(task.form, Tokens)
    if are_symbols or task.labels_text_tokens:
        symbols = {split: symbols_of_samples(source, split) for split in KNOWN}
        symbol_labels = SymbolLabels.draw(np.concatenate([*symbols.values()]), labels["train"])
        of_splits = {split: [*symbol_labels.of(symbols[split])] for split in KNOWN}
    else:
        # Each split is permuted by itself, so the labels that a readout is fitted to stay the same as a whole.
        for split in KNOWN:
            generators = map(np.random.default_rng, range(DRAWS))
            of_splits[split] = [generator.permutation(labels[split]) for generator in generators]
    labellings: list[Labelling] = [
        {split: of_splits[split][draw] for split in KNOWN} for draw in range(DRAWS)
    ]
    readouts = choice.fitter.refit_labels(source, readout, choice.fit.result.alpha, labellings)
    return Control(tuple(readouts), symbol_labels)


def symbols_of_samples(samples: EntrySamples[S], split: S) -> np.ndarray:
    """Return the symbol of each sample of a split, (n,), if tokens have labels: as stored, or the ID of a token."""
    view, rows = samples.view, samples.selected_rows(split)
    # Rows may be words, which their first token stands for, or tokens of texts.
    if view[split].pointers is not None:
        return view[split].token_ids[rows].astype(np.int64)
    if not view.has_raw:
        raise InputError("--control: the prepared data was removed", "run reservoir prepare")
    labels = view[split].labels[rows]
    stored = view.raw(split).take(view[split].index[rows]).x
    # Rows may be stored with more or fewer tokens than there are labels; only labelled tokens are samples.
    number_of_rows, places = labels.shape[:2]
    symbols = np.zeros((number_of_rows, places), np.int64)
    tokens = min(places, stored.shape[1])
    symbols[:, :tokens] = stored[:, :tokens]
    return symbols[has_labels(labels)]
