"""Recipes: a table or a figure as data, read from TOML and turned into cells at one of three scales.

A recipe has ``title``, ``rows`` and ``columns``; both may name a ``task``, a ``cell`` (of ``cells.toml``), ``settings``
and a ``measure``, and where a row and a column meet, the row's are taken first; a name that is a task's is that
task, where neither says another. Settings that hold at one scale alone
stand under its name, ``smoke`` (and of ``hour``, where that has none), ``hour`` or ``paper``; the paper's numbers
under ``published``, in the order of the columns; ``absent`` says of a column why the small backbone of the smaller
scales has no such cell.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from reservoir.errors import InputError, nearest
from reservoir.option_fields import refuse_modules, without_where
from reservoir_pipelines.reproduction.cell import ALL_OPTIONS, OPTIONS, Cell
from reservoir_pipelines.reproduction.measures import MEASURES
from reservoir_pipelines.reproduction_folder import CELL

SCALES = ("smoke", "hour", "paper")
KEYS = {
    "recipe": {"title", "note", "measure", "columns", "rows", "settings", "cell", "drawn", "claims", "task", *SCALES},
    "row": {
        "name",
        "note",
        "task",
        "cell",
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
    "claim": {"says", "more", "than", "by"},
}


@dataclass(frozen=True)
class Spot:
    """Where a row and a column meet: its cells of each seed (two of them: their ratio), and what others measured."""

    row: str
    column: str
    measure: str
    cells: tuple[tuple[Cell, ...], ...] = ()
    published: float | str | None = None
    later: float | None = None
    reason: str = ""


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
        """Every cell once, those that others need before them."""
        found: dict[str, Cell] = {}
        for spot in self.spots:
            for cell in (cell for seed in spot.cells for cell in seed):
                found |= {need.key: need for need in cell.needs} | {cell.key: cell}
        return list(found.values())


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package: tables, then figures."""
    names = [path.name.removesuffix(".toml") for path in _shipped().iterdir() if path.name.endswith(".toml")]
    return sorted((n for n in names if n != "cells"), key=lambda n: (n[0] != "t", len(n), n))


def load_recipe(
    name: str,
    scale: str,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    override: Mapping[str, Any] | None = None,
) -> Recipe:
    """Return a recipe of the package by its name, or of a TOML file, at a scale.

    Parameters
    ----------
    name : str
        Such as ``table9``, or the path of a file with the same keys.
    scale : {"smoke", "hour", "paper"}
        Which sizes.
    seeds : int, optional
        So many seeds from 0; the scale's number by default.
    only : sequence of str
        Tasks, rows or columns that are kept; all by default.
    override : mapping, optional
        Settings put in place of the scale's own; what a row or a column says of itself goes before.

    Raises
    ------
    InputError
        If there is no such recipe, or something in it does not exist.
    """
    path = Path(name) if name.endswith(".toml") else None
    if path is None and name not in (known := recipe_names()):
        there = f"there are {', '.join(known)}, or the path of a .toml file"
        raise InputError(f"no recipe {name!r}: {there}{nearest(name, known)}")
    table = _read(path or _shipped() / f"{name}.toml", name)
    maker = _Maker(name, scale, table, _read(_shipped() / "cells.toml", "cells"), override or {})
    return maker.recipe(path.stem if path else name, seeds, [word.strip() for word in only])


def _shipped() -> Any:
    return files("reservoir_pipelines") / "recipes"


def _read(path: Any, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"recipe {name}: not readable ({error})") from error


@dataclass
class _Maker:
    """What turns the entries of one recipe into cells."""

    origin: str
    scale: str
    table: dict[str, Any]
    shared: dict[str, Any]
    override: Mapping[str, Any]

    def recipe(self, name: str, seeds: int | None, only: Sequence[str]) -> Recipe:
        """Return the whole recipe."""
        if self.scale not in SCALES:
            raise InputError(f"--scale {self.scale}: choose among {', '.join(SCALES)}")
        self._check_keys("recipe", self.table, "")
        for key in ("title", "rows", "columns"):
            if not self.table.get(key):
                raise InputError(f"recipe {self.origin}: it has no {key}")
        self._check_settings(without_where(self.override, "--override"), "--override")
        for layer in self._said(self.table):
            self._check_file(layer)
        named = self.table["columns"]
        columns = [self._entry("column", entry) for entry in (self.shared["tasks"] if named == "tasks" else named)]
        rows = [self._entry("row", entry) for entry in self.table["rows"]]
        claims = self.table.get("claims", [])
        for claim in claims:
            self._check_keys("claim", claim, claim.get("says", ""))
        count = seeds or self.shared[self.scale]["seeds"]
        spots = [spot for row in rows for spot in self._spots(row, columns, range(count)) if _kept(spot, row, only)]
        if not spots:
            raise InputError(f"--only {','.join(only)}: {name} has no such task, row or column")
        there = {spot.row for spot in spots}, {spot.column for spot in spots}
        return Recipe(
            name=name,
            title=self.table["title"],
            scale=self.scale,
            columns=tuple(c["name"] for c in columns if c["name"] in there[1]),
            rows=tuple(r["name"] for r in rows if r["name"] in there[0]),
            spots=tuple(spots),
            note=self.table.get("note", ""),
            drawn=self.table.get("drawn", ""),
            notes={row["name"]: row["note"] for row in rows if row.get("note")},
            claims=tuple(claims),
        )

    def _entry(self, kind: str, entry: Any) -> dict[str, Any]:
        """Return a row or a column as a table."""
        if isinstance(entry, str):
            entry = {"name": entry}
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError(f"recipe {self.origin}: a {kind} without a name")
        self._check_keys(kind, entry, entry["name"])
        return entry

    def _check_keys(self, kind: str, entry: Mapping[str, Any], name: str) -> None:
        for key in entry.keys() - KEYS[kind]:
            where = f"{kind} {name!r} has" if name else "it has"
            raise InputError(f"recipe {self.origin}: {where} {key!r}; the keys are {', '.join(sorted(KEYS[kind]))}")

    def _spots(self, row: dict[str, Any], columns: Sequence[dict[str, Any]], seeds: range) -> Iterator[Spot]:
        published = row.get("published", [])
        if published and len(published) != len(columns):
            raise InputError(f"recipe {self.origin}: row {row['name']!r} has {len(published)} published numbers")
        for number, column in enumerate(columns):
            name = (
                row.get("at", {}).get(column["name"]) or row.get("cell") or column.get("cell") or self.table.get("cell")
            )
            measure = row.get("measure") or column.get("measure") or self.table.get("measure", "test_score")
            if measure not in MEASURES:
                raise InputError(f"recipe {self.origin}: no measure {measure!r}; there are {', '.join(MEASURES)}")
            reason = row.get("reason", "") or ("" if name else "nothing is run for it")
            if self.scale != "paper":  # whose small backbone has no such cell
                reason = reason or row.get("absent", {}).get(column["name"], "")
            names = [name] if isinstance(name, str) else name or []
            value = published[number] if published else None
            yield Spot(
                row=row["name"],
                column=column["name"],
                measure=measure,
                cells=() if reason else tuple(tuple(self._cell(n, row, column, s) for n in names) for s in seeds),
                published=None if value == "" else value,
                later=row.get("later", {}).get(column["name"]),
                reason=reason,
            )

    def _cell(self, name: str, row: Mapping[str, Any], column: Mapping[str, Any], seed: int) -> Cell:
        named = self.shared["cells"].get(name)
        if named is None:
            raise InputError(f"recipe {self.origin}: no cell {name!r}; there are {', '.join(self.shared['cells'])}")
        stage, options = named["stage"], OPTIONS[named["stage"]]
        tasks = (name for name in (row.get("name"), column.get("name")) if name in self.shared["tasks"])
        task = row.get("task") or column.get("task") or next(tasks, None) or self.table.get("task")
        refuse_modules({"task": task}, f"recipe {self.origin}")
        task = task if stage in ("fit", "train", "attention") else None
        defaults = [
            self.shared[self.scale].get(part, {}).get(key, {}) for part in ("all", stage) for key in ("any", task)
        ]
        settings: dict[str, Any] = {"seed": seed} if "seed" in options else {}
        for layer in (*defaults, self.override, *self._said(self.table)):
            settings = _merged(settings, {key: value for key, value in layer.items() if key in options})
        for layer in (*self._said(named), *self._said(row), *self._said(column)):
            self._check_settings(layer, f"recipe {self.origin}: {name}", stage)
            self._check_file(layer)
            settings = _merged(settings, layer)
        for key, value in settings.items():
            if isinstance(value, str) and value.startswith(CELL):
                settings[key] = self._cell(value.removeprefix(CELL), {"task": task}, {}, seed)
        return Cell(stage, task, {key: value for key, value in settings.items() if value != ""})

    def _said(self, entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        small = "smoke" if self.scale == "hour" and "hour" not in entry else self.scale
        for key in ("settings", small):
            yield entry.get(key, {})

    def _check_file(self, settings: Mapping[str, Any]) -> None:
        """Refuse what only a person may decide: where work runs, and which modules are imported."""
        where = f"recipe {self.origin}"
        run = str(settings.get("run", ""))
        # the folder that another cell of this reproduction leaves is the one place that a recipe may name
        without_where({n: v for n, v in settings.items() if n != "run" or not run.startswith(CELL)}, where)
        refuse_modules(settings, where)

    def _check_settings(self, settings: Mapping[str, Any], where: str, stage: str | None = None) -> None:
        known = OPTIONS[stage] if stage else ALL_OPTIONS
        for key in settings.keys() - known:
            meant = nearest(key, known) or f"; there are {', '.join(sorted(known))}"
            raise InputError(f"{where}: no setting {key!r}{meant}")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others laid over them; a task's parameters are laid over each other."""
    joined = {key: {**below[key], **value} for key, value in above.items() if isinstance(value, dict) and key in below}
    return {**below, **above, **joined}


def _kept(spot: Spot, row: Mapping[str, Any], only: Sequence[str]) -> bool:
    tasks = {cell.task for seed in spot.cells for cell in seed} | {row.get("task")}
    return not only or bool(({spot.row, spot.column} | tasks) & set(only))
