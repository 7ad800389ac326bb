"""The tensors of model folders, which are read when they are indexed; those in FP8 and MXFP4 are dequantised then.

A file is opened without reading it, so a tensor that nobody needs costs nothing. Quantised weights are expanded one
tensor at a time.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from reservoir.errors import InputError

WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
"""Files with weights: a single one, or its parts."""

RULES = {
    "fp8": "fp8 1",
    "mxfp8": "fp8 1",
    "fbgemm_fp8": "fp8 1",
    "compressed-tensors": "fp8 1",
    "mxfp4": "mxfp4 1",
}
"""Name and version of the dequantisation by ``quant_method`` of a configuration; they are part of a model's digest.

A value of FP8 is multiplied by the scale of its tensor, row or block; a value of MXFP4 by its block's power of two.
"""

PACKAGES = {
    "bitsandbytes": "bitsandbytes",
    "awq": "AWQ (gptqmodel)",
    "gptq": "GPTQ (gptqmodel)",
    "auto-round": "auto-round",
    "hqq": "hqq",
    "torchao": "torchao",
}
"""The package that expands the weights of other methods."""

FP8 = ("F8_E4M3", "F8_E5M2")
SCALES = ("_scale_inv", "_scale")  # what follows the name of a tensor in the name of its scales
# Scales of activations and of the attention cache, which are not quantised here.
OTHER_SCALES = (".input_scale", ".output_scale", ".activation_scale", ".k_scale", ".v_scale", ".q_scale")

# The values of E2M1, four bits with a sign, two bits of exponent and one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class StoredTensor(Protocol):
    """A tensor that is read when it is indexed, as a slice of safetensors is."""

    def __getitem__(self, index: Any) -> Tensor: ...

    def get_shape(self) -> list[int]:
        """Return the shape of what indexing returns."""
        ...

    def get_dtype(self) -> str:
        """Return the name of the type, such as ``BF16``."""
        ...


class Quantised(Protocol):
    """A stored tensor that is expanded when it is indexed."""

    def stored_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the parts as they are stored: name with type and shape, and bytes."""
        ...


def open_folder(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder, as they are stored.

    No other file and no index is read, since these may name further files.
    """
    from safetensors import safe_open

    single, parts = (sorted(folder.glob(pattern)) for pattern in WEIGHTS)
    if not single and not parts:
        raise ValueError(f"the folder has no {' or '.join(WEIGHTS)}")
    tensors: dict[str, StoredTensor] = {}
    for path in single or parts:
        file = safe_open(path, framework="pt")
        tensors |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    return tensors


def common_half(tensors: Iterable[StoredTensor]) -> torch.dtype:
    """Return the half precision in which all tensors are stored, else float32."""
    types = {tensor.get_dtype() for tensor in tensors}
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get("".join(types), torch.float32)


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite, without the copies that `torch.isfinite` makes of them."""
    # The smallest and the largest value are NaN if any value is.
    return values.numel() == 0 or all(bool(torch.isfinite(bound)) for bound in torch.aminmax(values))


def quantisation_of(folder: Path) -> dict[str, Any]:
    """Return how the weights of a folder are quantised, as its config.json says; empty if they are not."""
    settings = json.loads((folder / "config.json").read_text()).get("quantization_config")
    return settings if isinstance(settings, dict) else {}


def check_method(name: str, quantisation: Mapping[str, Any]) -> None:
    """Raise `InputError` unless weights that are quantised by this method can be expanded."""
    method = str(quantisation.get("quant_method"))
    is_compressed = method == "compressed-tensors"
    has_codes = is_compressed and quantisation.get("format") != "float-quantized"
    # Weights that were rotated before they were rounded need the inverse rotation, or that of the activations.
    is_transformed = is_compressed and bool(quantisation.get("transform_config"))
    if method in RULES and not has_codes and not is_transformed:
        return
    package = PACKAGES.get(method, f"the method {method[:40]!r}")
    if is_transformed:
        package += " with transforms"
    raise InputError(
        f"backbone {name!r}: its weights are quantised for {package}, which is not read here",
        "choose weights in GGUF, FP8, MXFP4 or bfloat16, or save the model after model.dequantize()",
    )


def expanded(
    tensors: Mapping[str, StoredTensor], quantisation: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """Return the tensors of a quantised model by the names that the model has for them."""
    block = quantisation.get("weight_block_size") or _block_of_groups(quantisation)
    sizes: tuple[int, int] | None = None
    if isinstance(block, list) and len(block) == 2:
        sizes = max(1, int(block[0])), max(1, int(block[1]))
    result: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        base = next((name.removesuffix(ending) for ending in SCALES if name.endswith(ending)), None)
        is_scale = base in tensors or name.endswith(OTHER_SCALES)
        packed = name.removesuffix("_blocks")
        if tensor.get_dtype() in FP8:
            scales = next((f"{name}{ending}" for ending in SCALES if f"{name}{ending}" in tensors), None)
            if scales is None:
                raise ValueError(f"weight {name[:100]} is stored in FP8, without scales")
            result[name] = _FP8Tensor(name, tensor, scales, tensors[scales], sizes)
        elif name.endswith("_blocks") and f"{packed}_scales" in tensors:
            result[packed] = _MXFP4Tensor(packed, tensor, tensors[f"{packed}_scales"])
        elif not is_scale and not (name.endswith("_scales") and _blocks_of(name) in tensors):
            result[name] = _PlainTensor(name, tensor)
    return result


def _block_of_groups(quantisation: Mapping[str, Any]) -> Any:
    """Return the size of blocks that the groups of compressed-tensors have; None if they have none."""
    groups = (quantisation.get("config_groups") or {}).values()
    blocks = [block for group in groups if (block := (group.get("weights") or {}).get("block_structure"))]
    if any(block != blocks[0] for block in blocks) or (blocks and len(blocks) < len(groups)):
        raise ValueError("its groups of weights have scales of several kinds")
    return blocks[0] if blocks else None


def _blocks_of(scales: str) -> str:
    return f"{scales.removesuffix('_scales')}_blocks"


def stored_digest(rule: str, tensors: Iterable[Quantised]) -> str:
    """Return the SHA-256 of a rule and of tensors as they are stored: names, types, shapes and bytes."""
    digest = hashlib.sha256(rule.encode())
    parts = sorted((part for tensor in tensors for part in tensor.stored_parts()), key=lambda part: part[0])
    for header, read in parts:
        digest.update(header.encode())
        digest.update(read())
    return digest.hexdigest()


def _bytes_of(name: str, tensor: StoredTensor) -> tuple[str, Any]:
    """Return the header of a slice of safetensors, and a function that reads its bytes."""

    def read() -> Any:
        return tensor[...].contiguous().view(-1).view(torch.uint8).numpy().data

    return f"{name} {tensor.get_dtype()} {tuple(tensor.get_shape())}", read


class _PlainTensor:
    """A tensor of a quantised model that is not quantised, such as a norm."""

    def __init__(self, name: str, tensor: StoredTensor) -> None:
        self.name, self.tensor = name, tensor

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor[index]

    def get_shape(self) -> list[int]:
        return list(self.tensor.get_shape())

    def get_dtype(self) -> str:
        return self.tensor.get_dtype()

    def stored_parts(self) -> Iterator[tuple[str, Any]]:
        yield _bytes_of(self.name, self.tensor)


class _FP8Tensor:
    """Values in FP8 with scales: one, one for each row, or one for each block of rows and columns."""

    def __init__(
        self,
        name: str,
        values: StoredTensor,
        scales_name: str,
        scales: StoredTensor,
        block: tuple[int, int] | None,
    ) -> None:
        self.name, self.values = name, values
        self.scales_name, self.scales = scales_name, scales
        self.block = block

    def __getitem__(self, index: Any) -> Tensor:
        values, scales = self.values[...].float(), self.scales[...]
        if scales.dtype == torch.uint8:  # E8M0, the exponent of a power of two
            scales = torch.exp2(scales.float() - 127)
        return (values * self._spread(scales.float(), values.shape))[index]

    def _spread(self, scales: Tensor, shape: torch.Size) -> Tensor:
        """Return scales that broadcast to values of a shape."""
        if scales.numel() == 1:
            return scales.reshape(())
        if scales.dim() == 1:  # one for each row
            scales = scales[:, None]
        fits = scales.dim() == len(shape) and scales.shape[:-2] == shape[:-2]
        for dimension, block_size in zip((-2, -1), self.block or (None, None), strict=True):
            if not fits:
                break
            # The last block may be smaller. Without a size in the configuration, blocks divide the values evenly.
            count, length = scales.shape[dimension], shape[dimension]
            size = min(block_size or max(1, length // count), length)
            fits = count == -(-length // size)
            if fits and count > 1:
                scales = scales.repeat_interleave(size, dimension).narrow(dimension, 0, length)
        if not fits:
            name, sizes = self.scales_name[:100], tuple(self.scales.get_shape())
            raise ValueError(f"{name} has the shape {sizes}, which does not fit values of {tuple(shape)}")
        return scales

    def get_shape(self) -> list[int]:
        return list(self.values.get_shape())

    def get_dtype(self) -> str:
        return "F32"

    def stored_parts(self) -> Iterator[tuple[str, Any]]:
        yield _bytes_of(self.name, self.values)
        yield _bytes_of(self.scales_name, self.scales)


class _MXFP4Tensor:
    """The matrices of all experts in MXFP4, as gpt-oss has them.

    ``blocks`` (experts, outputs, groups, 16) holds two values in each byte, the first in the lower bits, and
    ``scales`` (experts, outputs, groups) the exponents of a power of two for the 32 values of a group. The model
    multiplies by the transposed matrices (experts, inputs, outputs).
    """

    def __init__(self, name: str, blocks: StoredTensor, scales: StoredTensor) -> None:
        self.name, self.blocks, self.scales = name, blocks, scales
        shape = list(blocks.get_shape())
        if len(shape) != 4 or list(scales.get_shape()) != shape[:3]:
            raise ValueError(f"the blocks and scales of {name[:100]} do not belong together")

    def __getitem__(self, index: Any) -> Tensor:
        blocks, exponents = self.blocks[...].to(torch.uint8), self.scales[...].to(torch.int32) - 127
        table = torch.tensor(E2M1)
        experts, outputs, groups, size = blocks.shape
        values = torch.empty(experts, groups * size * 2, outputs)
        # Expert by expert, because indexing needs a number of eight bytes for each value.
        for number in range(experts):
            low, high = table[(blocks[number] & 15).int()], table[(blocks[number] >> 4).int()]
            pairs = torch.stack([low, high], dim=-1).reshape(outputs, groups, 2 * size)
            values[number] = torch.ldexp(pairs, exponents[number][..., None]).reshape(outputs, -1).T
        return values[index]

    def get_shape(self) -> list[int]:
        experts, outputs, groups, size = self.blocks.get_shape()
        return [experts, groups * size * 2, outputs]

    def get_dtype(self) -> str:
        return "F32"

    def stored_parts(self) -> Iterator[tuple[str, Any]]:
        yield _bytes_of(f"{self.name}_blocks", self.blocks)
        yield _bytes_of(f"{self.name}_scales", self.scales)
