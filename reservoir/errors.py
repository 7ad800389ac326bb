"""The one exception that means: the user's input was at fault, and here is what to do."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: a name, a file, a shape or a setting.

    The message is one line that says what is wrong, where, and what to do. The command line prints it alone and exits
    with code 2; it never shows a traceback for it.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the known one that is most like it, if any is."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
