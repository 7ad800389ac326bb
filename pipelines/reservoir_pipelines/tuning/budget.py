"""The time that a search may take, and what its next step will cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

CAUTION = 1.2  # of a cost that has been seen: the machine's load varies
UNKNOWN = 3.0  # of a backbone that has not been tried, beside the slowest that has


@dataclass
class Budget:
    """Seconds in all, of which ``spent`` were used by earlier runs of the same search."""

    total: float
    spent: float = 0.0
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.total - self.spent - (self.clock() - self.started)

    def allows(self, seconds: float) -> bool:
        """Return whether something that takes so long ends in time."""
        return seconds <= self.left


@dataclass
class Costs:
    """Seconds per piece of work of each backbone, as trials have shown them."""

    seen: dict[str, list[float]] = field(default_factory=dict)

    def observe(self, backbone: str, work: float, seconds: float) -> None:
        """Take in what a trial took."""
        self.seen.setdefault(backbone, []).append(seconds / work)

    def predict(self, backbone: str, work: float) -> float:
        """Return the seconds that a trial will take at most, by the slowest of the last ones of its backbone."""
        if rates := self.seen.get(backbone):
            return CAUTION * work * max(rates[-5:])
        return UNKNOWN * work * max((max(rates) for rates in self.seen.values()), default=0.0)
