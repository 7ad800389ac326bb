"""Which file of an inference engine's folder belongs to which row: by the names that engines give their requests."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir_pipelines.extraction.feature_folder import DESCRIPTION


def is_engine_folder(path: Path) -> bool:
    """Return whether a folder has files of requests, and was not written by export-features."""
    return path.is_dir() and not (path / DESCRIPTION).exists() and bool(request_files(path))


def request_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by the names of their requests, numbers in ascending order.

    speculators names the file of row 12 ``hs_12.safetensors``. vLLM names a file by the id of its request, to which it
    adds a hyphen and eight random hexadecimal digits. If all names have one of these forms, the rest is the name.
    """
    paths = [path for path in folder.glob("*.safetensors") if path.is_file()]
    stems = [path.stem for path in paths]
    names = stems
    for pattern in (r"hs_(\d+)", r"(.+)-[0-9a-f]{8}"):
        matches = [re.fullmatch(pattern, stem, re.DOTALL) for stem in stems]
        if all(matches):
            names = [match[1] for match in matches if match]
    files: dict[str, Path] = {}
    for name, path in sorted(zip(names, paths, strict=True), key=lambda item: _number_last(item[0])):
        if name in files:
            raise InputError(
                f"{folder}: {files[name].name} and {path.name} are both of request {name}",
                "remove one of them",
            )
        files[name] = path
    return files


def _number_last(name: str) -> tuple[str, int, str]:
    """Return a name as its text, the number at its end, and whole, so that 9 is sorted before 10."""
    text = name.rstrip("0123456789")
    digits = name[len(text) :]
    return text, int(digits[:18] or 0), name


def files_of_rows(
    folder: Path, ids: Mapping[str, np.ndarray], *, more_allowed: bool
) -> dict[str, list[Path]]:
    """Return the file of each row of each split, by the ids of the rows.

    Parameters
    ----------
    folder : Path
        The folder of the requests.
    ids : mapping of str to array (rows,)
        The ids of each split: those of the table, or the numbers of its rows, from 0.
    more_allowed : bool
        Whether there may be requests without a row, because rows of the table were left out.
    """
    row_ids = [str(name) for of_split in ids.values() for name in of_split.tolist()]
    all_ids = {*row_ids}
    if len(all_ids) < len(row_ids):
        repeated = Counter(row_ids).most_common(1)[0][0]
        raise InputError(
            f"{folder}: the id {repeated!r} names several rows", "give each row an id of its own"
        )
    files = request_files(folder)
    without_request = [name for name in row_ids if name not in files]
    without_row = [files[name].name for name in files if name not in all_ids]
    of_no_row = f"{len(without_row):,} requests belong to no row" + (
        f", such as {without_row[0]}" if without_row else ""
    )
    if without_request:
        raise InputError(
            f"{folder}: {len(without_request):,} of {len(row_ids):,} rows have no request, such as row "
            f"{without_request[0]}; {of_no_row}",
            "name each file by the id of its row, or by the number of the row in the table, from 0",
        )
    if without_row and not more_allowed:
        raise InputError(f"{folder}: {of_no_row}", "add their rows to the table, or remove the files")
    return {split: [files[str(name)] for name in of_split.tolist()] for split, of_split in ids.items()}
