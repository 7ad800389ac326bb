"""The stage ``extract``: one frozen forward pass, whose pooled hidden states are cached."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    SplitFeatures,
    folder_bytes,
    last_entry,
    list_entries,
    remove,
    verify,
)

from reservoir.backbone_names import full_name
from reservoir.errors import InputError, nearest, require_path
from reservoir.option_fields import as_group, typed, without_where
from reservoir.options import ClusterOptions, ExtractOptions, RowOptions
from reservoir.tasks import TASKS
from reservoir.tasks.task import Task
from reservoir_pipelines.data.labels import require_labels
from reservoir_pipelines.data.own_data import own_name
from reservoir_pipelines.data.table import data_exists
from reservoir_pipelines.extraction.entries import (
    has_features,
    prepared_folder,
    rename_texts,
    row_count,
    write_labels,
)
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import Record, meter, notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared, data_digest, draw_rows, split_order
from reservoir_pipelines.workers import connect

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
        """Return the result of a call that began at the monotonic time ``started``; print if it computed nothing."""
        if not computed_rows:
            model_name = entry.path.name.rpartition("-")[0]  # without the key
            name = f"{entry.spec.task_name} x {model_name}"
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
        """Return the letters of each row of a split, for entries whose rows are words or tokens of texts.

        The entry has no letters, so they are read from the prepared data.
        """
        from reservoir.tasks.texts import texts_of

        store = self.store
        features = store[split]
        folder = prepared_folder(store.entry)
        if folder is None:
            raise InputError(f"{self.entry}: its prepared data is missing", "extract its task again")
        prepared = Prepared.open(folder).split(split)
        # A text has several rows, but is read once. ``index`` is the number of the text of each row.
        text_numbers, text_of_row = np.unique(features.index, return_inverse=True)
        stored_texts = prepared.take(text_numbers)
        texts = texts_of(stored_texts.x, stored_texts.lengths)
        spans = features.spans.tolist()  # first letter of each row, and the letter after its last
        return [
            texts[text][start:end] for text, (start, end) in zip(text_of_row.tolist(), spans, strict=True)
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
    # An address without a scheduler is refused before the entry is created, which would be the last one of its task.
    if cluster.scheduler:
        connect(cluster.scheduler).close()
    call = {"task": origin_of(task), "command": typed("extract", [task], options)}
    root = cache_root(options.cache)
    prepared = prepare(task, options, cache=root, model=options)
    # Before the model is loaded, which may take long, only the notes that hold for every model can be printed.
    notify(*prepared.other_notes)
    extractor = load_extractor(options, prepared, root, splits)
    # A model with its own tokenizer may know the letters that no training row has, and one with its own processor reads
    # images in its own size.
    notify(*extractor.notes, *([] if extractor.model.reader else prepared.notes_on_random_input))
    entry, computed_rows = _compute(extractor, call, options, cluster)
    return Extraction.of(entry, extractor.columns, computed_rows, started)


def _compute(
    extractor: "Extractor", call: Mapping[str, Any], options: ExtractOptions, cluster: ClusterOptions
) -> tuple[Entry, int]:
    """Compute what the entry of an extraction lacks; return the entry and the number of rows computed.

    If memory runs out, try again with half as many rows in a batch, as often as necessary.
    """
    from reservoir.devices import is_out_of_memory  # these import torch
    from reservoir_pipelines.extraction.sharing import share_blocks

    while True:
        entry, missing = extractor.open(call)
        try:
            with meter("extract", row_count(entry, missing)) as bar:
                computed_rows = 0
                if missing and (cluster.workers > 1 or cluster.scheduler):
                    computed_rows += share_blocks(extractor, entry, missing, options, cluster, bar.advance)
                # This process computes the blocks that workers have left, or all.
                computed_rows += extractor.compute(entry, bar.advance)
            return entry, computed_rows
        except (InputError, CacheError):
            # An entry without features would be the last one of its task, which `fit` reads. `remove` leaves it if
            # another process is at work on it.
            with suppress(CacheError):
                if not has_features(entry):
                    remove(entry.path)
            raise
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            # The size of batches is part of an entry's layout, so it cannot change once the entry has features, which
            # `with_smaller_batches` refuses. An entry without any is created anew.
            extractor = extractor.with_smaller_batches(entry)
            remove(entry.path)
            notify(f"out of memory: trying again with --batch-rows {extractor.layout.batch_rows}")


def origin_of(task: str) -> str:
    """Return the name of a task, or the full path of the user's own data."""
    is_own_data = task not in TASKS and data_exists(Path(task))
    return str(Path(task).resolve()) if is_own_data else task


def find_entry(root: Path, name: str, *, labelled: bool = False, **flags: Any) -> Entry:
    """Find an entry of the cache ``root``, or raise `InputError`.

    Parameters
    ----------
    root : Path
        The folder of the cache.
    name : str
        The folder of the entry, that folder's name, 6 or more digits of its key, or a task or file, which stands for
        its last extraction.
    labelled : bool
        Whether the caller needs labels. If nothing has been extracted from a file without labels, the message says
        that it has none.
    **flags
        Options with which a task or file must have been extracted; None and "auto" match any.
    """
    require_path(name, "the name of the entry")
    if (Path(name) / "spec.json").is_file():
        return Entry.open(Path(name))
    may_be_digits = len(name) > 5
    matching = [
        entry
        for entry in list_entries(root)
        if name == entry.path.name or (may_be_digits and entry.key.startswith(name))
    ]
    if len(matching) > 1:
        # The key does not depend on the first part of a folder's name, so several folders may have the same features.
        if len({entry.key for entry in matching}) == 1:
            folders = ", ".join(entry.path.name for entry in matching)
            raise InputError(f"{name!r} is the key of {len(matching)} entries", f"name one of {folders}")
        raise InputError(f"{name!r} matches {len(matching)} entries", "give more digits of the key")
    return matching[0] if matching else _entry_of_task(root, name, flags, labelled=labelled)


def _entry_of_task(root: Path, name: str, flags: Mapping[str, Any], *, labelled: bool) -> Entry:
    """Return the last entry of a task, or of the present content of a file, that was extracted with these flags."""
    is_own_file = name not in TASKS and data_exists(Path(name))
    is_hub_name = ":" in name  # such as hf:owner/name
    if "/" in name and not is_hub_name and not is_own_file:
        _refuse_lost(name, root)
    required = _required_settings(flags)
    # The file as the options of each entry read it, or the reason why they cannot.
    readings = list[Prepared | InputError]()
    # The present content of the file, and the largest number of rows drawn from it, for each entry that has it.
    content_of_entry: dict[Path, tuple[Prepared, int | None]] = {}

    def matches(entry: Entry) -> bool:
        """Return whether an entry has the required settings and, for a file, its present content."""
        settings = _settings(entry)
        if not required.items() <= settings.items():
            return False
        if not is_own_file:
            return True
        # The labels are read from the table that the user names now: tables are compared by content, as the data is.
        if labels := flags.get("labels"):
            settings["labels"] = labels
        options = as_group(settings, RowOptions)
        reading = _read_or_error(name, options, root)
        readings.append(reading)
        if not isinstance(reading, Prepared):
            return False
        content_of_entry[entry.path] = reading, options.limit
        return entry.spec.data.digest == data_digest(reading, draw_rows(reading, options.limit))

    task = own_name(name) if is_own_file or is_hub_name else name
    if entry := last_entry(root, task, matches):
        is_name_of_entry_alone = not is_own_file and not is_hub_name and task not in TASKS
        if is_name_of_entry_alone:
            origin = entry.made_with.get("call", {}).get("task")
            notify(f"{name} not found; using the last extraction of {origin}")
        if entry.path in content_of_entry:
            _rename_rows(entry, *content_of_entry[entry.path])
        return entry
    # If no entry has the required settings, the file was not read above. A fit says whether it can be read at all, for
    # which other commands, which only look for an entry, do not read it.
    if is_own_file and labelled and not readings:
        readings.append(_read_or_error(name, as_group(flags, RowOptions), root))
    if readings:
        _refuse_unreadable(readings, labelled=labelled)
    what = f"the present content of {name}" if is_own_file else repr(name)
    options = ", ".join(f"{flag} {value}" for flag, value in required.items())
    problem = f"the cache {root} has nothing extracted for {what}{f' with {options}' if options else ''}"
    can_be_extracted = is_own_file or is_hub_name or name in TASKS
    if not can_be_extracted:
        raise InputError(
            f"{problem}, and there is no task or file {name!r}",
            f"give the path of your data, or a task{nearest(name, TASKS)}",
        )
    set_flags = {flag: value for flag, value in flags.items() if value is not None}
    command = typed("extract", [name], as_group(set_flags, ExtractOptions))
    raise InputError(problem, f"run {command} first")


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


def _read_or_error(file: str, options: RowOptions, root: Path) -> Prepared | InputError:
    """Return the present content of a file as some options read it, or the error if they cannot."""
    try:
        return prepare(file, options, cache=root)
    except InputError as error:
        return error


def _refuse_unreadable(readings: Sequence[Prepared | InputError], *, labelled: bool) -> None:
    """Raise the error for which `extract` would refuse a file, or `fit` if the caller needs it ``labelled``, if any.

    ``readings`` are what several options make of the file, or their errors.
    """
    errors = [reading for reading in readings if isinstance(reading, InputError)]
    if len(errors) == len(readings):
        raise errors[-1]
    if not labelled:
        return
    for reading in readings:
        if isinstance(reading, Prepared):
            require_labels(reading.task, "fit")


def _rename_rows(entry: Entry, prepared: Prepared, limit: int | None) -> None:
    """Give the rows of an entry, up to ``limit`` rows of prepared data, their present ids and names of groups.

    These are not part of the digest, so they may have changed. A damaged entry stays as it is, because new labels would
    hide the damage from the commands that repair it.
    """
    if verify(entry, contents=False):
        return
    rows = draw_rows(prepared, limit)
    if Task.from_dict(entry.spec.task).labels_text_tokens:
        rename_texts(entry, prepared, rows)
    else:
        write_labels(entry, prepared, rows)


def _settings(entry: Entry) -> dict[str, Any]:
    """Return the options that an entry records, without those that say where work runs or files are."""
    recorded = entry.made_with.get("call", {}).get("settings")
    options_of_call = recorded if isinstance(recorded, dict) else {}  # the file may hold anything
    return without_where(options_of_call | entry.made_with.get("reservoir", {}))
