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
    """Raise `InputError` if the array ``name`` would unpack to ``size`` bytes, far more than the ``stored`` bytes."""
    if size > FREE_BYTES and size > MAX_EXPANSION * stored:
        raise InputError(
            f"{path}: array {name!r} claims {size} bytes, but only {stored} are stored",
            "write the file again, without compression",
        )


def check_padding(where: str, lengths: np.ndarray, token_bytes: int) -> None:
    """Raise `InputError` if the longest sequence makes the padded array far larger than the values in it.

    ``lengths`` (rows,) count the tokens of each sequence, and ``token_bytes`` the bytes of a token. The message begins
    with ``where``, the file.
    """
    rows = len(lengths)
    longest, tokens = int(lengths.max()), int(lengths.sum())
    padded_bytes = rows * longest * token_bytes
    if padded_bytes > FREE_BYTES and padded_bytes > MAX_EXPANSION * tokens * token_bytes:
        longest_row = int(np.argmax(lengths))
        raise InputError(
            f"{where}, row {longest_row}: {longest} tokens, to which all {rows} rows would be padded; together they "
            f"have only {tokens} tokens",
            "cut the row, or leave it out",
        )


def free_memory() -> int:
    """Return how many bytes this process can still use, by the tightest of the limits that this system tells.

    They are the memory of the machine, what is available of it, the limits of the process, and that of its container.
    """
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, KeyError, ValueError):  # only Linux has these files
        machine = _sizes_in_file(Path("/proc/meminfo"))
        process = _sizes_in_file(Path("/proc/self/status"))
        free.append(machine["MemAvailable"])
        for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft_limit, _ = resource.getrlimit(limit)
            if soft_limit != resource.RLIM_INFINITY:
                free.append(soft_limit - process[used])
    with suppress(OSError, ValueError):  # without a limit, memory.max holds "max", which is no number
        container = Path("/sys/fs/cgroup")
        container_limit = int((container / "memory.max").read_text())
        container_used = int((container / "memory.current").read_text())
        free.append(container_limit - container_used)
    return max(0, min(free))


def _sizes_in_file(path: Path) -> dict[str, int]:
    """Return the sizes in a file of the kernel by name, in bytes; its lines are such as ``VmSize:  1024 kB``."""
    sizes: dict[str, int] = {}
    for line in path.read_text().splitlines():
        words = line.split()
        if words[-1:] == ["kB"]:  # other lines hold no sizes
            name, number = words[0].removesuffix(":"), words[1]
            sizes[name] = int(number) * 1024
    return sizes
