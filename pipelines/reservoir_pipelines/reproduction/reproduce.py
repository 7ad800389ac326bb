"""The stage ``reproduce``: the cells of tables and figures, each run once and kept as it finishes."""

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
from reservoir_pipelines.reproduction.table import fill
from reservoir_pipelines.reproduction_folder import Kept
from reservoir_pipelines.stage import stage
from reservoir_pipelines.workers import map_pieces, run_processes
from reservoir_pipelines.workspace import cache_root, data_folder

_alone = threading.Lock()  # cells that run in one process, as a dask worker with several threads would have it


@dataclass(frozen=True, kw_only=True)
class Reproduction(Record):
    """What `reproduce` made: the folder, the tables with their numbers, and how many cells there are of each kind."""

    folder: Path
    tables: tuple[dict[str, Any], ...]
    ran: int
    reused: int
    failed: Mapping[str, str]
    seconds: float


@stage
def reproduce(
    names: Sequence[str],
    options: ReproduceOptions,
    cluster: ClusterOptions,
    source: TaskOptions,
    place: PlaceOptions,
    *,
    agree: Callable[[list[Cell], dict[str, Any]], bool] | None = None,
) -> Reproduction:
    """Run the cells of recipes that are not finished yet, and collect their tables.

    Parameters
    ----------
    names : sequence of str
        Names of recipes, or paths of TOML files; all that come with the package where there are none.
    agree : callable, optional
        Asked before anything runs, with the cells to run and their places; where it returns False, none does.
    **options
        Fields of `ReproduceOptions`, `ClusterOptions` and `PlaceOptions`, and ``data`` of `TaskOptions`.

    Raises
    ------
    InputError
        If a recipe, or something in it, does not exist. A cell that fails does not end the run.

    Examples
    --------
    >>> from reservoir_pipelines import reproduce
    >>> reproduce(["figure6"]).failed
    {}
    """
    started = time.monotonic()
    recipes, kept = load_recipes(names, options), _kept(options, place)
    cells, places = _cells(recipes), _places(source, place)
    todo = [cell for cell in cells if not kept.result(cell.key)]
    ran = 0
    if agree is None or agree(todo, places):
        kept.make()
        _run(todo, kept, places, cluster)
        ran = sum(kept.result(cell.key) is not None for cell in todo)
        for recipe in recipes:
            kept.keep_table(recipe.name, fill(recipe, kept))
    return Reproduction(
        folder=kept.path,
        tables=tuple(fill(recipe, kept) for recipe in recipes),
        ran=ran,
        reused=len(cells) - len(todo),
        failed={cell.key: reason for cell in todo if (reason := kept.failure(cell.key))},
        seconds=round(time.monotonic() - started, 1),
    )


@stage
def plan(
    names: Sequence[str], options: ReproduceOptions, cluster: ClusterOptions, source: TaskOptions, place: PlaceOptions
) -> tuple[list[Cell], Kept, dict[str, Any]]:
    """Return the cells that `reproduce` would take of the same arguments, its folder, and where everything is."""
    return _cells(load_recipes(names, options)), _kept(options, place), _places(source, place)


def _cells(recipes: Sequence[Recipe]) -> list[Cell]:
    return list({cell.key: cell for recipe in recipes for cell in recipe.cells}.values())


def _kept(options: ReproduceOptions, place: PlaceOptions) -> Kept:
    default = path_below(cache_root(place.cache), "reproductions", _title(options))
    return Kept(Path(options.out or default).absolute())


def load_recipes(names: Sequence[str], options: ReproduceOptions) -> list[Recipe]:
    """Return the recipes of some names, all of them for none; of all, those are left out that ``only`` leaves empty."""
    only = options.only.split(",") if isinstance(options.only, str) else list(options.only or ())
    given: dict[str, Any] = {"seeds": options.seeds, "only": only, "override": options.override}
    if names:
        return [load_recipe(name, options.scale, **given) for name in names]
    found = []
    for name in recipe_names():
        try:
            found.append(load_recipe(name, options.scale, **given))
        except InputError:
            load_recipe(name, options.scale, **{**given, "only": ()})  # another mistake than an empty table is told
    if not found:
        raise InputError(f"--only {','.join(only)}: no recipe has such a task, row or column")
    return found


def _title(options: ReproduceOptions) -> str:
    said = "-".join(f"{name}-{value}" for name, value in sorted((options.override or {}).items()))
    return options.scale + ("-" + "".join(c if c.isalnum() or c in "._-" else "-" for c in said) if said else "")


def _places(source: TaskOptions, place: PlaceOptions) -> dict[str, Any]:
    """Return where everything is, as far as it was named; a path is kept whole, so that its command runs anywhere."""
    data = data_folder(source.data) if source.data else None
    named = {"cache": place.cache and place.cache.absolute(), "data": data and data.absolute()}
    device = {"device": place.device} if place.device != "auto" else {}
    return {name: path for name, path in named.items() if path} | device


def _run(cells: list[Cell], kept: Kept, places: Mapping[str, Any], cluster: ClusterOptions) -> None:
    """Run cells here, on a dask cluster, or in local processes that each take the next one that nobody has."""
    if cluster.scheduler:
        _run_on_cluster(cells, kept, places, cluster.scheduler)
        return
    workers = cluster.workers
    if workers < 2 or len(cells) < 2:
        run_cells(cells, kept, places)
        return
    run_processes(run_cells, [(cells, kept, places, number) for number in range(workers)])
    run_cells(cells, kept, places, again=False)  # what a process that was killed has left


def _run_on_cluster(cells: list[Cell], kept: Kept, places: Mapping[str, Any], scheduler: str) -> None:
    """Have each cell be a task of a cluster's workers, which see the folder too; those that others need go first."""
    left = {cell.key: cell for cell in cells}
    while left:
        ready = [cell for cell in left.values() if not any(need.key in left for need in cell.needs)]
        tasks = [(cell, kept, places) for cell in ready]
        map_pieces(run_there, tasks, scheduler=scheduler, done=notify, notify=notify)
        left = {key: cell for key, cell in left.items() if cell not in ready}


def run_there(cell: Cell, kept: Kept, places: Mapping[str, Any]) -> str:
    """Run a cell in a worker, one at a time as models take the whole process, and return what is to be said of it."""
    with _alone, silenced():
        run_cells([cell], kept, places)
    return _told(cell, kept)


def run_cells(
    cells: Sequence[Cell], kept: Kept, places: Mapping[str, Any], number: int | None = None, *, again: bool = True
) -> None:
    """Run the cells that nobody has finished or is at; then wait for those that others were at, in case they die.

    ``number`` is that of a local process, which has a GPU of its own where there are several. With ``again`` what
    failed before is tried once more.
    """
    if number is not None:
        places = _on_gpu(dict(places), number)
    since, left = time.time() if again else 0.0, dict(enumerate(cells, 1))
    for wait in (False, True):
        for place, cell in list(left.items()):
            with kept.lock(cell.key, wait=wait) as mine:
                if not mine:
                    continue
                del left[place]
                if not kept.result(cell.key) and not kept.failed_since(cell.key, since):
                    _run_one(cell, kept, places, f"{place} of {len(cells)}")


def _on_gpu(places: dict[str, Any], number: int) -> dict[str, Any]:
    import torch

    count = torch.cuda.device_count()
    return places | ({"device": f"cuda:{number % count}"} if count > 1 and "device" not in places else {})


def _run_one(cell: Cell, kept: Kept, places: Mapping[str, Any], count: str) -> None:
    """Run a cell and keep what it came to, or why it failed; its messages are kept with it."""
    from reservoir_cache import CacheError

    from reservoir.training.trainer import DivergedError
    from reservoir_pipelines.reproduction.stages import run_cell

    folders: dict[str, str] = {}
    for need in cell.needs:
        if found := kept.result(need.key):
            folders[need.key] = found["folder"]
        else:
            reason = f"it needs a {need.stage} that failed: {kept.failure(need.key) or 'it was not run'}"
            kept.fail(cell.key, {**cell.to_dict(), "reason": reason})
            return
    started, busy, notes = time.monotonic(), time.process_time(), io.StringIO()
    try:
        with redirect_stderr(notes):
            result = run_cell(cell, kept.work, folders, places)
    except (InputError, CacheError, DivergedError) as error:
        reason = str(error)
    except (OSError, RuntimeError, ValueError, MemoryError, ImportError) as error:
        text = str(error).strip().partition("\n")[0]
        reason = f"{type(error).__name__}: {text}"
    else:
        seconds = round(time.monotonic() - started, 1)
        spent = {"seconds": seconds, "cpu_seconds": round(time.process_time() - busy, 1)}
        kept.keep(cell.key, {**cell.to_dict(), **result, **spent, "notes": notes.getvalue().splitlines()})
        reason = ""
    if reason:
        kept.fail(cell.key, {**cell.to_dict(), "reason": reason})
    notify(f"{count}: {_told(cell, kept)}")


def _told(cell: Cell, kept: Kept) -> str:
    """Return what is said of a cell that ended."""
    result = kept.result(cell.key)
    if not result:
        return f"{title(cell)}: failed, {kept.failure(cell.key)}"
    score = result["values"].get("test_score")
    return f"{title(cell)}: {'done' if score is None else f'{100 * score:.1f}%'} in {result['seconds']:.0f} s"


def title(cell: Cell) -> str:
    """Return a short name of a cell for a person."""
    backbone, depth = cell.settings.get("backbone", ""), cell.settings.get("depth")
    shape = f"{'a backbone made here' if isinstance(backbone, Cell) else backbone}{f' depth {depth}' if depth else ''}"
    what = cell.task or cell.settings.get("corpus", "")
    words = [cell.stage, what, shape, *(cell.settings.get(name, "") for name in ("init", "train", "columns"))]
    return " ".join([*filter(None, words), f"seed {cell.seed}"])
