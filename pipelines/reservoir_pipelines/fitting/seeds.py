"""Fits over several seeds of a reservoir: how much of an accuracy is the luck of the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from reservoir_cache import Entry

from reservoir import InputError
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.fitting.fit import fit
from reservoir_pipelines.fitting.results import Fit


@dataclass(frozen=True, kw_only=True)
class SeedsFit:
    """The fits of seeds 0, 1, 2 ...

    Parameters
    ----------
    fits : tuple of Fit
        One per seed, each chosen by its own validation.
    """

    fits: tuple[Fit, ...]

    @property
    def mean(self) -> float:
        """Mean test accuracy."""
        return fmean(fit.best.test_accuracy or 0.0 for fit in self.fits)

    @property
    def deviation(self) -> float:
        """Standard deviation of the test accuracy over seeds; 0 for a single one."""
        return stdev(fit.best.test_accuracy or 0.0 for fit in self.fits) if len(self.fits) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values, with the fields of the most accurate seed on valid as ``best``."""
        best = max(self.fits, key=lambda fit: fit.best.valid_accuracy)
        return best.to_dict() | {
            "seeds": [fit.to_dict() for fit in self.fits],
            "test_mean": self.mean,
            "test_deviation": self.deviation,
        }


def fit_seeds(entries: Sequence[Entry], seeds: int, out: Path | None = None, **settings: Any) -> SeedsFit:
    """Extract an entry's task through reservoirs of seeds 0 to ``seeds - 1`` and fit each.

    Parameters
    ----------
    entries : sequence of Entry
        One entry: everything but the seed is taken from it.
    seeds : int
        How many.
    out : Path, optional
        Folder of the results, with one folder per seed.
    **settings
        Of `fit`.

    Raises
    ------
    InputError
        If several entries are given, or nothing about the entry depends on a seed.
    """
    if len(entries) != 1:
        raise InputError("--seeds: give one task or entry")
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: give at least 1")
    call = dict(entries[0].made_with["call"])
    root = entries[0].path.resolve().parents[2]
    fits = []
    for seed in range(seeds):
        done = extract(call["task"], cache=root, **{**call["settings"], "seed": seed})
        fits.append(fit(done, out=out / f"seed{seed}" if out else None, **settings))
    return SeedsFit(fits=tuple(fits))
