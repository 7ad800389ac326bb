"""Where everything that is kept lies, and files that are whole or as they were."""

from __future__ import annotations

import os
import platform
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir_cache import fault_point, sync

from reservoir.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def cache_root(cache: Path | None = None) -> Path:
    """Return the root folder: the argument, else ``RESERVOIR_CACHE``, else the platform's user cache folder."""
    named = cache or os.environ.get("RESERVOIR_CACHE")
    if not named:
        import platformdirs

        named = platformdirs.user_cache_dir("reservoir", appauthor=False)
    root = Path(named)
    if root.exists() and not root.is_dir():
        raise InputError(f"the cache {root} is no folder; name another with --cache DIR or RESERVOIR_CACHE")
    return root


def data_folder(data: Path | None = None) -> Path | None:
    """Return the folder of the publishers' files: the argument, else ``RESERVOIR_DATA``, else None."""
    if data is None and os.environ.get("RESERVOIR_DATA"):
        data = Path(os.environ["RESERVOIR_DATA"])
    if data is not None and not Path(data).is_dir():
        raise InputError(f"the data folder {data} does not exist; name another with --data DIR or RESERVOIR_DATA")
    return None if data is None else Path(data)


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of some packages, for people who wonder why a number differs."""
    return {"python": platform.python_version()} | {name: import_module(name).__version__ for name in packages}


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under a temporary name and move it into place, so that it is whole or as it was."""
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}.part")
    try:
        fault_point("begun")
        write(part)
        fault_point("written")
        sync(part)
        fault_point("synced")
        part.replace(path)
        fault_point("replaced")
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file that others may read as they may read every new file."""
    from safetensors.torch import save_file

    with system_errors():
        save_file(dict(tensors), path)
    share(path)


@contextmanager
def system_errors() -> Iterator[None]:
    """Raise what safetensors says of the system as the OSError that it is."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        if not (found := re.search(r"\(os error (\d+)\)", str(error))):
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def share(path: Path) -> None:
    """Give a file, which safetensors makes for its owner alone, the permissions of every new file."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
