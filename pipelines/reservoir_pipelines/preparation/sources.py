"""Which source a task names, and the files of named tasks, downloaded from their publishers."""

import shutil
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from typing import Any

from reservoir_cache import new_folder, path_below

from reservoir.errors import InputError, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks import TASKS, Source, task_named, unknown_parameter
from reservoir_pipelines.data.hub import PREFIX
from reservoir_pipelines.data.own_data import OwnData
from reservoir_pipelines.files import cache_root

DOWNLOADS = tomllib.loads(
    (resources.files("reservoir_pipelines") / "preparation" / "downloads.toml").read_text()
)
"""The files that can be downloaded, by task: their SHA-256, addresses and folder; see ``downloads.toml``."""


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
