"""The line that refuses bad input."""

from __future__ import annotations

from collections.abc import Callable

from reservoir.errors import InputError


def outcome(action: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the one line of an `InputError`, or "" after success."""
    try:
        action(*arguments, **options)
    except InputError as error:
        assert "\n" not in str(error) and str(error)
        return str(error)
    return ""
