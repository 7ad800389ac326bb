"""The stage ``import_features``: features that another program computed become an entry of the cache."""

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import CacheError, Entry, Layout, Spec, check_column_name, rows_per_block

from reservoir.errors import InputError, first_line
from reservoir.option_fields import typed
from reservoir.options import CacheOptions, TaskOptions
from reservoir.tasks.own.arrays import check_expansion, check_header
from reservoir.tasks.own.tables import read_arrow
from reservoir_pipelines.extraction.extract import Extraction, origin_of
from reservoir_pipelines.extraction.run import (
    compute_missing,
    data_digest,
    draw_rows,
    open_entry,
    row_count,
)
from reservoir_pipelines.files import IMPORTED, cache_root, stamp, versions
from reservoir_pipelines.output import meter
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared

Columns = dict[str, dict[str, Any]]  # the array of each split of each column


def import_features(
    file: Path, task: str, name: str, options: TaskOptions, place: CacheOptions
) -> Extraction:
    """Write the arrays of a file as an entry of a task; see `api.import_features`."""
    started = time.monotonic()
    root = cache_root(place.cache)
    prepared = prepare(task, options, cache=root)
    if file.suffix.lower() not in READERS or not file.is_file():
        raise InputError(f"{file}: features cannot be read: give a file of type {', '.join(READERS)}")
    command = typed("import-features", [str(file), "--task", task, "--name", name], options)
    call = {
        "task": origin_of(task),
        "settings": options.to_dict(),
        "command": command,
        "file": str(file.resolve()),
    }
    try:
        with ExitStack() as stack:
            features = _by_column(file, READERS[file.suffix.lower()](file, stack), prepared)
            entry, written = _write(root, name, file, features, prepared, call)
    except Exception as error:  # libraries raise any type of error for damaged files
        if isinstance(error, InputError | CacheError) or getattr(error, "errno", None):
            raise
        raise InputError(
            f"{file}: features cannot be read ({first_line(error)}); write the file again"
        ) from error
    return Extraction.of(entry, prepared, sorted(features), written, started)


def _write(
    root: Path, name: str, file: Path, features: Columns, prepared: Prepared, call: dict[str, Any]
) -> tuple[Entry, int]:
    """Write features as an entry, whose key is their digest; return it and the number of rows written."""
    shapes = {column: (1, splits["train"].shape[1]) for column, splits in sorted(features.items())}
    block_rows = rows_per_block(
        4 * sum(width for _, width in shapes.values()), 1, max(prepared.rows.values())
    )
    layout, index = Layout(block_rows=block_rows, batch_rows=block_rows), draw_rows(prepared, None)
    before = stamp(file)

    def read(place: tuple[str, int, int], columns: Sequence[str]) -> dict[str, np.ndarray]:
        split, low, high = place
        values = {
            column: _finite(file, features[column][split], split, column, low, high) for column in columns
        }
        if stamp(file) != before:  # the values may not be those of the key
            raise InputError(
                f"{file}: changed while it was read; run the command again when it is complete"
            )
        return values

    digest = hashlib.sha256(json.dumps([prepared.rows, shapes]).encode())
    for split, column in ((split, column) for split in index for column in shapes):
        for low, high in layout.blocks(prepared.rows[split]):
            digest.update(read((split, low, high), [column])[column].astype("<f4").data)
    spec = Spec(
        task=prepared.task.to_dict(),
        data={"digest": data_digest(prepared, index), "rows": prepared.rows},
        backbone={"family": IMPORTED, "digest": digest.hexdigest()},
        init={"kind": IMPORTED, "seed": 0},
        input={"kind": IMPORTED, "seed": 0, "gain": 1, "patch": 1, "stride": 1},
        padding="none",
        compute="float32",
        store="float32",
    )
    made_with = {"call": call, "versions": versions("h5py", "numpy")}
    entry, todo = open_entry(root, name, prepared, index, spec, layout, shapes, [*index], made_with)
    with meter("import", row_count(entry, todo)) as bar:
        steps = lambda *place: [place], lambda place, columns, _: partial(read, place, columns)
        return entry, compute_missing(entry, [*index], [*shapes], *steps, bar.advance)


def _by_column(file: Path, arrays: Mapping[str, Any], prepared: Prepared) -> Columns:
    """Return the array of each split of each column; raise `InputError` if the task has other rows."""
    found = Columns()
    rows = ", ".join(f"{split} ({count:,} rows)" for split, count in prepared.rows.items())
    form = (
        f"give arrays (rows, width) named {rows}, or SPLIT/COLUMN, with the rows in the order of the task"
    )
    if prepared.task.each:
        raise InputError(f"{file}: the task labels every token; give a task with one label per row")
    for key, array in arrays.items():
        split, _, column = key.partition("/")
        column = column if "/" in column else f"{column or IMPORTED}/mean"
        check_column_name(column)
        if len(array.shape) != 2 or array.shape[0] != prepared.rows.get(split) or not array.shape[1]:
            raise InputError(f"{file}: array {key!r} has the shape {array.shape}; {form}")
        found.setdefault(column, {})[split] = array
    for column, splits in found.items():
        if splits.keys() != prepared.rows.keys() or len({array.shape[1] for array in splits.values()}) > 1:
            have = ", ".join(f"{split} {array.shape}" for split, array in splits.items())
            raise InputError(
                f"{file}: column {column} has {have}; give {', '.join(prepared.rows)} of one width"
            )
    if not found:
        raise InputError(f"{file}: it holds no arrays; {form}")
    return found


def _finite(file: Path, array: Any, split: str, column: str, low: int, high: int) -> np.ndarray:
    """Return some rows of an array as (rows, 1, width) of float32; refuse values that are not finite."""
    with np.errstate(over="ignore"):
        values = np.asarray(array[low:high]).astype(np.float32, order="C", casting="same_kind")
    faults = np.argwhere(~np.isfinite(values))
    if len(faults):
        where = f"{split} of {column}, row {low + faults[0][0]}, column {faults[0][1]}"
        raise InputError(f"{file}: {where}: the value is not a finite float32 number; repair it")
    return values[:, None]


def _read_npz(path: Path, _: ExitStack) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():  # NumPy reads "train" and "train.npy" as "train"
            check_header(path, archive, name)
    return dict(np.load(path, allow_pickle=False))


def _open_hdf5(path: Path, stack: ExitStack) -> dict[str, Any]:
    import h5py
    from reservoir_cache import open_hdf5

    file, found = stack.enter_context(open_hdf5(path)), dict[str, Any]()

    def visit(name: str, item: Any) -> None:  # links to other files are not followed
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise InputError(
                    f"{path}: the values of {name!r} lie in another file; copy them into this one"
                )
            check_expansion(path, name, item.nbytes, item.id.get_storage_size())
            found[name] = item

    file.visititems(visit)
    return found


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
            f"{path}: add a column 'split' (train, valid or test), and columns of lists or floats"
        )
    if not lists:
        return {str(split): rows.to_numpy() for split, rows in floats.groupby(table["split"])}
    splits = table.groupby("split")
    return {f"{split}/{name}": np.stack(rows[name].tolist()) for split, rows in splits for name in lists}


READERS: dict[str, Callable[[Path, ExitStack], dict[str, Any]]] = {
    **dict.fromkeys((".h5", ".hdf5"), _open_hdf5),
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
}
"""Functions that return the arrays or datasets of a file by name."""
