"""Which cached entry a name on the command line means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reservoir_cache import Entry, last_entry, list_entries

from reservoir import InputError
from reservoir.reservoir import full_name
from reservoir.tasks import own_name


def find_entry(root: Path, name: str, **flags: Any) -> Entry:
    """Return the entry that a name stands for.

    Parameters
    ----------
    root : Path
        Root of the cache.
    name : str
        The folder of an entry, the beginning of its key (at least 6 digits), its folder's name, or a task: then the
        entry last extracted for it.
    **flags
        Settings of `extract` (``backbone``, ``init``, ``seed``, ``limit`` …) that choose among a task's entries; None
        leaves one open.

    Raises
    ------
    InputError
        If there is none, or a key fits several.
    """
    if (Path(name) / "spec.json").is_file():
        return Entry.open(Path(name))
    entries = list_entries(root)
    named = [entry for entry in entries if entry.path.name == name or (len(name) >= 6 and entry.key.startswith(name))]
    if len(named) > 1:
        raise InputError(f"{name!r} fits {len(named)} entries; give more digits of the key (reservoir cache list)")
    if named:
        return named[0]
    task = own_name(name) if Path(name).is_file() or ":" in name else name
    wanted = {flag: value for flag, value in flags.items() if value is not None}
    if "init" in wanted and Path(wanted["init"]).is_dir():
        wanted |= {"backbone": str(Path(wanted["init"]).resolve()), "init": "pretrained"}  # as entries record it
    elif "backbone" in wanted:
        wanted["backbone"] = full_name(wanted["backbone"])
    found = last_entry(root, task, lambda entry: wanted.items() <= _settings(entry).items())
    if found is None and wanted and last_entry(root, task):
        said = ", ".join(f"{flag} {value}" for flag, value in wanted.items())
        raise InputError(f"nothing extracted for {name!r} with {said}; run reservoir extract {name} with these first")
    if found is None:
        tasks = sorted({entry.spec.task["name"] for entry in entries})
        have = f"the cache in {root} has {', '.join(tasks)}" if tasks else f"the cache in {root} is empty"
        raise InputError(f"nothing extracted for {name!r}: {have}; run reservoir extract {name} first")
    return found


@contextmanager
def keep_last(root: Path, task: str) -> Iterator[None]:
    """Leave the task's last extraction what it was, whatever is extracted meanwhile on the way to something else."""
    last = last_entry(root, task)
    try:
        yield
    finally:
        if last and last.path.is_dir():
            Entry.create(root, last.path.name.rpartition("-")[0], last.spec, last.layout, last.made_with)


def _settings(entry: Entry) -> dict[str, Any]:
    """Return what an entry was extracted with, as the flags give it."""
    made = entry.made_with
    return {"limit": made.get("call", {}).get("settings", {}).get("limit")} | dict(made.get("reservoir", {}))
