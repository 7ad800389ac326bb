"""Open HDF5 files for reading, without code that a file may ask for."""

from pathlib import Path

import h5py
from h5py import h5pl  # pyright: ignore[reportAttributeAccessIssue]


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading, without HDF5's own lock, and without loading filters from this process's plugin folders.

    A file names the filters of its values by number. HDF5 looks for a filter that it does not have in the
    folders of ``HDF5_PLUGIN_PATH``, and runs the libraries that it finds there. Filters that the process has
    registered itself still work.
    """
    # The list of plugin folders is cleared each time, because other code may have added to it.
    for _ in range(h5pl.size()):
        h5pl.remove(0)
    return h5py.File(path, "r", locking=False)
