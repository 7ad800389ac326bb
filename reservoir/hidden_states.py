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
            self._is_full = int(self.lengths.min()) == self.tokens
        return self._is_full

    @property
    def positions(self) -> Tensor:
        """The numbers of the tokens, (tokens,)."""
        return self.shared("positions", lambda: torch.arange(self.tokens, device=self.lengths.device))

    @property
    def padding(self) -> Tensor | None:
        """Where tokens are padding, (batch, tokens, 1); None if all tokens are known to be real."""
        if self._is_full:
            return None
        return self.shared("padding", lambda: (self.positions >= self.lengths[:, None])[:, :, None])

    def shared(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return what several layers need of these tokens, by its name, computed for the first one."""
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]

    def segment_weights(self, segments: int) -> Tensor:
        """Return the weights (batch, segments, tokens) whose products with tokens are means of equal segments."""

        def compute() -> Tensor:
            # With s segments and n real tokens, segment i begins at token floor(i n / s) and has a token even
            # if n < s.
            edges = torch.arange(segments + 1, device=self.lengths.device)
            bounds = self.lengths[:, None] * edges // segments
            start = bounds[:, :-1]
            stop = torch.maximum(bounds[:, 1:], start + 1)
            inside = (self.positions >= start[:, :, None]) & (self.positions < stop[:, :, None])
            return inside.float() / (stop - start)[:, :, None]

        return self.shared(f"segments{segments}", compute)

    def fading_weights(self, number: int) -> Tensor:
        """Return the weights (batch, 2 number, tokens) of `weighted_poolings.Fading`."""

        def compute() -> Tensor:
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
    """The hidden states (batch, tokens, width) of a layer, float32, of which padding may hold any values.

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
        self._shared: dict[str, tuple[Tensor, ...]] = {}
        self._filled: dict[float, Tensor] = {}
        self._ordered: Tensor | None = None
        # A compiled or exported graph must work for all lengths, and reading the lengths would wait
        # for a GPU.
        self.traced = torch.compiler.is_compiling() or values.requires_grad
        self.on_host = not (self.traced or devices.on_gpu(values.device))
        self.real_tokens = real_tokens or RealTokens(lengths, values.shape[1])

    @property
    def positions(self) -> Tensor:
        """The numbers of the tokens, (tokens,)."""
        return self.real_tokens.positions

    @property
    def padding(self) -> Tensor | None:
        """Where tokens are padding, (batch, tokens, 1); None if all tokens are known to be real."""
        # On the host, reading the lengths costs nothing.
        is_full = self.on_host and self.real_tokens.is_full
        return None if is_full else self.real_tokens.padding

    def shared(self, name: str, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what several poolings need of these hidden states, by its name, computed for the first one."""
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]

    def mask_weights(self, name: str) -> Tensor:
        """Return the weights (batch, 1, tokens) whose products with tokens are the means of those of a mask.

        The mask ``words`` has by default all tokens but the special ones at the ends.
        """

        def compute() -> Tensor:
            if name in self.real_tokens.masks:
                inside = self.real_tokens.masks[name]
            else:
                assert name == "words"
                before, after = self._special
                count = (self.lengths - before - after).clamp(min=0)[:, None]
                inside = (self.positions >= before) & (self.positions < before + count)
            return (inside.float() / inside.sum(dim=1, keepdim=True).clamp(min=1))[:, None]

        return self.real_tokens.shared(f"mask {name}", compute)

    def constant(self, values: Callable[..., list[Any]], *arguments: int) -> Tensor:
        """Return the tensor of ``values(*arguments)`` on the device of the hidden states."""
        return devices.constant(values, arguments, self.values.device)

    def filled(self, value: float) -> Tensor:
        """Return the hidden states with ``value`` at padding, which poolings share and must not change."""
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
        return torch.where(self.padding[:, :tokens], start.new_full((), value), start)

    def filled_copy(self, value: float) -> Tensor:
        """Return the hidden states with ``value`` at padding, in new memory."""
        return self.values.clone() if self.padding is None else self._where_real(self.values, value)

    def zero_at_padding(self, values: Tensor) -> Tensor:
        """Return values (batch, tokens, width), computed from the hidden states, with zeros at padding."""
        return values if self.padding is None else self._where_real(values, 0.0)

    def _where_real(self, values: Tensor, value: float) -> Tensor:
        # Multiplication by zero would not work, because the padding may be infinite. The value is written by the device
        # that reads it, because a copy would wait for a GPU. `masked_fill` would copy all values first.
        assert self.padding is not None
        constant = self.real_tokens.shared(f"value {value}", lambda: self.values.new_full((), value))
        return torch.where(self.padding, constant, values)

    @property
    def ordered(self) -> Tensor:
        """The values of each channel in ascending order, (batch, width, tokens), with infinity at padding.

        Poolings of sorted values share it, because sorting takes longer than all else.
        """
        if self._ordered is None:
            self._ordered = self._sorted()
        return self._ordered

    def _sorted(self) -> Tensor:
        if not self.on_host:  # sorting along a dimension with strides is slow on GPUs
            return self.filled(float("inf")).transpose(1, 2).contiguous().sort(dim=2).values
        values = self.values.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        if self.padding is not None:
            values.masked_fill_(self.padding.transpose(1, 2), float("inf"))
        values.numpy().sort(axis=-1)  # numpy sorts ten times as fast as torch
        return values

    @property
    def is_ordered(self) -> bool:
        """Whether a pooling has sorted the values already."""
        return self._ordered is not None

    def ranked(self, rank: Tensor) -> Tensor:
        """Return the values of ranks (batch, ranks), from 0 for the smallest, as (batch, ranks, width)."""
        places = rank[:, None].expand(-1, self.ordered.shape[1], -1)
        return self.ordered.gather(2, places).transpose(1, 2)

    def segment_means(self, segments: int) -> Tensor:
        """Return the means (batch, segments, width) of equal segments of each sequence."""
        return torch.bmm(self.real_tokens.segment_weights(segments), self.filled(0.0))
