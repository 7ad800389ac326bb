"""The forward pass over batches, and its pooled features as NumPy arrays."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reservoir.batches import Batch, LoadedBatch, load, load_tokens
from reservoir.column import Column, column_shapes
from reservoir.cuda_graphs import MOST_TOKENS
from reservoir.devices import exact_products, fetch
from reservoir.inputs.text_tokens import TokenPart
from reservoir.loaded_model import LoadedModel
from reservoir.pooling import find_pooling, masks_of
from reservoir.tasks.task import Scaling


def column_masks(names: Sequence[str]) -> tuple[str, ...]:
    """Return the masks of tokens that columns read, by the names of the columns in the cache."""
    return masks_of(Column.parse(name).pooling for name in names)


@dataclass(frozen=True)
class Launched:
    """Features that a device is computing, for rows or the pieces of texts."""

    # (rows or pieces, tokens, width), by the names that columns have in the cache
    columns: Mapping[str, Tensor]
    loaded: LoadedBatch  # the rows that they are computed from

    @property
    def device(self) -> torch.device:
        """The device that computes the features; all columns are on the same one."""
        first_column = next(iter(self.columns.values()))
        return first_column.device

    def __call__(self) -> dict[str, np.ndarray]:
        """Wait for the device and return the features (rows, tokens, width) by column, with a text's pieces joined."""
        features = dict(zip(self.columns, fetch(list(self.columns.values())), strict=True))
        if self.loaded.owner is None:  # the rows are not in pieces
            return features
        # A text begins where a piece has another owner than the piece before; the first owner is 0, not -1.
        starts = np.flatnonzero(np.diff(self.loaded.owner, prepend=-1))
        joined: dict[str, np.ndarray] = {}
        for name, values in features.items():
            pooling = find_pooling(Column.parse(name).pooling)
            joined[name] = pooling.join(values, self.loaded.tokens_of(pooling), starts)
        return joined


def launch(
    model: LoadedModel,
    loaded: LoadedBatch,
    names: Sequence[str],
    advance: Callable[[int], None] = lambda rows: None,
) -> Launched:
    """Run the model over loaded rows without waiting for the device; callers enter `exact_products` before.

    ``names`` are those of the columns in the cache. ``advance`` is called with the number of rows of each batch, but
    not for the pieces of texts, which are not rows.
    """
    columns = [Column.parse(name) for name in names]
    shapes = column_shapes(model.fpt.task, model.fpt.backbone.width, columns)
    # A tensor for each column, because one large tensor returns its memory to the system, and new
    # memory is slow.
    rows = len(loaded.lengths) if loaded.picked_rows is None else loaded.picked_rows
    out = {column: torch.empty(rows, *shapes[column], device=model.device) for column in columns}
    count_rows = advance if loaded.owner is None else lambda _: None
    with torch.inference_mode():
        # An iterator for each batch, which computes one layer when it is advanced.
        passes = [_compute(model, batch, columns, out, count_rows) for batch in loaded.batches]
        if model.fpt.backbone.streamed is None:
            for layers in passes:
                deque(layers, maxlen=0)  # runs the iterator to its end, batch by batch
        else:
            _take_turns(passes)
    return Launched({str(column): values for column, values in out.items()}, loaded)


def _take_turns(passes: Sequence[Iterator[bool]]) -> None:
    """Run each block over all batches before the block after it, which has to be read from a file.

    ``passes`` are those of `_compute`, one for each batch.
    """
    # `next` computes a layer and returns True, or False if none is left. The layers `embed` and `block01` are taken at
    # once, because the first block runs with what precedes it.
    unfinished = [layers for layers in passes if next(layers) and next(layers, False)]
    while unfinished:
        unfinished = [layers for layers in unfinished if next(layers, False)]


def _compute(
    model: LoadedModel,
    batch: Batch,
    columns: Sequence[Column],
    out: Mapping[Column, Tensor],
    advance: Callable[[int], None],
) -> Iterator[bool]:
    """Compute the columns of a batch and write them into the rows of ``out``; yield True after each layer.

    At the end, call ``advance`` with the number of rows.
    """

    def put(x: Tensor) -> Tensor:
        """Return a tensor on the device, whose copy nothing waits for."""
        return x.to(model.device, non_blocking=True)

    x, lengths = put(batch.x), put(batch.lengths)
    label_tokens = None if batch.label_tokens is None else put(batch.label_tokens)
    if batch.stored_lengths is not None:
        x = _cut(model, x, put(batch.stored_lengths))[:, : batch.tokens]
        # The responses of a convolution lie in memory channel by channel, as poolings read them.
        x = x if model.convolution else x.contiguous()
    masks = {name: put(mask) for name, mask in batch.masks.items()}
    # The rows of the result are the sequences of the batch, or words or tokens at some places of them.
    places: tuple[Tensor, Tensor] | None = None
    if batch.picked:
        rows = put(batch.picked.rows)
        places = put(batch.picked.sequences), put(batch.picked.positions)
    else:
        rows = put(batch.rows)
    pooled_layers = _pooled_layers(model, x, lengths, columns, batch.is_full, masks)
    del x  # the backbone frees its memory, while batches of a streamed model wait in turn
    for pooled_columns in pooled_layers:
        for column, pooled in pooled_columns.items():
            if places is not None:
                out[column][rows, 0] = pooled[places]
                continue
            values = pooled if label_tokens is None else _at(label_tokens, pooled)
            # A batch may have fewer tokens than the longest row of the task; ``out`` is not initialised. Its tokens may
            # also be more, because new rows may be longer, and a readout of single tokens reads only the first of them.
            tokens = min(values.shape[1], out[column].shape[1])
            out[column][rows, :tokens] = values[:, :tokens]
            if tokens < out[column].shape[1]:
                out[column][rows, tokens:] = 0
        yield True
    advance(len(rows))


def _pooled_layers(
    model: LoadedModel,
    x: Tensor,
    lengths: Tensor,
    columns: Sequence[Column],
    is_full: bool,
    masks: Mapping[str, Tensor],
) -> Iterator[dict[Column, Tensor]]:
    """Return an iterator over the columns of each layer; a small batch on a GPU has all columns in one dictionary."""
    tokens_of_batch = x.shape[0] * x.shape[1]
    if model.repeated is None or tokens_of_batch > MOST_TOKENS:
        return model.fpt.pooled_layers(x, lengths, columns, is_full, masks)

    def compute(tensors: Sequence[Tensor]) -> dict[Column, Tensor]:
        """Return the columns, given the tokens, the lengths of the rows and the masks, in this order.

        A graph reads all tensors from its arguments.
        """
        tokens, lengths, *mask_values = tensors
        masks_by_name = dict(zip(masks, mask_values, strict=True))
        return model.fpt.features(tokens, lengths, columns, is_full, masks_by_name)

    settings = (*columns, is_full, *masks)  # what the kernels depend on besides the shapes of the tensors
    return iter([model.repeated(compute, [x, lengths, *masks.values()], settings)])


def _at(label_tokens: Tensor, values: Tensor) -> Tensor:
    """Return the values (rows, labels, width) of the tokens of labels (rows, labels); zeros where the number is -1.

    ``values`` are those of all tokens, (rows, tokens, width).
    """
    has_no_token = label_tokens < 0
    index = label_tokens.clamp(min=0)[:, :, None].expand(-1, -1, values.shape[2])
    return values.gather(1, index).masked_fill(has_no_token[:, :, None], 0.0)


def forward(
    model: LoadedModel,
    scaling: Scaling | None,
    x: np.ndarray,
    lengths: np.ndarray,
    names: Sequence[str],
    batch_rows: int,
) -> dict[str, np.ndarray]:
    """Return the pooled hidden states (rows, tokens, width) of stored sequences by the names of their columns."""
    # Rows of similar length share a batch, whose size can change the last bits. So the result depends on these rows and
    # on ``batch_rows``, and on nothing else.
    with exact_products():
        loaded = load(model, scaling, x, lengths, batch_rows, column_masks(names))
        launched = launch(model, loaded, names)
        return launched()  # waits for the device


def forward_tokens(
    model: LoadedModel, part: TokenPart, names: Sequence[str], batch_rows: int
) -> dict[str, np.ndarray]:
    """Return the features (rows, 1, width) of words or tokens of texts by the names of their columns."""
    with exact_products():
        loaded = load_tokens(model, part, batch_rows)
        launched = launch(model, loaded, names)
        return launched()  # waits for the device


def _cut(model: LoadedModel, x: Tensor, lengths: Tensor) -> Tensor:
    """Return the tokens of stored sequences, (rows, windows, values), independent of the other rows.

    ``lengths`` (rows,) count stored values.
    """
    if len(x) > 1:
        tokens, _ = model.tokens(x, lengths)
        return tokens
    # torch sums a single long row in several threads, and in another order than among other rows. So the row is
    # computed twice, and one of the two is returned.
    repeats = (2, *[1] * (x.ndim - 1))  # only along the axis of rows
    tokens, _ = model.tokens(x.repeat(repeats), lengths.repeat(2))
    return tokens[:1]
