"""Files with the features and labels of a split: Parquet, safetensors or .npy, written and read some rows at a time.

A column is an array (rows, width), or (rows, tokens, width) if it has several tokens, of float32. Labels are arrays
with one value or one array per row: ``ids``, ``index``, ``y``, ``lengths`` and perhaps ``groups``.
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
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from reservoir_cache import read_regular

from reservoir.errors import InputError
from reservoir_pipelines.data.table import import_pyarrow

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each array without its first dimension, the rows."""

Blocks = Iterator[Mapping[str, NDArray[np.float32]]]
"""Consecutive blocks of rows, each with all columns of these rows."""

FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True)
class LazyArray:
    """An array in a file whose rows are read when they are sliced."""

    shape: tuple[int, ...]
    read: Callable[[int, int], NDArray]  # the rows from the first number to the second, not included

    def __getitem__(self, rows: slice) -> NDArray:
        return self.read(*rows.indices(self.shape[0])[:2])


@dataclass(frozen=True)
class Stored:
    """What a reader has to know of a split: its name, its rows, its rows per block, and the shape of each array."""

    split: str
    rows: int
    block_rows: int
    shapes: Shapes  # of the columns and of the labels


@dataclass(frozen=True)
class FileFormat:
    """A format: the names of the files of a split, and how these are written and read.

    ``names`` takes the split and the names of all arrays. ``write`` takes the folder, the split, the
    labels, the shapes of the columns, and the blocks of the columns. ``open`` returns the arrays by
    name; each has a shape, and its rows can be sliced.
    """

    names: Callable[[str, Mapping[str, Any]], list[str]]
    write: Callable[[Path, str, Mapping[str, NDArray], Shapes, Blocks], None]
    open: Callable[[Path, Stored, ExitStack], dict[str, Any]]
    loading: str  # code that reads a split in other programs


def default_format() -> str:
    """Return the format that is used if none is named: Parquet if pyarrow is installed."""
    return "parquet" if find_spec("pyarrow") else "safetensors"


def _write_parquet(
    folder: Path, split: str, labels: Mapping[str, NDArray], shapes: Shapes, blocks: Blocks
) -> None:
    """Write a table with a row group for each block; arrays with several values per row become lists of fixed size."""
    pyarrow = import_pyarrow(f"{split}.parquet")
    kinds = {name: _arrow_type(pyarrow, array.dtype, array.shape[1:]) for name, array in labels.items()}
    kinds |= {name: _arrow_type(pyarrow, FLOAT32, shape) for name, shape in shapes.items()}
    schema = pyarrow.schema(kinds)
    low = 0  # the first row of the block
    # Float32 hidden states shrink by less than a tenth, so they are stored plain, which is read fastest.
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    # Python opens the file, because the errors of its writes have the number of the system's error.
    with (
        (folder / f"{split}.parquet").open("xb") as file,
        pyarrow.parquet.ParquetWriter(file, schema, **plain) as writer,
    ):
        for block in blocks:
            rows = len(next(iter(block.values())))
            arrays = {name: array[low : low + rows] for name, array in labels.items()} | {**block}
            cells = [_arrow_array(pyarrow, arrays[field.name], field.type) for field in schema]
            writer.write_table(pyarrow.Table.from_arrays(cells, schema=schema), row_group_size=rows)
            low += rows


def _arrow_type(pyarrow: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    """Return the Arrow type of rows of a ``shape``: that of their values, or lists of them."""
    item = pyarrow.string() if dtype.kind == "U" else pyarrow.from_numpy_dtype(dtype)
    return pyarrow.list_(item, int(np.prod(shape))) if shape else item


def _arrow_array(pyarrow: Any, array: NDArray, arrow_type: Any) -> Any:
    """Return an array (rows, ...) as one of Arrow, in which a row is a text, a number or a list of numbers."""
    if array.dtype.kind == "U":
        try:
            return pyarrow.array(array.tolist(), arrow_type)
        except UnicodeEncodeError as error:
            raise InputError(
                f"an id is not valid Unicode: {error.object!a}",
                "pass --format npy, or rename it in the source",
            ) from None
    flat = pyarrow.array(np.ascontiguousarray(array).reshape(-1))
    if array.ndim == 1:
        return flat
    return pyarrow.FixedSizeListArray.from_arrays(flat, arrow_type.list_size)


def _open_parquet(folder: Path, stored: Stored, stack: ExitStack) -> dict[str, Any]:
    """Open the file of a split; return its arrays by name, whose rows are read when they are needed."""
    path = folder / f"{stored.split}.parquet"
    file = stack.enter_context(import_pyarrow(path).parquet.ParquetFile(path))
    # Before any range of rows is read, because a description may claim any number of them.
    row_groups = math.ceil(stored.rows / stored.block_rows)
    if (file.metadata.num_rows, file.num_row_groups) != (stored.rows, row_groups):
        raise ValueError(f"{path.name} has other rows than its description")

    # pyarrow's reader may not be used by two threads at a time: it aborts the process.
    one_at_a_time = threading.Lock()

    def read(name: str, low: int, high: int) -> NDArray:
        """Read the row groups of some rows, and return these rows."""
        # Row groups are blocks; those from the first to the last (not included) have the rows.
        first, last = low // stored.block_rows, math.ceil(high / stored.block_rows)
        with one_at_a_time:
            column = file.read_row_groups(range(first, last), columns=[name])[name]
        # All values in one array; those of lists without the lists.
        flat = column.combine_chunks()
        if (shape := stored.shapes[name]) != ():
            flat = flat.flatten()
        rows = min(last * stored.block_rows, stored.rows) - first * stored.block_rows
        if column.null_count or flat.null_count or len(flat) != rows * np.prod(shape, dtype=int):
            raise ValueError(f"the rows of {name} have gaps or another size")
        values = flat.to_numpy(zero_copy_only=False).reshape(rows, *shape)
        return values[low - first * stored.block_rows :][: high - low]

    return {
        name: LazyArray((stored.rows, *shape), partial(read, name)) for name, shape in stored.shapes.items()
    }


def _write_safetensors(
    folder: Path, split: str, labels: Mapping[str, NDArray], shapes: Shapes, blocks: Blocks
) -> None:
    """Write the header, whose offsets follow from the shapes, then each block of each column at its position."""
    # A file of the format: the size of the header in 8 bytes, the header as JSON, and the values of all tensors.
    tensors = {name: array for name, array in labels.items() if array.dtype.kind != "U"}
    rows = len(labels["index"])
    forms = {name: (array.dtype, array.shape) for name, array in tensors.items()}
    forms |= {name: (FLOAT32, (rows, *shape)) for name, shape in shapes.items()}
    header: dict[str, Any] = {}
    positions: dict[str, int] = {}  # where the next values of each tensor are written
    end = 0
    # The widest types come first, so that every tensor begins at a multiple of the size of its values.
    for name, (dtype, shape) in sorted(forms.items(), key=lambda form: -form[1][0].itemsize):
        positions[name], size = end, int(np.prod(shape)) * dtype.itemsize
        end += size
        header[name] = {
            "dtype": f"{dtype.kind.upper()}{8 * dtype.itemsize}",  # F32, I64
            "shape": shape,
            "data_offsets": [positions[name], end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / f"{split}.safetensors").open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for name, array in tensors.items():
            file.seek(start + positions[name])
            file.write(np.ascontiguousarray(array).data)
        for block in blocks:
            for name, values in block.items():
                file.seek(start + positions[name])
                positions[name] += file.write(np.ascontiguousarray(values, FLOAT32).data)
    texts = {name: array.tolist() for name, array in labels.items() if name not in tensors}
    (folder / f"{split}.json").write_text(json.dumps(texts) + "\n")


def _open_safetensors(folder: Path, stored: Stored, stack: ExitStack) -> dict[str, Any]:
    """Open the files of a split; return its arrays by name, texts read whole and tensors when they are needed."""
    from safetensors import safe_open

    file = stack.enter_context(safe_open(folder / f"{stored.split}.safetensors", "np"))
    texts = json.loads(read_regular(folder / f"{stored.split}.json"))
    arrays: dict[str, Any] = {name: np.array(values, str) for name, values in texts.items()}
    for name in file.keys():  # noqa: SIM118  # it is not a mapping
        rows = file.get_slice(name)
        arrays[name] = LazyArray(tuple(rows.get_shape()), lambda low, high, rows=rows: rows[low:high])
    return arrays


def _write_npy(
    folder: Path, split: str, labels: Mapping[str, NDArray], shapes: Shapes, blocks: Blocks
) -> None:
    """Write each array as a file of its own, the layer of a column as a folder."""
    rows = len(labels["index"])
    with ExitStack() as stack:

        def create(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> BinaryIO:
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
    return {
        name: np.load(folder / _npy_name(stored.split, name), mmap_mode="r", allow_pickle=False)
        for name in stored.shapes
    }


def _npy_name(split: str, name: str) -> str:
    return f"{split}/{name}.npy"


FORMATS = {
    "parquet": FileFormat(
        lambda split, _: [f"{split}.parquet"],
        _write_parquet,
        _open_parquet,
        'polars.read_parquet("{split}.parquet")["{column}"]\n'
        'duckdb.sql("select ids, \\"{column}\\" from \'{split}.parquet\'")\n'
        'datasets.load_dataset("FOLDER")',
    ),
    "safetensors": FileFormat(
        lambda split, _: [f"{split}.safetensors", f"{split}.json"],
        _write_safetensors,
        _open_safetensors,
        'safetensors.numpy.load_file("{split}.safetensors")["{column}"]',
    ),
    "npy": FileFormat(
        lambda split, names: [_npy_name(split, name) for name in names],
        _write_npy,
        _open_npy,
        'numpy.load("{split}/{column}.npy", mmap_mode="r")',
    ),
}
"""The formats by name."""
