"""The reasons of decisions: an option that the user gave has the reason `GIVEN`, each default its own."""

from collections.abc import Mapping
from dataclasses import fields

from reservoir.option_fields import Options

GIVEN = "given"
PLAIN = "default"


def is_given(options: Options, name: str) -> bool:
    """Return whether an option differs from its default; False if these options do not have it."""
    defaults = {item.name: item.default for item in fields(options)}
    return name in defaults and getattr(options, name) != defaults[name]


def reasons_of(options: Options, defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the reason for each option: `GIVEN` if it was given, else that of its default."""
    return {name: GIVEN if is_given(options, name) else why for name, why in defaults.items()}
