"""The stage ``prepare``: raw files or generated rows become typed arrays on disk, in fixed splits.

The name of a task becomes a source (`open_source`): a named task, whose files may be downloaded from their publishers,
or your own data.
"""

import hashlib
import json
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from typing import Any

from reservoir_cache import new_folder, path_below

from reservoir.errors import InputError, nearest
from reservoir.options import ClusterOptions, DownloadOptions, OwnDataOptions, ReservoirOptions, TaskOptions
from reservoir.tasks import SPLITS, TASKS, Source, Tokens, task_named, unknown_parameter
from reservoir_pipelines.data.columns import KIND_SUFFIXES
from reservoir_pipelines.data.hub import PREFIX
from reservoir_pipelines.data.own_data import OwnData
from reservoir_pipelines.files import cache_root, data_folder, source_contents
from reservoir_pipelines.preparation.prepared import INDEX_FILE, VERSION, Prepared
from reservoir_pipelines.preparation.write import write_prepared

DOWNLOADS = tomllib.loads(
    (resources.files("reservoir_pipelines") / "preparation" / "downloads.toml").read_text()
)
"""The files that can be downloaded, by task: their SHA-256, addresses and folder; see ``downloads.toml``."""


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
    data_dir = download(task, cache=cache) if files.fetch else data_folder(options.data)
    # Find the source files. Those of a named task may be missing, if its data was prepared before.
    source = open_source(task, data=data_dir, **options.given)
    source_files: Sequence[Path] = ()
    missing_files: InputError | None = None  # the error that names them, None if they are there
    try:
        source_files = source.files()
    except InputError as error:
        may_be_prepared = task in TASKS and not data_dir
        if not may_be_prepared:
            raise
        missing_files = error
    if model and isinstance(source, OwnData) and _reads_samples(model, source_files):
        source = replace(source, options=replace(source.options, waveform=True))

    # Equal parameters and equal source files give the same folder, which is reused unless it is damaged.
    # ``source.task`` would read the rows of own data, so its name is taken from the source.
    name = source.name if isinstance(source, OwnData) else source.task.name
    settings_dir = settings_folder(name, source.settings(), cache)
    if missing_files:
        earlier = latest(settings_dir)
        if earlier is None:
            raise missing_files
        note = f"task {task!r}: its files are not here; using the data prepared before, {earlier.path}"
        return replace(earlier, warnings=(*earlier.warnings, note))
    contents = source_contents(source_files, Path(task), settings_dir)
    final = path_below(settings_dir, short_hash(contents))
    if final.exists():
        try:
            return Prepared.open(final)
        except InputError:
            shutil.rmtree(final)  # damaged: it is prepared again below

    # The folder gets its name when it is complete. Another process may prepare the same data meanwhile;
    # its folder is as good.
    with new_folder(final, keep_existing=True) as unfinished:
        write_prepared(source, contents, unfinished, cluster)
        # A file that changed while it was read may have been read half in its old state, and half in its new one.
        contents_now = source_contents(source_files, Path(task), settings_dir)
        changed_files = [file["name"] for file in contents if file not in contents_now]
        if changed_files:
            raise InputError(
                f"task {source.task.name!r}: the file {changed_files[0]} changed while it was read",
                "run the command again when it is complete",
            )
    return Prepared.open(final, reused=False)


def _reads_samples(model: ReservoirOptions, files: Sequence[Path]) -> bool:
    """Return whether there are files of sounds, and the model was pretrained on samples of sounds."""
    has_sounds = any(file.suffix.lower() in KIND_SUFFIXES["sounds"] for file in files)
    if not has_sounds:
        return False
    from reservoir.loaded_model import reads_samples  # imports torch, which other data do not need

    return reads_samples(model)


def settings_folder(name: str, settings: Mapping[str, Any], cache: Path | None = None) -> Path:
    """Return the folder of a source by its name and settings, with a subfolder per state of its files."""
    digest = short_hash({"version": VERSION, **settings})
    return path_below(cache_root(cache), "prepared", f"{name}-{digest}")


def latest(settings_dir: Path, *, verify: bool = True) -> Prepared | None:
    """Return the most recently prepared data in a folder of `settings_folder`, or None if there is none."""
    # Folders whose name begins with a dot are not complete.
    indices = sorted(settings_dir.glob(f"[!.]*/{INDEX_FILE}"), key=lambda index: index.stat().st_mtime)
    return Prepared.open(indices[-1].parent, verify=verify) if indices else None


def short_hash(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a value as JSON; objects count as their attributes."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=vars).encode()).hexdigest()[:16]


def task_table(data: Path | None = None, cache: Path | None = None) -> list[dict[str, Any]]:
    """Return one row per named task, with its default parameters.

    In a row, ``tokens`` is the length of the longest sequence, ``input`` the form of a token ("16 values", "25
    symbols"), ``splits`` the rows of each split or None if they are not known, ``data`` "generated", "here",
    "prepared" or "missing", and ``remedy`` what to do about missing files, else an empty text. The argument ``data`` is
    the folder of the files of named tasks.
    """
    folder = data_folder(data)
    return [_task_row(name, folder, cache) for name in TASKS]


def _task_row(name: str, data: Path | None, cache: Path | None) -> dict[str, Any]:
    """Return the row of a named task in `task_table`; ``data`` is the folder of the files of named tasks."""
    source = open_source(name, data=data)
    task = source.task
    # Rows are known if the task was prepared, or from its parameters if it is generated.
    earlier = latest(settings_folder(name, source.settings(), cache), verify=False)
    rows = earlier.rows if earlier else None
    remedy = ""
    try:
        status = "here" if source.files() else "generated"
    except InputError as error:
        status = "prepared" if rows else "missing"
        if not rows:
            can_be_downloaded = name in DOWNLOADS
            download_command = f"; or reservoir prepare {name} --download" if can_be_downloaded else ""
            remedy = f"{error}{download_command}"
    if rows is None and status == "generated" and "train_rows" in task.parameters:
        rows = {split: task.parameters[f"{split}_rows"] for split in SPLITS}
    form = task.form
    return {
        "task": name,
        "tokens": task.max_tokens,
        "input": f"{form.vocabulary} symbols" if isinstance(form, Tokens) else f"{form.dim} values",
        "classes": task.classes,
        "labels_per_row": task.readout_tokens * task.outputs,
        "splits": rows,
        "data": status,
        "remedy": remedy,
    }


def open_source(name: str, *, data: Path | None = None, **parameters: Any) -> Source:
    """Return the source of a named task, or of your own data, whose ``name`` is a path or an address on the hub.

    ``parameters`` are the parameters of the named task, or the fields of `OwnDataOptions`; ``data`` is the
    folder of the files of named tasks. Raises `InputError` for another name, and for an unknown parameter.
    """
    if name in TASKS:
        return task_named(name, data=data, **parameters)
    looks_like_path = Path(name).suffix or "/" in name or Path(name).is_dir()
    is_on_hub = name.startswith(PREFIX)
    if not (looks_like_path or is_on_hub):
        remedy = f"give one of {', '.join(TASKS)}, or the path of your own data{nearest(name, TASKS)}"
        raise InputError(f"no task {name!r}", remedy)
    names = [field.name for field in fields(OwnDataOptions)]
    for parameter in parameters:
        if parameter not in names:
            raise unknown_parameter(name, parameter, names)
    return OwnData(name, OwnDataOptions(**parameters))


def download(task: str, *, cache: Path | None = None) -> Path:
    """Download the files of a task if the cache lacks them, check their SHA-256, and return their folder."""
    if task not in DOWNLOADS:
        raise InputError(
            f"task {task!r} cannot be downloaded, only {', '.join(DOWNLOADS)}", "give --data DIR"
        )
    published = DOWNLOADS[task]
    folder = path_below(cache_root(cache), "downloads", published["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, sha256 in published["files"].items():
        if not (folder / name).is_file():
            _fetch(path_below(folder, name), sha256, published["addresses"])
        if name.endswith(".tar.gz") and not (folder / published["unpacked"]).exists():
            with new_folder(folder / published["unpacked"]) as unpacked:
                shutil.unpack_archive(folder / name, unpacked, filter="data")
                # The archive has the files in a folder of the same name, which is one folder too many here.
                folder_in_archive = unpacked / published["unpacked"]
                for item in folder_in_archive.iterdir():
                    item.rename(unpacked / item.name)
                folder_in_archive.rmdir()
    return folder


def _fetch(path: Path, sha256: str, addresses: Sequence[str]) -> None:
    """Download a file from the first of some addresses that has it, and check its SHA-256.

    Raises `InputError` with the failure of each address if none has it.
    """
    from torch.hub import download_url_to_file

    failures = []
    for address in addresses:
        try:
            return download_url_to_file(
                f"{address}/{path.name}", str(path), sha256, progress=sys.stderr.isatty()
            )
        except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: checksum mismatch
            failures.append(f"{address}: {error}")  # the next address may have the file
    raise InputError(
        f"{path.name} could not be downloaded ({'; '.join(failures)})",
        "try again, or download it yourself and give --data DIR",
    )
