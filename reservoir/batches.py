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
"""Largest share of padding in a batch on a CPU, unless it has less than a 64th of the full size."""

# The speeds of an H200 at six limits of padding (docs/gpu.md) follow from a time for each batch and a time for each
# token, within 7% for GPT-2 small and 20% for mini. A batch takes as long as 7,900 tokens of GPT-2 small or 202,000 of
# mini in bfloat16, and 560 or 7,700 in float32: by the number of their weights, nearly the same number of products.
BATCH_PRODUCTS = {"float32": 4e10, "bfloat16": 8e11, "bfloat16-all": 8e11}
"""How many products of a token and a weight take as long as the fixed part of a batch on a GPU, by precision."""

LENGTH_STEPS = 16
"""Padded lengths between two powers of two; oneDNN keeps compiled code for each shape."""


@dataclass(frozen=True)
class Batch:
    """Rows of similar length: their numbers, sequences, and lengths in tokens."""

    rows: Tensor
    x: Tensor
    lengths: Tensor
    tokens: int  # number of tokens to which rows are padded
    stored: Tensor | None  # lengths in values, if the device will cut the windows
    places: Tensor | None  # the token of each label, if every token has one
    is_full: bool  # whether all rows have this number of tokens
    # (rows, tokens) of bool, by the poolings that read them
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    picked: "Picked | None" = None  # if rows are words or tokens of the sequences


@dataclass(frozen=True)
class Picked:
    """Words or tokens of the sequences of a batch: their rows, the sequence of each in the batch, and its position."""

    rows: Tensor
    sequences: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Loaded:
    """Rows in batches, prepared for the model."""

    batches: Sequence[Batch]
    lengths: np.ndarray  # number of tokens of each row or piece
    owner: np.ndarray | None  # the row of each piece of a text
    special: tuple[int, int] = (0, 0)  # special tokens before and after each row or piece
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)  # (rows or pieces, tokens) of bool
    picked_rows: int | None = None  # the number of rows, if they are words or tokens of the sequences

    def tokens_of(self, pooling: Pooling) -> np.ndarray:
        """Return how many tokens of each row or piece a pooling reads, (rows or pieces,)."""
        if pooling.mask in self.masks:
            return self.masks[pooling.mask].sum(axis=1)
        if pooling.mask == "words":
            return np.maximum(self.lengths - sum(self.special), 0)
        return self.lengths


def load(
    model: LoadedModel,
    scaling: Scaling | None,
    x: np.ndarray,
    lengths: np.ndarray,
    batch_rows: int,
    mask_names: Sequence[str] = (),
) -> Loaded:
    """Make batches of stored sequences on the host: tokenize, scale, and group rows of similar length.

    ``mask_names`` are the masks of tokens that the poolings read (`masks_of`).
    """
    # The fields of `Batch` and `Loaded` that only some models have: the token of each label, the text of each piece,
    # the lengths as stored, and the masks of tokens.
    task = model.fpt.task
    places: np.ndarray | None = None
    owner: np.ndarray | None = None
    stored: np.ndarray | None = None
    masks: Mapping[str, np.ndarray] = {}
    # The token of each label; -1 after the last.
    if task.labels_each_token and isinstance(model.reader, TextReader):
        places = model.reader.places(x, lengths)
    # Rows become pieces of texts, or tokens; windows of values are cut on the device, so only counted here.
    if isinstance(model.reader, TextReader):
        rows = model.reader.read(x, lengths, mask_names, in_pieces=model.settings.long == "windows")
        x, lengths, owner, masks = rows.ids, rows.lengths, rows.owner, rows.masks
    else:
        x, lengths = _to_input(model, scaling, x, lengths)
        if cuts_windows(model):
            stored, lengths = lengths, model.windows.checked_counts(lengths)

    def put(array: np.ndarray) -> Tensor:
        return pinned(torch.from_numpy(np.ascontiguousarray(array)), model.device)

    batches = [
        Batch(
            rows=put(rows),
            # Windows are cut on the model's device, because they are many times larger than the values.
            x=put(x[rows, :tokens] if stored is None else x[rows]),
            lengths=put(lengths[rows].astype(np.int64)),
            tokens=tokens,
            stored=None if stored is None else put(stored[rows].astype(np.int64)),
            places=None if places is None else put(places[rows]),
            is_full=int(lengths[rows].min()) == tokens,
            masks={name: put(mask[rows, :tokens]) for name, mask in masks.items()},
        )
        for rows, tokens in model_batches(model, lengths, batch_rows)
    ]
    return Loaded(batches, lengths, owner, model.fpt.inputs.special, masks)


def load_tokens(model: LoadedModel, part: TokenPart, batch_rows: int) -> Loaded:
    """Make batches of the sequences that hold some words or tokens of texts, which are the rows of the result."""

    def put(array: np.ndarray) -> Tensor:
        return pinned(torch.from_numpy(np.ascontiguousarray(array)), model.device)

    batches = []
    for sequences, tokens in model_batches(model, part.lengths, batch_rows):
        # The rows whose sequence is in this batch, and the number of that sequence in it.
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
                stored=None,
                places=None,
                is_full=int(part.lengths[sequences].min()) == tokens,
                picked=picked,
            )
        )
    return Loaded(batches, part.lengths, None, model.fpt.inputs.special, picked_rows=len(part.sequence))


def check_lengths(model: LoadedModel, lengths: np.ndarray, where: str) -> None:
    """Raise `InputError` (message prefix ``where``) if a row has too many tokens for the model; long texts are cut."""
    row = int(np.argmax(lengths))
    if model.reader is None:
        model.fpt.backbone.check_length(int(model.windows.counts(lengths[row])), f"{where} {row}: ")


def length_limits(model: LoadedModel) -> tuple[int, float]:
    """Return the fewest and the most tokens of a row that a model reads; it cuts long texts."""
    windows, positions = model.windows, model.fpt.backbone.max_tokens
    if model.reader or positions is None:
        return windows.reach, np.inf
    return windows.reach, windows.reach + positions * windows.stride - 1


def model_batches(
    model: LoadedModel, lengths: np.ndarray, batch_rows: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the rows of each batch and the length in tokens to which they are padded.

    A batch has at most as many tokens as ``batch_rows`` rows of typical (texts) or greatest length.
    """
    # Texts count with a typical length, other rows with the greatest.
    most_tokens = batch_rows * (model.reader.row_tokens if model.reader else model.fpt.task.max_tokens)
    can_pad = model.fpt.backbone.can_pad
    padded = padded_lengths(lengths) if can_pad else lengths
    if can_pad and kind(model.device) == "cuda":
        divided = cheapest_batches(lengths, padded, most_tokens, _batch_cost(model))
    else:  # None: all rows of a batch have the same length
        divided = token_batches(lengths, padded, most_tokens, MAX_PADDING if can_pad else None)
    for rows in divided:
        # Rows of a batch are sorted by length, so the last one is the longest.
        yield rows, int(padded[rows[-1]])


def _batch_cost(model: LoadedModel) -> int:
    """Return how many tokens take as long as the fixed part of a batch on a GPU."""
    backbone = model.fpt.backbone
    # The weights of a transformer's blocks, whose feed-forward is four times as wide as its hidden states.
    weights = 12 * max(1, backbone.depth) * backbone.width**2
    return int(BATCH_PRODUCTS[model.compute] / weights)


def padded_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return, for each length, the length to which a batch is padded if its longest row has this length."""
    # There are few padded lengths, because code is compiled for each. They are multiples of a power of two, the step,
    # that divides each octave of lengths into `LENGTH_STEPS` parts: the exponent of `frexp`, less one, is the
    # logarithm to base 2, rounded down.
    exponents = np.frexp(lengths // LENGTH_STEPS)[1] - 1
    steps = np.left_shift(1, np.maximum(0, exponents))
    rounded_up = (lengths + steps - 1) // steps * steps
    return np.minimum(rounded_up, lengths.max())  # beyond the longest row, there would be padding alone


def token_batches(
    lengths: np.ndarray,
    padded: np.ndarray,
    most_tokens: int,
    max_padding: float | None = MAX_PADDING,
) -> Iterator[np.ndarray]:
    """Yield the row numbers of batches with a limited number of tokens: similar lengths together, ties in row order.

    ``max_padding`` is the largest share of padding, None if all rows of a batch must have the same length.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        # Tokens of the batch that ends with each of the next rows, padding included.
        following = order[start : start + most_tokens]
        tokens = padded[following].astype(np.int64) * np.arange(1, len(following) + 1)
        padding = 1 - np.cumsum(lengths[following]) / tokens
        if max_padding is None:
            little_padding = lengths[following] == lengths[following[0]]
        else:
            little_padding = (padding <= max_padding) | (tokens <= most_tokens / 64)
        # The batch is the largest that fits, and has at least one row.
        fits = np.flatnonzero((tokens <= most_tokens) & little_padding)
        rows = 1 + int(fits[-1] if len(fits) else 0)
        # If lengths differ, there are few shapes: 1, 2, 3, 4, 6, 8, 12 ... rows.
        if lengths[order[0]] < lengths[order[-1]]:
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
    in row order. They are divided into parts between padded lengths so that the parts cost least, each counted as if
    padded to its longest row; one that does not fit into a batch becomes several of equal size.
    """
    order = np.argsort(lengths, kind="stable")
    tokens, starts = np.unique(padded[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    # ``costs[k]`` is the least cost of the rows of the first k lengths. Its last part ends with the k-th length and may
    # begin with any; before it, the rest costs least. Rows of a part that do not fit into one batch make several.
    costs = np.zeros(len(tokens) + 1, dtype=np.int64)
    first_lengths = np.zeros(len(tokens), dtype=np.int64)
    for last in range(len(tokens)):
        rows = ends[last] - starts[: last + 1]
        counts = _batch_count(rows, tokens[last], most_tokens)
        totals = costs[: last + 1] + rows * tokens[last] + counts * batch_cost
        first_lengths[last] = totals.argmin()
        costs[last + 1] = totals.min()
    # The parts, from the last to the first.
    parts: list[tuple[int, int]] = []
    last = len(tokens) - 1
    while last >= 0:
        parts.append((int(first_lengths[last]), last))
        last = int(first_lengths[last]) - 1
    for first, last in reversed(parts):
        part = order[starts[first] : ends[last]]
        yield from np.array_split(part, _batch_count(len(part), tokens[last], most_tokens))


def _batch_count(rows: Any, tokens: int, most_tokens: int) -> Any:
    """Return how many batches hold so many rows of ``tokens`` each."""
    fitting = max(1, most_tokens // tokens)
    return -(-rows // fitting)


def batches(lengths: np.ndarray, batch_rows: int) -> Iterator[np.ndarray]:
    """Yield the row numbers of batches of ``batch_rows`` rows: similar lengths together, ties in row order."""
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_rows):
        yield order[start : start + batch_rows]


def to_tokens(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return stored sequences as tokens for the input layer, (rows, tokens, ...), and their lengths in tokens."""
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
    symbols = isinstance(model.fpt.task.form, Tokens) or model.windows.symbols
    return x if scaling else x.astype(np.int64 if symbols else np.float32), lengths


def cuts_windows(model: LoadedModel) -> bool:
    """Return whether the device of a model cuts stored values into windows."""
    return not (model.reader or isinstance(model.fpt.task.form, Tokens) or model.windows.plain)
