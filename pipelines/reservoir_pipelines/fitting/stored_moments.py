"""The moments of a column's training samples, which are stored in its entry and read again by later fits."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from reservoir_cache import load_arrays, save_arrays

from reservoir.readouts.linear import Targets
from reservoir.readouts.moments import Moments, fold_moments, training_moments
from reservoir_pipelines.fitting.entry_source import ColumnSource
from reservoir_pipelines.fitting.entry_view import KNOWN
from reservoir_pipelines.fitting.source import Source


def stored_moments(
    source: Source, targets: Targets, blocks: Iterable[Any], fold_of_sample: np.ndarray | None = None
) -> list[Moments] | None:
    """Return the moments of a column's training samples, or of each fold; None if they are not stored.

    Moments are stored in the column's entry. Those of folds need ``fold_of_sample`` (n, 1), the fold of
    each sample of train, then of valid.
    """
    if not isinstance(source, ColumnSource) or source.some:
        return None
    # With at most four samples per feature, the float64 moments would be larger than the float16 features.
    splits = ("train",) if fold_of_sample is None else KNOWN
    if sum(len(source.labels(split)) for split in splits) <= 4 * source.width():
        return None
    entry, weights = source.view.entry, targets.class_weights
    column = source.column.name.replace("/", "-")
    # The weights depend on the splits that were counted, so moments of other weights have other names.
    digest = hashlib.sha256(repr(weights).encode()).hexdigest()[:8]
    end = f"-weighted{digest}-{column}" if weights else f"-{column}"
    if fold_of_sample is None:
        folds, names = 0, [f"train{end}"]
    else:
        # The digest tells apart the folds of other rows and of other versions of scikit-learn, which draws them.
        folds = int(fold_of_sample.max()) + 1
        drawn = hashlib.sha256(fold_of_sample.astype("<i8").tobytes()).hexdigest()[:8]
        names = [f"fold{number}of{folds}-{drawn}{end}" for number in range(folds)]
    stored = [load_arrays(entry, name) for name in names]
    if all(stored):
        return [Moments.from_arrays(part[0]) for part in stored if part]
    moments = fold_moments(blocks, targets, folds) if folds else [training_moments(blocks, targets)]
    for name, part in zip(names, moments, strict=True):
        save_arrays(entry, name, part.to_arrays(), {"columns": [source.column.name]})
    return moments
