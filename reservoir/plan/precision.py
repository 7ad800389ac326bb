"""Where a model computes, and the precision of its products and of its features on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from reservoir.backbones.family import Family
from reservoir.options import ExtractOptions
from reservoir.plan.kinds import Kind
from reservoir.plan.reasons import reasons_of
from reservoir.pooling import find_pooling
from reservoir.reservoir import choose_compute, choose_device


@dataclass(frozen=True)
class Precision:
    """The device of a plan and its precisions."""

    device: torch.device
    compute: str  # precision of matrix products
    store: str  # precision on disk
    reasons: Mapping[str, str]


def choose_precision(
    options: ExtractOptions, family: Family, kind: Kind, poolings: Sequence[str], *, native: bool
) -> Precision:
    """Return device and precision; explicit options win."""
    device = choose_device(options.device)
    compute = choose_compute(options.compute, device) if family.allows_bfloat16 else "float32"
    by_kernels = kind in ("series", "symbols") and not native
    precise = by_kernels and any(find_pooling(name).needs_float32 for name in poolings)
    reasons = {
        "device": "a GPU is used if there is one",
        "compute": "the faster one here; recurrent states need float32",
        "store": "shares near 0 need float32" if precise else "half the size of float32",
    }
    store = options.store or ("float32" if precise else "float16")
    return Precision(device, compute, store, reasons_of(options, reasons))
