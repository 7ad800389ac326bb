"""The stage ``reproduce``: the cells of tables and figures, each run once and saved when it finishes."""

import io
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_cache import path_below

from reservoir.errors import InputError, first_line
from reservoir.options import ClusterOptions, PlaceOptions, ReproduceOptions, TaskOptions
from reservoir_pipelines.files import cache_root, data_folder
from reservoir_pipelines.output import Record, notify, silenced
from reservoir_pipelines.paper.recipe import Recipe, load_recipe, recipe_names
from reservoir_pipelines.paper.reproduction_folder import Cell, ReproductionFolder
from reservoir_pipelines.workers import map_pieces, run_processes

_one_cell_at_a_time = threading.Lock()  # in a dask worker, because a model uses all cores


@dataclass(frozen=True, kw_only=True)
class Reproduction(Record):
    """The result of `reproduce`.

    Parameters
    ----------
    folder : Path
        Folder of the results.
    tables : tuple of dict
        The tables with their numbers.
    ran, reused : int
        Number of cells that this call finished, and number of cells that were finished before.
    failed : dict of str to str
        Why each failed cell failed, by the key of the cell.
    seconds : float
        Wall time.
    """

    folder: Path
    tables: tuple[dict[str, Any], ...]
    ran: int
    reused: int
    failed: Mapping[str, str]
    seconds: float


def reproduce(
    names: Sequence[str],
    options: ReproduceOptions,
    cluster: ClusterOptions,
    source: TaskOptions,
    place: PlaceOptions,
    *,
    confirm: Callable[[list[Cell], dict[str, Any]], bool] | None = None,
) -> Reproduction:
    """Run the unfinished cells of recipes, and fill in the tables of the recipes."""
    started = time.monotonic()
    recipes, cells, folder, places = planned(names, options, source, place)
    todo = folder.unfinished(cells)
    ran = 0
    if confirm is None or confirm(todo, places):
        folder.create()
        for recipe in recipes:  # before the cells run, so that `report` shows what has finished at any time
            folder.save_table(recipe.table)
        _run(todo, folder, places, cluster)
        ran = sum(map(folder.is_complete, todo))
    return Reproduction(
        folder=folder.path,
        tables=tuple(folder.fill(recipe.table) for recipe in recipes),
        ran=ran,
        reused=len(cells) - len(todo),
        failed={cell.key: reason for cell in todo if (reason := folder.failure(cell.key))},
        seconds=round(time.monotonic() - started, 1),
    )


def planned(
    names: Sequence[str], options: ReproduceOptions, source: TaskOptions, place: PlaceOptions
) -> tuple[list[Recipe], list[Cell], ReproductionFolder, dict[str, Any]]:
    """Return recipes, their cells, the folder of the results, and the given cache, data folder and device."""
    # Names such as "pretrained, last layer" contain a comma with a space.
    only = re.split(",(?! )", options.only) if isinstance(options.only, str) else list(options.only or ())
    override = options.override or {}
    loaded = [
        load_recipe(name, options.scale, seeds=options.seeds, override=override, only=only)
        for name in names or recipe_names()
    ]
    recipes = [recipe for recipe in loaded if recipe.table["rows"]]
    empty = [recipe.table["name"] for recipe in loaded if recipe not in recipes]
    if empty and (names or not recipes):
        raise InputError(
            f"--only {','.join(only)}: {empty[0]} lacks some of these", "name other tasks, rows or columns"
        )
    cells = {cell.key: cell for recipe in recipes for cell in recipe.cells}
    for setting, value in override.items():
        if own := [cell for cell in cells.values() if cell.settings.get(setting, value) != value]:
            notify(
                f"--override {setting}: no effect on {len(own)} of {len(cells)} cells, which have their own value"
            )
    changed = [f"{name}-{value}" for name, value in sorted(override.items())]
    name = re.sub(r"[^\w.-]", "-", "-".join([options.scale, *changed]))
    folder = options.out or path_below(cache_root(place.cache), "reproductions", name)
    data = data_folder(source.data) if source.data else None
    # Workers may have other working directories.
    places: dict[str, Any] = {
        n: path.absolute() for n, path in (("cache", place.cache), ("data", data)) if path
    }
    if place.device != "auto":
        places["device"] = place.device
    return recipes, list(cells.values()), ReproductionFolder(folder.absolute()), places


def _run(
    cells: list[Cell], folder: ReproductionFolder, places: Mapping[str, Any], cluster: ClusterOptions
) -> None:
    """Run cells in this process, in local processes, or each as a task of a dask cluster."""
    since = time.time()
    if cluster.scheduler:
        needed = {need.key for cell in cells for need in cell.needs}
        for early in (True, False):  # cells that others need are submitted first
            tasks = [(cell, folder, places) for cell in cells if (cell.key in needed) == early]
            if tasks:
                map_pieces(run_on_worker, tasks, scheduler=cluster.scheduler, on_result=notify)
        return
    if cluster.workers > 1 and len(cells) > 1:
        import torch

        gpus = torch.cuda.device_count()
        own = [{"device": f"cuda:{n % gpus}"} if gpus > 1 else {} for n in range(cluster.workers)]
        run_processes(run_cells, [(cells, folder, {**device, **places}, since) for device in own])
    run_cells(cells, folder, places, since)  # also runs the cells of a worker that was killed


def run_on_worker(cell: Cell, folder: ReproductionFolder, places: Mapping[str, Any]) -> str:
    """Run a cell in a dask worker and return the message about it."""
    with _one_cell_at_a_time, silenced():
        # Failures before this moment do not count, so the cell is tried even if it failed earlier.
        run_cells([cell], folder, places, since=time.time())
    return _message(cell, folder)


def run_cells(
    cells: Sequence[Cell], folder: ReproductionFolder, places: Mapping[str, Any], since: float
) -> None:
    """Run the unfinished cells, starting with those that no other process is running.

    ``cells`` lists each cell after those that it needs. Cells that failed before the time ``since``
    are tried again.
    """

    def has_ended(cell: Cell) -> bool:
        return folder.is_complete(cell) or folder.failed_since(cell.key, since)

    for wait in (False, True):  # then wait for other processes, and run their cells if they die
        for number, cell in enumerate(cells, start=1):
            if not wait and not all(map(has_ended, cell.needs)):
                continue  # another process is still running what this cell needs
            with folder.lock(cell.key, wait=wait) as locked:
                if locked and not has_ended(cell):
                    _run_one(cell, folder, places, f"{number} of {len(cells)}")


def _run_one(cell: Cell, folder: ReproductionFolder, places: Mapping[str, Any], count: str) -> None:
    """Run a cell and save its result with the messages it printed, or save why it failed.

    ``places`` has the settings that name a place, as far as the user gave them: the folders ``cache`` and ``data``,
    and the ``device``.
    """
    from reservoir_cache import CacheError

    from reservoir.training.trainer import DivergedError
    from reservoir_pipelines.paper.stages import run_cell

    # The folders of the cells that this one reads, by their keys.
    folders: dict[str, str] = {}
    for need in cell.needs:
        result = folder.result(need.key)
        if not (result and folder.is_complete(need)):
            reason = f"it needs a {need.stage} that failed: {folder.failure(need.key) or 'not run'}"
            folder.save_failure(cell.key, {**cell.to_dict(), "reason": reason})
            return
        folders[need.key] = result["folder"]
    # Its messages are saved with its result. A cell that fails does not end the others.
    started, cpu_started = time.monotonic(), time.process_time()
    notes = io.StringIO()
    try:
        with redirect_stderr(notes):
            result = run_cell(cell, folder.work, folders, places)
    except (OSError, RuntimeError, ValueError, MemoryError, ImportError, DivergedError) as error:
        ours = isinstance(error, InputError | CacheError | DivergedError)
        reason = str(error) if ours else f"{type(error).__name__}: {first_line(error)}"
        folder.save_failure(cell.key, {**cell.to_dict(), "reason": reason})
    else:
        times = {
            "seconds": round(time.monotonic() - started, 1),
            "cpu_seconds": round(time.process_time() - cpu_started, 1),
            "notes": _with_relative_paths(notes.getvalue().splitlines()),
        }
        result["commands"] = _with_relative_paths(result["commands"])
        folder.save_result(cell.key, {**cell.to_dict(), **result, **times})
    notify(f"{count}: {_message(cell, folder)}")


def _with_relative_paths(lines: Sequence[str]) -> list[str]:
    """Return lines with paths below the working directory relative to it, so that others can run the commands."""
    # The directory is removed only where a path begins; inside a path it is another folder.
    here = re.compile(rf"(?<![^\s='\"(]){re.escape(f'{Path.cwd()}/')}")
    return [here.sub("", line) for line in lines]


def _message(cell: Cell, folder: ReproductionFolder) -> str:
    result = folder.result(cell.key)
    if not (result and folder.is_complete(cell)):
        return f"{cell.title}: failed, {folder.failure(cell.key)}"
    score = result["values"].get("test_score")
    return f"{cell.title}: {'done' if score is None else f'accuracy {100 * score:.1f}%'} in {result['seconds']:.0f} s"
