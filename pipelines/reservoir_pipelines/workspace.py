"""The cache's root folder, the folder of downloaded data, and the versions of packages."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from reservoir.errors import InputError

IMPORTED = "imported"
"""Family, init and input of an entry of features that another program computed, and the default layer of these."""

ROWS = "rows"
"""Name of the task of the entries that the estimators make, one for each batch of rows, and of their one split."""


def cache_root(cache: Path | None = None) -> Path:
    """Return the root folder: the argument, else ``RESERVOIR_CACHE``, else the platform's user cache folder."""
    named = cache or os.environ.get("RESERVOIR_CACHE")
    if not named:
        import platformdirs

        named = platformdirs.user_cache_dir("reservoir", appauthor=False)
    root = Path(named)
    if root.exists() and not root.is_dir():
        raise InputError(f"the cache {root} is not a folder; name another with --cache DIR or RESERVOIR_CACHE")
    return root


def data_folder(data: Path | None = None) -> Path | None:
    """Return the folder of the publishers' files: the argument, else ``RESERVOIR_DATA``, else None."""
    if data is None and os.environ.get("RESERVOIR_DATA"):
        data = Path(os.environ["RESERVOIR_DATA"])
    if data is not None and not Path(data).is_dir():
        raise InputError(f"the data folder {data} does not exist; name another with --data DIR or RESERVOIR_DATA")
    return None if data is None else Path(data)


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of some packages, to explain why a number differs between machines."""
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
