"""Limits on what stored bytes may grow to in memory, so that a small damaged file cannot fill it; free memory."""

import os
import resource
from contextlib import suppress
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


def free_memory() -> int:
    """Return how many bytes this process can still use: of the machine, its control group and its own limits."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, KeyError, ValueError):  # files of Linux
        machine, process = _fields(Path("/proc/meminfo")), _fields(Path("/proc/self/status"))
        free.append(machine["MemAvailable"])
        for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY:
                free.append(most - process[used])
    with suppress(OSError, ValueError):  # a container has its own limit; without one, the file says "max"
        group = Path("/sys/fs/cgroup")
        most_of_group = int((group / "memory.max").read_text())
        free.append(most_of_group - int((group / "memory.current").read_text()))
    return max(0, min(free))


def _fields(path: Path) -> dict[str, int]:
    """Return the sizes in a file of the kernel, in bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].removesuffix(":"): int(words[1]) * 1024 for words in lines if words[-1:] == ["kB"]}
