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
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import is_file_locked

from reservoir.column import Column
from reservoir.errors import InputError, first_line
from reservoir.pooling import find_pooling
from reservoir_pipelines.extraction.feature_folder import DESCRIPTION
from reservoir_pipelines.files import stamp

if TYPE_CHECKING:
    from torch import Tensor

STATES, TOKENS = "hidden_states", "token_ids"  # names of the tensors of a file
DTYPES = ("F16", "BF16", "F32")
MAX_LAYER = 9_999  # largest number of a layer; no model has as many blocks
AGAIN = "run the request again, and remove the file"

POOLINGS = (
    *("last", "mean", "first", "std", "min", "max"),
    *("segmentsK", "fadingK", "attentionK", "quantilesK"),
)
"""The poolings of requests: those that need neither a tokenizer nor a common number of tokens."""

FIRST_TOKENS = 4  # whose states are compared with those of other folders; most folders have one, a BOS
COMPARED_CHANNELS = 32  # channels of a state that are compared, evenly spaced
# Largest relative difference between the states of one token in one layer. bfloat16 with other kernels or another GPU
# differs by about a hundredth; other weights, or another layer, by about 1.
MODEL_TOLERANCE = 0.1


def is_engine_folder(path: Path) -> bool:
    """Return whether a folder has files of requests, and was not written by export-features."""
    return path.is_dir() and not (path / DESCRIPTION).exists() and bool(request_files(path))


def request_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by the names of their requests, numbers in ascending order.

    speculators names the file of row 12 ``hs_12.safetensors``. vLLM names a file by the id of its request, to which it
    adds a hyphen and eight random hexadecimal digits. If all names have one of these forms, the rest is the name.
    """
    paths = [path for path in folder.glob("*.safetensors") if path.is_file()]
    stems = [path.stem for path in paths]
    names = stems
    for pattern in (r"hs_(\d+)", r"(.+)-[0-9a-f]{8}"):
        matches = [re.fullmatch(pattern, stem, re.DOTALL) for stem in stems]
        if all(matches):
            names = [match[1] for match in matches if match]
    files: dict[str, Path] = {}
    for name, path in sorted(zip(names, paths, strict=True), key=lambda item: _number_last(item[0])):
        if name in files:
            raise InputError(
                f"{folder}: {files[name].name} and {path.name} are both of request {name}",
                "remove one of them",
            )
        files[name] = path
    return files


def _number_last(name: str) -> tuple[str, int, str]:
    """Return a name as its text, the number at its end, and whole, so that 9 is sorted before 10."""
    text = name.rstrip("0123456789")
    digits = name[len(text) :]
    return text, int(digits[:18] or 0), name


def files_of_rows(
    folder: Path, ids: Mapping[str, np.ndarray], *, more_allowed: bool
) -> dict[str, list[Path]]:
    """Return the file of each row of each split, by the ids of the rows.

    Parameters
    ----------
    folder : Path
        The folder of the requests.
    ids : mapping of str to array (rows,)
        The ids of each split: those of the table, or the numbers of its rows, from 0.
    more_allowed : bool
        Whether there may be requests without a row, because rows of the table were left out.
    """
    row_ids = [str(name) for of_split in ids.values() for name in of_split.tolist()]
    all_ids = {*row_ids}
    if len(all_ids) < len(row_ids):
        repeated = Counter(row_ids).most_common(1)[0][0]
        raise InputError(
            f"{folder}: the id {repeated!r} names several rows", "give each row an id of its own"
        )
    files = request_files(folder)
    without_request = [name for name in row_ids if name not in files]
    without_row = [files[name].name for name in files if name not in all_ids]
    of_no_row = f"{len(without_row):,} requests belong to no row" + (
        f", such as {without_row[0]}" if without_row else ""
    )
    if without_request:
        raise InputError(
            f"{folder}: {len(without_request):,} of {len(row_ids):,} rows have no request, such as row "
            f"{without_request[0]}; {of_no_row}",
            "name each file by the id of its row, or by the number of the row in the table, from 0",
        )
    if without_row and not more_allowed:
        raise InputError(f"{folder}: {of_no_row}", "add their rows to the table, or remove the files")
    return {split: [files[str(name)] for name in of_split.tolist()] for split, of_split in ids.items()}


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
        object.__setattr__(self, "layers", tuple(self.layers))
        channels = min(self.width, COMPARED_CHANNELS)
        for states in self.first_tokens.values():
            if np.shape(states) != (len(self.layers), channels):
                raise ValueError("it has states of first tokens of another shape than its layers")
        if self.width < 1 or list(self.layers) != sorted({*self.layers}) or not self.layers:
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
        digits = re.fullmatch(r"(?:block)?(\d{1,4})", "0" if name == "embed" else name)
        if not digits:
            raise InputError(
                f"--layers {name}: not a layer of an engine",
                "give the numbers in the settings of the engine, such as 0,12,24",
            )
        numbers.add(int(digits[1]))
    if len(numbers) < len(names):
        raise InputError(f"--layers {','.join(names)}: a layer is named twice", "name each layer once")
    return tuple(sorted(numbers))


def request_columns(layers: Sequence[int], poolings: str | Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of layers under poolings; raise `InputError` for poolings that requests cannot have."""
    names = dict.fromkeys(poolings.split(",") if isinstance(poolings, str) else poolings)
    for name in names:
        if find_pooling(name).pattern not in POOLINGS:
            raise InputError(
                f"--pool {name}: not for requests of an engine", f"choose among {', '.join(POOLINGS)}"
            )
    return tuple(Column(layer_name(layer), name) for layer in layers for name in names)


def request_shape(column: Column, width: int) -> tuple[int, int]:
    """Return tokens, always 1, and features of a column of requests whose states have ``width`` channels."""
    return find_pooling(column.pooling).shape(width, 1, 1)


@dataclass(frozen=True)
class RequestFile:
    """The file of one request, as it was when its header was read."""

    path: Path
    tokens: int
    layers: int
    width: int
    first_token: int
    stamp: Sequence[int]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of safetensors; raise `InputError` if it is damaged, or if the engine is still writing it."""
    from safetensors import SafetensorError, safe_open

    # The engine holds an exclusive lock on FILE.lock while it writes FILE.
    if is_file_locked(path.with_name(f"{path.name}.lock")):
        raise InputError(f"{path}: the engine is still writing it", "wait until it has finished")
    try:
        with safe_open(path, "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise InputError(f"{path}: damaged ({first_line(error)})", AGAIN) from error


def _read_request(path: Path, digest: Any) -> tuple[RequestFile, "Tensor"]:
    """Return the description of a request, and the states (layers, width) of its first token.

    ``digest`` is updated with the shape, the token ids, and the states of the last token in all layers. These
    depend on all tokens, so another model or another text gives another digest, and other states need not be read.
    """
    import torch

    stamp_before = stamp(path)  # a file that changes after this is refused when it is pooled
    with _opened(path) as tensors:
        if missing := {STATES, TOKENS} - {*tensors.keys()}:
            raise InputError(
                f"{path}: it has no tensor {min(missing)!r}", "give files that an engine wrote"
            )
        states = tensors.get_slice(STATES)
        shape, dtype = tuple(states.get_shape()), states.get_dtype()
        if len(shape) != 3 or min(shape) < 1 or dtype not in DTYPES:
            raise InputError(
                f"{path}: {STATES} is {dtype} of the shape {shape}",
                "give floats (tokens, layers, width), at least one of each",
            )
        token_ids = tensors.get_tensor(TOKENS)
        if tuple(token_ids.shape) != shape[:1] or token_ids.is_floating_point():
            raise InputError(
                f"{path}: {STATES} has {shape[0]} tokens, but {TOKENS} has the shape {tuple(token_ids.shape)}",
                AGAIN,
            )
        last, first = states[shape[0] - 1 :], states[:1]
        digest.update(json.dumps([*shape, dtype]).encode())
        digest.update(token_ids.long().numpy().astype("<i8").tobytes())
        digest.update(last.contiguous().view(torch.uint8).numpy().tobytes())
    return RequestFile(path, *shape, int(token_ids[0]), stamp_before), first[0].float()


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
        SHA-256 of what `_read_request` reads of all files.
    first_tokens : mapping of str to list of list of float
        As in `EngineModel`.
    is_causal : bool
        Whether requests that begin with the same token have the same states of it.
    """

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        self.folder = folder
        self.requests: list[RequestFile] = []
        self.first_tokens: dict[str, list[list[float]]] = {}
        self.is_causal = True
        digest = hashlib.sha256()
        for path in paths:
            request, first = _read_request(path, digest)
            self.requests.append(request)
            self._check_like_first(request)
            self._note_first_token(request, first)
        self.digest = digest.hexdigest()
        if not self.is_causal:
            self.first_tokens = {}

    @property
    def layers(self) -> int:
        """The number of layers of each request."""
        return self.requests[0].layers

    @property
    def width(self) -> int:
        """The number of channels of each hidden state."""
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
        """Store the states of a new first token, or compare them with those of an earlier request."""
        token, channels = str(request.first_token), compared_channels(request.width)
        compared = states[:, channels].tolist()
        if token in self.first_tokens:
            self.is_causal &= largest_difference(self.first_tokens[token], compared) < MODEL_TOLERANCE
        elif len(self.first_tokens) < FIRST_TOKENS:
            self.first_tokens[token] = compared

    def pooled(
        self, low: int, high: int, layers: Sequence[int], columns: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return columns (rows, 1, features) of float32 of the rows from ``low`` to ``high`` (not included).

        ``layers`` are the numbers of the layers of the files. A call has one file in memory at a time.
        """
        requests = self.requests[low:high]
        features = {
            column: np.empty((len(requests), *request_shape(Column.parse(column), self.width)), np.float32)
            for column in columns
        }
        # Values go straight to their place. Small arrays that live on between one file and the next would lie in the
        # memory that the first has freed, and the process would grow by a file each time.
        for row, request in enumerate(requests):
            for column, values in _pool_request(request, layers, columns).items():
                features[column][row] = values[0]
        return features

    def check_model(self, model: EngineModel) -> str:
        """Refuse requests of another model or of other layers; return a note if the models cannot be compared."""
        of_model = f"layers {', '.join(map(str, model.layers))} of {model.title}"
        if (self.layers, self.width) != (len(model.layers), model.width):
            raise InputError(
                f"{self.folder}: {self.layers} layers of {self.width} channels, but the readout was fitted on "
                f"{of_model}, {model.width} channels",
                "give requests of the same model and layers",
            )
        # The first token of a request sees only itself, so its states are equal in all folders of a causal model.
        common = self.first_tokens.keys() & model.first_tokens.keys()
        for token in sorted(common):
            difference = largest_difference(self.first_tokens[token], model.first_tokens[token])
            if not difference < MODEL_TOLERANCE:
                raise InputError(
                    f"{self.folder}: other hidden states than {of_model}, on which the readout was fitted: those of "
                    f"token {token} at the start of a request differ by {difference:.0%}",
                    "give requests of the same model, revision and layers",
                )
        if common:
            return ""
        return f"{self.folder}: no request begins with a token that can tell whether its model is {model.title}"


def _pool_request(
    request: RequestFile, layers: Sequence[int], columns: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return columns (1, 1, features) of a request; raise `InputError` if a value is not finite."""
    import torch

    from reservoir.hidden_states import HiddenStates

    poolings: dict[str, list[Column]] = {}
    for column in map(Column.parse, columns):
        poolings.setdefault(column.layer, []).append(column)
    with _opened(request.path) as tensors:
        states = tensors.get_tensor(STATES)
    if stamp(request.path) != request.stamp:
        raise InputError(f"{request.path}: changed while it was read", "run the command again")
    lengths = torch.tensor([request.tokens])
    pooled: dict[str, np.ndarray] = {}
    for place, layer in enumerate(map(layer_name, layers)):
        if layer not in poolings:
            continue
        of_layer = HiddenStates(states[None, :, place], lengths)  # in float32
        finite = torch.isfinite(of_layer.values[0]).all(dim=1)
        if not finite.all():
            token = int(finite.int().argmin())
            raise InputError(
                f"{request.path}: {layer} (place {place} of {STATES}) is not finite at token {token}", AGAIN
            )
        for column in poolings[layer]:
            pooled[column.name] = find_pooling(column.pooling).of(of_layer).numpy()
    return pooled


def compared_channels(width: int) -> list[int]:
    """Return the channels of a state that are compared between folders."""
    count = min(width, COMPARED_CHANNELS)
    return [place * width // count for place in range(count)]


def largest_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Return the largest relative difference |a - b| / max(|a|, |b|) of the states (layers, channels) of a token.

    |.| is the norm over the channels of one layer, so each layer has a difference of its own.
    """
    a, b = np.array(first, np.float64), np.array(second, np.float64)
    scale = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    return float((np.linalg.norm(a - b, axis=1) / np.maximum(scale, 1e-30)).max())
