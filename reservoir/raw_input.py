"""The raw input as features: the baseline of every reservoir."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from reservoir.pooling import pool
from reservoir.tasks.own.pictures import as_patches
from reservoir.tasks.own.texts import are_words, to_symbols
from reservoir.tasks.task import Scaling, Task, Tokens

RAW_WIDTH = 6144  # wider inputs are pooled as a layer is, because a sweep costs the cube of the width


class RawInput(nn.Module):
    """The sequences of a task, flattened; means of 8 stretches if they are too wide, and for words."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.form, self.longest = task.form, task.max_tokens
        width = task.form.vocabulary if isinstance(task.form, Tokens) else task.form.dim
        # The letters of words have no fixed positions.
        flat = self.longest * width <= RAW_WIDTH and not are_words(task.alphabet)
        self.pooling = "tokens" if flat else "segments8"

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the features of scaled vectors or of symbols, (rows, width) of float32."""
        return [pool(self.values(x, lengths), lengths, self.pooling, max_tokens=self.longest).flatten(1)]

    def values(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (rows, tokens, dim) of float32, zero at padding; symbols are one-hot."""
        values = one_hot(x.long(), self.form.vocabulary) if isinstance(self.form, Tokens) else x
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        return values.float().masked_fill(padding[:, :, None], 0.0)


def raw_features(task: Task, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the `RawInput` of stored sequences, (rows, width), or of every token if each token has a label."""
    x = as_patches(x) if task.pictures else x
    x = to_symbols(f"task {task.name!r}", x, lengths, task.alphabet) if task.alphabet else x
    scaled = scaling(x) if scaling else x
    raw, inputs = RawInput(task), (torch.from_numpy(np.asarray(scaled)), torch.from_numpy(lengths.astype(np.int64)))
    if task.each:
        return pad(raw.values(*inputs), (0, 0, 0, task.readout_tokens - x.shape[1])).numpy()
    return raw(*inputs)[0].numpy()
