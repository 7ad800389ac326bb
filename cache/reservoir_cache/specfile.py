"""``spec.json``: what an entry is, in words and in full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.publish import publish_json, read_json
from reservoir_cache.spec import FORMAT, Layout, Spec

NAME = "spec.json"


@dataclass(frozen=True)
class SpecFile:
    """The content of ``spec.json``.

    Parameters
    ----------
    spec : Spec
        What the entry holds.
    key : str
        SHA-256 of the canonical JSON of ``spec``.
    layout : Layout
        How the entry is cut.
    made_with : mapping
        Host, library versions and the like; for people.
    """

    spec: Spec
    key: str
    layout: Layout
    made_with: Mapping[str, Any]

    def write(self, folder: Path, run: str) -> None:
        """Publish the file in the entry's folder."""
        content = {
            "spec": self.spec.to_dict(),
            "key": self.key,
            "layout": {**vars(self.layout)},
            "made_with": {**self.made_with},
        }
        publish_json(folder / NAME, run, content, indent=2)


def read_spec_file(folder: Path) -> SpecFile:
    """Read the ``spec.json`` of an entry's folder.

    Raises
    ------
    CacheError
        If it is absent, damaged, of another format version, or does not hash to its key.
    """
    path = folder / NAME
    _check_format(path)
    try:
        content = read_json(path, indent=2)
        spec, layout = Spec.from_dict(content["spec"]), Layout(**content["layout"])
        key, made_with = content["key"], content["made_with"]
    except (CacheError, KeyError, TypeError) as error:
        raise CacheError(f"{path}: not a sound specification ({error}); remove {folder} and extract again") from error
    if spec.key != key:
        raise CacheError(
            f"{path}: its specification hashes to {spec.key[:16]}, not to its key {key[:16]}; "
            f"remove {folder} and extract again"
        )
    return SpecFile(spec, key, layout, made_with)


def _check_format(path: Path) -> None:
    """Refuse another format version before anything else is believed of the file."""
    try:
        version = json.loads(path.read_bytes())["spec"]["format"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CacheError(f"{path.parent}: not an entry of the cache, it has no {NAME}") from error
    except (OSError, ValueError, KeyError, TypeError):
        return  # damaged, which the caller finds and says
    if version != FORMAT:
        raise CacheError(
            f"{path}: format version {version}, but this program reads version {FORMAT}; "
            f"remove {path.parent} and extract again, or use the version that made it"
        )
