"""Stages: functions over groups of options, called with the options as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from reservoir import options
from reservoir.errors import InputError, nearest
from reservoir.option_fields import Options

R = TypeVar("R")


def stage(function: Callable[..., R]) -> Callable[..., R]:
    """Return a function whose parameters that are groups of options are given field by field, or as groups.

    Of ``extract(task, options: ExtractOptions, ...)`` the calls ``extract("mnist", backbone="gpt2")`` and
    ``extract("mnist", ReservoirOptions(backbone="gpt2"))`` are the same: each group that is given fills in the options
    that it has, and what is named goes before what a group says.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    kinds = {name: getattr(options, str(p.annotation), None) for name, p in parameters.items()}
    groups = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Options)}
    known = {item.name for kind in groups.values() for item in fields(kind)}

    @wraps(function)
    def call(*arguments: Any, **settings: Any) -> R:
        plain = [value for value in arguments if not isinstance(value, Options)]
        said: dict[str, Any] = {}
        for value in arguments:
            said |= vars(value) if isinstance(value, Options) else {}
        said |= {name: settings.pop(name) for name in known & settings.keys()}
        for name, kind in groups.items():
            settings[name] = kind(**{item.name: said[item.name] for item in fields(kind) if item.name in said})
        for name in settings.keys() - parameters.keys():
            meant = nearest(name, known | parameters.keys() - groups.keys())
            raise TypeError(f"{function.__name__}() has no {name!r}{meant}")
        bound = signature.bind(*plain, **settings)
        for name, value in bound.arguments.items():
            what, (kind, *optional) = f"{function.__name__}: {name}", str(parameters[name].annotation).split(" | None")
            if optional and value is None:
                continue
            if kind in ("Path", "str"):
                refuse_no_path(value, what)
                bound.arguments[name] = Path(value) if kind == "Path" else str(value)
            elif kind.startswith("Sequence[str"):
                several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
                for one in several:
                    refuse_no_path(one, what)
                bound.arguments[name] = several
        return function(*bound.args, **bound.kwargs)

    own = [p for name, p in parameters.items() if name not in groups]
    keywords = [keyword(item.name, item.default, item.type) for kind in groups.values() for item in fields(kind)]
    vars(call)["__signature__"] = inspect.Signature([*own, *keywords])
    return call


def refuse_no_path(value: object, what: str) -> None:
    """Raise `InputError` for what is neither a name nor a path; of an array it says the way in."""
    if isinstance(value, str | PathLike):
        return
    found = f"{what} is of type {type(value).__name__}, not a name or a path"
    if isinstance(value, Iterable):
        found += (
            "; np.savez('mine.npz', x=x, y=y) makes a file of arrays, and ReservoirClassifier().fit(x, y) takes them"
        )
    raise InputError(found)


def keyword(name: str, default: Any, annotation: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter that is given by its name."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
