"""Recipes: tables and figures as data, read from TOML and turned into cells at one scale.

A cell is one stage on one task with settings; equal work has an equal key in every table.
``docs/reproduce.md`` describes the keys of a recipe. A name in a recipe's ``rows`` or ``columns`` that is the name of a
task also sets the task, unless the row, the column or the recipe sets another.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from reservoir import options
from reservoir.errors import InputError, nearest
from reservoir.option_fields import Options, as_group, refuse_modules, without_where
from reservoir_pipelines.files import json_digest
from reservoir_pipelines.reproduction_folder import CELL, MEASURES

SCALES = {
    "smoke": ("smoke",),
    "hour": ("hour", "smoke"),
    "day": ("day", "hour", "smoke"),
    "full": ("full", "paper"),
    "paper": ("paper",),
}
"""For each scale, the scales whose settings it uses: those of the first one that is given."""

LARGE = ("full", "paper")  # scales that use the paper's backbone instead of the small one of this package
STAGES: dict[str, tuple[type[Options], ...]] = {
    "fit": (options.ExtractOptions, options.FitOptions),
    "train": (options.ReservoirOptions, options.RowOptions, options.TrainOptions),
    "attention": (options.ReservoirOptions, options.TaskOptions, options.AttentionOptions),
    "pretrain": (options.CorpusOptions, options.ShapeOptions, options.PretrainOptions),
    "backbone": (options.ModelOptions,),
}
"""The options of a cell, by its stage; ``fit`` extracts first."""

OPTIONS = {stage: {item.name for kind in kinds for item in fields(kind)} for stage, kinds in STAGES.items()}

KEYS = {
    "recipe": "title note measure columns rows settings cell drawn claims task",
    "row": "name note task tasks cell best at measure settings published later reason absent",
    "column": "name task cell measure settings",
    "claim": "says more than by scales unseen",
}
"""The keys of each part; all but claims also have those of `SCALES`."""


@dataclass(frozen=True)
class Cell:
    """A stage on a task with settings; a setting that is a cell means the folder that this cell writes."""

    stage: str
    task: str | None
    settings: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """First 16 digits of the SHA-256 of stage, task and settings."""
        return json_digest(self.to_dict())[:16]

    @property
    def needs(self) -> list["Cell"]:
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
            f"seed {self.settings.get('seed', 0)}",
        ]
        return " ".join(word for word in words if word)

    def to_dict(self) -> dict[str, Any]:
        """Return stage, task and settings as JSON values, other cells by their keys."""
        settings = {n: f"{CELL}{v.key}" if isinstance(v, Cell) else v for n, v in self.settings.items()}
        return {"stage": self.stage, "task": self.task, "settings": settings}


def groups(stage: str, settings: Mapping[str, Any]) -> list[Any]:
    """Return settings as the groups of options that a stage takes, and the cache and device."""
    return [as_group(settings, kind) for kind in (*STAGES[stage], options.PlaceOptions)]


@dataclass(frozen=True)
class Spot:
    """The place of one number in a table."""

    row: str
    column: str
    task: str | None
    measure: str  # a key of `MEASURES`
    cells: tuple[tuple[Cell, ...], ...] = ()  # for each seed, the cells that the number is made of
    combine: str = ""  # "best": the cell with the best validation score; "ratio": the first divided by the second
    published: float | str | None = None  # in the paper
    later: float | None = None  # in later work
    reason: str = ""  # why it has no cells


@dataclass(frozen=True)
class Recipe:
    """A table or a figure at one scale."""

    name: str
    title: str
    scale: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    spots: tuple[Spot, ...]
    note: str = ""
    drawn: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Mapping[str, Any], ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """Every cell, once; a cell comes after those that it needs."""
        found: dict[str, Cell] = {}
        for spot in self.spots:
            for cell in (cell for seed in spot.cells for cell in seed):
                found |= {need.key: need for need in cell.needs} | {cell.key: cell}
        return list(found.values())

    def select(self, only: Sequence[str]) -> "Recipe":
        """Return the part with some tasks, rows and columns: ``["mnist", "FPT"]`` is the row FPT on the task mnist.

        The part is empty if the recipe has none of the tasks, or none of the other names.
        """
        names, known = {name.strip() for name in only}, set(_read(_shipped() / "cells.toml", "cells")["tasks"])
        rows, columns, tasks = names & {*self.rows}, names & {*self.columns}, names & {s.task or "" for s in self.spots}
        missing = any(kind and not kind & (rows | columns | tasks) for kind in (names & known, names - known))
        spots = tuple(
            spot
            for spot in (() if missing else self.spots)
            if (not rows or spot.row in rows)
            and (not columns or spot.column in columns)
            and (not tasks or spot.task in tasks)
        )
        left_rows, left_columns = {spot.row for spot in spots}, {spot.column for spot in spots}
        return replace(
            self,
            rows=tuple(name for name in self.rows if name in left_rows),
            columns=tuple(name for name in self.columns if name in left_columns),
            spots=spots,
        )

    def table(self) -> dict[str, Any]:
        """Return the table as JSON values, without its numbers; a claim that needs another scale says so."""
        kept = ("measure", "combine", "published", "later", "reason")
        places = {
            (spot.row, spot.column): {name: getattr(spot, name) for name in kept}
            | {"cells": [[cell.key for cell in cells] for cells in spot.cells]}
            for spot in self.spots
        }
        claims = []
        for claim in self.claims:
            about = (claim["more"], *claim.get("than", ())) if "more" in claim else ()
            if {(row, column) for row, column in about} <= places.keys():
                seen = self.scale in claim.get("scales", SCALES)
                claims.append(dict(claim) if seen else {"says": claim["says"], "unseen": f"at {self.scale} scale"})
        rows = [
            {
                "name": row,
                "note": self.notes.get(row, ""),
                "spots": [places.get((row, column)) for column in self.columns],
            }
            for row in self.rows
        ]
        units = dict.fromkeys(unit for spot in self.spots if (unit := MEASURES[spot.measure]))
        texts = {name: getattr(self, name) for name in ("name", "title", "scale", "note", "drawn")}
        texts |= {"unit": "; ".join(units), "keys": [cell.key for cell in self.cells]}
        return texts | {"columns": list(self.columns), "rows": rows, "claims": claims}


def recipe_names() -> list[str]:
    """Return the names of the recipes of the package: tables first, then the others."""
    names = [path.name.removesuffix(".toml") for path in _shipped().iterdir() if path.name.endswith(".toml")]
    return sorted((n for n in names if n != "cells"), key=lambda n: (n[0] != "t", len(n), n))


def load_recipe(
    name: str, scale: str, *, seeds: int | None = None, override: Mapping[str, Any] | None = None
) -> Recipe:
    """Return a recipe of the package such as ``table9``, or of a TOML file, at a scale of `SCALES`.

    ``seeds`` is the number of seeds, from 0; the scale has a default. The settings of ``override`` replace those of the
    scale; settings of a row or a column take precedence. `InputError` names what does not exist.
    """
    path = Path(name) if name.endswith(".toml") else None
    if path is None and name not in (known := recipe_names()):
        choices = f"the recipes are {', '.join(known)}, or the path of a .toml file"
        raise InputError(f"no recipe {name!r}: {choices}{nearest(name, known)}")
    if scale not in SCALES:
        raise InputError(f"--scale {scale}: choose among {', '.join(SCALES)}")
    table = _read(path or _shipped() / f"{name}.toml", name)
    shared = _read(_shipped() / "cells.toml", "cells")
    return _Builder(f"recipe {name}", scale, table, shared, override or {}).build(path.stem if path else name, seeds)


def _shipped() -> Any:
    return files("reservoir_pipelines") / "recipes"


def _read(path: Any, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"recipe {name}: not readable ({error})") from error


@dataclass
class _Builder:
    """Builds the cells of one recipe; ``shared`` is the content of ``cells.toml``; messages begin with ``where``."""

    where: str
    scale: str
    table: dict[str, Any]
    shared: dict[str, Any]
    override: Mapping[str, Any]

    def build(self, name: str, seeds: int | None) -> Recipe:
        self._check_keys("recipe", self.table, "it has")
        for key in ("title", "rows", "columns"):
            if not self.table.get(key):
                raise InputError(f"{self.where}: it has no {key}")
        _check_settings(without_where(self.override, "--override"), set[str]().union(*OPTIONS.values()), "--override")
        for settings in self._settings(self.table):
            self._check_file(settings)
        named = self.table["columns"]
        columns = [self._entry("column", entry) for entry in (self.shared["tasks"] if named == "tasks" else named)]
        rows = [self._entry("row", entry) for entry in self.table["rows"]]
        claims = self.table.get("claims", [])
        for claim in claims:
            self._check_keys("claim", claim, f"claim {claim.get('says', '')!r} has")
        count = seeds or self._of_scale("seeds")
        return Recipe(
            name=name,
            title=self.table["title"],
            scale=self.scale,
            columns=tuple(column["name"] for column in columns),
            rows=tuple(row["name"] for row in rows),
            spots=tuple(spot for row in rows for spot in self._spots(row, columns, range(count))),
            note=self.table.get("note", ""),
            drawn=self.table.get("drawn", ""),
            notes={row["name"]: row["note"] for row in rows if row.get("note")},
            claims=tuple(claims),
        )

    def _entry(self, kind: str, entry: Any) -> dict[str, Any]:
        """Return a row or a column as a table; a text is its name."""
        if isinstance(entry, str):
            entry = {"name": entry}
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError(f"{self.where}: a {kind} has no name")
        self._check_keys(kind, entry, f"{kind} {entry['name']!r} has")
        return entry

    def _check_keys(self, kind: str, entry: Mapping[str, Any], has: str) -> None:
        known = {*KEYS[kind].split(), *(() if kind == "claim" else SCALES)}
        for key in entry.keys() - known:
            raise InputError(f"{self.where}: {has} {key!r}; the keys are {', '.join(sorted(known))}")

    def _spots(self, row: dict[str, Any], columns: Sequence[dict[str, Any]], seeds: range) -> Iterator[Spot]:
        published = row.get("published", [""] * len(columns))
        if len(published) != len(columns):
            raise InputError(f"{self.where}: row {row['name']!r} has {len(published)} published numbers")
        for number, column in zip(published, columns, strict=True):
            name = column["name"]
            measure = row.get("measure") or column.get("measure") or self.table.get("measure", "test_score")
            if measure not in MEASURES:
                raise InputError(f"{self.where}: no measure {measure!r}; the measures are {', '.join(MEASURES)}")
            at = row.get("at", {}).get(name)
            named = at or row.get("cell") or column.get("cell") or self.table.get("cell") or []
            names, combine = (named, "ratio") if isinstance(named, list) else ([named], "")
            if not at and "best" in row:
                names, combine = row["best"], "best"
            reason = row.get("reason", "") or ("" if names else "no cell is named for it")
            if self.scale not in LARGE:
                reason = reason or row.get("absent", {}).get(name, "")
            tasks = (each["name"] for each in (row, column) if each["name"] in self.shared["tasks"])
            task = row.get("task") or column.get("task") or next(tasks, None) or self.table.get("task")
            yield Spot(
                row=row["name"],
                column=name,
                task=task,
                measure=measure,
                cells=() if reason else tuple(tuple(self._cell(n, row, column, task, s) for n in names) for s in seeds),
                combine=combine if names else "",
                published=None if number == "" else number,
                later=row.get("later", {}).get(name),
                reason=reason,
            )

    def _cell(self, name: str, row: Mapping[str, Any], column: Mapping[str, Any], task: str | None, seed: int) -> Cell:
        named = self.shared["cells"].get(name)
        if named is None:
            raise InputError(f"{self.where}: no cell {name!r}; the cells are {', '.join(self.shared['cells'])}")
        stage, known = named["stage"], OPTIONS[named["stage"]]
        sizes = [self._of_scale(part).get(key, {}) for part in ("all", stage) for key in ("any", task)]
        settings: dict[str, Any] = {"seed": seed} if "seed" in known else {}
        for layer in (*sizes, self.override, *self._settings(self.table)):
            settings = _merged(settings, {key: value for key, value in layer.items() if key in known})
        of_task = row.get("tasks", {}).get(task, {})
        for layer in (*self._settings(named), *self._settings(row), *self._settings(column), of_task):
            _check_settings(layer, known, f"{self.where}: {name}")
            self._check_file(layer)
            settings = _merged(settings, layer)
        for key, value in settings.items():
            if isinstance(value, str) and value.startswith(CELL):
                settings[key] = self._cell(value.removeprefix(CELL), {}, {}, task, seed)
        run_on_rows = stage in ("fit", "train", "attention")
        return Cell(stage, task if run_on_rows else None, {k: v for k, v in settings.items() if v != ""})

    def _of_scale(self, part: str) -> Any:
        """Return the part of ``cells.toml`` for this scale, or for the first scale in `SCALES` that it has."""
        return next((self.shared[name][part] for name in SCALES[self.scale] if part in self.shared[name]), {})

    def _settings(self, entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the settings of a row, a column, a cell or a recipe: those of all scales, then those of this scale."""
        yield entry.get("settings", {})
        yield next((entry[name] for name in SCALES[self.scale] if name in entry), {})

    def _check_file(self, settings: Mapping[str, Any]) -> None:
        """Refuse what only a person may decide: where work runs, and which modules are imported."""
        run = str(settings.get("run", ""))
        # A recipe may name only one kind of folder: that of another cell of this reproduction.
        without_where({n: v for n, v in settings.items() if n != "run" or not run.startswith(CELL)}, self.where)
        refuse_modules(settings, self.where)


def _check_settings(settings: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in settings.keys() - known:
        meant = nearest(key, known) or f"; the settings are {', '.join(sorted(known))}"
        raise InputError(f"{where}: no setting {key!r}{meant}")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings overridden by others; the parameters of a task are merged one by one."""
    joined = {key: {**below[key], **value} for key, value in above.items() if isinstance(value, dict) and key in below}
    return {**below, **above, **joined}
