"""The raw input as features of a baseline, and stored sequences as the values that a model reads."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from reservoir.hidden_states import HiddenStates
from reservoir.pooling import find_pooling
from reservoir.tasks.pictures import as_patches
from reservoir.tasks.task import Scaling, Task, Tokens
from reservoir.tasks.windows import Windows
from reservoir.tasks.words import are_words, to_symbols

MAX_VALUES = 2**22  # values, such as one-hot letters, that are computed at a time
MAX_WIDTH = 6144  # wider inputs are pooled, because a sweep's time grows with the cube


class RawInput(nn.Module):
    """The baseline's features: the flattened sequences of a task, or means of 8 segments for wide inputs and words."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.form = task.form
        self.longest = task.max_tokens
        width = task.form.vocabulary if isinstance(task.form, Tokens) else task.form.dim
        self.size = self.longest * width  # values of a row
        # The letters of words have no fixed positions.
        flat = self.size <= MAX_WIDTH and not are_words(task.alphabet)
        self.pooling = find_pooling("tokens" if flat else "segments8")

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the features of scaled vectors or of symbols, (rows, width) of float32."""
        states = HiddenStates(self.values(x, lengths), lengths, max_tokens=self.longest)
        return [self.pooling.of(states).flatten(1)]

    def values(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return (rows, tokens, dim) of float32, zero at padding; symbols are one-hot."""
        values = one_hot(x.long(), self.form.vocabulary) if isinstance(self.form, Tokens) else x
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        return values.float().masked_fill(padding[:, :, None], 0.0)


def read_values(task: Task, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return stored sequences as patches of pictures, as symbols, or as scaled values."""
    x = as_patches(x) if task.pictures else x
    x = to_symbols(x, lengths, task.alphabet) if task.alphabet else x
    return scaling(x) if scaling else x


def raw_features(task: Task, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the `RawInput` of stored sequences, (rows, width), or the values of every token if each has a label."""
    raw = RawInput(task)
    most_rows = max(1, MAX_VALUES // raw.size)
    if len(x) > most_rows:
        parts = (slice(start, start + most_rows) for start in range(0, len(x), most_rows))
        return np.concatenate([raw_features(task, scaling, x[part], lengths[part]) for part in parts])
    x = read_values(task, scaling, x, lengths)[:, : lengths.max()]
    values, counts = torch.from_numpy(np.asarray(x)), torch.from_numpy(lengths.astype(np.int64))
    if task.labels_each_token:
        return with_tokens(raw.values(values, counts).numpy(), task.readout_tokens)
    return raw(values, counts)[0].numpy()


@dataclass(frozen=True)
class RawWindows:
    """The raw input of each token and of its neighbours, for labels of every token."""

    task: Task
    scaling: Scaling | None
    windows: Windows

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the values in the window around each token of stored sequences, (rows, tokens, width)."""
        values = raw_features(self.task, self.scaling, x, lengths)
        return self.windows(values, np.minimum(lengths, values.shape[1]).astype(np.int64))[0]


def with_tokens(features: np.ndarray, tokens: int) -> np.ndarray:
    """Return features with a number of tokens, (rows, tokens, width), for labels of every token.

    Those of tokens are cut off, or followed by zeros; those of whole rows (rows, width) are repeated.
    """
    if features.ndim == 2:
        return np.repeat(features[:, None], tokens, axis=1)
    features = features[:, :tokens]
    missing = tokens - features.shape[1]
    return np.pad(features, ((0, 0), (0, missing), (0, 0))) if missing else features
