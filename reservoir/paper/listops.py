"""ListOps as in the code of Lu et al. (2021)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reservoir.paper.rules import TEST_IS_VALID, with_valid_as_test
from reservoir.tasks.listops import CLOSE, ListOps
from reservoir.tasks.source import Piece
from reservoir.tasks.task import Split, Task


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
        return True

    def _pad(self, expressions: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return expressions without brackets as rows, all of full length, and the number of rows that were cut."""
        x, lengths, cut = super()._pad([symbols.replace(bytes([CLOSE]), b"") for symbols in expressions])
        return x, np.full_like(lengths, x.shape[1]), cut
