"""Fits over several seeds of a reservoir: how much of an accuracy is the luck of the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from reservoir_cache import Entry

from reservoir import InputError
from reservoir.tasks.arrays import FUNCTION
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


def fit_seeds(
    entries: Sequence[Entry], seeds: int, out: Path | None = None, *, named: str = "", **settings: Any
) -> SeedsFit:
    """Extract an entry's task through reservoirs of seeds 0 to ``seeds - 1`` and fit each.

    Parameters
    ----------
    entries : sequence of Entry
        One entry: everything but the seed is taken from it.
    seeds : int
        How many.
    out : Path, optional
        Folder of the results, with one folder per seed.
    named : str, default ""
        What the user called the entry. A task ``module:function`` is imported only under that very name.
    **settings
        Of `fit`.

    Raises
    ------
    InputError
        If several entries are given, the entry does not tell how it was extracted, or its task is a function that the
        user did not name.
    """
    if len(entries) != 1:
        raise InputError("--seeds: give one task or entry")
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: give at least 1")
    call = _call(entries[0], named)
    root = entries[0].path.resolve().parents[2]
    fits = []
    for seed in range(seeds):
        done = extract(call["task"], cache=root, **{**call["settings"], "seed": seed})
        fits.append(fit(done, out=out / f"seed{seed}" if out else None, **settings))
    return SeedsFit(fits=tuple(fits))


def _call(entry: Entry, named: str) -> dict[str, Any]:
    """Return how an entry was extracted, unless its file alone names a function to import, or is none of ours."""
    task, settings = (dict(entry.made_with.get("call") or {}).get(part) for part in ("task", "settings"))
    known = signature(extract).parameters.keys() - {"task", "cache", "seed"}
    if not isinstance(task, str) or not isinstance(settings, dict) or not settings.keys() <= known:
        raise InputError(f"--seeds: {entry.path} does not tell how it was extracted; extract its task again")
    if FUNCTION.fullmatch(task) and task != named:
        raise InputError(
            f"--seeds: {entry.path} was extracted from the function {task!r}; a module is imported only where you name "
            f"it: run reservoir fit {task} --seeds ... if you trust it"
        )
    return {"task": task, "settings": settings}
