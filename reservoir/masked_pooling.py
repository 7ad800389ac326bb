"""Poolings of some of the tokens of a text: those of a mask that comes with each row, such as the tokens of a span.

A mask has the name of the pooling that reads it. `reservoir.inputs.token_masks` makes masks from the places of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir.pooling_base import Pooling

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir.hidden_states import HiddenStates


class MeanOverMask(Pooling):
    """The mean of the tokens of a mask; zero if the mask has none."""

    def of(self, states: HiddenStates) -> Tensor:
        """Return the means (batch, 1, width) as float32."""
        return states.mask_weights(self.mask).bmm(states.filled(0.0))


class Words(MeanOverMask):
    """The mean without the special tokens that a model's tokenizer or chat template adds."""

    pattern = mask = "words"
    note = "mean without special tokens"


class LastPrompt(MeanOverMask):
    """The last token before the answer that ends a chat; of other texts, the last token."""

    pattern = mask = "last-prompt"
    note = "the last token before the answer of a chat"


class Assistant(MeanOverMask):
    """The mean of what the assistant says in a chat."""

    pattern = mask = "assistant"
    note = "mean of the answers of a chat"


class Span(MeanOverMask):
    """The mean of a marked span of a text, such as an entity."""

    pattern = mask = "span"
    note = "mean of the letters of --span"
