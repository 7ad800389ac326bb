"""Batches of stored sequences on the host: rows of similar length, tokenized or scaled, and padded to few lengths."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reservoir.devices import kind, pinned
from reservoir.errors import InputError
from reservoir.inputs.native import TextReader
from reservoir.inputs.text_tokens import TokenPart
from reservoir.loaded_model import LoadedModel
from reservoir.pooling import Pooling
from reservoir.raw_input import read_values
from reservoir.tasks.task import Scaling, Tokens

MAX_PADDING = 0.045
"""Largest share of padding in a batch on a CPU, unless the batch is small (see `SMALL_SHARE`)."""

# A batch of this size takes little time, however much of it is padding, and further batches would cost more.
SMALL_SHARE = 1 / 64
"""Share of the full size of a batch, in tokens, up to which it may have any share of padding."""

# The speeds of an H200 at six limits of padding (docs/gpu.md) follow from a time for each batch and a time for each
# token, within 7% for GPT-2 small and 20% for mini. A batch takes as long as 7,900 tokens of GPT-2 small or 202,000 of
# mini in bfloat16, and 560 or 7,700 in float32: by the number of their weights, nearly the same number of products.
BATCH_PRODUCTS = {"float32": 4e10, "bfloat16": 8e11, "bfloat16-all": 8e11}
"""How many products of a token and a weight take as long as the fixed part of a batch on a GPU, by precision."""

LENGTH_STEPS = 16
"""Padded lengths between two powers of two; oneDNN keeps compiled code for each shape."""


@dataclass(frozen=True)
class Batch:
    """Rows of similar length. A row is a sequence, or a piece of one that is too long for the model."""

    rows: Tensor  # (rows,): the number of each row among all that were loaded
    # (rows, tokens, ...) of token numbers or of values; before windows are cut, the second axis counts stored values
    x: Tensor
    lengths: Tensor  # (rows,) in tokens
    tokens: int  # number of tokens to which rows are padded
    stored_lengths: Tensor | None  # (rows,) in stored values, if the device will cut the windows, else None
    # (rows, labels): the token of each label, -1 for none; None for one label per row
    label_tokens: Tensor | None
    is_full: bool  # whether all rows have this number of tokens
    # (rows, tokens) of bool by name: the tokens that the poolings of this name read
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    # the words or tokens that are rows of the result, if the sequences are not
    picked: "Picked | None" = None


@dataclass(frozen=True)
class Picked:
    """Words or tokens of the sequences of a batch, each of which is a row of the result; all fields are (n,)."""

    rows: Tensor  # the number of each row of the result
    sequences: Tensor  # the sequence that holds it, by its number in the batch
    positions: Tensor  # its position in the sequence


@dataclass(frozen=True)
class LoadedBatch:
    """Rows in batches, prepared for the model."""

    batches: Sequence[Batch]
    lengths: np.ndarray  # number of tokens of each row or piece
    owner: np.ndarray | None  # the row that each piece of a text belongs to; None if rows are not divided
    special: tuple[int, int] = (0, 0)  # number of special tokens before and after each row or piece
    # (rows or pieces, tokens) of bool, by the names that poolings have for them
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    # the number of rows of the result if they are words or tokens of the sequences; None if they are the sequences
    picked_rows: int | None = None

    def tokens_of(self, pooling: Pooling) -> np.ndarray:
        """Return how many tokens of each row or piece a pooling reads, (rows or pieces,)."""
        if pooling.mask in self.masks:
            return self.masks[pooling.mask].sum(axis=1)
        if pooling.mask == "words":  # without a mask, all but the special tokens
            return np.maximum(self.lengths - sum(self.special), 0)
        return self.lengths


@dataclass(frozen=True)
class _ReadRows:
    """Stored sequences as a model reads them, not yet in batches; the fields mean what those of `LoadedBatch` do."""

    # (rows or pieces, tokens, ...), or (rows, values, ...) if the device will cut the windows
    x: np.ndarray
    lengths: np.ndarray
    stored_lengths: np.ndarray | None = None  # as in `Batch`
    owner: np.ndarray | None = None
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)


def load(
    model: LoadedModel,
    scaling: Scaling | None,
    x: np.ndarray,
    lengths: np.ndarray,
    batch_rows: int,
    mask_names: Sequence[str] = (),
) -> LoadedBatch:
    """Make batches of stored sequences on the host: tokenize, scale, and group rows of similar length.

    ``mask_names`` are the masks of tokens that the poolings read (`masks_of`).
    """
    label_tokens: np.ndarray | None = None
    if model.fpt.task.labels_each_token and isinstance(model.reader, TextReader):
        # Letters have labels, and a token may have several letters.
        label_tokens = model.reader.places(x, lengths)
    read = _read_rows(model, scaling, x, lengths, mask_names)

    def put(array: np.ndarray) -> Tensor:
        """Return an array as a tensor from which the device can copy."""
        return pinned(torch.from_numpy(np.ascontiguousarray(array)), model.device)

    batches = [
        Batch(
            rows=put(rows),
            x=put(read.x[rows, :tokens] if read.stored_lengths is None else read.x[rows]),
            lengths=put(read.lengths[rows].astype(np.int64)),
            tokens=tokens,
            stored_lengths=(
                None if read.stored_lengths is None else put(read.stored_lengths[rows].astype(np.int64))
            ),
            label_tokens=None if label_tokens is None else put(label_tokens[rows]),
            is_full=int(read.lengths[rows].min()) == tokens,
            masks={name: put(mask[rows, :tokens]) for name, mask in read.masks.items()},
        )
        for rows, tokens in model_batches(model, read.lengths, batch_rows)
    ]
    return LoadedBatch(batches, read.lengths, read.owner, model.fpt.inputs.special, read.masks)


def _read_rows(
    model: LoadedModel,
    scaling: Scaling | None,
    x: np.ndarray,
    lengths: np.ndarray,
    mask_names: Sequence[str],
) -> _ReadRows:
    """Return stored sequences as the model reads them: texts as tokens or pieces, other rows as `_to_input` does."""
    if isinstance(model.reader, TextReader):
        rows = model.reader.read(x, lengths, mask_names, in_pieces=model.settings.long == "windows")
        return _ReadRows(rows.ids, rows.lengths, owner=rows.owner, masks=rows.masks)
    x, lengths = _to_input(model, scaling, x, lengths)
    if cuts_windows(model):
        # Windows are cut on the model's device, because they are many times larger than the values, and counted here.
        return _ReadRows(x, model.windows.checked_counts(lengths), stored_lengths=lengths)
    return _ReadRows(x, lengths)


def load_tokens(model: LoadedModel, part: TokenPart, batch_rows: int) -> LoadedBatch:
    """Make batches of the sequences that hold some words or tokens of texts, which are the rows of the result."""

    def put(array: np.ndarray) -> Tensor:
        """Return an array as a tensor from which the device can copy."""
        return pinned(torch.from_numpy(np.ascontiguousarray(array)), model.device)

    batches = []
    for sequences, tokens in model_batches(model, part.lengths, batch_rows):
        # The number of each sequence in this batch, -1 for those of other batches, gives the rows of this batch.
        number_in_batch = np.full(len(part.lengths), -1)
        number_in_batch[sequences] = np.arange(len(sequences))
        rows = np.flatnonzero(number_in_batch[part.sequence] >= 0)
        picked = Picked(
            rows=put(rows),
            sequences=put(number_in_batch[part.sequence[rows]]),
            positions=put(part.position[rows]),
        )
        batches.append(
            Batch(
                rows=put(sequences),
                x=put(part.x[sequences, :tokens]),
                lengths=put(part.lengths[sequences]),
                tokens=tokens,
                stored_lengths=None,
                label_tokens=None,
                is_full=int(part.lengths[sequences].min()) == tokens,
                picked=picked,
            )
        )
    return LoadedBatch(
        batches,
        part.lengths,
        owner=None,
        special=model.fpt.inputs.special,
        picked_rows=len(part.sequence),
    )


def check_lengths(
    model: LoadedModel, lengths: np.ndarray, where: str, names: np.ndarray | None = None
) -> None:
    """Raise `InputError` if a row, of ``lengths`` (rows,) in values, has too few or too many tokens for the model.

    The message begins with ``where`` and the number of the row, or its name in ``names`` (rows,). What a model's own
    reader reads is not checked: it cuts long texts.
    """
    if model.reader is None and len(lengths):
        for row in (int(np.argmax(lengths)), int(np.argmin(lengths))):
            tokens = int(model.windows.counts(lengths[row]))
            name = row if names is None else names[row]
            model.fpt.backbone.check_length(tokens, f"{where} {name}: ")


def length_limits(model: LoadedModel) -> tuple[int, float]:
    """Return the smallest and the largest number of values of a row that a model reads; infinite for no limit."""
    windows, backbone = model.windows, model.fpt.backbone
    # A model's own reader cuts long texts, and adds special tokens to short ones.
    if model.reader:
        return windows.reach, np.inf
    # The first window needs ``reach`` values, and each further one ``stride`` more. So ``max_tokens`` + 1 windows would
    # need one value more than the limit. Some models read any number of tokens.
    fewest = windows.reach + (backbone.min_tokens - 1) * windows.stride
    if backbone.max_tokens is None:
        return fewest, np.inf
    return fewest, windows.reach + backbone.max_tokens * windows.stride - 1


def model_batches(
    model: LoadedModel, lengths: np.ndarray, batch_rows: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the row numbers of each batch and the length in tokens to which its rows are padded.

    A batch has at most as many tokens as ``batch_rows`` rows of the task's greatest length, or, if a model's own reader
    makes the tokens, of its typical length.
    """
    row_tokens = model.reader.row_tokens if model.reader else model.fpt.task.max_tokens
    most_tokens = batch_rows * row_tokens
    if not model.fpt.backbone.can_pad:  # all rows of a batch must have the same length
        padded = lengths
        batches_of_rows = token_batches(lengths, lengths, most_tokens, max_padding=None)
    else:
        padded = padded_lengths(lengths)
        if kind(model.device) == "cuda":
            batches_of_rows = cheapest_batches(lengths, padded, most_tokens, _batch_cost(model))
        else:
            batches_of_rows = token_batches(lengths, padded, most_tokens, MAX_PADDING)
    for rows in batches_of_rows:
        # Rows of a batch are sorted by length, so the last one is the longest.
        yield rows, int(padded[rows[-1]])


def _batch_cost(model: LoadedModel) -> int:
    """Return how many tokens take as long as the fixed part of a batch on a GPU."""
    backbone = model.fpt.backbone
    # A block of a transformer has 12 width**2 weights: four square matrices of attention, and a feed-forward of two
    # matrices that are four times as wide.
    weights = 12 * max(1, backbone.depth) * backbone.width**2
    return int(BATCH_PRODUCTS[model.compute] / weights)


def padded_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return, for each length, the length to which a batch is padded if its longest row has this length.

    There are few padded lengths, because code is compiled for each.
    """
    # From each power of two to the next, there are `LENGTH_STEPS` padded lengths: the multiples of a step, which is
    # the power of two divided by `LENGTH_STEPS`, and at least 1. `frexp` returns mantissas below 1, so the exponent of
    # a number, less one, is its logarithm to base 2, rounded down.
    _, exponents = np.frexp(lengths // LENGTH_STEPS)
    steps = np.left_shift(1, np.maximum(0, exponents - 1))
    rounded_up = (lengths + steps - 1) // steps * steps
    return np.minimum(rounded_up, lengths.max())  # beyond the longest row, there would be padding alone


def token_batches(
    lengths: np.ndarray,
    padded: np.ndarray,
    most_tokens: int,
    max_padding: float | None = MAX_PADDING,
) -> Iterator[np.ndarray]:
    """Yield the row numbers of batches with a limited number of tokens: similar lengths together, ties in row order.

    ``padded`` are the lengths (rows,) to which a batch would be padded if it ended with a row. ``max_padding`` is the
    largest share of padding of a batch that is not small, None if all rows of a batch must have the same length.
    """
    order = np.argsort(lengths, kind="stable")
    has_equal_lengths = lengths[order[0]] == lengths[order[-1]] if len(order) else True
    start = 0
    while start < len(order):
        # The batch may end with any of these rows. A row has at least one token, so no batch has more than
        # ``most_tokens`` rows.
        candidates = order[start : start + most_tokens]
        # Tokens of the batch that ends with each candidate, padding included. Rows are sorted by length, so the last
        # row of a batch is the longest, and all its rows are padded to the length ``padded`` of the last one.
        row_counts = np.arange(1, len(candidates) + 1)
        tokens = padded[candidates].astype(np.int64) * row_counts
        padding = 1 - np.cumsum(lengths[candidates]) / tokens
        if max_padding is None:
            has_little_padding = lengths[candidates] == lengths[candidates[0]]
        else:
            is_small = tokens <= most_tokens * SMALL_SHARE
            has_little_padding = (padding <= max_padding) | is_small
        # The batch is the largest that fits, and has at least one row.
        fitting_ends = np.flatnonzero((tokens <= most_tokens) & has_little_padding)
        rows = 1 + int(fitting_ends[-1]) if len(fitting_ends) else 1
        # If lengths differ, numbers of rows are rounded down to 1, 2, 3, 4, 6, 8, 12 ..., so that there are few shapes.
        if not has_equal_lengths:
            power = 1 << (rows.bit_length() - 1)  # the largest power of two that is at most ``rows``
            fits_half_more = 2 * rows >= 3 * power
            rows = power + (power // 2 if fits_half_more else 0)
        yield order[start : start + rows]
        start += rows


def cheapest_batches(
    lengths: np.ndarray, padded: np.ndarray, most_tokens: int, batch_cost: int
) -> Iterator[np.ndarray]:
    """Yield the row numbers of batches with a limited number of tokens, which together cost little.

    A batch costs as many tokens as it has, padding included, and ``batch_cost`` more. Rows are in order of length, ties
    in row order. Rows of one padded length stay together; neighbouring lengths are joined into parts so that the parts
    cost least, each counted as if padded to its longest row. A part that does not fit into a batch becomes several of
    equal size.
    """
    # The distinct padded lengths, ascending; rows ``order[starts[k] : ends[k]]`` have the k-th of them.
    order = np.argsort(lengths, kind="stable")
    tokens, starts = np.unique(padded[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    # Dynamic programming: ``costs[k]`` is the least cost of the rows of the first k lengths. Their last part ends with
    # the k-th length and may begin with any of them; its cost is added to the least cost of the lengths before it. The
    # cheapest beginning is remembered in ``first_of_part``.
    costs = np.zeros(len(tokens) + 1, dtype=np.int64)
    first_of_part = np.zeros(len(tokens), dtype=np.int64)
    for last in range(len(tokens)):
        rows = ends[last] - starts[: last + 1]  # of the part, for each first length
        counts = _batch_count(rows, tokens[last], most_tokens)
        totals = costs[: last + 1] + rows * tokens[last] + counts * batch_cost
        first_of_part[last] = totals.argmin()
        costs[last + 1] = totals.min()
    # Follow the first lengths back from the last part to the first one.
    parts: list[tuple[int, int]] = []
    last = len(tokens) - 1
    while last >= 0:
        first = int(first_of_part[last])
        parts.append((first, last))
        last = first - 1
    for first, last in reversed(parts):
        part = order[starts[first] : ends[last]]
        yield from np.array_split(part, _batch_count(len(part), tokens[last], most_tokens))


def _batch_count(rows: Any, tokens: int, most_tokens: int) -> Any:
    """Return how many batches hold ``rows`` rows of ``tokens`` each; ``rows`` is a number or an array of them."""
    fitting = max(1, most_tokens // tokens)  # a row that is too long is a batch of its own
    return -(-rows // fitting)  # rounded up


def batches(lengths: np.ndarray, batch_rows: int) -> Iterator[np.ndarray]:
    """Yield the row numbers of batches of ``batch_rows`` rows: similar lengths together, ties in row order."""
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_rows):
        yield order[start : start + batch_rows]


def to_tokens(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return stored sequences as tokens for the input layer, (rows, tokens, ...), and their lengths in tokens.

    Raise `InputError` if long texts are read in pieces, because a row then has several sequences.
    """
    if model.settings.long == "windows":
        raise InputError(
            "--long windows works only for extracted features",
            "train and attention cut long texts, so leave --long out",
        )
    x, lengths = _to_input(model, scaling, x, lengths)
    return model.windows(x, lengths) if cuts_windows(model) else (x, lengths)


def _to_input(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return stored sequences and their lengths, before windows are cut: tokenized, in patches, or scaled."""
    if model.reader:
        return model.reader(x, lengths)
    x = read_values(model.fpt.task, scaling, x, lengths)
    if scaling:  # which returns float32
        return x, lengths
    are_symbols = isinstance(model.fpt.task.form, Tokens) or model.windows.symbols > 0
    return x.astype(np.int64 if are_symbols else np.float32), lengths


def cuts_windows(model: LoadedModel) -> bool:
    """Return whether the device of a model cuts stored values into windows."""
    reads_tokens = model.reader is not None or isinstance(model.fpt.task.form, Tokens)
    return not reads_tokens and not model.windows.plain
