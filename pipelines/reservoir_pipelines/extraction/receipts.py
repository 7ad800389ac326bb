"""Receipts of finished extractions: a call with a receipt needs neither the model nor torch."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reservoir_cache import CacheError, Entry, path_below, verify

from reservoir import backbone_names
from reservoir.options import ExtractOptions
from reservoir_pipelines.files import read_checked, stamp, write_checked
from reservoir_pipelines.preparation.prepared import Prepared

PACKAGES = (Path(backbone_names.__file__).parent, Path(__file__).parents[1])
"""The code that resolves and computes a call, with the weights that come with it."""


def request_of(prepared: Prepared, options: ExtractOptions, splits: Sequence[str] | None) -> str | None:
    """Return the SHA-256 of all that decides the result of a call; None for models of the hub, which may change."""
    given = asdict(replace(options, cache=None))
    folders = [Path(name) for name in (options.backbone, options.init) if name and Path(name).exists()]
    name = options.backbone or "mini"
    drawn = str(options.init).startswith("random") and name.partition(":")[0] in backbone_names.NAMES
    if not (folders or drawn or name == "mini"):
        return None
    here = {
        "host": [socket.gethostname(), _machine()],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "code": _code(),
        "weights": [_stamps(folder) for folder in folders],
        "versions": [version(name) for name in ("torch", "transformers")],
    }
    text = json.dumps([prepared.digest, given, splits, here], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def recall(root: Path, request: str | None) -> tuple[Entry, tuple[str, ...]] | None:
    """Return the entry and columns of an earlier, equal request if all are still there, and mark the entry as last."""
    try:
        kept = read_checked(_file(root, request or ""))
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


def remember(root: Path, request: str | None, entry: Entry, columns: Sequence[str], splits: Sequence[str]) -> None:
    """Write the receipt of a request, where this user can write."""
    if request is None:
        return
    found: dict[str, Any] = {"entry": str(entry.path.relative_to(root)), "key": entry.key}
    with suppress(OSError):
        _file(root, request).parent.mkdir(parents=True, exist_ok=True)
        write_checked(_file(root, request), found | {"columns": list(columns), "splits": list(splits)})


def _file(root: Path, request: str) -> Path:
    return path_below(root, "receipts", f"{request[:32]}.json")


@cache
def _machine() -> str:
    """Return what distinguishes machines of the same name, where the system has it."""
    for name in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with suppress(OSError):
            if number := Path(name).read_text().strip():
                return number
    return ""


@cache
def _code() -> list[tuple[str, list[int]]]:
    return [stamp for package in PACKAGES for stamp in _stamps(package)]


def _stamps(place: Path) -> list[tuple[str, list[int]]]:
    """Return name and stamp of a file, or of every file below a folder."""
    files = sorted(path for path in place.rglob("*") if path.suffix != ".pyc") if place.is_dir() else [place]
    return [(str(path), stamp(path)) for path in files if path.is_file()]
