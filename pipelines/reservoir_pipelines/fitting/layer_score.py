"""The best column of each layer as a table, with its difference to the best layer."""

from dataclasses import dataclass, fields
from typing import Any

from reservoir.records import from_json
from reservoir_pipelines.fitting.result import Result
from reservoir_pipelines.output import (
    Record,
)


@dataclass(frozen=True, kw_only=True)
class LayerScore(Record):
    """The best column of one layer, compared with the layer that has the best validation score.

    Parameters
    ----------
    layer : str
        The layer.
    result : Result
        The best readout of its columns by validation, with its score on test.
    valid_interval : tuple of (float, float), optional
        95% interval of the validation score over rows, or over groups if the rows have groups.
    difference : float, optional
        Accuracy (or R²) on the test rows minus that of the best layer; None for the best layer itself.
    difference_interval : tuple of (float, float), optional
        Paired 95% interval of the difference.
    p_value : float, optional
        The p-value of the hypothesis that both are equally good on the test rows.
    """

    layer: str
    result: Result
    valid_interval: tuple[float, float] | None
    difference: float | None
    difference_interval: tuple[float, float] | None
    p_value: float | None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LayerScore":
        """Build a score from the values of `to_dict`."""
        result = {item.name: values["result"][item.name] for item in fields(Result)}
        return from_json(cls, values | {"result": from_json(Result, result)})
