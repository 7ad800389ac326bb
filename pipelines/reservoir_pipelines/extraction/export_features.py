"""The stage ``export_features``: the features of an entry as files that other programs read."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reservoir_cache import Entry, FeatureStore, SplitFeatures, new_folder

from reservoir.errors import InputError, as_input_error, nearest, require_path, writing
from reservoir.option_fields import typed
from reservoir.options import CacheOptions
from reservoir_pipelines.extraction.extract import Extraction, find_entry
from reservoir_pipelines.extraction.feature_files import FILE_FORMATS, FeatureBlocks, Shapes, default_format
from reservoir_pipelines.extraction.feature_folder import (
    CARD,
    FeatureFolder,
    card,
    describe_source,
    label_arrays,
    without_folders,
)
from reservoir_pipelines.files import cache_root, file_digest
from reservoir_pipelines.output import Meter, Record, meter


@dataclass(frozen=True, kw_only=True)
class ExportedFeatures(Record):
    """The result of `export_features`.

    Parameters
    ----------
    folder, card : Path
        The folder with a file or a folder for each split, and its dataset card.
    format : str
        ``parquet``, ``safetensors`` or ``npy``.
    rows : dict of str to int
        Rows of each split.
    columns : tuple of str
        The columns, such as ``block06/mean``.
    bytes, seconds : int, float
        Size of the files of all splits, and wall time of the call.
    """

    folder: Path
    card: Path
    format: str
    rows: dict[str, int]
    columns: tuple[str, ...]
    bytes: int
    seconds: float


def export_features(
    entry: Extraction | FeatureStore | Path | str,
    to: Path,
    columns: str | Sequence[str],
    storage: str | None,
    place: CacheOptions,
) -> ExportedFeatures:
    """Write the features of an entry to a new folder; see `api.export_features`."""
    # Check the arguments and describe the folder before anything is written.
    started = time.monotonic()
    storage = storage or default_format()
    if storage not in FILE_FORMATS:
        raise InputError(
            f"--format {storage}: choose among {', '.join(FILE_FORMATS)}{nearest(storage, FILE_FORMATS)}"
        )
    is_empty_folder = to.is_dir() and not any(to.iterdir())
    if to.exists() and not is_empty_folder:
        raise InputError(f"{to}: exists already", "name another folder with --to, or remove it")
    store = _open_store(entry, place)
    names = _names_of_columns(store, columns)
    with as_input_error(
        f"{store.entry.path}: spec.json does not record how it was extracted", "extract its task again"
    ):
        description = _describe(store, names, storage)
        description = replace(description, command=_command(store.entry, to, names, columns, storage))
        card(description)  # raises an error if the entry does not record what the card says
    # Write the files, then their description with checksums; the folder appears when all are complete.
    with writing(to, "name another folder with --to"), new_folder(to) as folder:
        with meter("export", sum(description.spec.rows.values())) as bar:
            for split in description.splits:
                labels = label_arrays(store[split], grouped=description.grouped)
                blocks = _blocks(store[split], description.shapes, bar)
                FILE_FORMATS[storage].write(folder, split, labels, description.shapes, blocks)
        description = replace(description, files=_checksums(folder, description))
        description.write(folder)
        (folder / CARD).write_text(card(description), "utf-8")
    return ExportedFeatures(
        folder=to,
        card=to / CARD,
        format=storage,
        rows={split: description.spec.rows[split] for split in description.splits},
        columns=tuple(names),
        bytes=sum(recorded["bytes"] for recorded in description.files.values()),
        seconds=round(time.monotonic() - started, 3),
    )


def _open_store(entry: Extraction | FeatureStore | Path | str, place: CacheOptions) -> FeatureStore:
    """Return the features of an entry; raise `InputError` unless every split has them.

    An entry may be named in the ways that `find_entry` lists.
    """
    if isinstance(entry, Extraction):
        store = entry.store
    elif isinstance(entry, FeatureStore):
        store = entry
    else:
        name = require_path(entry, "export_features: entry")
        store = FeatureStore(find_entry(cache_root(place.cache), name))
    if store.splits != store.entry.splits:
        raise InputError(
            f"{store.entry.path.name}: not all of its splits have features",
            "run its extract again, without splits",
        )
    return store


def _names_of_columns(store: FeatureStore, columns: str | Sequence[str]) -> list[str]:
    """Return the names of the columns to export; raise `InputError` for one that not every split has.

    ``columns`` is ``all`` or names of columns, as a list or separated by commas.
    """
    # An extraction that was stopped may have cached a column for some of the splits only.
    first_split = store[store.splits[0]]
    cached = [name for name in first_split if all(name in store[split].columns for split in store)]
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if names == ["all"]:
        names = cached
    for name in names:
        if name not in cached:
            raise InputError(
                f"column {name!r}: not cached", f"the cached ones are {', '.join(cached) or 'none'}"
            )
    if not names:
        raise InputError(f"{store.entry.path.name}: no columns to export", "extract it to the end")
    return list(dict.fromkeys(names))  # without repetitions, in this order


def _describe(store: FeatureStore, columns: Sequence[str], storage: str) -> FeatureFolder:
    """Return the description of the folder, still without the command and the files."""
    entry = store.entry
    first_split = store[store.splits[0]]  # all splits have columns of the same shape
    kept_shares = entry.made_with.get("kept", {})
    return FeatureFolder(
        storage=storage,
        title=entry.path.name.rpartition("-")[0],  # the name of the entry's folder without the key
        spec=entry.spec,
        layout=entry.layout,
        columns={name: first_split.shape(name) for name in columns},
        grouped=all(store[split].groups is not None for split in store),
        kept={split: float(kept_shares.get(split, 1.0)) for split in store},
        source=describe_source(entry),
        command="",
    )


def _command(
    entry: Entry, to: Path, names: Sequence[str], columns: str | Sequence[str], storage: str
) -> str:
    """Return the command that exports the same columns of an entry in the same format.

    ``names`` are the names that ``columns``, as the user gave them, stand for.
    """
    # Several entries may have one key, but only one has this name.
    arguments = [entry.path.name, "--to", str(to), "--format", storage]
    if columns not in ("all", ["all"]):  # all are exported by default
        arguments += ["--columns", ",".join(names)]
    return without_folders(typed("export-features", arguments))


def _blocks(part: SplitFeatures, shapes: Shapes, bar: Meter) -> FeatureBlocks:
    """Yield the rows of each shard, each column in its shape of ``shapes``; ``bar`` counts the written rows."""
    blocks_of_columns = (part.blocks(name) for name in shapes)
    for arrays in zip(*blocks_of_columns, strict=True):  # the same rows of all columns
        rows = len(arrays[0])
        yield {
            name: array.reshape(rows, *shape)
            for (name, shape), array in zip(shapes.items(), arrays, strict=True)
        }
        bar.advance(rows)


def _checksums(folder: Path, description: FeatureFolder) -> Mapping[str, Mapping[str, Any]]:
    """Return rows, bytes and SHA-256 of each file of a folder, by the name of the file."""
    return {
        name: {
            "rows": description.spec.rows[split],
            "bytes": (folder / name).stat().st_size,
            "sha256": file_digest(folder / name),
        }
        for split in description.splits
        for name in description.file_names(split)
    }
