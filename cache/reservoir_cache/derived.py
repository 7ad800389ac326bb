"""Arrays that can be recomputed, such as moments: a damaged file is treated as absent."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import MANIFEST_FILE, Entry
from reservoir_cache.errors import CacheError
from reservoir_cache.hdf5 import open_hdf5
from reservoir_cache.locks import entry_locks
from reservoir_cache.paths import fault
from reservoir_cache.publish import publish, publish_json, read_json
from reservoir_cache.shard import UNREADABLE, dataset_names, file_content, read_array
from reservoir_cache.spec import canonical_json, check_name

FOLDER = "moments"


def save_arrays(entry: Entry, name: str, arrays: Mapping[str, NDArray], meta: Mapping[str, Any]) -> bool:
    """Save arrays, whose names may contain '/', with JSON values; earlier ones are replaced.

    Returns False if the entry is read-only for this user, or the disk is full.
    """
    folder = entry.path / FOLDER
    path = folder / f"{check_name(name, 'name of derived arrays')}.h5"
    text = np.frombuffer(canonical_json(meta).encode(), dtype=np.uint8)
    content = file_content({"meta": text} | {f"arrays/{key}": arrays[key] for key in sorted(arrays)})
    try:
        locks = entry_locks(entry.path)
        with locks.at_work(), locks.mutex():
            size, crc = publish(path, *content)
            line = {"bytes": size, "crc32": crc}
            publish_json(folder / MANIFEST_FILE, {"files": {**(listed(folder) or {}), path.name: line}})
    except CacheError:
        return False
    return True


def load_arrays(entry: Entry, name: str) -> tuple[dict[str, NDArray], dict[str, Any]] | None:
    """Return the arrays and meta saved under a name, or None if they are absent or damaged."""
    path = entry.path / FOLDER / f"{check_name(name, 'name of derived arrays')}.h5"
    line = (listed(path.parent) or {}).get(path.name)
    if line is None or fault(path, line):
        return None
    try:
        with open_hdf5(path) as file:
            names = [name for name in dataset_names(file) if name.startswith("arrays/")]
            meta = json.loads(read_array(file, "meta").tobytes())
            return {name.removeprefix("arrays/"): read_array(file, name) for name in names}, meta
    except UNREADABLE:
        return None


def listed(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the folder's manifest, {file: {bytes, crc32}}: empty if absent, None if damaged."""
    try:
        files = read_json(folder / MANIFEST_FILE)["files"]
        for file, line in files.items():
            check_name(file, "file of derived arrays")
            if not file.endswith(".h5") or line.keys() != {"bytes", "crc32"}:
                return None
    except FileNotFoundError:
        return {}
    except (CacheError, KeyError, AttributeError):
        return None
    return files


def forget(folder: Path, file: str) -> None:
    """Delete a file and its line in the manifest; delete all files if the manifest is damaged."""
    lines = listed(folder) or {}
    gone = {file} if lines else {path.name for path in folder.glob("*.h5")}
    publish_json(
        folder / MANIFEST_FILE, {"files": {name: line for name, line in lines.items() if name not in gone}}
    )
    for name in gone:
        (folder / name).unlink(missing_ok=True)
