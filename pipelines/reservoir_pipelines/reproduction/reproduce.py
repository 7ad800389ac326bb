"""The stage ``reproduce``: the cells of tables and figures, each run once and saved when it finishes."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_cache import path_below

from reservoir.errors import InputError
from reservoir.options import ClusterOptions, PlaceOptions, ReproduceOptions, TaskOptions
from reservoir_pipelines.output import Record, notify, silenced
from reservoir_pipelines.reproduction.cell import Cell
from reservoir_pipelines.reproduction.recipe import Recipe, load_recipe, recipe_names
from reservoir_pipelines.reproduction_folder import ReproductionFolder
from reservoir_pipelines.workers import map_pieces, run_processes
from reservoir_pipelines.workspace import cache_root, data_folder

_one_cell = threading.Lock()  # a dask worker with several threads runs one cell at a time: a model takes all cores


@dataclass(frozen=True, kw_only=True)
class Reproduction(Record):
    """What `reproduce` made.

    Parameters
    ----------
    folder : Path
        Folder of the results.
    tables : tuple of dict
        The tables with their numbers.
    ran, reused : int
        Number of cells that this call finished, and that had been finished before.
    failed : dict of str to str
        Why cells failed, by their keys.
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
    """Run the cells of recipes that have not finished yet, and fill their tables."""
    started = time.monotonic()
    recipes, folder = load_recipes(names, options), _folder(options, place)
    cells, places = _cells(recipes), _places(source, place)
    todo = [cell for cell in cells if not folder.result(cell.key)]
    ran = 0
    if confirm is None or confirm(todo, places):
        folder.create()
        for recipe in recipes:  # before the cells run, so that `report` shows what has finished at any time
            folder.save_table(recipe.table())
        _run(todo, folder, places, cluster)
        ran = sum(folder.result(cell.key) is not None for cell in todo)
    return Reproduction(
        folder=folder.path,
        tables=tuple(folder.fill(recipe.table()) for recipe in recipes),
        ran=ran,
        reused=len(cells) - len(todo),
        failed={cell.key: reason for cell in todo if (reason := folder.failure(cell.key))},
        seconds=round(time.monotonic() - started, 1),
    )


def planned_cells(
    names: Sequence[str],
    options: ReproduceOptions = ReproduceOptions(),
    source: TaskOptions = TaskOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> tuple[list[Cell], ReproductionFolder, dict[str, Any]]:
    """Return the cells that `reproduce` would run with the same arguments, its folder, and the folders they use."""
    return _cells(load_recipes(names, options)), _folder(options, place), _places(source, place)


def load_recipes(names: Sequence[str], options: ReproduceOptions) -> list[Recipe]:
    """Return recipes by name. Without names, return all recipes that contain what ``only`` selects."""
    only = options.only.split(",") if isinstance(options.only, str) else list(options.only or ())
    given: dict[str, Any] = {"seeds": options.seeds, "override": options.override}
    recipes = [load_recipe(name, options.scale, **given) for name in names or recipe_names()]
    selected = [recipe.select(only) for recipe in recipes]
    for recipe, part in zip(recipes, selected, strict=True):
        if names and not part.spots:
            raise InputError(f"--only {','.join(only)}: {recipe.name} has no such task, row or column")
    if not any(part.spots for part in selected):
        raise InputError(f"--only {','.join(only)}: no recipe has such a task, row or column")
    return [part for part in selected if part.spots]


def _cells(recipes: Sequence[Recipe]) -> list[Cell]:
    return list({cell.key: cell for recipe in recipes for cell in recipe.cells}.values())


def _folder(options: ReproduceOptions, place: PlaceOptions) -> ReproductionFolder:
    changed = "-".join(f"{name}-{value}" for name, value in sorted((options.override or {}).items()))
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in "-".join(filter(None, (options.scale, changed))))
    folder = options.out or path_below(cache_root(place.cache), "reproductions", name)
    return ReproductionFolder(Path(folder).absolute())


def _places(source: TaskOptions, place: PlaceOptions) -> dict[str, Any]:
    """Return the cache, data folder and device, as far as they were given.

    Paths are absolute, so that the commands of the cells work in any folder.
    """
    data = data_folder(source.data) if source.data else None
    paths = {"cache": place.cache and place.cache.absolute(), "data": data and data.absolute()}
    device = {"device": place.device} if place.device != "auto" else {}
    return {name: path for name, path in paths.items() if path} | device


def _run(cells: list[Cell], folder: ReproductionFolder, places: Mapping[str, Any], cluster: ClusterOptions) -> None:
    """Run cells in this process, in local processes, or on a dask cluster."""
    if cluster.scheduler:
        _run_on_cluster(cells, folder, places, cluster.scheduler)
        return
    if cluster.workers > 1 and len(cells) > 1:
        run_processes(run_cells, [(cells, folder, places, number) for number in range(cluster.workers)])
        # Cells of a worker that was killed are still to be run; those that failed are not tried a second time.
        run_cells(cells, folder, places, retry=False)
        return
    run_cells(cells, folder, places)


def _run_on_cluster(cells: list[Cell], folder: ReproductionFolder, places: Mapping[str, Any], scheduler: str) -> None:
    """Run each cell as a dask task; cells that others need are submitted first."""
    left = {cell.key: cell for cell in cells}
    while left:
        ready = [cell for cell in left.values() if not any(need.key in left for need in cell.needs)]
        tasks = [(cell, folder, places) for cell in ready]
        map_pieces(run_on_worker, tasks, scheduler=scheduler, done=notify, notify=notify)
        left = {key: cell for key, cell in left.items() if cell not in ready}


def run_on_worker(cell: Cell, folder: ReproductionFolder, places: Mapping[str, Any]) -> str:
    """Run a cell in a dask worker and return the message about it."""
    with _one_cell, silenced():
        run_cells([cell], folder, places)
    return _message(cell, folder)


def run_cells(
    cells: Sequence[Cell],
    folder: ReproductionFolder,
    places: Mapping[str, Any],
    process: int | None = None,
    *,
    retry: bool = True,
) -> None:
    """Run the cells that have not finished and that no other process is running.

    After that, wait for the cells of other processes, and run them here if such a process dies.

    Parameters
    ----------
    cells : sequence of Cell
        What to run; a cell stands behind those that it needs.
    folder : ReproductionFolder
        Where results are saved; processes that share it share the cells.
    places : mapping
        Cache, data folder and device.
    process : int, optional
        Number of this local process; where there are several GPUs, each process uses another one.
    retry : bool
        Whether cells that failed before this call are tried again.
    """
    if process is not None:
        places = _with_gpu(places, process)
    since, left = time.time() if retry else 0.0, dict(enumerate(cells, 1))
    for wait in (False, True):
        for number, cell in list(left.items()):
            if not wait and not all(_has_ended(need, folder, since) for need in cell.needs):
                continue  # another process is still running what this cell needs
            with folder.lock(cell.key, wait=wait) as locked:
                if not locked:
                    continue
                del left[number]
                if not _has_ended(cell, folder, since):
                    _run_one(cell, folder, places, f"{number} of {len(cells)}")


def _has_ended(cell: Cell, folder: ReproductionFolder, since: float) -> bool:
    return folder.result(cell.key) is not None or folder.failed_since(cell.key, since)


def _with_gpu(places: Mapping[str, Any], process: int) -> dict[str, Any]:
    import torch

    count = torch.cuda.device_count()
    gpu = {"device": f"cuda:{process % count}"} if count > 1 and "device" not in places else {}
    return {**places, **gpu}


def _run_one(cell: Cell, folder: ReproductionFolder, places: Mapping[str, Any], count: str) -> None:
    """Run a cell and save its result with the messages it printed, or save why it failed."""
    from reservoir_cache import CacheError

    from reservoir.training.trainer import DivergedError
    from reservoir_pipelines.reproduction.stages import run_cell

    folders: dict[str, str] = {}
    for need in cell.needs:
        if found := folder.result(need.key):
            folders[need.key] = found["folder"]
        else:
            reason = f"it needs a {need.stage} that failed: {folder.failure(need.key) or 'it was not run'}"
            folder.save_failure(cell.key, {**cell.to_dict(), "reason": reason})
            return
    started, processor, notes = time.monotonic(), time.process_time(), io.StringIO()
    try:
        with redirect_stderr(notes):
            result = run_cell(cell, folder.work, folders, places)
    except (InputError, CacheError, DivergedError) as error:
        folder.save_failure(cell.key, {**cell.to_dict(), "reason": str(error)})
    except (OSError, RuntimeError, ValueError, MemoryError, ImportError) as error:
        text = str(error).strip().partition("\n")[0]
        folder.save_failure(cell.key, {**cell.to_dict(), "reason": f"{type(error).__name__}: {text}"})
    else:
        times = {
            "seconds": round(time.monotonic() - started, 1),
            "cpu_seconds": round(time.process_time() - processor, 1),
        }
        folder.save_result(cell.key, {**cell.to_dict(), **result, **times, "notes": notes.getvalue().splitlines()})
    notify(f"{count}: {_message(cell, folder)}")


def _message(cell: Cell, folder: ReproductionFolder) -> str:
    """Return one line about a cell that has ended."""
    result = folder.result(cell.key)
    if not result:
        return f"{cell.title}: failed, {folder.failure(cell.key)}"
    score = result["values"].get("test_score")
    return f"{cell.title}: {'done' if score is None else f'{100 * score:.1f}%'} in {result['seconds']:.0f} s"
