"""The parameters of the estimators: options of `extract`, and some of their own."""

# The documentation shows the types of the fields as they are written here.
from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from reservoir import options as opt
from reservoir.errors import nearest
from reservoir.option_fields import keyword
from reservoir_pipelines.signatures import described

K = TypeVar("K", bound=type)


@dataclass
class EstimatorOptions:
    """The parameters of the estimators that are not options of `extract`."""

    vocabulary: int | None = opt.option(
        None,
        "Number of symbols in X (whole numbers below it)",
        shown="the rules of `extract` choose symbols or values",
    )
    channels_first: bool = opt.option(
        False,
        "Whether X is (samples, channels, values), or a list of (channels, values), as in aeon and sktime",
    )
    alphas: Sequence[float] | None = opt.option(
        None, "Positive penalties", shown="25 from 1e-2 to 1e6 on a log scale, and more if an end is best"
    )
    cv: int | Iterable[Any] | None = opt.option(
        None,
        "Folds, or a cross-validator that holds each sample out once, by which column and penalty are chosen",
        shown="five folds, repeated five times below 200 samples and three times below 600",
    )
    class_weight: str | Mapping[Any, float] | None = opt.option(
        None, "``balanced`` or weights by class, as in scikit-learn"
    )


OPTIONS = (
    *fields(opt.ReservoirOptions),
    *(item for item in fields(opt.FeatureOptions) if item.name in ("layers", "pool")),
    *(item for item in fields(opt.OwnDataOptions) if item.name in ("missing", "standardise")),
    *fields(opt.DeviceOptions),
    *fields(opt.ComputeOptions),
)


def with_parameters(*own: str) -> Any:
    """Give a class a constructor with all options and the parameters ``own``, and document them."""
    items = [*OPTIONS, *(item for item in fields(EstimatorOptions) if item.name in own)]
    defaults = {item.name: item.default for item in items}

    def decorate(kind: K) -> K:
        def __init__(self: Any, **parameters: Any) -> None:
            for name in parameters.keys() - defaults.keys():
                raise TypeError(f"{kind.__name__} has no parameter {name!r}{nearest(name, defaults)}")
            vars(self).update(defaults | parameters)

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = [keyword(name, default) for name, default in defaults.items()]
        vars(__init__)["__signature__"] = inspect.Signature([first, *named])
        kind.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]
        documented = "\n".join(["Parameters", "----------", *map(described, items)])
        kind.__doc__ = (inspect.getdoc(kind) or "").replace("{parameters}", documented)
        return kind

    return decorate
