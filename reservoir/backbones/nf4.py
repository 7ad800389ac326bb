"""Matrices of bitsandbytes in NF4 and FP4: four bits for each value, the number of one of the 16 values of a table.

A block of values is multiplied by the largest absolute value that it had. With "double quantisation" these maxima have
eight bits themselves: they are a value of a table of 256, times the largest one of a block of maxima, plus an offset.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from reservoir.backbones.stored import QuantisedMatrix

MAX_JSON = 4096  # bytes of the description of a matrix; bitsandbytes writes some 200
BLOCK_SIZES = tuple(2**power for power in range(5, 13))  # values of a block; bitsandbytes has 32 to 4,096
# The types that a matrix had, by their names in the JSON text.
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# The bytes with the values may be stored as numbers of another type: bytes of a number by its name in safetensors.
TYPE_BYTES = {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4}

# Values that are expanded at a time, a multiple of each block; the temporary tensors are as small as those of integers.
SLAB = 2**16


@dataclass(frozen=True)
class Description:
    """What the JSON text of a matrix says."""

    shape: tuple[int, int]  # outputs and inputs
    block_size: int  # values of a block
    dtype: torch.dtype  # of the matrix before it was quantised, to which bitsandbytes rounds values
    nested_block_size: int  # maxima of a block of maxima, if these have eight bits; otherwise not used
    offset: float  # which is added to such maxima

    @classmethod
    def read(cls, stored: Tensor) -> "Description":
        """Return the description in the bytes of a JSON text.

        Raises
        ------
        ValueError
            If it has values that bitsandbytes does not write.
        """
        values = json.loads(bytes(stored.tolist()))
        outputs, inputs = values["shape"]
        description = cls(
            shape=(outputs, inputs),
            block_size=values["blocksize"],
            dtype=TYPES[values["dtype"]],
            nested_block_size=values.get("nested_blocksize", BLOCK_SIZES[0]),
            offset=float(values.get("nested_offset", 0)),
        )
        # The type is compared, because JSON's true is an int for `isinstance`.
        if any(type(size) is not int or size < 1 for size in description.shape):
            raise ValueError(f"the shape {description.shape} is not that of a matrix")
        block_sizes = description.block_size, description.nested_block_size
        if any(size not in BLOCK_SIZES for size in block_sizes):
            raise ValueError(f"blocks have {block_sizes[0]} or {block_sizes[1]} values")
        return description


class _TableMatrix(QuantisedMatrix):
    """A matrix of values of a table of 16.

    | part | content |
    |---|---|
    | ``weight`` | two numbers of values in each byte, row by row, the first in the higher bits |
    | ``weight.quant_map`` | the table of 16 values |
    | ``weight.absmax`` | the maximum of each block, or with nested blocks its number in the nested table |
    | ``weight.nested_quant_map`` | the nested table, of 256 values |
    | ``weight.nested_absmax`` | the largest maximum of each nested block, that is, of each block of maxima |
    | ``weight.quant_state...`` | `Description`, as JSON |
    """

    marker_type = "U8"
    others = (
        ".weight",
        ".weight.absmax",
        ".weight.quant_map",
        ".weight.nested_absmax",
        ".weight.nested_quant_map",
    )

    @cached_property
    def description(self) -> Description:
        """What the JSON text of the matrix says."""
        if self.shape_of(self.marker, 1)[0] > MAX_JSON:
            raise self.misfit(self.marker)
        return Description.read(self.part(self.marker)[...])

    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs; raise `ValueError` if the shapes of the parts do not agree."""
        stored = self.part(".weight")
        number_bytes = TYPE_BYTES.get(stored.get_dtype(), 0)  # 0, for any other type, never fits
        stored_bytes = prod(stored.get_shape()) * number_bytes
        value_count = prod(self.description.shape)
        if stored_bytes != -(-value_count // 2):  # two values in a byte, rounded up
            raise self.misfit(".weight")
        # The lengths that all other parts must have; the last block may be smaller.
        block_count = -(-value_count // self.description.block_size)
        lengths = {".weight.quant_map": 16, ".weight.absmax": block_count}
        if self.has_nested_blocks():
            nested_block_count = -(-block_count // self.description.nested_block_size)
            lengths |= {".weight.nested_quant_map": 256, ".weight.nested_absmax": nested_block_count}
        for ending, length in lengths.items():
            if self.shape_of(ending, 1) != (length,):
                raise self.misfit(ending)
        return self.description.shape

    def has_nested_blocks(self) -> bool:
        """Return whether the maxima of blocks have eight bits, and are in blocks themselves."""
        return self.has(".weight.nested_absmax")

    def matrix(self) -> Tensor:
        """Return the matrix (outputs, inputs), float32, with values rounded to the type that the matrix had."""
        shape = self.shape()
        value_count = prod(shape)
        block_size = self.description.block_size
        stored = self.part(".weight")[...].contiguous().view(-1).view(torch.uint8)
        maxima = self.maxima()
        # For each of the 256 values of a byte, the two values of the table that it stands for.
        table = self.part(".weight.quant_map")[...].float()
        pairs = torch.stack([table.repeat_interleave(16), table.repeat(16)], dim=1)
        matrix = torch.empty(value_count)
        # Some whole blocks at a time, so that nothing but the matrix has a float32 for each of its values.
        for start in range(0, value_count, SLAB):
            stop = min(start + SLAB, value_count)
            # Both quotients of ``stop`` are rounded up, and what is too much is cut off: the last byte may have a
            # single value, and the last block fewer values. ``start`` is a multiple of 2 and of the block size.
            slab_bytes = stored[start // 2 : -(-stop // 2)]
            values = pairs[slab_bytes.int()].view(-1)[: stop - start]
            slab_maxima = maxima[start // block_size : -(-stop // block_size)]
            values *= slab_maxima.repeat_interleave(block_size)[: stop - start]
            matrix[start:stop] = values.to(self.description.dtype)
        return matrix.view(shape)

    def maxima(self) -> Tensor:
        """Return the largest absolute value of each block, (blocks,) float32."""
        stored = self.part(".weight.absmax")[...]
        if not self.has_nested_blocks():
            return stored.float()
        # The numbers of the nested table become values, are multiplied by the largest of their nested block, and moved.
        table = self.part(".weight.nested_quant_map")[...].float()
        nested_maxima = self.part(".weight.nested_absmax")[...].float()
        nested_block_size = self.description.nested_block_size
        of_each_block = nested_maxima.repeat_interleave(nested_block_size)[: len(stored)]
        return table[stored.int()] * of_each_block + self.description.offset


class NF4Matrix(_TableMatrix):
    """A matrix in NF4, whose table has quantiles of a normal distribution."""

    marker = ".weight.quant_state.bitsandbytes__nf4"


class FP4Matrix(_TableMatrix):
    """A matrix in FP4, whose table has the floating-point numbers of four bits."""

    marker = ".weight.quant_state.bitsandbytes__fp4"
