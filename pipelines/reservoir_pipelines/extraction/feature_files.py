"""Files of features: those of an exported folder, and those that another program computed.

An exported folder has the features and labels of each split in Parquet, safetensors or .npy files, which are written
and read some rows at a time. A column is an array (rows, width), or (rows, tokens, width) if it has several tokens, of
float32. Labels are arrays with one value or one array per row: ``ids``, ``index``, ``y``, ``lengths`` and perhaps
``groups``.

A file of another program has named arrays, whose names are SPLIT or SPLIT/COLUMN (`open_arrays`).
"""

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from reservoir_cache import read_regular

from reservoir.errors import InputError
from reservoir.file_checks import check_expansion
from reservoir_pipelines.data.columns import listed, separated
from reservoir_pipelines.data.npz import read_arrays
from reservoir_pipelines.data.roles import INDEX_NAME
from reservoir_pipelines.data.table import import_pyarrow, read_arrow
from reservoir_pipelines.output import notify

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each array without its first dimension, the rows."""

FeatureBlocks = Iterator[Mapping[str, NDArray[np.float32]]]
"""Consecutive blocks of rows, each with all columns of these rows."""

FLOAT32 = np.dtype("<f4")  # of all columns; the byte order of the files, on any machine

IDS = "ids"  # name of the ids of rows, which columns of ids often have in the singular
LABEL_NAMES = ("label", "target", "class", "y")  # names that columns of labels often have


@dataclass(frozen=True)
class LazyArray:
    """An array in a file whose rows are read when they are sliced."""

    shape: tuple[int, ...]
    read: Callable[[int, int], NDArray]  # the rows from the first number to the second, not included

    def __getitem__(self, rows: slice) -> NDArray:
        start, stop, _ = rows.indices(self.shape[0])  # every row of the range is read: there is no step
        return self.read(start, stop)


@dataclass(frozen=True)
class Stored:
    """What a reader has to know of a split before it opens the split's files."""

    split: str  # name of the split
    rows: int
    block_rows: int  # rows of each block; the last one may have fewer
    shapes: Shapes  # of the columns and of the labels


@dataclass(frozen=True)
class FileFormat:
    """A format: the names of the files of a split, and how these are written and read.

    ``names`` takes the split and the shapes of all arrays. ``write`` takes the folder, the split, the
    labels, the shapes of the columns, and the blocks of the columns. ``open`` takes the folder, what is
    known of the split, and a stack that closes the files; it returns the arrays by name, each with a
    shape and with rows that can be sliced.
    """

    names: Callable[[str, Mapping[str, Any]], list[str]]
    write: Callable[[Path, str, Mapping[str, NDArray], Shapes, FeatureBlocks], None]
    open: Callable[[Path, Stored, ExitStack], dict[str, Any]]
    loading: str  # code that reads ``{column}`` of ``{split}`` in other programs


def default_format() -> str:
    """Return the format that is used if none is named: Parquet if pyarrow is installed."""
    return "parquet" if find_spec("pyarrow") else "safetensors"


def _write_parquet(
    folder: Path, split: str, labels: Mapping[str, NDArray], shapes: Shapes, blocks: FeatureBlocks
) -> None:
    """Write a table with a row group for each block; arrays with several values per row become lists of fixed size."""
    pyarrow = import_pyarrow(f"{split}.parquet")
    types = {name: _arrow_type(pyarrow, array.dtype, array.shape[1:]) for name, array in labels.items()}
    types |= {name: _arrow_type(pyarrow, FLOAT32, shape) for name, shape in shapes.items()}
    schema = pyarrow.schema(types)
    # Float32 hidden states shrink by less than a tenth, so they are stored plain, which is read fastest.
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    # Python opens the file, because the errors of its writes have the number of the system's error.
    with (
        (folder / f"{split}.parquet").open("xb") as file,
        pyarrow.parquet.ParquetWriter(file, schema, **plain) as writer,
    ):
        low = 0  # number of the block's first row
        for block in blocks:
            rows = len(next(iter(block.values())))
            labels_of_block = {name: array[low : low + rows] for name, array in labels.items()}
            arrays = {**labels_of_block, **block}
            columns = [_arrow_array(pyarrow, arrays[field.name], field.type) for field in schema]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema), row_group_size=rows)
            low += rows


def _arrow_type(pyarrow: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    """Return the Arrow type of a row: that of its value, or a list of fixed size if ``shape`` gives it several."""
    value_type = pyarrow.string() if dtype.kind == "U" else pyarrow.from_numpy_dtype(dtype)
    return pyarrow.list_(value_type, int(np.prod(shape))) if shape else value_type


def _arrow_array(pyarrow: Any, array: NDArray, arrow_type: Any) -> Any:
    """Return an array (rows, ...) as one of Arrow, in which a row is a text, a number or a list of numbers."""
    are_texts = array.dtype.kind == "U"
    if are_texts:
        try:
            return pyarrow.array(array.tolist(), arrow_type)
        except UnicodeEncodeError as error:  # the name of a file need not be valid UTF-8
            raise InputError(
                f"an id is not valid Unicode: {error.object!a}",
                "pass --format npy, or rename it in the source",
            ) from None
    values = pyarrow.array(np.ascontiguousarray(array).reshape(-1))
    if array.ndim == 1:
        return values
    return pyarrow.FixedSizeListArray.from_arrays(values, arrow_type.list_size)


def _open_parquet(folder: Path, stored: Stored, stack: ExitStack) -> dict[str, Any]:
    """Open the file of a split; return its arrays by name, whose rows are read when they are needed."""
    path = folder / f"{stored.split}.parquet"
    file = stack.enter_context(import_pyarrow(path).parquet.ParquetFile(path))
    # Checked before any range of rows is read, because a description may claim any number of rows.
    row_groups = math.ceil(stored.rows / stored.block_rows)
    if (file.metadata.num_rows, file.num_row_groups) != (stored.rows, row_groups):
        raise ValueError(f"{path.name} has other rows than its description")

    # pyarrow's reader may not be used by two threads at a time: it aborts the process.
    one_at_a_time = threading.Lock()

    def read(name: str, low: int, high: int) -> NDArray:
        """Return the rows of an array from ``low`` to ``high`` (not included)."""
        # Each block is a row group. Read those from the first that has a row of the range to the last (not included).
        first, last = low // stored.block_rows, math.ceil(high / stored.block_rows)
        with one_at_a_time:
            column = file.read_row_groups(range(first, last), columns=[name])[name]
        # All values in one array; lists are flattened.
        values = column.combine_chunks()
        shape = stored.shapes[name]
        if shape:
            values = values.flatten()
        # The rows from ``groups_start`` to ``groups_end`` (not included) were read; the last row group may be short.
        groups_start = first * stored.block_rows
        groups_end = min(last * stored.block_rows, stored.rows)
        rows_in_groups = groups_end - groups_start
        has_gaps = column.null_count or values.null_count
        if has_gaps or len(values) != rows_in_groups * np.prod(shape, dtype=int):
            raise ValueError(f"the rows of {name} have gaps or another size")
        array = values.to_numpy(zero_copy_only=False).reshape(rows_in_groups, *shape)
        return array[low - groups_start : high - groups_start]

    return {
        name: LazyArray((stored.rows, *shape), partial(read, name)) for name, shape in stored.shapes.items()
    }


def _write_safetensors(
    folder: Path, split: str, labels: Mapping[str, NDArray], shapes: Shapes, blocks: FeatureBlocks
) -> None:
    """Write the arrays of numbers as tensors, block by block, and labels that are texts as JSON in a second file.

    The package safetensors writes only tensors that are in memory as a whole, so this function writes the format: the
    size of the header in 8 bytes, the header as JSON, and the values of all tensors.
    """
    # 1. The header, whose offsets follow from the types and shapes.
    tensors = {name: array for name, array in labels.items() if array.dtype.kind != "U"}
    rows = len(labels["index"])
    types = {name: array.dtype for name, array in tensors.items()} | dict.fromkeys(shapes, FLOAT32)
    full_shapes = {name: array.shape for name, array in tensors.items()}
    full_shapes |= {name: (rows, *shape) for name, shape in shapes.items()}
    header: dict[str, Any] = {}
    positions: dict[str, int] = {}  # where the next values of each tensor are written, behind the header
    end = 0
    # The widest types come first, so that every tensor begins at a multiple of the size of its values.
    for name in sorted(types, key=lambda name: types[name].itemsize, reverse=True):
        dtype, shape = types[name], full_shapes[name]
        positions[name] = end
        end += int(np.prod(shape)) * dtype.itemsize
        header[name] = {
            "dtype": f"{dtype.kind.upper()}{8 * dtype.itemsize}",  # F32, I64
            "shape": shape,
            "data_offsets": [positions[name], end],
        }
    header_bytes = json.dumps(header).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)  # so that the values begin at a multiple of 8 bytes
    # 2. The values: those of labels at once, those of each block behind the block before.
    with (folder / f"{split}.safetensors").open("xb") as file:
        file.write(len(header_bytes).to_bytes(8, "little") + header_bytes)
        start = file.tell()
        for name, array in tensors.items():
            file.seek(start + positions[name])
            file.write(np.ascontiguousarray(array).data)
        for block in blocks:
            for name, values in block.items():
                file.seek(start + positions[name])
                positions[name] += file.write(np.ascontiguousarray(values, FLOAT32).data)
    # 3. The labels that are texts.
    texts = {name: array.tolist() for name, array in labels.items() if name not in tensors}
    (folder / f"{split}.json").write_text(json.dumps(texts) + "\n")


def _open_safetensors(folder: Path, stored: Stored, stack: ExitStack) -> dict[str, Any]:
    """Open the files of a split; return its arrays by name, texts read whole and tensors when they are needed."""
    from safetensors import safe_open

    file = stack.enter_context(safe_open(folder / f"{stored.split}.safetensors", "np"))
    texts = json.loads(read_regular(folder / f"{stored.split}.json"))
    arrays: dict[str, Any] = {name: np.array(values, str) for name, values in texts.items()}

    def lazy_array(tensor: Any) -> LazyArray:
        """Return a tensor of the file, of which only the rows that are sliced are read."""
        return LazyArray(tuple(tensor.get_shape()), lambda low, high: tensor[low:high])

    for name in file.keys():  # noqa: SIM118  # it is not a mapping
        arrays[name] = lazy_array(file.get_slice(name))
    return arrays


def _write_npy(
    folder: Path, split: str, labels: Mapping[str, NDArray], shapes: Shapes, blocks: FeatureBlocks
) -> None:
    """Write each array as a file of its own, the layer of a column as a folder."""
    rows = len(labels["index"])
    with ExitStack() as stack:

        def create(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> BinaryIO:
            """Create the file of an array (rows, *shape), and return it with the header written."""
            path = folder / _npy_name(split, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("xb"))
            descr = np.lib.format.dtype_to_descr(dtype)
            header = {"descr": descr, "fortran_order": False, "shape": (rows, *shape)}
            np.lib.format.write_array_header_1_0(file, header)
            return file

        for name, array in labels.items():
            create(name, array.dtype, array.shape[1:]).write(array.tobytes())
        files = {name: create(name, FLOAT32, shape) for name, shape in shapes.items()}
        for block in blocks:
            for name, values in block.items():
                files[name].write(np.ascontiguousarray(values, FLOAT32).data)


def _open_npy(folder: Path, stored: Stored, _: ExitStack) -> dict[str, Any]:
    """Return the arrays of a split by name, mapped into memory; the file of each is closed when its array is freed."""
    return {
        name: np.load(folder / _npy_name(stored.split, name), mmap_mode="r", allow_pickle=False)
        for name in stored.shapes
    }


def _npy_name(split: str, name: str) -> str:
    """Return the name of the file of an array, below the folder."""
    return f"{split}/{name}.npy"


FILE_FORMATS = {
    "parquet": FileFormat(
        names=lambda split, shapes: [f"{split}.parquet"],
        write=_write_parquet,
        open=_open_parquet,
        loading='polars.read_parquet("{split}.parquet")["{column}"]\n'
        'duckdb.sql("select ids, \\"{column}\\" from \'{split}.parquet\'")\n'
        'datasets.load_dataset("FOLDER")',
    ),
    "safetensors": FileFormat(
        names=lambda split, shapes: [f"{split}.safetensors", f"{split}.json"],
        write=_write_safetensors,
        open=_open_safetensors,
        loading='safetensors.numpy.load_file("{split}.safetensors")["{column}"]',
    ),
    "npy": FileFormat(
        names=lambda split, shapes: [_npy_name(split, name) for name in shapes],
        write=_write_npy,
        open=_open_npy,
        loading='numpy.load("{split}/{column}.npy", mmap_mode="r")',
    ),
}
"""The formats by name."""


def open_arrays(
    path: Path, stack: ExitStack, parameters: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the arrays (rows, width) of a file by name, in memory or as HDF5 datasets of which ranges are read.

    A file that stays open for that is closed with ``stack``. The ``parameters`` of the task name the columns of labels
    and of ids of a table, which are no features.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS or not path.is_file():
        raise InputError(
            f"{path}: features cannot be read",
            f"give a file of type {', '.join(READERS)}, or a folder of export-features",
        )
    return READERS[suffix](path, stack, parameters)


def _read_npz(path: Path, _: ExitStack, _parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arrays of an archive by name."""
    return {**read_arrays(path)}


def _open_hdf5(path: Path, stack: ExitStack, _parameters: Mapping[str, Any]) -> dict[str, Any]:
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


def _read_safetensors(path: Path, _: ExitStack, _parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all tensors of a file by name, as arrays: floats as float32, and integers, such as ids, as they are."""
    from safetensors.torch import load_file  # not ``safetensors.numpy``, because NumPy has no bfloat16

    tensors = load_file(path)
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise InputError(
                f"{path}: array {name!r} has complex numbers", "give real and imaginary parts side by side"
            )
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        for name, tensor in tensors.items()
    }


def _read_parquet(path: Path, _: ExitStack, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return an array for each split and column of lists, called SPLIT/COLUMN.

    In a table without lists, all columns of floats are one array (rows, columns) for each split, called SPLIT. A column
    of ids becomes texts (rows,), called SPLIT/ids. Print which columns are features. Refuse a label among them, with
    the name of a label of the task's ``parameters`` or a common one.
    """
    # The metadata of pandas would make an index of columns, such as the ids.
    table = read_arrow(path).to_pandas(ignore_metadata=True)
    id_column = next((name for name in (parameters.get("id"), "id", IDS) if name in table), None)
    # A row without a value is no list, so all rows are looked at.
    list_columns = [
        name
        for name in table.select_dtypes(exclude="number")
        if any(isinstance(value, np.ndarray) for value in table[name])
    ]
    floats = [name for name in table.select_dtypes("floating") if not INDEX_NAME.fullmatch(name)]
    features = [name for name in list_columns or floats if name != id_column]
    if "split" not in table or not features:
        raise InputError(
            f"{path}: no column 'split', or no features",
            "add a column 'split' (train, valid or test), and columns of lists or floats",
        )
    labels = {*LABEL_NAMES, *separated(parameters.get("label"))}
    for name in features:
        if name in labels:
            raise InputError(
                f"{path}: the column {name!r} would be a feature", "leave out labels, or rename it"
            )
    for name in ("split", *list_columns):
        missing = np.flatnonzero(table[name].isna())
        if len(missing):
            raise InputError(f"{path}: row {missing[0]} has no value of {name!r}", "repair it")
    for name in list_columns:
        lengths = table[name].map(len).to_numpy()
        differing = np.flatnonzero(lengths != lengths[0])
        if len(differing):
            row = differing[0]
            raise InputError(
                f"{path}: {name!r} has {lengths[row]} values in row {row}, but {lengths[0]} in row 0",
                "give lists of one length",
            )
    others = table.columns.drop([*features, "split"]).tolist()
    not_read = [name for name in others if name != id_column]
    notes = [f"the features are {listed(features)}"]
    notes += [f"the ids are {id_column}"] if id_column else []
    notes += [f"not read: {listed(not_read)}"] if not_read else []
    notify(f"{path}: {'; '.join(notes)}")
    arrays: dict[str, Any] = {}
    for split, rows in table.groupby("split"):
        if id_column:
            arrays[f"{split}/{IDS}"] = _ids_of(path, rows[id_column])
        if list_columns:
            arrays |= {f"{split}/{name}": np.stack(rows[name].tolist()) for name in list_columns}
        else:
            # pandas marks gaps of its own types by NA; as NaN they are refused like all values that are not finite.
            arrays[str(split)] = rows[features].to_numpy(np.float64, na_value=np.nan)
    return arrays


def _ids_of(path: Path, column: Any) -> np.ndarray:
    """Return a column of ids as texts (rows,); pandas makes whole numbers floats if it joins tables with gaps."""
    if column.dtype.kind == "f":
        if not (column % 1 == 0).all():
            raise InputError(
                f"{path}: the ids in column {column.name!r} are not whole", "repair or rename the column"
            )
        column = column.astype(np.int64)
    return column.astype(str).to_numpy(str)


READERS: dict[str, Callable[[Path, ExitStack, Mapping[str, Any]], dict[str, Any]]] = {
    ".h5": _open_hdf5,
    ".hdf5": _open_hdf5,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
}
