"""Messages for interruptions and for errors of the operating system that no stage handles."""

from __future__ import annotations

import errno
import sys
from typing import Any

import typer
from typer.core import TyperGroup

# What the user named is at fault: exit code 2.
_REMEDIES = {
    errno.EACCES: "check its permissions, or name another place",
    errno.EPERM: "check its permissions, or name another place",
    errno.EROFS: "name a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a file stands where a folder should",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "name another place",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "check the links on the path",
}
# The machine is: exit code 1. These come without a path where it is a write that fails.
_SPACE = "make room, then run the same command again to continue"
_TROUBLES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), then run the same command again to continue",
    errno.EIO: "check the disk, then run the same command again to continue",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then run the same command again to continue",
}


class Interruptible(TyperGroup):
    """Commands that explain how to continue when they are interrupted; typer itself would print nothing."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an interruption ends it with exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("reservoir: interrupted; run the same command again to continue\n")
            raise typer.Exit(130) from None


def system_fault(error: OSError) -> tuple[str, int] | None:
    """Return one line and the exit code for an error of the operating system that a command did not handle.

    The code is 2 if a path that the user named is at fault, and 1 if the machine is. Returns None if the error names no
    path and is not one of the machine: then it is a bug, and its traceback is needed.
    """
    if error.errno is None or (error.filename is None and error.errno not in _TROUBLES):
        return None
    code = 2 if error.errno in _REMEDIES else 1
    remedy = (_REMEDIES | _TROUBLES).get(error.errno, "fix it, then run the same command again to continue")
    where = "" if error.filename is None else f"{_named(str(error.filename))}: "
    return f"{where}{error.strerror}; {remedy}", code


def _named(path: str) -> str:
    """Return the path, or the folder of a temporary file of `replace_file`, whose name says nothing to the user."""
    folder, _, name = path.rpartition("/")
    return folder if folder and name.startswith(".") and name.endswith(".part") else path
