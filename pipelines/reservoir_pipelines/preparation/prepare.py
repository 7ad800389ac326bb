"""The stage ``prepare``: raw files or generated rows become typed arrays on disk, in fixed splits."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reservoir_cache import path_below

from reservoir.errors import InputError
from reservoir.options import ClusterOptions, DownloadOptions, ReservoirOptions, TaskOptions
from reservoir.tasks import TASKS
from reservoir_pipelines.data.file_kinds import FILES
from reservoir_pipelines.data.own_data import open_source, own_name
from reservoir_pipelines.files import data_folder
from reservoir_pipelines.preparation.downloads import download
from reservoir_pipelines.preparation.folders import latest, settings_folder, short_hash
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.preparation.source_files import source_contents
from reservoir_pipelines.preparation.write import write_prepared


def prepare(
    task: str,
    options: TaskOptions,
    *,
    cache: Path | None = None,
    cluster: ClusterOptions = ClusterOptions(),
    files: DownloadOptions = DownloadOptions(),
    model: ReservoirOptions | None = None,
) -> Prepared:
    """Prepare a task's data, or open it if it is prepared; keep sounds as samples if ``model`` reads samples.

    The data is in ``<root>/prepared/<task>-<settings>/<files>/``, where ``settings`` and ``files``
    are digests of the task's parameters and of the names and contents of the source files. Such a
    folder never changes. A named task without a data folder may use the folder that was prepared
    last, with a note; your own data never does, because its files say which data is meant.
    """
    folder = download(task, cache=cache) if files.fetch else data_folder(options.data)
    name = task if task in TASKS else own_name(task)
    source = open_source(task, data=folder, **options.given)
    try:
        source_files = source.files()
    except InputError:
        earlier = latest(settings_folder(name, source, cache)) if task in TASKS and not folder else None
        if earlier is None:
            raise
        note = f"task {task!r}: its files are not here; using the data prepared before, {earlier.path}"
        return replace(earlier, warnings=(*earlier.warnings, note))
    if model and _reads_samples(model, source_files):
        source = open_source(task, data=folder, **options.given | {"waveform": True})
    settings = settings_folder(name, source, cache)
    origin = source_contents(source_files, Path(task), settings)
    final = path_below(settings, short_hash(origin))
    if final.exists():
        try:
            return Prepared.open(final)
        except InputError:
            shutil.rmtree(final)
    write_prepared(
        source, origin, final, cluster, lambda: source_contents(source_files, Path(task), settings)
    )
    return Prepared.open(final, reused=False)


def _reads_samples(model: ReservoirOptions, files: Sequence[Path]) -> bool:
    if not any(file.suffix.lower() in FILES["sounds"] for file in files):
        return False
    from reservoir.reservoir import reads_samples  # imports torch, which other data do not need

    return reads_samples(model)
