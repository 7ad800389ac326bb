"""Download the files of named tasks from their publishers."""

import shutil
import sys
import tomllib
from collections.abc import Sequence
from http.client import HTTPException
from importlib import resources
from pathlib import Path

from reservoir_cache import new_folder, path_below

from reservoir.errors import InputError
from reservoir_pipelines.files import cache_root

DOWNLOADS = tomllib.loads(
    (resources.files("reservoir_pipelines") / "preparation" / "downloads.toml").read_text()
)
"""The files that can be downloaded, by task."""


def download(task: str, *, cache: Path | None = None) -> Path:
    """Download the files of a task if the cache lacks them, check their SHA-256, and return their folder."""
    if task not in DOWNLOADS:
        raise InputError(
            f"task {task!r} cannot be downloaded, only {', '.join(DOWNLOADS)}", "give --data DIR"
        )
    offered = DOWNLOADS[task]
    folder = path_below(cache_root(cache), "downloads", offered["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, sha256 in offered["files"].items():
        if not (folder / name).is_file():
            _fetch(path_below(folder, name), sha256, offered["addresses"])
        if name.endswith(".tar.gz") and not (folder / offered["unpacked"]).exists():
            with new_folder(folder / offered["unpacked"]) as unpacked:
                shutil.unpack_archive(folder / name, unpacked, filter="data")
                inner = (
                    unpacked / offered["unpacked"]
                )  # the archive holds the files in a folder of this name
                for item in inner.iterdir():
                    item.rename(unpacked / item.name)
                inner.rmdir()
    return folder


def _fetch(path: Path, sha256: str, addresses: Sequence[str]) -> None:
    from torch.hub import download_url_to_file

    failures = []
    for address in addresses:
        try:
            return download_url_to_file(
                f"{address}/{path.name}", str(path), sha256, progress=sys.stderr.isatty()
            )
        except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: checksum mismatch
            failures.append(f"{address}: {error}")
    raise InputError(
        f"{path.name} could not be downloaded ({'; '.join(failures)})",
        "try again, or download it yourself and give --data DIR",
    )
