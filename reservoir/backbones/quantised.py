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

MATRICES_OF_METHOD: dict[str, tuple[type[QuantisedMatrix], ...]] = {
    "gptq": (GPTQMatrix,),
    "awq": (AWQMatrix,),
    "bitsandbytes": (NF4Matrix, FP4Matrix, LLMInt8Matrix),
    "compressed-tensors": (CompressedPackedMatrix, CompressedMatrix),
}
"""The kinds of matrices that a model may have, by ``quant_method``."""

TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt")
"""Types of models that have their matrices as (inputs, outputs); quantised ones are stored as (outputs, inputs)."""

# Names of types in safetensors.
PLAIN_TYPES = ("F16", "BF16", "F32", "F64")
FP8 = ("F8_E4M3", "F8_E5M2")

SCALES = ("_scale_inv", "_scale")  # what follows the name of a tensor in the name of its scales
# Scales of activations and of the attention cache, which are not quantised here.
OTHER_SCALES = (".input_scale", ".output_scale", ".activation_scale", ".k_scale", ".v_scale", ".q_scale")

# The values of E2M1, four bits with a sign, two bits of exponent and one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def _formats_of(quantisation: Mapping[str, Any]) -> list[str]:
    """Return the formats in which the matrices of a model are stored, as `RULES` names them.

    Methods that have only one format name it with an empty text.
    """
    method = quantisation.get("quant_method")
    if method == "gptq":
        is_marlin = quantisation.get("is_marlin_format")
        return ["marlin"] if is_marlin else [gptq_format(quantisation)]
    if method == "awq":
        if quantisation.get("backend") == "llm-awq":
            return ["llm-awq"]
        layout = quantisation.get("version") or quantisation.get("format") or "gemm"
        return [str(layout).lower()]
    if method == "compressed-tensors":
        layout = str(quantisation.get("format"))
        if layout == "mixed-precision":  # each group of matrices has its own
            return [str(group.get("format")) for group in _groups_of_matrices(quantisation)]
        return [layout]
    return [""]


def _groups_of_matrices(quantisation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return how each group of matrices is quantised by compressed-tensors; empty for other methods."""
    return list((quantisation.get("config_groups") or {}).values())


def _obstacle(quantisation: Mapping[str, Any]) -> str | None:
    """Return what cannot be expanded, in the words of the message; None if everything can."""
    # Texts are cut, because a file may have any value.
    method = str(quantisation.get("quant_method"))[:40]
    if method not in RULES:
        return f"the method {method!r}"
    unknown_formats = [layout for layout in _formats_of(quantisation) if layout not in RULES[method]]
    if unknown_formats:
        return f"{method} in the format {unknown_formats[0][:40]!r}"
    # Weights that were rotated before they were rounded need the inverse rotation, or that of the activations.
    if quantisation.get("transform_config") or quantisation.get("rotation"):
        return f"{method} with transforms"
    bits = quantisation.get("bits", 4)  # the default of both methods
    has_unknown_bits = (method == "gptq" and bits not in BITS) or (method == "awq" and bits != 4)
    if has_unknown_bits:
        return f"{method} with {str(bits)[:40]} bits"
    return None


def quantisation_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a config.json that say how the weights are quantised; empty if they are not."""
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
    """Return the names and versions of the dequantisation, such as "fp8 1"; `check_method` has passed the settings."""
    rule_by_format = RULES[quantisation["quant_method"]]
    rules = {rule_by_format[layout] for layout in _formats_of(quantisation)}
    return " and ".join(sorted(rules))


def expanded(
    tensors: Mapping[str, StoredTensor], quantisation: Mapping[str, Any], model_type: str = ""
) -> dict[str, StoredTensor]:
    """Return the tensors of a quantised model by the names that the model has for them; none is expanded yet.

    ``tensors`` are those of the files, by their names there, and ``quantisation`` is what `quantisation_of` returns.
    """
    kinds = MATRICES_OF_METHOD.get(str(quantisation.get("quant_method")), ())
    is_transposed = model_type in TRANSPOSED
    matrices: dict[str, QuantisedMatrix] = {}
    for kind in kinds:
        matrices |= find_matrices(kind, tensors, quantisation, is_transposed=is_transposed)
    names_of_parts = {name for matrix in matrices.values() for name in matrix.parts}
    others = {name: tensor for name, tensor in tensors.items() if name not in names_of_parts}
    floats = _expanded_floats(others, quantisation)
    # Without any quantised tensor, the settings are those of other files, or tensors have names that nobody expects.
    has_expanded = bool(matrices) or any(isinstance(tensor, ExpandedTensor) for tensor in floats.values())
    if kinds and not has_expanded:
        raise ValueError(f"none of its weights is quantised by {quantisation['quant_method']}")
    return {**matrices, **floats}


def _expanded_floats(
    tensors: Mapping[str, StoredTensor], quantisation: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """Return tensors in FP8 and MXFP4, and those that are not quantised, by the names that the model has for them."""
    block_size = _block_size(quantisation)
    result: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        mxfp4_name = name.removesuffix("_blocks")  # of the tensor in the model, if it is stored in MXFP4
        if tensor.get_dtype() in FP8:
            scales_name = next((name + ending for ending in SCALES if name + ending in tensors), None)
            if scales_name is None:
                raise ValueError(f"weight {name[:100]} is stored in FP8, without scales")
            result[name] = _FP8Tensor(name, tensor, scales_name, tensors[scales_name], block_size)
        elif name.endswith("_blocks") and f"{mxfp4_name}_scales" in tensors:
            result[mxfp4_name] = _MXFP4Tensor(mxfp4_name, tensor, tensors[f"{mxfp4_name}_scales"])
        elif name.endswith(".weight") and tensor.get_dtype() not in PLAIN_TYPES:
            raise ValueError(f"weight {name[:100]} is stored in {tensor.get_dtype()}, without scales")
        elif not _is_scale(name, tensors):
            result[name] = PlainTensor(name, tensor)
    return result


def _is_scale(name: str, tensors: Mapping[str, StoredTensor]) -> bool:
    """Return whether a tensor has scales: of another one in FP8 or MXFP4, or of activations, which are not read."""
    fp8_names = [name.removesuffix(ending) for ending in SCALES if name.endswith(ending)]
    is_fp8_scale = bool(fp8_names) and fp8_names[0] in tensors
    is_mxfp4_scale = name.endswith("_scales") and f"{name.removesuffix('_scales')}_blocks" in tensors
    return is_fp8_scale or is_mxfp4_scale or name.endswith(OTHER_SCALES)


def _block_size(quantisation: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the rows and columns of the blocks that have a scale each; None if the settings state none."""
    block = quantisation.get("weight_block_size") or _block_of_groups(quantisation)
    if isinstance(block, list) and len(block) == 2:
        rows, columns = block
        return max(1, int(rows)), max(1, int(columns))  # a damaged file may have 0
    return None


def _block_of_groups(quantisation: Mapping[str, Any]) -> Any:
    """Return the size of blocks that all groups of compressed-tensors have; None if they have none."""
    groups = _groups_of_matrices(quantisation)
    blocks = [(group.get("weights") or {}).get("block_structure") for group in groups]
    blocks = [block for block in blocks if block]
    if not blocks:
        return None
    # The same size has to hold for all matrices, because it is not known which of them belong to a group.
    if len(blocks) < len(groups) or any(block != blocks[0] for block in blocks):
        raise ValueError("its groups of weights have scales of several kinds")
    return blocks[0]


class _FP8Tensor(ExpandedTensor):
    """Values in FP8 with scales: one, one for each row, or one for each block of rows and columns.

    ``block_size`` has the rows and columns of a block; with None, the shape of the scales shows them.
    """

    def __init__(
        self,
        name: str,
        values: StoredTensor,
        scales_name: str,
        scales: StoredTensor,
        block_size: tuple[int, int] | None,
    ) -> None:
        super().__init__({name: values, scales_name: scales})
        self.stored = values
        self.scales = scales
        self.scales_name = scales_name
        self.block_size = block_size

    def values(self) -> Tensor:
        """Return all values times their scales, float32, in the shape of the stored values."""
        values = self.stored[...].float()
        scales = self.scales[...]
        if scales.dtype == torch.uint8:  # E8M0, the exponent of a power of two with a bias of 127
            scales = torch.exp2(scales.float() - 127)
        return values * self._spread(scales.float(), values.shape)

    def _spread(self, scales: Tensor, shape: torch.Size) -> Tensor:
        """Return scales that broadcast to values of a shape; raise `ValueError` if they do not fit it."""
        if scales.numel() == 1:
            return scales.reshape(())
        if scales.dim() == 1:  # one for each row
            scales = scales[:, None]
        if scales.dim() != len(shape) or scales.shape[:-2] != shape[:-2]:
            raise self._misfit(shape)
        for dimension, stated_size in zip((-2, -1), self.block_size or (None, None), strict=True):
            count = scales.shape[dimension]  # of blocks
            length = shape[dimension]  # of all blocks together
            # Without a size in the configuration, blocks divide the values evenly. No block is longer than the values.
            size = min(stated_size or max(1, length // count), length)
            if count != -(-length // size):  # rounded up, because the last block may be smaller
                raise self._misfit(shape)
            if count > 1:
                scales = scales.repeat_interleave(size, dimension).narrow(dimension, 0, length)
        return scales

    def _misfit(self, shape: torch.Size) -> ValueError:
        """Return the error for scales that do not fit values of a shape; the caller raises it."""
        scales_shape = tuple(self.scales.get_shape())
        return ValueError(
            f"{self.scales_name[:100]} has the shape {scales_shape}, which does not fit values of {tuple(shape)}"
        )

    def get_shape(self) -> list[int]:
        """Return the shape of the values, without computing them."""
        return list(self.stored.get_shape())


class _MXFP4Tensor(ExpandedTensor):
    """The matrices of all experts in MXFP4, as gpt-oss has them.

    ``blocks`` (experts, outputs, groups, 16) holds two values in each byte, the first in the lower bits, and
    ``scales`` (experts, outputs, groups) the exponents of a power of two for the 32 values of a group. The model
    multiplies by the transposed matrices (experts, inputs, outputs).
    """

    def __init__(self, name: str, blocks: StoredTensor, scales: StoredTensor) -> None:
        super().__init__({f"{name}_blocks": blocks, f"{name}_scales": scales})
        self.blocks = blocks
        self.scales = scales
        shape = list(blocks.get_shape())
        if len(shape) != 4 or list(scales.get_shape()) != shape[:3]:
            raise ValueError(f"the blocks and scales of {name[:100]} do not belong together")

    def values(self) -> Tensor:
        """Return all values (experts, inputs, outputs), float32."""
        blocks = self.blocks[...].to(torch.uint8)
        # E8M0: exponents are stored with a bias of 127.
        exponents = self.scales[...].to(torch.int32) - 127
        table = torch.tensor(E2M1)
        experts, outputs, groups, group_bytes = blocks.shape
        values = torch.empty(experts, groups * group_bytes * 2, outputs)
        # One expert at a time, because torch converts indices to int64, which takes eight bytes for each value.
        for number in range(experts):
            first = table[(blocks[number] & 15).int()]
            second = table[(blocks[number] >> 4).int()]
            # (outputs, groups, bytes, 2) becomes (outputs, groups, values), with both values of a byte side by side.
            of_groups = torch.stack([first, second], dim=-1).reshape(outputs, groups, 2 * group_bytes)
            # Each value is multiplied by two to the exponent of its group.
            scaled = torch.ldexp(of_groups, exponents[number][..., None])
            values[number] = scaled.reshape(outputs, -1).T
        return values

    def get_shape(self) -> list[int]:
        """Return the shape of the values, (experts, inputs, outputs), without computing them."""
        experts, outputs, groups, group_bytes = self.blocks.get_shape()
        return [experts, groups * group_bytes * 2, outputs]
