"""Test rows that repeat an input: intervals and p-values count each distinct input once, as they count groups."""

import hashlib

import numpy as np

from reservoir_pipelines.fitting.sources import RawSource
from reservoir_pipelines.output import notify

MIN_DISTINCT = 0.5  # share of distinct test rows from which repeats are too few to matter


def repeated_inputs(raw: RawSource) -> np.ndarray | None:
    """Return the number of the distinct input of each test row, (rows,); None if at least half of the rows are distinct."""
    numbers: dict[bytes, int] = {}
    units = []
    for x, lengths in raw.rows("test"):
        for row, length in zip(x, lengths, strict=True):
            content = row.tobytes() + int(length).to_bytes(8, "little")
            digest = hashlib.blake2b(content, digest_size=16).digest()
            units.append(numbers.setdefault(digest, len(numbers)))
    if len(numbers) >= MIN_DISTINCT * len(units):
        return None
    notify(
        f"the {len(units):,} test rows hold {len(numbers):,} distinct inputs; intervals and p-values count each input once"
    )
    return np.array(units)
