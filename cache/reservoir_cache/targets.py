"""The labels of a split: one HDF5 file with y, lengths and the source row numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from reservoir_cache.errors import CacheError
from reservoir_cache.hdf import new_file, read_array
from reservoir_cache.manifest import TARGETS_FILE, Manifest, Targets
from reservoir_cache.publish import file_crc32, publish

RANKS = {"y": 3, "lengths": 1, "index": 1}


def publish_targets(folder: Path, manifest: Manifest, targets: Mapping[str, NDArray], run: str) -> Manifest:
    """Write the targets of a split and return its manifest with them.

    Parameters
    ----------
    folder : Path
        The split's.
    manifest : Manifest
    targets : mapping
        ``y`` (rows, readout_tokens, outputs), ``lengths`` (rows,), ``index`` (rows,).
    run : str
        Identity of the writing process.

    Raises
    ------
    CacheError
        If a shape or type is wrong or the file cannot be written.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in targets.items()}
    if arrays.keys() != RANKS.keys():
        raise CacheError(f"targets of {manifest.split}: need {', '.join(RANKS)}, not {', '.join(arrays)}")
    for name, array in arrays.items():
        if array.ndim != RANKS[name] or len(array) != manifest.rows or array.dtype.kind not in "biuf":
            raise CacheError(
                f"targets of {manifest.split}: {name} has shape {array.shape} and type {array.dtype}; "
                f"it needs {RANKS[name]} dimensions, {manifest.rows} rows, and numbers"
            )

    def write(path: Path) -> None:
        with new_file(path) as file:
            for name in RANKS:
                file.create_dataset(name, data=arrays[name], track_times=False)

    def verify(path: Path) -> None:
        found = read_targets(path)
        if any(found[name].tobytes() != arrays[name].tobytes() for name in RANKS):
            raise CacheError(f"{path}: does not read back as written; check the disk")

    path = folder / TARGETS_FILE
    publish(path, run, write, verify)
    return replace(manifest, targets=Targets(TARGETS_FILE, path.stat().st_size, file_crc32(path)))


def read_targets(path: Path) -> dict[str, NDArray]:
    """Read y, lengths and index."""
    with h5py.File(path, "r", locking=False) as file:
        return {name: read_array(file, name) for name in RANKS}
