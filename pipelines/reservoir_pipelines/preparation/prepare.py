"""The stage ``prepare``: from raw files or a generator to typed arrays on disk, split once and for all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from reservoir_cache import fault_point, file_crc32, make_folder, new_file, path_below, publish_json, sync

from reservoir.errors import InputError
from reservoir.options import CacheOptions, ClusterOptions, DownloadOptions, ExtractOptions, TaskOptions
from reservoir.plan import with_audio_options
from reservoir.tasks import SPLITS, TASKS, Piece, Source, Split, Task, check_split, own_name, task_named
from reservoir.tasks.task import MISSING
from reservoir_pipelines.files import is_running
from reservoir_pipelines.output import meter, notify
from reservoir_pipelines.preparation.download import download
from reservoir_pipelines.preparation.prepared import (
    INDEX,
    VERSION,
    Prepared,
    PreparedSplit,
    digest,
    scaling_to_json,
    split_order,
)
from reservoir_pipelines.preparation.source_files import contents
from reservoir_pipelines.stage import stage
from reservoir_pipelines.workers import map_pieces
from reservoir_pipelines.workspace import cache_root, data_folder

Model = TypeVar("Model", bound=ExtractOptions)


@stage
def prepare(
    task: str, options: TaskOptions, cluster: ClusterOptions, files: DownloadOptions, root: CacheOptions
) -> Prepared:
    """Prepare a task's data, or open it where that has been done.

    The data lies under ``<root>/prepared/<task>-<settings>/<files>/``, the last two being digests of the task's
    parameters and of the names and contents of the source files. Such a folder is written under another name and
    then renamed, so it is whole or absent, and never changes: changed source files lead to another folder.

    Parameters
    ----------
    task : str
        The name of a task, or the path of your own data.
    **options
        Fields of `TaskOptions`, `ClusterOptions`, `DownloadOptions` and `CacheOptions`.

    Examples
    --------
    >>> from reservoir_pipelines import prepare
    >>> digits = prepare("digits")
    >>> len(digits.split("train")), digits.task.classes
    (1078, 10)
    """
    cache = root.cache
    folder = download(task, cache=cache, mirrors=files.mirrors) if files.fetch else data_folder(options.data)
    source = task_named(task, data=folder, **options.given)
    settings = settings_folder(task, source, cache)
    try:
        origin = contents(source.files(), Path(task), settings)
    except InputError:
        earlier = latest(settings)
        if folder is not None or earlier is None:
            raise
        return Prepared.open(earlier)
    final = path_below(settings, _hash(origin))
    if final.exists():
        try:
            return Prepared.open(final)
        except InputError:
            shutil.rmtree(final)
    _remove_leftovers(settings)
    _write(source, origin, final, cluster)
    return Prepared.open(final, reused=False)


def prepare_for_model(task: str, options: Model, root: Path) -> tuple[Model, Prepared]:
    """Prepare a task's data in the form that the model reads, and return the options that name this form with it."""
    options = with_audio_options(task, options, options)
    return options, prepare(task, options, cache=root)


def settings_folder(task: str, source: Source, cache: Path | None = None) -> Path:
    """Return the folder of a task with these parameters; it has a folder for each state of the source files."""
    values = {f.name: getattr(source, f.name) for f in fields(source) if f.name not in {"data", "origin"}}  # pyright: ignore
    name = task if task in TASKS else own_name(task)
    return path_below(cache_root(cache), "prepared", f"{name}-{_hash({'version': VERSION, **values})}")


def latest(settings: Path) -> Path | None:
    """Return the folder that was prepared last, if any."""
    indices = sorted(settings.glob(f"[!.]*/{INDEX}"), key=lambda index: index.stat().st_mtime)
    return indices[-1].parent if indices else None


def _write(source: Source, origin: list[dict[str, Any]], final: Path, cluster: ClusterOptions) -> None:
    """Write all pieces and the index into a temporary folder, and give it its name."""
    make_folder(final.parent)
    folder = final.parent.resolve() / f".{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        sent = _with_full_paths(source) if cluster.scheduler else source
        tasks = [(sent, piece, number, folder) for number, piece in enumerate(source.pieces())]
        with meter("prepare", len(tasks), "pieces") as bar:
            written = map_pieces(
                write_piece,
                tasks,
                workers=cluster.workers,
                scheduler=cluster.scheduler,
                done=lambda _: bar.advance(1),
                notify=notify,
            )
        _write_index(source, origin, folder, written)
        fault_point("gathered")
        try:
            folder.rename(final)
        except OSError:
            if not (final / INDEX).exists():
                raise
            # Another process prepared the same data meanwhile; its bytes are ours.
        fault_point("placed")
        sync(final.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_full_paths(source: Source) -> Source:
    """Return a source whose files are found from whatever folder a worker was started in."""
    named = {name: value for name in ("data", "origin") if (value := getattr(source, name, None))}
    full = {name: type(value)(Path(value).resolve()) for name, value in named.items() if Path(value).exists()}
    return replace(source, **full)  # pyright: ignore


def write_piece(source: Source, piece: Piece, number: int, folder: Path) -> list[dict[str, Any]]:
    """Write the rows of a piece, one file per split; what a killed worker leaves is written again by another."""
    written = []
    for name, split in source.read(piece).items():
        if len(split):
            check_split(source.task, name, split)
            file = f"{name}/{number:05d}.h5"
            _write_rows(folder / file, split)
            sums = {"bytes": (folder / file).stat().st_size, "crc32": file_crc32(folder / file)}
            counts = {"rows": len(split), "dropped": split.dropped, "cut": split.cut}
            written.append({"split": name, "name": file, **sums, **counts})
    return written


def _write_rows(path: Path, split: Split) -> None:
    import h5py

    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(f".{uuid.uuid4().hex}")
    y = split.y if split.y.dtype.kind == "f" else split.y.astype(_smallest(split.y))
    with new_file(temporary) as file:
        arrays = {"x": split.x, "y": y, "lengths": split.lengths.astype(np.int32), "groups": split.groups}
        for name, array in arrays.items():
            if array is not None:
                kind = h5py.vlen_dtype(np.uint8) if array.dtype.kind == "O" else array.dtype
                file.create_dataset(name, data=array, dtype=kind, track_times=False)
    sync(temporary)
    temporary.replace(path)


def _smallest(y: np.ndarray) -> np.dtype:
    return np.result_type(*(np.min_scalar_type(int(end)) for end in (y.min(), y.max())))


def _write_index(
    source: Source, origin: list[dict[str, Any]], folder: Path, written: list[list[dict[str, Any]]]
) -> None:
    files: dict[str, list[dict[str, Any]]] = {}
    for file in (file for piece in written for file in piece):
        files.setdefault(file["split"], []).append(file)
    for name in SPLITS:
        if name not in files:
            raise InputError(f"task {source.task.name!r}: no rows for the split {name!r}")
    names = split_order(set(files))
    splits = {n: PreparedSplit(n, tuple((folder / f["name"], f["rows"]) for f in files[n])) for n in names}
    scaling = source.scaling()
    index = {
        "version": VERSION,
        "task": source.task.to_dict(),
        "scaling": scaling_to_json(scaling),
        "digest": digest(source.task, scaling, splits),
        "splits": {name: _totals(files[name]) for name in names},
        "source": origin,
        "warnings": [*source.notes(), *_warnings(source.task, splits)],
    }
    publish_json(folder / INDEX, index)
    for name in names:
        sync(folder / name)


def _totals(files: list[dict[str, Any]]) -> dict[str, Any]:
    totals = {count: sum(file[count] for file in files) for count in ("rows", "dropped", "cut")}
    return {**totals, "files": [{key: file[key] for key in ("name", "rows", "bytes", "crc32")} for file in files]}


def _warnings(task: Task, splits: Mapping[str, PreparedSplit]) -> list[str]:
    """Return what the user should know: classes of which nothing can be learnt."""
    if not task.classes:
        return []
    known = set(np.unique(splits["train"].y).tolist())
    warnings = []
    for name in splits:
        unseen = sorted(set(np.unique(splits[name].y).tolist()) - known - {MISSING})
        if unseen:
            classes = ", ".join(str(task.label(c)) for c in unseen[:5]) + (", ..." if len(unseen) > 5 else "")
            warnings.append(f"classes of the split {name!r} that no row of 'train' has ({len(unseen)}): {classes}")
    return warnings


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=vars).encode()).hexdigest()[:16]


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of processes of this host that are no more."""
    for leftover in folder.glob(f".{os.uname().nodename}-*"):
        if not is_running(int(leftover.name.split("-")[-2])):
            shutil.rmtree(leftover, ignore_errors=True)
