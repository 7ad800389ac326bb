"""GGUF files: a header whose sizes are checked, and tensors that are dequantised one at a time, when they are indexed.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The values of a block are computed by
the package gguf of the same project; names and orders of tensors follow the tables of gguf and transformers.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.family import silence_transformers
from reservoir.errors import as_input_error

RULE = "ggml 1"
"""Name and version of the dequantisation, part of a model's digest: values as ggml defines them, in float32."""

# Formats of the numbers in the header, as `struct` writes them, by the number of their type in GGUF; strings and arrays
# have types of their own.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# The largest vocabularies need 1.3 million entries (tokens, their types and scores, and merges). transformers reads
# the header with about a kilobyte of memory for each.
MAX_ENTRIES = 2_000_000
MAX_TENSORS = 100_000  # a damaged header may claim any number
MAX_SHORT = 2_000  # entries of an array that a configuration may need, such as one for each block
MAX_DIMENSIONS = 4  # of a tensor in ggml
MAX_ALIGNMENT = 2**20  # bytes; files have 32

# Maps of these models are scaled by frequency: the file has the factors as a tensor, which transformers does not read.
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class TensorInfo:
    """Where the bytes of a tensor are, and how they are stored."""

    name: str
    kind: int  # number of its type in ggml
    shape: tuple[int, ...]  # in the order of torch
    start: int
    size: int  # in bytes


@dataclass(frozen=True)
class GGUFFile:
    """The header of a GGUF file, and its bytes, which are read from disk when they are indexed."""

    data: mmap.mmap
    settings: Mapping[str, Any]  # those with a single value
    tensors: Mapping[str, TensorInfo]

    def values(self, stored: TensorInfo) -> np.ndarray:
        """Return the float32 values of a tensor."""
        gguf = gguf_package()
        kind = gguf.GGMLQuantizationType(stored.kind)
        raw = np.frombuffer(self.stored_bytes(stored), np.uint8)
        *rows, _ = stored.shape
        return gguf.quants.dequantize(raw.reshape(*rows, -1), kind).reshape(stored.shape)

    def stored_bytes(self, stored: TensorInfo) -> memoryview:
        """Return the bytes of a tensor as they are stored."""
        return memoryview(self.data)[stored.start : stored.start + stored.size]


class GGUFTensor:
    """A tensor of a model, dequantised when it is indexed; several stored tensors may be its parts."""

    def __init__(
        self,
        file: GGUFFile,
        name: str,
        shape: tuple[int, ...],
        parts: list[TensorInfo],
        names: Mapping[str, str],
        order: Any,
    ) -> None:
        self.file, self.name, self.parts = file, name, parts
        self._shape = shape
        self._names, self._tensor_processor = names, order

    def __getitem__(self, index: Any) -> Tensor:
        """Return the values at ``index``, float32, dequantised and in the layout of transformers."""
        # ``process`` turns the layout of ggml into that of transformers, and returns a tensor with its name. For a part
        # of a tensor with experts it returns the name None, and writes the part into ``parsed``.
        parsed: dict[str, dict[str, Any]] = {"tensors": {}}
        values: np.ndarray | None = None
        for part in self.parts:
            values, name, _ = self._tensor_processor.process(
                self.file.values(part), part.name, tensor_key_mapping=self._names, parsed_parameters=parsed
            )
            values = None if name is None else values
        if values is None:
            return parsed["tensors"][self.name][index]
        # A tensor that is stored as float32 would share the read-only memory of the file.
        return torch.from_numpy(np.require(values, requirements=("C", "W")))[index]

    def get_shape(self) -> list[int]:
        """Return the shape of what indexing returns."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Return the type of the values, as slices of safetensors do."""
        return "F32"

    def stored_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the parts as they are stored: name with type and shape, and a function that reads the bytes."""
        for part in self.parts:
            yield f"{part.name} {part.kind} {part.shape}", partial(self.file.stored_bytes, part)


@lru_cache
def gguf_package() -> ModuleType:
    """Return the package gguf."""
    with as_input_error("GGUF files need the package gguf", "run pip install 'reservoir-features[gguf]'"):
        import gguf
    return gguf


def open_gguf(path: Path) -> GGUFFile:
    """Return the header of a file, after checks that its counts and sizes fit into the file.

    Raises
    ------
    ValueError
        If the file is damaged, or if it is one of several parts.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = _Header(data)
    try:
        settings, tensors = header.read()
    except struct.error as error:
        raise ValueError("the header is longer than the file") from error
    if settings.get("split.count", 1) > 1:
        raise ValueError("the model has several files; join them with llama-gguf-split --merge")
    return GGUFFile(data, settings, tensors)


def read_gguf_config(path: Path) -> Any:
    """Return the configuration in a GGUF file, as transformers reads it."""
    status = path.stat()
    # A copy, because callers may change it.
    return deepcopy(_read_config(path, status.st_size, status.st_mtime_ns))


# A command needs the configuration several times.
@lru_cache(maxsize=4)
def _read_config(path: Path, _size: int, _changed: int) -> Any:
    """Return the configuration in a GGUF file of this size and time of change."""
    from transformers import AutoConfig

    open_gguf(path)  # checks the counts and sizes that transformers believes
    with TemporaryDirectory() as folder:
        _write_settings(path, Path(folder) / "settings.gguf")
        silence_transformers()
        config = AutoConfig.from_pretrained(Path(folder), gguf_file="settings.gguf")
    vars(config).pop("quantization_config", None)  # transformers expands the tensors of GGUF files
    return config


def _write_settings(path: Path, copy: Path) -> None:
    """Write a GGUF file with the settings of another, but without its vocabulary and the values of its tensors.

    transformers needs this much for a configuration, and would read a vocabulary of 50,000 tokens for seconds.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = _Header(data)
    settings, tensors = header.read()
    parts = [data[start:stop] for start, stop in header.short_settings]
    size_name = f"{settings.get('general.architecture')}.vocab_size"
    if header.vocabulary_size is not None and size_name not in settings:
        parts.append(_packed(size_name) + struct.pack("<II", 4, header.vocabulary_size))
    # Each tensor keeps its name alone: a single float32, the same for all.
    tensor = struct.pack("<IQIQ", 1, 1, 0, 0)
    counts = struct.pack("<IQQ", 3, len(tensors), len(parts))
    content = b"GGUF" + counts + b"".join(parts) + b"".join(_packed(name) + tensor for name in tensors)
    alignment = settings.get("general.alignment", 32)
    copy.write_bytes(content + bytes(-len(content) % alignment + 4))


def _packed(name: str) -> bytes:
    text = name.encode()
    return struct.pack("<Q", len(text)) + text


class _Header:
    """Reads the values of a header one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0
        self.entries_read = 0  # settings, and items of their arrays
        # The first byte of each setting without a long array, and the one after its last.
        self.short_settings: list[tuple[int, int]] = []
        self.vocabulary_size: int | None = None  # None without a vocabulary

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        """Return the settings and the tensors."""
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not start with GGUF")
        self.position = 4
        version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"it has version {version}; versions 2 and 3 are read, in little-endian order")
        tensor_count, setting_count = self.number("Q"), self.number("Q")
        if tensor_count > MAX_TENSORS:
            raise ValueError(f"it claims {tensor_count:,} tensors, more than {MAX_TENSORS:,}")
        settings: dict[str, Any] = {}
        for _ in range(setting_count):
            start = self.position
            entries_before = self.entries_read
            name = self.text()
            settings[name] = self.value(self.number("I"))
            self.count(1)
            # The entries of a setting are itself and the items of its array.
            entries_of_setting = self.entries_read - entries_before
            if entries_of_setting <= MAX_SHORT:
                self.short_settings.append((start, self.position))
            if name == "tokenizer.ggml.tokens":
                self.vocabulary_size = entries_of_setting - 1
        descriptions = [self.tensor() for _ in range(tensor_count)]
        # The values follow at the next multiple of the alignment.
        alignment = settings.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT:
            raise ValueError(f"its alignment is {alignment}")
        first = -(-self.position // alignment) * alignment
        tensors = [self.placed(first, *description) for description in descriptions]
        by_name = {tensor.name: tensor for tensor in tensors}
        if len(by_name) < len(tensors):
            raise ValueError("two tensors have the same name")
        return settings, by_name

    def count(self, entries: int) -> None:
        """Count settings or items of arrays, which transformers keeps in memory; refuse more than `MAX_ENTRIES`."""
        self.entries_read += entries
        if self.entries_read > MAX_ENTRIES:
            raise ValueError(f"its header has more than {MAX_ENTRIES:,} entries")

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.position)
        self.position += struct.calcsize(form)
        return value

    def text(self) -> str:
        length = self.number("Q")
        if length > len(self.data) - self.position:
            raise ValueError("a name is longer than the file")
        text = self.data[self.position : self.position + length]
        self.position += length
        return text.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """Return a value; None for an array, which is checked and skipped."""
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(NUMBERS[kind])
        of, length = self.number("I"), self.number("Q")
        self.count(length)
        if of in NUMBERS:
            self.position += length * struct.calcsize(NUMBERS[of])
            if self.position > len(self.data):
                raise ValueError("an array is longer than the file")
            return None
        if of != STRING:
            raise ValueError("its header has an array of arrays")
        for _ in range(length):
            self.position += 8 + struct.unpack_from("<Q", self.data, self.position)[0]
        return None

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return the name, shape, type and place of a tensor."""
        name, dimensions = self.text(), self.number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name[:60]!r} has {dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))[::-1]
        return name, shape, self.number("I"), self.number("Q")

    def placed(self, first: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        """Return a tensor whose values lie inside the file."""
        gguf = gguf_package()
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        # Python's integers do not overflow, so a product of sizes that do not fit is larger than the file.
        size = prod(shape) // block * block_bytes
        start = first + offset
        if shape[-1] % block or start + size > len(self.data):
            raise ValueError(f"tensor {name[:60]!r} does not fit into the file")
        return TensorInfo(name, kind, shape, start, size)


def tensors_by_name(file: GGUFFile, outline: nn.Module, config: Any, depth: int) -> dict[str, GGUFTensor]:
    """Return the tensors of a file, without those of blocks after the first ``depth``, by their names in a model.

    ``outline`` is the model of transformers or of this package, on the meta device. Tensors that it lacks keep their
    names in the file, apart from those of a head and of a decoder; `scale_positions` needs one of them.
    """
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    architecture = str(file.settings.get("general.architecture"))
    order = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    names = _names_in_model(architecture, order, outline, depth)
    parts: dict[str, list[TensorInfo]] = {}
    for stored in file.tensors.values():
        # The names of experts have no ending in transformers.
        in_model = names.get(stored.name) or names.get(stored.name.removesuffix(".weight"))
        number = re.match(r"(?:enc\.|dec\.)?blk\.(\d+)\.", stored.name)
        is_cut_off = number is not None and int(number[1]) >= depth
        if in_model is None and not is_cut_off and stored.name != ROPE_FACTORS:
            in_model = re.sub("^output[.]", "lm_head.", re.sub("^dec[.]", "decoder.", stored.name))
        if in_model is not None:
            parts.setdefault(in_model, []).append(stored)
    shapes = {name: tuple(tensor.shape) for name, tensor in outline.state_dict().items()}
    tensors = {
        name: GGUFTensor(file, name, shapes.get(name, stored[0].shape), stored, names, order)
        for name, stored in parts.items()
    }
    if ROPE_FACTORS in file.tensors:
        factors = file.tensors[ROPE_FACTORS]
        tensors[ROPE_FACTORS] = GGUFTensor(file, ROPE_FACTORS, factors.shape, [factors], names, order)
    return tensors


def _names_in_model(architecture: str, order: Any, outline: nn.Module, depth: int) -> dict[str, str]:
    """Return the name in the model by the name in the file."""
    gguf = gguf_package()
    number = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    if number is None:
        raise ValueError(f"the package gguf has no tensor names for {architecture!r}")
    table = gguf.get_tensor_name_map(number, depth)
    # The tables have the names of models with a head, such as ``model.layers.0`` for ``layers.0``.
    prefix = f"{getattr(outline, 'base_model_prefix', '')}."
    names: dict[str, str] = {}
    for name in map(order.preprocess_name, outline.state_dict()):
        ending = re.search(r"\.(weight|bias)$", name)
        suffix = ending[0] if ending else ""
        path = name.removesuffix(suffix)
        in_file = table.get_name(prefix + path) or table.get_name(path)
        if in_file is None:
            order.perform_fallback_tensor_mapping(names, suffix, "", name)
        else:
            names[in_file + suffix] = name
    return names


def scale_positions(file: GGUFFile, config: Any, model: nn.Module) -> None:
    """Divide the frequencies of rotary positions by the factors of a file, in place, as llama.cpp does.

    Raises
    ------
    ValueError
        If the file scales positions in a way that transformers does not read from GGUF files.
    """
    others = sorted(name for name in file.tensors if name.startswith("rope_factors_"))
    if others:
        raise ValueError(f"it scales rotary positions by {others[0]}, which is not read from GGUF files")
    architecture = file.settings.get("general.architecture")
    factor = file.settings.get(f"{architecture}.rope.scaling.factor")
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if factor not in (None, 0, 1) and rope_type == "default":
        raise ValueError(f"it scales rotary positions by {factor}, which is not read from GGUF files")
    if ROPE_FACTORS not in file.tensors:
        return
    factors = torch.tensor(file.values(file.tensors[ROPE_FACTORS]))
    rotary = [module for module in model.modules() if isinstance(getattr(module, "inv_freq", None), Tensor)]
    if rope_type != "default" or len(rotary) != 1 or rotary[0].inv_freq.shape != factors.shape:
        raise ValueError(f"it scales rotary positions by {ROPE_FACTORS}, which does not fit this model")
    for name in ("inv_freq", "original_inv_freq"):
        if hasattr(rotary[0], name):
            setattr(rotary[0], name, getattr(rotary[0], name) / factors)
