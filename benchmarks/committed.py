"""The committed results: ``results/NAME.jsonl`` has one line of JSON for each finished cell of a reproduction.

A line has the task, the stage and the settings of a cell, the numbers of tables that it gives, as ``table | row |
column``, its values, commands, versions, times, notes and key, and the SHA-256 of all these, so that a bad merge is
noticed. It leaves out the arrays that only plots read, and progress messages. Lines are sorted by task, stage,
settings and seed. ``reproductions.py`` writes and reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from reservoir_pipelines.files import checked_line, read_lines
from reservoir_pipelines.paper.page import ARRAYS
from reservoir_pipelines.paper.reproduction_folder import CELL_FORMAT, Cell, ReproductionFolder

RESULTS = Path("benchmarks/results")
# A flag with its folder, whose name may be quoted.
FLAG = re.compile(r"(--(data|cache)) (?:'[^']*'|\S+)")
# The part of a path above a folder of the cache, or above the files of a cell in the folder of a reproduction.
ABOVE_CACHE = re.compile(r"[^\s='\"(]*/(?=(?:prepared|features|readouts|runs)/)")
ABOVE_WORK = re.compile(r"[^\s='\"(]*/(?=work/[0-9a-f]{16}\b)")
ABSOLUTE = re.compile(r"""["' =(]~?/\w""")
"""The start of a path that exists only on one machine, in a line of JSON."""


def results_text(results: Iterable[Mapping[str, Any]], numbers: Mapping[str, Set[str]]) -> str:
    """Return the sorted lines of cells; ``numbers`` has the numbers of tables that each cell gives, by its key."""
    return "".join(result_line(result, numbers) for result in sorted(results, key=_place))


def _place(result: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Return the place of a result in its file; the seeds of a cell are neighbours."""
    settings = {name: value for name, value in result["settings"].items() if name != "seed"}
    seed = result["settings"].get("seed", 0)
    return result["task"] or "", result["stage"], json.dumps(settings, sort_keys=True), seed


def result_line(result: Mapping[str, Any], numbers: Mapping[str, Set[str]]) -> str:
    """Return the line of a finished cell, in which no path belongs to a machine."""
    stage, settings = result["stage"], result["settings"]
    key = Cell(stage, result["task"], settings).key
    arrays = ARRAYS.get(stage, ())
    values = {
        "task": result["task"],
        "stage": stage,
        "settings": settings,
        "numbers": sorted(numbers.get(key, ())),
        "values": {name: value for name, value in result["values"].items() if name not in arrays},
        "seconds": result["seconds"],
        "cpu_seconds": result["cpu_seconds"],
        "commands": [without_machine(command) for command in result["commands"]],
        "notes": [without_machine(note) for note in result["notes"] if "%), " not in note],
        "made_with": result["made_with"],
        "folder": folder_without_machine(result["folder"]),
        "bytes": result["bytes"],
        "key": key,
        "format": CELL_FORMAT,
    }
    line = checked_line(values)
    if path := ABSOLUTE.search(line):
        text = line[path.start() + 1 : path.start() + 60]
        raise SystemExit(
            f"cell {key}: the path {text!r} exists only on one machine; run reproduce with relative paths"
        )
    return line


def without_machine(text: str) -> str:
    """Return a text in which ``data``, ``cache`` and ``work`` stand for the folders of the machine."""
    text = ABOVE_CACHE.sub("cache/", FLAG.sub(r"\1 \2", text))
    return ABOVE_WORK.sub("", text)


def folder_without_machine(path: str) -> str:
    """Return the folder of a cell as `without_machine` names it; it may contain spaces."""
    below_work = re.sub(r".*/(?=work/[0-9a-f]{16}\b)", "", path)
    return re.sub(r".*/(?=(?:readouts|runs)/)", "cache/", below_work)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; exit if one of them is damaged or has another format."""
    lines = [values for _, values in read_lines(path)]
    for number, values in enumerate(lines, start=1):
        if values is None or values["format"] != CELL_FORMAT:
            problem = "damaged" if values is None else f"format {values['format']}, not {CELL_FORMAT}"
            raise SystemExit(f"{path}, line {number}: {problem}; restore the file from git")
    return [values for values in lines if values is not None]


def unpack(path: Path, folder: ReproductionFolder) -> int:
    """Write the lines of a file as cells that a folder lacks, and return their number."""
    folder.create()
    missing = [values for values in read_results(path) if folder.result(values["key"]) is None]
    for values in missing:
        result = {name: value for name, value in values.items() if name not in ("numbers", "key")}
        folder.save_result(values["key"], {**result, "folder": str(folder.path / values["folder"])})
    return len(missing)


def add(source: ReproductionFolder, folder: ReproductionFolder) -> dict[str, int]:
    """Copy the finished cells of ``source`` to ``folder``; return how many are new, changed or the same."""
    counts = {"new": 0, "changed": 0, "the same": 0}
    for result in source.results():
        key = Cell(result["stage"], result["task"], result["settings"]).key
        before = folder.result(key)
        if before is None:
            counts["new"] += 1
        else:
            counts["the same" if result_line(before, {}) == result_line(result, {}) else "changed"] += 1
        folder.save_result(key, result)
    return counts
