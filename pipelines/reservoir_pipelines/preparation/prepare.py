"""The stage ``prepare``: raw files or generated rows become typed arrays on disk, in fixed splits."""

import hashlib
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import (
    file_crc32,
    new_file,
    new_folder,
    path_below,
    publish_json,
    replace_file,
)

from reservoir.errors import InputError
from reservoir.options import ClusterOptions, DownloadOptions, ReservoirOptions, TaskOptions
from reservoir.tasks import SPLITS, TASKS, Piece, Source, Task, Tokens, check_split
from reservoir.tasks.task import MISSING
from reservoir_pipelines.data.file_kinds import FILES
from reservoir_pipelines.data.own_data import open_source, own_name
from reservoir_pipelines.files import cache_root, data_folder, source_contents
from reservoir_pipelines.output import meter
from reservoir_pipelines.preparation.prepared import (
    INDEX,
    Prepared,
    PreparedSplit,
    scaling_to_json,
    split_order,
)
from reservoir_pipelines.workers import map_pieces

DOWNLOADS = tomllib.loads(
    (resources.files("reservoir_pipelines") / "preparation" / "downloads.toml").read_text()
)
"""The files that can be downloaded, by task."""


def download(task: str, *, cache: Path | None = None) -> Path:
    """Download the files of a task if the cache lacks them, check their SHA-256, and return their folder."""
    if task not in DOWNLOADS:
        raise InputError(
            f"task {task!r} cannot be downloaded, only {', '.join(DOWNLOADS)}", "give --data DIR"
        )
    offered = DOWNLOADS[task]
    folder = path_below(cache_root(cache), "downloads", offered["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, sha256 in offered["files"].items():
        if not (folder / name).is_file():
            _fetch(path_below(folder, name), sha256, offered["addresses"])
        if name.endswith(".tar.gz") and not (folder / offered["unpacked"]).exists():
            with new_folder(folder / offered["unpacked"]) as unpacked:
                shutil.unpack_archive(folder / name, unpacked, filter="data")
                inner = (
                    unpacked / offered["unpacked"]
                )  # the archive holds the files in a folder of this name
                for item in inner.iterdir():
                    item.rename(unpacked / item.name)
                inner.rmdir()
    return folder


def _fetch(path: Path, sha256: str, addresses: Sequence[str]) -> None:
    from torch.hub import download_url_to_file

    failures = []
    for address in addresses:
        try:
            return download_url_to_file(
                f"{address}/{path.name}", str(path), sha256, progress=sys.stderr.isatty()
            )
        except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: checksum mismatch
            failures.append(f"{address}: {error}")
    raise InputError(
        f"{path.name} could not be downloaded ({'; '.join(failures)})",
        "try again, or download it yourself and give --data DIR",
    )


VERSION = 11  # version of the file format; part of the folder's name, so that other versions are not read


def prepare(
    task: str,
    options: TaskOptions,
    *,
    cache: Path | None = None,
    cluster: ClusterOptions = ClusterOptions(),
    files: DownloadOptions = DownloadOptions(),
    model: ReservoirOptions | None = None,
) -> Prepared:
    """Prepare a task's data, or open it if it is prepared; keep sounds as samples if ``model`` reads samples.

    The data is in ``<root>/prepared/<task>-<settings>/<files>/``, where ``settings`` and ``files``
    are digests of the task's parameters and of the names and contents of the source files. Such a
    folder never changes. A named task without a data folder may use the folder that was prepared
    last, with a note; your own data never does, because its files say which data is meant.
    """
    folder = download(task, cache=cache) if files.fetch else data_folder(options.data)
    source = open_source(task, data=folder, **options.given)
    try:
        source_files = source.files()
    except InputError:
        earlier = _latest(_settings_folder(task, source, cache)) if task in TASKS and not folder else None
        if earlier is None:
            raise
        note = f"task {task!r}: its files are not here; using the data prepared before, {earlier.path}"
        return replace(earlier, warnings=(*earlier.warnings, note))
    if model and _reads_samples(model, source_files):
        source = open_source(task, data=folder, **options.given | {"waveform": True})
    settings = _settings_folder(task, source, cache)
    origin = source_contents(source_files, Path(task), settings)
    final = path_below(settings, _hash(origin))
    if final.exists():
        try:
            return Prepared.open(final)
        except InputError:
            shutil.rmtree(final)
    _write(source, origin, final, cluster, lambda: source_contents(source_files, Path(task), settings))
    return Prepared.open(final, reused=False)


def task_table(data: Path | None = None, cache: Path | None = None) -> list[dict[str, Any]]:
    """Return one row per named task, with its default parameters.

    ``tokens`` is the length of the longest sequence, ``input`` the form of a token ("16 values", "25
    symbols"), ``splits`` the rows of each split or None, and ``data`` "generated", "here", "prepared"
    or "missing".
    """
    folder, table = data_folder(data), []
    for name in TASKS:
        source = open_source(name, data=folder)
        task, earlier = source.task, _latest(_settings_folder(name, source, cache), verify=False)
        rows, remedy = earlier.rows if earlier else None, ""
        try:
            status = "here" if source.files() else "generated"
        except InputError as error:
            status = "prepared" if rows else "missing"
            if not rows:
                remedy = (
                    f"{error}; or reservoir prepare {name} --download" if name in DOWNLOADS else str(error)
                )
        if rows is None and status == "generated" and "train_rows" in task.parameters:
            rows = {split: task.parameters[f"{split}_rows"] for split in SPLITS}
        form = task.form
        table.append(
            {
                "task": name,
                "tokens": task.max_tokens,
                "input": f"{form.vocabulary} symbols" if isinstance(form, Tokens) else f"{form.dim} values",
                "classes": task.classes,
                "labels_per_row": task.readout_tokens * task.outputs,
                "splits": rows,
                "data": status,
                "remedy": remedy,
            }
        )
    return table


def _reads_samples(model: ReservoirOptions, files: Sequence[Path]) -> bool:
    if not any(file.suffix.lower() in FILES["sounds"] for file in files):
        return False
    from reservoir.reservoir import reads_samples  # imports torch, which other data do not need

    return reads_samples(model)


def _settings_folder(task: str, source: Source, cache: Path | None = None) -> Path:
    """Return the folder of a task and its parameters, with a subfolder per state of its files."""
    name = task if task in TASKS else own_name(task)
    digest = _hash({"version": VERSION, **source.settings()})
    return path_below(cache_root(cache), "prepared", f"{name}-{digest}")


def _latest(settings: Path, *, verify: bool = True) -> Prepared | None:
    """Return the most recently prepared data in a folder of `_settings_folder`, if any."""
    indices = sorted(settings.glob(f"[!.]*/{INDEX}"), key=lambda index: index.stat().st_mtime)
    return Prepared.open(indices[-1].parent, verify=verify) if indices else None


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=vars).encode()).hexdigest()[:16]


def _write(
    source: Source,
    origin: list[dict[str, Any]],
    final: Path,
    cluster: ClusterOptions,
    contents: Callable[[], list[dict[str, Any]]],
) -> None:
    """Write all pieces and the index into a temporary folder, then rename it, so that it is complete or absent.

    ``contents`` returns the present state of the source files, which must still be ``origin``.
    """
    # Another process may prepare the same data meanwhile; its folder is as good.
    with new_folder(final, keep_existing=True) as folder:
        sent = source
        if cluster.scheduler:  # workers run in other folders and need full paths
            named = {name: value for name in ("data", "origin") if (value := getattr(source, name, None))}
            full = {
                name: type(value)(Path(value).resolve())
                for name, value in named.items()
                if Path(value).exists()
            }
            sent = replace(source, **full)  # pyright: ignore
        tasks = [(sent, piece, number, folder) for number, piece in enumerate(source.pieces())]
        with meter("prepare", len(tasks), "pieces") as bar:
            written = map_pieces(
                _write_piece,
                tasks,
                workers=cluster.workers,
                scheduler=cluster.scheduler,
                done=lambda _: bar.advance(1),
            )
        _write_index(source, origin, folder, written)
        for before, after in zip(origin, contents(), strict=True):
            if before != after:
                raise InputError(
                    f"task {source.task.name!r}: the file {before['name']} changed while it was read",
                    "run the command again when it is complete",
                )


def _write_piece(source: Source, piece: Piece, number: int, folder: Path) -> list[dict[str, Any]]:
    """Write the rows of a piece, one file per split, and return their sizes and checksums."""
    written = []
    for name, split in source.read(piece).items():
        if not len(split):
            continue
        check_split(source.task, name, split)
        path = folder / name / f"{number:05d}.h5"
        path.parent.mkdir(exist_ok=True)
        y = split.y
        if y.dtype.kind != "f":  # the smallest type that holds all class numbers
            y = y.astype(np.result_type(*(np.min_scalar_type(int(end)) for end in (y.min(), y.max()))))
        arrays = {"x": split.x, "y": y, "lengths": split.lengths.astype(np.int32), "groups": split.groups}
        arrays["ids"] = split.ids
        if (
            split.ids is not None and split.ids.dtype.kind == "U"
        ):  # HDF5's strings of a fixed size are bytes
            arrays["ids"] = np.char.encode(split.ids, "utf-8", "surrogatepass")
        replace_file(
            path, partial(_write_arrays, arrays), durable=False
        )  # the whole folder is synced at its end
        sums = {"bytes": path.stat().st_size, "crc32": file_crc32(path)}
        counts = {"rows": len(split), "dropped": split.dropped, "cut": split.cut}
        hashes = None if source.task.name in TASKS else _hashes(split.x, arrays["lengths"])
        written.append({"split": name, "name": f"{name}/{path.name}", **sums, **counts, "hashes": hashes})
    return written


def _write_arrays(arrays: Mapping[str, np.ndarray | None], path: Path) -> None:
    import h5py

    with new_file(path) as file:
        for name, values in arrays.items():
            if values is not None:
                kind = h5py.vlen_dtype(np.uint8) if values.dtype.kind == "O" else values.dtype
                file.create_dataset(name, data=values, dtype=kind, track_times=False)


def _write_index(
    source: Source, origin: list[dict[str, Any]], folder: Path, written: list[list[dict[str, Any]]]
) -> None:
    """Write the index of a folder: its files, the digest of the data, and the state of the source files."""
    task, scaling = source.task, scaling_to_json(source.scaling())
    files: dict[str, list[dict[str, Any]]] = {}
    for file in (file for piece in written for file in piece):
        files.setdefault(file["split"], []).append(file)
    for name in SPLITS:
        if name not in files:
            raise InputError(f"task {task.name!r}: no rows for the split {name!r}", "give more rows")
    splits, totals = {}, {}
    for name in split_order(set(files)):
        kept = [{key: file[key] for key in ("name", "rows", "bytes", "crc32")} for file in files[name]]
        totals[name] = {
            count: sum(file[count] for file in files[name]) for count in ("rows", "dropped", "cut")
        }
        totals[name]["files"] = kept
        splits[name] = PreparedSplit(name, tuple((folder / file["name"], file["rows"]) for file in kept))
    warnings = _unknown_classes(task, splits)
    if task.name not in TASKS:
        warnings += _repeats(files)
    index = {
        "version": VERSION,
        "task": task.to_dict(),
        "scaling": scaling,
        "digest": _digest([task.to_dict(), scaling], splits),
        "splits": totals,
        "source": origin,
        "warnings": [*filter(None, [source.summary()]), *source.notes(), *warnings],
    }
    publish_json(folder / INDEX, index, durable=False)


def _unknown_classes(task: Task, splits: Mapping[str, PreparedSplit]) -> list[str]:
    """Return a line for each split with classes that no training row has."""
    if not task.classes:
        return []
    lines = []
    classes = {name: set(np.unique(split.y).tolist()) for name, split in splits.items()}
    for name, found in classes.items():
        if new := sorted(found - classes["train"] - {MISSING}):
            shown = ", ".join(str(task.label(c)) for c in new[:5])
            more = ", ..." if len(new) > 5 else ""
            problem = f"the split {name!r} has classes that no row of 'train' has"
            lines.append(f"{problem} ({len(new)}): {shown}{more}")
    return lines


def _hashes(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return a hash of each sequence, (rows,) of uint64."""
    rows = (row.tobytes() + length.tobytes() for row, length in zip(x, lengths, strict=True))
    return np.frombuffer(b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows), np.uint64)


def _repeats(files: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Return a line if sequences of ``test`` are in other splits: a readout may know them by heart."""
    hashes = {name: np.concatenate([file["hashes"] for file in files[name]]) for name in SPLITS}
    repeated = int(np.isin(hashes["test"], np.concatenate([hashes["train"], hashes["valid"]])).sum())
    start = f"{repeated:,} of {len(hashes['test']):,} test rows repeat a sequence of the training or validation rows"
    remedy = "remove repeats, or give them one group"
    return [f"{start}, so scores on new sequences may be lower; {remedy}"] if repeated else []


def _digest(description: list[Any], splits: Mapping[str, PreparedSplit]) -> str:
    """Return the SHA-256 of a task's description and arrays, which does not depend on their division into files.

    It covers the description and the scaling as canonical JSON; the name and row count of each split;
    and for each array the type, the shape of a row and the little-endian bytes, or for images the
    length and bytes of each file.
    """
    hasher = hashlib.sha256()

    def add(value: Any) -> None:
        hasher.update(json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")

    add(description)
    for name, split in splits.items():
        add([name, len(split)])
        for array in ("x", "y", "lengths", *(("groups",) if split.groups is not None else ())):
            for start, (_, rows) in zip(split.starts, split.files, strict=True):
                values = np.ascontiguousarray(getattr(split.read(start, start + rows), array))
                if values.dtype.kind == "O":
                    for row in values:
                        add([array, len(row)])
                        hasher.update(row)
                    continue
                values = values.astype(values.dtype.newbyteorder("<"), copy=False)
                if start == 0:
                    add([array, values.dtype.str, values.shape[1:]])
                hasher.update(values.data.cast("B") if values.size else b"")
    return hasher.hexdigest()
