"""The hidden states of one layer over the real tokens of right-padded sequences, which poolings summarise."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from reservoir import devices


class RealTokens:
    """The real tokens of a batch of right-padded sequences, and what follows from their lengths alone.

    All layers of a batch share it, so that masks and weights are computed once.

    Parameters
    ----------
    lengths : Tensor
        The number of real tokens of each sequence, (batch,) of int64.
    tokens : int
        The number of tokens to which the sequences are padded.
    is_full : bool, optional
        Whether all tokens are real, if that is known without reading ``lengths``, which would wait for a GPU.
    masks : mapping of str to Tensor, optional
        Masks (batch, tokens) of bool by name, False at padding, for poolings that read some of the tokens.
    """

    def __init__(
        self,
        lengths: Tensor,
        tokens: int,
        is_full: bool | None = None,
        masks: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.lengths = lengths
        self.tokens = tokens
        self.masks = masks or {}
        self._is_full = is_full
        self._shared: dict[str, Tensor] = {}

    @property
    def is_full(self) -> bool:
        """Whether all tokens are real; reads the lengths, which waits for a GPU, unless it is known."""
        if self._is_full is None:
            shortest = int(self.lengths.min())
            self._is_full = shortest == self.tokens
        return self._is_full

    @property
    def positions(self) -> Tensor:
        """The numbers of the tokens from 0, (tokens,) of int64."""
        return self.shared("positions", lambda: torch.arange(self.tokens, device=self.lengths.device))

    @property
    def padding(self) -> Tensor | None:
        """Whether each token is padding, (batch, tokens, 1) of bool; None if all tokens are known to be real."""
        if self._is_full:  # None, for not known, gives a tensor
            return None
        return self.shared("padding", lambda: (self.positions >= self.lengths[:, None])[:, :, None])

    def shared(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return what ``compute`` returns; it is called once for each name, so that layers share the result."""
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]

    def segment_weights(self, segments: int) -> Tensor:
        """Return the weights (batch, segments, tokens) whose products with tokens are means of equal segments."""

        def compute() -> Tensor:
            """Return the weights: 1 / n at the n tokens of a segment, else 0."""
            # With s segments and n real tokens, segment i begins at token floor(i n / s) and has a token even
            # if n < s.
            edges = torch.arange(segments + 1, device=self.lengths.device)
            bounds = self.lengths[:, None] * edges // segments  # (batch, segments + 1)
            start = bounds[:, :-1]
            stop = torch.maximum(bounds[:, 1:], start + 1)
            is_inside = (self.positions >= start[:, :, None]) & (self.positions < stop[:, :, None])
            return is_inside.float() / (stop - start)[:, :, None]

        return self.shared(f"segments{segments}", compute)

    def fading_weights(self, number: int) -> Tensor:
        """Return the weights (batch, 2 * number, tokens) of `weighted_poolings.Fading`, which sum to 1.

        The first half of the means fades from the first token on, the second from the last one back.
        """

        def compute() -> Tensor:
            """Return the weights: 0.5 to the power of the distance in half-lives, divided by their sum."""
            # Distances from both ends are (batch, 2, 1, tokens), half-lives (number, 1).
            from_end = self.lengths[:, None] - 1 - self.positions
            from_start = self.positions.expand_as(from_end)
            distance = torch.stack([from_start, from_end], dim=1)[:, :, None].float()
            half_lives = torch.exp2(torch.arange(1, number + 1, device=self.lengths.device))[:, None]
            # (batch, 2, number, tokens). Padding, which is behind the end, has no weight.
            is_real = (from_end >= 0)[:, None, None]
            weights = torch.where(is_real, torch.exp2(-distance / half_lives), 0.0)
            return (weights / weights.sum(dim=3, keepdim=True)).flatten(1, 2)

        return self.shared(f"fading{number}", compute)


class HiddenStates:
    """The hidden states (batch, tokens, width) of a layer, float32; at padding they may have any values.

    Parameters
    ----------
    values : Tensor
        Hidden states (batch, tokens, width), finite at the first ``lengths`` tokens.
    lengths : Tensor
        The number of real tokens of each sequence, (batch,) of int64.
    readout_tokens : int, default 1
        How many of the last real tokens have a label.
    max_tokens : int, optional
        The length of the longest sequence of the task, in tokens; by default that of the batch.
    special : tuple of int, default (0, 0)
        The special tokens that a tokenizer adds before and after those of a sequence.
    real_tokens : RealTokens, optional
        The real tokens of the batch, which several layers share; by default those of this layer alone.
    """

    def __init__(
        self,
        values: Tensor,
        lengths: Tensor,
        readout_tokens: int = 1,
        max_tokens: int | None = None,
        special: tuple[int, int] = (0, 0),
        real_tokens: RealTokens | None = None,
    ) -> None:
        self.values = values.float()
        self.lengths = lengths
        self.readout_tokens = readout_tokens
        self.max_tokens = values.shape[1] if max_tokens is None else max_tokens
        self._special = special
        # What poolings share: results by their names, the states by the value at padding, and the sorted states.
        self._shared: dict[str, tuple[Tensor, ...]] = {}
        self._filled: dict[float, Tensor] = {}
        self._ordered: Tensor | None = None
        # A compiled or exported graph must work for all lengths, and reading the lengths would wait for a GPU. If
        # gradients are needed, operations that write in place or leave torch are not allowed either.
        self.traced = torch.compiler.is_compiling() or values.requires_grad
        self.on_host = not (self.traced or devices.on_gpu(values.device))
        self.real_tokens = real_tokens or RealTokens(lengths, values.shape[1])

    @property
    def positions(self) -> Tensor:
        """The numbers of the tokens from 0, (tokens,) of int64."""
        return self.real_tokens.positions

    @property
    def padding(self) -> Tensor | None:
        """Whether each token is padding, (batch, tokens, 1) of bool; None if all tokens are known to be real."""
        # On the host, reading the lengths costs nothing; elsewhere `RealTokens.padding` uses what is known of them.
        is_full = self.on_host and self.real_tokens.is_full
        return None if is_full else self.real_tokens.padding

    def shared(self, name: str, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what ``compute`` returns; it is called once for each name, so that poolings share the result."""
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]

    def mask_weights(self, name: str) -> Tensor:
        """Return the weights (batch, 1, tokens) whose products with tokens are the means of those in a mask.

        If the batch has no mask ``words``, all tokens but the special ones at the ends count. The weights are 0 where a
        mask has no tokens.
        """

        def compute() -> Tensor:
            """Return the weights: 1 / n at the n tokens of the mask, else 0."""
            if name in self.real_tokens.masks:
                is_inside = self.real_tokens.masks[name]
            else:
                assert name == "words"
                before, after = self._special
                count = (self.lengths - before - after).clamp(min=0)[:, None]
                is_inside = (self.positions >= before) & (self.positions < before + count)
            count_inside = is_inside.sum(dim=1, keepdim=True)
            return (is_inside.float() / count_inside.clamp(min=1))[:, None]

        return self.real_tokens.shared(f"mask {name}", compute)

    def constant(self, values: Callable[..., list[Any]], *arguments: int) -> Tensor:
        """Return the tensor of ``values(*arguments)`` on the device of the hidden states."""
        return devices.constant(values, arguments, self.values.device)

    def filled(self, value: float) -> Tensor:
        """Return the hidden states with ``value`` at padding; poolings share the tensor and must not change it."""
        if self.padding is None:
            return self.values
        if value not in self._filled:
            self._filled[value] = self._where_real(self.values, value)
        return self._filled[value]

    def filled_start(self, tokens: int, value: float) -> Tensor:
        """Return the first ``tokens`` hidden states, or all if there are fewer, with ``value`` at padding."""
        start = self.values[:, :tokens]
        if self.padding is None:
            return start
        value_on_device = start.new_full((), value)  # a number would be copied to a GPU, which waits
        return torch.where(self.padding[:, :tokens], value_on_device, start)

    def filled_copy(self, value: float) -> Tensor:
        """Return the hidden states with ``value`` at padding, in new memory."""
        return self.values.clone() if self.padding is None else self._where_real(self.values, value)

    def zero_at_padding(self, values: Tensor) -> Tensor:
        """Return values (batch, tokens, width), computed from the hidden states, with zeros at padding."""
        return values if self.padding is None else self._where_real(values, 0.0)

    def _where_real(self, values: Tensor, value: float) -> Tensor:
        """Return values (batch, tokens, width) of real tokens, and ``value`` at padding, in new memory."""
        # Multiplication by zero would not work, because the padding may be infinite. The value is written by the device
        # that reads it, because a copy would wait for a GPU. `masked_fill` would copy all values first.
        assert self.padding is not None
        value_on_device = self.real_tokens.shared(f"value {value}", lambda: self.values.new_full((), value))
        return torch.where(self.padding, value_on_device, values)

    @property
    def ordered(self) -> Tensor:
        """The values of each channel in ascending order, (batch, width, tokens), with infinity at padding.

        Poolings of sorted values share it, because sorting takes longer than all else.
        """
        if self._ordered is None:
            self._ordered = self._sorted()
        return self._ordered

    def _sorted(self) -> Tensor:
        """Return `ordered`, computed anew."""
        if not self.on_host:
            values = self.filled(float("inf")).transpose(1, 2)
            return values.contiguous().sort(dim=2).values  # along a dimension with strides GPUs sort slowly
        # A copy with the tokens side by side in memory is sorted in place by NumPy, ten times as fast as by torch.
        values = self.values.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        if self.padding is not None:
            values.masked_fill_(self.padding.transpose(1, 2), float("inf"))
        values.numpy().sort(axis=-1)
        return values

    @property
    def is_ordered(self) -> bool:
        """Whether a pooling has sorted the values already."""
        return self._ordered is not None

    def ranked(self, rank: Tensor) -> Tensor:
        """Return the values of ranks (batch, ranks), from 0 for the smallest, as (batch, ranks, width)."""
        index = rank[:, None].expand(-1, self.ordered.shape[1], -1)  # the same ranks for each channel
        return self.ordered.gather(2, index).transpose(1, 2)

    def segment_means(self, segments: int) -> Tensor:
        """Return the means (batch, segments, width) of equal segments of each sequence."""
        return torch.bmm(self.real_tokens.segment_weights(segments), self.filled(0.0))
