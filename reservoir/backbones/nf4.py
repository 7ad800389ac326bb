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
BLOCKS = tuple(2**power for power in range(5, 13))  # values of a block; bitsandbytes has 32 to 4,096
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# The bytes may be stored as numbers of another type.
TYPE_BYTES = {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4}

# Values that are expanded at a time, a multiple of each block; the temporary tensors are as small as those of integers.
SLAB = 2**16


@dataclass(frozen=True)
class Description:
    """What the JSON text of a matrix says."""

    shape: tuple[int, int]  # outputs and inputs
    block: int  # values of a block
    dtype: torch.dtype  # of the matrix before it was quantised, to which bitsandbytes rounds values
    nested_block: int  # maxima of a block of maxima, if these have eight bits
    offset: float  # of such maxima

    @classmethod
    def read(cls, stored: Tensor) -> "Description":
        """Return the description in the bytes of a JSON text; refuse values that bitsandbytes does not write."""
        values = json.loads(bytes(stored.tolist()))
        outputs, inputs = values["shape"]
        description = cls(
            shape=(outputs, inputs),
            block=values["blocksize"],
            dtype=TYPES[values["dtype"]],
            nested_block=values.get("nested_blocksize", BLOCKS[0]),
            offset=float(values.get("nested_offset", 0)),
        )
        if any(type(size) is not int or size < 1 for size in description.shape):
            raise ValueError(f"the shape {description.shape} is not that of a matrix")
        if description.block not in BLOCKS or description.nested_block not in BLOCKS:
            raise ValueError(f"blocks have {description.block} or {description.nested_block} values")
        return description


class _TableMatrix(QuantisedMatrix):
    """A matrix of values of a table of 16.

    | part | content |
    |---|---|
    | ``weight`` | two values in each byte, row by row, the first in the higher bits |
    | ``weight.quant_map`` | the table |
    | ``weight.absmax`` | the maximum of each block, or its number in a table |
    | ``weight.nested_quant_map``, ``weight.nested_absmax`` | that table, and the largest one of each block of maxima |
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
        """What the JSON text says."""
        if self.shape_of(self.marker, 1)[0] > MAX_JSON:
            raise self.misfit(self.marker)
        return Description.read(self.part(self.marker)[...])

    def shape(self) -> tuple[int, int]:
        stored = self.part(".weight")
        length = prod(stored.get_shape()) * TYPE_BYTES.get(stored.get_dtype(), 0)
        count = prod(self.description.shape)
        if length != -(-count // 2):
            raise self.misfit(".weight")
        blocks = -(-count // self.description.block)
        lengths = {".weight.quant_map": 16, ".weight.absmax": blocks}
        if self.has(".weight.nested_absmax"):
            nested_blocks = -(-blocks // self.description.nested_block)
            lengths |= {".weight.nested_quant_map": 256, ".weight.nested_absmax": nested_blocks}
        for ending, length in lengths.items():
            if self.shape_of(ending, 1) != (length,):
                raise self.misfit(ending)
        return self.description.shape

    def matrix(self) -> Tensor:
        shape = self.shape()
        count, block = prod(shape), self.description.block
        stored = self.part(".weight")[...].contiguous().view(-1).view(torch.uint8)
        maxima = self.maxima()
        # The two values of each byte, as a table of 256 pairs.
        table = self.part(".weight.quant_map")[...].float()
        pairs = torch.stack([table.repeat_interleave(16), table.repeat(16)], dim=1)
        matrix = torch.empty(count)
        # Some whole blocks at a time, so that nothing but the matrix has a float32 for each of its values.
        for start in range(0, count, SLAB):
            stop = min(start + SLAB, count)
            # The last byte may have a single value, and the last block fewer values.
            values = pairs[stored[start // 2 : -(-stop // 2)].int()].view(-1)[: stop - start]
            of_blocks = maxima[start // block : -(-stop // block)]
            values *= of_blocks.repeat_interleave(block)[: stop - start]
            matrix[start:stop] = values.to(self.description.dtype)
        return matrix.view(shape)

    def maxima(self) -> Tensor:
        """Return the largest absolute value of each block, float32."""
        stored = self.part(".weight.absmax")[...]
        if not self.has(".weight.nested_absmax"):
            return stored.float()
        table = self.part(".weight.nested_quant_map")[...].float()
        nested_maxima = self.part(".weight.nested_absmax")[...].float()
        spread = nested_maxima.repeat_interleave(self.description.nested_block)[: len(stored)]
        return table[stored.int()] * spread + self.description.offset


class NF4Matrix(_TableMatrix):
    """A matrix in NF4, whose table has quantiles of a normal distribution."""

    marker = ".weight.quant_state.bitsandbytes__nf4"


class FP4Matrix(_TableMatrix):
    """A matrix in FP4, whose table has the floating-point numbers of four bits."""

    marker = ".weight.quant_state.bitsandbytes__fp4"
