"""Files of features that another program computed: named arrays, whose names are SPLIT or SPLIT/COLUMN."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.size_limits import check_expansion
from reservoir_pipelines.data.npz import read_arrays
from reservoir_pipelines.data.table import read_arrow


def open_arrays(path: Path, stack: ExitStack) -> dict[str, Any]:
    """Return the arrays (rows, width) of a file by name; ``stack`` closes files of which ranges are read."""
    if path.suffix.lower() not in READERS or not path.is_file():
        raise InputError(
            f"{path}: features cannot be read",
            f"give a file of type {', '.join(READERS)}, or a folder of export-features",
        )
    return READERS[path.suffix.lower()](path, stack)


def _read_npz(path: Path, _: ExitStack) -> dict[str, Any]:
    return {**read_arrays(path)}


def _open_hdf5(path: Path, stack: ExitStack) -> dict[str, Any]:
    import h5py
    from reservoir_cache import open_hdf5

    file = stack.enter_context(open_hdf5(path))
    arrays: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:  # links to other files are not followed
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise InputError(
                    f"{path}: the values of {name!r} lie in another file", "copy them into this one"
                )
            check_expansion(path, name, item.nbytes, item.id.get_storage_size())
            arrays[name] = item

    file.visititems(visit)
    return arrays


def _read_safetensors(path: Path, _: ExitStack) -> dict[str, Any]:
    from safetensors.torch import load_file  # NumPy has no bfloat16

    return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}


def _read_parquet(path: Path, _: ExitStack) -> dict[str, Any]:
    """Return each column of lists as an array, or, if there is none, all columns of floats as one array."""
    table = read_arrow(path).to_pandas()
    lists = [name for name in table if isinstance(table[name].iloc[0], np.ndarray)]
    floats = table.select_dtypes("floating")
    if "split" not in table or not lists + list(floats):
        raise InputError(
            f"{path}: no column 'split', or no features",
            "add a column 'split' (train, valid or test), and columns of lists or floats",
        )
    if not lists:
        return {str(split): rows.to_numpy() for split, rows in floats.groupby(table["split"])}
    return {
        f"{split}/{name}": np.stack(rows[name].tolist())
        for split, rows in table.groupby("split")
        for name in lists
    }


READERS: dict[str, Callable[[Path, ExitStack], dict[str, Any]]] = {
    ".h5": _open_hdf5,
    ".hdf5": _open_hdf5,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
}
