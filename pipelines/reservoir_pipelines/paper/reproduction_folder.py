"""The folder of a reproduction: one file per finished cell, one per failed cell, and the tables made from them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from reservoir_cache import locked, make_folder, refuse_links

from reservoir.backbone_names import DEFAULT_BACKBONE
from reservoir.errors import InputError, writing
from reservoir.pretraining.corpora import STREAMS
from reservoir.readouts.evaluation import accuracy_interval
from reservoir.tasks import TASKS
from reservoir_pipelines.files import json_digest, read_checked, write_checked
from reservoir_pipelines.paper.claims import interval_of, size_of_cell, verdict_on

CELL = "cell:"
"""Prefix of a setting that names another cell: by its name in a recipe, by its key in the files of this folder."""

CELL_FORMAT = 1
"""Version of the files, increased when a value changes its name or meaning; files of other versions are ignored."""

MEASURES = {
    "test_score": "test accuracy in percent",
    "train_score": "training accuracy in percent, over the last tenth of the steps",
    "raw_score": "test accuracy of the raw input in percent",
    "converged_step": "steps until the validation score stays within a point of its last value",
    "step_seconds": "seconds per step",
    "readout_seconds": "seconds per additional readout",
    "cost": "seconds",
    "diagonals": "mean attention on the diagonals over the mean elsewhere",
    "strongest_distance": "largest mean attention at one distance over the mean elsewhere",
    "weight_deviation": "standard deviation of the weights",
    "bias_deviation": "standard deviation of the biases",
    "blocks": "",
    "width": "",
    "heads": "",
    "parameters": "",
    "trained": "",
    "paper_share": "trained parameters on cifar10, counted as in the paper, in percent of all",
}
"""Measures of a cell that a table can show, each with its unit; counts have none."""

RATIOS = {"step_seconds": ("train_seconds", "steps"), "readout_seconds": ("fit_seconds", "tried")}
"""Measures that are one value of a cell divided by another."""


@dataclass(frozen=True)
class Cell:
    """A stage on a task with settings; another cell as a setting stands for the folder of that cell."""

    stage: str  # a key of `STAGES` in recipe.py
    task: str | None  # None for stages that have no rows
    settings: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """First 16 digits of the SHA-256 of stage, task and settings."""
        return json_digest(self.to_dict())[:16]

    @property
    def needs(self) -> list["Cell"]:
        """The cells whose folders this cell reads."""
        return [value for value in self.settings.values() if isinstance(value, Cell)]

    @property
    def title(self) -> str:
        """A short name for messages: the stage, the task and the settings that readers tell cells apart by."""
        backbone, depth = self.settings.get("backbone", ""), self.settings.get("depth")
        # A backbone that another cell pretrains is named by its corpus.
        if isinstance(backbone, Cell):
            backbone = f"backbone of {backbone.settings.get('corpus')}"
        parameters = self.settings.get("parameters", {}).items()
        words = [
            self.stage,
            self.task or self.settings.get("corpus", ""),
            *(f"{name}={value}" for name, value in parameters if not name.endswith("_rows")),
            backbone,
            f"depth {depth}" if depth else "",
            *(_joined(self.settings.get(n, "")) for n in ("init", "input", "train", "readout", "columns")),
            f"seed {self.settings.get('seed', 0)}",
        ]
        return " ".join(word for word in words if word)

    def to_dict(self) -> dict[str, Any]:
        """Return stage, task and settings as JSON values; a cell as a setting becomes `CELL` and its key."""
        settings = {
            name: f"{CELL}{value.key}" if isinstance(value, Cell) else value
            for name, value in self.settings.items()
        }
        return {"stage": self.stage, "task": self.task, "settings": settings}


def file_stamps(cell: Cell) -> dict[str, list[int]]:
    """Return size and modification time of each file that a cell, or a cell that it needs, reads, by the path as named.

    These are data, models and corpora of the user; a folder stands for the files in it, with the sum of their sizes and
    the latest time. The times are in nanoseconds since the epoch.
    """
    stamps: dict[str, list[int]] = {}
    for name in sorted(_named_paths(cell)):
        if stats := _stats(Path(name)):
            stamps[name] = [sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)]
    return stamps


def _named_paths(cell: Cell) -> set[str]:
    """Return the settings of a cell, and of the cells that it needs, that name files or folders, if these exist.

    All other settings are words, such as ``columns = "output"``, also if the working folder has a file of that name.
    """
    paths = {path for need in cell.needs for path in _named_paths(need)}
    settings = {name: value for name, value in cell.settings.items() if isinstance(value, str)}
    if cell.task not in TASKS:
        paths.add(cell.task or "")
    # A corpus may be a mixture. Those of `corpus_named` precede files of the same names.
    corpus = settings.get("corpus", "")
    paths |= {corpus, *map(str.strip, corpus.split(","))} - {"bit-memory", *STREAMS}
    # The default backbone precedes a folder of its name; of the other backbones, a folder comes first.
    paths |= {settings.get("backbone", ""), settings.get("run", "")} - {DEFAULT_BACKBONE}
    # Initial weights are drawn as a word says, or are those in the folder of a model.
    init = settings.get("init", "")
    if (Path(init) / "config.json").exists():
        paths.add(init)
    return paths - {""}


def _stats(path: Path) -> list[os.stat_result]:
    """Return what the system knows of a file, or of all files in a folder; empty if there is none, or no such path."""
    with suppress(OSError):  # a setting may be a text that is too long for a path
        files = [path] if path.is_file() else path.rglob("*")
        return [file.stat() for file in files if file.is_file()]
    return []


def _joined(names: str | Sequence[str]) -> str:
    """Return one or several names as a text with commas."""
    return names if isinstance(names, str) else ",".join(names)


class ReproductionFolder:
    """The files of a reproduction; each file is complete or absent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # for files of cells that do not belong in the cache, such as pretrained models
        self.work = path / "work"

    def create(self) -> None:
        """Create the folder with its subfolders; raise `InputError` if that is not possible."""
        with writing(self.path):
            for folder in (self.path / "cells", self.path / "tables", self.work):
                refuse_links(folder)  # files would be written to another place
                make_folder(folder)

    def result(self, key: str) -> dict[str, Any] | None:
        """Return the result of a cell with the absolute path of its ``folder``, or None if it has not finished."""
        result = self._read(self.path / "cells" / f"{key}.json")
        if result is None:
            return None
        return {**result, "folder": str((self.path / result["folder"]).resolve())}

    def is_complete(self, cell: Cell) -> bool:
        """Return whether a cell has a result, and a pretrained model its weights, which may have been removed.

        A result of files that have changed since then is none.
        """
        result = self.current_result(cell.key)
        if result is None or cell.stage != "pretrain":
            return result is not None
        return any(Path(result["folder"]).glob("*.safetensors"))

    def current_result(self, key: str) -> dict[str, Any] | None:
        """Return the result of a cell, or None if it has not finished, or if the files that it reads have changed.

        A result is also valid in a working folder that lacks these files.
        """
        result = self.result(key)
        # The committed results of other machines have no stamps of files.
        if result is None or "files" not in result:
            return result
        stamps = file_stamps(self._stored_cell(result))
        is_current = all(result["files"].get(name, stamp) == stamp for name, stamp in stamps.items())
        return result if is_current else None

    def _stored_cell(self, result: Mapping[str, Any]) -> Cell:
        """Return the cell of a result, with the cells that it needs as far as they have results."""
        settings = dict(result["settings"])
        for name, value in settings.items():
            names_cell = isinstance(value, str) and value.startswith(CELL)
            if names_cell and (need := self.result(value.removeprefix(CELL))):
                settings[name] = self._stored_cell(need)
        return Cell(result["stage"], result["task"], settings)

    def unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells without a result, and the models that these need and whose weights are missing."""
        keys_without_result = {cell.key for cell in cells if not self.current_result(cell.key)}
        needs = [need for cell in cells if cell.key in keys_without_result for need in cell.needs]
        missing_needs = {need.key for need in needs if not self.is_complete(need)}
        return [cell for cell in cells if cell.key in keys_without_result | missing_needs]

    def results(self) -> list[dict[str, Any]]:
        """Return the results of all finished cells."""
        results = []
        for path in sorted((self.path / "cells").glob("*.json")):
            is_failure = path.suffixes != [".json"]  # KEY.failed.json
            if not is_failure and (result := self.result(path.stem)):
                results.append(result)
        return results

    def failure(self, key: str) -> str:
        """Return why the last run of a cell failed, or an empty string."""
        failure = self._read(self.path / "cells" / f"{key}.failed.json")
        return str(failure["reason"]) if failure else ""

    def failed_since(self, key: str, moment: float) -> bool:
        """Return whether a cell has failed since ``moment``, in seconds since the epoch."""
        with suppress(FileNotFoundError):  # it has not failed, or has been run again with success
            return (self.path / "cells" / f"{key}.failed.json").stat().st_mtime >= moment
        return False

    def save_result(self, key: str, result: Mapping[str, Any]) -> None:
        """Write the result of a cell, and remove the reason of an earlier failure."""
        # The cell's folder is stored relative to this one, so that both can be moved together.
        folder = os.path.relpath(Path(result["folder"]).resolve(), self.path.resolve())
        write_checked(
            self.path / "cells" / f"{key}.json", {**result, "folder": folder, "format": CELL_FORMAT}
        )
        (self.path / "cells" / f"{key}.failed.json").unlink(missing_ok=True)

    def save_failure(self, key: str, cell: Mapping[str, Any]) -> None:
        """Write a cell with the ``reason`` of its failure; the next run tries it again."""
        write_checked(self.path / "cells" / f"{key}.failed.json", {**cell, "format": CELL_FORMAT})

    def save_table(self, table: Mapping[str, Any]) -> None:
        """Write a table, with or without its numbers.

        Of the seeds that the saved table has beyond those of this one, the finished ones stay in it.
        """
        path = self.path / "tables" / f"{table['name']}.json"
        saved_table = None
        with suppress(InputError):  # damaged: it is replaced
            saved_table = self._read(path)
        spot_at = _spots(saved_table) if saved_table else {}
        rows = []
        further_keys: list[str] = []
        for row in table["rows"]:
            spots = []
            for column, spot in zip(table["columns"], row["spots"], strict=True):
                further = self._further_seeds(spot, spot_at.get((row["name"], column)))
                further_keys += [key for keys in further for key in keys]
                spots.append(spot and {**spot, "cells": [*spot["cells"], *further]})
            rows.append({**row, "spots": spots})
        keys = [*dict.fromkeys([*table["keys"], *further_keys])]
        write_checked(path, {**table, "rows": rows, "keys": keys, "format": CELL_FORMAT})

    def _further_seeds(
        self, spot: Mapping[str, Any] | None, saved_spot: Mapping[str, Any] | None
    ) -> list[list[str]]:
        """Return the keys of the cells that a saved spot has for seeds after those of a spot, up to the last finished.

        The list is empty if the cells of their common seeds differ, because the recipe has changed.
        """
        if not spot or not saved_spot:
            return []
        seeds = len(spot["cells"])
        if not seeds or saved_spot["cells"][:seeds] != spot["cells"]:
            return []
        further = saved_spot["cells"][seeds:]
        while further and not all(map(self.result, further[-1])):
            further = further[:-1]
        return further

    def tables(self) -> list[dict[str, Any]]:
        """Return the tables, then the figures, with the numbers of the cells that have finished so far."""

        def order(path: Path) -> tuple[bool, int, str]:
            name = path.stem
            return not name.startswith("t"), len(name), name  # by length, so that table9 precedes table10

        paths = sorted((self.path / "tables").glob("*.json"), key=order)
        return [self.fill(table) for path in paths if (table := self._read(path))]

    def fill(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table with the numbers of the cells that have finished so far, and whether its claims hold.

        A position of the table is a *spot*, or None if the recipe has no number there. `_numbers` describes what this
        function adds to each spot.
        """
        rows = [
            {**row, "spots": [spot and {**spot, **self._numbers(spot)} for spot in row["spots"]]}
            for row in table["rows"]
        ]
        spot_at = _spots({**table, "rows": rows})
        claims = [{**claim, **verdict_on(claim, spot_at)} for claim in table["claims"]]
        return {**table, "rows": rows, "claims": claims}

    @contextmanager
    def lock(self, key: str, *, wait: bool) -> Iterator[bool]:
        """Lock a cell within the context; yield False if another process has locked it and ``wait`` is False."""
        with locked(self.path / "cells" / f".{key}.lock", wait=wait) as is_held:
            yield is_held

    def _numbers(self, spot: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a table shows at a spot, over the seeds whose cells have finished.

        | entry | meaning |
        | --- | --- |
        | ``mean``, ``error`` | mean over the seeds and its standard error, or None with too few seeds |
        | ``seeds``, ``by_seed`` | number of finished seeds, and the number of each seed, or None |
        | ``interval`` | 95% interval of a test score over test rows, in percent, mean over the seeds; else None |
        | ``ends`` | the interval by which claims are judged, see `_ends`, or None |
        | ``rows`` | number of test rows of a test score; else None |
        | ``reason`` | why the numbers of some seeds are missing; empty if none is |
        | the names in `size_of_cell` | model, training rows and steps of the first finished cell |
        """
        numbers = [self._number(spot, keys) for keys in spot["cells"]]
        finished = [number for number in numbers if number.value is not None]
        values = [number.value for number in finished if number.value is not None]
        reasons = dict.fromkeys(filter(None, (spot["reason"], *(number.reason for number in numbers))))
        reason = "; ".join(reasons)
        if values and reason:
            reason = f"{len(values)} of {len(numbers)} seeds; the others: {reason}"
        cells = [number.cell["values"] for number in finished]
        tested = [cell for cell in cells if spot["measure"] == "test_score" and cell.get("test_rows")]
        # Test scores have an interval over test rows, unless these are too few: of each seed, its low and high end.
        intervals = [cell["test_interval"] for cell in tested if cell["test_interval"]]
        interval = [100 * fmean(ends) for ends in zip(*intervals, strict=True)]
        # An attention cell reads the weights of a training, whose size is then the size of the result.
        size: dict[str, str | bool] = {}
        if finished:
            first_cell = finished[0].cell
            run = str(first_cell["settings"].get("run", ""))
            size = size_of_cell(first_cell, self.result(run.removeprefix(CELL)) if run else None)
        return {
            "mean": fmean(values) if values else None,
            "error": stdev(values) / sqrt(len(values)) if len(values) > 1 else None,
            "seeds": len(values),
            "by_seed": [number.value for number in numbers],
            "interval": interval or None,
            "ends": _ends(spot["measure"], values, finished) if values else None,
            "rows": max((cell["test_rows"] for cell in tested), default=None),
            "reason": reason,
            **size,
        }

    def _number(self, spot: Mapping[str, Any], keys: list[str]) -> "_Number":
        """Return the number of a spot for one seed, or the reason why it is missing.

        ``keys`` are those of the seed's cells: one, the two of a ratio, or those among which the best one is shown.
        """
        # The results of all cells must exist.
        results = []
        for key in keys:
            if (result := self.current_result(key)) is None:
                has_old_result = self.result(key) is not None
                reason = "its files have changed: run it again" if has_old_result else "not run yet"
                return _Number(reason=self.failure(key) or reason)
            results.append(result)
        if spot.get("combine") == "best":
            # A training that diverged before its first validation has no score.
            validated = [result for result in results if result["values"]["valid_score"] is not None]
            if not validated:
                return _Number(reason="diverged")
            results = [max(validated, key=lambda result: result["values"]["valid_score"])]
        measure = spot["measure"]
        first, *others = [_measure(measure, result["values"]) for result in results]
        if first is None or None in others:
            return _Number(reason=f"not measured: {MEASURES.get(measure) or measure}")
        first_bounds = _bounds(measure, first, results[0])
        if not others:
            return _Number(float(first), cell=results[0], bounds=first_bounds)
        # Two cells give the ratio of their numbers, whose bounds are the smallest and the largest possible ratio.
        denominator = others[0]
        if not denominator:
            return _Number(reason="the second number of the ratio is zero")
        bounds = None
        denominator_bounds = _bounds(measure, denominator, results[1])
        if first_bounds and denominator_bounds:
            smallest = first_bounds[0] / denominator_bounds[1]
            largest = first_bounds[1] / denominator_bounds[0] if denominator_bounds[0] else inf
            bounds = smallest, largest
        return _Number(first / denominator, cell=results[0], bounds=bounds)

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return the content of a file, or None if there is no file, or one of another version of `CELL_FORMAT`."""
        try:
            values = read_checked(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: damaged ({error})", "remove it, and run the same command again"
            ) from error
        return values if values.get("format") == CELL_FORMAT else None


def _spots(table: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the spots of a table by the names of their row and column."""
    return {
        (row["name"], column): spot
        for row in table["rows"]
        for column, spot in zip(table["columns"], row["spots"], strict=True)
        if spot
    }


@dataclass(frozen=True)
class _Number:
    """The number of a spot for one seed, or the reason why it is missing."""

    value: float | None = None  # None if it is missing
    reason: str = ""  # empty if it is not missing
    # The result of its cell; of a ratio, of the first one.
    cell: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None  # the number lies between them, see `_bounds`


def _bounds(measure: str, value: float, result: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the bounds between which one seed's number lies, in its unit, or None if nothing is known about them.

    They are the 95% interval of an accuracy over rows, or the resolution of a number of steps. ``value`` is the number;
    an accuracy is in percent. ``result`` is that of the cell, in which accuracies are shares from 0 to 1.
    """
    values = result["values"]
    if measure == "test_score" and values.get("test_interval"):
        low, high = values["test_interval"]
        return 100 * low, 100 * high
    if measure == "train_score":
        # The accuracy over the last tenth of the steps. A pass is that of one row, so this is a tenth of the passes.
        # Cells of earlier versions have no passes of the scored run alone, only those of all runs of a sweep.
        rows = max(1, values.get("scored_passes", values["passes"]) // 10)
        share = value / 100
        correct = np.arange(rows) < share * rows  # only the number of correct rows matters, not which
        low, high = accuracy_interval(correct) or (0.0, 1.0)
        return 100 * low, 100 * high
    eval_every = result["settings"].get("eval_every")
    if measure == "converged_step" and eval_every:
        return value - eval_every, value  # it may have converged at any step since the validation before
    return None


def _ends(measure: str, values: Sequence[float], numbers: Sequence[_Number]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean over seeds, by which claims are judged, or None if a single run has none.

    ``values`` are those of the finished ``numbers``, of which there is at least one.
    """
    bounds = [number.bounds for number in numbers if number.bounds]
    mean_bounds = (fmean(low for low, _ in bounds), fmean(high for _, high in bounds)) if bounds else None
    if measure != "converged_step":
        return interval_of(values, measure, mean_bounds)
    # A number of steps is rounded up to the next validation, so a difference of one validation is no difference: the
    # interval over seeds is extended to contain the bounds.
    ends = interval_of(values, measure, None)
    if ends is None or mean_bounds is None:
        return None
    return min(ends[0], mean_bounds[0]), max(ends[1], mean_bounds[1])


def _measure(name: str, values: Mapping[str, Any]) -> float | None:
    """Return a measure of a finished cell, scores and shares in percent; None if the cell has no such value."""
    if name in RATIOS:
        seconds, count = map(values.get, RATIOS[name])
        return seconds / count if seconds is not None and count else None
    value = values.get(name)
    is_share = name.endswith(("_score", "_share"))  # from 0 to 1 in the cell
    return 100 * value if is_share and value is not None else value


def is_reproduction(path: Path) -> bool:
    """Return whether a folder holds a reproduction."""
    return (path / "tables").is_dir() and (path / "cells").is_dir()
