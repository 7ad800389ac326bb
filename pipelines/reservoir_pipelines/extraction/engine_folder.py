"""Folders that an inference engine wrote: the hidden states of each request in one safetensors file.

vLLM's ``ExampleHiddenStatesConnector`` writes such files for the method ``extract_hidden_states``, and the script
``data_generation_offline.py`` of speculators renames them. A file has ``hidden_states`` (tokens, layers, width) and
``token_ids`` (tokens,). It says neither which layers nor which model; layers stand in ascending order of their numbers,
whatever their order in the settings of the engine. Layer 0 is the input of block 1, and layer k the output of
block k, before the final norm.

Sources: docs/features/speculative_decoding/extract_hidden_states.md and
vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py of vLLM 0.22;
scripts/data_generation_offline.py of speculators 0.7.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import is_file_locked

from reservoir.column import Column
from reservoir.errors import InputError, first_line
from reservoir.plan.columns import split_names
from reservoir.pooling import find_pooling
from reservoir_pipelines.extraction.feature_folder import DESCRIPTION
from reservoir_pipelines.files import stamp

if TYPE_CHECKING:
    from torch import Tensor

STATES, TOKENS = "hidden_states", "token_ids"  # names of the tensors of a file
DTYPES = ("F16", "BF16", "F32")
# What a message tells the user of a bad file to do.
RERUN_REQUEST = "run the request again, and remove the file"

POOLINGS = (
    *("last", "mean", "first", "std", "min", "max"),
    *("segmentsK", "fadingK", "attentionK", "quantilesK"),
)
"""The poolings of requests: those that need neither a tokenizer nor a common number of tokens."""

# Tokens whose states are compared with those of other folders; most folders have one, a BOS.
FIRST_TOKENS = 4
COMPARED_CHANNELS = 32  # channels of a state that are compared, evenly spaced
# Largest relative difference between the states of one token in one layer. bfloat16 with other kernels or another GPU
# differs by about a hundredth; other weights, or another layer, by about 1.
MODEL_TOLERANCE = 0.1


def is_engine_folder(path: Path) -> bool:
    """Return whether a path is a folder with files of requests that export-features did not write."""
    if not path.is_dir():
        return False
    is_exported = (path / DESCRIPTION).exists()  # its safetensors files hold features
    return not is_exported and bool(request_files(path))


def request_files(folder: Path, row_ids: Collection[str] | None = None) -> dict[str, Path]:
    """Return the safetensors files of a folder by the names of their requests, request 9 before request 10.

    ``row_ids`` are the ids of the rows that the requests belong to, None if they are not known.
    """
    paths = [path for path in folder.glob("*.safetensors") if path.is_file()]
    request_names = _request_names([path.stem for path in paths], row_ids)
    path_of_request: dict[str, Path] = {}
    for name, path in zip(request_names, paths, strict=True):
        if name in path_of_request:
            raise InputError(
                f"{folder}: {path_of_request[name].name} and {path.name} are both of request {name}",
                "remove one of them",
            )
        path_of_request[name] = path
    return {name: path_of_request[name] for name in sorted(path_of_request, key=_sort_key)}


def _request_names(stems: Sequence[str], row_ids: Collection[str] | None) -> Sequence[str]:
    """Return the name of the request of each file of a folder, by the names of the files without their suffix.

    speculators names the file of row 12 ``hs_12``, whose request is ``12``. vLLM names a file by the id of its request,
    a hyphen and eight random hexadecimal digits. If not all names have one of these forms, they are those of the
    requests, as they are if ids of rows have such a form themselves, like ``img-00000007``: one of the ``row_ids`` is
    such a name, or, if these are not known, two files would have one name.
    """
    if row_ids and not {*row_ids}.isdisjoint(stems):
        return stems
    for pattern in (r"hs_(\d+)", r"(.+)-[0-9a-f]{8}"):
        matches = [re.fullmatch(pattern, stem, re.DOTALL) for stem in stems]
        if all(matches):
            names = [match[1] for match in matches if match]
            are_unique = len({*names}) == len(names)
            return names if are_unique or row_ids else stems
    return stems


def _sort_key(name: str) -> tuple[str, int, str]:
    """Return what sorts the names of requests by their text and then by the number at their end, so 9 before 10."""
    text = name.rstrip("0123456789")
    digits = name[len(text) :]
    # A name without a number counts as 0. `int` refuses thousands of digits, and no number of a row has more than 18.
    number = int(digits[:18] or 0)
    return text, number, name  # the name decides between 7 and 07


def files_of_rows(
    folder: Path, ids: Mapping[str, np.ndarray], *, more_allowed: bool
) -> dict[str, list[Path]]:
    """Return the file of each row, as a list for each split; the name of a row's request is the id of the row.

    Parameters
    ----------
    folder : Path
        The folder of the requests.
    ids : mapping of str to array (rows,)
        The ids of each split: those of the table, or the numbers of its rows, from 0.
    more_allowed : bool
        Whether there may be requests without a row, because rows of the table were left out.

    Raises
    ------
    InputError
        If two rows have the same id, a row has no request, or a request has no row.
    """
    ids_by_split = {split: [str(row_id) for row_id in array.tolist()] for split, array in ids.items()}
    row_ids = [*itertools.chain.from_iterable(ids_by_split.values())]
    most_common_id, count = Counter(row_ids).most_common(1)[0]
    if count > 1:
        raise InputError(
            f"{folder}: the id {most_common_id!r} names several rows", "give each row an id of its own"
        )
    files = request_files(folder, row_ids)
    rows_without_request = [row_id for row_id in row_ids if row_id not in files]
    known_ids = {*row_ids}
    requests_without_row = [path.name for name, path in files.items() if name not in known_ids]
    # Both messages have this part: a user who named the files otherwise sees what the names are.
    example = f", such as {requests_without_row[0]}" if requests_without_row else ""
    surplus = f"{len(requests_without_row):,} requests belong to no row{example}"
    if rows_without_request:
        raise InputError(
            f"{folder}: {len(rows_without_request):,} of {len(row_ids):,} rows have no request, such as row "
            f"{rows_without_request[0]}; {surplus}",
            "name each file by the id of its row, or by the number of the row in the table, from 0",
        )
    if requests_without_row and not more_allowed:
        raise InputError(f"{folder}: {surplus}", "add their rows to the table, or remove the files")
    return {split: [files[row_id] for row_id in split_ids] for split, split_ids in ids_by_split.items()}


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """The model and the layers whose hidden states an engine wrote.

    Parameters
    ----------
    name, revision : str, str or None
        The model and its revision, as the user names them.
    layers : tuple of int
        The numbers of the layers, ascending.
    width : int
        The number of channels of a hidden state.
    first_tokens : mapping of str to list of list of float
        For up to `FIRST_TOKENS` tokens with which requests begin, by their ids, `COMPARED_CHANNELS` channels of the
        state of each layer, (layers, channels). In a causal model the first token of a request sees only itself, so
        that its states depend on the model alone. Empty if the model is not causal.
    """

    name: str
    revision: str | None
    layers: tuple[int, ...]
    width: int
    first_tokens: Mapping[str, list[list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # JSON has lists only. A frozen dataclass is set like this.
        object.__setattr__(self, "layers", tuple(self.layers))
        # The values may come from a file that anyone has written, so they are checked.
        channels = min(self.width, COMPARED_CHANNELS)
        for states in self.first_tokens.values():
            if np.shape(states) != (len(self.layers), channels):
                raise ValueError("it has states of first tokens of another shape than its layers")
        layers_ascend = list(self.layers) == sorted({*self.layers})
        if not self.layers or not layers_ascend or self.width < 1:
            raise ValueError(f"its layers {self.layers} do not ascend, or its width is {self.width}")

    @property
    def title(self) -> str:
        """The model and its revision, for messages."""
        return f"{self.name} at {self.revision}" if self.revision else self.name

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The name of each layer, such as ``block12``."""
        return tuple(map(layer_name, self.layers))


def layer_name(number: int) -> str:
    """Return the name of a layer by its number: the input of the first block is 0, the output of block k is k."""
    return f"block{number:02d}" if number else "embed"


def parse_layers(text: str | Sequence[str]) -> tuple[int, ...]:
    """Return the ascending numbers of layers such as ``0,12,24`` or ``embed,block12,block24``."""
    names = text.split(",") if isinstance(text, str) else [str(name) for name in text]
    numbers = set[int]()
    for name in map(str.strip, names):
        # No model has as many as 10,000 blocks, so a number has at most four digits.
        match = re.fullmatch(r"(?:block)?(\d{1,4})", "0" if name == "embed" else name)
        if not match:
            raise InputError(
                f"--layers {name}: not a layer of an engine",
                "give the numbers in the settings of the engine, such as 0,12,24",
            )
        numbers.add(int(match[1]))
    if len(numbers) < len(names):
        raise InputError(f"--layers {','.join(names)}: a layer is named twice", "name each layer once")
    return tuple(sorted(numbers))


def request_columns(layers: Sequence[int], poolings: str | Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of layers under poolings; raise `InputError` for poolings that requests cannot have."""
    names = split_names(poolings)
    for name in names:
        if find_pooling(name).pattern not in POOLINGS:
            raise InputError(
                f"--pool {name}: not for requests of an engine", f"choose among {', '.join(POOLINGS)}"
            )
    return tuple(Column(layer_name(layer), name) for layer in layers for name in names)


def request_shape(column: Column, width: int) -> tuple[int, int]:
    """Return the shape of a row of a column, (1, features), for requests whose states have ``width`` channels."""
    # The poolings of requests make one token of any number of tokens, so the number does not matter here.
    return find_pooling(column.pooling).shape(width, 1, 1)


@dataclass(frozen=True)
class RequestFile:
    """The file of one request, as it was when its header was read."""

    path: Path
    tokens: int  # number of tokens of the request
    layers: int  # number of layers
    width: int  # channels of a hidden state
    first_token: int  # ID of the first token
    stamp: Sequence[int]  # state of the file (see `files.stamp`); another state means that it has changed


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file within the context; raise `InputError` if it is damaged or still being written."""
    from safetensors import SafetensorError, safe_open

    # The engine holds an exclusive lock on FILE.lock while it writes FILE.
    if is_file_locked(path.with_name(f"{path.name}.lock")):
        raise InputError(f"{path}: the engine is still writing it", "wait until it has finished")
    try:
        with safe_open(path, "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise InputError(f"{path}: damaged ({first_line(error)})", RERUN_REQUEST) from error


def _read_request(path: Path, digest: Any) -> tuple[RequestFile, "Tensor"]:
    """Return the description of a request and the states (layers, width) of its first token; update ``digest``.

    ``digest``, of hashlib, gets the shape, the token IDs, and the last token's states in all layers. These depend on
    all tokens, so another model or another text gives another digest, and the other states need not be read.
    """
    import torch

    stamp_before = stamp(path)  # a file that changes after this is refused when it is pooled
    with _opened(path) as tensors:
        missing = {STATES, TOKENS} - {*tensors.keys()}
        if missing:
            raise InputError(
                f"{path}: it has no tensor {min(missing)!r}", "give files that an engine wrote"
            )
        states = tensors.get_slice(STATES)  # (tokens, layers, width), read only where it is sliced
        shape = tuple(states.get_shape())
        dtype = states.get_dtype()
        if len(shape) != 3 or min(shape) < 1 or dtype not in DTYPES:
            raise InputError(
                f"{path}: {STATES} is {dtype} of the shape {shape}",
                "give floats (tokens, layers, width), at least one of each",
            )
        tokens, layers, width = shape
        token_ids = tensors.get_tensor(TOKENS)
        if tuple(token_ids.shape) != (tokens,) or token_ids.is_floating_point():
            raise InputError(
                f"{path}: {STATES} has {tokens} tokens, but {TOKENS} has the shape {tuple(token_ids.shape)}",
                RERUN_REQUEST,
            )
        first_states = states[:1][0]
        last_states = states[tokens - 1 :][0]
    # The first states become part of the entry's record, which has finite numbers only. Those of other tokens are
    # checked when they are pooled.
    for token, layer_states in ((0, first_states), (tokens - 1, last_states)):
        is_finite = torch.isfinite(layer_states.float()).all(dim=1)  # (layers,)
        if not is_finite.all():
            place = int(is_finite.int().argmin())  # the first that is not
            raise InputError(
                f"{path}: place {place} of {STATES} is not finite at token {token}", RERUN_REQUEST
            )
    digest.update(json.dumps([*shape, dtype]).encode())
    digest.update(token_ids.long().numpy().astype("<i8").tobytes())
    last_bytes = last_states.contiguous().view(torch.uint8)  # because NumPy has no bfloat16
    digest.update(last_bytes.numpy().tobytes())
    request = RequestFile(
        path=path,
        tokens=tokens,
        layers=layers,
        width=width,
        first_token=int(token_ids[0]),
        stamp=stamp_before,
    )
    return request, first_states.float()


class EngineFolder:
    """The requests of a folder in the order of some rows.

    Parameters
    ----------
    folder : Path
        The folder, for messages.
    paths : sequence of Path
        The file of each row.

    Attributes
    ----------
    requests : list of RequestFile
        The request of each row.
    digest : str
        SHA-256 of the shapes, the token IDs and the last states of all requests (see `_read_request`).
    first_tokens : mapping of str to list of list of float
        States of the tokens with which requests begin, as in `EngineModel`; empty if ``is_causal`` is False.
    is_causal : bool
        Whether requests that begin with the same token have the same states of it, which only a causal model gives.
    """

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        self.folder = folder
        self.requests: list[RequestFile] = []
        self.first_tokens: dict[str, list[list[float]]] = {}
        self.is_causal = True  # until two requests show the contrary
        digest = hashlib.sha256()
        for path in paths:
            request, first_states = _read_request(path, digest)
            self.requests.append(request)
            self._check_like_first(request)
            self._note_first_token(request, first_states)
        self.digest = digest.hexdigest()
        if not self.is_causal:  # the states then depend on the whole text, not on the model alone
            self.first_tokens = {}

    @property
    def layers(self) -> int:
        """The number of layers, which is the same in all requests."""
        return self.requests[0].layers

    @property
    def width(self) -> int:
        """The number of channels of a hidden state, which is the same in all requests."""
        return self.requests[0].width

    def _check_like_first(self, request: RequestFile) -> None:
        """Refuse a request that has other layers or another width than the first one."""
        first = self.requests[0]
        if (request.layers, request.width) != (first.layers, first.width):
            raise InputError(
                f"{request.path}: {request.layers} layers of {request.width} channels, "
                f"but {first.path.name} has {first.layers} of {first.width}",
                "give the files of one model and one setting of the engine",
            )

    def _note_first_token(self, request: RequestFile, states: "Tensor") -> None:
        """Add a first token with its ``states`` (layers, width) to ``first_tokens``.

        If an earlier request began with this token, compare the states of both, and set ``is_causal`` to False if they
        differ.
        """
        token = str(request.first_token)  # a text, because the keys of JSON are texts
        states_of_channels = states[:, compared_channels(request.width)].tolist()
        if token in self.first_tokens:
            difference = largest_difference(self.first_tokens[token], states_of_channels)
            self.is_causal = self.is_causal and difference < MODEL_TOLERANCE
        elif len(self.first_tokens) < FIRST_TOKENS:  # further tokens are not needed to recognise the model
            self.first_tokens[token] = states_of_channels

    def pooled(
        self, low: int, high: int, layers: Sequence[int], columns: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return the columns (rows, 1, features) of float32 of the requests from ``low`` to ``high`` (not included).

        ``layers`` are the numbers of the layers in the files, in their order there. One file is in memory at a time.
        """
        requests = self.requests[low:high]
        features: dict[str, np.ndarray] = {}
        for column in columns:
            row_shape = request_shape(Column.parse(column), self.width)
            features[column] = np.empty((len(requests), *row_shape), np.float32)
        # Values are copied at once into arrays that exist before the first file is read. Small arrays that live on
        # between one file and the next would lie in the memory that the first has freed, and the process would grow by
        # a file each time.
        for row, request in enumerate(requests):
            for column, values in _pool_request(request, layers, columns).items():
                features[column][row] = values[0]  # the only row
        return features

    def check_model(self, model: EngineModel) -> str:
        """Raise `InputError` if the requests are of another model or other layers than ``model``.

        Return a note to print if no common first token lets the models be compared, otherwise an empty text.
        """
        layers_of_model = f"layers {', '.join(map(str, model.layers))} of {model.title}"
        if (self.layers, self.width) != (len(model.layers), model.width):
            raise InputError(
                f"{self.folder}: {self.layers} layers of {self.width} channels, but the readout was fitted on "
                f"{layers_of_model}, {model.width} channels",
                "give requests of the same model and layers",
            )
        # The first token of a request sees only itself, so its states are equal in all folders of a causal model.
        common_tokens = self.first_tokens.keys() & model.first_tokens.keys()
        for token in sorted(common_tokens):
            difference = largest_difference(self.first_tokens[token], model.first_tokens[token])
            if not difference < MODEL_TOLERANCE:  # NaN is refused, too
                raise InputError(
                    f"{self.folder}: other hidden states than {layers_of_model}, on which the readout was fitted: "
                    f"those of token {token} at the start of a request differ by {difference:.0%}",
                    "give requests of the same model, revision and layers",
                )
        if common_tokens:
            return ""
        return f"{self.folder}: no request begins with a token that can tell whether its model is {model.title}"


def _pool_request(
    request: RequestFile, layers: Sequence[int], columns: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the columns (1, 1, features) of a request by name; raise `InputError` if a value is not finite.

    ``layers`` are the numbers of the layers in the file, in their order there.
    """
    import torch

    from reservoir.hidden_states import HiddenStates

    columns_of_layer: dict[str, list[Column]] = {}
    for column in map(Column.parse, columns):
        columns_of_layer.setdefault(column.layer, []).append(column)
    with _opened(request.path) as tensors:
        states = tensors.get_tensor(STATES)  # (tokens, layers, width)
    if stamp(request.path) != request.stamp:
        raise InputError(f"{request.path}: changed while it was read", "run the command again")
    lengths = torch.tensor([request.tokens])
    pooled: dict[str, np.ndarray] = {}
    for number, layer in enumerate(map(layer_name, layers)):
        if layer not in columns_of_layer:
            continue
        # A batch of one request, (1, tokens, width), which `HiddenStates` converts to float32.
        layer_states = HiddenStates(states[None, :, number], lengths)
        is_finite = torch.isfinite(layer_states.values[0]).all(dim=1)  # (tokens,)
        if not is_finite.all():
            token = int(is_finite.int().argmin())  # the first that is not
            raise InputError(
                f"{request.path}: {layer} (place {number} of {STATES}) is not finite at token {token}",
                RERUN_REQUEST,
            )
        for column in columns_of_layer[layer]:
            values = find_pooling(column.pooling).of(layer_states).numpy()
            if not np.isfinite(values).all():  # sums or squares of finite states can overflow
                raise InputError(
                    f"{request.path}: {layer} (place {number} of {STATES}): its states are too large for the pooling "
                    f"{column.pooling}, which overflows float32",
                    f"leave out {column.pooling}, or {RERUN_REQUEST}",
                )
            pooled[column.name] = values
    return pooled


def compared_channels(width: int) -> list[int]:
    """Return the numbers of the channels that are compared between folders: `COMPARED_CHANNELS`, evenly spaced.

    A state with fewer channels is compared in all of them.
    """
    count = min(width, COMPARED_CHANNELS)
    return [number * width // count for number in range(count)]


def largest_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Return the largest relative difference of two states (layers, channels) of a token over the layers.

    The difference of a layer is |a - b| / max(|a|, |b|), where |.| is the norm over the channels of the layer.
    """
    a, b = np.array(first, np.float64), np.array(second, np.float64)
    larger_norms = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    # States that are all zero do not differ, so they are not divided by zero.
    differences = np.linalg.norm(a - b, axis=1) / np.maximum(larger_norms, 1e-30)
    return float(differences.max())
