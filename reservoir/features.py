"""The forward pass over stored sequences: batches of like length, pooled features back on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from reservoir.pooling import parse_column, pooled_shape
from reservoir.reservoir import LoadedModel
from reservoir.tasks.task import Scaling, Task, Tokens


def column_shapes(task: Task, width: int, columns: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return (tokens, width) of one row of each column.

    Parameters
    ----------
    task : Task
        Gives the longest sequence and the readout tokens.
    width : int
        Hidden width of the backbone.
    columns : sequence of str
        Columns such as ``block06/mean``.
    """
    return {c: pooled_shape(parse_column(c)[1], width, task.max_tokens, task.readout_tokens) for c in columns}


def forward(
    model: LoadedModel,
    scaling: Scaling | None,
    x: np.ndarray,
    lengths: np.ndarray,
    columns: Sequence[str],
    batch_rows: int,
) -> dict[str, np.ndarray]:
    """Return pooled hidden states of stored sequences.

    The result is a function of these rows and the batch size alone: rows of like length share a batch, ties in row
    order.

    Parameters
    ----------
    model : LoadedModel
        The model on its device.
    scaling : Scaling, optional
        From stored values to what the model sees; None for symbols and for values that are used as they are.
    x : ndarray, (rows, tokens, dim) or (rows, tokens)
        Right-padded sequences as stored.
    lengths : ndarray of int, (rows,)
        Real tokens of each.
    columns : sequence of str
        What to keep.
    batch_rows : int
        Rows per batch.

    Returns
    -------
    dict of str to ndarray of float32, (rows, kept tokens, kept width)
    """
    shapes = column_shapes(model.fpt.task, model.fpt.backbone.width, columns)
    x, lengths = to_tokens(model, scaling, x, lengths)
    out = {column: torch.zeros((len(x), *shapes[column]), device=model.device) for column in columns}
    for batch in batches(lengths, batch_rows):
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


def batches(lengths: np.ndarray, batch_rows: int) -> Iterator[np.ndarray]:
    """Yield the row numbers of each batch, rows of like length together, ties in row order."""
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_rows):
        yield order[start : start + batch_rows]


def to_tokens(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return stored sequences as what the input layer takes, and their lengths in tokens.

    Parameters
    ----------
    model : LoadedModel
        Gives the form of a token and the windows.
    scaling : Scaling, optional
        From stored values to what the model sees.
    x : ndarray, (rows, values, dim) or (rows, tokens)
        Stored sequences.
    lengths : ndarray of int, (rows,)
        Real values of each.

    Returns
    -------
    ndarray, (rows, tokens, patch * dim) of float32 or (rows, tokens) of int64
        The tokens.
    ndarray of int, (rows,)
        Real tokens of each row.
    """
    if isinstance(model.fpt.task.form, Tokens):
        return x.astype(np.int64), lengths
    return model.windows(scaling(x) if scaling else x.astype(np.float32), lengths)


def _on_host(values: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.cpu().numpy() for name, value in values.items()}
