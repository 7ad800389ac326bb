"""A sample of features, by which a worker shows that it computes what the process that started it computes."""

from collections.abc import Mapping

import numpy as np

from reservoir.features import forward
from reservoir_pipelines.extraction.extractor import Extractor

PROBE_ROWS = 2  # rows that each worker of a cluster computes first
PROBE_VALUES = 4096  # most values of a column that are sent to each worker, evenly spaced
# Largest difference of a value, in standard deviations of its column without its largest and smallest hundredth.
# The same program in bfloat16 on AVX-512 and on AVX2 differed by up to 0.032 (in float32 by 0.011). Shares, which
# count values between limits, differed by more in 1.6% of the values of rows of 8 tokens.
PROBE_TOLERANCE = 0.1
PROBE_OUTLIERS = 0.05  # largest share of the values that may differ by more than that


def probe(extractor: Extractor) -> dict[str, np.ndarray]:
    """Return up to `PROBE_VALUES` values of each column over the first `PROBE_ROWS` rows."""
    split, index = next(iter(extractor.rows.items()))
    part = extractor.prepared.split(split).take(index[:PROBE_ROWS])
    values = forward(
        extractor.model,
        extractor.prepared.scaling,
        part.x,
        part.lengths,
        extractor.columns,
        len(part.lengths),
    )
    samples = {}
    for column, array in values.items():
        places = np.linspace(0, array.size - 1, min(array.size, PROBE_VALUES)).astype(np.int64)
        samples[column] = array.reshape(-1)[places]
    return samples


def different_column(expected: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> str:
    """Return the first column whose values differ by more than rounding; empty if there is none."""
    for column, reference in expected.items():
        # Single channels of some transformers are a thousand times larger than the others, hence the clipping.
        scale = np.clip(reference, *np.quantile(reference, [0.01, 0.99])).std()
        differs = np.abs(values[column] - reference) > PROBE_TOLERANCE * max(scale, 1e-6)
        if differs.mean() > PROBE_OUTLIERS:
            return column
    return ""
