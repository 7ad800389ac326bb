"""Which cached entry a name on the command line means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from reservoir_cache import Entry, last_entry, list_entries

from reservoir.errors import InputError
from reservoir.option_fields import without_where
from reservoir.options import RowOptions
from reservoir.reservoir import full_name
from reservoir.tasks import TASKS, own_name
from reservoir_pipelines.output import notify


def find_entry(root: Path, name: str, **flags: Any) -> Entry:
    """Return the entry that a name stands for.

    A name is the folder of an entry, the beginning of its key (at least 6 digits), its folder's name, or a task: then
    the entry last extracted for it with the flags that were given. Own data is known by its content: an entry made of
    another file of the same name, or of this one before it changed, is never taken for it.
    """
    if (Path(name) / "spec.json").is_file():
        return Entry.open(Path(name))
    entries = list_entries(root)
    named = [entry for entry in entries if entry.path.name == name or (len(name) >= 6 and entry.key.startswith(name))]
    if len(named) > 1:
        raise InputError(f"{name!r} fits {len(named)} entries; give more digits of the key (reservoir cache list)")
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

    def is_of(entry: Entry) -> bool:
        return not own or _holds(entry, name, root, labels)

    found = last_entry(root, task, lambda entry: wanted.items() <= _settings(entry).items() and is_of(entry))
    if found and not own and task not in TASKS and ":" not in name:
        notify(f"{name}: no such file here; taken is what was extracted last of {_origin(found)}")
    return found or _refuse(root, name, task, wanted, entries)


def _holds(entry: Entry, file: str, root: Path, labels: str | None) -> bool:
    """Whether an entry was made of what a file holds now."""
    from reservoir_pipelines.extraction.spec import data_digest, draw_rows
    from reservoir_pipelines.preparation.prepare import prepare

    asked = RowOptions(**{key: value for key, value in _settings(entry).items() if key in vars(RowOptions())})
    asked = replace(asked, labels=labels) if labels else asked
    try:
        prepared = prepare(file, asked, cache=root)
    except InputError:  # with these parameters the file cannot be read any more, so it is another
        return False
    return entry.spec.data["digest"] == data_digest(prepared, draw_rows(prepared, asked.limit))


def _refuse(root: Path, name: str, task: str, wanted: dict[str, Any], entries: list[Entry]) -> Entry:
    """Say why there is no entry, and how to make it."""
    extract = f"run reservoir extract {quote(name)}"
    same = [entry for entry in entries if entry.spec.task["name"] == task]
    of_path = [e for e in same if _origin(e) == str(Path(name).resolve())]
    if wanted and any(not wanted.items() <= _settings(entry).items() for entry in same):
        said = ", ".join(f"{flag} {value}" for flag, value in wanted.items())
        raise InputError(f"nothing extracted for {name!r} with {said}; {extract} with these first")
    if of_path:
        raise InputError(f"{name}: the file has changed since it was extracted; {extract} again")
    if same and Path(name).exists():
        other = _origin(same[0])
        raise InputError(
            f"nothing extracted for {name!r}: what is cached under this name is of {other}; {extract} first"
        )
    tasks = sorted({entry.spec.task["name"] for entry in entries})
    have = f"the cache in {root} has {', '.join(tasks)}" if tasks else f"the cache in {root} is empty"
    raise InputError(f"nothing extracted for {name!r}: {have}; {extract} first")


def _origin(entry: Entry) -> str | None:
    """Return the task that an entry was made of, or the path of own data."""
    return entry.made_with.get("call", {}).get("task")


def _settings(entry: Entry) -> dict[str, Any]:
    """Return what an entry was extracted with, as the flags give it."""
    made = entry.made_with
    return without_where({**made.get("call", {}).get("settings", {}), **made.get("reservoir", {})})
