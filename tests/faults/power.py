"""Power loss in the campaign: crash states of every stage that publishes, and every fsync removed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.power_loss import Replayer, Stage, record
from tests.faults.rounds import Count


def replay(stages: Sequence[Stage], folder: Path, most: int, recoveries: int = 10) -> Iterator[Count]:
    """Open what a power loss may leave of each stage; then remove each fsync, which some stage must notice.

    ``most`` bounds the states of each moment, and ``recoveries`` those that the same command is run on again.
    """
    removed, noticed = set[str](), set[str]()
    for number, stage in enumerate(stages):
        work = folder / f"power-{number}"
        work.mkdir(parents=True)
        trace = record(stage, work / "stage")
        replayer = Replayer(stage, work)
        found = replayer.replay(trace, most=most, recoveries=recoveries)
        yield Count(f"power loss in {stage.name}", found.states, found.wrong)
        removed.update(trace.sites())
        for site in trace.sites():
            if site not in noticed and replayer.replay(trace.without(site), most=most, stop=True).wrong:
                noticed.add(site)
    yield Count("fsync removed, and noticed by the replay", len(removed), sorted(removed - noticed))
