"""The summary of a fit: a file in its folder that can be read without what made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reservoir_pipelines.files import read_checked, write_checked

SUMMARY = "fit.json"


def write_summary(folder: Path, values: Mapping[str, Any]) -> None:
    """Write what there is to say of a fit beside its results."""
    write_checked(folder / SUMMARY, values)


def read_summary(folder: Path) -> dict[str, Any]:
    """Read it again; raise OSError or ValueError if it is not there, or damaged."""
    return read_checked(folder / SUMMARY)
