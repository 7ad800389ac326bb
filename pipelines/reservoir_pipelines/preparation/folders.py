"""The folders of prepared data: one per task with its parameters, and in it one per state of the source files."""

import hashlib
import json
from pathlib import Path
from typing import Any

from reservoir_cache import path_below

from reservoir.tasks import Source
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.preparation.prepared import INDEX, Prepared

VERSION = 11  # version of the file format; part of the folder's name, so that other versions are not read


def settings_folder(name: str, source: Source, cache: Path | None = None) -> Path:
    """Return the folder of a task, by its name, and its parameters, with a subfolder per state of its files."""
    digest = short_hash({"version": VERSION, **source.settings()})
    return path_below(cache_root(cache), "prepared", f"{name}-{digest}")


def latest(settings: Path, *, verify: bool = True) -> Prepared | None:
    """Return the most recently prepared data in a folder of `settings_folder`, if any."""
    indices = sorted(settings.glob(f"[!.]*/{INDEX}"), key=lambda index: index.stat().st_mtime)
    return Prepared.open(indices[-1].parent, verify=verify) if indices else None


def short_hash(value: Any) -> str:
    """Return 16 digits of the SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=vars).encode()).hexdigest()[:16]
