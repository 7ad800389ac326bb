"""The hidden states of one layer over the real tokens of right-padded sequences, which poolings summarise."""

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from reservoir import devices


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
    masks : mapping of str to Tensor, optional
        Masks (batch, tokens) of bool by name, False at padding, for poolings that read some of the tokens.
    """

    def __init__(
        self,
        values: Tensor,
        lengths: Tensor,
        readout_tokens: int = 1,
        max_tokens: int | None = None,
        special: tuple[int, int] = (0, 0),
        masks: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.values = values.float()
        self.lengths = lengths
        self.readout_tokens = readout_tokens
        self.max_tokens = values.shape[1] if max_tokens is None else max_tokens
        self._special = special
        self._masks = masks or {}
        self.positions = torch.arange(values.shape[1], device=values.device)
        self._shared: dict[str, tuple[Tensor, ...]] = {}
        self._padding: Tensor | None = (self.positions >= lengths[:, None])[:, :, None]
        # A compiled or exported graph must work for all lengths, and reading the lengths would wait
        # for a GPU.
        self.traced = torch.compiler.is_compiling() or values.requires_grad
        self.on_host = not (self.traced or devices.on_gpu(values.device))
        if self.on_host and int(lengths.min()) == values.shape[1]:
            self._padding = None

    def shared(self, name: str, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what several poolings need of these hidden states, by its name, computed for the first one."""
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]

    def mask(self, name: str) -> Tensor:
        """Return a mask of tokens (batch, tokens); ``words`` are by default all but the special tokens at the ends."""
        if name == "words" and name not in self._masks:
            before, after = self._special
            count = (self.lengths - before - after).clamp(min=0)[:, None]
            return (self.positions >= before) & (self.positions < before + count)
        return self._masks[name]

    def filled(self, value: float) -> Tensor:
        """Return the hidden states with ``value`` at padding; without padding, they are not copied."""
        # Multiplication by zero would not work, because the padding may be infinite.
        return self.values if self._padding is None else self.values.masked_fill(self._padding, value)

    def filled_copy(self, value: float) -> Tensor:
        """Return the hidden states with ``value`` at padding, in new memory."""
        return self.values.clone() if self._padding is None else self.filled(value)

    def zero_at_padding(self, values: Tensor) -> Tensor:
        """Return values (batch, tokens, width), computed from the hidden states, with zeros at padding."""
        return values if self._padding is None else values.masked_fill(self._padding, 0.0)

    @cached_property
    def ordered(self) -> Tensor:
        """The values of each channel in ascending order, (batch, width, tokens), with infinity at padding.

        Poolings of sorted values share it, because sorting takes longer than all else.
        """
        if not self.on_host:  # sorting along a dimension with strides is slow on GPUs
            return self.filled(float("inf")).transpose(1, 2).contiguous().sort(dim=2).values
        values = self.values.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        if self._padding is not None:
            values.masked_fill_(self._padding.transpose(1, 2), float("inf"))
        values.numpy().sort(axis=-1)  # numpy sorts ten times as fast as torch
        return values

    @property
    def is_ordered(self) -> bool:
        """Whether a pooling has sorted the values already."""
        return "ordered" in vars(self)

    def ranked(self, rank: Tensor) -> Tensor:
        """Return the values of ranks (batch, ranks), from 0 for the smallest, as (batch, ranks, width)."""
        places = rank[:, None].expand(-1, self.ordered.shape[1], -1)
        return self.ordered.gather(2, places).transpose(1, 2)

    def segment_means(self, segments: int) -> Tensor:
        """Return the means (batch, segments, width) of equal segments of each sequence."""
        # With s segments and n real tokens, segment i begins at token floor(i n / s) and has a token even
        # if n < s.
        edges = torch.arange(segments + 1, device=self.lengths.device)
        bounds = self.lengths[:, None] * edges // segments
        start = bounds[:, :-1]
        stop = torch.maximum(bounds[:, 1:], start + 1)
        inside = (self.positions >= start[:, :, None]) & (self.positions < stop[:, :, None])
        weights = inside.float() / (stop - start)[:, :, None]
        return torch.bmm(weights, self.filled(0.0))
