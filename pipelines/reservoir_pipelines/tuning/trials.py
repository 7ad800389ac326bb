"""What was tried: one record for each candidate and number of rows, kept so that a search can be continued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reservoir_pipelines.files import checked_line, read_lines, replace_file
from reservoir_pipelines.output import Record


@dataclass(frozen=True, kw_only=True)
class ReservoirTrial(Record):
    """A candidate that was tried, with its best columns and how they predict held-out rows.

    Parameters
    ----------
    number : int
        Of the candidate; 0 is the default.
    limit : int, optional
        Rows of each split at most; None if all were used.
    title, entry : str
        What is special about the candidate, and its entry in the cache.
    columns : tuple of str
        Its best columns.
    metric : str
        What ``score`` is: accuracy or R².
    score, loss, alpha : float
        Held-out score, squared error, and the penalty that was best.
    samples : int
        Rows, or tokens, of train and valid that were used.
    seconds, judging : float
        Time in all, and the part after the columns were extracted.
    """

    number: int
    limit: int | None
    title: str
    entry: str
    columns: tuple[str, ...]
    metric: str
    score: float
    loss: float
    alpha: float
    samples: int
    seconds: float
    judging: float

    @property
    def merit(self) -> tuple[float, float]:
        """The rank: of equal scores the smaller loss is better."""
        return self.score, -self.loss


class TrialFile:
    """The trials of a search in a file of checked lines, which is replaced as a whole with every trial."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trials.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [line for _, line in read_lines(self.path) if line]
        trials = [ReservoirTrial(**{**line, "columns": tuple(line["columns"])}) for line in lines]
        self._trials = {(trial.number, trial.limit): trial for trial in trials}

    def __iter__(self) -> Iterator[ReservoirTrial]:
        return iter(self._trials.values())

    def get(self, number: int, limit: int | None) -> ReservoirTrial | None:
        """Return the trial of a candidate on so many rows, if it has ended."""
        return self._trials.get((number, limit))

    def add(self, trial: ReservoirTrial) -> None:
        """Keep a trial; it is on disk when this returns."""
        self._trials[trial.number, trial.limit] = trial
        text = "".join(checked_line(each.to_dict()) for each in self)
        replace_file(self.path, lambda part: part.write_text(text))
