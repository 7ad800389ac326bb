"""The stage ``extract``: one frozen forward pass over a task, whose pooled hidden states are cached in HDF5."""

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any

from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    SplitFeatures,
    folder_bytes,
    last_entry,
    list_entries,
    path_below,
    verify,
)

from reservoir import backbone_names
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed, without_where
from reservoir.options import ClusterOptions, ExtractOptions, RowOptions
from reservoir.plan import Plan
from reservoir.reservoir import full_name
from reservoir.tasks import TASKS, own_name
from reservoir_pipelines.files import cache_root, read_checked, stamp, write_checked
from reservoir_pipelines.output import Record, meter, notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared

PACKAGES = (Path(backbone_names.__file__).parent, Path(__file__).parents[1])
"""Folders of the code that resolves and computes an extraction, and of the weights that the packages contain."""


@dataclass(frozen=True, kw_only=True)
class Extraction(Record):
    """The result of `extract`, computed or from the cache.

    Parameters
    ----------
    entry : Path
        Folder of the entry.
    rows : dict of str to int
        Rows of each split.
    columns : tuple of str
        The columns, such as ``block06/mean``.
    bytes : int
        Size of the entry on disk.
    seconds : float
        Wall time of the call.
    reused : bool
        True if everything was cached already and no forward pass ran.
    computed_rows : int
        Rows that went through the model in this call.
    """

    entry: Path
    rows: dict[str, int]
    columns: tuple[str, ...]
    bytes: int
    seconds: float
    reused: bool
    computed_rows: int

    @property
    def store(self) -> FeatureStore:
        """The cached features."""
        return FeatureStore(self.entry)

    def __getitem__(self, split: str) -> SplitFeatures:
        return self.store[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.splits)


def resolved_plan(task: str, options: ExtractOptions) -> Plan:
    """Return the plan of an extraction without computing it; the data is prepared if necessary."""
    from reservoir_pipelines.extraction.run import plan_of  # the module imports torch

    return plan_of(prepare(task, options, cache=cache_root(options.cache), model=options), options)


def extract(
    task: str,
    options: ExtractOptions,
    cluster: ClusterOptions = ClusterOptions(),
    *,
    splits: Sequence[str] | None = None,
) -> Extraction:
    """Run a frozen transformer over a task once and cache its pooled hidden states; see `api.extract`."""
    started = time.monotonic()
    root = cache_root(options.cache)
    prepared = prepare(task, options, cache=root, model=options)
    notify(*prepared.notes())
    request = _request_of(prepared, options, splits)
    if found := _recall(root, request):
        entry, columns, computed = *found, 0
    else:
        from reservoir_pipelines.extraction.run import row_count, share_blocks, start_run  # the module imports torch

        run = start_run(options, prepared, root, splits)
        entry, todo = run.open({"task": origin_of(task), "command": typed("extract", [task], options)})
        with meter("extract", row_count(entry, todo)) as bar:
            shared = todo and (cluster.workers > 1 or cluster.scheduler)
            computed = share_blocks(run, entry, todo, options, cluster, bar.advance) if shared else 0
            computed += run.compute(entry, bar.advance)
        columns = run.columns
        if request:  # a receipt lets an equal call find its entry without importing torch
            receipt = {"entry": str(entry.path.relative_to(root)), "key": entry.key}
            file = path_below(root, "receipts", f"{request[:32]}.json")
            with suppress(OSError):  # another user's cache may be read-only
                file.parent.mkdir(parents=True, exist_ok=True)
                write_checked(file, receipt | {"columns": list(columns), "splits": list(run.splits)})
    if not computed:
        name = f"{prepared.task.name} x {entry.path.name.rpartition('-')[0]}"
        notify(f"{name}: everything is cached already in {entry.path}; no forward pass")
    return Extraction(
        entry=entry.path,
        rows={split: entry.spec.rows[split] for split in prepared.rows},
        columns=columns,
        bytes=folder_bytes(entry.path),
        seconds=round(time.monotonic() - started, 3),
        reused=computed == 0,
        computed_rows=computed,
    )


def origin_of(task: str) -> str:
    """Return the name of a task, or the full path of the user's own data."""
    return str(Path(task).resolve()) if task not in TASKS and Path(task).exists() else task


def _request_of(prepared: Prepared, options: ExtractOptions, splits: Sequence[str] | None) -> str | None:
    """Return the SHA-256 of everything that determines the result; None for models of the hub, which may change."""
    given = asdict(replace(options, cache=None))
    folders = [Path(name) for name in (options.backbone, options.init) if name and Path(name).exists()]
    name = options.backbone or "mini"
    drawn = str(options.init).startswith("random") and name.partition(":")[0] in backbone_names.KNOWN
    if not (folders or drawn or name == "mini"):
        return None
    here = {
        "host": [socket.gethostname(), _machine()],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "code": [_stamps(package) for package in PACKAGES],
        "weights": [_stamps(folder) for folder in folders],
        "versions": [version(name) for name in ("torch", "transformers")],
    }
    text = json.dumps([prepared.digest, given, splits, here], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _recall(root: Path, request: str | None) -> tuple[Entry, tuple[str, ...]] | None:
    """Return the entry and columns of an equal earlier request if all exist; mark the entry as the last one used."""
    if request is None:
        return None
    try:
        kept = read_checked(path_below(root, "receipts", f"{request[:32]}.json"))
        entry = Entry.open(root / kept["entry"])
        columns = tuple(kept["columns"])
        faults = [problem for problem in verify(entry, contents=False) if problem.path.name not in entry.splits]
        unlabelled = any(entry.page(split, 0).targets is None for split in entry.splits)
        lacks = faults or unlabelled or any(entry.missing(split, columns) for split in kept["splits"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, CacheError):
        return None  # no receipt, or a damaged one
    if lacks or entry.key != kept["key"]:
        return None
    name = entry.path.name.rpartition("-")[0]
    return Entry.create(root, name, entry.spec, entry.layout, entry.made_with), columns


def _machine() -> str:
    """Return an identity that differs between machines of the same name, or "" if the system has none."""
    for name in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with suppress(OSError):
            if number := Path(name).read_text().strip():
                return number
    return ""


def _stamps(place: Path) -> list[tuple[str, list[int]]]:
    """Return the name and the `stamp` of a file, or of every file below a folder."""
    files = sorted(path for path in place.rglob("*") if path.suffix != ".pyc") if place.is_dir() else [place]
    return [(str(path), stamp(path)) for path in files if path.is_file()]


def find_entry(root: Path, name: str, **flags: Any) -> Entry:
    """Find an entry by its folder, the folder's name, the first 6 or more digits of its key, or its task.

    The entry of a task is its last extraction with the given flags. Your own data is identified by its content: entries
    of another file of the same name, or of an earlier version of the file, do not match.
    """
    if (Path(name) / "spec.json").is_file():
        return Entry.open(Path(name))
    entries = list_entries(root)
    named = [entry for entry in entries if entry.path.name == name or (len(name) >= 6 and entry.key.startswith(name))]
    if len(named) > 1:
        raise InputError(f"{name!r} matches {len(named)} entries; give more digits of the key (reservoir cache list)")
    if named:
        return named[0]
    own = name not in TASKS and Path(name).exists()
    task = own_name(name) if own or ":" in name else name
    wanted = {flag: value for flag, value in flags.items() if value is not None}
    labels = wanted.pop("labels", None)  # compared by content, as the data is
    if "init" in wanted and Path(wanted["init"]).is_dir():
        wanted |= {"backbone": str(Path(wanted["init"]).resolve()), "init": "pretrained"}  # as entries record it
    elif "backbone" in wanted:
        wanted["backbone"] = full_name(wanted["backbone"])

    def matches(entry: Entry) -> bool:
        return _has_options(entry, wanted) and (not own or _same_data(entry, name, root, labels))

    if found := last_entry(root, task, matches):
        if not own and task not in TASKS and ":" not in name:
            notify(f"{name} not found; using the last extraction of {_origin(found)}")
        return found
    extract = f"run reservoir extract {quote(name)}"
    same = [entry for entry in entries if entry.spec.task["name"] == task]
    if wanted and any(not _has_options(entry, wanted) for entry in same):
        given = ", ".join(f"{flag} {value}" for flag, value in wanted.items())
        raise InputError(f"nothing extracted for {name!r} with {given}; {extract} with these options first")
    if any(_origin(entry) == str(Path(name).resolve()) for entry in same):
        raise InputError(f"{name}: the file has changed since it was extracted; {extract} again")
    if same and Path(name).exists():
        why = f"the cached features of this name are those of {_origin(same[0])}"
    else:
        tasks = sorted({entry.spec.task["name"] for entry in entries})
        why = f"the cache in {root} holds {', '.join(tasks)}" if tasks else f"the cache in {root} is empty"
    raise InputError(f"nothing extracted for {name!r}: {why}; {extract} first")


def _has_options(entry: Entry, wanted: dict[str, Any]) -> bool:
    made = _settings(entry)
    if wanted.get("dilations") == "auto":  # entries record the resolved dilations, not auto
        wanted = wanted | {"dilations": made["dilations"] if "," in str(made.get("dilations", "")) else "auto"}
    return wanted.items() <= made.items()


def _same_data(entry: Entry, file: str, root: Path, labels: str | None) -> bool:
    """Return whether an entry was extracted from the present content of a file."""
    from reservoir_pipelines.extraction.run import data_digest, draw_rows  # the module imports torch

    options = as_group(_settings(entry) | ({"labels": labels} if labels else {}), RowOptions)
    try:
        prepared = prepare(file, options, cache=root)
    except InputError:  # the file can no longer be read with these options, so it has changed
        return False
    return entry.spec.data["digest"] == data_digest(prepared, draw_rows(prepared, options.limit))


def _origin(entry: Entry) -> str | None:
    """Return the task that an entry was extracted from, or the path of the user's own data."""
    return entry.made_with.get("call", {}).get("task")


def _settings(entry: Entry) -> dict[str, Any]:
    settings = entry.made_with.get("call", {}).get("settings")
    return without_where({**(settings if isinstance(settings, dict) else {}), **entry.made_with.get("reservoir", {})})
