"""The one keyed generator: each random decision has numbers of its own, the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np


def random_key(*parts: object, size: int = 16) -> int:
    """Return a number of ``size`` bytes that depends on all parts, in their order, and on nothing else."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:size])


def generator(*parts: object) -> np.random.Generator:
    """Return the generator of one decision, keyed by its parts: a seed, say, and the name of what is drawn."""
    return np.random.Generator(np.random.Philox(key=random_key(*parts)))
