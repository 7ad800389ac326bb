"""Messages for interruptions and for errors of the operating system that no stage handles."""

import errno
import sys
from typing import Any

import typer
from typer.core import TyperGroup

# Exit code 2: the path that the user named is at fault.
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check its permissions, or name another place"),
    errno.EROFS: "name a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: one part of it is a file, not a folder",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "name another place",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "check the links on the path",
}
# Exit code 1: the machine is at fault. The error of a failed write names no path.
_TROUBLES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, then run the same command again to continue"),
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
    """Return one line and the exit code for an error of the operating system that no command handled, or None.

    The code is 2 if a path that the user named is at fault, 1 if the machine is. None means a bug: show its traceback.
    """
    if error.errno is None or (error.filename is None and error.errno not in _TROUBLES):
        return None
    code = 2 if error.errno in _REMEDIES else 1
    remedy = (_REMEDIES | _TROUBLES).get(error.errno, "fix it, then run the same command again to continue")
    folder, _, name = str(error.filename or "").rpartition("/")
    if folder and name.startswith(".") and name.endswith(".part"):
        where = f"{folder}: "  # the name of a temporary file of `replace_file` means nothing to the user
    else:
        where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror}; {remedy}", code
