"""The private functions of torch that this package uses, which another version of torch may change or remove.

``tests/reservoir/test_backbones.py`` compares each of them with public functions.
"""

import os
from pathlib import Path

import torch
from torch import Tensor


def gelu_of_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GELU (tanh approximation) of ``x @ weight.T + bias`` in one kernel of oneDNN, for bfloat16 on a CPU.

    torch's compiler uses this kernel. It raises AttributeError, RuntimeError or TypeError where torch or
    the processor does not have it.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")


def compiled_code_folder() -> Path:
    """Return the folder in which torch keeps compiled code, and from which it runs code."""
    # pyright knows no private names.
    from torch._inductor.runtime.runtime_utils import default_cache_dir  # pyright: ignore

    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())
