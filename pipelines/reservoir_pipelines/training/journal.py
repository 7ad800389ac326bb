"""The journal of a training run: one line for each step and each validation, each with its own checksum."""

from pathlib import Path
from typing import Any, TextIO

from reservoir_cache import replace_file

from reservoir.errors import InputError
from reservoir.records import fits
from reservoir_pipelines.files import checked_line, read_lines


def open_journal(path: Path, step: int) -> TextIO:
    """Open a journal for appending, after removing the lines of all steps after the checkpoint."""
    lines = [line for line in read_journal(path) if line["step"] <= step]
    replace_file(path, lambda part: part.write_text("".join(map(checked_line, lines))))
    return path.open("a", buffering=1)  # others see each line at once


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal except an incomplete last one, or an empty list if there is no file."""
    lines = []
    for text, line in read_lines(path):
        # kill -9 may leave an incomplete last line; a power loss may leave zeros.
        is_incomplete = not text.endswith(b"\n") and b"}" not in text
        if is_incomplete or b"\0\0" in text:
            break
        if line is None or not fits(line.get("step"), int) or not fits(line, dict[str, float | None]):
            raise InputError(
                f"{path}: line {len(lines) + 1} is damaged", "remove the file, or train in another folder"
            )
        lines.append(line)
    return lines
