"""Find the cached entry that a name on the command line stands for."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

from reservoir_cache import Entry, last_entry, list_entries

from reservoir.errors import InputError
from reservoir.option_fields import as_group, without_where
from reservoir.options import RowOptions
from reservoir.reservoir import full_name
from reservoir.tasks import TASKS, own_name
from reservoir_pipelines.output import notify


def find_entry(root: Path, name: str, **flags: Any) -> Entry:
    """Return the entry that a name stands for.

    A name is the folder of an entry, the folder's name, the beginning of its key (at least 6 digits), or a task. For a
    task it is the last extraction with the flags given. Own data is known by its content: entries of another file of
    the same name, or of this file before it changed, do not match.
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
        why = f"what is cached under this name was made of {_origin(same[0])}"
    else:
        tasks = sorted({entry.spec.task["name"] for entry in entries})
        why = f"the cache in {root} holds {', '.join(tasks)}" if tasks else f"the cache in {root} is empty"
    raise InputError(f"nothing extracted for {name!r}: {why}; {extract} first")


def _has_options(entry: Entry, wanted: dict[str, Any]) -> bool:
    """Return whether an entry was extracted with these options."""
    made = _settings(entry)
    if wanted.get("dilations") == "auto":  # entries hold the dilations that auto stood for
        wanted = wanted | {"dilations": made["dilations"] if "," in made.get("dilations", "") else "auto"}
    return wanted.items() <= made.items()


def _same_data(entry: Entry, file: str, root: Path, labels: str | None) -> bool:
    """Return whether an entry was made of what a file holds now."""
    from reservoir_pipelines.extraction.run import data_digest, draw_rows
    from reservoir_pipelines.preparation.prepare import prepare

    given = _settings(entry) | ({"labels": labels} if labels else {})
    options = as_group(given, RowOptions)
    try:
        prepared = prepare(file, options, cache=root)
    except InputError:  # the file can no longer be read with these options, so it has changed
        return False
    return entry.spec.data["digest"] == data_digest(prepared, draw_rows(prepared, options.limit))


def _origin(entry: Entry) -> str | None:
    """Return the task that an entry was made of, or the path of your own data."""
    return entry.made_with.get("call", {}).get("task")


def _settings(entry: Entry) -> dict[str, Any]:
    """Return the options that an entry was extracted with."""
    made = entry.made_with
    return without_where({**made.get("call", {}).get("settings", {}), **made.get("reservoir", {})})
