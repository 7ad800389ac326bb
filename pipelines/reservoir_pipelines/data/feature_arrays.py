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
    """Return the arrays (rows, width) of a file by name, in memory or as HDF5 datasets of which ranges are read.

    A file that stays open for that is closed with ``stack``.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS or not path.is_file():
        raise InputError(
            f"{path}: features cannot be read",
            f"give a file of type {', '.join(READERS)}, or a folder of export-features",
        )
    return READERS[suffix](path, stack)


def _read_npz(path: Path, _: ExitStack) -> dict[str, Any]:
    """Return all arrays of an archive by name."""
    return {**read_arrays(path)}


def _open_hdf5(path: Path, stack: ExitStack) -> dict[str, Any]:
    """Return all datasets of a file by their paths in it, also in groups; refuse one with values in another file."""
    import h5py
    from reservoir_cache import open_hdf5

    file = stack.enter_context(open_hdf5(path))
    arrays: dict[str, Any] = {}

    def add_dataset(name: str, item: Any) -> None:
        """Add an item of the file to the arrays if it is a dataset, not a group."""
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:
            raise InputError(
                f"{path}: the values of {name!r} lie in another file", "copy them into this one"
            )
        check_expansion(path, name, item.nbytes, item.id.get_storage_size())
        arrays[name] = item

    file.visititems(add_dataset)  # follows no links to other files
    return arrays


def _read_safetensors(path: Path, _: ExitStack) -> dict[str, Any]:
    """Return all tensors of a file by name, as arrays of float32."""
    from safetensors.torch import load_file  # not ``safetensors.numpy``, because NumPy has no bfloat16

    return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}


def _read_parquet(path: Path, _: ExitStack) -> dict[str, Any]:
    """Return an array for each split and column of lists, called SPLIT/COLUMN.

    In a table without lists, all columns of floats are one array (rows, columns) for each split, called SPLIT.
    """
    table = read_arrow(path).to_pandas()
    list_columns = [name for name in table if isinstance(table[name].iloc[0], np.ndarray)]
    floats = table.select_dtypes("floating")
    has_features = bool(list_columns) or len(floats.columns) > 0
    if "split" not in table or not has_features:
        raise InputError(
            f"{path}: no column 'split', or no features",
            "add a column 'split' (train, valid or test), and columns of lists or floats",
        )
    if not list_columns:
        return {str(split): rows.to_numpy() for split, rows in floats.groupby(table["split"])}
    return {
        f"{split}/{name}": np.stack(rows[name].tolist())
        for split, rows in table.groupby("split")
        for name in list_columns
    }


READERS: dict[str, Callable[[Path, ExitStack], dict[str, Any]]] = {
    ".h5": _open_hdf5,
    ".hdf5": _open_hdf5,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
}
