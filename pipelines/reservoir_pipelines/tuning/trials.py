"""What has been tried: a line of JSON per trial, kept so that a search that was stopped goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reservoir_pipelines.files import checked_line, read_lines, replace_file
from reservoir_pipelines.output import Record

FILE = "trials.jsonl"


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """A reservoir, by the number of its candidate, and how its best columns do on held-out rows."""

    number: int
    limit: int | None  # rows of a split that it saw at most
    title: str
    entry: str
    columns: tuple[str, ...]
    metric: str
    score: float
    loss: float
    alpha: float
    samples: int
    work: float
    seconds: float
    judging: float  # the part of these seconds after the columns were extracted
    spent: float  # of the budget: less than these seconds where other trials ran beside

    @property
    def merit(self) -> tuple[float, float]:
        """The rank: of equal scores the smaller loss."""
        return self.score, -self.loss


class Trials:
    """The trials of one search, in a file that is whole or as it was, whenever the process is killed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        lines = [_from_json(line) for _, line in read_lines(self.path) if line]
        self._found = {(trial.number, trial.limit): trial for trial in lines}

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._found.values())

    def seconds(self) -> float:
        """Return what all trials have taken of the budget."""
        return sum(trial.spent for trial in self)

    def get(self, number: int, limit: int | None) -> Trial | None:
        """Return the trial of a candidate on so many rows, if it has ended."""
        return self._found.get((number, limit))

    def add(self, trial: Trial) -> None:
        """Keep a trial, on disk when this returns."""
        self._found[trial.number, trial.limit] = trial
        text = "".join(checked_line(each.to_dict()) for each in self)
        replace_file(self.path, lambda part: part.write_text(text))


def _from_json(values: Mapping[str, Any]) -> Trial:
    found = Trial(**values)
    return replace(found, columns=tuple(found.columns))
