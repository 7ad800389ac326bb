"""Remote homology as in the code of Lu et al. (2021), with the batches of TAPE's loader."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from reservoir.paper.rules import TEST_IS_VALID, with_valid_as_test
from reservoir.random import epoch_order
from reservoir.tasks.proteins import LETTERS, Homology
from reservoir.tasks.source import Piece
from reservoir.tasks.task import Split, Task

BUCKET = 100  # number of batches that TAPE's loader sorts by length together
VALID_FACTOR = 4  # batches of validation rows have four times as many rows


@dataclass(frozen=True, kw_only=True)
class KeyedHomology(Homology):
    """Homology without the authors' rules; the key of its entries has named the protocol from the beginning."""

    protocol: str = "ours"

    @property
    def task(self) -> Task:
        """The description of the task."""
        described = super().task
        return replace(described, parameters={**described.parameters, "protocol": self.protocol})


@dataclass(frozen=True, kw_only=True)
class PaperHomology(KeyedHomology):
    """TAPE's 30 symbols, ``<cls>`` and ``<sep>`` as tokens, 1,200 outputs, and the validation rows as test rows.

    Each protein is padded to the longest of its batch, the last position is read, and whole batches
    longer than ``max_tokens`` are dropped. `batch_lengths` assigns the batches of prepared data:
    ``batch`` rows for training and four times as many for validation. `train` draws new training
    batches in each epoch, scores its last step on the test rows, and chooses none.
    """

    protocol: str = "paper"
    batch: int = 2

    symbols = ("<pad>", "<mask>", "<cls>", "<sep>", "<unk>", *sorted(LETTERS))  # of TAPE's tokenizer
    splits = "train", "valid"
    outputs = 1200  # five of them are unused
    no_selection = TEST_IS_VALID

    @property
    def task(self) -> Task:
        """The description of the task."""
        described = super().task
        return replace(described, parameters={**described.parameters, "batch": self.batch})

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the proteins of one file whose batches are short enough."""
        return with_valid_as_test(super().read(piece))

    def lengths_read(self, lengths: np.ndarray, split: str) -> np.ndarray:
        """Return the longest length in the batch of each row."""
        return batch_lengths(lengths, self.batch if split == "train" else VALID_FACTOR * self.batch)

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return new proteins as sequences; without ``lengths`` they are batched like validation rows."""
        x, own_lengths = super().encode(x, lengths)
        return x, self.lengths_read(own_lengths, "valid") if lengths is None else own_lengths

    def words(self, protein: str) -> Sequence[str]:
        """Return the symbols of a protein as texts."""
        return "<cls>", *protein, "<sep>"

    def training_rows(self, split: Split, seed: int, batch: int) -> Callable[[np.ndarray], Split]:
        """Return how `train` draws the rows of a split."""
        return PaddedBatches(split, seed, batch)


@dataclass(frozen=True)
class PaddedBatches:
    """The rows of a split repeated; each epoch draws new batches, whose rows are padded to the longest.

    As in TAPE's loader, a random order is divided by `similar_lengths`, and the batches are shuffled.
    The real tokens of a row are those that are not 0.
    """

    split: Split
    seed: int
    batch: int

    def __call__(self, numbers: np.ndarray) -> Split:
        """Return the rows at some positions; position n is in epoch ``n // rows``."""
        epochs, places = np.divmod(numbers, len(self.split))
        rows = np.empty_like(numbers)
        lengths = np.empty_like(self.split.lengths, shape=len(numbers))
        for epoch in np.unique(epochs).tolist():
            selected = epochs == epoch
            order, padded = self._epoch(epoch)
            rows[selected] = order[places[selected]]
            lengths[selected] = padded[places[selected]]
        return Split(x=self.split.x[rows], y=self.split.y[rows], lengths=lengths)

    @cached_property
    def _real(self) -> np.ndarray:
        """Number of real tokens of each row."""
        return (self.split.x != 0).sum(axis=1)

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of an epoch in their order, and the length to which each is padded."""
        # A random order of the rows, in batches of similar length.
        order = epoch_order(self.seed, epoch, len(self.split))
        batches = [order[rows] for rows in similar_lengths(self._real[order], self.batch)]
        # The batches in a random order; a shorter one stays the last, so that batches begin at whole steps.
        whole = len(order) // self.batch
        shuffled = [batches[number] for number in epoch_order(self.seed, epoch, whole, "batches")]
        shuffled += batches[whole:]
        padded = [np.full(len(rows), self._real[rows].max()) for rows in shuffled]
        return np.concatenate(shuffled), np.concatenate(padded)


def batch_lengths(lengths: np.ndarray, batch: int) -> np.ndarray:
    """Return the longest length in each row's batch; batches are those of TAPE's loader, without shuffling."""
    padded = np.empty_like(lengths)
    for rows in similar_lengths(lengths, batch):
        padded[rows] = lengths[rows].max()
    return padded


def similar_lengths(lengths: np.ndarray, batch: int) -> list[np.ndarray]:
    """Return the rows of each batch; as in TAPE's loader, `BUCKET` batches at a time are sorted by length."""
    batches = []
    for start in range(0, len(lengths), BUCKET * batch):
        bucket = start + np.argsort(lengths[start : start + BUCKET * batch], kind="stable")
        batches += [bucket[first : first + batch] for first in range(0, len(bucket), batch)]
    return batches
