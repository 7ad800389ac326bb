"""The moments of a column's training samples, which are stored in its entry and read again by later fits."""

import hashlib
from collections.abc import Iterable
from typing import Any

from reservoir_cache import load_arrays, save_arrays

from reservoir.readouts.linear import Targets
from reservoir.readouts.ridge import Moments, fold_moments, training_moments
from reservoir_pipelines.fitting.source import KNOWN, ColumnSource, Source


def stored_moments(
    source: Source, targets: Targets, blocks: Iterable[Any], folds: int = 0
) -> list[Moments] | None:
    """Return the moments of a column's training samples or folds, stored in its entry; None if none are stored."""
    if not isinstance(source, ColumnSource) or source.some:
        return None
    # With at most four samples per feature, the float64 moments would be larger than the float16 features.
    if sum(len(source.labels(split)) for split in (KNOWN if folds else ("train",))) <= 4 * source.width():
        return None
    weights, column, entry = targets.class_weights, source.column.name.replace("/", "-"), source.view.entry
    # The weights depend on the splits that were counted, so moments of other weights have other names.
    digest = hashlib.sha256(repr(weights).encode()).hexdigest()[:8]
    end = f"-weighted{digest}-{column}" if weights else f"-{column}"
    names = [f"fold{k}of{folds}{end}" for k in range(folds)] or [f"train{end}"]
    stored = [load_arrays(entry, name) for name in names]
    if all(stored):
        return [Moments.from_arrays(part[0]) for part in stored if part]
    moments = fold_moments(blocks, targets, folds) if folds else [training_moments(blocks, targets)]
    for name, part in zip(names, moments, strict=True):
        save_arrays(entry, name, part.to_arrays(), {"columns": [source.column.name]})
    return moments
