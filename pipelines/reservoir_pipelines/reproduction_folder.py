"""The folder of a reproduction: one file per finished cell, one per failed cell, and the tables made from them."""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from reservoir_cache import make_folder, open_lock, refuse_links

from reservoir.errors import InputError
from reservoir_pipelines.files import json_digest, read_checked, write_checked, writing

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

NOT_CHECKED, NOT_MEASURED = "Not checked", "Not measured"
"""The verdicts on claims without numbers: one is for another scale or other models, or its cells are missing."""

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
            *(self.settings.get(name, "") for name in ("init", "input", "train", "readout", "columns")),
            f"seed {self.settings.get('seed', 0)}",
        ]
        return " ".join(word for word in words if word)

    def to_dict(self) -> dict[str, Any]:
        """Return stage, task and settings as JSON values, with the keys of other cells."""
        settings = {n: f"{CELL}{v.key}" if isinstance(v, Cell) else v for n, v in self.settings.items()}
        return {"stage": self.stage, "task": self.task, "settings": settings}


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
        found = self._read(self.path / "cells" / f"{key}.json")
        return found and {**found, "folder": str((self.path / found["folder"]).resolve())}

    def is_complete(self, cell: Cell) -> bool:
        """Return whether a cell has a result, and a pretrained model its weights, which may have been removed."""
        found = self.result(cell.key)
        return found is not None and (cell.stage != "pretrain" or Path(found["folder"]).exists())

    def unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells without a result, and the models that these need and whose weights are missing."""
        to_run = {cell.key: cell for cell in cells if not self.result(cell.key)}
        needed = {need.key for cell in to_run.values() for need in cell.needs if not self.is_complete(need)}
        return [cell for cell in cells if cell.key in to_run or cell.key in needed]

    def results(self) -> list[dict[str, Any]]:
        """Return the results of all finished cells."""
        paths = sorted((self.path / "cells").glob("*.json"))
        return [found for path in paths if path.suffixes == [".json"] and (found := self.result(path.stem))]

    def failure(self, key: str) -> str:
        """Return why the last run of a cell failed, or an empty string."""
        found = self._read(self.path / "cells" / f"{key}.failed.json")
        return str(found["reason"]) if found else ""

    def failed_since(self, key: str, moment: float) -> bool:
        """Return whether a cell has failed since ``moment``, in seconds since the epoch."""
        with suppress(FileNotFoundError):
            return (self.path / "cells" / f"{key}.failed.json").stat().st_mtime >= moment
        return False

    def save_result(self, key: str, result: Mapping[str, Any]) -> None:
        """Write the result of a cell, with its ``folder`` relative to this one, so that both can be moved together."""
        made = os.path.relpath(Path(result["folder"]).resolve(), self.path.resolve())
        write_checked(self.path / "cells" / f"{key}.json", {**result, "folder": made, "format": FORMAT})
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
        claims = [{**claim, **_verdict(claim, spots)} for claim in table["claims"]]
        return {**table, "rows": rows, "claims": claims}

    @contextmanager
    def lock(self, key: str, *, wait: bool) -> Iterator[bool]:
        """Lock a cell within the context; yield False if another process has locked it and ``wait`` is False."""
        with os.fdopen(open_lock(self.path / "cells" / f".{key}.lock"), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def _numbers(self, spot: Mapping[str, Any]) -> dict[str, Any]:
        """Return mean, standard error, interval and seeds of a table position, or the reason why they are missing."""
        found = [self._number(spot, keys) for keys in spot["cells"]]
        values = [value for value, _, _ in found if value is not None]
        reason = "; ".join(dict.fromkeys(filter(None, (spot["reason"], *(why for _, why, _ in found)))))
        if values and reason:
            reason = f"{len(values)} of {len(found)} seeds; the others: {reason}"
        tested = [cell for _, _, cell in found if spot["measure"] == "test_score" and cell.get("test_rows")]
        ends = zip(*(cell["test_interval"] for cell in tested), strict=True)
        return {
            "mean": fmean(values) if values else None,
            "error": stdev(values) / sqrt(len(values)) if len(values) > 1 else None,
            "seeds": len(values),
            "interval": [100 * fmean(end) for end in ends] or None,
            "rows": max((cell["test_rows"] for cell in tested), default=None),
            "reason": reason,
        }

    def _number(
        self, spot: Mapping[str, Any], keys: list[str]
    ) -> tuple[float | None, str, Mapping[str, Any]]:
        """Return the number for one seed or the reason why it is missing, and the values of its cell."""
        results = []
        for key in keys:
            if (result := self.result(key)) is None:
                return None, self.failure(key) or "not run yet", {}
            results.append(result["values"])
        if spot.get("combine") == "best":
            results = [max(results, key=lambda values: values["valid_score"])]
        name = spot["measure"]
        first, *others = [_measure(name, values) for values in results]
        if first is None or None in others:
            return None, f"not measured: {MEASURES.get(name) or name}", {}
        if not others:
            return float(first), "", results[0]
        return (
            (first / others[0], "", {})
            if others[0]
            else (None, "the second number of the ratio is zero", {})
        )

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            found = read_checked(path)
            return found if found.get("format") == FORMAT else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: damaged ({error}); remove it, and run the same command again"
            ) from error


def _verdict(
    claim: Mapping[str, Any], spots: Mapping[tuple[str, str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return whether a claim holds (None if unknown), the verdict in words, and the numbers or why there are none.

    A difference of zero, or of test scores within its 95% interval, decides nothing. The interval's
    half-width is the root of the sum of the squared half-widths of both scores, as for independent
    test rows.
    """
    if "unseen" in claim:
        return {"holds": None, "verdict": NOT_CHECKED, "numbers": claim["unseen"]}
    spot, sign = (claim["more"], 1) if "more" in claim else (claim["less"], -1)
    first, *others = (spots.get((row, column), {}) for row, column in (spot, *claim.get("than", ())))
    others = others or [{"mean": claim["by"]}]
    means = [one.get("mean") for one in (first, *others)]
    if None in means:
        reason = (first, *others)[means.index(None)].get("reason", "")
        return {"holds": None, "verdict": NOT_MEASURED, "numbers": reason}
    differences = [sign * (means[0] - mean) for mean in means[1:]]
    margins = [hypot(_half_width(first), _half_width(other)) for other in others]
    verdict, holds = "Cannot be seen at this size", None
    if all(difference > margin for difference, margin in zip(differences, margins, strict=True)):
        verdict, holds = "Holds", True
    elif any(difference < -margin for difference, margin in zip(differences, margins, strict=True)):
        verdict, holds = "Does not hold here", False
    numbers = [f"{mean:.3g}" if abs(mean) < 1000 else f"{mean:,.0f}" for mean in means]
    return {"holds": holds, "verdict": verdict, "numbers": f"{numbers[0]} against {', '.join(numbers[1:])}"}


def _half_width(spot: Mapping[str, Any]) -> float:
    low, high = spot.get("interval") or (0, 0)
    return (high - low) / 2


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
