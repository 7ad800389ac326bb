"""Files that are one sequence each, and their labels: images, sounds and recordings (tables of steps)."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.arrays import Arrays
from reservoir_pipelines.data.bad_rows import BadRows
from reservoir_pipelines.data.file_kinds import FILES, files_kind
from reservoir_pipelines.data.images import Images
from reservoir_pipelines.data.recordings import read_recordings
from reservoir_pipelines.data.sounds import Sounds
from reservoir_pipelines.data.splits import SPLIT_NAMES


def media_files(path: Path, *labels: Path) -> list[Path]:
    """Return the sorted files below a folder that are one sequence each, except ``labels``; or ``path`` itself."""
    if not path.is_dir():  # a single recording is read as a table
        return [path] if path.is_file() and files_kind([path.name]) in {"images", "sounds"} else []
    files = [file for file in _visible(path) if not any(map(file.samefile, filter(Path.exists, labels)))]
    by_kind = ([file for file in files if files_kind([file.name]) == kind] for kind in FILES)
    files = next(filter(None, by_kind), [])
    for link in (file for file in files if file.is_symlink()):  # links to folders are not followed
        check_inside(link, path)
    return files


def _visible(root: Path) -> list[Path]:
    """Return the files below a folder, sorted, without hidden files and folders."""
    files = (path for path in root.rglob("*") if path.is_file())
    return sorted(
        path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def files_left_out(root: Path, files: Sequence[Path]) -> list[str]:
    """Return a note on files in a folder that are of another kind, if there are any."""
    left = len(_visible(root)) - len(files) if root.is_dir() else 0
    note = f"files left out because they are not {files_kind([files[0].name])}: {left:,}"
    return [note] if left else []


def check_inside(path: Path, root: Path) -> None:
    """Refuse a file outside a folder: a table or link from other people may name any file of this machine."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: the file is outside {root}", "copy it into this folder")


def folder_labels(
    root: Path, names: list[str], known: Collection[str | int] | None
) -> dict[str, np.ndarray]:
    """Return labels and splits of the files of a folder by their folders; ``known`` has the classes of new files."""
    parts = [name.split("/") for name in names]
    if known is not None:
        named = [next((name for name in part[:-1] if name in known), None) for part in parts]
        return {"y": np.array(named, object)} if any(named) else {}
    splits = {part[0]: SPLIT_NAMES.get(part[0].lower(), "") for part in parts if len(part) > 1}
    others = [top for top, split in splits.items() if not split]
    if others and len(set(splits.values())) > 2:
        named = ", ".join(top for top, split in splits.items() if split)
        raise InputError(
            f"{root}: {others[0]!r} is not one of the splits {named}", "remove it, or move it into one"
        )
    divided = bool(splits) and not others
    if short := next((part for part in parts if len(part) < 2 + divided), None):
        where = f"{'train/' * divided}CLASS/{short[-1]}"
        raise InputError(
            f"{root}: {'/'.join(short)} is in no class folder", f"move it to {where}, or pass --labels"
        )
    labels = {"y": np.array([part[divided] for part in parts])}
    return labels | ({"split": np.array([splits[part[0]] for part in parts])} if divided else {})


def media_arrays(
    files: list[Path], arrays: dict[str, np.ndarray], bad: BadRows, asked: OwnDataOptions, names: list[str]
) -> Arrays:
    """Return files of one kind as sequences, with their other ``arrays``; ``names`` are the channels of recordings."""
    kind = files_kind([files[0].name])
    if kind == "images":
        found = Images(files, arrays, bad)
    elif kind == "sounds":
        found = Sounds(files, arrays, bad, asked.rate, waveform=asked.waveform)
    else:
        found = read_recordings(files, arrays, bad, asked, names)
    found.unused_options += ("text", *(() if asked.labels else ("label", "id", "group")))
    found.notes[:0] = bad.notes()
    found.skipped = bad.skipped(arrays.get("ids", ()))
    found.label = asked.label or "the label"
    return found
