"""Texts with labels of the package ``datasets``: a folder of ``save_to_disk``, or ``hf:NAME[:SETTINGS]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, first_line, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks.own.cells import labels_of
from reservoir.tasks.own.labels import SPLIT_NAMES
from reservoir.tasks.own.texts import Letters

PREFIX = "hf:"
TEXTS = ("text", "sentence", "sequence", "x")
LABELS = ("label", "labels", "y")
STEP = 10_000
"""Rows that are looked at together."""


class HubTexts(Letters):
    """Texts read from disk stretch by stretch, beside labels, ids and groups."""

    def __init__(self, origin: str, asked: OwnDataOptions, *, labelled: bool):
        self._origin, self._parts = origin, _open(origin)
        columns = next(iter(self._parts.values())).features
        self._text = _chosen(origin, "text", asked.text, TEXTS, columns, needed=True)
        label = _chosen(origin, "label", asked.label, LABELS, columns, needed=labelled)
        notes = self._choose_splits(label) if labelled else []
        self.files = [Path(file["filename"]) for part in self._parts.values() for file in part.cache_files]
        self._ends = list(accumulate(map(len, self._parts.values())))
        arrays = self._other_arrays(asked, label, labelled=labelled)
        super().__init__(origin, *self._measure(), arrays)
        self.notes = notes

    def texts(self, lo: int, hi: int) -> Iterator[list[str]]:
        """Yield the texts of the rows ``lo`` to ``hi``."""
        start = 0
        for part, end in zip(self._parts.values(), self._ends, strict=True):
            for at in range(max(lo, start), min(hi, end), STEP):
                yield part[at - start : min(at + STEP, hi, end) - start][self._text]
            start = end

    def _measure(self) -> tuple[np.ndarray, int]:
        lengths, largest, row = [], 0, 0
        for texts in self.texts(0, self._ends[-1]):
            empty = next((n for n, text in enumerate(texts) if not (text or "").strip()), None)
            if empty is not None:
                raise InputError(f"{self._origin}, row {row + empty}: an empty text; remove the row")
            lengths += [len(text.strip()) for text in texts]
            largest = max(largest, *(ord(max(text)) for text in texts))
            row += len(texts)
        return np.array(lengths, np.int64), largest

    def _choose_splits(self, label: str) -> list[str]:
        """Keep the splits that have labels, under our names; what is called validation is test where none is."""
        ours, left, notes = {}, [], []
        for name, part in self._parts.items():
            odd = len(self._parts) > 1 and (name not in SPLIT_NAMES or SPLIT_NAMES[name] in ours)
            if odd or _hides(part, label):
                left.append(name)
            else:
                ours[SPLIT_NAMES.get(name, name)] = part
        if left:
            notes.append(f"left out: {', '.join(left)}, of no labels or another name than train, validation, test")
        if set(ours) == {"train", "valid"}:
            notes.append("the split 'validation' is test, as there is no other with labels")
            ours = {"train": ours["train"], "test": ours["valid"]}
        if not ours:
            raise InputError(f"{self._origin}: no split has labels in {label!r}; name another with --label")
        self._parts = ours
        return notes

    def _other_arrays(self, asked: OwnDataOptions, label: str, *, labelled: bool) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        first, *others = (part.features for part in self._parts.values())
        columns = [name for name in first if all(name in features for features in others)]
        if self._text not in columns:
            raise InputError(f"{self._origin}: not every split has the column {self._text!r}; say --text NAME")
        wanted = {"y": label, "ids": asked.id or "", "groups": asked.group or ""}
        for array, name in wanted.items():
            if name and name not in columns and labelled:
                raise InputError(
                    f"{self._origin}: no column {name!r} among {list(columns)[:8]}{nearest(name, columns)}"
                )
            if name and name in columns:
                cells = [_cell(part, name, cell) for part in self._parts.values() for cell in part[name]]
                where = Path(self._origin)
                arrays[array] = (
                    labels_of(where, name, cells, every=labelled) if array == "y" else np.array(list(map(str, cells)))
                )
        if len(self._parts) > 1 and labelled:
            arrays["split"] = np.repeat(np.array(list(self._parts)), [len(part) for part in self._parts.values()])
        return arrays


def is_hub(origin: str) -> bool:
    """Return whether a name is of the hub, or the path of a folder that ``save_to_disk`` wrote."""
    path = Path(origin)
    saved = (path / "dataset_dict.json").is_file() or all(
        (path / f).is_file() for f in ("state.json", "dataset_info.json")
    )
    return origin.startswith(PREFIX) or saved


def _chosen(
    origin: str, role: str, asked: str | None, usual: tuple[str, ...], columns: Mapping[str, Any], *, needed: bool
) -> str:
    """Return the column of a role: the one named, one of a usual name, or of texts the only one."""
    found = asked or next((name for name in usual if name in columns), "")
    texts = [name for name, kind in columns.items() if getattr(kind, "dtype", "") in {"string", "large_string"}]
    if role == "text" and not found and len(texts) == 1:
        found = texts[0]
    if (needed and found not in columns) or (role == "text" and found not in texts):
        near = nearest(found, columns) if found else ""
        raise InputError(f"{origin}: no column of {role}s {found!r} among {list(columns)[:8]}; say --{role} NAME{near}")
    return found if found in columns else ""


def _names(part: Any, column: str) -> Any:
    """Return the feature that names the classes of a column, if it has such."""
    kind = part.features[column] if column else None
    return kind if hasattr(kind, "int2str") else None


def _hides(part: Any, label: str) -> bool:
    """Return whether a split has no labels: no such column, or -1 for each."""
    if label not in part.features:
        return True
    known = (number for number in part[label] if number is not None)
    return _names(part, label) is not None and max(known, default=-1) < 0


def _cell(part: Any, column: str, cell: Any) -> Any:
    kind = _names(part, column)
    return cell if kind is None else None if cell is None or cell < 0 else kind.int2str(cell)


def _open(origin: str) -> dict[str, Any]:
    """Return the splits of a dataset by their names; nothing that it brings is run."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f"{origin}: datasets of the hub need a package: pip install 'datasets>=4'") from None
    if int(datasets.__version__.partition(".")[0]) < 4:  # they ran the code that a dataset brought
        raise InputError(f"{origin}: datasets {datasets.__version__} is too old: pip install 'datasets>=4'")
    datasets.disable_progress_bars()
    name, _, settings = origin.removeprefix(PREFIX).partition(":")
    if origin.startswith(PREFIX) and list(Path(name).glob("*.py")):
        raise InputError(f"{origin}: it brings a script, which is not run; take its data files instead")
    try:  # what the library raises may be anything, of a damaged file or a name that is not there
        if origin.startswith(PREFIX):
            found = datasets.load_dataset(name, settings or None)
        else:
            found = datasets.load_from_disk(origin)
    except Exception as error:
        raise InputError(f"{origin}: no readable dataset ({first_line(error)})") from None
    parts = dict(found) if isinstance(found, Mapping) else {"train": found}
    if not parts or not all(len(part) for part in parts.values()):
        raise InputError(f"{origin}: a dataset without rows; give one with some")
    return parts
