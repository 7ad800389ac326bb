"""Tasks, frozen backbones, the model and linear readouts. This package writes no files."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from reservoir.errors import InputError

if TYPE_CHECKING:
    from reservoir import backbones, options, pooling, readouts, tasks

# OpenMP threads that spin while they wait take processor time from each other: while another program
# used one of two cores, an extraction took four times the processor time. The setting works only
# before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["InputError", "backbones", "options", "pooling", "readouts", "tasks"]


def __getattr__(name: str) -> Any:
    """Import a module of `__all__` when it is first used; Python calls this for names that are not defined here."""
    # The command line answers --help without torch and scikit-learn, which these modules import.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
