"""What extract is asked for, as it travels through its stage and to the processes that share its work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reservoir.option_fields import typed
from reservoir.options import FeatureOptions, PlaceOptions, ReservoirOptions, RowOptions
from reservoir.tasks import TASKS
from reservoir.tasks.own.media import has_sounds


@dataclass(frozen=True)
class Call:
    """A call of extract: which rows, through which reservoir, what of it is kept, and where."""

    task: str
    reservoir: ReservoirOptions
    source: RowOptions
    keep: FeatureOptions
    place: PlaceOptions

    def typed(self) -> str:
        """Return the line that a person types for it."""
        return typed("extract", [str(self.task)], self.reservoir, self.source, self.keep, self.place)


def heard(task: str, reservoir: ReservoirOptions, source: RowOptions) -> RowOptions:
    """Return the options of data, of sounds as the named backbone hears them."""
    if not reservoir.backbone or task in TASKS or not has_sounds(Path(task)):
        return source
    from reservoir.defaults import as_model_hears  # which imports torch

    return as_model_hears(source, reservoir)
