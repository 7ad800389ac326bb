"""Cells: one stage on one task with settings. What is the same work has the same key, in whatever table it stands."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from functools import cached_property
from typing import Any

from reservoir import options
from reservoir.option_fields import Options, flag_of, listed
from reservoir_pipelines.reproduction_folder import CELL

STAGES: dict[str, tuple[type[Options], ...]] = {
    "fit": (options.ReservoirOptions, options.RowOptions, options.FeatureOptions, options.FitOptions),
    "train": (options.ReservoirOptions, options.RowOptions, options.TrainOptions),
    "attention": (options.ReservoirOptions, options.TaskOptions, options.AttentionOptions),
    "pretrain": (options.CorpusOptions, options.ShapeOptions, options.PretrainOptions),
    "backbone": (options.ModelOptions,),
}
"""The options of a cell by its stage; ``fit`` extracts what it needs first."""

PLACES = ("cache", "device", "data")
"""Options of a whole reproduction, which change no number."""


def options_of(*groups: type[Options]) -> dict[str, Field[Any]]:
    """Return the fields of groups of options by name, without those that say where."""
    return {item.name: item for group in groups for item in fields(group) if item.name not in PLACES}


OPTIONS = {stage: options_of(*groups) for stage, groups in STAGES.items()}
ALL_OPTIONS = {name: item for stage in OPTIONS.values() for name, item in stage.items()}


@dataclass(frozen=True)
class Cell:
    """A stage on a task with settings; a setting that is a cell stands for the folder that it leaves."""

    stage: str
    task: str | None
    settings: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that the cell is, 16 digits."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

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


def command_line(command: str, what: str, settings: Mapping[str, Any]) -> str:
    """Return the line that a person types for a stage with these settings."""
    return shlex.join(["reservoir", command, what, *_flags(settings)])


def _flags(settings: Mapping[str, Any]) -> Iterator[str]:
    places = options_of(options.ReservoirOptions) | {
        item.name: item for group in (options.PlaceOptions, options.TaskOptions) for item in fields(group)
    }
    for name, value in sorted(settings.items()):
        item = (ALL_OPTIONS | places).get(name)
        flag = flag_of(item) if item else "--" + name.replace("_", "-")
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        elif isinstance(value, Mapping):
            yield from (text for key, inner in sorted(value.items()) for text in (flag, f"{key}={listed(inner)}"))
        elif value is not None:
            yield from (flag, listed(value))
