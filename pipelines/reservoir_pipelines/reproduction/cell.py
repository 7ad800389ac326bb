"""Cells: one stage on one task with settings. Equal work has an equal key, in whatever table it stands."""

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
"""The options of a cell, by its stage; ``fit`` extracts first."""

OPTIONS = {stage: {item.name for kind in kinds for item in fields(kind)} for stage, kinds in STAGES.items()}
ALL_OPTIONS = set[str]().union(*OPTIONS.values())


@dataclass(frozen=True)
class Cell:
    """A stage on a task with settings; a setting that is a cell stands for the folder that this cell writes."""

    stage: str
    task: str | None
    settings: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """First 16 digits of the SHA-256 of stage, task and settings."""
        return json_digest(self.to_dict())[:16]

    @property
    def seed(self) -> int:
        """The seed; 0 by default."""
        return int(self.settings.get("seed", 0))

    @property
    def needs(self) -> list[Cell]:
        """The cells whose folders this one reads."""
        return [value for value in self.settings.values() if isinstance(value, Cell)]

    @property
    def title(self) -> str:
        """A short name for messages."""
        backbone, depth = self.settings.get("backbone", ""), self.settings.get("depth")
        words = [
            self.stage,
            self.task or self.settings.get("corpus", ""),
            "a backbone of this reproduction" if isinstance(backbone, Cell) else backbone,
            f"depth {depth}" if depth else "",
            *(self.settings.get(name, "") for name in ("init", "train", "readout", "columns")),
            f"seed {self.seed}",
        ]
        return " ".join(word for word in words if word)

    def to_dict(self) -> dict[str, Any]:
        """Return stage, task and settings as JSON values, other cells by their keys."""
        settings = {n: f"{CELL}{v.key}" if isinstance(v, Cell) else v for n, v in self.settings.items()}
        return {"stage": self.stage, "task": self.task, "settings": settings}

    def resolved(self, folders: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings, each cell among them replaced by its folder."""
        return {n: folders[v.key] if isinstance(v, Cell) else v for n, v in self.settings.items()}


def group(kind: type[G], settings: Mapping[str, Any]) -> G:
    """Return a group of options with those settings that belong to it."""
    return kind(**{item.name: settings[item.name] for item in fields(kind) if item.name in settings})


def groups(stage: str, settings: Mapping[str, Any]) -> list[Any]:
    """Return settings as the groups of options that a stage takes, and the cache and device."""
    return [group(kind, settings) for kind in (*STAGES[stage], options.PlaceOptions)]
