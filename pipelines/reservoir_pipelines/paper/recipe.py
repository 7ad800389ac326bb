"""Recipes: tables and figures as data, read from TOML and turned into cells at one scale.

A cell is one stage on one task with settings; equal cells have equal keys in every table.
``docs/reproduce.md`` describes the keys of a recipe. A name in a recipe's ``rows`` or ``columns``
that is the name of a task also sets the task, unless the row, the column or the recipe sets another.
"""

import reprlib
import tomllib
from collections import ChainMap
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from reservoir import options
from reservoir.errors import InputError, as_input_error, nearest
from reservoir.option_fields import Options, as_group, refuse_modules, without_where
from reservoir.records import fits
from reservoir_pipelines.paper.reproduction_folder import CELL, MEASURES, Cell

SCALES = {
    "smoke": ("smoke",),
    "hour": ("hour", "smoke"),
    "day": ("day", "hour", "smoke"),
    "full": ("full", "paper"),
    "paper": ("paper",),
}
"""For each scale, the scales that may set its values, in order; only the first one with settings is used."""

LARGE = ("full", "paper")  # scales that use the paper's backbone instead of the small one of this package
STAGES: dict[str, tuple[type[Options], ...]] = {
    "fit": (options.ExtractOptions, options.FitOptions),
    "train": (options.ReservoirOptions, options.RowOptions, options.TrainOptions),
    "attention": (options.ReservoirOptions, options.TaskOptions, options.AttentionOptions),
    "pretrain": (options.CorpusOptions, options.ShapeOptions, options.PretrainOptions),
    "backbone": (options.ModelOptions,),
}
"""The options of a cell, by its stage; ``fit`` extracts first."""

GROUPS = {
    stage: {item.name: kind for kind in kinds for item in fields(kind)} for stage, kinds in STAGES.items()
}
"""The group of each option of a stage, by the option's name."""

ALL_GROUPS = dict(ChainMap(*GROUPS.values()))

Kind = tuple[Any, str]
"""A type hint for `fits`, and what to give, for messages."""

TEXT: Kind = (str, "a string")
NUMBER: Kind = (float, "a number")
TEXTS: Kind = (list[str], "a list of strings")
TABLE: Kind = (dict[str, Any], "a table such as { steps = 100 }")
TABLES: Kind = (list[dict[str, Any]], "a list of tables")
REASONS: Kind = (dict[str, str], "a table of strings")
CELLS: Kind = (str | tuple[str, str], "the name of a cell, or two names")
SPOT: Kind = (tuple[str, str], "the name of a row and that of a column")
ENTRIES: Kind = (list[str | dict[str, Any]], "a list of names or tables")

OF_ALL = {"task": TEXT, "cell": CELLS, "measure": TEXT, "settings": TABLE, **dict.fromkeys(SCALES, TABLE)}
"""The keys that a recipe, a row and a column may have."""

KEYS: Mapping[str, Mapping[str, Kind]] = {
    "recipe": OF_ALL
    | dict.fromkeys(("title", "note", "source", "drawn"), TEXT)
    | {"rows": ENTRIES, "claims": TABLES}
    | {"columns": (str | list[str | dict[str, Any]], 'a list of names or tables, or "tasks"')},
    "row": OF_ALL
    | {"name": TEXT, "reason": TEXT, "best": TEXTS, "absent": REASONS}
    | {"published": (list[float | str], "a list of numbers or strings")}
    | {"later": (dict[str, float | str], "a table of numbers or strings")}
    | {"at": (dict[str, str | tuple[str, str]], "a table of cells")}
    | {"tasks": (dict[str, dict[str, Any]], "a table of settings for each task")},
    "column": OF_ALL | {"name": TEXT},
    "claim": dict.fromkeys(("says", "source", "unseen"), TEXT)
    | dict.fromkeys(("more", "less", "near"), SPOT)
    | {"than": (list[tuple[str, str]], "a list of pairs, each a row and a column")}
    | {"by": NUMBER, "within": NUMBER, "scales": TEXTS, "unchecked": REASONS},
}
"""The keys of each part of a recipe, each with the type of its value."""

PLOTS = ("", "curve", "costs", "attention", "deviations")
"""The plots that ``drawn`` may name."""

OF_CELLS = ("backbone", "run")
"""The settings that may name another cell."""


def groups(stage: str, settings: Mapping[str, Any]) -> list[Any]:
    """Return settings as the groups of options that a stage takes, and the cache and device."""
    return [as_group(settings, kind) for kind in (*STAGES[stage], options.PlaceOptions)]


@dataclass(frozen=True)
class Recipe:
    """A table or a figure at one scale."""

    table: dict[str, Any]  # JSON values without numbers, for `ReproductionFolder.save_table`
    cells: list[Cell]  # a cell comes after the cells that it needs


RECIPES = files("reservoir_pipelines.paper") / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes of the package: tables first, then the others."""
    return sorted(_package_recipes(), key=lambda name: (not name.startswith("t"), len(name), name))


@cache
def _package_recipes() -> dict[str, dict[str, Any]]:
    """Return the recipes of the package by name. A file with rows is one recipe; of another, each table is one."""
    recipes: dict[str, dict[str, Any]] = {}
    for path in RECIPES.iterdir():
        name = path.name.removesuffix(".toml")
        if name not in ("cells", path.name):
            content = _read(path, name)
            recipes |= {name: content} if "rows" in content else content
    return recipes


def load_recipe(
    name: str,
    scale: str,
    *,
    seeds: int | None = None,
    override: Mapping[str, Any] = {},
    only: Sequence[str] = (),
) -> Recipe:
    """Return a recipe of the package such as ``table9``, or of a TOML file, at a scale of `SCALES`.

    The settings of ``override`` replace those of the scale, but not those of a row or a column.
    ``only`` selects tasks, rows and columns: ``["mnist", "FPT"]`` is the row FPT on the task mnist. A
    recipe becomes empty if it has none of the given tasks, or none of the given rows and columns.
    """
    path = Path(name) if name.endswith(".toml") else None
    if path is None and name not in (names := recipe_names()):
        choices = f"give one of {', '.join(names)}, or the path of a .toml file"
        raise InputError(f"no recipe {name!r}: {choices}{nearest(name, names)}")
    table = _read(path, name) if path else _package_recipes()[name]
    shared = _read(RECIPES / "cells.toml", "cells")
    builder = _Builder(f"recipe {name}", scale, table, shared, override)
    return builder.build(path.stem if path else name, seeds, only)


def _read(path: Any, name: str) -> dict[str, Any]:
    with as_input_error(f"recipe {name}: not readable", "give a valid .toml file"):
        return tomllib.loads(path.read_text())


@dataclass
class _Builder:
    """Builds the cells of one recipe. ``shared`` holds the content of ``cells.toml``; messages begin with ``where``."""

    where: str
    scale: str
    table: dict[str, Any]
    shared: dict[str, Any]
    override: Mapping[str, Any]
    cells: dict[str, Cell] = field(default_factory=dict)

    def build(self, name: str, seeds: int | None, only: Sequence[str]) -> Recipe:
        """Return the table and the cells that it needs; with ``only``, the parts of the table that it names."""
        # Check all settings, and read the names of rows and columns.
        self._check_table()
        _check_settings(without_where(self.override, "--override"), ALL_GROUPS, "--override")
        for settings in self._settings(self.table):
            self._check_settings(settings, ALL_GROUPS, self.where)
        entries = self.table["columns"]
        columns = [
            self._entry("column", entry)
            for entry in (self.shared["tasks"] if entries == "tasks" else entries)
        ]
        rows = [self._entry("row", entry) for entry in self.table["rows"]]
        numbers = range(seeds or self._of_scale("seeds"))
        # Each number of the table is a spot, which names the cells that give it. Only cells that a spot uses, or that
        # these need, are run.
        spots = self._selected([spot for row in rows for spot in self._spots(row, columns, numbers)], only)
        places = {(spot["row"], spot["column"]): spot for spot in spots}
        columns_with_spots = {column for _, column in places}
        shown_columns = [column["name"] for column in columns if column["name"] in columns_with_spots]
        used_keys = {key for spot in spots for keys in spot["cells"] for key in keys}
        used_keys |= {need.key for key in used_keys for need in self.cells[key].needs}
        table = {
            "name": name,
            "title": self.table["title"],
            "scale": self.scale,
            "note": self.table.get("note", ""),
            "drawn": self.table.get("drawn", ""),
            "unit": "; ".join(dict.fromkeys(unit for spot in spots if (unit := MEASURES[spot["measure"]]))),
            "keys": [key for key in self.cells if key in used_keys],
            "columns": shown_columns,
            "rows": [
                {"name": row, "spots": [places.get((row, column)) for column in shown_columns]}
                for row in dict.fromkeys(row for row, _ in places)
            ],
            "claims": self._claims(places),
        }
        return Recipe(table, [cell for key, cell in self.cells.items() if key in used_keys])

    def _check_table(self) -> None:
        """Raise `InputError` unless the recipe has its keys, with values of their types."""
        self._check_keys("recipe", self.table, "it")
        for key in ("title", "rows", "columns"):
            if not self.table.get(key):
                raise InputError(f"{self.where}: no {key}", f"add {key} = ... to the file")
        columns, drawn = self.table["columns"], self.table.get("drawn", "")
        if isinstance(columns, str) and columns != "tasks":
            raise InputError(
                f"{self.where}: columns = {columns!r}", 'give a list of names or tables, or "tasks"'
            )
        if drawn not in PLOTS:
            raise InputError(f"{self.where}: no plot {drawn!r}", f"the plots are {', '.join(PLOTS[1:])}")
        for claim in self.table.get("claims", []):
            self._check_claim(claim)

    def _check_claim(self, claim: Mapping[str, Any]) -> None:
        """Raise `InputError` unless a claim compares numbers, or says why it cannot be judged."""
        if not isinstance(claim.get("says"), str):
            raise InputError(f"{self.where}: a claim has no sentence", "add says = ... to it")
        title = f"claim {claim['says']!r}"
        self._check_keys("claim", claim, title)
        compared = [key for key in ("more", "less", "near") if key in claim]
        if len(compared) > 1 or not (compared or "unseen" in claim):
            raise InputError(
                f"{self.where}: {title} has {len(compared)} of more, less and near", "give one of them"
            )
        if compared and not claim.get("than") and "by" not in claim:
            raise InputError(
                f"{self.where}: {title} compares with nothing", "add than = ... or by = ... to it"
            )
        for name in (*claim.get("scales", ()), *claim.get("unchecked", ())):
            if name not in SCALES:
                raise InputError(
                    f"{self.where}: {title}: no scale {name!r}", f"the scales are {', '.join(SCALES)}"
                )

    def _claims(self, places: Container[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return the claims about these table positions, with their source and the reason why one is not judged."""
        claims = []
        for claim in self.table.get("claims", []):
            # A claim is shown if the table has all its positions.
            compared = (claim[key] for key in ("more", "less", "near") if key in claim)
            if all((row, column) in places for row, column in (*compared, *claim.get("than", ()))):
                reasons = claim.get("unchecked", {})
                reason = next((reasons[name] for name in SCALES[self.scale] if name in reasons), "")
                if not reason and self.scale not in claim.get("scales", SCALES):
                    reason = f"not judged at {self.scale} scale"
                source = {"source": self.table.get("source", "")}
                claims.append(source | claim | ({"unseen": reason} if reason else {}))
        return claims

    def _selected(self, spots: list[dict[str, Any]], parts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the table positions that the names in ``parts`` select.

        The names of tasks select among tasks, those of rows among rows, and those of columns among columns. A kind
        without a name is not filtered.
        """
        requested = {*parts}
        requested_tasks = requested & {*self.shared["tasks"]}
        requested_others = requested - requested_tasks  # rows and columns
        matched_by_kind = {
            kind: requested & {spot[kind] for spot in spots} for kind in ("row", "column", "task")
        }
        matched = {name for names in matched_by_kind.values() for name in names}
        # Nothing is selected if the recipe has none of the requested tasks, or none of the requested rows and columns.
        lacks_tasks = bool(requested_tasks) and not requested_tasks & matched
        lacks_others = bool(requested_others) and not requested_others & matched
        if lacks_tasks or lacks_others:
            return []
        return [
            spot
            for spot in spots
            if all(not names or spot[kind] in names for kind, names in matched_by_kind.items())
        ]

    def _entry(self, kind: str, entry: Any) -> dict[str, Any]:
        """Return a row or a column as a dictionary; a string is its name."""
        if isinstance(entry, str):
            entry = {"name": entry}
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError(f"{self.where}: a {kind} has no name", "add name = ... to it")
        title = f"{kind} {entry['name']!r}"
        self._check_keys(kind, entry, title)
        for settings in (*self._settings(entry), *entry.get("tasks", {}).values()):
            self._check_settings(settings, ALL_GROUPS, f"{self.where}: {title}")
        return entry

    def _check_keys(self, kind: str, entry: Mapping[str, Any], title: str) -> None:
        """Raise `InputError` for keys that a part of a recipe does not have, and for values of another type."""
        kinds = KEYS[kind]
        for key, value in entry.items():
            if key not in kinds:
                raise InputError(
                    f"{self.where}: {title} has the unknown key {key!r}",
                    f"the keys are {', '.join(sorted(kinds))}",
                )
            hint, remedy = kinds[key]
            if not fits(value, hint):
                raise InputError(
                    f"{self.where}: {title} has {key} = {reprlib.repr(value)}", f"give {remedy}"
                )

    def _spots(
        self, row: dict[str, Any], columns: Sequence[dict[str, Any]], seeds: range
    ) -> Iterator[dict[str, Any]]:
        """Yield the table positions of a row, in the form that `ReproductionFolder.fill` reads.

        ``cells`` has the keys of the cells of each seed, and ``combine`` is as in `_cells_of`. ``published`` is the
        number of the paper, and ``later`` that of later work. ``reason`` says why a number has no cells.
        """
        published = row.get("published", [""] * len(columns))
        if len(published) != len(columns):
            raise InputError(
                f"{self.where}: row {row['name']!r} has {len(published)} published numbers",
                "give one for each column",
            )
        for published_number, column in zip(published, columns, strict=True):
            # What the row does not say, the column says, or the table. A row or a column may be named like a task.
            column_name = column["name"]
            task_names = [name for name in (row["name"], column_name) if name in self.shared["tasks"]]
            merged = ChainMap(row, column, *({"task": name} for name in task_names), self.table)
            measure, task = merged.get("measure", "test_score"), merged.get("task")
            if measure not in MEASURES:
                raise InputError(
                    f"{self.where}: no measure {measure!r}", f"the measures are {', '.join(MEASURES)}"
                )
            # The cells are made only if they are run; their names are checked in any case.
            names, combine = self._cells_of(row, column_name, merged)
            reason = self._reason_without_cells(row, column_name, names)
            keys: list[list[str]] = []
            if not reason:
                keys = [[self._cell(name, row, column, task, seed).key for name in names] for seed in seeds]
            yield {
                "row": row["name"],
                "column": column_name,
                "task": task,
                "measure": measure,
                "cells": keys,
                "combine": combine,
                "published": None if published_number == "" else published_number,
                "later": row.get("later", {}).get(column_name),
                "reason": reason,
            }

    def _cells_of(
        self, row: Mapping[str, Any], column: str, merged: Mapping[str, Any]
    ) -> tuple[list[str], str]:
        """Return the names of the cells of a table position, and how their numbers become one.

        That is "best" for the cell with the best validation score, "ratio" for the first cell's number divided by the
        second's, and "" for a single cell. ``merged`` has the keys of the row, the column and the table.
        """
        # The row's key "at" names other cells in some columns. It precedes "best", among whose cells the validation
        # score chooses, and "best" precedes "cell". A list in "at" or "cell" is a ratio.
        cells_at_column = row.get("at", {}).get(column)
        is_best = bool(row.get("best")) and not cells_at_column
        cells = cells_at_column or row.get("best") or merged.get("cell") or []
        names = cells if isinstance(cells, list) else [cells]
        for name in names:
            self._cell_named(name)
        is_ratio = isinstance(cells, list) and bool(cells) and not is_best
        return names, "best" if is_best else "ratio" if is_ratio else ""

    def _reason_without_cells(self, row: Mapping[str, Any], column: str, names: Sequence[str]) -> str:
        """Return why no cell is run at a table position; empty if its cells, which have these ``names``, are run."""
        if row.get("reason"):
            return row["reason"]
        if not names:
            return "the recipe names no cell here"
        # The key "absent" says why some columns have no cells with the small backbone of this package.
        return "" if self.scale in LARGE else row.get("absent", {}).get(column, "")

    def _cell(
        self,
        name: str,
        row: Mapping[str, Any],
        column: Mapping[str, Any],
        task: str | None,
        seed: int,
        needed_by: tuple[str, ...] = (),
    ) -> Cell:
        """Return a cell by its name in ``cells.toml``, after adding the cells that it needs."""
        cell_table = self._cell_named(name)
        stage = cell_table["stage"]
        allowed = GROUPS[stage]
        # Later settings win over earlier ones: the scale, --override and the table, of which a stage takes what it has;
        # then the cell, the row, the column and the task of the row, which must fit the stage.
        sizes = [self._of_scale(part).get(key, {}) for part in ("all", stage) for key in ("any", task)]
        settings: dict[str, Any] = {"seed": seed} if "seed" in allowed else {}
        for layer in (*sizes, self.override, *self._settings(self.table)):
            settings = _merged(settings, {key: value for key, value in layer.items() if key in allowed})
        of_task = row.get("tasks", {}).get(task, {})
        for layer in (*self._settings(cell_table), *self._settings(row), *self._settings(column), of_task):
            self._check_settings(layer, allowed, f"{self.where}: {name}")
            settings = _merged(settings, layer)
        settings = {key: value for key, value in settings.items() if value != ""}  # "" removes a setting
        # A value that names another cell becomes this cell; ``needed_by`` shows a circle.
        for key, value in settings.items():
            if isinstance(value, str) and value.startswith(CELL):
                need, path = value.removeprefix(CELL), (*needed_by, name)
                if key not in OF_CELLS or need in path:
                    problem = "needs itself" if need in path else f"may not name a cell in {key!r}"
                    raise InputError(
                        f"{self.where}: {name} {problem}", f"give {key!r} another value than {value!r}"
                    )
                settings[key] = self._cell(need, {}, {}, task, seed, path)
        run_on_rows = stage in ("fit", "train", "attention")
        cell = Cell(stage, task if run_on_rows else None, settings)
        return self.cells.setdefault(cell.key, cell)

    def _cell_named(self, name: str) -> dict[str, Any]:
        """Return the table of a cell in ``cells.toml``."""
        if name not in self.shared["cells"]:
            raise InputError(
                f"{self.where}: no cell {name!r}", f"the cells are {', '.join(self.shared['cells'])}"
            )
        return self.shared["cells"][name]

    def _of_scale(self, part: str) -> Any:
        """Return a part of ``cells.toml`` for the first scale in ``SCALES[self.scale]`` that has it."""
        return next(
            (self.shared[name][part] for name in SCALES[self.scale] if part in self.shared[name]), {}
        )

    def _settings(self, entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the settings of a row, a column, a cell or a recipe: those of all scales, then those of this scale."""
        yield entry.get("settings", {})
        yield next((entry[name] for name in SCALES[self.scale] if name in entry), {})

    def _check_settings(
        self, settings: Mapping[str, Any], allowed: Mapping[str, type[Options]], where: str
    ) -> None:
        """Raise `InputError` for wrong settings, and for those that no file may decide: folders, devices, modules."""
        run = str(settings.get("run", ""))
        # A recipe may name only one kind of folder: that of another cell of this reproduction.
        without_where({n: v for n, v in settings.items() if n != "run" or not run.startswith(CELL)}, where)
        refuse_modules(settings, where)
        _check_settings(settings, allowed, where)


def _check_settings(settings: Mapping[str, Any], allowed: Mapping[str, type[Options]], where: str) -> None:
    """Raise `InputError` for unknown settings, and for values that their option refuses."""
    for key, value in settings.items():
        if key not in allowed:
            meant = nearest(key, allowed) or f"; the settings are {', '.join(sorted(allowed))}"
            raise InputError(f"{where}: no setting {key!r}{meant}")
        if not _is_json(value):
            remedy = "give a string, a finite number, true, false, or a list or table of these"
            raise InputError(f"{where}: {key} = {reprlib.repr(value)}", remedy)
        if value != "":  # which stands for the option's default
            try:
                allowed[key](**{key: value})
            except InputError as error:
                raise InputError(f"{where}: {error}") from error


def _is_json(value: Any) -> bool:
    """Return whether JSON can hold a value of a TOML file: no date, no infinity, no integer beyond 64 bits."""
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    return all(map(_is_json, value)) if isinstance(value, list) else fits(value, str | bool | int | float)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings overridden by others; the parameters of a task are merged one by one."""
    joined = {
        key: {**below[key], **value}
        for key, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **joined}
