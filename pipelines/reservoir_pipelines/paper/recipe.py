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
from reservoir.file_checks import fits
from reservoir.option_fields import Options, as_group, refuse_modules, without_where
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

GROUP_OF_OPTION = {
    stage: {item.name: kind for kind in kinds for item in fields(kind)} for stage, kinds in STAGES.items()
}
"""The group of each option of a stage, by the option's name."""

ALL_GROUPS = dict(ChainMap(*GROUP_OF_OPTION.values()))

FieldKind = tuple[Any, str]
"""A type hint for `fits`, and what to give, for messages."""

TEXT: FieldKind = (str, "a string")
NUMBER: FieldKind = (float, "a number")
TEXTS: FieldKind = (list[str], "a list of strings")
TABLE: FieldKind = (dict[str, Any], "a table such as { steps = 100 }")
TABLES: FieldKind = (list[dict[str, Any]], "a list of tables")
REASONS: FieldKind = (dict[str, str], "a table of strings")
CELLS: FieldKind = (str | tuple[str, str], "the name of a cell, or two names")
SPOT: FieldKind = (tuple[str, str], "the name of a row and that of a column")
ENTRIES: FieldKind = (list[str | dict[str, Any]], "a list of names or tables")

OF_ALL = {"task": TEXT, "cell": CELLS, "measure": TEXT, "settings": TABLE, **dict.fromkeys(SCALES, TABLE)}
"""The keys that a recipe, a row and a column may have."""

KEYS: Mapping[str, Mapping[str, FieldKind]] = {
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

SETTINGS_THAT_NAME_CELLS = ("backbone", "run")
"""The settings whose value may be another cell, as in ``backbone = "cell:bit-pretraining"``."""


def groups(stage: str, settings: Mapping[str, Any]) -> list[Any]:
    """Return an object of options for each group in ``STAGES[stage]``, and last `PlaceOptions`, made of settings."""
    return [as_group(settings, kind) for kind in (*STAGES[stage], options.PlaceOptions)]


@dataclass(frozen=True)
class Recipe:
    """A table or a figure at one scale."""

    table: dict[str, Any]  # JSON values without numbers, for `ReproductionFolder.fill`
    whole_table: dict[str, Any]  # the same with all rows and columns, for `ReproductionFolder.save_table`
    cells: list[Cell]  # a cell comes after the cells that it needs
    names: frozenset[
        str
    ]  # by which tasks, rows and columns can be selected; those of all tasks, and of the whole recipe


RECIPES = files("reservoir_pipelines.paper") / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes of the package: tables first, then the others."""
    return sorted(_package_recipes(), key=lambda name: (not name.startswith("t"), len(name), name))


@cache
def _package_recipes() -> dict[str, dict[str, Any]]:
    """Return the contents of the recipes of the package, by the name of the recipe."""
    recipes: dict[str, dict[str, Any]] = {}
    for path in RECIPES.iterdir():
        name = path.name.removesuffix(".toml")
        is_toml = name != path.name
        if is_toml and name != "cells":  # cells.toml has no recipes, but what they share
            content = _read(path, name)
            # A file with rows is one recipe, named like the file; else each table of the file is a recipe.
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

    ``seeds`` is the number of seeds, by default that of the scale. The settings of ``override``
    replace those of the scale, but not those of a row or a column. ``only`` selects tasks, rows and
    columns: ``["mnist", "FPT"]`` is the row FPT on the task mnist. A recipe becomes empty if it has
    none of the given tasks, or none of the given rows and columns.
    """
    shared = _read(RECIPES / "cells.toml", "cells")
    if name.endswith(".toml"):
        path = Path(name)
        table, short_name = _read(path, name), path.stem
    else:
        names = recipe_names()
        if name not in names:
            choices = f"give one of {', '.join(names)}, or the path of a .toml file"
            raise InputError(f"no recipe {name!r}: {choices}{nearest(name, names)}")
        table, short_name = _package_recipes()[name], name
    return _Builder(f"recipe {name}", scale, table, shared, override).build(short_name, seeds, only)


def _read(path: Any, name: str) -> dict[str, Any]:
    """Return the content of a TOML file; the message of an error names the recipe ``name``."""
    with as_input_error(f"recipe {name}: not readable", "give a valid .toml file"):
        return tomllib.loads(path.read_text())


@dataclass
class _Builder:
    """Builds the table and the cells of one recipe.

    A *spot* is a position of the table (a row and a column), as the dictionary that `_spots` describes. It names the
    cells whose results give the number there.
    """

    where: str  # beginning of messages: which recipe
    scale: str
    table: dict[str, Any]  # content of the recipe
    shared: dict[str, Any]  # content of ``cells.toml``
    override: Mapping[str, Any]  # settings of the user, which replace those of the scale
    # Cells by key, which `_cell` adds: each one after the cells that it needs.
    cells: dict[str, Cell] = field(default_factory=dict)

    def build(self, name: str, seeds: int | None, only: Sequence[str]) -> Recipe:
        """Return the recipe, reduced to the tasks, rows and columns in ``only``, if it names any.

        ``seeds`` is the number of seeds; None means that of the scale.
        """
        # Check all settings, and read the names of rows and columns.
        self._check_table()
        _check_settings(without_where(self.override, "--override"), ALL_GROUPS, "--override")
        for settings in self._settings(self.table):
            self._check_settings_of_file(settings, ALL_GROUPS, self.where)
        columns_in_file = self.table["columns"]
        column_entries = self.shared["tasks"] if columns_in_file == "tasks" else columns_in_file
        columns = [self._entry("column", entry) for entry in column_entries]
        rows = [self._entry("row", entry) for entry in self.table["rows"]]
        self._check_named_places(rows, columns)
        # Make all spots, and with them all cells; then leave out the spots that are not selected.
        seed_numbers = range(seeds or self._of_scale("seeds"))
        all_spots = [spot for row in rows for spot in self._spots(row, columns, seed_numbers)]
        spots = self._selected(all_spots, only)
        # Only the cells of the selected spots are run, and the cells that these need, directly or through others.
        used_keys = {key for spot in spots for keys in spot["cells"] for key in keys}
        for key, cell in reversed(self.cells.items()):  # a cell before those that it needs
            if key in used_keys:
                used_keys |= {need.key for need in cell.needs}
        cells = {key: cell for key, cell in self.cells.items() if key in used_keys}
        column_names = [column["name"] for column in columns]
        names = {*self.shared["tasks"], *column_names, *(row["name"] for row in rows)}
        names |= {spot["task"] for spot in all_spots if spot["task"]}  # a task of the user, too
        table = self._table_of(name, column_names, spots, list(cells))
        whole_table = self._table_of(name, column_names, all_spots, list(self.cells))
        return Recipe(table, whole_table, list(cells.values()), frozenset(names))

    def _table_of(
        self, name: str, column_names: Sequence[str], spots: Sequence[dict[str, Any]], keys: list[str]
    ) -> dict[str, Any]:
        """Return the table of these spots, without rows and columns that have none; ``keys`` are those of its cells."""
        spot_at = {(spot["row"], spot["column"]): spot for spot in spots}
        columns_with_spots = {column for _, column in spot_at}
        shown_columns = [column for column in column_names if column in columns_with_spots]
        shown_rows = dict.fromkeys(row for row, _ in spot_at)  # without repetition, in order
        units = dict.fromkeys(MEASURES[spot["measure"]] for spot in spots)
        return {
            "name": name,
            "title": self.table["title"],
            "scale": self.scale,
            "note": self.table.get("note", ""),
            "drawn": self.table.get("drawn", ""),
            "unit": "; ".join(filter(None, units)),  # counts have no unit
            "keys": keys,
            "columns": shown_columns,
            "rows": [
                {"name": row, "spots": [spot_at.get((row, column)) for column in shown_columns]}
                for row in shown_rows
            ],
            "claims": self._claims(spot_at),
        }

    def _check_table(self) -> None:
        """Raise `InputError` unless the recipe has the keys that it needs, and only allowed keys and values."""
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
        """Raise `InputError` unless a claim compares numbers, or says by ``unseen`` why it cannot be judged."""
        if not isinstance(claim.get("says"), str):
            raise InputError(f"{self.where}: a claim has no sentence", "add says = ... to it")
        title = f"claim {claim['says']!r}"
        self._check_keys("claim", claim, title)
        comparisons = [key for key in ("more", "less", "near") if key in claim]
        is_comparable = bool(comparisons) or "unseen" in claim
        if len(comparisons) > 1 or not is_comparable:
            raise InputError(
                f"{self.where}: {title} has {len(comparisons)} of more, less and near", "give one of them"
            )
        has_other_number = claim.get("than") or "by" in claim
        if comparisons and not has_other_number:
            raise InputError(
                f"{self.where}: {title} compares with nothing", "add than = ... or by = ... to it"
            )
        for name in (*claim.get("scales", ()), *claim.get("unchecked", ())):
            if name not in SCALES:
                raise InputError(
                    f"{self.where}: {title}: no scale {name!r}", f"the scales are {', '.join(SCALES)}"
                )

    def _check_named_places(
        self, rows: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]
    ) -> None:
        """Raise `InputError` if a claim names a row or a column that the recipe lacks, or a row such a column."""
        row_names = [row["name"] for row in rows]
        column_names = [column["name"] for column in columns]
        # For each name: what names it, its kind, and the names that there are.
        uses = [
            (f"row {row['name']!r}, {key}", "column", name, column_names)
            for row in rows
            for key in ("at", "later", "absent")
            for name in row.get(key, {})
        ]
        for claim in self.table.get("claims", []):
            for row_name, column_name in _positions(claim):
                title = f"claim {claim['says']!r}"
                uses += [
                    (title, "row", row_name, row_names),
                    (title, "column", column_name, column_names),
                ]
        for title, kind, name, names in uses:
            if name not in names:
                raise InputError(f"{self.where}: {title}: no {kind} {name!r}{nearest(name, names)}")

    def _claims(self, shown_positions: Container[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return the claims that compare only numbers at the shown positions (row, column).

        Each claim gets the ``source`` of the recipe, unless it has its own, and in ``unseen`` the reason if it is not
        judged at this scale.
        """
        claims = []
        for claim in self.table.get("claims", []):
            if not all((row, column) in shown_positions for row, column in _positions(claim)):
                continue  # `--only` leaves out some of its numbers
            # The key "unchecked" has the reasons of single scales, and "scales" those at which the claim is judged.
            reasons = claim.get("unchecked", {})
            reason = next((reasons[name] for name in SCALES[self.scale] if name in reasons), "")
            if not reason and self.scale not in claim.get("scales", SCALES):
                reason = f"not judged at {self.scale} scale"
            source = {"source": self.table.get("source", "")}
            claims.append(source | claim | ({"unseen": reason} if reason else {}))
        return claims

    def _selected(self, spots: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the spots that ``names`` of tasks, rows and columns select.

        The names of tasks select among tasks, those of rows among rows, and those of columns among columns. If none
        of the names is that of a row, all rows are selected, and likewise for columns and tasks.
        """
        requested = {*names}
        requested_tasks = requested & {*self.shared["tasks"]}
        requested_rows_and_columns = requested - requested_tasks
        matched_by_kind = {
            kind: requested & {spot[kind] for spot in spots} for kind in ("row", "column", "task")
        }
        matched = {name for matches in matched_by_kind.values() for name in matches}
        # Nothing is selected if the recipe has none of the requested tasks, or none of the requested rows and columns.
        for required in (requested_tasks, requested_rows_and_columns):
            if required and matched.isdisjoint(required):
                return []
        return [
            spot
            for spot in spots
            if all(not matches or spot[kind] in matches for kind, matches in matched_by_kind.items())
        ]

    def _entry(self, kind: str, entry: Any) -> dict[str, Any]:
        """Return an entry of ``rows`` or ``columns`` as a dictionary, after checking it.

        ``kind`` is "row" or "column". An entry that is a string is the name of a row or a column without other keys.
        """
        if isinstance(entry, str):
            entry = {"name": entry}
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError(f"{self.where}: a {kind} has no name", "add name = ... to it")
        title = f"{kind} {entry['name']!r}"
        self._check_keys(kind, entry, title)
        for settings in (*self._settings(entry), *entry.get("tasks", {}).values()):
            self._check_settings_of_file(settings, ALL_GROUPS, f"{self.where}: {title}")
        return entry

    def _check_keys(self, kind: str, entry: Mapping[str, Any], title: str) -> None:
        """Raise `InputError` for a key that `KEYS` does not list for this kind of part, or a value of another type.

        ``title`` names the part in messages.
        """
        allowed = KEYS[kind]
        for key, value in entry.items():
            if key not in allowed:
                raise InputError(
                    f"{self.where}: {title} has the unknown key {key!r}",
                    f"the keys are {', '.join(sorted(allowed))}",
                )
            type_hint, expected = allowed[key]
            if not fits(value, type_hint):
                raise InputError(
                    f"{self.where}: {title} has {key} = {reprlib.repr(value)}", f"give {expected}"
                )

    def _spots(
        self, row: dict[str, Any], columns: Sequence[dict[str, Any]], seeds: range
    ) -> Iterator[dict[str, Any]]:
        """Yield the spot of a row at each column, and add its cells to ``self.cells``.

        `ReproductionFolder.fill` reads spots. The entry ``cells`` has a list for each seed: the keys of its cells,
        whose numbers are combined as ``combine`` says (see `_cells_of`). ``published`` is the number of the paper, and
        ``later`` that of later work, or None. ``reason`` says why a spot has no cells; it is empty if it has some.
        """
        published_numbers = row.get("published", [""] * len(columns))  # "" stands for no number
        if len(published_numbers) != len(columns):
            raise InputError(
                f"{self.where}: row {row['name']!r} has {len(published_numbers)} published numbers",
                "give one for each column",
            )
        for published_number, column in zip(published_numbers, columns, strict=True):
            column_name = column["name"]
            # The keys of the row win over those of the column, and these over those of the recipe. A row or a column
            # that is named like a task has this task, unless the row or the column sets another.
            task_names = [name for name in (row["name"], column_name) if name in self.shared["tasks"]]
            merged = ChainMap(row, column, *({"task": name} for name in task_names), self.table)
            measure, task = merged.get("measure", "test_score"), merged.get("task")
            if measure not in MEASURES:
                raise InputError(
                    f"{self.where}: no measure {measure!r}", f"the measures are {', '.join(MEASURES)}"
                )
            # `_cells_of` checks the names also of cells that are not run.
            cell_names, combine = self._cells_of(row, column_name, merged)
            reason = self._reason_without_cells(row, column_name, cell_names)
            keys_by_seed: list[list[str]] = []
            if not reason:
                keys_by_seed = [
                    [self._cell(name, row, column, task, seed).key for name in cell_names] for seed in seeds
                ]
            yield {
                "row": row["name"],
                "column": column_name,
                "task": task,
                "measure": measure,
                "cells": keys_by_seed,
                "combine": combine,
                "published": None if published_number == "" else published_number,
                "later": row.get("later", {}).get(column_name),
                "reason": reason,
            }

    def _cells_of(
        self, row: Mapping[str, Any], column: str, merged: Mapping[str, Any]
    ) -> tuple[list[str], str]:
        """Return the names of the cells of a spot, and how their numbers become one.

        That is "best" for the cell with the best validation score, "ratio" for the first cell's number divided by the
        second's, and "" for a single cell or none. ``merged`` has the keys of the row, the column and the recipe.
        Raise `InputError` for a name that is not in ``cells.toml``.
        """
        # The row's key "at", which names other cells in some columns, wins over its key "best", and that over "cell".
        cells_at_column = row.get("at", {}).get(column)
        if row.get("best") and not cells_at_column:
            names, combine = row["best"], "best"
        else:
            cells = cells_at_column or merged.get("cell")
            if isinstance(cells, list):  # two names
                names, combine = cells, "ratio"
            else:
                names, combine = [cells] if cells else [], ""
        for name in names:
            self._cell_named(name)
        return names, combine

    def _reason_without_cells(self, row: Mapping[str, Any], column: str, names: Sequence[str]) -> str:
        """Return why no cell is run for a spot whose cells have these ``names``, or "" if they are run."""
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
        """Return the cell of this name in ``cells.toml``, and add it to ``self.cells``, after the cells that it needs.

        ``needed_by`` has the names of the cells for which this one is made: that of a spot, then a cell that this one
        needs, and so on.
        """
        stage = self._cell_named(name)["stage"]
        settings = self._settings_of_cell(name, row, column, task, seed)
        # A value that names another cell becomes that cell. A cell that needs itself would be made without end.
        chain = (*needed_by, name)
        for key, value in settings.items():
            if isinstance(value, str) and value.startswith(CELL):
                needed_name = value.removeprefix(CELL)
                problem = ""
                if needed_name in chain:
                    problem = "needs itself"
                elif key not in SETTINGS_THAT_NAME_CELLS:
                    problem = f"may not name a cell in {key!r}"
                if problem:
                    raise InputError(
                        f"{self.where}: {name} {problem}", f"give {key!r} another value than {value!r}"
                    )
                # The settings of the row and the column are not passed on: they are those of this cell alone.
                settings[key] = self._cell(needed_name, {}, {}, task, seed, chain)
        has_task = stage in ("fit", "train", "attention")
        cell = Cell(stage, task if has_task else None, settings)
        return self.cells.setdefault(cell.key, cell)

    def _settings_of_cell(
        self, name: str, row: Mapping[str, Any], column: Mapping[str, Any], task: str | None, seed: int
    ) -> dict[str, Any]:
        """Return the settings of the cell of this name at a row and a column; those with the value "" are left out."""
        cell_table = self._cell_named(name)
        stage = cell_table["stage"]
        allowed = GROUP_OF_OPTION[stage]
        # Later settings win over earlier ones. First those of the scale (for all tasks, "any", then for this one), of
        # --override and of the recipe. They are for all stages, so that options of other stages are skipped.
        of_scale = [self._of_scale(part).get(key, {}) for part in ("all", stage) for key in ("any", task)]
        settings: dict[str, Any] = {"seed": seed} if "seed" in allowed else {}
        for layer in (*of_scale, self.override, *self._settings(self.table)):
            settings = _merged(settings, {key: value for key, value in layer.items() if key in allowed})
        # Then those of the cell, the row, the column and the row's key "tasks", which must be options of the stage.
        of_task = row.get("tasks", {}).get(task, {})
        for layer in (*self._settings(cell_table), *self._settings(row), *self._settings(column), of_task):
            self._check_settings_of_file(layer, allowed, f"{self.where}: {name}")
            settings = _merged(settings, layer)
        return {key: value for key, value in settings.items() if value != ""}  # "" stands for the default

    def _cell_named(self, name: str) -> dict[str, Any]:
        """Return the table of a cell in ``cells.toml``; raise `InputError` if it has no cell of this name."""
        if name not in self.shared["cells"]:
            raise InputError(
                f"{self.where}: no cell {name!r}", f"the cells are {', '.join(self.shared['cells'])}"
            )
        return self.shared["cells"][name]

    def _of_scale(self, part: str) -> Any:
        """Return a part of ``cells.toml``, such as "seeds" or "train", for the first name of the scale that has it.

        ``SCALES[self.scale]`` lists these names. An empty dictionary is returned if none of them has the part.
        """
        return next(
            (self.shared[name][part] for name in SCALES[self.scale] if part in self.shared[name]), {}
        )

    def _settings(self, entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the settings of a row, a column, a cell or a recipe: those for all scales, then those for this scale.

        Those for this scale are under the first name in ``SCALES[self.scale]`` that the entry has.
        """
        yield entry.get("settings", {})
        yield next((entry[name] for name in SCALES[self.scale] if name in entry), {})

    def _check_settings_of_file(
        self, settings: Mapping[str, Any], allowed: Mapping[str, type[Options]], where: str
    ) -> None:
        """Raise `InputError` for wrong settings, and for those that no file may decide: folders, devices, modules."""
        # The option ``run`` names a folder, and so only the command line may set it. But a recipe may name another
        # cell of this reproduction, whose folder is then used.
        to_check = dict(settings)
        if str(settings.get("run", "")).startswith(CELL):
            del to_check["run"]
        without_where(to_check, where)
        refuse_modules(settings, where)
        _check_settings(settings, allowed, where)


def _positions(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the positions (row, column) of the numbers that a claim compares."""
    first_positions = [claim[key] for key in ("more", "less", "near") if key in claim]
    return [(row, column) for row, column in (*first_positions, *claim.get("than", ()))]


def _check_settings(settings: Mapping[str, Any], allowed: Mapping[str, type[Options]], where: str) -> None:
    """Raise `InputError` for unknown settings, and for values that their option refuses.

    ``allowed`` has the group of each option that may be set, by the option's name. Messages begin with ``where``.
    """
    for key, value in settings.items():
        if key not in allowed:
            hint = nearest(key, allowed) or f"; the settings are {', '.join(sorted(allowed))}"
            raise InputError(f"{where}: no setting {key!r}{hint}")
        if not _is_json(value):
            remedy = "give a string, a finite number, true, false, or a list or table of these"
            raise InputError(f"{where}: {key} = {reprlib.repr(value)}", remedy)
        if value != "":  # "" stands for the option's default
            # A group checks the values of its options when an object of it is made; the object itself is not used.
            try:
                allowed[key](**{key: value})
            except InputError as error:
                raise InputError(f"{where}: {error}") from error


def _is_json(value: Any) -> bool:
    """Return whether JSON can hold a value of a TOML file: no date, no infinity, no integer beyond 64 bits."""
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    return fits(value, str | bool | int | float)


def _merged(settings: Mapping[str, Any], overriding: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` with the values of ``overriding``, which win.

    If both have a dictionary of one name, such as the ``parameters`` of a task, these are merged in the same way.
    """
    merged = {**settings, **overriding}
    for key, value in overriding.items():
        if isinstance(value, dict) and isinstance(settings.get(key), Mapping):
            merged[key] = {**settings[key], **value}
    return merged
