"""Mistakes that are told at once: names and files are looked at before what computes is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reservoir.errors import InputError


def check_names(said: Mapping[str, Any]) -> None:
    """Refuse a task, a backbone, or a file that is not there, by the name of the argument or flag it was given as."""
    if backbone := said.get("backbone"):
        from reservoir.backbone_names import check_backbone_name

        check_backbone_name(backbone)
    if task := said.get("task"):
        from reservoir.tasks import TASKS, task_named

        source = task_named(task)
        if task not in TASKS:
            source.files()
    for name, what in (("readout", "a folder that fit or train wrote"), ("file", "your data")):
        path = said.get(name)
        if isinstance(path, Path) and not path.exists():
            raise InputError(f"{path}: no such file or folder; give {what}")
