"""Labelled texts of Hugging Face's ``datasets``: a folder that ``save_to_disk`` wrote, or ``hf:NAME[:SETTINGS]``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error, nearest
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.arrays import COLUMN_FLAGS, Arrays
from reservoir_pipelines.data.folders import check_inside
from reservoir_pipelines.data.labels import SPLIT_NAMES
from reservoir_pipelines.data.table_reader import columns_as_arrays
from reservoir_pipelines.data.tables import BadRows

PREFIX = "hf:"
TEXTS = ("text", "sentence", "sequence", "x")
LABELS = ("label", "labels", "y")


def is_hub(origin: str) -> bool:
    """Return whether a name is a dataset of the hub, or the path of a folder that ``save_to_disk`` wrote."""
    saved = any((Path(origin) / name).is_file() for name in ("state.json", "dataset_dict.json"))
    return saved or origin.startswith(PREFIX)


def hub_arrays(origin: str, asked: OwnDataOptions, *, labelled: bool) -> Arrays:
    """Return the texts of a dataset, and its labels, ids, groups and splits."""
    parts, notes = _open(origin), []
    columns = next(iter(parts.values())).features
    text = asked.text or next((name for name in TEXTS if name in columns), "text")
    label = asked.label or next((name for name in LABELS if name in columns and name != text), "label")
    if labelled:
        parts, notes = _labelled_splits(parts, label)
    roles = {"text": text, "label": label, "id": asked.id, "group": asked.group}
    cells: dict[str, list[Any]] = {}
    for role, name in roles.items():
        if name and all(name in part.features for part in parts.values()):
            cells[name] = [cell for part in parts.values() for cell in _cells(part, name)]
        elif name and (labelled or role == "text"):
            problem = f"{origin}: not every split has the column {name!r}"
            remedy = f"add it, or pass --{role} NAME{nearest(name, columns)}"
            raise InputError(f"{problem} (the first has {', '.join(columns)})", remedy)
    if len(parts) > 1 and labelled:
        cells["split"] = [name for name, part in parts.items() for _ in range(len(part))]
    bad = BadRows(origin, [f"row {row}" for row in range(len(cells[text]))], skip=asked.skip_bad_rows)
    found = columns_as_arrays(cells, bad, asked, None if labelled else {}, **roles)
    if labelled and not asked.id:  # each split counts its own rows
        found.ids = np.concatenate([np.arange(len(part)) for part in parts.values()])[found.ids]
    found.files = [Path(file["filename"]) for part in parts.values() for file in part.cache_files]
    found.notes = [*notes, *found.notes]
    unused = {*found.unused_options} - {*COLUMN_FLAGS}
    found.unused_options = (*sorted(unused), "time", "drop", "labels")
    return found


def _labelled_splits(parts: dict[str, Any], label: str) -> tuple[dict[str, Any], list[str]]:
    """Return the splits with labels, under the names of `SPLIT_NAMES`, and notes; test defaults to validation."""
    found, left, notes = {}, [], []
    for name, part in parts.items():
        split = SPLIT_NAMES.get(name, "train" if len(parts) == 1 else "")
        if not split or split in found or all(cell is None for cell in _cells(part, label)):
            left.append(name)
        else:
            found[split] = part
    if left:
        notes.append(
            f"splits left out: {', '.join(left)} (without labels, or not called train, validation or test)"
        )
    if set(found) == {"train", "valid"}:
        notes.append("the split 'validation' is used as test, because no test split has labels")
        found = {"train": found["train"], "test": found["valid"]}
    return found or parts, notes


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
    return hasattr(kind, "decode_example") or any(_decodes(one) for one in inner if one is not None)


def _open(origin: str) -> dict[str, Any]:
    """Return the splits of a dataset by their names; no code of the dataset is run."""
    with as_input_error(f"{origin}: Hugging Face datasets need a package", "run pip install 'datasets>=4'"):
        import datasets  # pyright: ignore[reportMissingImports]
    if int(datasets.__version__.partition(".")[0]) < 4:  # older versions ran the code of a dataset
        raise InputError(f"{origin}: datasets {datasets.__version__} is too old: pip install 'datasets>=4'")
    datasets.disable_progress_bars()
    name, _, settings = origin.removeprefix(PREFIX).partition(":")
    hub = origin.startswith(PREFIX)
    # A local folder may hold a script, and its README may name any file or address.
    if hub and Path(name).exists():
        raise InputError(
            f"{origin}: {name} exists here, so it is not a name on the hub", "name its data files"
        )
    with as_input_error(f"{origin}: not a readable dataset", "check its name, or write it again"):
        found = datasets.load_dataset(name, settings or None) if hub else datasets.load_from_disk(origin)
        parts = found if isinstance(found, Mapping) else {"train": found}
        # A saved format may hide columns, or be of another library.
        parts = {name: part.with_format(None) for name, part in parts.items()}
    for file in [] if hub else [file for part in parts.values() for file in part.cache_files]:
        check_inside(Path(file["filename"]), Path(origin))
    if not parts or not all(len(part) for part in parts.values()):
        raise InputError(f"{origin}: a dataset without rows, or with an empty split", "choose another")
    return parts
