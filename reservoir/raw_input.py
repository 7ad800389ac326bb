"""The raw input as features of a baseline, stored sequences as the values that a model reads, and what is cut off."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reservoir.column import RAW, Baseline, Column
from reservoir.pooling import Pooling, find_pooling
from reservoir.tasks.pictures import as_patches
from reservoir.tasks.task import Scaling, Task, Tokens
from reservoir.tasks.texts import are_words, to_symbols
from reservoir.tasks.windows import Windows

MAX_VALUES = 2**22  # values, such as one-hot letters, that are computed at a time: 16 MB of float32
MAX_WIDTH = 6144  # wider inputs are pooled, because a sweep's time grows with the cube


def read_values(task: Task, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return stored sequences as a model reads them: pictures as patches, texts as symbols, and values scaled."""
    if task.pictures:  # stored as the bytes of files
        x = as_patches(x)
    elif task.alphabet:  # stored as code points
        x = to_symbols(x, lengths, task.alphabet)
    return scaling(x) if scaling else x


def raw_pooling(task: Task) -> Pooling:
    """Return the pooling of the raw input: all values side by side, or means of 8 segments if it is wide or words."""
    is_wide = _row_values(task) > MAX_WIDTH
    has_words = are_words(task.alphabet)  # whose letters have no fixed positions
    return find_pooling("segments8" if is_wide or has_words else "tokens")


def longer_rows_note(columns: Iterable[Column | Baseline], task: Task, lengths: np.ndarray) -> str | None:
    """Return a note that some columns read only the beginning of rows longer than those of ``task``, else None.

    ``columns`` are those of a readout, ``task`` is that of its fit, and ``lengths`` (rows,) are those of new rows.
    """
    long_rows = int((lengths > task.max_tokens).sum())
    cut_columns = _columns_of_tokens(columns, task)
    if not long_rows or not cut_columns:
        return None
    consequence = f"{cut_columns} read the first {task.max_tokens:,} tokens"
    return f"{long_rows:,} rows are longer than any row of the fit; {consequence}"


def shorter_rows_note(columns: Iterable[Column | Baseline], task: Task, lengths: np.ndarray) -> str | None:
    """Return a note that some columns read zeros at the end of rows shorter than those of ``task``, else None.

    All rows of the fit must have had one length. The arguments are those of `longer_rows_note`.
    """
    short_rows = int((lengths < task.max_tokens).sum())
    filled_columns = _columns_of_tokens(columns, task)
    if not short_rows or not filled_columns:
        return None
    consequence = f"{filled_columns} read zeros in place of the missing tokens"
    return f"{short_rows:,} rows are shorter than the {task.max_tokens:,} tokens of the fit; {consequence}"


def _columns_of_tokens(columns: Iterable[Column | Baseline], task: Task) -> str:
    """Return the columns with features of single tokens, which are those of the first tokens, as a text for a note."""
    # Among the baselines, only the raw input may have such features.
    names = [
        str(column)
        for column in columns
        if (isinstance(column, Column) and find_pooling(column.pooling).by_position)
        or (column == RAW and raw_pooling(task).by_position)
    ]
    return ", ".join(names)


def raw_features(task: Task, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the raw input of stored sequences as features of a baseline, float32.

    They are the `raw_pooling` of each row (rows, width), or the values of every token (rows, tokens, width) if each
    has a label.
    """
    most_rows = max(1, MAX_VALUES // _row_values(task))
    if len(x) > most_rows:  # some rows at a time, by a call of this function for each part
        parts = (slice(start, start + most_rows) for start in range(0, len(x), most_rows))
        return np.concatenate([raw_features(task, scaling, x[part], lengths[part]) for part in parts])
    # Values become float32 (rows, tokens, dim), zero at padding; symbols become one-hot vectors.
    x = read_values(task, scaling, x, lengths)[:, : lengths.max()]
    if isinstance(task.form, Tokens):
        symbols = x[..., None].astype(np.int64)
        x = np.zeros((*x.shape, task.form.vocabulary), np.float32)
        np.put_along_axis(x, symbols, 1, axis=-1)
    is_padding = np.arange(x.shape[1]) >= lengths[:, None]
    values = np.where(is_padding[:, :, None], np.float32(0), x.astype(np.float32, copy=False))
    if task.labels_each_token:
        return with_tokens(values, task.readout_tokens)
    pooling = raw_pooling(task)
    if pooling.by_position:  # all values side by side, which need no torch
        return with_tokens(values, task.max_tokens).reshape(len(x), -1)
    import torch  # other poolings are those of hidden states

    from reservoir.hidden_states import HiddenStates

    states = HiddenStates(torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64)))
    return pooling.of(states).flatten(1).numpy()


def _row_values(task: Task) -> int:
    """Return the number of values of the longest row; a symbol counts as the one-hot vector that it becomes."""
    token_values = task.form.vocabulary if isinstance(task.form, Tokens) else task.form.dim
    return task.max_tokens * token_values


@dataclass(frozen=True)
class RawWindows:
    """The raw input of each token and of its neighbours, for labels of every token."""

    task: Task
    scaling: Scaling | None  # None if the sequences are read as they are stored
    windows: Windows  # one around each token

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the values in the window around each token of stored sequences, (rows, tokens, width)."""
        values = raw_features(self.task, self.scaling, x, lengths)
        # The features have as many tokens as a row has labels, which may be fewer than a row has.
        tokens, _ = self.windows(values, np.minimum(lengths, values.shape[1]).astype(np.int64))
        return tokens


def with_tokens(features: np.ndarray, tokens: int) -> np.ndarray:
    """Return features of exactly ``tokens`` tokens, (rows, tokens, width).

    Features of tokens (rows, any number, width) are cut off, or followed by zeros; features of whole rows (rows, width)
    are repeated for each token.
    """
    if features.ndim == 2:
        return np.repeat(features[:, None], tokens, axis=1)
    features = features[:, :tokens]
    missing_tokens = tokens - features.shape[1]
    return np.pad(features, ((0, 0), (0, missing_tokens), (0, 0))) if missing_tokens else features
