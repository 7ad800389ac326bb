"""The last block's feedforward at the few tokens that are read; its output at the other tokens is never used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class LastTokens:
    """Restricts modules that process each token separately to some of the tokens.

    The modules are in the order of the forward pass. Their inputs are (batch, tokens, ...), and the output of the last
    one has that shape again, with zeros at the other tokens.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        # (batch, kept tokens), or None for all. It stays set, because a block may run again in the backward pass.
        self.positions: Tensor | None = None
        self._tokens = 0
        for part in parts:
            part.register_forward_pre_hook(self._take)
        for part in parts[-1:]:
            part.register_forward_hook(self._put)

    def keep(self, lengths: Tensor, count: int | None, tokens: int) -> None:
        """Keep the last ``count`` real tokens of sequences that are padded to ``tokens``; None keeps all."""
        self.positions, self._tokens = None, tokens
        if count is not None and count < tokens:
            self.positions = lengths[:, None] - count + torch.arange(count, device=lengths.device)

    def _take(self, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.positions is None:
            return None
        return tuple(x.gather(1, self._index(x)) if x.shape[1] == self._tokens else x for x in inputs)

    def _put(self, _module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if self.positions is None:
            return None
        whole = output.new_zeros(output.shape[0], self._tokens, output.shape[2])
        return whole.scatter(1, self._index(output), output)

    def _index(self, x: Tensor) -> Tensor:
        assert self.positions is not None
        return self.positions[:, :, None].expand(-1, -1, x.shape[2])
