"""Labelled texts of Hugging Face's ``datasets``: a folder that ``save_to_disk`` wrote, or ``hf:NAME[:SETTINGS]``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks.task import Task
from reservoir_pipelines.data.labels import SPLIT_NAMES
from reservoir_pipelines.data.media import check_inside
from reservoir_pipelines.data.rows import BadRows, Rows
from reservoir_pipelines.data.table_rows import columns_as_rows

PREFIX = "hf:"  # begins the name of a dataset of the hub
TEXTS = ("text", "sentence", "sequence", "x")
"""Conventional names of the column of texts, the most usual first."""

LABELS = ("label", "labels", "y")
"""Conventional names of the column of labels, the most usual first."""

OLDEST = 4  # the oldest major version of ``datasets`` that is used: older ones ran the code of a dataset


def is_hub(origin: str) -> bool:
    """Return whether a name is a dataset of the hub, or the path of a folder that ``save_to_disk`` wrote."""
    saved = any((Path(origin) / name).is_file() for name in ("state.json", "dataset_dict.json"))
    return saved or origin.startswith(PREFIX)


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the texts of a dataset, and its labels, ids, groups and splits; new rows need no labels."""
    needs_labels = task is None
    splits = _open(origin)
    notes: list[str] = []
    # Columns have their roles by flags, or by conventional names in the first split.
    columns = _columns(splits)
    text = options.text or next((name for name in TEXTS if name in columns), "text")
    label = options.label or next((name for name in LABELS if name in columns and name != text), "label")
    if needs_labels:
        splits, notes = _labelled_splits(splits, label)
    # All splits one after the other are the rows of one table.
    roles = {"text": text, "label": label, "id": options.id, "group": options.group}
    cells = _columns_of_roles(origin, splits, roles, needs_labels=needs_labels)
    if len(splits) > 1 and needs_labels:
        cells["split"] = [name for name, split in splits.items() for _ in range(len(split))]
    places = [f"row {row}" for row in range(len(cells[text]))]
    bad = BadRows(origin, places, skip=options.skip_bad_rows)
    fitted = None if needs_labels else {}  # a mapping, though empty, says that rows are new
    rows = columns_as_rows(cells, bad, options, fitted, **roles)
    ids = rows.ids
    if needs_labels and not options.id:
        # Each split counts its own rows. ``rows.names`` are the numbers, among all rows, of those that can be read.
        numbers_in_split = np.concatenate([np.arange(len(split)) for split in splits.values()])
        ids = numbers_in_split[rows.names]
    files = (Path(file["filename"]) for split in splits.values() for file in split.cache_files)
    return replace(
        rows,
        ids=ids,
        files=tuple(files),
        notes=(*notes, *rows.notes),
        roles={role: name for role, name in roles.items() if name in cells},
        unused=("time", "drop", "labels"),
    )


def _columns(splits: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of the first split of a dataset, with the type of each."""
    return next(iter(splits.values())).features


def _columns_of_roles(
    origin: str, splits: Mapping[str, Any], roles: Mapping[str, str | None], *, needs_labels: bool
) -> dict[str, list[Any]]:
    """Return the cells of the columns that have ``roles``, by their names, of all splits one after the other.

    A missing column is refused; unless the dataset ``needs_labels``, only that of texts is required.
    """
    columns = _columns(splits)
    cells: dict[str, list[Any]] = {}
    for role, name in roles.items():
        if not name:  # no flag names a column of this role
            continue
        if all(name in split.features for split in splits.values()):
            cells[name] = [cell for split in splits.values() for cell in _cells(split, name)]
        elif needs_labels or role == "text":
            raise InputError(
                f"{origin}: not every split has the column {name!r} (the first has {', '.join(columns)})",
                f"add it, or pass --{role} NAME{nearest(name, columns)}",
            )
    return cells


def _labelled_splits(splits: dict[str, Any], label: str) -> tuple[dict[str, Any], list[str]]:
    """Return the splits with labels in the column ``label``, under the names that this program has for them, and notes.

    If only a test split is missing, the validation split is the test split. If no split has labels, return all splits
    as they are: what reads the labels refuses them.
    """
    labelled: dict[str, Any] = {}
    left_out: list[str] = []
    notes: list[str] = []
    for name, split in splits.items():
        # The name in this program; "" for an unknown one, except that a single split may have any name.
        split_name = SPLIT_NAMES.get(name, "train" if len(splits) == 1 else "")
        has_new_name = bool(split_name) and split_name not in labelled
        if has_new_name and any(cell is not None for cell in _cells(split, label)):
            labelled[split_name] = split
        else:
            left_out.append(name)
    if left_out:
        notes.append(
            f"splits left out: {', '.join(left_out)} (without labels, or not called train, validation or test)"
        )
    if set(labelled) == {"train", "valid"}:
        notes.append("the split 'validation' is used as test, because no test split has labels")
        labelled = {"train": labelled["train"], "test": labelled["valid"]}
    return labelled or splits, notes


def _cells(split: Any, column: str) -> list[Any]:
    """Return the cells of a column of a split, with classes by name and None for hidden ones; refuse a column of files.

    Without the column, the list is empty.
    """
    if column not in split.features:
        return []
    feature = split.features[column]
    if _opens_files(feature):
        raise InputError(
            f"dataset, column {column!r}: images, sounds or other files", "name a column of text or numbers"
        )
    has_class_names = hasattr(feature, "int2str")
    if not has_class_names:
        return list(split[column])
    # The number of a hidden class is -1.
    return [None if cell is None or cell < 0 else feature.int2str(cell) for cell in split[column]]


def _opens_files(feature: Any) -> bool:
    """Return whether reading a column of such a type opens files, which may be anywhere, also on the network."""
    if hasattr(feature, "decode_example"):  # images, sounds and other files
        return True
    # Types may be nested: a mapping has one for each of its names, and a list one for all its items.
    inner = feature.values() if isinstance(feature, Mapping) else [getattr(feature, "feature", None)]
    return any(_opens_files(inner_feature) for inner_feature in inner if inner_feature is not None)


def _open(origin: str) -> dict[str, Any]:
    """Return the splits of a dataset by their names; no code of the dataset is run."""
    with as_input_error(f"{origin}: Hugging Face datasets need a package", "run pip install 'datasets>=4'"):
        import datasets  # pyright: ignore[reportMissingImports]
    if int(datasets.__version__.partition(".")[0]) < OLDEST:
        raise InputError(
            f"{origin}: datasets {datasets.__version__} is too old", "run pip install 'datasets>=4'"
        )
    datasets.disable_progress_bars()
    name, _, settings = origin.removeprefix(PREFIX).partition(":")
    on_hub = origin.startswith(PREFIX)
    # ``load_dataset`` also takes a local folder, which may hold a script, and its README may name any file or address.
    if on_hub and Path(name).exists():
        raise InputError(
            f"{origin}: {name} exists here, so it is not a name on the hub", "name its data files"
        )
    with as_input_error(f"{origin}: not a readable dataset", "check its name, or write it again"):
        dataset = (
            datasets.load_dataset(name, settings or None) if on_hub else datasets.load_from_disk(origin)
        )
        splits = dataset if isinstance(dataset, Mapping) else {"train": dataset}
        # A saved format may hide columns, or return the types of another library.
        splits = {name: split.with_format(None) for name, split in splits.items()}
    if not on_hub:  # a folder from other people may name any file of this machine
        for file in (file for split in splits.values() for file in split.cache_files):
            check_inside(Path(file["filename"]), Path(origin))
    if not splits or not all(len(split) for split in splits.values()):
        raise InputError(f"{origin}: a dataset without rows, or with an empty split", "choose another")
    return splits
