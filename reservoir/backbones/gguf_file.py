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

# The types of a value in the header. Those of numbers, with the format characters of `struct`:
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING = 8
ARRAY = 9

# The largest vocabularies need 1.3 million entries (tokens, their types and scores, and merges). transformers reads
# the header with about a kilobyte of memory for each.
MAX_ENTRIES = 2_000_000
MAX_TENSORS = 100_000  # a damaged header may claim any number
MAX_SHORT = 2_000  # entries of an array that a configuration may need, such as one for each block
MAX_DIMENSIONS = 4  # of a tensor in ggml
MAX_ALIGNMENT = 2**20  # bytes; files have 32

# The tensor with divisors of the frequencies of rotary positions, as in Llama 3.1, which transformers does not read.
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class TensorInfo:
    """Where the bytes of a tensor are, and how they are stored."""

    name: str  # in the file
    type_number: int  # of the type of its values in ggml
    shape: tuple[int, ...]  # of the values, in the order of torch
    start: int  # position of the first byte in the file
    size: int  # in bytes


@dataclass(frozen=True)
class GGUFFile:
    """The header of a GGUF file, and its bytes, which are read from disk when they are indexed."""

    data: mmap.mmap
    settings: Mapping[str, Any]  # by name; None for an array, which is not read
    tensors: Mapping[str, TensorInfo]  # by their names in the file

    def values(self, stored: TensorInfo) -> np.ndarray:
        """Return the float32 values of a tensor."""
        gguf = gguf_package()
        ggml_type = gguf.GGMLQuantizationType(stored.type_number)
        raw = np.frombuffer(self.stored_bytes(stored), np.uint8)
        # The package takes an array of bytes with the axes of the tensor, whose last one is longer or shorter.
        *leading_axes, _ = stored.shape
        return gguf.quants.dequantize(raw.reshape(*leading_axes, -1), ggml_type).reshape(stored.shape)

    def stored_bytes(self, stored: TensorInfo) -> memoryview:
        """Return the bytes of a tensor as they are stored."""
        return memoryview(self.data)[stored.start : stored.start + stored.size]


class GGUFTensor:
    """A tensor of a model, dequantised when it is indexed; several stored tensors may be its parts.

    Parameters
    ----------
    file : GGUFFile
        The file with the parts.
    name : str
        Name of the tensor in the model.
    shape : tuple of int
        Its shape in the model.
    parts : list of TensorInfo
        The stored tensors of which it is made; more than one for the matrices of experts.
    names : mapping of str to str
        The name in the model of each stored tensor of the file, by its name in the file.
    tensor_processor : TensorProcessor
        The object of transformers whose ``process`` turns values in the layout of ggml into that of the model.
    """

    def __init__(
        self,
        file: GGUFFile,
        name: str,
        shape: tuple[int, ...],
        parts: list[TensorInfo],
        names: Mapping[str, str],
        tensor_processor: Any,
    ) -> None:
        self.file = file
        self.name = name
        self.parts = parts
        self._shape = shape
        self._names = names
        self._tensor_processor = tensor_processor

    def __getitem__(self, index: Any) -> Tensor:
        """Return the values at ``index``, float32, dequantised and in the layout of transformers."""
        # ``process`` of transformers either returns the values of a part in its layout, with a name, or, for a part of
        # the matrices of experts, copies them into the tensor of the whole in ``joined`` and returns no name.
        joined: dict[str, dict[str, Any]] = {"tensors": {}}
        for part in self.parts:
            values, name, _ = self._tensor_processor.process(
                self.file.values(part), part.name, tensor_key_mapping=self._names, parsed_parameters=joined
            )
            is_whole = name is not None  # then it is the only part
            if is_whole:
                # Values that are stored as float32 share the read-only memory of the file: a writable array is a copy.
                return torch.from_numpy(np.require(values, requirements=("C", "W")))[index]
        return joined["tensors"][self.name][index]

    def get_shape(self) -> list[int]:
        """Return the shape of what indexing returns."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Return the name of the values' type, float32, as slices of safetensors name it."""
        return "F32"

    def stored_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the parts as they are stored: name with type and shape, and a function that reads the bytes."""
        for part in self.parts:
            yield f"{part.name} {part.type_number} {part.shape}", partial(self.file.stored_bytes, part)


@lru_cache
def gguf_package() -> ModuleType:
    """Return the package gguf, which is optional; raise `InputError` if it is not installed."""
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
    data = _mapped(path)
    try:
        settings, tensors = _Header(data).read()
    except struct.error as error:
        raise ValueError("the header is longer than the file") from error
    if settings.get("split.count", 1) > 1:
        raise ValueError("the model has several files; join them with llama-gguf-split --merge")
    return GGUFFile(data, settings, tensors)


def _mapped(path: Path) -> mmap.mmap:
    """Return the bytes of a file, which are read when they are indexed."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # 0: the whole file


def read_gguf_config(path: Path) -> Any:
    """Return the configuration in a GGUF file, as transformers reads it."""
    status = path.stat()
    # A copy, because the result of the cache must stay as it is, and callers may change theirs.
    return deepcopy(_read_config(path, status.st_size, status.st_mtime_ns))


# A command needs the configuration several times. The size and the time belong to the key of the cache, so that a file
# that has changed is read again.
@lru_cache(maxsize=4)
def _read_config(path: Path, _size: int, _modification_time: int) -> Any:
    """Return the configuration in a GGUF file of this size in bytes and modification time in nanoseconds."""
    from transformers import AutoConfig

    open_gguf(path)  # raises an error for counts and sizes that are wrong, which transformers would believe
    with TemporaryDirectory() as folder:
        _write_settings(path, Path(folder) / "settings.gguf")
        silence_transformers()
        config = AutoConfig.from_pretrained(Path(folder), gguf_file="settings.gguf")
    # Tensors are dequantised here, so transformers loads the model as one that is not quantised.
    vars(config).pop("quantization_config", None)
    return config


def _write_settings(path: Path, copy: Path) -> None:
    """Write a GGUF file with the settings of another, but without its vocabulary and the values of its tensors.

    transformers needs this much for a configuration, and would read a vocabulary of 50,000 tokens for seconds.
    """
    data = _mapped(path)
    header = _Header(data)
    settings, tensors = header.read()
    # Settings are copied as they are stored. The size of the vocabulary, which a file may show by its tokens alone, is
    # added as a setting: its name, the type (4, an unsigned integer of 32 bits) and the value.
    stored_settings = [data[start:stop] for start, stop in header.short_settings]
    size_name = f"{settings.get('general.architecture')}.vocab_size"
    if header.vocabulary_size is not None and size_name not in settings:
        stored_settings.append(_packed_text(size_name) + struct.pack("<II", 4, header.vocabulary_size))
    # transformers reads the names of tensors alone. So each tensor has one dimension of length 1 and the type 0
    # (float32), and all begin at the same place, 0.
    stored_tensors = [_packed_text(name) + struct.pack("<IQIQ", 1, 1, 0, 0) for name in tensors]
    # GGUF in version 3, the numbers of tensors and settings, the settings, and the tensors.
    counts = struct.pack("<IQQ", 3, len(stored_tensors), len(stored_settings))
    content = b"".join([b"GGUF", counts, *stored_settings, *stored_tensors])
    # Zeros up to a multiple of the alignment, and the 4 bytes of the float32.
    alignment = settings.get("general.alignment", 32)
    copy.write_bytes(content + bytes(-len(content) % alignment + 4))


def _packed_text(name: str) -> bytes:
    """Return a text as GGUF stores it: its length in bytes, then the bytes."""
    encoded = name.encode()
    return struct.pack("<Q", len(encoded)) + encoded


@dataclass(frozen=True)
class _StoredDescription:
    """What the header says about a tensor."""

    name: str
    shape: tuple[int, ...]  # in the order of torch
    type_number: int  # of the type of its values in ggml
    offset: int  # of its first byte from the start of all values


class _Header:
    """Reads the values of a header one after the other; each method moves ``position`` behind what it reads."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0  # of the next byte
        self.entries_read = 0  # settings, and items of their arrays
        # Positions of the first byte of each setting without a long array, and of the byte after its last.
        self.short_settings: list[tuple[int, int]] = []
        self.vocabulary_size: int | None = None  # None without a vocabulary

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        """Return the settings and the tensors by their names; a setting that is an array has the value None.

        Raise `ValueError` or `struct.error` for a header that is damaged.
        """
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not start with GGUF")
        self.position = 4
        version = self._read_number("I")
        if version not in (2, 3):
            raise ValueError(f"it has version {version}; versions 2 and 3 are read, in little-endian order")
        tensor_count = self._read_number("Q")
        setting_count = self._read_number("Q")
        if tensor_count > MAX_TENSORS:
            raise ValueError(f"it claims {tensor_count:,} tensors, more than {MAX_TENSORS:,}")
        settings: dict[str, Any] = {}
        for _ in range(setting_count):
            name, value = self._read_setting()
            settings[name] = value
        descriptions = [self._read_description() for _ in range(tensor_count)]
        # The values of all tensors follow the header, at the next multiple of the alignment, by default 32 bytes.
        alignment = settings.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT:
            raise ValueError(f"its alignment is {alignment}")
        values_start = -(-self.position // alignment) * alignment  # rounded up
        tensors = [self._tensor_info(description, values_start) for description in descriptions]
        tensor_by_name = {tensor.name: tensor for tensor in tensors}
        if len(tensor_by_name) < len(tensors):
            raise ValueError("two tensors have the same name")
        return settings, tensor_by_name

    def _read_setting(self) -> tuple[str, Any]:
        """Return the name and the value of a setting.

        Note where the setting stands, unless it is a long array, and, for the tokens, the size of the vocabulary.
        """
        start = self.position
        entries_before = self.entries_read
        name = self._read_text()
        value = self._read_value(self._read_number("I"))
        self._count_entries(1)
        # The entries of a setting are itself and the items of its array.
        entries_of_setting = self.entries_read - entries_before
        # `_write_settings` copies the short settings for transformers. A configuration needs no long array, such as the
        # tokens of the vocabulary, and transformers would read one for seconds.
        if entries_of_setting <= MAX_SHORT:
            self.short_settings.append((start, self.position))
        if name == "tokenizer.ggml.tokens":
            self.vocabulary_size = entries_of_setting - 1
        return name, value

    def _count_entries(self, entries: int) -> None:
        """Count settings or items of arrays, which transformers keeps in memory; refuse more than `MAX_ENTRIES`."""
        self.entries_read += entries
        if self.entries_read > MAX_ENTRIES:
            raise ValueError(f"its header has more than {MAX_ENTRIES:,} entries")

    def _read_number(self, form: str) -> Any:
        """Return a number; ``form`` is the format character of `struct` for its type."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.position)
        self.position += struct.calcsize(form)
        return value

    def _read_text(self) -> str:
        """Return a text, which is stored behind its length in bytes."""
        length = self._read_number("Q")
        if length > len(self.data) - self.position:
            raise ValueError("a name is longer than the file")
        text = self.data[self.position : self.position + length]
        self.position += length
        return text.decode("utf-8", errors="replace")

    def _read_value(self, type_number: int) -> Any:
        """Return a value of a type of the header; None for an array, which is checked and skipped."""
        if type_number == STRING:
            return self._read_text()
        if type_number == ARRAY:
            self._skip_array()
            return None
        return self._read_number(NUMBERS[type_number])

    def _skip_array(self) -> None:
        """Move behind an array of numbers or texts, and count its items.

        Raise `ValueError` for an array of arrays, and for one of more numbers than the file has.
        """
        item_type = self._read_number("I")
        length = self._read_number("Q")
        self._count_entries(length)
        if item_type in NUMBERS:
            self.position += length * struct.calcsize(NUMBERS[item_type])
            # The numbers are skipped all at once. In a file without tensors, nothing may be read after them, and only
            # this check shows that some are missing.
            if self.position > len(self.data):
                raise ValueError("an array is longer than the file")
        elif item_type == STRING:
            for _ in range(length):
                # The length of the text, in the 8 bytes in front of it. A text that is too long moves ``position``
                # behind the end of the file, where `struct` raises an error as soon as the next text, setting or
                # tensor is read. All models have tensors, so something is always read after a text.
                (text_bytes,) = struct.unpack_from("<Q", self.data, self.position)
                self.position += 8 + text_bytes
        else:
            raise ValueError("its header has an array of arrays")

    def _read_description(self) -> _StoredDescription:
        """Return what the header says about the next tensor."""
        name = self._read_text()
        dimensions = self._read_number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name[:60]!r} has {dimensions} dimensions")
        ggml_shape = [self._read_number("Q") for _ in range(dimensions)]
        type_number = self._read_number("I")
        offset = self._read_number("Q")
        # ggml names the dimension first along which values are adjacent, and torch last.
        return _StoredDescription(name, tuple(reversed(ggml_shape)), type_number, offset)

    def _tensor_info(self, description: _StoredDescription, values_start: int) -> TensorInfo:
        """Return where the values of a tensor are, which must lie inside the file.

        ``values_start`` is the position of the first byte of all values.
        """
        gguf = gguf_package()
        name = description.name
        shape = description.shape
        # The values of a block share a scale, so a tensor consists of whole blocks.
        ggml_type = gguf.GGMLQuantizationType(description.type_number)
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
        # Python's integers do not overflow, so a product of sizes that do not fit is larger than the file.
        size = prod(shape) // block_values * block_bytes
        start = values_start + description.offset
        has_part_of_block = shape[-1] % block_values != 0
        if has_part_of_block or start + size > len(self.data):
            raise ValueError(f"tensor {name[:60]!r} does not fit into the file")
        return TensorInfo(name, description.type_number, shape, start, size)


def tensors_by_name(file: GGUFFile, outline: nn.Module, config: Any, depth: int) -> dict[str, GGUFTensor]:
    """Return the tensors of a file, without those of blocks after the first ``depth``, by their names in a model.

    ``outline`` is the model of transformers or of this package, on the meta device. Tensors that it lacks keep their
    names in the file, apart from those of a head and of a decoder; `scale_positions` needs one of them.
    """
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    architecture = str(file.settings.get("general.architecture"))
    tensor_processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    names = _names_in_model(architecture, tensor_processor, outline, depth)
    # Several stored tensors, those of experts, may be parts of one tensor of the model.
    parts_by_name: dict[str, list[TensorInfo]] = {}
    for stored in file.tensors.values():
        name = _name_in_model(stored.name, names, depth)
        if name is not None:
            parts_by_name.setdefault(name, []).append(stored)
    shapes = {name: tuple(tensor.shape) for name, tensor in outline.state_dict().items()}
    tensors: dict[str, GGUFTensor] = {}
    for name, parts in parts_by_name.items():
        shape = shapes.get(name, parts[0].shape)  # that of the file for a tensor that the model lacks
        tensors[name] = GGUFTensor(file, name, shape, parts, names, tensor_processor)
    if ROPE_FACTORS in file.tensors:
        factors = file.tensors[ROPE_FACTORS]
        tensors[ROPE_FACTORS] = GGUFTensor(
            file, ROPE_FACTORS, factors.shape, [factors], names, tensor_processor
        )
    return tensors


def _name_in_model(stored_name: str, names: Mapping[str, str], depth: int) -> str | None:
    """Return the name in the model of a stored tensor; None for one that the caller leaves out.

    These are the tensors of blocks after the first ``depth``, and `ROPE_FACTORS`, which no model has. ``names`` has the
    name in the model by the name in the file, without ``.weight`` if the name in the model has no such ending.
    """
    # The matrices of experts have no ending in transformers, as in "experts.gate_up_proj", so ``names`` has
    # "blk.0.ffn_up_exps" for the tensor that the file calls "blk.0.ffn_up_exps.weight".
    name = names.get(stored_name) or names.get(stored_name.removesuffix(".weight"))
    if name is not None:
        return name
    block_match = re.match(r"(?:enc\.|dec\.)?blk\.(\d+)\.", stored_name)
    is_cut_off = block_match is not None and int(block_match[1]) >= depth
    if is_cut_off or stored_name == ROPE_FACTORS:
        return None
    # The model lacks this tensor. `load_pretrained` accepts it if it is of a head or of a decoder, which it recognises
    # by the names that transformers has for them, so these get such names. Any other tensor keeps its name in the file,
    # and is refused as an extra one, unless it is a bias of zeros.
    return re.sub("^output[.]", "lm_head.", re.sub("^dec[.]", "decoder.", stored_name))


def _names_in_model(
    architecture: str, tensor_processor: Any, outline: nn.Module, depth: int
) -> dict[str, str]:
    """Return the name of each tensor of a model by its name in the file."""
    gguf = gguf_package()
    architectures = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in architectures:
        raise ValueError(f"the package gguf has no tensor names for {architecture!r}")
    stored_names = gguf.get_tensor_name_map(architectures[architecture], depth)
    # The tables have the names of models with a head, such as ``model.layers.0`` for ``layers.0``.
    prefix = f"{getattr(outline, 'base_model_prefix', '')}."
    names: dict[str, str] = {}
    for name in map(tensor_processor.preprocess_name, outline.state_dict()):
        # The tables have paths of modules, without the ending that the names in both have.
        match = re.search(r"\.(weight|bias)$", name)
        ending = match[0] if match else ""
        path = name.removesuffix(ending)
        stored_path = stored_names.get_name(prefix + path) or stored_names.get_name(path)
        if stored_path is None:
            # transformers adds to ``names`` what the tables lack, such as the matrices of experts.
            tensor_processor.perform_fallback_tensor_mapping(names, ending, "", name)
        else:
            names[stored_path + ending] = name
    return names


def scale_positions(file: GGUFFile, config: Any, model: nn.Module) -> None:
    """Divide the frequencies of rotary positions by the factors of a file, in place, as llama.cpp does.

    Raises
    ------
    ValueError
        If the file scales positions in a way that transformers does not read from GGUF files.
    """
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    _check_scaling(file, rope_type)
    if ROPE_FACTORS not in file.tensors:
        return
    factors = torch.tensor(file.values(file.tensors[ROPE_FACTORS]))
    rotary = [module for module in model.modules() if isinstance(getattr(module, "inv_freq", None), Tensor)]
    # With another type, transformers scales the frequencies itself. Several modules may have frequencies of two kinds.
    if rope_type != "default" or len(rotary) != 1 or rotary[0].inv_freq.shape != factors.shape:
        raise ValueError(f"it scales rotary positions by {ROPE_FACTORS}, which does not fit this model")
    # Some models keep a second copy of the frequencies, to which they return after a long sequence.
    for name in ("inv_freq", "original_inv_freq"):
        if hasattr(rotary[0], name):
            setattr(rotary[0], name, getattr(rotary[0], name) / factors)


def _check_scaling(file: GGUFFile, rope_type: str) -> None:
    """Raise `ValueError` if a file scales rotary positions in a way that transformers does not read from it.

    ``rope_type`` is the scaling in the configuration that transformers read, ``default`` for none.
    """
    other_factors = sorted(name for name in file.tensors if name.startswith("rope_factors_"))
    if other_factors:
        raise ValueError(
            f"it scales rotary positions by {other_factors[0]}, which is not read from GGUF files"
        )
    architecture = file.settings.get("general.architecture")
    factor = file.settings.get(f"{architecture}.rope.scaling.factor")
    has_scaling = factor not in (None, 0, 1)  # 0 and 1 both stand for none
    if has_scaling and rope_type == "default":
        raise ValueError(f"it scales rotary positions by {factor}, which is not read from GGUF files")
