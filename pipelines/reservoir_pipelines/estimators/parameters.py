"""The parameters of the estimators: fields of the options, and a few that only the estimators have."""

from __future__ import annotations

import inspect
from dataclasses import Field, fields
from typing import Any, TypeVar

from reservoir.option_fields import keyword
from reservoir.options import (
    CacheOptions,
    ComputeOptions,
    DeviceOptions,
    ExtractOptions,
    FeatureOptions,
    OwnDataOptions,
    ReservoirOptions,
)

K = TypeVar("K", bound=type)

_OPTIONS: tuple[Field[Any], ...] = (
    *fields(ReservoirOptions),
    *(item for item in fields(FeatureOptions) if item.name in ("layers", "pool")),
    *(item for item in fields(OwnDataOptions) if item.name == "standardise"),
    *fields(CacheOptions),
    *fields(DeviceOptions),
    *fields(ComputeOptions),
)
_OWN: dict[str, tuple[Any, str]] = {
    "vocabulary": (
        None,
        "X holds symbols, whole numbers below this one. None: integers as in files, all else values.",
    ),
    "channels_first": (
        False,
        "True: X of three dimensions is (samples, channels, values), as in aeon and sktime; sequences in a list are "
        "(channels, values).",
    ),
    "alphas": (
        None,
        "Positive penalties. None: 25 from 1e-2 to 1e6 in equal ratios, extended if an end is best.",
    ),
    "cv": (
        None,
        "Folds, or a cross-validator, by which column and penalty are chosen; each sample is held out once. None: five "
        "folds, repeated five times below 200 samples and three times below 600.",
    ),
    "class_weight": (None, "``balanced`` or weights by class, as in scikit-learn."),
}
_HEAD = ["    Parameters", "    ----------"]


def with_parameters(*own: str) -> Any:
    """Give a class a constructor with all options and some parameters of its own, and document them."""
    table = {item.name: (item.default, _described(item)) for item in _OPTIONS}
    table |= {name: _OWN[name] for name in own}

    def decorate(kind: K) -> K:
        def __init__(self: Any, **given: Any) -> None:
            if unknown := given.keys() - table.keys():
                raise TypeError(f"{kind.__name__} has no parameter {min(unknown)!r}; it has {', '.join(table)}")
            vars(self).update({name: default for name, (default, _) in table.items()} | given)

        named = [keyword(name, default) for name, (default, _) in table.items()]
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        vars(__init__)["__signature__"] = inspect.Signature([first, *named])
        kind.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]
        lines = [f"    {name} : default={default!r}\n        {text}" for name, (default, text) in table.items()]
        kind.__doc__ = (kind.__doc__ or "").replace("    {parameters}", "\n".join(_HEAD + lines))
        return kind

    return decorate


def extract_options(estimator: Any) -> ExtractOptions:
    """Return the parameters of an estimator as options of `extract`; features stay float32."""
    return ExtractOptions(**{item.name: getattr(estimator, item.name) for item in _OPTIONS}, store="float32")


def _described(item: Field[Any]) -> str:
    shown = item.metadata["shown"]
    return item.metadata["help"].rstrip(".") + "." + (f" None: {shown}." if shown else "")
