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

FOLDER = "moments"  # its name in the folder of an entry


def save_arrays(entry: Entry, name: str, arrays: Mapping[str, NDArray], meta: Mapping[str, Any]) -> bool:
    """Save arrays, whose names may contain '/', with JSON values ``meta`` under a name; replace earlier ones.

    Returns False if the entry is read-only for this user, or the disk is full, else True.
    """
    folder = entry.path / FOLDER
    path = folder / f"{check_name(name, 'name of derived arrays')}.h5"
    meta_text = np.frombuffer(canonical_json(meta).encode(), dtype=np.uint8)
    datasets = {"meta": meta_text} | {f"arrays/{key}": arrays[key] for key in sorted(arrays)}
    content = file_content(datasets)
    try:
        locks = entry_locks(entry.path)
        with locks.at_work(), locks.mutex():
            size, crc = publish(path, *content)
            # A damaged manifest, which is None, is replaced: its files can be computed again.
            lines = listed(folder) or {}
            lines[path.name] = {"bytes": size, "crc32": crc}
            publish_json(folder / MANIFEST_FILE, {"files": lines})
    except CacheError:
        return False  # no error: the caller has the arrays, and can compute them again another time
    return True


def load_arrays(entry: Entry, name: str) -> tuple[dict[str, NDArray], dict[str, Any]] | None:
    """Return the arrays and meta saved under a name, or None if they are absent or damaged."""
    path = entry.path / FOLDER / f"{check_name(name, 'name of derived arrays')}.h5"
    line = (listed(path.parent) or {}).get(path.name)
    if line is None or fault(path, line):
        return None
    try:
        with open_hdf5(path) as file:
            datasets = [dataset for dataset in dataset_names(file) if dataset.startswith("arrays/")]
            arrays = {dataset.removeprefix("arrays/"): read_array(file, dataset) for dataset in datasets}
            meta = json.loads(read_array(file, "meta").tobytes())
    except UNREADABLE:
        return None
    return arrays, meta


def listed(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the lines of the folder's manifest, {file: {bytes, crc32}}: empty if it is absent, None if damaged."""
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
    """Delete a file and its line in the manifest; delete all files if the manifest is damaged or lists none."""
    lines = listed(folder) or {}
    files_to_delete = {file} if lines else {path.name for path in folder.glob("*.h5")}
    remaining_lines = {name: line for name, line in lines.items() if name not in files_to_delete}
    # The lines go before the files: the manifest never lists a file that does not exist.
    publish_json(folder / MANIFEST_FILE, {"files": remaining_lines})
    for name in files_to_delete:
        (folder / name).unlink(missing_ok=True)
