"""Which cached entry a name on the command line means."""

from __future__ import annotations

from pathlib import Path

from reservoir_cache import Entry, last_entry, list_entries

from reservoir import InputError


def find_entry(root: Path, name: str) -> Entry:
    """Return the entry that a name stands for.

    Parameters
    ----------
    root : Path
        Root of the cache.
    name : str
        The folder of an entry, the beginning of its key (at least 6 digits), its folder's name, or a task: then the
        entry last extracted for it.

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
    task = Path(name).name if Path(name).is_file() else name
    found = last_entry(root, task)
    if found is None:
        tasks = sorted({entry.spec.task["name"] for entry in entries})
        have = f"the cache in {root} has {', '.join(tasks)}" if tasks else f"the cache in {root} is empty"
        raise InputError(f"nothing extracted for {name!r}: {have}; run reservoir extract {name} first")
    return found
