"""Keyed random generators: each random decision has its own generator, the same on every machine."""

import hashlib
from functools import lru_cache

import numpy as np


def random_key(*parts: object, size: int = 16) -> int:
    """Return an integer of ``size`` bytes, at most 32, that depends only on the parts and their order."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:size])


def generator(*parts: object) -> np.random.Generator:
    """Return the generator of one decision, keyed by parts such as a seed and the name of the drawn tensor."""
    return np.random.Generator(np.random.Philox(key=random_key(*parts)))


@lru_cache(maxsize=4)  # a batch may span two epochs
def epoch_order(seed: int, epoch: int, rows: int, name: str = "order") -> np.ndarray:
    """Return the numbers from 0 to ``rows`` - 1 in the random order of an epoch; callers must not change the array.

    ``name`` says what is ordered, so that one seed gives other things other orders.
    """
    key = random_key(seed, name, epoch, size=8)
    return np.random.Generator(np.random.Philox(key=key)).permutation(rows)
