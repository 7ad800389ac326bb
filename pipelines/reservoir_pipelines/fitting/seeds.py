"""Fits of reservoirs that differ only in their seed: how a score depends on the random weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from reservoir_cache import Entry, untracked

from reservoir.errors import InputError, as_input_error
from reservoir.option_fields import without_where
from reservoir.options import DeviceOptions, ExtractOptions, FitOptions
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.files import IMPORTED
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.fitting.pool import Pool
from reservoir_pipelines.fitting.results import Fit


@dataclass(frozen=True, kw_only=True)
class SeedsFit:
    """The fits of seeds 0, 1, 2 ..., each chosen by validation among the same columns."""

    fits: tuple[Fit, ...]

    @property
    def mean(self) -> float:
        """Mean test score."""
        return fmean(fit.best.test_score or 0.0 for fit in self.fits)

    @property
    def deviation(self) -> float:
        """Standard deviation of the test score over seeds; 0 for a single seed."""
        return stdev(fit.best.test_score or 0.0 for fit in self.fits) if len(self.fits) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return as JSON values the fields of the seed with the best validation score, and all seeds."""
        best = max(self.fits, key=lambda fit: fit.best.valid_score)
        return best.to_dict() | {
            "seeds": [fit.to_dict() for fit in self.fits],
            "test_mean": self.mean,
            "test_deviation": self.deviation,
        }


def fit_seeds(
    entries: Sequence[Entry],
    seeds: int,
    options: FitOptions = FitOptions(),
    place: DeviceOptions = DeviceOptions(),
    *,
    data: Path | None = None,
) -> SeedsFit:
    """Extract an entry's task with its options and seeds 0 to ``seeds - 1``, and fit the common columns."""
    if len(entries) != 1:
        raise InputError("--seeds: give exactly one task or entry")
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: give at least 1")
    entry = entries[0]
    problem = f"--seeds: {entry.path} does not record how it was extracted"
    with as_input_error(problem, "extract its task again"):
        task, settings = (entry.made_with["call"][name] for name in ("task", "settings"))
        settings = {name: value for name, value in settings.items() if name != "data"}
        extracted = ExtractOptions(**without_where(settings, str(entry.path)))
    if not isinstance(task, str) or entry.spec.init.kind == IMPORTED:
        raise InputError(problem, "extract its task again")
    root = entry.path.resolve().parents[2]
    with untracked():
        extractions = [
            extract(task, replace(extracted, cache=root, device=place.device, data=data, seed=seed))
            for seed in range(seeds)
        ]
    pools = [Pool.of(extraction) for extraction in extractions]
    first, *others = (pool.columns() for pool in pools)
    shared = tuple(column for column in first if all(column in columns for columns in others))
    fits = []
    for seed, pool in enumerate(pools):
        out = options.out / f"seed{seed}" if options.out else None
        fits.append(fit(replace(pool, only=shared), replace(options, out=out), place))
    return SeedsFit(fits=tuple(fits))
