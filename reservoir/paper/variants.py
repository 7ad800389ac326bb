"""The variant ``--protocol paper``: data, random weights and training as in the code of Lu et al. (2021).

It repeats that code with its mistakes, which the default, ``ours``, corrects. ``docs/reproduce.md`` lists the
differences. Every named task accepts it; the data of the tasks that are not in ``sources`` do not depend on it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from reservoir.random import epoch_order
from reservoir.tasks import Variant, Variants
from reservoir.tasks.images import Mnist
from reservoir.tasks.listops import CLOSE, ListOps
from reservoir.tasks.proteins import LETTERS, Homology
from reservoir.tasks.source import NoSelection, Piece
from reservoir.tasks.task import Split, Task

BUCKET = 100  # number of batches that TAPE's loader sorts by length together
VALID_FACTOR = 4  # batches of validation rows have four times as many rows

# In that code the test rows of several tasks are the validation rows, so that nothing may be chosen by them.
TEST_IS_VALID = NoSelection(
    reason="with --protocol paper its test rows are its validation rows",
    remedy="leave out --protocol paper",
)


def with_valid_as_test(splits: Mapping[str, Split]) -> dict[str, Split]:
    """Return the splits of a piece, with the validation rows as test rows, if it has any."""
    return {**splits, "test": splits["valid"]} if "valid" in splits else {**splits}


@dataclass(frozen=True, kw_only=True)
class PaperMnist(Mnist):
    """MNIST without zero padding: 49 tokens of 4x4 pixels."""

    protocol: str = "ours"  # a value that differs from the default is part of the cache key

    border = 0


@dataclass(frozen=True, kw_only=True)
class PaperListOps(ListOps):
    """Closing brackets are lost, padding counts as input, and the test split is the validation split.

    Generated expressions have 500 to 2,000 symbols and are cut like those of the files. The last position is
    read, so that the model sees where the padding ends only by the symbols. `train` scores its last step on
    the test split and chooses none.
    """

    protocol: str = "paper"

    vocabulary = CLOSE  # the symbols before the closing bracket, and padding
    default_lengths = 500, 2000
    splits = "train", "valid"
    # A constant in place of a property, which type checkers do not allow.
    endless = False  # pyright: ignore[reportAssignmentType,reportIncompatibleVariableOverride]
    no_selection = TEST_IS_VALID
    refuses_long_texts = False  # they are cut

    @property
    def task(self) -> Task:
        """The description of the task."""
        described = super().task
        return replace(described, parameters={**described.parameters, "protocol": self.protocol})

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the expressions of a piece with their values."""
        return with_valid_as_test(super().read(piece))

    @property
    def _is_cut(self) -> bool:
        """Whether expressions that are too long are cut: here always, also generated ones."""
        return True

    def _pad(self, expressions: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return expressions without brackets as rows, all of full length, and the number of rows that were cut."""
        without_brackets = [symbols.replace(bytes([CLOSE]), b"") for symbols in expressions]
        x, lengths, cut = super()._pad(without_brackets)
        # Padding counts as input, so every row is as long as the longest one may be.
        return x, np.full_like(lengths, x.shape[1]), cut


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
    class_count = 1200  # five of them are unused
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
        x, encoded_lengths = super().encode(x, lengths)
        if lengths is None:
            encoded_lengths = self.lengths_read(encoded_lengths, "valid")
        return x, encoded_lengths

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
    batch: int  # rows of a batch

    def __call__(self, positions: np.ndarray) -> Split:
        """Return the rows at some positions of the repeated split; position n is in epoch ``n // rows``."""
        epochs, positions_in_epoch = np.divmod(positions, len(self.split))
        rows = np.empty_like(positions)
        lengths = np.empty_like(self.split.lengths, shape=len(positions))
        for epoch in np.unique(epochs).tolist():
            is_in_epoch = epochs == epoch
            order, padded_lengths = self._epoch(epoch)
            rows[is_in_epoch] = order[positions_in_epoch[is_in_epoch]]
            lengths[is_in_epoch] = padded_lengths[positions_in_epoch[is_in_epoch]]
        return Split(x=self.split.x[rows], y=self.split.y[rows], lengths=lengths)

    @cached_property
    def _token_counts(self) -> np.ndarray:
        """Number of real tokens of each row, (rows,)."""
        return (self.split.x != 0).sum(axis=1)

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of an epoch in their order, and the length to which each is padded."""
        # A random order of the rows, in batches of similar length.
        order = epoch_order(self.seed, epoch, len(self.split))
        batches = [order[rows] for rows in similar_lengths(self._token_counts[order], self.batch)]
        # The full batches in a random order; a shorter one stays the last, so that batches begin at whole steps.
        full_batches = len(order) // self.batch
        shuffled = [batches[number] for number in epoch_order(self.seed, epoch, full_batches, "batches")]
        shuffled += batches[full_batches:]
        padded_lengths = [np.full(len(rows), self._token_counts[rows].max()) for rows in shuffled]
        return np.concatenate(shuffled), np.concatenate(padded_lengths)


def batch_lengths(lengths: np.ndarray, batch: int) -> np.ndarray:
    """Return the longest length in each row's batch; batches are those of TAPE's loader, without shuffling."""
    padded_lengths = np.empty_like(lengths)
    for rows in similar_lengths(lengths, batch):
        padded_lengths[rows] = lengths[rows].max()
    return padded_lengths


def similar_lengths(lengths: np.ndarray, batch: int) -> list[np.ndarray]:
    """Return the row numbers of each batch; as in TAPE's loader, `BUCKET` batches at a time are sorted by length.

    ``batch`` is the number of rows in a batch; the last one may have fewer.
    """
    bucket_rows = BUCKET * batch
    batches = []
    for start in range(0, len(lengths), bucket_rows):
        bucket = start + np.argsort(lengths[start : start + bucket_rows], kind="stable")
        batches += [bucket[first : first + batch] for first in range(0, len(bucket), batch)]
    return batches


def _redraw_first_states(model: Any) -> None:
    """Let each LSTM of a model draw new first states for each row; other models stay as they are."""
    from reservoir.paper.lstm import redraw_first_states  # imports torch, which the tasks do not need

    redraw_first_states(model)


VARIANTS = Variants(
    parameter="protocol",
    default="ours",
    by_value={
        "ours": Variant(sources={"homology": KeyedHomology}),
        "paper": Variant(
            sources={"homology": PaperHomology, "listops": PaperListOps, "mnist": PaperMnist},
            # Their library, transformers 4.1.1, did not divide any standard deviation by the depth.
            random_inits={"gpt2": "random-flat"},
            output_init="linear",
            drops_in_frozen_layers=True,
            before_training=_redraw_first_states,
        ),
    },
)
