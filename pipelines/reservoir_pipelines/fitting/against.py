"""What the test rows show of the reservoir against a baseline, in words."""

from dataclasses import dataclass

from reservoir.column import RAW
from reservoir_pipelines.output import Record, count_text, difference_text


@dataclass(frozen=True, kw_only=True)
class Against(Record):
    """What the test rows show of the best readout of the reservoir against a baseline on the same rows.

    Parameters
    ----------
    name : str
        The baseline.
    verdict : {"adds", "adds nothing", "no difference", "cannot be judged"}
        ``adds`` if the reservoir is better with p < .05, ``adds nothing`` if the baseline is, ``no difference`` if
        neither is. Fewer than six rows or groups cannot be judged, because no outcome would give p < .05.
    metric : str
        The metric of ``difference``.
    difference : float
        Test score of the reservoir minus that of the baseline.
    p_value : float, optional
        The p-value of the hypothesis that both are equally good: McNemar's mid-p, or for regression, several labels
        and groups the share of sign flips of the paired differences. None for fewer than three rows or groups.
    rows, groups : int
        Number of test rows, and of their groups (0 without groups).
    """

    name: str
    verdict: str
    metric: str
    difference: float
    p_value: float | None
    rows: int
    groups: int

    @property
    def sentence(self) -> str:
        """The verdict in words, with its evidence."""
        name = "the raw input" if self.name == RAW.name else self.name
        rows = count_text(self.rows, "test row")
        by = difference_text(abs(self.difference), self.metric)
        over = f"{rows} in {count_text(self.groups, 'group')}" if self.groups else rows
        if self.verdict == "cannot be judged":
            return f"Whether this reservoir adds to {name} cannot be judged on {over}."
        evidence = f"on {over} (p = {self.p_value:.2g})"
        if self.verdict == "no difference":
            return f"No difference can be seen between this reservoir and {name} {evidence}."
        if self.verdict == "adds":
            return f"This reservoir adds {by} to {name} {evidence}."
        return f"This reservoir adds nothing to {name}: it is worse by {by} {evidence}."
