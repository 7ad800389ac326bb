"""Poolings that are weighted means of tokens: those of a mask, those near an end, or those that queries attend to.

A mask comes with each row, such as the tokens of a span, and has the name of the pooling that reads it.
`reservoir.inputs.token_masks` makes masks from the places of tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reservoir.pooling_base import Pooling, side_by_side

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir.hidden_states import HiddenStates

# Factor of the standardised scores of tokens before the softmax. Of 0.25, 0.5, 1, 2 and 4, validation rows of two tasks
# of Wikipedia preferred 0.25 to 1; larger ones read few tokens of a row (docs/log.md).
SHARPNESS = 0.5
# Is added to the standard deviation of scores, whose size is about 1. So if all tokens of a row have the same score,
# they weigh the same, and rounding errors of the scores are not scaled up.
LEAST_DEVIATION = 1e-3


class MeanOverMask(Pooling):
    """The mean of the tokens of a mask; zero if the mask has none."""

    def of(self, states: HiddenStates) -> Tensor:
        """Return the means, (batch, 1, width)."""
        return states.mask_weights(self.mask).bmm(states.filled(0.0))


class Words(MeanOverMask):
    """The mean without the special tokens that a model's tokenizer or chat template adds."""

    pattern = mask = "words"
    note = "mean without the special tokens that the tokenizer adds; those written in a text count"


class LastPrompt(MeanOverMask):
    """The last token before the answer that ends a chat; for other texts, the last token. The mask has this token."""

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


class Fading(Pooling):
    """Means whose weights halve every 2, 4, ... 2^K tokens: K from the first token on, then K from the last one back.

    Differences between them show in which order tokens stand, in more detail the nearer they are to an end.
    """

    pattern = "fadingK"
    note = "means that fade from both ends, with half-lives of 2, 4, ... 2^K tokens"

    def shape(self, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
        """Return 1 token of 2 K features per channel."""
        return 1, width * 2 * self.number

    def of(self, states: HiddenStates) -> Tensor:
        """Return the means, (batch, 1, 2 * K * width), those from the first token on before the others."""
        return side_by_side(states.real_tokens.fading_weights(self.number).bmm(states.filled(0.0)))


class AttentionPooling(Pooling):
    """For each of K random queries the mean of all real tokens, weighted by attention to the query, side by side.

    With real tokens h_1 to h_n and a query q, both of w channels, the feature vector of the query is sum_t a_t h_t:

        s_t = q . (h_t - mean(h_t)) / (std(h_t) sqrt(w))      the mean and deviation over the channels of token t
        a_t = exp(c z_t) / sum_u exp(c z_u),  z_t = (s_t - mean(s)) / std(s)      over the tokens of the row

    with c = `SHARPNESS`. The first standardisation bounds the influence of single tokens with large states; the second
    takes away what all tokens share, such as a channel that is large everywhere, and makes the weights independent of
    the scale of a model's states. To first order, a query adds c cov(z, h) to the mean: how the channels of a row's
    tokens vary together, which means do not show. The readout of all K vectors replaces the trained query of attentive
    probes, and stays linear.

    The queries are constants of the pooling, whatever ``--seed`` is, so that a column's name tells its features. Those
    of ``attention8`` are the first eight of ``attention16``. Pieces of a long text attend separately.
    """

    pattern = "attentionK"
    note = "means by attention to K random queries"

    def of(self, states: HiddenStates) -> Tensor:
        """Return the means, (batch, 1, K * width), all channels of the first query first."""
        queries = states.constant(random_queries, self.number, states.values.shape[2])
        return side_by_side(attention_weights(states, queries).bmm(states.filled(0.0)))


def random_queries(number: int, width: int) -> list[list[float]]:
    """Return the queries of ``attentionK``: K vectors of ``width`` channels, whose expected squared norm is 1."""
    from reservoir.random import generator

    # Each query has a generator of its own, so that it does not depend on how many there are.
    draws = [generator("attention query", query, width).standard_normal(width) for query in range(number)]
    return [(draw / math.sqrt(width)).tolist() for draw in draws]


def attention_weights(states: HiddenStates, queries: Tensor) -> Tensor:
    """Return the weights (batch, queries, tokens) of `AttentionPooling` for queries (K, width): 0 at padding."""
    import torch

    # Standardise each token over its channels. The constant only prevents 0 / 0, because states may be tiny.
    normalised = torch.nn.functional.layer_norm(states.filled(0.0), queries.shape[1:], eps=1e-30)
    # The scores s_t, (batch, tokens, queries), are summed in float64: in float32 the sums depend on the length of the
    # padding.
    scores = (normalised @ queries.T).double()
    # Standardise them over the real tokens of each row; scores of padding are 0 and do not count.
    lengths = states.lengths[:, None, None]
    deviations = states.zero_at_padding(scores - scores.sum(dim=1, keepdim=True) / lengths)
    standard_deviation = (deviations.square().sum(dim=1, keepdim=True) / lengths).sqrt()
    logits = SHARPNESS * deviations / (standard_deviation + LEAST_DEVIATION)  # c z_t
    if states.padding is not None:
        logits = logits.masked_fill(states.padding, float("-inf"))
    return logits.softmax(dim=1).transpose(1, 2).float()
