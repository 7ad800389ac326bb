"""Refusals before a table is parsed: other encodings, NUL bytes, repeated names, and nearly empty tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from reservoir.errors import InputError
from reservoir.size_limits import FREE_BYTES, MAX_EXPANSION


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text, or has a NUL."""
    flags = f"-t UTF-8 {quote(str(path))} > NEW{path.suffix}"
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if b"\0" in line:
                raise InputError(
                    f"{path}, line {number}: a NUL byte", f"perhaps run iconv -f UTF-16 {flags}"
                )
            try:
                line.decode()
            except UnicodeDecodeError:
                raise InputError(
                    f"{path}, line {number}: not UTF-8", f"perhaps run iconv -f LATIN1 {flags}"
                ) from None


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text."""
    check_text(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from file


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse a table in which two columns have the same name."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise InputError(f"{path}: two columns are called {name!r}", "rename one")


def check_cells(path: Path, rows: int, columns: int) -> None:
    """Refuse a table of far more cells, nearly all empty, than the file has bytes."""
    size = path.stat().st_size
    if 8 * rows * columns > max(FREE_BYTES, MAX_EXPANSION * size):
        raise InputError(
            f"{path}: {rows:,} rows and {columns:,} columns in {size:,} bytes, so nearly all cells are empty",
            "leave out the empty columns",
        )
