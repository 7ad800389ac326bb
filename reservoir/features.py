"""The forward pass over stored sequences: batches of similar length, and pooled features as numpy arrays."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from reservoir.errors import InputError
from reservoir.inputs.text import TextReader
from reservoir.pooling import parse_column, pooled_shape
from reservoir.reservoir import LoadedModel
from reservoir.tasks.own.pictures import as_patches
from reservoir.tasks.own.texts import WORD, to_symbols
from reservoir.tasks.task import Scaling, Task, Tokens

MOST_PADDING = 0.045
"""Largest share of padding in a batch of more than a 64th of the full size; smaller batches cost more than padding."""

LENGTH_STEPS = 16
"""Number of padded lengths between two powers of two. The CPU's library keeps compiled code for each shape of bfloat16
products, three megabytes for mini (none in float32), so there must be few lengths."""


def column_shapes(task: Task, width: int, columns: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return (tokens, width) of one row of each column, such as ``block06/mean``, at a hidden width."""
    if task.each:
        return dict.fromkeys(columns, (task.readout_tokens, width))
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

    They depend on these rows and the batch size alone: rows of similar length share a batch.
    """
    task, places = model.fpt.task, None
    shapes = column_shapes(task, model.fpt.backbone.width, columns)
    if task.each and isinstance(model.reader, TextReader):  # the token at which each label is read; -1 after the last
        places = model.reader.places(x, lengths, words=task.each == WORD)
    x, lengths, owner = to_pieces(model, scaling, x, lengths)
    out = {column: torch.zeros((len(x), *shapes[column]), device=model.device) for column in columns}
    for batch, tokens in model_batches(model, lengths, batch_rows):
        pooled = model.fpt.features(
            torch.from_numpy(np.ascontiguousarray(x[batch, :tokens])).to(model.device),
            torch.from_numpy(lengths[batch].astype(np.int64)).to(model.device),
            list(columns),
        )
        rows = torch.from_numpy(batch).to(model.device)
        if places is not None:
            at = torch.from_numpy(places[batch]).to(model.device)
            for column, values in pooled.items():
                found = values.gather(1, at.clamp(min=0)[:, :, None].expand(-1, -1, values.shape[2]))
                pooled[column] = found.masked_fill((at < 0)[:, :, None], 0.0)
        for column, values in pooled.items():
            out[column][rows, : values.shape[1]] = values
    found = {column: values.cpu().numpy() for column, values in out.items()}
    if owner is None:
        return found
    # Pieces of a text are combined: by minimum, maximum, or the mean weighted by tokens.
    starts, weights = np.flatnonzero(np.diff(owner, prepend=-1)), lengths.astype(np.float32)[:, None, None]
    total = np.add.reduceat(weights, starts)
    for column, values in found.items():
        pooling = parse_column(column)[1]
        if pooling in {"min", "max"}:
            found[column] = (np.minimum if pooling == "min" else np.maximum).reduceat(values, starts)
        else:
            found[column] = np.add.reduceat(values * weights, starts) / total
    return found


def check_lengths(model: LoadedModel, lengths: np.ndarray, where: str) -> None:
    """Raise `InputError`, beginning with ``where``, if a row has more tokens than the model reads; texts are cut."""
    row = int(np.argmax(lengths))
    if model.reader is None:
        model.fpt.backbone.check_length(int(model.windows.counts(lengths[row])), f"{where} {row}: ")


def to_pieces(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the input of the model, its lengths in tokens, and the row of each piece of a text (else None)."""
    if model.settings.long == "windows" and isinstance(model.reader, TextReader):
        return model.reader.pieces(x, lengths)
    return *to_tokens(model, scaling, x, lengths), None


def model_batches(model: LoadedModel, lengths: np.ndarray, batch_rows: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the rows of each batch and the tokens that they are padded to.

    A batch has as many tokens as ``batch_rows`` rows of the greatest length, or for texts of a typical length.
    """
    most_tokens = batch_rows * (model.reader.row_tokens if model.reader else model.fpt.task.max_tokens)
    padded = padded_lengths(lengths)
    for rows in token_batches(lengths, padded, most_tokens):
        yield rows, int(padded[rows[-1]])


def padded_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return the number of tokens to which rows of these lengths are padded if they are the longest of a batch."""
    steps = np.left_shift(1, np.maximum(0, np.frexp(lengths // LENGTH_STEPS)[1] - 1))
    return np.minimum((lengths + steps - 1) // steps * steps, lengths.max())


def token_batches(lengths: np.ndarray, padded: np.ndarray, most_tokens: int) -> Iterator[np.ndarray]:
    """Yield the row numbers of batches with a limited number of tokens: similar lengths together, ties in row order.

    A single row may have more tokens. In batches of more than a 64th of the limit, at most `MOST_PADDING` is padding.
    If lengths vary, batches have 1, 2, 3, 4, 6, 8, 12, 16 ... rows, so that there are few shapes.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        mine = order[start : start + most_tokens]
        tokens = padded[mine].astype(np.int64) * np.arange(1, len(mine) + 1)
        little = (1 - np.cumsum(lengths[mine]) / tokens <= MOST_PADDING) | (tokens <= most_tokens / 64)
        fits = np.flatnonzero((tokens <= most_tokens) & little)
        rows = 1 + int(fits[-1] if len(fits) else 0)
        if lengths[order[0]] < lengths[order[-1]]:
            power = 1 << (rows.bit_length() - 1)
            rows = power + (power // 2 if 2 * rows >= 3 * power else 0)
        yield order[start : start + rows]
        start += rows


def batches(lengths: np.ndarray, batch_rows: int) -> Iterator[np.ndarray]:
    """Yield the row numbers of batches of ``batch_rows`` rows: similar lengths together, ties in row order."""
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_rows):
        yield order[start : start + batch_rows]


def to_tokens(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return stored sequences as input of the input layer, (rows, tokens, ...), and their lengths in tokens."""
    task = model.fpt.task
    if model.settings.long == "windows":
        raise InputError(
            "--long windows works only for extracted features; train and attention cut long texts, so leave it out"
        )
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
