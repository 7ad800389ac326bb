"""Files that are whole or as they were."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under a temporary name and move it into place, so that it is whole or as it was."""
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
