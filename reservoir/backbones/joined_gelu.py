"""GELU of a bfloat16 matrix product in one kernel on a CPU: the only private function of torch that is used."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def gelu_of_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GELU (tanh approximation) of ``x @ weight + bias``, bfloat16 (..., outputs), without rounding the product.

    Computed separately, GELU takes longer than the product. torch's compiler emits this kernel for the two together.
    Call it only if `has_joined_kernel` returns True.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight.t(), bias, "gelu", [], "tanh")


@cache
def has_joined_kernel() -> bool:
    """Return whether this torch on this processor has the kernel of `gelu_of_product`, and it computes GELU."""
    if not torch.backends.mkldnn.is_available():
        return False
    x, weight = torch.linspace(-2, 2, 32).bfloat16()[None], torch.eye(32).bfloat16()
    try:
        found = gelu_of_product(x, weight, torch.zeros(32).bfloat16())
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, torch.nn.functional.gelu(x, approximate="tanh"), atol=0.02)
