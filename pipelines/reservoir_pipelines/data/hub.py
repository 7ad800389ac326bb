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

PREFIX = "hf:"
TEXTS = ("text", "sentence", "sequence", "x")
LABELS = ("label", "labels", "y")
OLDEST = 4  # older versions of datasets ran the code of a dataset


def is_hub(origin: str) -> bool:
    """Return whether a name is a dataset of the hub, or the path of a folder that ``save_to_disk`` wrote."""
    saved = any((Path(origin) / name).is_file() for name in ("state.json", "dataset_dict.json"))
    return saved or origin.startswith(PREFIX)


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the texts of a dataset, and its labels, ids, groups and splits; new rows need no labels."""
    labelled = task is None
    parts = _open(origin)
    notes: list[str] = []
    # Columns have their roles by flags, or by conventional names in the first split.
    columns = next(iter(parts.values())).features
    text = options.text or next((name for name in TEXTS if name in columns), "text")
    label = options.label or next((name for name in LABELS if name in columns and name != text), "label")
    if labelled:
        parts, notes = _labelled_splits(parts, label)
    roles = {"text": text, "label": label, "id": options.id, "group": options.group}
    cells = _columns_of_roles(origin, parts, roles, labelled=labelled)
    if len(parts) > 1 and labelled:
        cells["split"] = [name for name, part in parts.items() for _ in range(len(part))]
    places = [f"row {row}" for row in range(len(cells[text]))]
    bad = BadRows(origin, places, skip=options.skip_bad_rows)
    rows = columns_as_rows(cells, bad, options, None if labelled else {}, **roles)
    ids = rows.ids
    if labelled and not options.id:  # each split counts its own rows
        ids = np.concatenate([np.arange(len(part)) for part in parts.values()])[rows.names]
    files = (Path(file["filename"]) for part in parts.values() for file in part.cache_files)
    return replace(
        rows,
        ids=ids,
        files=tuple(files),
        notes=(*notes, *rows.notes),
        roles={role: name for role, name in roles.items() if name in cells},
        unused=("time", "drop", "labels"),
    )


def _columns_of_roles(
    origin: str, parts: Mapping[str, Any], roles: Mapping[str, str | None], *, labelled: bool
) -> dict[str, list[Any]]:
    """Return the cells of the column of each role, of all splits one after the other."""
    columns = next(iter(parts.values())).features
    cells: dict[str, list[Any]] = {}
    for role, name in roles.items():
        if name and all(name in part.features for part in parts.values()):
            cells[name] = [cell for part in parts.values() for cell in _cells(part, name)]
        elif name and (labelled or role == "text"):
            raise InputError(
                f"{origin}: not every split has the column {name!r} (the first has {', '.join(columns)})",
                f"add it, or pass --{role} NAME{nearest(name, columns)}",
            )
    return cells


def _labelled_splits(parts: dict[str, Any], label: str) -> tuple[dict[str, Any], list[str]]:
    """Return the splits with labels, under the names of `SPLIT_NAMES`, and notes; test defaults to validation."""
    labelled: dict[str, Any] = {}
    left_out: list[str] = []
    notes: list[str] = []
    for name, part in parts.items():
        split = SPLIT_NAMES.get(name, "train" if len(parts) == 1 else "")
        if not split or split in labelled or all(cell is None for cell in _cells(part, label)):
            left_out.append(name)
        else:
            labelled[split] = part
    if left_out:
        notes.append(
            f"splits left out: {', '.join(left_out)} (without labels, or not called train, validation or test)"
        )
    if set(labelled) == {"train", "valid"}:
        notes.append("the split 'validation' is used as test, because no test split has labels")
        labelled = {"train": labelled["train"], "test": labelled["valid"]}
    return labelled or parts, notes


def _cells(part: Any, column: str) -> list[Any]:
    """Return the cells of a column, with classes by name, and None for hidden classes (-1)."""
    if column not in part.features:
        return []
    kind = part.features[column]
    if _decodes(kind):
        raise InputError(
            f"dataset, column {column!r}: images, sounds or other files", "name a column of text or numbers"
        )
    if not hasattr(kind, "int2str"):
        return list(part[column])
    return [None if cell is None or cell < 0 else kind.int2str(cell) for cell in part[column]]


def _decodes(kind: Any) -> bool:
    """Return whether reading a column opens files, which may be anywhere, also on the network."""
    inner = kind.values() if isinstance(kind, Mapping) else [getattr(kind, "feature", None)]
    return hasattr(kind, "decode_example") or any(_decodes(part) for part in inner if part is not None)


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
    # A local folder may hold a script, and its README may name any file or address.
    if on_hub and Path(name).exists():
        raise InputError(
            f"{origin}: {name} exists here, so it is not a name on the hub", "name its data files"
        )
    with as_input_error(f"{origin}: not a readable dataset", "check its name, or write it again"):
        dataset = (
            datasets.load_dataset(name, settings or None) if on_hub else datasets.load_from_disk(origin)
        )
        parts = dataset if isinstance(dataset, Mapping) else {"train": dataset}
        # A saved format may hide columns, or be of another library.
        parts = {name: part.with_format(None) for name, part in parts.items()}
    if not on_hub:
        for file in (file for part in parts.values() for file in part.cache_files):
            check_inside(Path(file["filename"]), Path(origin))
    if not parts or not all(len(part) for part in parts.values()):
        raise InputError(f"{origin}: a dataset without rows, or with an empty split", "choose another")
    return parts
