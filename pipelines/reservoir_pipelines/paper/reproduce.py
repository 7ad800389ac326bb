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

from reservoir.errors import InputError, first_line, nearest
from reservoir.options import ClusterOptions, PlaceOptions, ReproduceOptions, TaskOptions
from reservoir_pipelines.files import cache_root, data_folder
from reservoir_pipelines.output import Record, notify, silenced
from reservoir_pipelines.paper.recipe import Recipe, load_recipe, recipe_names
from reservoir_pipelines.paper.reproduction_folder import Cell, ReproductionFolder, file_stamps
from reservoir_pipelines.workers import map_pieces, run_processes

# Held while a dask worker runs a cell: a worker may have several threads, but a model uses all cores.
_one_cell_at_a_time = threading.Lock()


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
    """Run the unfinished cells of recipes, and fill in the tables of the recipes.

    ``names`` are those of recipes; without any, all recipes of the package are meant. ``confirm`` gets the cells to
    run and the place settings (see `ReproductionPlan`); nothing runs or is written if it returns False.
    """
    started = time.monotonic()
    plan = make_plan(names, options, source, place)
    folder = plan.folder
    unfinished = folder.unfinished(plan.cells)
    ran = 0
    if confirm is None or confirm(unfinished, plan.place_settings):
        folder.create()
        # The tables are saved before the cells run, so that `report` shows what has finished at any time.
        for recipe in plan.recipes:
            # A table has all its numbers there, because --only selects what runs, not what has finished.
            folder.save_table(recipe.whole_table)
        _run(unfinished, folder, plan.place_settings, cluster)
        ran = sum(map(folder.is_complete, unfinished))
    return Reproduction(
        folder=folder.path,
        tables=tuple(folder.fill(recipe.table) for recipe in plan.recipes),
        ran=ran,
        reused=len(plan.cells) - len(unfinished),
        failed={cell.key: reason for cell in unfinished if (reason := folder.failure(cell.key))},
        seconds=round(time.monotonic() - started, 1),
    )


@dataclass(frozen=True)
class ReproductionPlan:
    """What a call of `reproduce` computes, and where."""

    recipes: list[Recipe]
    cells: list[Cell]  # those of all recipes, each once
    folder: ReproductionFolder  # of the results
    # What the user chose of the folders ``cache`` and ``data`` (absolute paths) and the ``device``. They are no part of
    # a cell, because its result does not depend on them.
    place_settings: dict[str, Any]


def make_plan(
    names: Sequence[str], options: ReproduceOptions, source: TaskOptions, place: PlaceOptions
) -> ReproductionPlan:
    """Return the recipes, reduced to ``--only``, with their cells and where these run; nothing is run or written."""
    only_names = list(options.only or ())
    if isinstance(options.only, str):
        # A comma before a space is part of a name, such as "pretrained, last layer".
        only_names = re.split(",(?! )", options.only)
    override = options.override or {}
    loaded = [
        load_recipe(name, options.scale, seeds=options.seeds, override=override, only=only_names)
        for name in names or recipe_names()
    ]
    _refuse_unknown(only_names, loaded)
    # A recipe is empty if it has none of the names in --only. Of all recipes of the package, most may be empty.
    recipes = [recipe for recipe in loaded if recipe.table["rows"]]
    empty_names = [recipe.table["name"] for recipe in loaded if not recipe.table["rows"]]
    may_be_empty = not names and recipes
    if empty_names and not may_be_empty:
        raise InputError(
            f"--only {','.join(only_names)}: {empty_names[0]} lacks some of these",
            "name other tasks, rows or columns",
        )
    cells = list({cell.key: cell for recipe in recipes for cell in recipe.cells}.values())
    _notify_of_overrides_without_effect(override, cells)
    # The folder is named after what changes its cells: the scale and the overrides.
    overrides = [f"{name}-{value}" for name, value in sorted(override.items())]
    folder_name = re.sub(r"[^\w.-]", "-", "-".join([options.scale, *overrides]))
    folder = options.out or path_below(cache_root(place.cache), "reproductions", folder_name)
    return ReproductionPlan(
        recipes, cells, ReproductionFolder(folder.absolute()), _place_settings(source, place)
    )


def _refuse_unknown(only_names: Sequence[str], recipes: Sequence[Recipe]) -> None:
    """Raise `InputError` for a name in ``--only`` that no recipe has as a task, a row or a column."""
    valid_names = {name for recipe in recipes for name in recipe.names}
    for name in only_names:
        if name not in valid_names:
            problem = f"--only: no task, row or column is called {name!r}"
            raise InputError(problem, f"leave it out, or correct it{nearest(name, valid_names)}")


def _notify_of_overrides_without_effect(override: Mapping[str, Any], cells: Sequence[Cell]) -> None:
    """Print how many cells have another value of an overridden setting, because their recipe sets it."""
    for setting, value in override.items():
        count = sum(cell.settings.get(setting, value) != value for cell in cells)
        if count:
            notify(
                f"--override {setting}: no effect on {count} of {len(cells)} cells, which have their own value"
            )


def _place_settings(source: TaskOptions, place: PlaceOptions) -> dict[str, Any]:
    """Return the ``cache``, ``data`` and ``device`` that the user chose, without those that have their default."""
    settings: dict[str, Any] = {}
    # The paths are absolute, because workers may have other working directories.
    if place.cache:
        settings["cache"] = place.cache.absolute()
    # Without the option, `data_folder` would return the folder in RESERVOIR_DATA, which workers read themselves.
    data = data_folder(source.data) if source.data else None
    if data:
        settings["data"] = data.absolute()
    if place.device != "auto":
        settings["device"] = place.device
    return settings


def _run(
    cells: list[Cell],
    folder: ReproductionFolder,
    place_settings: Mapping[str, Any],
    cluster: ClusterOptions,
) -> None:
    """Run cells in this process, in local processes, or each as a task of a dask cluster."""
    since = time.time()
    if cluster.scheduler:
        # The tasks of a cluster run in any order, so a cell is submitted after those that it needs have ended.
        for round_cells in _rounds(cells):
            tasks = [(cell, folder, place_settings) for cell in round_cells]
            map_pieces(run_on_worker, tasks, scheduler=cluster.scheduler, on_result=notify)
        return
    if cluster.workers > 1 and len(cells) > 1:
        import torch

        # With several GPUs, the processes take them in turn, unless the user chose a device.
        gpus = torch.cuda.device_count()
        devices = [{"device": f"cuda:{n % gpus}"} if gpus > 1 else {} for n in range(cluster.workers)]
        arguments = [(cells, folder, {**device, **place_settings}, since) for device in devices]
        run_processes(run_cells, arguments)
    # After processes, this runs the cells of those that were killed.
    run_cells(cells, folder, place_settings, since)


def _rounds(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return the cells in rounds: those of a round need none of the same round and none of a later one."""
    waiting = list(cells)
    rounds = []
    while waiting:
        waiting_keys = {cell.key for cell in waiting}
        ready = [cell for cell in waiting if waiting_keys.isdisjoint(need.key for need in cell.needs)]
        ready_keys = {cell.key for cell in ready}
        rounds.append(ready)
        waiting = [cell for cell in waiting if cell.key not in ready_keys]
    return rounds


def run_on_worker(cell: Cell, folder: ReproductionFolder, place_settings: Mapping[str, Any]) -> str:
    """Run a cell in a dask worker and return the message about it."""
    with _one_cell_at_a_time, silenced():
        # Failures before this moment do not count, so the cell is tried even if it failed earlier.
        run_cells([cell], folder, place_settings, since=time.time())
    return _message(cell, folder)


def run_cells(
    cells: Sequence[Cell], folder: ReproductionFolder, place_settings: Mapping[str, Any], since: float
) -> None:
    """Run the unfinished cells, starting with those that no other process is running.

    ``cells`` lists each cell after those that it needs. Cells that failed before the time ``since``, in seconds since
    the epoch, are tried again.
    """

    def has_ended(cell: Cell) -> bool:
        return folder.is_complete(cell) or folder.failed_since(cell.key, since)

    # The first pass skips cells that other processes are running. The second one waits for these processes, and runs
    # their cells if they died.
    for wait in (False, True):
        for number, cell in enumerate(cells, start=1):
            if not wait and not all(map(has_ended, cell.needs)):
                continue  # another process is still running what this cell needs
            with folder.lock(cell.key, wait=wait) as is_locked:
                if is_locked and not has_ended(cell):
                    _run_one(cell, folder, place_settings, f"{number} of {len(cells)}")


def _run_one(cell: Cell, folder: ReproductionFolder, place_settings: Mapping[str, Any], count: str) -> None:
    """Run a cell, and save its result with the messages that it printed, or save why it failed.

    The message about it begins with ``count``, such as "3 of 20".
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
    # The messages of the cell are saved with its result. A cell that fails does not end the others.
    started, cpu_started = time.monotonic(), time.process_time()
    stamps = file_stamps(cell)
    messages = io.StringIO()
    try:
        with redirect_stderr(messages):
            result = run_cell(cell, folder.work, folders, place_settings)
    except (OSError, RuntimeError, ValueError, MemoryError, ImportError, DivergedError) as error:
        # The messages of our own errors are complete; those of others say too little without the error's type.
        is_own_error = isinstance(error, InputError | CacheError | DivergedError)
        reason = str(error) if is_own_error else f"{type(error).__name__}: {first_line(error)}"
        folder.save_failure(cell.key, {**cell.to_dict(), "reason": reason})
    else:
        times = {
            "seconds": round(time.monotonic() - started, 1),
            "cpu_seconds": round(time.process_time() - cpu_started, 1),
            "notes": _with_relative_paths(messages.getvalue().splitlines()),
        }
        result["commands"] = _with_relative_paths(result["commands"])
        folder.save_result(cell.key, {**cell.to_dict(), **result, **times, "files": stamps})
    notify(f"{count}: {_message(cell, folder)}")


def _with_relative_paths(lines: Sequence[str]) -> list[str]:
    """Return lines with paths below the working directory relative to it, so that others can run the commands."""
    # Remove the directory only where a path begins: at the start of a line, or after a space, "=", a quotation mark or
    # "(". Elsewhere it is part of another path: /home/me/ is a part of /mnt/home/me/data.
    working_directory = re.compile(rf"(?<![^\s='\"(]){re.escape(f'{Path.cwd()}/')}")
    return [working_directory.sub("", line) for line in lines]


def _message(cell: Cell, folder: ReproductionFolder) -> str:
    """Return the line about a cell that has ended: its test accuracy and its time, or why it failed."""
    result = folder.result(cell.key)
    if not (result and folder.is_complete(cell)):
        return f"{cell.title}: failed, {folder.failure(cell.key)}"
    score = result["values"].get("test_score")
    outcome = "done" if score is None else f"accuracy {100 * score:.1f}%"
    return f"{cell.title}: {outcome} in {result['seconds']:.0f} s"
