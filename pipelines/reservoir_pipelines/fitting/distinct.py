"""Test rows that repeat an input: intervals and p-values count each distinct input once, as they count groups."""

import hashlib

import numpy as np

from reservoir_pipelines.fitting.entry_source import IMAGE_ROWS, RAW_ROWS
from reservoir_pipelines.fitting.entry_view import EntryView, TestSplit
from reservoir_pipelines.output import notify

MIN_DISTINCT = 0.5  # share of distinct test rows from which repeats are too few to matter


def repeated_inputs(view: EntryView[TestSplit]) -> np.ndarray | None:
    """Return the number of the distinct input of each test row, (rows,); None if half of the rows are distinct."""
    if not view.has_raw:
        return None
    index, stored = view["test"].index, view.raw("test")
    step = IMAGE_ROWS if view.raw_task.pictures else RAW_ROWS
    numbers: dict[bytes, int] = {}
    inputs = []
    for start in range(0, len(index), step):
        rows = stored.take(index[start : start + step])
        for x, length in zip(rows.x, rows.lengths, strict=True):
            content = x.tobytes() + int(length).to_bytes(8, "little")
            digest = hashlib.blake2b(content, digest_size=16).digest()
            inputs.append(numbers.setdefault(digest, len(numbers)))
    if len(numbers) >= MIN_DISTINCT * len(inputs):
        return None
    notify(
        f"the {len(inputs):,} test rows hold {len(numbers):,} distinct inputs; intervals and p-values count each once"
    )
    return np.array(inputs)
