"""Recipes: tables and figures as data, read from TOML and turned into cells at one scale.

``docs/reproduce.md`` describes the keys of a recipe. A name in a recipe's ``rows`` or ``columns`` that is the name of a
task also sets the task, unless the row, the column or the recipe sets another.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from reservoir.errors import InputError, nearest
from reservoir.option_fields import refuse_modules, without_where
from reservoir_pipelines.reproduction.cell import ALL_OPTIONS, OPTIONS, Cell
from reservoir_pipelines.reproduction_folder import CELL, MEASURES

SCALES = {
    "smoke": ("smoke",),
    "hour": ("hour", "smoke"),
    "day": ("day", "hour", "smoke"),
    "full": ("full", "paper"),
    "paper": ("paper",),
}
"""Each scale with the scales whose settings apply, the first that is present."""

LARGE = ("full", "paper")
"""Scales that use the paper's backbone instead of the small one of this package."""

KEYS = {
    "recipe": {"title", "note", "measure", "columns", "rows", "settings", "cell", "drawn", "claims", "task", *SCALES},
    "row": {
        "name",
        "note",
        "task",
        "tasks",
        "cell",
        "best",
        "at",
        "measure",
        "settings",
        "published",
        "later",
        "reason",
        "absent",
        *SCALES,
    },
    "column": {"name", "task", "cell", "measure", "settings", *SCALES},
    "claim": {"says", "more", "than", "by", "scales", "unseen"},
}


@dataclass(frozen=True)
class Spot:
    """The place of one number in a table.

    Parameters
    ----------
    row, column : str
        Names of its row and column.
    task : str or None
        The task of its cells.
    measure : str
        What it shows: a key of `MEASURES`.
    cells : tuple of tuple of Cell
        For each seed the cells that the number is made of.
    combine : str
        How: ``best`` takes the cell with the best validation score, ``ratio`` divides the first by the second.
    published : float, str or None
        The paper's number.
    later : float or None
        The number of later work.
    reason : str
        Why it has no cells.
    """

    row: str
    column: str
    task: str | None
    measure: str
    cells: tuple[tuple[Cell, ...], ...] = ()
    combine: str = ""
    published: float | str | None = None
    later: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the place as JSON values, without its number."""
        kept = ("measure", "combine", "published", "later", "reason")
        return {name: getattr(self, name) for name in kept} | {
            "cells": [[cell.key for cell in cells] for cells in self.cells]
        }


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
        """Every cell once; a cell stands behind those that it needs."""
        found: dict[str, Cell] = {}
        for spot in self.spots:
            for cell in (cell for seed in spot.cells for cell in seed):
                found |= {need.key: need for need in cell.needs} | {cell.key: cell}
        return list(found.values())

    def select(self, only: Sequence[str]) -> Recipe:
        """Return the part with some tasks, rows and columns: ``["mnist", "FPT"]`` is the row FPT on the task mnist.

        The part is empty if the recipe has none of the tasks, or none of the other names.
        """
        names = {name.strip() for name in only}
        parts = [names & set(self.rows), names & set(self.columns), names & {spot.task or "" for spot in self.spots}]
        known = _task_names()
        for kind in (names & known, names - known):
            if kind and not kind & set[str]().union(*parts):
                return replace(self, rows=(), columns=(), spots=())
        rows, columns, tasks = parts
        spots = tuple(
            spot
            for spot in self.spots
            if (not rows or spot.row in rows)
            and (not columns or spot.column in columns)
            and (not tasks or spot.task in tasks)
        )
        left = {spot.row for spot in spots}, {spot.column for spot in spots}
        return replace(
            self,
            rows=tuple(name for name in self.rows if name in left[0]),
            columns=tuple(name for name in self.columns if name in left[1]),
            spots=spots,
        )

    def table(self) -> dict[str, Any]:
        """Return the table as JSON values, without its numbers."""
        places = {(spot.row, spot.column): spot.to_dict() for spot in self.spots}
        units = dict.fromkeys(unit for spot in self.spots if (unit := MEASURES[spot.measure]))
        rows = [
            {
                "name": row,
                "note": self.notes.get(row, ""),
                "spots": [places.get((row, column)) for column in self.columns],
            }
            for row in self.rows
        ]
        return {
            "name": self.name,
            "title": self.title,
            "scale": self.scale,
            "note": self.note,
            "drawn": self.drawn,
            "unit": "; ".join(units),
            "columns": list(self.columns),
            "rows": rows,
            "claims": [self._claim(claim) for claim in self.claims if _places(claim) <= places.keys()],
        }

    def _claim(self, claim: Mapping[str, Any]) -> dict[str, Any]:
        """Return a claim; one that needs another scale says so."""
        if self.scale in claim.get("scales", SCALES):
            return dict(claim)
        return {"says": claim["says"], "unseen": f"at {self.scale} scale"}


def _places(claim: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the row and column of each number that a claim is about."""
    return {(row, column) for row, column in (claim["more"], *claim.get("than", ()))} if "more" in claim else set()


def recipe_names() -> list[str]:
    """Return the names of the recipes of the package: tables first, then the others."""
    names = [path.name.removesuffix(".toml") for path in _shipped().iterdir() if path.name.endswith(".toml")]
    return sorted((n for n in names if n != "cells"), key=lambda n: (n[0] != "t", len(n), n))


def load_recipe(
    name: str, scale: str, *, seeds: int | None = None, override: Mapping[str, Any] | None = None
) -> Recipe:
    """Return a recipe of the package, or of a TOML file, at a scale.

    Parameters
    ----------
    name : str
        Such as ``table9``, or the path of a TOML file with the same keys.
    scale : str
        A key of `SCALES`.
    seeds : int, optional
        Number of seeds, from 0; the scale's number by default.
    override : mapping, optional
        Settings that replace those of the scale; settings of a row or a column go before them.

    Raises
    ------
    InputError
        If there is no such recipe, or something in it does not exist.
    """
    path = Path(name) if name.endswith(".toml") else None
    if path is None and name not in (known := recipe_names()):
        choices = f"there are {', '.join(known)}, or the path of a .toml file"
        raise InputError(f"no recipe {name!r}: {choices}{nearest(name, known)}")
    if scale not in SCALES:
        raise InputError(f"--scale {scale}: choose among {', '.join(SCALES)}")
    table = _read(path or _shipped() / f"{name}.toml", name)
    return _Builder(name, scale, table, _read(_shipped() / "cells.toml", "cells"), override or {}).build(seeds)


def _shipped() -> Any:
    return files("reservoir_pipelines") / "recipes"


def _task_names() -> set[str]:
    return set(_read(_shipped() / "cells.toml", "cells")["tasks"])


def _read(path: Any, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"recipe {name}: not readable ({error})") from error


@dataclass
class _Builder:
    """Builds the cells of one recipe; ``shared`` is the content of ``cells.toml``."""

    origin: str
    scale: str
    table: dict[str, Any]
    shared: dict[str, Any]
    override: Mapping[str, Any]

    def build(self, seeds: int | None) -> Recipe:
        self._check_keys("recipe", self.table, "")
        for key in ("title", "rows", "columns"):
            if not self.table.get(key):
                raise InputError(f"recipe {self.origin}: it has no {key}")
        self._check_settings(without_where(self.override, "--override"), "--override")
        for settings in self._settings(self.table):
            self._check_file(settings)
        named = self.table["columns"]
        columns = [self._entry("column", entry) for entry in (self.shared["tasks"] if named == "tasks" else named)]
        rows = [self._entry("row", entry) for entry in self.table["rows"]]
        claims = self.table.get("claims", [])
        for claim in claims:
            self._check_keys("claim", claim, claim.get("says", ""))
        count = seeds or self._of_scale("seeds")
        return Recipe(
            name=Path(self.origin).stem if self.origin.endswith(".toml") else self.origin,
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
            raise InputError(f"recipe {self.origin}: a {kind} has no name")
        self._check_keys(kind, entry, entry["name"])
        return entry

    def _check_keys(self, kind: str, entry: Mapping[str, Any], name: str) -> None:
        for key in entry.keys() - KEYS[kind]:
            where = f"{kind} {name!r} has" if name else "it has"
            raise InputError(f"recipe {self.origin}: {where} {key!r}; the keys are {', '.join(sorted(KEYS[kind]))}")

    def _spots(self, row: dict[str, Any], columns: Sequence[dict[str, Any]], seeds: range) -> Iterator[Spot]:
        published = row.get("published", [""] * len(columns))
        if len(published) != len(columns):
            raise InputError(f"recipe {self.origin}: row {row['name']!r} has {len(published)} published numbers")
        for number, column in zip(published, columns, strict=True):
            measure = row.get("measure") or column.get("measure") or self.table.get("measure", "test_score")
            if measure not in MEASURES:
                raise InputError(f"recipe {self.origin}: no measure {measure!r}; there are {', '.join(MEASURES)}")
            names, combine = self._cell_names(row, column)
            reason = row.get("reason", "") or ("" if names else "no cell is named for it")
            if self.scale not in LARGE:
                reason = reason or row.get("absent", {}).get(column["name"], "")
            task = self._task(row, column)
            cells = () if reason else tuple(tuple(self._cell(n, row, column, task, s) for n in names) for s in seeds)
            yield Spot(
                row=row["name"],
                column=column["name"],
                task=task,
                measure=measure,
                cells=cells,
                combine=combine,
                published=None if number == "" else number,
                later=row.get("later", {}).get(column["name"]),
                reason=reason,
            )

    def _cell_names(self, row: Mapping[str, Any], column: Mapping[str, Any]) -> tuple[list[str], str]:
        """Return the names of the cells that a number is made of, and how they are combined."""
        at = row.get("at", {}).get(column["name"])
        if not at and "best" in row:
            return row["best"], "best"
        named = at or row.get("cell") or column.get("cell") or self.table.get("cell")
        return (named, "ratio") if isinstance(named, list) else ([named] if named else [], "")

    def _task(self, row: Mapping[str, Any], column: Mapping[str, Any]) -> str | None:
        named = (name for name in (row.get("name"), column.get("name")) if name in self.shared["tasks"])
        task = row.get("task") or column.get("task") or next(named, None) or self.table.get("task")
        refuse_modules({"task": task}, f"recipe {self.origin}")
        return task

    def _cell(self, name: str, row: Mapping[str, Any], column: Mapping[str, Any], task: str | None, seed: int) -> Cell:
        named = self.shared["cells"].get(name)
        if named is None:
            raise InputError(f"recipe {self.origin}: no cell {name!r}; there are {', '.join(self.shared['cells'])}")
        stage, options = named["stage"], OPTIONS[named["stage"]]
        sizes = [self._of_scale(part).get(key, {}) for part in ("all", stage) for key in ("any", task)]
        settings: dict[str, Any] = {"seed": seed} if "seed" in options else {}
        for layer in (*sizes, self.override, *self._settings(self.table)):
            settings = _merged(settings, {key: value for key, value in layer.items() if key in options})
        of_task = row.get("tasks", {}).get(task, {})
        for layer in (*self._settings(named), *self._settings(row), *self._settings(column), of_task):
            self._check_settings(layer, f"recipe {self.origin}: {name}", stage)
            self._check_file(layer)
            settings = _merged(settings, layer)
        for key, value in settings.items():
            if isinstance(value, str) and value.startswith(CELL):
                settings[key] = self._cell(value.removeprefix(CELL), {}, {}, task, seed)
        run_on_rows = stage in ("fit", "train", "attention")
        return Cell(stage, task if run_on_rows else None, {k: v for k, v in settings.items() if v != ""})

    def _of_scale(self, part: str) -> Any:
        """Return what ``cells.toml`` says of this scale, or of the first scale that it falls back on."""
        return next((self.shared[name][part] for name in SCALES[self.scale] if part in self.shared[name]), {})

    def _settings(self, entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the settings of a row, a column, a cell or a recipe: those of all scales, then those of this scale."""
        yield entry.get("settings", {})
        yield next((entry[name] for name in SCALES[self.scale] if name in entry), {})

    def _check_file(self, settings: Mapping[str, Any]) -> None:
        """Refuse what only a person may decide: where work runs, and which modules are imported."""
        where = f"recipe {self.origin}"
        run = str(settings.get("run", ""))
        # The one folder that a recipe may name is that of another cell of this reproduction.
        without_where({n: v for n, v in settings.items() if n != "run" or not run.startswith(CELL)}, where)
        refuse_modules(settings, where)

    def _check_settings(self, settings: Mapping[str, Any], where: str, stage: str | None = None) -> None:
        known = OPTIONS[stage] if stage else ALL_OPTIONS
        for key in settings.keys() - known:
            meant = nearest(key, known) or f"; there are {', '.join(sorted(known))}"
            raise InputError(f"{where}: no setting {key!r}{meant}")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings overridden by others; the parameters of a task are merged one by one."""
    joined = {key: {**below[key], **value} for key, value in above.items() if isinstance(value, dict) and key in below}
    return {**below, **above, **joined}
