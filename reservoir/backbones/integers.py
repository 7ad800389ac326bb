r"""Matrices that are stored as small integers: those of GPTQ, AWQ, compressed-tensors and LLM.int8.

.. math::

    w_{oi} = (q_{io} - z_{g(i)o}) \, s_{g(i)o}

An input :math:`i` belongs to the group :math:`g(i)`, whose scale :math:`s` and zero point :math:`z` each output
:math:`o` has. Integers of 2, 4 or 8 bits are packed into words of 32 bits, the first in the lowest bits. The formats
differ in the dimension along which they are packed, in their order in a word, and in what a zero point means. The
products are exact in float32 if scales have half precision.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reservoir.backbones.stored import QuantisedMatrix

WORD = 32  # bits

BITS = (2, 4, 8)  # of an integer, so that none lies in two words

# The outputs of a word of AWQ, from the lowest bits upwards, which suits the instructions of a GPU.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

# Values that are expanded at a time; the temporary tensors of 256 KB stay in the cache of a processor.
SLAB = 2**16


def unpack(words: Tensor, bits: int, dimension: int, order: Sequence[int] | None = None) -> Tensor:
    """Return the integers of words as uint8, in the shape of the words but for a longer ``dimension``.

    Parameters
    ----------
    words : Tensor
        Words of 32 bits, each with 32 / ``bits`` integers that follow each other along ``dimension``.
    bits : int
        Bits of an integer.
    dimension : int
        The dimension along which the integers are packed, from 0.
    order : sequence of int, optional
        The positions of the integers of a word along the dimension, from the lowest bits upwards; by default 0, 1, ...
    """
    integers_of_word = WORD // bits
    shape = list(words.shape)
    shape[dimension] *= integers_of_word
    integers = torch.empty(shape, dtype=torch.uint8)
    # A view with an axis for the integers of a word, behind that of the words.
    by_word = integers.unflatten(dimension, (words.shape[dimension], integers_of_word))
    for number, position in enumerate(order or range(integers_of_word)):
        values = (words >> (number * bits)) & (2**bits - 1)
        by_word.select(dimension + 1, position).copy_(values)
    return integers


@dataclass(frozen=True)
class Integers:
    """The integers of a matrix, with the zero points and scales of its groups."""

    integers: Tensor  # (inputs, outputs)
    zeros: Tensor  # (groups, outputs)
    scales: Tensor  # (groups, outputs)
    groups: Tensor  # (inputs,), int64: the number of the group of each input

    def matrix(self) -> Tensor:
        """Return the matrix (outputs, inputs), float32."""
        inputs, outputs = self.integers.shape
        zeros = self.zeros.float()
        scales = self.scales.float()
        matrix = torch.empty(outputs, inputs)
        # The equation at the top of this file. Some outputs at a time, so that nothing but the matrix has a float32 for
        # each of its values.
        step = max(1, SLAB // inputs)
        for start in range(0, outputs, step):
            slab = slice(start, start + step)  # of outputs
            values = self.integers[:, slab].float()
            # Indexing by groups repeats the row of each group for its inputs: (inputs, outputs of the slab).
            values -= zeros[:, slab][self.groups]
            values *= scales[:, slab][self.groups]
            matrix[slab] = values.T
        return matrix


class IntegerMatrix(QuantisedMatrix):
    """A stored matrix of integers whose inputs have groups."""

    scales: str
    """Ending of the part with the scales."""

    indices = ""
    """Ending of the part with the group of each input; empty for a kind of matrix that never has this part."""

    @abstractmethod
    def integers(self) -> Integers:
        """Return the unpacked integers with their zero points and scales."""

    def matrix(self) -> Tensor:
        """Return the matrix (outputs, inputs), float32; raise `ValueError` if the parts do not agree."""
        self.shape()  # called for its checks
        return self.integers().matrix()

    def group_sizes(self) -> set[Any]:
        """Return the numbers of inputs that a group may have, as config.json says; None stands for no statement."""
        return {self.settings.get("group_size"), self.settings.get("q_group_size")}

    def check_groups(self, inputs: int, count: int) -> None:
        """Raise `ValueError` unless it is known which of ``count`` groups each input belongs to."""
        if self.has(self.indices):
            if self.shape_of(self.indices, 1) != (inputs,):
                raise self.misfit(self.indices)
            return
        if count == 1:  # all inputs belong to it
            return
        # Shapes do not show where groups begin if the last one is smaller, so the configuration has to agree.
        is_even = inputs % count == 0
        if not is_even or inputs // count not in self.group_sizes():
            raise self.misfit(self.scales)

    def groups(self, inputs: int, count: int) -> Tensor:
        """Return the number, from 0, of the group of each input, (inputs,) int64, where there are ``count`` groups."""
        if not self.has(self.indices):
            group_size = inputs // count  # the same for all, as `check_groups` has shown
            return torch.arange(inputs) // group_size
        groups = self.part(self.indices)[...].long()
        if int(groups.min()) < 0 or int(groups.max()) >= count:
            raise ValueError(f"{self.path[:100]}{self.indices} names groups that have no scale")
        return groups


def gptq_format(settings: Mapping[str, Any]) -> str:
    """Return the name of the layout of GPTQ in the settings of config.json."""
    return str(settings.get("checkpoint_format") or settings.get("format") or "gptq")


class GPTQMatrix(IntegerMatrix):
    """A matrix of GPTQ.

    | part | shape | a word holds the integers of |
    |---|---|---|
    | ``qweight`` | (inputs * bits / 32, outputs) | several inputs |
    | ``qzeros`` | (groups, outputs * bits / 32) | several outputs |
    | ``scales`` | (groups, outputs) | |
    | ``g_idx`` | (inputs,), the group of each | |
    """

    marker, marker_type = ".qweight", "I32"
    others = (".qzeros", ".scales", ".g_idx")
    scales, indices = ".scales", ".g_idx"

    def bits(self) -> int:
        """Return the bits of an integer, which the configuration may set for each matrix."""
        # A row of zero points has outputs * bits / 32 words, and the words of weights have a column for each output.
        _, zero_words = self.shape_of(".qzeros")
        _, outputs = self.shape_of(".qweight")
        bits, remainder = divmod(zero_words * WORD, outputs)
        if remainder or bits not in BITS:
            raise self.misfit(".qzeros")
        return bits

    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs; raise `ValueError` if the shapes of the parts do not agree."""
        words, outputs = self.shape_of(".qweight")
        group_count, _ = self.shape_of(".qzeros")
        if self.shape_of(".scales") != (group_count, outputs):
            raise self.misfit(".scales")
        inputs = words * WORD // self.bits()
        self.check_groups(inputs, group_count)
        return outputs, inputs

    def integers(self) -> Integers:
        """Return the unpacked integers, (inputs, outputs), with the zero points and scales of their groups."""
        bits = self.bits()
        integers = unpack(self.part(".qweight")[...], bits, dimension=0)  # (inputs, outputs)
        scales = self.part(".scales")[...]  # (groups, outputs)
        zero_words = self.part(".qzeros")[...]
        if gptq_format(self.settings) == "gptq":
            # Zero points are stored minus one. GPTQModel subtracts the ones from whole words, so that a zero point of
            # 0 borrows from its neighbour; adding them to whole words restores both.
            word_of_ones = sum(1 << lowest_bit for lowest_bit in range(0, WORD, bits))
            # In int64, because the sum may not fit into 32 bits.
            zero_words = zero_words.long() + word_of_ones
        zeros = unpack(zero_words, bits, dimension=1)
        return Integers(integers, zeros, scales, self.groups(len(integers), len(scales)))


class AWQMatrix(IntegerMatrix):
    """A matrix of AWQ in the layout "gemm".

    | part | shape | a word holds the integers of |
    |---|---|---|
    | ``qweight`` | (inputs, outputs / 8) | eight outputs, in the order `AWQ_ORDER` |
    | ``qzeros`` | (groups, outputs / 8) | the same |
    | ``scales`` | (groups, outputs) | |
    """

    marker, marker_type = ".qweight", "I32"
    others = (".qzeros", ".scales")
    scales = ".scales"

    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs; raise `ValueError` if the shapes of the parts do not agree."""
        inputs, words = self.shape_of(".qweight")
        group_count, outputs = self.shape_of(".scales")
        if outputs != words * len(AWQ_ORDER):
            raise self.misfit(".scales")
        if self.shape_of(".qzeros") != (group_count, words):
            raise self.misfit(".qzeros")
        self.check_groups(inputs, group_count)
        return outputs, inputs

    def integers(self) -> Integers:
        """Return the unpacked integers, (inputs, outputs), with the zero points and scales of their groups."""
        integers = self.unpacked(".qweight")  # (inputs, outputs)
        zeros = self.unpacked(".qzeros")  # (groups, outputs)
        scales = self.part(".scales")[...]  # (groups, outputs)
        return Integers(integers, zeros, scales, self.groups(len(integers), len(scales)))

    def unpacked(self, ending: str) -> Tensor:
        """Return the integers of a part, which have four bits."""
        return unpack(self.part(ending)[...], bits=4, dimension=1, order=AWQ_ORDER)


class CompressedMatrix(IntegerMatrix):
    """A matrix of compressed-tensors in the format int-quantized.

    ``weight`` (outputs, inputs) has integers of 8 bits; ``weight_scale`` and, if they are not 0, ``weight_zero_point``
    have the shape (outputs, groups), (outputs, 1) or (1,).
    """

    marker, marker_type = ".weight", "I8"
    others = (".weight_scale", ".weight_zero_point")
    scales = ".weight_scale"

    def group_sizes(self) -> set[Any]:
        """Return the numbers of inputs that a group may have, as config.json says; None stands for no statement."""
        # It is not known which matrices belong to a group of the configuration, so all sizes are possible.
        groups_of_matrices = (self.settings.get("config_groups") or {}).values()
        return {(group.get("weights") or {}).get("group_size") for group in groups_of_matrices}

    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs; raise `ValueError` if the shapes of the parts do not agree."""
        outputs, inputs = self.shape_of(".weight")
        self.check_groups(inputs, self.count_of_groups(outputs))
        return outputs, inputs

    def count_of_groups(self, outputs: int) -> int:
        """Return the number of groups of inputs, which the scales show; raise `ValueError` if their shape is wrong."""
        shape = tuple(self.part(".weight_scale").get_shape())
        has_single_scale = shape in ((), (1,))
        if has_single_scale:
            return 1
        if len(shape) != 2 or shape[0] != outputs or shape[1] < 1:
            raise self.misfit(".weight_scale")
        return shape[1]

    def integers(self) -> Integers:
        """Return the integers, transposed from (outputs, inputs), with a zero point and a scale for each output."""
        integers = self.part(".weight")[...].T  # (inputs, outputs)
        inputs, outputs = integers.shape
        scales = self.expanded_to_outputs(".weight_scale", outputs)  # (groups, outputs)
        # Without stored zero points, all are 0.
        if self.has(".weight_zero_point"):
            zeros = self.expanded_to_outputs(".weight_zero_point", outputs)
            if zeros.shape != scales.shape:
                raise self.misfit(".weight_zero_point")
        else:
            zeros = torch.zeros(1, 1).expand(scales.shape)
        return Integers(integers, zeros, scales, self.groups(inputs, len(scales)))

    def expanded_to_outputs(self, ending: str, outputs: int) -> Tensor:
        """Return a part as (groups, outputs); it is stored as (outputs, groups), or as a single value for all."""
        values = self.part(ending)[...]
        if values.dim() == 2:
            return values.T
        return values.reshape(1, 1).expand(1, outputs)  # one group


class CompressedPackedMatrix(CompressedMatrix):
    """A matrix of compressed-tensors in the format pack-quantized.

    | part | shape | a word holds the integers of |
    |---|---|---|
    | ``weight_packed`` | (outputs, inputs * bits / 32) | several inputs |
    | ``weight_shape`` | (2,), outputs and inputs | |
    | ``weight_scale`` | (outputs, groups), (outputs, 1) or (1,) | |
    | ``weight_zero_point`` | (outputs * bits / 32, groups), if there are any | several outputs |
    | ``weight_g_idx`` | (inputs,), the group of each, if groups do not follow each other | |

    Integers with a sign are stored with an offset of half their range. Words at the end may have unused bits.
    """

    marker, marker_type = ".weight_packed", "I32"
    others = (".weight_shape", ".weight_scale", ".weight_zero_point", ".weight_g_idx")
    indices = ".weight_g_idx"

    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs; raise `ValueError` if the shapes of the parts do not agree."""
        outputs, _ = self.shape_of(".weight_packed")
        if self.shape_of(".weight_shape", 1) != (2,):
            raise self.misfit(".weight_shape")
        # The number of inputs is stored, because words at the end may have unused bits.
        stored_outputs, inputs = self.part(".weight_shape")[...].tolist()
        if stored_outputs != outputs or inputs < 1:
            raise ValueError(f"{self.path[:100]}.weight_shape says {stored_outputs} x {inputs}")
        # Both raise an error if the shapes of the parts do not fit together.
        self.bits(inputs)
        self.check_groups(inputs, self.count_of_groups(outputs))
        return outputs, inputs

    def bits(self, inputs: int) -> int:
        """Return the bits of an integer; raise `ValueError` if the number of words does not show them."""
        # The shape is read, because config.json has the bits for groups of matrices, and not which matrices these are.
        _, words = self.shape_of(".weight_packed")
        possible_bits = [bits for bits in BITS if -(-inputs * bits // WORD) == words]  # rounded up
        if len(possible_bits) != 1:
            raise self.misfit(".weight_packed")
        return possible_bits[0]

    def integers(self) -> Integers:
        """Return the unpacked integers, transposed from (outputs, inputs), with zero points and scales."""
        outputs, inputs = self.shape()
        bits = self.bits(inputs)
        # Words hold several inputs, and the bits after the last input are unused.
        unpacked = unpack(self.part(".weight_packed")[...], bits, dimension=1)
        integers = unpacked[:, :inputs].T  # (inputs, outputs)
        scales = self.expanded_to_outputs(".weight_scale", outputs)  # (groups, outputs)
        # Zero points have the offset of the integers, and their words hold several outputs, with unused bits after the
        # last. Without stored zero points, the offset of half the range stands for 0.
        if self.has(".weight_zero_point"):
            words, group_count = self.shape_of(".weight_zero_point")
            if group_count != len(scales) or words != -(-outputs * bits // WORD):  # rounded up
                raise self.misfit(".weight_zero_point")
            unpacked_zeros = unpack(self.part(".weight_zero_point")[...], bits, dimension=0)
            zeros = unpacked_zeros[:outputs].T  # (groups, outputs)
        else:
            zeros = torch.full((1, 1), 2 ** (bits - 1)).expand(scales.shape)
        return Integers(integers, zeros, scales, self.groups(inputs, len(scales)))


class LLMInt8Matrix(IntegerMatrix):
    """A matrix of bitsandbytes' LLM.int8, whose ``SCB`` (outputs,) has the largest absolute value of each output."""

    marker, marker_type = ".weight", "I8"
    others = (".SCB", ".weight_format")
    scales = ".SCB"

    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs; raise `ValueError` if the shapes of the parts do not agree."""
        outputs, inputs = self.shape_of(".weight")
        if self.shape_of(".SCB", 1) != (outputs,):
            raise self.misfit(".SCB")
        return outputs, inputs

    def matrix(self) -> Tensor:
        """Return the matrix (outputs, inputs), float32; raise `ValueError` if its values are ordered for a GPU."""
        # 0 is the format whose values are row by row.
        if self.has(".weight_format") and int(self.part(".weight_format")[...]) != 0:
            raise ValueError(f"weight {self.path[:100]} is ordered for a GPU")
        # The largest absolute value of an output is stored as 127. The product with it comes first, as in bitsandbytes.
        return super().matrix().mul_(1 / 127)

    def integers(self) -> Integers:
        """Return the integers, transposed from (outputs, inputs), with one group of all inputs and zero points of 0."""
        integers = self.part(".weight")[...].T  # (inputs, outputs)
        scales = self.part(".SCB")[...][None]  # (1, outputs)
        zeros = torch.zeros(1, 1).expand(scales.shape)
        return Integers(integers, zeros, scales, self.groups(len(integers), 1))
