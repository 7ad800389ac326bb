"""The best column of each layer as a table, with its difference to the best layer."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from reservoir.records import from_json
from reservoir_pipelines.fitting.result import Result
from reservoir_pipelines.output import (
    Record,
    Table,
    count_text,
    is_share,
    score_text,
    signed_difference,
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


def layer_table(scores: Sequence[LayerScore], groups: int) -> Table:
    """Return the table of the best column of each layer; ``groups`` is the number of groups of test rows, or 0."""
    metric = scores[0].result.metric
    # Paired differences count every row once, also if balanced accuracy has chosen the readouts.
    compared = "R²" if metric == "R²" else "accuracy"
    headings = ("layer", "column", "#valid", "95% interval", "#test", "#difference", "95% interval", "#p")
    rows = []
    for score in scores:
        result = score.result
        valid, test = (score_text(value, metric) for value in (result.valid_score, result.test_score))
        spread = " to ".join(score_text(end, metric) for end in score.valid_interval or ())
        difference = ("best layer", "", "")
        if score.difference is not None and score.p_value is not None:
            ends = " to ".join(signed_difference(end, compared) for end in score.difference_interval or ())
            difference = (signed_difference(score.difference, compared), ends, f"{score.p_value:.2g}")
        rows.append((score.layer, result.title, valid, spread, test, *difference))
    unit = " in points" if is_share(compared) else ""
    over = f" over {count_text(groups, 'group')}" if groups else ""
    what = f"{compared}{unit} minus that of the best layer, on the same test rows{over}"
    return headings, rows, f"the best column of each layer; difference: {what}"
