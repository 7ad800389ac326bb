"""Files that are whole or as they were."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under a temporary name and move it into place, so that it is whole or as it was."""
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file that others may read as they may read every new file.

    Raises
    ------
    OSError
        If the system refuses it, as on a full disk.
    """
    from safetensors.torch import save_file

    with system_errors():
        save_file(dict(tensors), path)
    share(path)


@contextmanager
def system_errors() -> Iterator[None]:
    """Raise what safetensors says of the system as the OSError that it is."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        if not (found := re.search(r"\(os error (\d+)\)", str(error))):
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def share(path: Path) -> None:
    """Give a file, which safetensors makes for its owner alone, the permissions of every new file."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
