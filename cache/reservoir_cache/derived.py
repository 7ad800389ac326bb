"""Arrays of an entry besides its features: those that can be recomputed, and those of its input layer.

Derived arrays, such as moments, lie in one folder of the entry, and are computed again when they are lost or damaged.
The arrays of an input layer that was drawn from the data lie in another: only the data give them again, so copies of
the entry have them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_cache.entry import MANIFEST_FILE, Entry
from reservoir_cache.errors import CacheError
from reservoir_cache.locks import entry_locks
from reservoir_cache.paths import fault
from reservoir_cache.publish import publish, publish_json, read_json
from reservoir_cache.shard import UNREADABLE, dataset_names, file_content, open_hdf5, read_array
from reservoir_cache.spec import INPUT, MOMENTS, canonical_json, check_name


@dataclass(frozen=True)
class ArrayFile:
    """A line of the manifest of such a folder: one file of arrays."""

    bytes: int  # size of the file
    crc32: str  # of the whole file, as 8 hexadecimal digits


def save_arrays(entry: Entry, name: str, arrays: Mapping[str, NDArray], meta: Mapping[str, Any]) -> bool:
    """Save arrays, whose names may contain '/', with JSON values ``meta`` under a name; replace earlier ones.

    Returns False if the entry is read-only for this user, or the disk is full, else True.
    """
    try:
        _save(entry, MOMENTS, name, arrays, meta)
    except CacheError:
        return False  # no error: the caller has the arrays, and can compute them again another time
    return True


def load_arrays(entry: Entry, name: str) -> tuple[dict[str, NDArray], dict[str, Any]] | None:
    """Return the arrays and meta saved under a name, or None if they are absent or damaged."""
    return _load(entry, MOMENTS, name)


def save_input(entry: Entry, name: str, arrays: Mapping[str, NDArray]) -> None:
    """Save arrays of the input layer under a name; raises CacheError if they cannot be written."""
    _save(entry, INPUT, name, arrays, {})


def load_input(entry: Entry, name: str) -> dict[str, NDArray] | None:
    """Return the arrays of the input layer saved under a name, or None if they are absent or damaged."""
    # Entries that were made before 2026-11-28 have them among the derived arrays.
    loaded = _load(entry, INPUT, name) or _load(entry, MOMENTS, name)
    return loaded[0] if loaded else None


def move_input(entry: Entry, name: str) -> None:
    """Save arrays of the input layer that lie among the derived arrays where copies find them."""
    if _load(entry, INPUT, name) is None and (arrays := load_input(entry, name)) is not None:
        save_input(entry, name, arrays)


def _save(
    entry: Entry, folder_name: str, name: str, arrays: Mapping[str, NDArray], meta: Mapping[str, Any]
) -> None:
    """Publish arrays and ``meta`` in a folder of an entry, and list them; raises CacheError if that fails."""
    folder = entry.path / folder_name
    path = folder / f"{check_name(name, 'name of arrays')}.h5"
    meta_text = np.frombuffer(canonical_json(meta).encode(), dtype=np.uint8)
    datasets = {"meta": meta_text} | {f"arrays/{key}": arrays[key] for key in sorted(arrays)}
    content = file_content(datasets)
    locks = entry_locks(entry.path)
    with locks.at_work(), locks.mutex():
        size, crc = publish(path, *content)
        # A damaged manifest, which is None, is replaced: its files can be computed again.
        lines = listed_arrays(folder) or {}
        lines[path.name] = ArrayFile(size, crc)
        _write_list(folder, lines)


def _load(entry: Entry, folder_name: str, name: str) -> tuple[dict[str, NDArray], dict[str, Any]] | None:
    """Return the arrays and meta of a file in a folder of an entry, or None if it is absent or damaged."""
    path = entry.path / folder_name / f"{check_name(name, 'name of arrays')}.h5"
    line = (listed_arrays(path.parent) or {}).get(path.name)
    if line is None or fault(path, vars(line)):
        return None
    try:
        with open_hdf5(path) as file:
            datasets = [dataset for dataset in dataset_names(file) if dataset.startswith("arrays/")]
            arrays = {dataset.removeprefix("arrays/"): read_array(file, dataset) for dataset in datasets}
            meta = json.loads(read_array(file, "meta").tobytes())
    except UNREADABLE:
        return None
    return arrays, meta


def listed_arrays(folder: Path) -> dict[str, ArrayFile] | None:
    """Return the line of each file in the folder's manifest: empty if there is no manifest, None if it is damaged."""
    try:
        files = read_json(folder / MANIFEST_FILE)["files"]
        lines = {file: ArrayFile(**line) for file, line in files.items()}
        for file, line in lines.items():
            check_name(file, "file of arrays")
            has_size = type(line.bytes) is int and line.bytes >= 0
            if not (file.endswith(".h5") and has_size and re.fullmatch("[0-9a-f]{8}", line.crc32)):
                return None
    except FileNotFoundError:
        return {}
    except (CacheError, KeyError, AttributeError, TypeError):
        return None  # a damaged document may have other fields or types
    return lines


def forget(folder: Path, file: str) -> None:
    """Delete a file and its line in the manifest; delete all files if the manifest is damaged or lists none."""
    lines = listed_arrays(folder) or {}
    files_to_delete = {file} if lines else {path.name for path in folder.glob("*.h5")}
    remaining_lines = {name: line for name, line in lines.items() if name not in files_to_delete}
    # The lines go before the files: the manifest never lists a file that does not exist.
    _write_list(folder, remaining_lines)
    for name in files_to_delete:
        (folder / name).unlink(missing_ok=True)


def _write_list(folder: Path, lines: Mapping[str, ArrayFile]) -> None:
    """Publish the manifest of a folder of arrays."""
    publish_json(folder / MANIFEST_FILE, {"files": {file: vars(line) for file, line in lines.items()}})
