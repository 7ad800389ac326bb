"""The files of a folder that are one sequence each, and their labels by the names of their folders."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.data.file_kinds import FILES, files_kind
from reservoir_pipelines.data.splits import SPLIT_NAMES


def media_files(path: Path, *labels: Path) -> list[Path]:
    """Return the sorted files below a folder that are one sequence each, except ``labels``; or ``path`` itself."""
    if not path.is_dir():  # a single recording is read as a table
        is_media = path.is_file() and files_kind([path.name]) in {"images", "sounds"}
        return [path] if is_media else []
    tables_of_labels = [label for label in labels if label.exists()]
    files = [file for file in _visible(path) if not any(map(file.samefile, tables_of_labels))]
    # A folder is read as the first kind of which it has files.
    by_kind = ([file for file in files if files_kind([file.name]) == kind] for kind in FILES)
    of_kind = next(filter(None, by_kind), [])
    for link in (file for file in of_kind if file.is_symlink()):  # links to folders are not followed
        check_inside(link, path)
    return of_kind


def _visible(root: Path) -> list[Path]:
    """Return the files below a folder, sorted, without hidden files and folders."""
    files = (path for path in root.rglob("*") if path.is_file())
    return sorted(
        path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def files_left_out(root: Path, files: Sequence[Path]) -> list[str]:
    """Return a note on files in a folder that are of another kind, if there are any."""
    others = len(_visible(root)) - len(files) if root.is_dir() else 0
    note = f"files left out because they are not {files_kind([files[0].name])}: {others:,}"
    return [note] if others else []


def check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside a folder: a table or link from other people may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: the file is outside {root}", "copy it into this folder")


def classes_of_folders(names: Sequence[str], classes: Collection[str | int]) -> dict[str, np.ndarray]:
    """Return the labels of new files: the first folder of each file that has the name of a class, or None."""
    folders = [name.split("/")[:-1] for name in names]
    labels = [next((folder for folder in of_file if folder in classes), None) for of_file in folders]
    return {"y": np.array(labels, object)} if any(labels) else {}


def folder_labels(root: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the labels, and the splits if there are any, of the files CLASS/... or SPLIT/CLASS/... of a folder."""
    parts = [name.split("/") for name in names]
    splits = {part[0]: SPLIT_NAMES.get(part[0].lower(), "") for part in parts if len(part) > 1}
    others = [top for top, split in splits.items() if not split]
    has_several_splits = len(set(splits.values()) - {""}) > 1
    if others and has_several_splits:
        named = ", ".join(top for top, split in splits.items() if split)
        raise InputError(
            f"{root}: {others[0]!r} is not one of the splits {named}", "remove it, or move it into one"
        )
    divided = bool(splits) and not others
    for part in parts:
        if len(part) < 2 + divided:
            example = f"{'train/' * divided}CLASS/{part[-1]}"
            raise InputError(
                f"{root}: {'/'.join(part)} is in no class folder", f"move it to {example}, or pass --labels"
            )
    labels = {"y": np.array([part[divided] for part in parts])}
    return labels | ({"split": np.array([splits[part[0]] for part in parts])} if divided else {})
