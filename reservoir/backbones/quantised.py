"""Quantised weights of model folders: which methods are read, and their tensors by the names that the model has.

Tensors are expanded one at a time, when they are indexed. FP8 and MXFP4 are expanded here, integers in
`reservoir.backbones.integers`, and the four bits of bitsandbytes in `reservoir.backbones.nf4`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reservoir.backbones.integers import (
    BITS,
    AWQMatrix,
    CompressedMatrix,
    CompressedPackedMatrix,
    GPTQMatrix,
    LLMInt8Matrix,
    gptq_format,
)
from reservoir.backbones.nf4 import FP4Matrix, NF4Matrix
from reservoir.backbones.stored import (
    ExpandedTensor,
    PlainTensor,
    QuantisedMatrix,
    StoredTensor,
    find_matrices,
)
from reservoir.errors import InputError

RULES = {
    "fp8": {"": "fp8 1"},
    "mxfp8": {"": "fp8 1"},
    "fbgemm_fp8": {"": "fp8 1"},
    "mxfp4": {"": "mxfp4 1"},
    "gptq": {"gptq": "gptq 1", "gptq_v2": "gptq_v2 1"},
    "awq": {"gemm": "awq 1"},
    "bitsandbytes": {"": "bitsandbytes 1"},
    "compressed-tensors": {
        "float-quantized": "fp8 1",
        "int-quantized": "integers 1",
        "pack-quantized": "integers 1",
    },
}
"""Name and version of the dequantisation by ``quant_method`` and format; they are part of a model's digest.

| rule | value of a weight |
|---|---|
| fp8 | a value of FP8 times the scale of its tensor, row or block |
| mxfp4 | a value of four bits times its block's power of two |
| gptq, gptq_v2, awq, integers | an integer minus a zero point, times the scale of its group |
| bitsandbytes | a value of a table times its block's maximum, or an integer times its row's maximum / 127 |
"""

MATRICES: dict[str, tuple[type[QuantisedMatrix], ...]] = {
    "gptq": (GPTQMatrix,),
    "awq": (AWQMatrix,),
    "bitsandbytes": (NF4Matrix, FP4Matrix, LLMInt8Matrix),
    "compressed-tensors": (CompressedPackedMatrix, CompressedMatrix),
}
"""The kinds of matrices of a method."""

TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt")
"""Types of models that have their matrices as (inputs, outputs); quantised ones are stored as (outputs, inputs)."""

PLAIN = ("F16", "BF16", "F32", "F64")
FP8 = ("F8_E4M3", "F8_E5M2")
SCALES = ("_scale_inv", "_scale")  # what follows the name of a tensor in the name of its scales
# Scales of activations and of the attention cache, which are not quantised here.
OTHER_SCALES = (".input_scale", ".output_scale", ".activation_scale", ".k_scale", ".v_scale", ".q_scale")

# The values of E2M1, four bits with a sign, two bits of exponent and one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def _formats_of(quantisation: Mapping[str, Any]) -> list[str]:
    """Return the formats in which a method stores matrices; "" if it has only one."""
    method = quantisation.get("quant_method")
    if method == "gptq":
        return ["marlin"] if quantisation.get("is_marlin_format") else [gptq_format(quantisation)]
    if method == "awq":
        layout = quantisation.get("version") or quantisation.get("format") or "gemm"
        return ["llm-awq"] if quantisation.get("backend") == "llm-awq" else [str(layout).lower()]
    if method == "compressed-tensors":
        layout = str(quantisation.get("format"))
        groups = (quantisation.get("config_groups") or {}).values()
        return [str(group.get("format")) for group in groups] if layout == "mixed-precision" else [layout]
    return [""]


def _obstacle(quantisation: Mapping[str, Any]) -> str | None:
    """Return what cannot be expanded; None if everything can."""
    method = str(quantisation.get("quant_method"))[:40]
    if method not in RULES:
        return f"the method {method!r}"
    unknown = [layout for layout in _formats_of(quantisation) if layout not in RULES[method]]
    if unknown:
        return f"{method} in the format {unknown[0][:40]!r}"
    # Weights that were rotated before they were rounded need the inverse rotation, or that of the activations.
    if quantisation.get("transform_config") or quantisation.get("rotation"):
        return f"{method} with transforms"
    bits = quantisation.get("bits", 4)
    if (method == "gptq" and bits not in BITS) or (method == "awq" and bits != 4):
        return f"{method} with {str(bits)[:40]} bits"
    return None


def quantisation_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the weights of a model are quantised, as its config.json says; empty if they are not."""
    settings = config.get("quantization_config")
    return settings if isinstance(settings, dict) else {}


def check_method(name: str, quantisation: Mapping[str, Any]) -> None:
    """Raise `InputError` unless weights that are quantised by this method can be expanded."""
    if obstacle := _obstacle(quantisation):
        raise InputError(
            f"backbone {name!r}: its weights are quantised by {obstacle}, which is not read here",
            "choose weights in GGUF, GPTQ, AWQ (gemm), bitsandbytes, compressed-tensors, FP8, MXFP4 or bfloat16, "
            "or save the model after model.dequantize()",
        )


def rule_of(quantisation: Mapping[str, Any]) -> str:
    """Return the names and versions of the dequantisation of weights that `check_method` has passed."""
    rules = RULES[quantisation["quant_method"]]
    return " and ".join(sorted({rules[layout] for layout in _formats_of(quantisation)}))


def expanded(
    tensors: Mapping[str, StoredTensor], quantisation: Mapping[str, Any], model_type: str = ""
) -> dict[str, StoredTensor]:
    """Return the tensors of a quantised model by the names that the model has for them."""
    kinds = MATRICES.get(str(quantisation.get("quant_method")), ())
    is_transposed = model_type in TRANSPOSED
    matrices: dict[str, QuantisedMatrix] = {}
    for kind in kinds:
        matrices |= find_matrices(kind, tensors, quantisation, is_transposed=is_transposed)
    parts = {name for matrix in matrices.values() for name in matrix.parts}
    others = {name: tensor for name, tensor in tensors.items() if name not in parts}
    expanded_floats = _expanded_floats(others, quantisation)
    if kinds and not matrices and not any(isinstance(t, ExpandedTensor) for t in expanded_floats.values()):
        raise ValueError(f"none of its weights is quantised by {quantisation['quant_method']}")
    return {**matrices, **expanded_floats}


def _expanded_floats(
    tensors: Mapping[str, StoredTensor], quantisation: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """Return tensors in FP8 and MXFP4, and those that are not quantised, by the names that the model has for them."""
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
        elif name.endswith(".weight") and tensor.get_dtype() not in PLAIN:
            raise ValueError(f"weight {name[:100]} is stored in {tensor.get_dtype()}, without scales")
        elif not is_scale and not (name.endswith("_scales") and _blocks_of(name) in tensors):
            result[name] = PlainTensor(name, tensor)
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


class _FP8Tensor(ExpandedTensor):
    """Values in FP8 with scales: one, one for each row, or one for each block of rows and columns."""

    def __init__(
        self,
        name: str,
        values: StoredTensor,
        scales_name: str,
        scales: StoredTensor,
        block: tuple[int, int] | None,
    ) -> None:
        super().__init__({name: values, scales_name: scales})
        self.stored, self.scales = values, scales
        self.scales_name, self.block = scales_name, block

    def values(self) -> Tensor:
        values, scales = self.stored[...].float(), self.scales[...]
        if scales.dtype == torch.uint8:  # E8M0, the exponent of a power of two with a bias of 127
            scales = torch.exp2(scales.float() - 127)
        return values * self._spread(scales.float(), values.shape)

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
        return list(self.stored.get_shape())


class _MXFP4Tensor(ExpandedTensor):
    """The matrices of all experts in MXFP4, as gpt-oss has them.

    ``blocks`` (experts, outputs, groups, 16) holds two values in each byte, the first in the lower bits, and
    ``scales`` (experts, outputs, groups) the exponents of a power of two for the 32 values of a group. The model
    multiplies by the transposed matrices (experts, inputs, outputs).
    """

    def __init__(self, name: str, blocks: StoredTensor, scales: StoredTensor) -> None:
        super().__init__({f"{name}_blocks": blocks, f"{name}_scales": scales})
        self.blocks, self.scales = blocks, scales
        shape = list(blocks.get_shape())
        if len(shape) != 4 or list(scales.get_shape()) != shape[:3]:
            raise ValueError(f"the blocks and scales of {name[:100]} do not belong together")

    def values(self) -> Tensor:
        blocks = self.blocks[...].to(torch.uint8)
        # E8M0: exponents are stored with a bias of 127.
        exponents = self.scales[...].to(torch.int32) - 127
        table = torch.tensor(E2M1)
        experts, outputs, groups, size = blocks.shape
        values = torch.empty(experts, groups * size * 2, outputs)
        # One expert at a time, because torch converts indices to int64, which takes eight bytes for each value.
        for number in range(experts):
            first = table[(blocks[number] & 15).int()]
            second = table[(blocks[number] >> 4).int()]
            # (outputs, groups, bytes, 2) becomes (outputs, groups, values), with both values of a byte side by side.
            pairs = torch.stack([first, second], dim=-1).reshape(outputs, groups, 2 * size)
            scaled = torch.ldexp(pairs, exponents[number][..., None])
            values[number] = scaled.reshape(outputs, -1).T
        return values

    def get_shape(self) -> list[int]:
        experts, outputs, groups, size = self.blocks.get_shape()
        return [experts, groups * size * 2, outputs]
