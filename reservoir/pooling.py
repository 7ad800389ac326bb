"""Poolings: summaries of a layer's hidden states over the real tokens of each sequence; and the raw input, pooled."""

import math
import re
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from reservoir import devices
from reservoir.errors import InputError
from reservoir.tasks.images.pictures import as_patches
from reservoir.tasks.task import Scaling, Task, Tokens
from reservoir.tasks.words import are_words, to_symbols

POOLINGS = (
    *("last", "mean", "words", "std", "min", "max", "first", "cls"),
    *("segmentsK", "quantilesK", "sharesK", "gridK", "tokens", "all"),
)
"""Names of the poolings; K stands for a number, as in ``segments8``."""

MAX_TOKEN_FEATURES = 16_384  # moments of this many channels take 2 GB
RAW_VALUES = 2**22  # values, such as one-hot letters, that are computed at a time
RAW_WIDTH = 6144  # wider inputs are pooled, because a sweep's time grows with the cube


def parse_column(column: str) -> tuple[str, str]:
    """Split a column such as ``block06/mean`` into its layer and its pooling; raise `InputError` without both."""
    layer, slash, pooling = column.partition("/")
    if not slash or not layer:
        raise InputError(f"column {column!r}: write layer/pooling, as in block06/mean")
    check_poolings([pooling])
    return layer, pooling


def check_poolings(poolings: list[str]) -> None:
    """Raise `InputError` if one of the poolings is unknown."""
    for pooling in poolings:
        kind, number = _parse(pooling)
        if kind not in POOLINGS or kind.endswith("K") != (number > 0):
            raise InputError(f"pooling {pooling!r}: choose among {', '.join(POOLINGS)} (K is 1 or more)")


def pooled_shape(pooling: str, width: int, max_tokens: int, readout_tokens: int) -> tuple[int, int]:
    """Return (tokens, width) of one row of a column; ``max_tokens`` is the length of the longest sequence."""
    if pooling == "last":
        return readout_tokens, width
    if pooling == "all":
        return max_tokens, width
    kind, number = _parse(pooling)
    if kind == "gridK":
        side = math.isqrt(max_tokens)
        if side * side != max_tokens or side < number:
            problem = f"{max_tokens:,} tokens are not a square image of at least {number} x {number} pixels"
            raise InputError(f"pooling {pooling}: {problem}", "use another pooling")
        return 1, width * 4 * number**2
    if pooling != "tokens":
        return 1, width * max(1, number)
    if max_tokens * width > MAX_TOKEN_FEATURES:
        have = f"{max_tokens:,} tokens of {width:,} channels have {max_tokens * width:,} features"
        raise InputError(
            f"pooling tokens: {have}, more than {MAX_TOKEN_FEATURES:,}", "use segmentsK or quantilesK"
        )
    return 1, max_tokens * width


def pool(
    hidden: Tensor,
    lengths: Tensor,
    pooling: str,
    readout_tokens: int = 1,
    max_tokens: int | None = None,
    special: tuple[int, int] = (0, 0),
) -> Tensor:
    """Return one pooling of hidden states; see `LayerPooling`."""
    return LayerPooling(hidden, lengths, readout_tokens, max_tokens, special)(pooling)


class LayerPooling:
    """Poolings of the hidden states of one layer, over the real tokens of right-padded sequences.

    | pooling | result |
    |---|---|
    | ``last`` | the last ``readout_tokens`` real tokens |
    | ``first``, ``cls`` | the first token |
    | ``mean``, ``std``, ``min``, ``max`` | over all real tokens; ``std`` divides by their number |
    | ``words`` | the mean without the special tokens that a model's tokenizer adds; zero if there are no other tokens |
    | ``segmentsK`` | means of K equal segments, concatenated |
    | ``quantilesK`` | for each channel, the quantiles at (i + 1) / (K + 1) for i < K, interpolated, concatenated |
    | ``sharesK`` | for each channel, the shares of tokens above each of the `share_levels`, concatenated |
    | ``gridK`` | mean, standard deviation, maximum and minimum of each of K x K cells of a square image |
    | ``tokens`` | all tokens concatenated, zero at padding, ``max_tokens`` of them (default: as in the batch) |
    | ``all`` | each token, zero at padding |

    ``special`` counts the special tokens before and after those of the sequence. Hidden states
    (batch, tokens, width) are finite at the first ``lengths`` (batch,) tokens; the
    padding may hold any values. Poolings of sorted values share one sorted copy.
    """

    def __init__(
        self,
        hidden: Tensor,
        lengths: Tensor,
        readout_tokens: int = 1,
        max_tokens: int | None = None,
        special: tuple[int, int] = (0, 0),
    ) -> None:
        self._hidden, self._lengths = hidden.float(), lengths
        self._readout_tokens, self._max_tokens = readout_tokens, max_tokens
        self._special = special
        tokens = torch.arange(hidden.shape[1], device=hidden.device)
        self._padding: Tensor | None = (tokens >= lengths[:, None])[:, :, None]
        # A compiled or exported graph must work for all lengths, and reading the lengths would wait
        # for a GPU.
        self._exported = torch.compiler.is_compiling() or hidden.requires_grad
        self._on_host = not (self._exported or devices.on_gpu(hidden.device))
        if self._on_host and int(lengths.min()) == hidden.shape[1]:
            self._padding = None

    def __call__(self, pooling: str) -> Tensor:
        """Return a pooling as float32 (batch, kept tokens, kept width) in new memory."""
        hidden, lengths = self._hidden, self._lengths
        kind, number = _parse(pooling)
        match kind:
            case "last":
                count = self._readout_tokens
                positions = lengths[:, None] - count + torch.arange(count, device=hidden.device)
                return hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[2]))
            case "first" | "cls":
                return hidden[:, :1].clone()
            case "all":
                return self._filled(0.0).clone() if self._padding is None else self._filled(0.0)
            case "max" | "min":
                kept = self._extremes(kind)
            case "std":
                apart = hidden - self("mean")
                squares = (
                    apart if self._padding is None else apart.masked_fill(self._padding, 0.0)
                ).square()
                kept = (squares.sum(dim=1) / lengths[:, None]).sqrt()
            case "tokens":
                missing = 0 if self._max_tokens is None else self._max_tokens - hidden.shape[1]
                kept = pad(self._filled(0.0), (0, 0, 0, missing))
            case "words":
                kept = self._words()
            case "quantilesK":
                kept = self._quantiles(number)
            case "sharesK":
                kept = self._shares(number)
            case "gridK":
                kept = self._grid(number)
            case _:
                kept = torch.bmm(
                    stretch_weights(lengths, hidden.shape[1], max(1, number)), self._filled(0.0)
                )
        return kept.flatten(1)[:, None]

    def _filled(self, value: float) -> Tensor:
        """Return the hidden states with ``value`` at padding."""
        # Multiplication by zero would not work, because the padding may be infinite.
        return self._hidden if self._padding is None else self._hidden.masked_fill(self._padding, value)

    @cached_property
    def _ordered(self) -> Tensor:
        """The values of each channel in ascending order, (batch, width, tokens), with padding at the end."""
        if not self._on_host:  # sorting along a dimension with strides is slow on GPUs
            return self._filled(float("inf")).transpose(1, 2).contiguous().sort(dim=2).values
        values = self._hidden.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        if self._padding is not None:
            values.masked_fill_(self._padding.transpose(1, 2), float("inf"))
        values.numpy().sort(axis=-1)  # numpy sorts ten times as fast as torch
        return values

    def _extremes(self, kind: str) -> Tensor:
        """Return the maximum or the minimum (batch, width) of each channel."""
        if "_ordered" in vars(self):  # the ends of the sorted copy
            rank = (self._lengths - 1) * (kind == "max")
            return self._ordered.gather(2, rank[:, None, None].expand(-1, self._ordered.shape[1], 1))[
                :, :, 0
            ]
        if kind == "max":
            return self._filled(float("-inf")).amax(dim=1)
        return self._filled(float("inf")).amin(dim=1)

    def _words(self) -> Tensor:
        """Return the mean (batch, 1, width) without special tokens."""
        counts, before = word_counts(self._lengths, self._special)[:, None], self._special[0]
        tokens = torch.arange(self._hidden.shape[1], device=self._hidden.device)
        words = (tokens >= before) & (tokens < before + counts)
        weights = words.float() / counts.clamp(min=1)
        return torch.bmm(weights[:, None], self._filled(0.0))

    def _quantiles(self, number: int) -> Tensor:
        """Return K quantiles (batch, K, width) of each channel."""
        ordered, lengths = self._ordered, self._lengths[:, None]

        def at(rank: Tensor) -> Tensor:
            return ordered.gather(2, rank[:, None].expand(-1, ordered.shape[1], -1)).transpose(1, 2)

        # The rank of level (i + 1) / (K + 1) is (i + 1) (n - 1) / (K + 1); integers have no rounding errors.
        place = (lengths - 1) * torch.arange(1, number + 1, device=lengths.device)
        low = place // (number + 1)
        share = ((place % (number + 1)).float() / (number + 1))[:, :, None]
        return torch.lerp(at(low), at(torch.minimum(low + 1, lengths - 1)), share)

    def _shares(self, number: int) -> Tensor:
        """Return the share of tokens above each of K levels, (batch, K, width), for each channel."""
        if self._on_host:
            levels = (
                torch.tensor(share_levels(number)).expand(*self._ordered.shape[:2], number).contiguous()
            )
            below = torch.searchsorted(self._ordered, levels, right=True).transpose(1, 2)
            above = (self._lengths[:, None, None] - below).float()
        else:
            hidden = self._filled(float("-inf"))
            above = torch.stack(
                [(hidden > level).float().sum(dim=1) for level in share_levels(number)], dim=1
            )
        return above / self._lengths[:, None, None]

    def _grid(self, number: int) -> Tensor:
        """Return four statistics of each cell of an image, (batch, 4 K K, width), statistic by statistic."""
        # This waits for a GPU, once per layer of images.
        if not self._exported and int(self._lengths.min()) < self._hidden.shape[1]:
            raise InputError(f"pooling grid{number}: the rows differ in length", "use another pooling")
        side = math.isqrt(self._hidden.shape[1])
        bands = self._hidden.unflatten(1, (side, side)).tensor_split(number, dim=1)
        cells = [cell.flatten(1, 2) for band in bands for cell in band.tensor_split(number, dim=2)]
        found = [(cell.mean(1), cell.std(1, correction=0), cell.amax(1), cell.amin(1)) for cell in cells]
        return torch.cat([torch.stack(statistic, dim=1) for statistic in zip(*found, strict=True)], dim=1)


def share_levels(number: int) -> list[float]:
    """Return the K levels of ``sharesK``, from -18 to 18, denser near 0, because values span orders of magnitude."""
    top, middle = math.asinh(18 / 0.06), (number - 1) / 2
    return [0.06 * math.sinh(top * (i - middle) / max(middle, 1)) for i in range(number)]


def word_counts(lengths: Tensor, special: tuple[int, int]) -> Tensor:
    """Return the number of tokens of each row that are not special."""
    return (lengths - sum(special)).clamp(min=0)


def join_pieces(
    pooling: str, values: np.ndarray, lengths: np.ndarray, starts: np.ndarray, special: tuple[int, int]
) -> np.ndarray:
    """Return a pooling of whole texts from that of their pieces, which begin at the rows ``starts``.

    Minima and maxima are exact, and so are ``mean`` and ``words``, which are weighted by the tokens
    that they average. Other poolings are averaged with the weights of ``mean``.
    """
    if pooling in ("min", "max"):
        return (np.minimum if pooling == "min" else np.maximum).reduceat(values, starts)
    counts = torch.from_numpy(lengths)
    counts = word_counts(counts, special) if pooling == "words" else counts
    weights = counts.numpy().astype(np.float32)[:, None, None]
    # Like a piece, a text of only special tokens has no words, and its ``words`` are zeros.
    return np.add.reduceat(values * weights, starts) / np.maximum(np.add.reduceat(weights, starts), 1)


def stretch_weights(lengths: Tensor, tokens: int, stretches: int) -> Tensor:
    """Return the weights (batch, segments, tokens) whose product with the hidden states gives means of segments."""
    # With s segments and n real tokens, segment i begins at token floor(i n / s) and has a token even
    # if n < s.
    bounds = lengths[:, None] * torch.arange(stretches + 1, device=lengths.device) // stretches
    start = bounds[:, :-1]
    stop = torch.maximum(bounds[:, 1:], start + 1)
    position = torch.arange(tokens, device=lengths.device)
    inside = (position >= start[:, :, None]) & (position < stop[:, :, None])
    return inside.float() / (stop - start)[:, :, None]


@cache
def _parse(pooling: str) -> tuple[str, int]:
    """Split ``segments8`` into ``segmentsK`` and 8; names without a number get 0."""
    found = re.fullmatch(r"([a-z]+)([1-9][0-9]{0,3})", pooling)
    return (f"{found[1]}K", int(found[2])) if found else (pooling, 0)


class RawInput(nn.Module):
    """The baseline's features: the flattened sequences of a task, or means of 8 segments for wide inputs and words."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.form, self.longest = task.form, task.max_tokens
        width = task.form.vocabulary if isinstance(task.form, Tokens) else task.form.dim
        # The letters of words have no fixed positions.
        self.size = self.longest * width  # values of a row
        self.pooling = "tokens" if self.size <= RAW_WIDTH and not are_words(task.alphabet) else "segments8"

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the features of scaled vectors or of symbols, (rows, width) of float32."""
        return [pool(self.values(x, lengths), lengths, self.pooling, max_tokens=self.longest).flatten(1)]

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
    if len(x) > (most := max(1, RAW_VALUES // raw.size)):
        parts = (slice(start, start + most) for start in range(0, len(x), most))
        return np.concatenate([raw_features(task, scaling, x[part], lengths[part]) for part in parts])
    x = read_values(task, scaling, x, lengths)[:, : lengths.max()]
    inputs = torch.from_numpy(np.asarray(x)), torch.from_numpy(lengths.astype(np.int64))
    if task.each:
        return pad(raw.values(*inputs), (0, 0, 0, task.readout_tokens - x.shape[1])).numpy()
    return raw(*inputs)[0].numpy()
