"""What a pooling is: its name, its shape, its computation, and how the pieces of a long text are joined.

torch and NumPy are imported when a pooling computes, so that ``--help`` lists the poolings without waiting for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from reservoir.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from reservoir.hidden_states import HiddenStates


@dataclass(frozen=True)
class Pooling(ABC):
    """A summary of the hidden states (batch, tokens, width) of a layer.

    Parameters
    ----------
    number : int, default 0
        The K of poolings such as ``segmentsK``; 0 for the others.
    """

    number: int = 0

    pattern: ClassVar[str]  # the name, in which K stands for a number
    note: ClassVar[str] = ""  # what ``--help`` says beside the name; empty for a name that explains itself
    needs_class_token: ClassVar[bool] = False  # whether only models with a class token have this pooling
    per_token: ClassVar[bool] = False  # whether a row keeps all its tokens, each of which is a sample
    by_position: ClassVar[bool] = False  # whether each feature is attributed to one token, by its position
    by_segment: ClassVar[bool] = False  # whether each feature is attributed to one stretch of the sequence
    sorts: ClassVar[bool] = False  # whether all values are sorted, which takes time for long sequences
    # Whether the features are exactly 0 in nearly all rows. In float16 the offset of a block adds rounding errors to
    # zeros, and standardisation scales the errors up to variance 1 if all training rows are 0.
    needs_float32: ClassVar[bool] = False
    mask: ClassVar[str] = ""  # the mask of tokens that the pooling reads; empty if it reads all real tokens

    @property
    def name(self) -> str:
        """The name, as in ``--pool``."""
        return self.pattern.replace("K", str(self.number))

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return how many tokens a row keeps, and of what width each: by default one token of K times the width.

        ``width`` is that of the hidden states, ``max_tokens`` the length of the longest sequence of the task, and
        ``readout_tokens`` the number of tokens with a label.
        """
        features_per_channel = max(1, self.number)  # the number is 0 for a pooling without K
        return 1, width * features_per_channel

    @abstractmethod
    def of(self, states: HiddenStates) -> Tensor:
        """Return the pooling of hidden states as float32 (batch, kept tokens, kept width), in new memory."""

    def join(self, values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return the pooling of whole texts from that of their pieces.

        By default, the average of the pieces, weighted by their tokens; for means this is exact.

        Parameters
        ----------
        values : array of shape (pieces, kept tokens, kept width)
            The pooling of each piece.
        counts : array of shape (pieces,)
            The number of tokens of each piece that the pooling reads.
        starts : array of shape (texts,)
            The first piece of each text.
        """
        return weighted_average(values, counts, starts)


def side_by_side(values: Tensor) -> Tensor:
    """Return (batch, parts, width) as one token (batch, 1, parts * width)."""
    return values.flatten(1)[:, None]


def require_full(name: str, states: HiddenStates) -> None:
    """Raise `InputError` for a pooling of pictures, by ``name``, if a row is shorter than the longest of the task.

    All rows of a batch may be equally short, because rows of similar length share one.
    """
    # A traced graph reads no lengths, so it is not checked.
    if states.traced:
        return
    if states.values.shape[1] < states.max_tokens or not states.real_tokens.is_full:
        raise InputError(f"pooling {name}: the rows differ in length", "use another pooling")


def weighted_average(values: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the average of the pieces of each text, weighted by ``counts``; zeros if all counts are 0.

    The arguments are those of `Pooling.join`.
    """
    import numpy as np

    # `reduceat` adds up from the first piece of each text to the piece before that of the next text.
    weights = counts.astype(np.float32)[:, None, None]
    sums = np.add.reduceat(values * weights, starts)
    sums_of_weights = np.add.reduceat(weights, starts)
    return sums / np.maximum(sums_of_weights, 1)
