"""The forward pass over batches, and its pooled features as NumPy arrays."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reservoir.batches import Batch, Loaded, load, load_tokens
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
    """Features that a device is computing, for rows or the pieces of texts, by the names that columns have on disk."""

    columns: Mapping[str, Tensor]
    loaded: Loaded

    @property
    def device(self) -> torch.device:
        """The device that computes them."""
        return next(iter(self.columns.values())).device

    def __call__(self) -> dict[str, np.ndarray]:
        """Wait for the device and return the features of rows, in which the pieces of a text are joined."""
        features = dict(zip(self.columns, fetch(list(self.columns.values())), strict=True))
        if self.loaded.owner is None:
            return features
        # A text begins where a piece has another owner than the piece before.
        starts = np.flatnonzero(np.diff(self.loaded.owner, prepend=-1))
        poolings = {name: find_pooling(Column.parse(name).pooling) for name in features}
        return {
            name: poolings[name].join(values, self.loaded.tokens_of(poolings[name]), starts)
            for name, values in features.items()
        }


def launch(
    model: LoadedModel,
    loaded: Loaded,
    names: Sequence[str],
    advance: Callable[[int], None] = lambda rows: None,
) -> Launched:
    """Run the model over loaded rows, inside `exact_products`, without waiting for the device.

    ``names`` are those of the columns in the cache; ``advance`` gets the rows of each batch.
    """
    columns = [Column.parse(name) for name in names]
    shapes = column_shapes(model.fpt.task, model.fpt.backbone.width, columns)
    # A tensor for each column, because one large tensor returns its memory to the system, and new
    # memory is slow.
    rows = len(loaded.lengths) if loaded.picked_rows is None else loaded.picked_rows
    out = {column: torch.empty(rows, *shapes[column], device=model.device) for column in columns}
    count_rows = advance if loaded.owner is None else lambda _: None  # pieces of texts are not rows
    with torch.inference_mode():
        passes = [_compute(model, batch, columns, out, count_rows) for batch in loaded.batches]
        if model.fpt.backbone.streamed is None:
            for layers in passes:
                deque(layers, maxlen=0)
        else:
            _take_turns(passes)
    return Launched({str(column): values for column, values in out.items()}, loaded)


def _take_turns(passes: Sequence[Iterator[bool]]) -> None:
    """Run each block over all batches before the block after it, which has to be read from a file."""
    # The layers `embed` and `block01` are taken at once, because the first block runs with what precedes it.
    waiting = [layers for layers in passes if next(layers) and next(layers, False)]
    while waiting:
        waiting = [layers for layers in waiting if next(layers, False)]


def _compute(
    model: LoadedModel,
    batch: Batch,
    columns: Sequence[Column],
    out: Mapping[Column, Tensor],
    advance: Callable[[int], None],
) -> Iterator[bool]:
    """Compute the columns of a batch and put them into the rows of ``out``; yield True after each layer."""

    def put(x: Tensor) -> Tensor:
        return x.to(model.device, non_blocking=True)

    rows, x, lengths = put(batch.rows), put(batch.x), put(batch.lengths)
    places = None if batch.places is None else put(batch.places)
    if batch.stored is not None:
        x = _cut(model, x, put(batch.stored))[:, : batch.tokens]
        # The responses of a convolution lie in memory channel by channel, as poolings read them.
        x = x if model.convolution else x.contiguous()
    masks = {name: put(mask) for name, mask in batch.masks.items()}
    picked = [put(numbers) for numbers in vars(batch.picked).values()] if batch.picked else None
    pooled_layers = _pooled_layers(model, x, lengths, columns, batch.is_full, masks)
    del x  # see `Backbone.run_layers`
    for pooled_columns in pooled_layers:
        for column, pooled in pooled_columns.items():
            if picked:
                picked_rows, sequences, positions = picked
                out[column][picked_rows, 0] = pooled[sequences, positions]
                continue
            values = pooled if places is None else _at(places, pooled)
            tokens = values.shape[1]
            out[column][rows, :tokens] = values
            if tokens < out[column].shape[1]:
                out[column][rows, tokens:] = 0
        yield True
    advance(len(picked[0] if picked else rows))


def _pooled_layers(
    model: LoadedModel,
    x: Tensor,
    lengths: Tensor,
    columns: Sequence[Column],
    is_full: bool,
    masks: Mapping[str, Tensor],
) -> Iterator[dict[Column, Tensor]]:
    """Return the columns layer by layer, or of a small batch on a GPU all at once."""
    if model.repeated is None or x.shape[0] * x.shape[1] > MOST_TOKENS:
        return model.fpt.pooled_layers(x, lengths, columns, is_full, masks)

    def compute(tensors: Sequence[Tensor]) -> dict[Column, Tensor]:
        tokens, counts, *values = tensors
        return model.fpt.features(tokens, counts, columns, is_full, dict(zip(masks, values, strict=True)))

    settings = (*columns, is_full, *masks)
    return iter([model.repeated(compute, [x, lengths, *masks.values()], settings)])


def _at(places: Tensor, values: Tensor) -> Tensor:
    """Return the values (rows, labels, width) at token numbers (rows, labels); zeros for the number -1."""
    index = places.clamp(min=0)[:, :, None].expand(-1, -1, values.shape[2])
    return values.gather(1, index).masked_fill((places < 0)[:, :, None], 0.0)


def forward(
    model: LoadedModel,
    scaling: Scaling | None,
    x: np.ndarray,
    lengths: np.ndarray,
    names: Sequence[str],
    batch_rows: int,
) -> dict[str, np.ndarray]:
    """Return the pooled hidden states (rows, tokens, width) of stored sequences by the names of their columns."""
    # The result depends on these rows and the batch size alone, because rows of similar length share a batch.
    with exact_products():
        loaded = load(model, scaling, x, lengths, batch_rows, column_masks(names))
        return launch(model, loaded, names)()


def forward_tokens(
    model: LoadedModel, part: TokenPart, names: Sequence[str], batch_rows: int
) -> dict[str, np.ndarray]:
    """Return the features (rows, 1, width) of words or tokens of texts by the names of their columns."""
    with exact_products():
        return launch(model, load_tokens(model, part, batch_rows), names)()


def _cut(model: LoadedModel, x: Tensor, lengths: Tensor) -> Tensor:
    """Return the tokens of stored sequences, (rows, windows, values), independent of the other rows."""
    if len(x) > 1:
        return model.tokens(x, lengths)[0]
    # torch sums a single long row in several threads, and in another order than among other rows. So the row is
    # computed twice, and one of the two is returned.
    twice = x.repeat(2, *[1] * (x.ndim - 1))
    tokens, _ = model.tokens(twice, lengths.repeat(2))
    return tokens[:1]
