"""The stage ``extract``: one frozen forward pass, whose pooled hidden states are cached."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from reservoir_cache import (
    Entry,
    FeatureStore,
    SplitFeatures,
    folder_bytes,
    last_entry,
    list_entries,
    remove,
)

from reservoir.backbone_names import full_name
from reservoir.errors import InputError, as_input_error
from reservoir.option_fields import as_group, typed, without_where
from reservoir.options import ClusterOptions, ExtractOptions, RowOptions
from reservoir.tasks import TASKS
from reservoir.tasks.task import Task
from reservoir_pipelines.data.labels import require_labels
from reservoir_pipelines.data.own_data import own_name
from reservoir_pipelines.data.table import data_exists
from reservoir_pipelines.extraction.entries import row_count, write_labels
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import Record, meter, notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared, data_digest, draw_rows, split_order

if TYPE_CHECKING:
    from reservoir.plan.resolved import Plan
    from reservoir_pipelines.extraction.extractor import Extractor


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
    def of(cls, entry: Entry, columns: Sequence[str], computed_rows: int, started: float) -> "Extraction":
        """Return the result of a call that began at the monotonic time ``started``."""
        if not computed_rows:
            name = f"{entry.spec.task_name} x {entry.path.name.rpartition('-')[0]}"
            notify(f"{name}: everything is cached already in {entry.path}; no forward pass")
        return cls(
            entry=entry.path,
            rows={split: entry.spec.rows[split] for split in split_order({*entry.splits})},
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

    def letters(self, split: str) -> list[str]:
        """Return the letters of each word or token of a split, if these are the rows; they are read from the data."""
        from reservoir.tasks.words import texts_of

        store = self.store
        part, place = store[split], store.entry.made_with.get("prepared")
        with as_input_error(f"{self.entry}: its prepared data was removed", "extract its task again"):
            prepared = Prepared.open(Path(place or "")).split(split)
        numbers, row_of_text = np.unique(part.index, return_inverse=True)
        stored = prepared.take(numbers)
        texts = texts_of(stored.x, stored.lengths)
        spans = part.spans.tolist()
        return [
            texts[text][start:end] for text, (start, end) in zip(row_of_text.tolist(), spans, strict=True)
        ]

    def __getitem__(self, split: str) -> SplitFeatures:
        return self.store[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.splits)


def resolved_plan(task: str, options: ExtractOptions) -> "Plan":
    """Return the plan of an extraction without computing it; the data is prepared if necessary."""
    from reservoir_pipelines.extraction.planning import plan_of, task_of_entry  # imports torch

    prepared = prepare(task, options, cache=cache_root(options.cache), model=options)
    task_of_rows = task_of_entry(prepared.task, each_token=options.each_token)
    return plan_of(prepared, task_of_rows, options)


def extract(
    task: str,
    options: ExtractOptions,
    cluster: ClusterOptions = ClusterOptions(),
    *,
    splits: Sequence[str] | None = None,
) -> Extraction:
    """Run a frozen model once and cache its pooled hidden states; see `api.extract`."""
    from reservoir_pipelines.extraction.extractor import load_extractor  # imports torch

    started = time.monotonic()
    call = {"task": origin_of(task), "command": typed("extract", [task], options)}
    root = cache_root(options.cache)
    prepared = prepare(task, options, cache=root, model=options)
    # Before the model is loaded, which may take long, only the notes that hold for every model can be printed.
    notify(*prepared.other_notes)
    extractor = load_extractor(options, prepared, root, splits)
    # A model that reads the texts by its own tokenizer may know the letters that no training row has.
    notify(*extractor.notes, *([] if extractor.model.reader else prepared.notes_on_letters))
    entry, computed_rows = _compute(extractor, call, options, cluster)
    return Extraction.of(entry, extractor.columns, computed_rows, started)


def _compute(
    extractor: "Extractor", call: Mapping[str, Any], options: ExtractOptions, cluster: ClusterOptions
) -> tuple[Entry, int]:
    """Compute what the entry of an extraction lacks; return the entry and the number of rows computed."""
    from reservoir.devices import is_out_of_memory  # these import torch
    from reservoir_pipelines.extraction.sharing import share_blocks

    while True:
        entry, missing = extractor.open(call)
        try:
            with meter("extract", row_count(entry, missing)) as bar:
                computed_rows = 0
                if missing and (cluster.workers > 1 or cluster.scheduler):
                    computed_rows += share_blocks(extractor, entry, missing, options, cluster, bar.advance)
                return entry, computed_rows + extractor.compute(entry, bar.advance)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            # The size of batches is part of an entry's layout, so only an entry without features may change it.
            extractor = extractor.with_smaller_batches(entry)
            remove(entry.path)
            notify(f"out of memory: trying again with --batch-rows {extractor.layout.batch_rows}")


def origin_of(task: str) -> str:
    """Return the name of a task, or the full path of the user's own data."""
    return str(Path(task).resolve()) if task not in TASKS and data_exists(Path(task)) else task


def find_entry(root: Path, name: str, *, labelled: bool = False, **flags: Any) -> Entry:
    """Find an entry by its folder, that folder's name, 6 digits of its key, or its task: the last with these flags.

    If nothing has been extracted from a file without labels, an entry that has to be ``labelled`` is refused for that
    reason.
    """
    if (Path(name) / "spec.json").is_file():
        return Entry.open(Path(name))
    may_be_digits = len(name) > 5
    matching = [
        entry
        for entry in list_entries(root)
        if name == entry.path.name or (may_be_digits and entry.key.startswith(name))
    ]
    if len(matching) > 1:
        raise InputError(f"{name!r} matches {len(matching)} entries", "give more digits of the key")
    return matching[0] if matching else _entry_of_task(root, name, flags, labelled=labelled)


def _entry_of_task(root: Path, name: str, flags: Mapping[str, Any], *, labelled: bool) -> Entry:
    """Return the last entry of a task, or of the present content of a file, that was extracted with these flags."""
    is_own_file = name not in TASKS and data_exists(Path(name))
    is_hub_name = ":" in name
    if "/" in name and not is_hub_name and not is_own_file:
        _refuse_lost(name, root)
    required = _required_settings(flags)
    # The file as the options of each entry read it, or the reason why they cannot.
    readings = list[Prepared | InputError]()

    def matches(entry: Entry) -> bool:
        """Return whether an entry has the required settings and, for a file, its present contents."""
        settings = _settings(entry)
        if not required.items() <= settings.items():
            return False
        if not is_own_file:
            return True
        if labels := flags.get("labels"):  # compared by content, as the data is
            settings["labels"] = labels
        options = as_group(settings, RowOptions)
        readings.append(_reading(name, options, root))
        return _holds(entry, readings[-1], options.limit)

    task = own_name(name) if is_own_file or is_hub_name else name
    if entry := last_entry(root, task, matches):
        if not is_own_file and task not in TASKS and not is_hub_name:
            origin = entry.made_with.get("call", {}).get("task")
            notify(f"{name} not found; using the last extraction of {origin}")
        return entry
    if is_own_file:
        # `extract` would refuse a file that no options can read, so the reason is the answer here, too.
        readings = readings or [_reading(name, as_group(flags, RowOptions), root)]
        errors = [reading for reading in readings if isinstance(reading, InputError)]
        if len(errors) == len(readings):
            raise errors[-1]
        for reading in readings if labelled else ():
            if isinstance(reading, Prepared):
                require_labels(reading.task, "fit")
    what = f"the present content of {name}" if is_own_file else repr(name)
    options = ", ".join(f"{flag} {value}" for flag, value in required.items())
    raise InputError(
        f"the cache {root} has nothing extracted for {what}{f' with {options}' if options else ''}",
        f"run reservoir extract {quote(name)} first",
    )


def _required_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an entry must have recorded to match the flags of a command."""
    # A flag that was not given, or is "auto", matches any entry. Labels are compared by content, by the caller.
    settings = {
        flag: value for flag, value in flags.items() if value not in (None, "auto") and flag != "labels"
    }
    # Entries record a folder of weights and the short name of a backbone by their full names.
    if "init" in settings and Path(settings["init"]).is_dir():
        settings |= {"backbone": str(Path(settings["init"]).resolve()), "init": "pretrained"}
    elif "backbone" in settings:
        settings["backbone"] = full_name(settings["backbone"])
    return settings


def _refuse_lost(file: str, root: Path) -> NoReturn:
    """Refuse the path of a file that is gone; name the features that were extracted from it, if there are any."""
    path = str(Path(file).resolve())

    def is_of_file(entry: Entry) -> bool:
        return entry.made_with.get("call", {}).get("task") == path

    remedy = "give the path of your data"
    if entry := last_entry(root, own_name(file), is_of_file):
        remedy += f", or run reservoir fit {entry.key[:12]} to use the features extracted from it"
    raise InputError(f"{file}: no such file", remedy)


def _reading(file: str, options: RowOptions, root: Path) -> Prepared | InputError:
    """Return the present content of a file as some options read it, or the reason why they cannot."""
    try:
        return prepare(file, options, cache=root)
    except InputError as error:
        return error


def _holds(entry: Entry, reading: Prepared | InputError, limit: int | None) -> bool:
    """Return whether an entry holds up to ``limit`` rows of prepared data; if so, it gets the present ids."""
    if isinstance(reading, InputError):
        return False
    rows = draw_rows(reading, limit)
    if entry.spec.data.digest != data_digest(reading, rows):
        return False
    if not Task.from_dict(entry.spec.task).labels_text_tokens:  # their ids are those of texts
        write_labels(entry, reading, rows)  # ids may have changed, because they are not part of the digest
    return True


def _settings(entry: Entry) -> dict[str, Any]:
    """Return the options that an entry records, without those that name places."""
    options = entry.made_with.get("call", {}).get("settings")
    of_call = options if isinstance(options, dict) else {}
    return without_where(of_call | entry.made_with.get("reservoir", {}))
