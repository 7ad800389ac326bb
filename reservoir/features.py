"""The forward pass over stored sequences: batches of like length, pooled features back on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from reservoir.pooling import parse_column, pooled_shape
from reservoir.reservoir import LoadedModel
from reservoir.tasks.own.decode import as_patches
from reservoir.tasks.own.letters import to_symbols
from reservoir.tasks.task import Scaling, Task, Tokens


def column_shapes(task: Task, width: int, columns: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return (tokens, width) of one row of each column, such as ``block06/mean``, at a hidden width."""
    return {c: pooled_shape(parse_column(c)[1], width, task.max_tokens, task.readout_tokens) for c in columns}


def forward(
    model: LoadedModel,
    scaling: Scaling | None,
    x: np.ndarray,
    lengths: np.ndarray,
    columns: Sequence[str],
    batch_rows: int,
) -> dict[str, np.ndarray]:
    """Return pooled hidden states (rows, kept tokens, kept width) of stored sequences by column.

    They are a function of these rows and the batch size alone: rows of like length share a batch, ties in row order.
    """
    shapes = column_shapes(model.fpt.task, model.fpt.backbone.width, columns)
    x, lengths = to_tokens(model, scaling, x, lengths)
    out = {column: torch.zeros((len(x), *shapes[column]), device=model.device) for column in columns}
    # A batch of texts has as many rows as fit into the tokens of ``batch_rows`` usual ones.
    most_tokens = batch_rows * (model.reader.row_tokens if model.reader else model.fpt.task.max_tokens)
    for batch in batches(lengths, batch_rows, most_tokens):
        longest = int(lengths[batch].max())
        pooled = model.fpt.features(
            torch.from_numpy(np.ascontiguousarray(x[batch, :longest])).to(model.device),
            torch.from_numpy(lengths[batch].astype(np.int64)).to(model.device),
            list(columns),
        )
        rows = torch.from_numpy(batch).to(model.device)
        for column, values in pooled.items():
            out[column][rows, : values.shape[1]] = values
    return _on_host(out)


def batches(lengths: np.ndarray, batch_rows: int, most_tokens: float = np.inf) -> Iterator[np.ndarray]:
    """Yield the row numbers of each batch, rows of like length together, ties in row order.

    A batch has at most so many rows, and with their padding so many tokens, unless a single row has more.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        padded = (
            lengths[order[start : start + batch_rows]].astype(np.int64)
            * (np.arange(len(order) - start) + 1)[:batch_rows]
        )
        stop = start + max(1, int(np.searchsorted(padded, most_tokens, side="right")))
        yield order[start:stop]
        start = stop


def to_tokens(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return stored sequences as what the input layer takes, (rows, tokens, ...), and their lengths in tokens."""
    task = model.fpt.task
    if model.reader:
        return model.reader(x, lengths)
    if task.pictures:
        x = as_patches(x)
    if task.alphabet:
        x = to_symbols(f"task {task.name!r}", x, lengths, task.alphabet)
    if isinstance(task.form, Tokens):
        return x.astype(np.int64), lengths
    plain = np.int64 if model.windows.symbols else np.float32
    return model.windows(scaling(x) if scaling else x.astype(plain), lengths)


def _on_host(values: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.cpu().numpy() for name, value in values.items()}
