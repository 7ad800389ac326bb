"""The stage ``prepare``: raw files or generated rows become typed arrays on disk, split once and for all."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from reservoir_cache import fault_point, make_folder, path_below, sync

from reservoir.errors import InputError
from reservoir.options import ClusterOptions, DownloadOptions, ExtractOptions, TaskOptions
from reservoir.plan import with_audio_options
from reservoir.tasks import TASKS, Source, own_name, task_named
from reservoir_pipelines.files import part_beside, source_contents
from reservoir_pipelines.output import meter, notify
from reservoir_pipelines.preparation.download import download
from reservoir_pipelines.preparation.prepared import (
    INDEX,
    VERSION,
    Prepared,
    write_index,
    write_piece,
)
from reservoir_pipelines.workers import map_pieces
from reservoir_pipelines.workspace import cache_root, data_folder


def prepare(
    task: str,
    options: TaskOptions,
    *,
    cache: Path | None = None,
    cluster: ClusterOptions = ClusterOptions(),
    files: DownloadOptions = DownloadOptions(),
) -> Prepared:
    """Prepare a task's data, or open it where that has been done.

    The data lies under ``<root>/prepared/<task>-<settings>/<files>/``, the last two being digests of the task's
    parameters and of the names and contents of the source files. Such a folder is written under another name and
    then renamed, so it is whole or absent, and never changes: changed source files lead to another folder.
    """
    folder = download(task, cache=cache, mirrors=files.mirrors) if files.fetch else data_folder(options.data)
    source = task_named(task, data=folder, **options.given)
    settings = settings_folder(task, source, cache)
    try:
        origin = source_contents(source.files(), Path(task), settings)
    except InputError:
        earlier = Prepared.latest(settings)
        if folder is not None or earlier is None:
            raise
        return earlier
    final = path_below(settings, _hash(origin))
    if final.exists():
        try:
            return Prepared.open(final)
        except InputError:
            shutil.rmtree(final)
    _write(source, origin, final, cluster)
    return Prepared.open(final, reused=False)


def prepare_for_model(task: str, options: ExtractOptions, root: Path) -> tuple[ExtractOptions, Prepared]:
    """Prepare a task's data in the form that the model reads, and return the options that name this form with it."""
    options = with_audio_options(task, options, options)
    return options, prepare(task, options, cache=root)


def settings_folder(task: str, source: Source, cache: Path | None = None) -> Path:
    """Return the folder of a task with its parameters, which has one folder per state of the source files."""
    values = {f.name: getattr(source, f.name) for f in fields(source) if f.name not in {"data", "origin"}}  # pyright: ignore
    name = task if task in TASKS else own_name(task)
    return path_below(cache_root(cache), "prepared", f"{name}-{_hash({'version': VERSION, **values})}")


def _write(source: Source, origin: list[dict[str, Any]], final: Path, cluster: ClusterOptions) -> None:
    """Write all pieces and the index into a temporary folder, then rename it."""
    make_folder(final.parent)
    folder = part_beside(final.parent.resolve() / "data")  # of one name, so that what was left behind is removed
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
        write_index(source, origin, folder, written)
        fault_point("gathered")
        try:
            folder.rename(final)
        except OSError:
            if not (final / INDEX).exists():
                raise
            # Another process has prepared the same data meanwhile, with the same bytes.
        fault_point("placed")
        sync(final.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_full_paths(source: Source) -> Source:
    """Return a source with full paths, which workers find from any folder."""
    named = {name: value for name in ("data", "origin") if (value := getattr(source, name, None))}
    full = {name: type(value)(Path(value).resolve()) for name, value in named.items() if Path(value).exists()}
    return replace(source, **full)  # pyright: ignore


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=vars).encode()).hexdigest()[:16]
