"""Limits on what stored bytes may grow to in memory, so that a small damaged file cannot fill it."""

from pathlib import Path

import numpy as np

from reservoir.errors import InputError

MAX_EXPANSION = 200
"""Largest expansion of stored bytes that is accepted; random bits stored as float64 expand 60 times."""

FREE_BYTES = 2**27  # arrays up to this size may be compressed by any factor: rows of zeros are harmless


def check_expansion(path: Path, name: str, size: int, stored: int) -> None:
    """Refuse an array that would unpack to far more bytes than are stored for it."""
    if size > FREE_BYTES and size > MAX_EXPANSION * stored:
        raise InputError(
            f"{path}: array {name!r} claims {size} bytes, but only {stored} are stored",
            "write the file again, without compression",
        )


def check_padding(where: str, lengths: np.ndarray, token_bytes: int) -> None:
    """Refuse sequences if the longest makes the padded array far larger than their values."""
    rows = len(lengths)
    longest, tokens = int(lengths.max()), int(lengths.sum())
    size = rows * longest * token_bytes
    if size > FREE_BYTES and size > MAX_EXPANSION * tokens * token_bytes:
        row = int(np.argmax(lengths))
        raise InputError(
            f"{where}, row {row}: {longest} tokens, to which all {rows} rows would be padded; together they "
            f"have only {tokens} tokens",
            "cut the row, or leave it out",
        )
