"""The journal of a training: one line of JSON per step, and one per validation, each with its SHA-256."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import sync

from reservoir.errors import InputError
from reservoir_pipelines.files import checked_line, read_lines, replace_file

FLUSH_SECONDS = 1.0


class Journal:
    """Appends lines to ``metrics.jsonl``; those of steps after the one that the run goes on from are taken out."""

    def __init__(self, path: Path, step: int) -> None:
        self._path, self._waiting, self._flushed = path, [], time.monotonic()
        kept = [line for line in read_journal(path) if line["step"] <= step]
        replace_file(path, lambda part: part.write_text("".join(map(checked_line, kept))))

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Add a line, on disk within a second or so; what is not finite becomes null, which JSON has."""
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._waiting.append(checked_line({"step": step, **finite}))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self, *, durable: bool = False) -> None:
        """Write the lines that wait; ``durable`` ones must survive a power loss, as those before a checkpoint."""
        with self._path.open("a") as file:
            file.write("".join(self._waiting))
        if durable:
            sync(self._path)
        self._waiting.clear()
        self._flushed = time.monotonic()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal up to where a kill or a power loss has cut it off; none where there is no file."""
    lines = []
    for text, line in read_lines(path):
        # A kill cuts the last line off; a power loss may leave zeros in place of what was not yet on disk.
        if (not text.endswith(b"\n") and b"}" not in text) or b"\0\0" in text:
            break
        if line is None:
            raise InputError(f"{path}: line {len(lines) + 1} is damaged; remove the file, or train in another folder")
        lines.append(line)
    return lines


def course(history: Sequence[dict[str, Any]], name: str, factor: float = 1.0) -> np.ndarray:
    """Return (step, factor * value) of the lines that have a value of this name, (lines, 2)."""
    found = [(line["step"], factor * line[name]) for line in history if line.get(name) is not None]
    return np.array(found, float).reshape(-1, 2)
