"""The split of each row of your own data: as the data say, or drawn by a hash of the row."""

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.rows import HELD_OUT, SHARES, grouped, stratified
from reservoir_pipelines.data.labels import Labels

SPLIT_NAMES = {
    **dict.fromkeys(["train", "training"], "train"),
    **dict.fromkeys(["valid", "val", "validation", "dev"], "valid"),
    **dict.fromkeys(["test", "testing"], "test"),
}
"""Names of splits in folders and datasets, in lower case, and the name of each split in this program."""


def split_rows(
    where: str, labels: Labels, split: np.ndarray | None, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return the split of each row, (rows,) of str.

    Without ``split`` a hash of the row, stratified by class, divides the rows 60/20/20, or whole groups
    are divided as evenly as possible; if only "valid" is missing, it is a tenth of "train".
    """
    classes = labels.y[:, 0, 0] if labels.classes else np.zeros(len(labels.y), np.int64)

    def divide(rows: np.ndarray, shares: dict[str, float]) -> np.ndarray:
        if groups is None:
            return stratified(classes[rows], shares)
        return grouped(groups[rows], classes[rows], shares)

    if split is None:
        names = divide(np.arange(len(classes)), SHARES)
    else:
        names = _usual_names(where, split)
        if "valid" not in names:
            train = np.flatnonzero(names == "train")
            shares = {"train": 1 - HELD_OUT, "valid": HELD_OUT}
            names[train] = divide(train, shares)
            # no class has enough rows to hold out a tenth of them
            if "valid" not in names and groups is None:
                names[train] = stratified(np.zeros(len(train), np.int64), shares)
    _refuse_empty_splits(where, names, labels.classes)
    if groups is not None:
        _refuse_divided_groups(where, groups, names)
    return names


def _usual_names(where: str, split: np.ndarray) -> np.ndarray:
    written = np.asarray(split).astype("U16")
    names = np.array([SPLIT_NAMES.get(name, name) for name in written.tolist()])
    unknown = ~np.isin(names, list(SHARES))
    if unknown.any():
        row = int(np.argmax(unknown))
        raise InputError(f"{where}: split is {str(names[row])!r} in row {row}", "give train, valid or test")
    return names


def _refuse_empty_splits(where: str, names: np.ndarray, classes: int) -> None:
    for name in SHARES:
        if name not in names:
            of_classes = f" of each of the {classes} classes" if classes else ""
            raise InputError(
                f"{where}: none of the {len(names)} rows is for the split {name!r}",
                f"give more rows{of_classes}",
            )


def _refuse_divided_groups(where: str, groups: np.ndarray, names: np.ndarray) -> None:
    split_of_group: dict[str, str] = {}
    for group, name in zip(groups.tolist(), names.tolist(), strict=True):
        first = split_of_group.setdefault(group, name)
        if first != name:
            raise InputError(
                f"{where}: group {group!r} has rows in {first} and {name}", "leave out split, or groups"
            )
