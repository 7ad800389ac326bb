"""Checks before heavy imports: a misspelt name or a missing file is reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reservoir.errors import InputError


def check_names(given: Mapping[str, Any]) -> None:
    """Raise `InputError` for an unknown task or backbone, or a missing file, among the values given to a command."""
    if backbone := given.get("backbone"):
        from reservoir.backbone_names import check_backbone_name

        check_backbone_name(backbone)
    if task := given.get("task"):
        from reservoir.tasks import TASKS, task_named

        source = task_named(task)
        if task not in TASKS:
            source.files()
    for name, what in (("readout", "a folder that fit or train wrote"), ("file", "your data")):
        path = given.get(name)
        if isinstance(path, Path) and not path.exists():
            raise InputError(f"{path}: no such file or folder; name {what}")
