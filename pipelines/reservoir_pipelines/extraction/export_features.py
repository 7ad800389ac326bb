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
from reservoir_pipelines.extraction.feature_files import FORMATS, Blocks, Shapes, default_format
from reservoir_pipelines.extraction.feature_folder import (
    CARD,
    FeatureFolder,
    card,
    label_arrays,
    open_source,
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
    if storage not in FORMATS:
        raise InputError(
            f"--format {storage}: choose among {', '.join(FORMATS)}{nearest(storage, FORMATS)}"
        )
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise InputError(f"{to}: exists already", "name another folder with --to, or remove it")
    store = _open(entry, place)
    names = _chosen(store, columns)
    with as_input_error(
        f"{store.entry.path}: spec.json does not record how it was extracted", "extract its task again"
    ):
        described = _describe(store, names, storage)
        described = replace(described, command=_command(store.entry, to, names, columns, storage))
        card(described)  # raises an error if the entry does not record what the card says
    # Write the files, then their description with checksums; the folder appears when all are complete.
    with writing(to, "name another folder with --to"), new_folder(to) as folder:
        with meter("export", sum(described.spec.rows.values())) as bar:
            for split in described.splits:
                labels = label_arrays(store[split], grouped=described.grouped)
                blocks = _blocks(store[split], described.shapes, bar)
                FORMATS[storage].write(folder, split, labels, described.shapes, blocks)
        described = replace(described, files=_files(folder, described))
        described.write(folder)
        (folder / CARD).write_text(card(described), "utf-8")
    return ExportedFeatures(
        folder=to,
        card=to / CARD,
        format=storage,
        rows={split: described.spec.rows[split] for split in described.splits},
        columns=tuple(names),
        bytes=sum(line["bytes"] for line in described.files.values()),
        seconds=round(time.monotonic() - started, 3),
    )


def _open(entry: Extraction | FeatureStore | Path | str, place: CacheOptions) -> FeatureStore:
    """Return the features of an entry; raise `InputError` unless every split has them."""
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


def _chosen(store: FeatureStore, columns: str | Sequence[str]) -> list[str]:
    """Return the columns to export; raise `InputError` for one that not every split has."""
    cached = [
        name for name in store[store.splits[0]] if all(name in store[split].columns for split in store)
    ]
    named = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if named == ["all"]:
        named = cached
    for name in named:
        if name not in cached:
            raise InputError(
                f"column {name!r}: not cached", f"the cached ones are {', '.join(cached) or 'none'}"
            )
    if not named:
        raise InputError(f"{store.entry.path.name}: no columns to export", "extract it to the end")
    return list(dict.fromkeys(named))


def _describe(store: FeatureStore, columns: Sequence[str], storage: str) -> FeatureFolder:
    """Return the description of the folder, still without the command and the files."""
    entry, first = store.entry, store[store.splits[0]]
    shares = entry.made_with.get("kept", {})
    return FeatureFolder(
        storage=storage,
        title=entry.path.name.rpartition("-")[0],
        spec=entry.spec,
        layout=entry.layout,
        columns={name: first.shape(name) for name in columns},
        grouped=all(store[split].groups is not None for split in store),
        kept={split: float(shares.get(split, 1.0)) for split in store},
        source=open_source(entry),
        command="",
    )


def _command(
    entry: Entry, to: Path, names: Sequence[str], columns: str | Sequence[str], storage: str
) -> str:
    """Return the command that exports the same columns of an entry in the same format."""
    arguments = [entry.key[:16], "--to", str(to), "--format", storage]
    chosen = [] if columns in ("all", ["all"]) else ["--columns", ",".join(names)]
    return without_folders(typed("export-features", arguments + chosen))


def _blocks(part: SplitFeatures, shapes: Shapes, bar: Meter) -> Blocks:
    """Yield the rows of each shard, each column in the shape in which it is exported."""
    for values in zip(*(part.blocks(name) for name in shapes), strict=True):
        rows = len(values[0])
        yield {
            name: array.reshape(rows, *shape)
            for (name, shape), array in zip(shapes.items(), values, strict=True)
        }
        bar.advance(rows)


def _files(folder: Path, described: FeatureFolder) -> Mapping[str, Mapping[str, Any]]:
    """Return rows, bytes and SHA-256 of each file of a folder."""
    return {
        name: {
            "rows": described.spec.rows[split],
            "bytes": (folder / name).stat().st_size,
            "sha256": file_digest(folder / name),
        }
        for split in described.splits
        for name in described.names(split)
    }
