"""How much time the end of a search needs: joining, extracting what is missing, fitting and scoring."""

from __future__ import annotations

from statistics import median

from reservoir_pipelines.tuning.judge import KNOWN
from reservoir_pipelines.tuning.search import Search

START_UP = 4.0  # seconds of a fit whatever its size: libraries, pictures, files; or what the search needed to start
JUDGINGS = 6.0  # of a trial, that joining the finalists takes
FIT_JUDGINGS = 2.0  # of a trial, that fitting and scoring its columns takes
SHARE = 0.4  # of the budget that the end may take: beyond it fewer reservoirs are joined


class Reserve:
    """What the end costs, from what the trials took."""

    def __init__(self, search: Search, most: int, start_up: float) -> None:
        self._search, self._most, self._start_up = search, most, max(START_UP, start_up)

    def seconds(self) -> float:
        """Return the time of joining and of all that follows."""
        trials = list(self._search.trials)
        joining = JUDGINGS * median(trial.judging for trial in trials) if trials else 0.0
        return joining + self.final(self.joined())

    def joined(self) -> int:
        """Return how many reservoirs the budget allows to be joined."""
        most = self._most
        while most > 1 and self.final(most) > SHARE * self._search.budget.total:
            most -= 1
        return most

    def final(self, number: int) -> float:
        """Return the time of extracting what so many reservoirs lack, and of their fit."""
        trials, where = list(self._search.trials), self._search.where
        if not trials:
            return self._start_up
        limit = trials[-1].limit
        rows, known = sum(where.rows().values()), sum(where.rows(limit)[split] for split in KNOWN)
        missing = rows - known if limit is None else rows
        extracting = median(trial.seconds - trial.judging for trial in trials) * missing / known
        fitting = FIT_JUDGINGS * median(trial.judging for trial in trials) * rows / known
        return self._start_up + number * (extracting + fitting)
