"""The configuration of a training run: the settings that affect its results, and how they differ from others."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reservoir.errors import as_input_error
from reservoir_pipelines.files import json_digest, read_checked, versions

FORMAT = 1  # version of the file, increased when a value changes its name or meaning
CONFIG = "config.json"


def make_config(settings: Mapping[str, Any], device: object, **more: Any) -> dict[str, Any]:
    """Return the configuration of a run: all settings that affect results, their SHA-256 as ``key``, and ``more``."""
    made_with = {"device": str(device), **versions("torch", "transformers", "numpy")}
    return {
        "format": FORMAT,
        "key": json_digest(settings),
        "settings": settings,
        **more,
        "made_with": made_with,
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run, with all defaults resolved; a damaged file raises `InputError`."""
    path = folder / CONFIG
    with as_input_error(f"{path}: damaged, or not of a run of reservoir train", "name another folder"):
        config = read_checked(path)
        if config["format"] != FORMAT:
            raise ValueError(f"it has format {config['format']!r}, not {FORMAT}")
        if not isinstance(config["settings"], dict):
            raise ValueError("it has no settings")
        return config


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each setting that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new
