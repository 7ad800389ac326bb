"""Variants of the named tasks: other data, initial weights and training, as a publication describes them.

A task parameter chooses the variant; the module `MODULE` has the variants and the name of the parameter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from reservoir.errors import InputError

MODULE = "reservoir.paper.variants"  # imports the tasks that it varies, so it is imported when needed


def _leave_unchanged(_model: Any) -> None:
    """Change nothing."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the tasks, models and training of this package.

    Parameters
    ----------
    sources : mapping of str to type
        The class of the source of each task whose data differ, by the task's name.
    random_inits : mapping of str to str
        By family of backbones, the init that ``random`` means.
    output_init : str
        How the output layer is initialised; see `reservoir.fpt.FPT`.
    drops_in_frozen_layers : bool
        Whether dropout also acts below the first layer that is trained.
    before_training : callable
        Called with a model before it is trained.
    """

    sources: Mapping[str, type[Any]] = field(default_factory=dict)
    random_inits: Mapping[str, str] = field(default_factory=dict)
    output_init: str = "orthogonal"
    drops_in_frozen_layers: bool = False
    before_training: Callable[[Any], None] = _leave_unchanged


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The variants by the value of the task parameter that chooses one, and the value that stands for none."""

    parameter: str
    default: str
    by_value: Mapping[str, Variant]


def variants() -> Variants:
    """Return all variants."""
    return import_module(MODULE).VARIANTS


def variant_of(parameters: Mapping[str, Any], where: str = "") -> Variant:
    """Return the variant that task parameters choose; errors name ``where``."""
    registered = variants()
    value = parameters.get(registered.parameter, registered.default)
    if value not in registered.by_value:
        problem = f"{where}: {registered.parameter} is {value!r}"
        raise InputError(problem, f"give {' or '.join(registered.by_value)}")
    return registered.by_value[value]
