"""The stage ``extract``: one frozen forward pass, whose pooled hidden states are cached."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from reservoir_cache import Entry, FeatureStore, SplitFeatures, folder_bytes, last_entry, list_entries

from reservoir.backbone_names import full_name
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed, without_where
from reservoir.options import ClusterOptions, ExtractOptions, RowOptions
from reservoir.tasks import TASKS, own_name
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import Record, meter, notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared

if TYPE_CHECKING:
    from reservoir.plan import Plan


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
    bytes, seconds : int, float
        Size of the entry on disk, and wall time of the call.
    reused, computed_rows : bool, int
        Whether everything was cached already, and the rows that went through the model in this call.
    """

    entry: Path
    rows: dict[str, int]
    columns: tuple[str, ...]
    bytes: int
    seconds: float
    reused: bool
    computed_rows: int

    @classmethod
    def of(
        cls, entry: Entry, prepared: Prepared, columns: Sequence[str], computed_rows: int, started: float
    ) -> "Extraction":
        """Return the result of a call that began at the monotonic time ``started``."""
        if not computed_rows:
            name = f"{prepared.task.name} x {entry.path.name.rpartition('-')[0]}"
            notify(f"{name}: everything is cached already in {entry.path}; no forward pass")
        return cls(
            entry=entry.path,
            rows={split: entry.spec.rows[split] for split in prepared.rows},
            columns=tuple(columns),
            bytes=folder_bytes(entry.path),
            seconds=round(time.monotonic() - started, 3),
            reused=computed_rows == 0,
            computed_rows=computed_rows,
        )

    @property
    def store(self) -> FeatureStore:
        """The cached features."""
        return FeatureStore(self.entry)

    def __getitem__(self, split: str) -> SplitFeatures:
        return self.store[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.splits)


def resolved_plan(task: str, options: ExtractOptions) -> "Plan":
    """Return the plan of an extraction without computing it; the data is prepared if necessary."""
    from reservoir_pipelines.extraction.run import plan_of  # imports torch

    return plan_of(prepare(task, options, cache=cache_root(options.cache), model=options), options)


def extract(
    task: str,
    options: ExtractOptions,
    cluster: ClusterOptions = ClusterOptions(),
    *,
    splits: Sequence[str] | None = None,
) -> Extraction:
    """Run a frozen model once and cache its pooled hidden states; see `api.extract`."""
    from reservoir_pipelines.extraction.run import row_count, share_blocks, start_run  # imports torch

    started = time.monotonic()
    root = cache_root(options.cache)
    prepared = prepare(task, options, cache=root, model=options)
    notify(*prepared.notes)
    run = start_run(options, prepared, root, splits)
    entry, todo = run.open({"task": origin_of(task), "command": typed("extract", [task], options)})
    with meter("extract", row_count(entry, todo)) as bar:
        shared = todo and (cluster.workers > 1 or cluster.scheduler)
        computed = share_blocks(run, entry, todo, options, cluster, bar.advance) if shared else 0
        computed += run.compute(entry, bar.advance)
    return Extraction.of(entry, prepared, run.columns, computed, started)


def origin_of(task: str) -> str:
    """Return the name of a task, or the full path of the user's own data."""
    return str(Path(task).resolve()) if task not in TASKS and Path(task).exists() else task


def find_entry(root: Path, name: str, **flags: Any) -> Entry:
    """Find an entry by its folder, that folder's name, 6 digits of its key, or its task: the last with these flags."""
    if (Path(name) / "spec.json").is_file():
        return Entry.open(Path(name))
    entries = list_entries(root)
    named = [
        entry
        for entry in entries
        if name == entry.path.name or (len(name) > 5 and entry.key.startswith(name))
    ]
    if len(named) > 1:
        raise InputError(f"{name!r} matches {len(named)} entries; give more digits of the key")
    if named:
        return named[0]
    own = name not in TASKS and Path(name).exists()
    task = own_name(name) if own or ":" in name else name
    wanted = {flag: value for flag, value in flags.items() if value not in (None, "auto")}
    labels = wanted.pop("labels", None)  # compared by content, as the data is
    if "init" in wanted and Path(wanted["init"]).is_dir():
        wanted |= {"backbone": str(Path(wanted["init"]).resolve()), "init": "pretrained"}
    elif "backbone" in wanted:
        wanted["backbone"] = full_name(wanted["backbone"])

    def matches(entry: Entry) -> bool:
        fits = wanted.items() <= _settings(entry).items()
        return fits and (not own or _same_data(entry, name, root, labels))

    if found := last_entry(root, task, matches):
        if not own and task not in TASKS and ":" not in name:
            origin = found.made_with.get("call", {}).get("task")
            notify(f"{name} not found; using the last extraction of {origin}")
        return found
    what = f"the present content of {name}" if own else repr(name)
    given = ", ".join(f"{flag} {value}" for flag, value in wanted.items())
    problem = f"the cache {root} has nothing extracted for {what}{f' with {given}' if given else ''}"
    raise InputError(f"{problem}; run reservoir extract {quote(name)} first")


def _same_data(entry: Entry, file: str, root: Path, labels: str | None) -> bool:
    """Return whether an entry was extracted from the present content of a file; if so, it gets the present ids."""
    from reservoir_pipelines.extraction.run import data_digest, draw_rows, write_labels  # imports torch

    options = as_group(_settings(entry) | ({"labels": labels} if labels else {}), RowOptions)
    try:
        prepared = prepare(file, options, cache=root)
    except InputError:  # the file can no longer be read with these options, so it has changed
        return False
    rows = draw_rows(prepared, options.limit)
    if entry.spec.data["digest"] != data_digest(prepared, rows):
        return False
    write_labels(entry, prepared, rows)  # ids may have changed, because they are not part of the digest
    return True


def _settings(entry: Entry) -> dict[str, Any]:
    settings = entry.made_with.get("call", {}).get("settings")
    return without_where(
        {**(settings if isinstance(settings, dict) else {}), **entry.made_with.get("reservoir", {})}
    )
