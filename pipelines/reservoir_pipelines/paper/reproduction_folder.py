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

from reservoir.errors import InputError, writing
from reservoir.readouts.evaluation import accuracy_interval
from reservoir_pipelines.files import json_digest, read_checked, write_checked
from reservoir_pipelines.paper.claims import interval_of, size_of, verdict_on

CELL = "cell:"
"""Prefix of a setting that names another cell: by its name in a recipe, by its key in the files of this folder."""

FORMAT = 1
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


@dataclass(frozen=True)
class Cell:
    """A stage on a task with settings; another cell as a setting stands for the folder of that cell."""

    stage: str
    task: str | None
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
        """A short name for messages."""
        backbone, depth = self.settings.get("backbone", ""), self.settings.get("depth")
        parameters = self.settings.get("parameters", {}).items()
        words = [
            self.stage,
            self.task or self.settings.get("corpus", ""),
            *(f"{name}={value}" for name, value in parameters if not name.endswith("_rows")),
            f"backbone of {backbone.settings.get('corpus')}" if isinstance(backbone, Cell) else backbone,
            f"depth {depth}" if depth else "",
            *(_joined(self.settings.get(n, "")) for n in ("init", "input", "train", "readout", "columns")),
            f"seed {self.settings.get('seed', 0)}",
        ]
        return " ".join(word for word in words if word)

    def to_dict(self) -> dict[str, Any]:
        """Return stage, task and settings as JSON values, with the keys of other cells."""
        settings = {n: f"{CELL}{v.key}" if isinstance(v, Cell) else v for n, v in self.settings.items()}
        return {"stage": self.stage, "task": self.task, "settings": settings}


def _joined(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ",".join(names)


class ReproductionFolder:
    """The files of a reproduction; each file is complete or absent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # for files of cells that do not belong in the cache, such as pretrained models
        self.work = path / "work"

    def create(self) -> None:
        """Create the folders."""
        with writing(self.path):
            for folder in (self.path / "cells", self.path / "tables", self.work):
                refuse_links(folder)
                make_folder(folder)

    def result(self, key: str) -> dict[str, Any] | None:
        """Return the result of a cell, or None if it has not finished."""
        result = self._read(self.path / "cells" / f"{key}.json")
        return result and {**result, "folder": str((self.path / result["folder"]).resolve())}

    def is_complete(self, cell: Cell) -> bool:
        """Return whether a cell has a result, and a pretrained model its weights, which may have been removed."""
        result = self.result(cell.key)
        return result is not None and (cell.stage != "pretrain" or Path(result["folder"]).exists())

    def unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells without a result, and the models that these need and whose weights are missing."""
        to_run = {cell.key: cell for cell in cells if not self.result(cell.key)}
        needed = {need.key for cell in to_run.values() for need in cell.needs if not self.is_complete(need)}
        return [cell for cell in cells if cell.key in to_run or cell.key in needed]

    def results(self) -> list[dict[str, Any]]:
        """Return the results of all finished cells."""
        paths = sorted((self.path / "cells").glob("*.json"))
        return [
            result for path in paths if path.suffixes == [".json"] and (result := self.result(path.stem))
        ]

    def failure(self, key: str) -> str:
        """Return why the last run of a cell failed, or an empty string."""
        failure = self._read(self.path / "cells" / f"{key}.failed.json")
        return str(failure["reason"]) if failure else ""

    def failed_since(self, key: str, moment: float) -> bool:
        """Return whether a cell has failed since ``moment``, in seconds since the epoch."""
        with suppress(FileNotFoundError):
            return (self.path / "cells" / f"{key}.failed.json").stat().st_mtime >= moment
        return False

    def save_result(self, key: str, result: Mapping[str, Any]) -> None:
        """Write the result of a cell, with its ``folder`` relative to this one, so that both can be moved together."""
        folder = os.path.relpath(Path(result["folder"]).resolve(), self.path.resolve())
        write_checked(self.path / "cells" / f"{key}.json", {**result, "folder": folder, "format": FORMAT})
        (self.path / "cells" / f"{key}.failed.json").unlink(missing_ok=True)

    def save_failure(self, key: str, cell: Mapping[str, Any]) -> None:
        """Write a cell with the ``reason`` of its failure; the next run tries it again."""
        write_checked(self.path / "cells" / f"{key}.failed.json", {**cell, "format": FORMAT})

    def save_table(self, table: Mapping[str, Any]) -> None:
        """Write a table, with or without its numbers."""
        write_checked(self.path / "tables" / f"{table['name']}.json", {**table, "format": FORMAT})

    def tables(self) -> list[dict[str, Any]]:
        """Return the tables, then the figures, with the numbers of the cells that have finished so far."""
        paths = sorted(
            (self.path / "tables").glob("*.json"), key=lambda p: (p.stem[0] != "t", len(p.stem), p.stem)
        )
        return [self.fill(table) for path in paths if (table := self._read(path))]

    def fill(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table with the numbers of the cells that have finished so far, and whether its claims hold.

        Each number is the mean over the seeds, with its standard error; a test score has its 95%
        interval over rows.
        """
        rows = [
            {**row, "spots": [s and {**s, **self._numbers(s)} for s in row["spots"]]}
            for row in table["rows"]
        ]
        spots = {
            (row["name"], column): spot
            for row in rows
            for column, spot in zip(table["columns"], row["spots"], strict=True)
            if spot
        }
        claims = [{**claim, **verdict_on(claim, spots)} for claim in table["claims"]]
        return {**table, "rows": rows, "claims": claims}

    @contextmanager
    def lock(self, key: str, *, wait: bool) -> Iterator[bool]:
        """Lock a cell within the context; yield False if another process has locked it and ``wait`` is False."""
        with locked(self.path / "cells" / f".{key}.lock", wait=wait) as is_held:
            yield is_held

    def _numbers(self, spot: Mapping[str, Any]) -> dict[str, Any]:
        """Return mean, standard error, interval and seeds of a table position, or the reason why they are missing."""
        numbers = [self._number(spot, keys) for keys in spot["cells"]]
        finished = [number for number in numbers if number.value is not None]
        values = [number.value for number in finished if number.value is not None]
        reason = "; ".join(
            dict.fromkeys(filter(None, (spot["reason"], *(number.reason for number in numbers))))
        )
        if values and reason:
            reason = f"{len(values)} of {len(numbers)} seeds; the others: {reason}"
        # Test scores have an interval over test rows.
        cells = [number.cell["values"] for number in finished]
        tested = [cell for cell in cells if spot["measure"] == "test_score" and cell.get("test_rows")]
        bounds = zip(*(cell["test_interval"] for cell in tested), strict=True)
        first = finished[0].cell if finished else None
        run = first and self.result(str(first["settings"].get("run", "")).removeprefix(CELL))
        return {
            "mean": fmean(values) if values else None,
            "error": stdev(values) / sqrt(len(values)) if len(values) > 1 else None,
            "seeds": len(values),
            "by_seed": [number.value for number in numbers],
            "interval": [100 * fmean(bound) for bound in bounds] or None,
            "ends": _ends(spot["measure"], values, finished) if values else None,
            "rows": max((cell["test_rows"] for cell in tested), default=None),
            "reason": reason,
            **(size_of(first, run) if first else {}),
        }

    def _number(self, spot: Mapping[str, Any], keys: list[str]) -> "_Number":
        """Return the number for one seed, or the reason why it is missing."""
        # The results of all cells of the spot must exist.
        results = []
        for key in keys:
            if (result := self.result(key)) is None:
                return _Number(reason=self.failure(key) or "not run yet")
            results.append(result)
        if spot.get("combine") == "best":
            results = [max(results, key=lambda result: result["values"]["valid_score"])]
        name = spot["measure"]
        first, *others = [_measure(name, result["values"]) for result in results]
        if first is None or None in others:
            return _Number(reason=f"not measured: {MEASURES.get(name) or name}")
        # One measure is the number; of two, it is the ratio, whose bounds are those of the extreme ratios.
        if not others:
            return _Number(float(first), cell=results[0], bounds=_bounds(name, first, results[0]))
        if not others[0]:
            return _Number(reason="the second number of the ratio is zero")
        numerator = _bounds(name, first, results[0])
        denominator = _bounds(name, others[0], results[1])
        bounds = None
        if numerator and denominator:
            smallest = numerator[0] / denominator[1]
            largest = numerator[1] / denominator[0] if denominator[0] else inf
            bounds = smallest, largest
        return _Number(first / others[0], cell=results[0], bounds=bounds)

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            values = read_checked(path)
            return values if values.get("format") == FORMAT else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: damaged ({error})", "remove it, and run the same command again"
            ) from error


@dataclass(frozen=True)
class _Number:
    """A number of one seed with its cell and the bounds between which it lies, or the reason why it is missing."""

    value: float | None = None
    reason: str = ""
    cell: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None


def _bounds(measure: str, value: float, result: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the bounds of one seed's number: its 95% interval over rows, or the resolution of steps."""
    values = result["values"]
    if measure == "test_score" and values.get("test_interval"):
        low, high = values["test_interval"]
        return 100 * low, 100 * high
    if measure == "train_score":  # the accuracy of the last tenth of the rows that were seen
        rows = max(1, values["passes"] // 10)
        low, high = accuracy_interval(np.arange(rows) < value / 100 * rows) or (0.0, 1.0)
        return 100 * low, 100 * high
    every = result["settings"].get("eval_every")
    if measure == "converged_step" and every:  # between two validations nobody looked
        return value - every, value
    return None


def _ends(measure: str, values: Sequence[float], numbers: Sequence[_Number]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean over seeds, by which claims are judged, or None if a single run has none."""
    bounds = [number.bounds for number in numbers if number.bounds]
    within = (fmean(low for low, _ in bounds), fmean(high for _, high in bounds)) if bounds else None
    if measure != "converged_step":
        return interval_of(values, measure, within)
    # A number of steps is rounded up to the next validation: a difference of one validation is none.
    ends = interval_of(values, measure, None)
    return ends and within and (min(ends[0], within[0]), max(ends[1], within[1]))


def _measure(name: str, values: Mapping[str, Any]) -> float | None:
    """Return a measure of a finished cell, accuracies in percent; None if the cell has no such value."""
    if name in RATIOS:
        seconds, number = map(values.get, RATIOS[name])
        return seconds / number if seconds is not None and number else None
    value = values.get(name)
    return 100 * value if name.endswith(("_score", "_share")) and value is not None else value


def is_reproduction(path: Path) -> bool:
    """Return whether a folder holds a reproduction."""
    return (path / "tables").is_dir() and (path / "cells").is_dir()
