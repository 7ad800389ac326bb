"""The journal of a training: a line of JSON for each step and each validation, with its SHA-256."""

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
    """Appends lines to ``metrics.jsonl``; lines after the step that the run continues from are removed first."""

    def __init__(self, path: Path, step: int) -> None:
        self._path, self._waiting, self._flushed = path, [], time.monotonic()
        kept = [line for line in read_journal(path) if line["step"] <= step]
        replace_file(path, lambda part: part.write_text("".join(map(checked_line, kept))))

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Add a line, which is written within about a second; JSON has no NaN or infinity, so they become null."""
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._waiting.append(checked_line({"step": step, **finite}))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self, *, durable: bool = False) -> None:
        """Write the lines in memory; ``durable`` lines, as those before a checkpoint, survive a power loss."""
        with self._path.open("a") as file:
            file.write("".join(self._waiting))
        if durable:
            sync(self._path)
        self._waiting.clear()
        self._flushed = time.monotonic()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal, up to a line that was not completely written; an empty list without a file."""
    lines = []
    for text, line in read_lines(path):
        # kill -9 may leave an incomplete last line, a power loss zeros in place of what was not yet on disk.
        if (not text.endswith(b"\n") and b"}" not in text) or b"\0\0" in text:
            break
        if line is None:
            raise InputError(f"{path}: line {len(lines) + 1} is damaged; remove the file, or train in another folder")
        lines.append(line)
    return lines


def curve_points(history: Sequence[dict[str, Any]], name: str, factor: float = 1.0) -> np.ndarray:
    """Return an array (lines, 2) of steps and ``factor`` times a value, of the lines that have the value."""
    found = [(line["step"], factor * line[name]) for line in history if line.get(name) is not None]
    return np.array(found, float).reshape(-1, 2)
