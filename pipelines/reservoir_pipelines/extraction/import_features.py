"""The stage ``import_features``: features that another program computed become an entry of the cache."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reservoir_cache import (
    BackboneSpec,
    CacheError,
    DataSpec,
    Entry,
    InitSpec,
    InputSpec,
    Layout,
    Spec,
    check_column_name,
    rows_per_block,
    write_targets,
)

from reservoir.errors import InputError, first_line
from reservoir.option_fields import typed
from reservoir.options import CacheOptions, TaskOptions
from reservoir.pooling import find_pooling
from reservoir.tasks.task import MISSING, Task
from reservoir_pipelines.data.columns import separated
from reservoir_pipelines.extraction.entries import (
    compute_missing,
    data_record,
    row_count,
    start_entry,
    write_labels,
)
from reservoir_pipelines.extraction.extract import Extraction, origin_of
from reservoir_pipelines.extraction.feature_files import IDS, LABEL_NAMES, open_arrays
from reservoir_pipelines.extraction.feature_folder import FeatureFolder, read_folder
from reservoir_pipelines.files import IMPORTED, cache_root, stamp, versions
from reservoir_pipelines.output import meter
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared, data_digest, data_spec, draw_rows

ColumnArrays = dict[str, dict[str, Any]]  # arrays (rows, ...) by column, and for each column by split


class RowRange(NamedTuple):
    """Rows of a split, from the number ``start`` to before ``stop``."""

    split: str
    start: int
    stop: int


@dataclass(frozen=True)
class Form:
    """The fields of a specification that say how the features were computed; see `reservoir_cache.Spec`."""

    input: InputSpec
    padding: str
    compute: str  # precision of the model


UNKNOWN_FORM = Form(
    InputSpec(kind=IMPORTED, seed=0, gain=1, patch=1, stride=1), padding="none", compute="float32"
)
"""The form of features whose program does not say how it computed them."""


@dataclass(frozen=True)
class Incoming:
    """Features to import. `of_task` or `of_labels` adds the rows that they belong to, in the last three fields."""

    features: ColumnArrays
    stamps: Mapping[Path, list[int]]  # state of each file; the import is refused if one changes meanwhile
    form: Form
    layout: Layout | None = None  # division into files; None to choose it by the size of the rows
    made_with: Mapping[str, Any] = field(default_factory=dict)  # what the entry records, besides the call
    task: Mapping[str, Any] = field(default_factory=dict)  # description of the task of the rows
    data: DataSpec | None = None  # of the rows
    add_labels: Callable[[Entry], None] = lambda entry: None  # writes the labels of an entry

    def of_task(self, prepared: Prepared, index: Mapping[str, np.ndarray]) -> "Incoming":
        """Return the features with the labels of prepared data; ``index`` has the numbers of the rows by split."""
        return replace(
            self,
            task=prepared.task.to_dict(),
            data=data_spec(prepared, index),
            made_with={**self.made_with, **data_record(prepared)},
            add_labels=partial(write_labels, prepared=prepared, rows=index),
        )

    def of_labels(self, description: FeatureFolder, labels: Mapping[str, Mapping[str, Any]]) -> "Incoming":
        """Return the features with the labels of their folder, the arrays ``labels[split][name]``.

        The entry has no prepared data, so readouts cannot be compared with the raw input.
        """
        rows = {split: description.spec.rows[split] for split in description.splits}
        # The folder's digest does not vouch for its labels, which decide what a readout learns, so these are hashed,
        # too. Ids only name rows.
        digest = hashlib.sha256(description.data_digest.encode())
        for arrays in labels.values():
            for name in sorted(arrays.keys() - {"ids"}):
                digest.update(json.dumps([name, arrays[name].shape]).encode() + arrays[name].tobytes())
        # The keys are those of `data_record`; there is neither a folder of prepared data nor its scaling.
        record = {"prepared": "", "kept": description.kept, "scaling": None}
        return replace(
            self,
            task=description.spec.task,
            data=DataSpec(digest=digest.hexdigest(), rows=rows, origin=description.data_digest),
            made_with={**self.made_with, **record},
            add_labels=partial(_write_labels, labels=labels),
        )


def import_features(
    file: Path, task: str | None, name: str | None, options: TaskOptions, place: CacheOptions
) -> Extraction:
    """Write the arrays of a file, or of an exported folder, as an entry of a task; see `api.import_features`."""
    if not file.exists():
        raise InputError(f"{file}: no such file or folder", "give the path of the features")
    started = time.monotonic()
    root = cache_root(place.cache)
    # A folder describes its features, their model and their task; a file does not.
    description = read_folder(file) if file.is_dir() else None
    if description is None and (task is None or name is None):
        raise InputError(
            f"{file}: a file of features needs --task and --name",
            "name the task of its rows, and the model",
        )
    prepared = prepare(task, options, cache=root) if task else None
    title = name or ""
    if not title and description:
        title = description.title
    arguments = [str(file), *(["--task", task] if task else []), "--name", title]
    call = {"command": typed("import-features", arguments, options), "file": str(file.resolve())}
    if task:
        call |= {"task": origin_of(task), "settings": options.to_dict()}
    try:
        with ExitStack() as stack:  # closes the files when their values are written
            if description:
                incoming = _from_folder(file, description, prepared, stack)
            else:
                assert prepared  # a file without a task was refused above
                incoming = _from_file(file, prepared, stack)
            entry, written_rows = _write(root, title, file, incoming, {"call": call})
    except Exception as error:  # libraries raise any type of error for damaged files
        # An error of the system, such as a full disk, says nothing about the file.
        is_of_system = bool(getattr(error, "errno", None))
        if is_of_system or isinstance(error, InputError | CacheError):
            raise
        remedy = "export the features again" if description else "write the file again"
        raise InputError(f"{file}: features cannot be read ({first_line(error)})", remedy) from error
    return Extraction.of(entry, sorted(incoming.features), written_rows, started)


def _from_file(file: Path, prepared: Prepared, stack: ExitStack) -> Incoming:
    """Return the arrays of a file, which hold all rows of the prepared data; ``stack`` closes the file."""
    stamps = {file: stamp(file)}  # before the file is opened, so that `_write` notices every change
    arrays = open_arrays(file, stack, prepared.task.parameters)
    names = {split: f"{split}/{IDS}" for split in prepared.rows}
    ids_of_split = {split: np.asarray(arrays.pop(name)) for split, name in names.items() if name in arrays}
    features = _arrays_by_column(file, arrays, prepared)
    for split, ids in ids_of_split.items():
        _check_ids(file, split, ids.astype(str), prepared.split(split).ids.astype(str))
    all_rows = draw_rows(prepared, None)
    return Incoming(features, stamps, UNKNOWN_FORM).of_task(prepared, all_rows)


def _check_ids(file: Path, split: str, ids: np.ndarray, ids_of_task: np.ndarray) -> None:
    """Raise `InputError` unless a file has the ``ids`` (rows,) of the rows of the task, in the same order."""
    if ids.shape != ids_of_task.shape:
        raise InputError(
            f"{file}: array '{split}/{IDS}' has the shape {ids.shape}, but {split} has {len(ids_of_task):,} rows",
            "give one id for each row, or rename the array if it holds features",
        )
    differing = np.flatnonzero(ids != ids_of_task)
    if not len(differing):
        return
    row = differing[0]
    raise InputError(
        f"{file}: row {row} of {split} has the id {ids[row][:40]!a}, but in the task {ids_of_task[row][:40]!a}",
        "put the rows of each split in the order of the task, or rename the column if its ids are others",
    )


def _from_folder(
    folder: Path, description: FeatureFolder, prepared: Prepared | None, stack: ExitStack
) -> Incoming:
    """Return the arrays of an exported folder, with the labels of prepared data, if given, else with its own labels.

    ``stack`` closes the files.
    """
    # The files, verified against their checksums. Their state is noted before, so that `_write` notices every change.
    paths = [folder / name for name in description.files]
    stamps = {path: stamp(path) for path in paths if path.is_file()}
    description.verify(folder)
    arrays, splits = description.open(folder, stack), description.splits
    features: ColumnArrays = {
        column: {split: arrays[split][column] for split in splits} for column in description.columns
    }
    labels = {
        split: {name: np.asarray(arrays[split][name][:]) for name in description.label_shapes}
        for split in splits
    }
    spec, layout = description.spec, description.layout
    incoming = Incoming(
        features,
        stamps,
        Form(spec.input, spec.padding, spec.compute),
        # The same blocks give the same sums, so that a fit gives the same digits as one of the exported entry.
        layout=Layout(block_rows=layout.block_rows, batch_rows=layout.batch_rows),
        made_with={"source": description.source},
    )
    # The rows that the features belong to. Those of prepared data must be the rows that the features were made from.
    if not prepared:
        checked = {split: _checked_labels(description.task, labels[split]) for split in splits}
        return incoming.of_labels(description, checked)
    if prepared.task.labels_text_tokens:
        raise InputError(f"{folder}: its rows are words or tokens of texts", "leave out --task")
    index = {split: labels[split]["index"].astype(np.int64) for split in splits}
    has_same_splits = index.keys() == prepared.rows.keys()
    if not has_same_splits or data_digest(prepared, index) != description.data_digest:
        raise InputError(
            f"{folder}: its features are those of other rows than task {prepared.task.name!r} has now",
            "name the data that they were extracted from, or leave out --task",
        )
    return incoming.of_task(prepared, index)


def _checked_labels(task: Task, labels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the label arrays of a split in the shapes and types of an entry.

    Raise an error for labels that the task cannot have: a file may hold any values.
    """
    rows = len(labels["index"])
    integers = {
        name: array.astype(np.int64, casting="safe")
        for name, array in labels.items()
        if name not in ("ids", "y")
    }
    y = labels["y"].reshape(rows, task.readout_tokens, task.outputs)
    y = y.astype(np.int64 if task.classes else np.float32, casting="same_kind")
    # If each token has a label, those after the end of a row have the class `MISSING`.
    smallest_class = MISSING if task.labels_each_token else 0
    if task.classes and not (y.min() >= smallest_class and y.max() < task.classes):
        raise ValueError(f"a label is not a class from 0 to {task.classes - 1}")
    lengths, index = integers["lengths"], integers["index"]
    if lengths.min() < 1 or lengths.max() > task.max_tokens or index.min() < 0:
        raise ValueError("a length or a row number is out of range")
    has_integer_ids = labels["ids"].dtype.kind == "i"
    ids = labels["ids"] if has_integer_ids else labels["ids"].astype(str)
    return {"y": y, **integers, "lengths": lengths.astype(np.int32), "ids": ids}


def _write_labels(entry: Entry, labels: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the label arrays of each split, unless the entry has them."""
    for split, arrays in labels.items():
        targets = dict(arrays)
        # An entry without ids names its rows by their numbers.
        if np.array_equal(targets["ids"], targets["index"]):
            del targets["ids"]
        write_targets(entry, split, targets)


def _write(
    root: Path, title: str, file: Path, incoming: Incoming, made_with: Mapping[str, Any]
) -> tuple[Entry, int]:
    """Write features as an entry, whose key depends on their digest; return it and the number of rows written.

    ``file`` is the file or folder of the features, for messages, and ``made_with`` what the entry records of the call.
    """
    assert incoming.data  # `of_task` or `of_labels` has added it
    features = incoming.features
    row_counts = dict(incoming.data.rows)
    # All splits of a column have the same tokens and width, so those of one split tell them.
    first_split = next(iter(row_counts))
    shapes = {column: _row_shape(arrays[first_split].shape) for column, arrays in sorted(features.items())}
    row_bytes = 4 * sum(tokens * width for tokens, width in shapes.values())  # of float32
    block_rows = rows_per_block(row_bytes, 1, max(row_counts.values()))
    layout = incoming.layout or Layout(block_rows=block_rows, batch_rows=block_rows)

    def read_features(rows: RowRange, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the arrays of some columns for some rows; see `write_entry`."""
        values = {
            column: _read_finite(file, features[column][rows.split], rows, column) for column in columns
        }
        # If a file has changed, the values may not be those of the key.
        if any(stamp(path) != first_stamp for path, first_stamp in incoming.stamps.items()):
            raise InputError(
                f"{file}: changed while it was read", "run the command again when it is complete"
            )
        return values

    # The digest of all values takes the place of that of a model's weights in the key, so all values are read once
    # before they are written.
    digest = hashlib.sha256(json.dumps([row_counts, shapes]).encode())
    for split, column in itertools.product(row_counts, shapes):
        for start, stop in layout.blocks(row_counts[split]):
            values = read_features(RowRange(split, start, stop), [column])
            digest.update(values[column].astype("<f4").data)
    spec = imported_spec(incoming.task, incoming.data, digest.hexdigest(), incoming.form)
    record = {**made_with, **incoming.made_with, "versions": versions("h5py", "numpy")}
    return write_entry(root, title, spec, layout, shapes, record, incoming.add_labels, read_features)


def imported_spec(task: Mapping[str, Any], data: DataSpec, digest: str, form: Form) -> Spec:
    """Return the specification of an entry of features whose ``digest`` stands for the model and its input."""
    return Spec(
        task=task,
        data=data,
        backbone=BackboneSpec(family=IMPORTED, digest=digest),
        init=InitSpec(kind=IMPORTED, seed=0),
        input=form.input,
        padding=form.padding,
        compute=form.compute,
        store="float32",
    )


def write_entry(
    root: Path,
    title: str,
    spec: Spec,
    layout: Layout,
    shapes: Mapping[str, tuple[int, int]],
    made_with: Mapping[str, Any],
    add_labels: Callable[[Entry], None],
    read_features: Callable[[RowRange, Sequence[str]], dict[str, np.ndarray]],
) -> tuple[Entry, int]:
    """Write the blocks that an entry lacks; return it and the number of rows written.

    ``title`` begins the name of the entry's folder. ``add_labels`` writes the labels of an entry.
    ``read_features(rows, columns)`` returns the arrays (rows, tokens, width) of some columns by name.
    """

    # `compute_missing` reads the parts of a block ahead, and then computes the features of each part. Nothing is
    # computed here: a part is only the range of the block's rows, and the function that should wait for the features
    # of a part reads them.
    def only_part(split: str, start: int, stop: int) -> list[RowRange]:
        """Return the rows of a block as its only part."""
        return [RowRange(split, start, stop)]

    def read_when_fetched(
        rows: RowRange, columns: Sequence[str], _count_rows: Callable[[int], None]
    ) -> Callable[[], dict[str, np.ndarray]]:
        """Return a function that reads a part; the writer calls it in another thread.

        `compute_missing` counts the rows of a block itself if ``_count_rows`` is not called.
        """
        return partial(read_features, rows, columns)

    splits = [*spec.data.rows]
    entry, missing = start_entry(root, title, spec, layout, shapes, splits, made_with, add_labels)
    with meter("import", row_count(entry, missing)) as bar:
        written_rows = compute_missing(entry, splits, [*shapes], only_part, read_when_fetched, bar.advance)
    return entry, written_rows


def _row_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return tokens and width of a row of an array whose shape is (rows, width) or (rows, tokens, width)."""
    return (1, shape[1]) if len(shape) == 2 else (shape[1], shape[2])


def _arrays_by_column(file: Path, arrays: Mapping[str, Any], prepared: Prepared) -> ColumnArrays:
    """Return the arrays of a file, named SPLIT or SPLIT/COLUMN, by column and split.

    Raise `InputError` if the task of the prepared data has other splits or rows, or labels for every token, and for an
    array with the name of a label.
    """
    if prepared.task.labels_each_token or prepared.task.labels_text_tokens:
        raise InputError(f"{file}: the task labels every token", "give a task with one label per row")
    expected_names = ", ".join(f"{split} ({count:,} rows)" for split, count in prepared.rows.items())
    remedy = (
        f"give arrays (rows, width) named {expected_names}, or SPLIT/COLUMN, "
        "with the rows in the order of the task"
    )
    labels = {*LABEL_NAMES, *separated(prepared.task.parameters.get("label"))}
    columns = ColumnArrays()
    for key, array in arrays.items():
        split, _, column = key.partition("/")
        if split not in prepared.rows:
            raise InputError(f"{file}: the task has no split {split!r}", remedy)
        if "/" not in column:  # a layer without a pooling, or no column at all
            column = f"{column or IMPORTED}/mean"
        check_column_name(column)
        if column.partition("/")[0] in labels:
            raise InputError(f"{file}: array {key!r} would be a feature", "leave out labels, or rename it")
        is_matrix = len(array.shape) == 2 and array.shape[1] > 0
        if not is_matrix or array.shape[0] != prepared.rows[split]:
            raise InputError(f"{file}: array {key!r} has the shape {array.shape}", remedy)
        # `fit` reads columns by layer and pooling, and refuses names that are no poolings.
        try:
            find_pooling(column.partition("/")[2])
        except InputError as error:
            raise InputError(f"{file}: array {key!r}: {error}", "rename the array") from error
        if split in columns.setdefault(column, {}):
            raise InputError(
                f"{file}: array {key!r}: another array is {column} of {split}, too", "rename one"
            )
        columns[column][split] = array
    for column, array_of_split in columns.items():
        has_all_splits = array_of_split.keys() == prepared.rows.keys()
        widths = {array.shape[1] for array in array_of_split.values()}
        if not has_all_splits or len(widths) > 1:
            shapes = ", ".join(f"{split} {array.shape}" for split, array in array_of_split.items())
            raise InputError(
                f"{file}: column {column} has {shapes}", f"give {', '.join(prepared.rows)} of one width"
            )
    if not columns:
        raise InputError(f"{file}: it holds no arrays", remedy)
    return columns


def _read_finite(file: Path, array: Any, rows: RowRange, column: str) -> np.ndarray:
    """Return some rows of an array as (rows, tokens, width) of float32; refuse values that are not finite."""
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, which is refused below
        values = np.asarray(array[rows.start : rows.stop]).astype(
            np.float32, order="C", casting="same_kind"
        )
    not_finite = np.argwhere(~np.isfinite(values))  # (values, axes): where they are
    if len(not_finite):
        row, *_, channel = not_finite[0]
        raise InputError(
            f"{file}: {rows.split} of {column}, row {rows.start + row}, column {channel}: "
            "the value is not a finite float32 number",
            "repair it",
        )
    return values.reshape(len(values), *_row_shape(array.shape))
