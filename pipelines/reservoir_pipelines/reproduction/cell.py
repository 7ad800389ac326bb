"""Cells: one stage on one task with settings. What is the same work has the same key, in whatever table it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

from reservoir import options
from reservoir.option_fields import Options
from reservoir_pipelines.files import json_digest
from reservoir_pipelines.reproduction_folder import CELL

G = TypeVar("G", bound=Options)

STAGES: dict[str, tuple[type[Options], ...]] = {
    "fit": (options.ExtractOptions, options.FitOptions),
    "train": (options.ReservoirOptions, options.RowOptions, options.TrainOptions),
    "attention": (options.ReservoirOptions, options.TaskOptions, options.AttentionOptions),
    "pretrain": (options.CorpusOptions, options.ShapeOptions, options.PretrainOptions),
    "backbone": (options.ModelOptions,),
}
"""The options of a cell by its stage; ``fit`` extracts what it needs first."""

OPTIONS = {stage: {item.name for kind in kinds for item in fields(kind)} for stage, kinds in STAGES.items()}
ALL_OPTIONS = set[str]().union(*OPTIONS.values())


@dataclass(frozen=True)
class Cell:
    """A stage on a task with settings; a setting that is a cell stands for the folder that it leaves."""

    stage: str
    task: str | None
    settings: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that the cell is, 16 digits."""
        return json_digest(self.to_dict())[:16]

    @property
    def seed(self) -> int:
        """The seed; 0 where none is named."""
        return int(self.settings.get("seed", 0))

    @property
    def needs(self) -> list[Cell]:
        """The cells whose folders this one reads."""
        return [value for value in self.settings.values() if isinstance(value, Cell)]

    def to_dict(self) -> dict[str, Any]:
        """Return what names the cell, other cells by their key."""
        named = {n: f"{CELL}{v.key}" if isinstance(v, Cell) else v for n, v in self.settings.items()}
        return {"stage": self.stage, "task": self.task, "settings": named}

    def resolved(self, folders: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings, each cell among them as its folder."""
        return {n: folders[v.key] if isinstance(v, Cell) else v for n, v in self.settings.items()}


def group(kind: type[G], settings: Mapping[str, Any]) -> G:
    """Return those of some settings that a group of options has."""
    return kind(**{item.name: settings[item.name] for item in fields(kind) if item.name in settings})


def groups(stage: str, settings: Mapping[str, Any]) -> list[Options]:
    """Return settings as the groups of options that a stage takes, with where everything is."""
    return [group(kind, settings) for kind in (*STAGES[stage], options.PlaceOptions)]
