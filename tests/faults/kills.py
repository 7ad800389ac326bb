"""Disturbances of stages: kills and failures at named steps, kills at random moments, and two runs at once."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from reservoir_cache import reader

from tests.faults.power_loss import Stage
from tests.faults.rounds import Count, Ended, ended, forked, inject


class Disturbed:
    """A stage, its initial folder, and the result of an undisturbed run."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.name, self._stage = stage.name, stage
        self.root, self._log, self._begins = folder / "root", folder / "log", folder / "begins"
        self.root.mkdir(parents=True)
        stage.prepare(self.root)
        shutil.copytree(self.root, self._begins)
        started = time.perf_counter()
        self._run()  # in this process, whose imports forked processes share
        self.seconds = time.perf_counter() - started
        self._wanted = self._outcome()

    def fresh(self) -> None:
        """Restore the initial folder, at the path that the stage uses."""
        shutil.rmtree(self.root)
        shutil.copytree(self._begins, self.root)

    def start(self, fault: str = "", log: Path | None = None) -> int:
        """Start the stage in a forked process; return the process ID."""

        def work() -> None:
            inject(fault, self.root)
            self._run()

        return forked(work, log or self._log)

    def attempt(self, fault: str = "", kill_after: float | None = None) -> Ended:
        return ended(self.start(fault), self._log, kill_after)

    def both(self) -> list[Ended]:
        logs = [self._log.with_suffix(f".{n}") for n in "ab"]
        return [ended(pid, log) for pid, log in [(self.start(log=log), log) for log in logs]]

    def wrong(self) -> str:
        """Run the stage again if its result is incomplete; return a description of remaining faults, or ""."""
        if self._outcome() == self._wanted:
            return ""
        done = self.attempt()
        if not done.whole:
            return done.output.strip()[-300:] or f"status {done.status}"
        return "" if (found := self._outcome()) == self._wanted else found[:300]

    def steps(self, draw: random.Random) -> list[str]:
        """Return every change of the folder in an undisturbed run, beginning with the first of each kind."""

        def work() -> None:
            seen = inject("", self.root)
            self._run()
            print("\n", json.dumps(seen))

        self.fresh()
        output = ended(forked(work, self._log), self._log).output
        reached: dict[str, int] = json.loads(output.splitlines()[-1])
        later = [f"{step}:{visit}" for step, visits in reached.items() for visit in range(2, visits + 1)]
        return [f"{step}:1" for step in reached] + draw.sample(later, len(later))

    def _run(self) -> None:
        for step in self._stage.steps:
            step.run(self.root)

    def _outcome(self) -> str:
        """Return what a reader finds, and the names of leftover temporary files."""
        reader._checked.clear()  # as in a new process
        left = [str(path) for path in self.root.rglob(".*") if path.suffix == ".tmp"]
        try:
            return repr((self._stage.outcome(self.root), left))
        except Exception as error:
            return repr((error, left))


def kill(stage: Disturbed, number: int, seed: int) -> Iterator[Count]:
    """Kill a stage ``number`` times, half at named steps and half at random; the next command must complete it."""
    at_step, anywhere = (Count(f"kill -9 of {stage.name}, at {where}") for where in ("a named step", "random"))
    draw, seconds = random.Random(seed), stage.seconds
    for fault in stage.steps(draw)[: number // 2]:
        disturb(stage, at_step, fault)
    while anywhere.tried < number - at_step.tried:
        # If the machine is now less busy, the stage ends before the latest moments.
        seconds *= 0.97
        disturb(stage, anywhere, "", draw.uniform(0, seconds))
    yield at_step
    yield anywhere


def disturb(stage: Disturbed, count: Count, fault: str, after: float | None = None) -> None:
    """Kill a stage at a named step, or after some seconds, and count whether the next command completes it."""
    stage.fresh()
    if stage.attempt(fault, after).killed:  # false if it ended first
        wrong = stage.wrong()
        count.add(not wrong, f"{fault or f'after {after:.3f} s'}: {wrong}")


def together(stage: Disturbed, rounds: int) -> Count:
    """Run a stage in two processes at once; the result must equal that of one process."""
    count = Count(f"two processes at once: {stage.name}")
    for number in range(rounds):
        stage.fresh()
        done = stage.both()
        wrong = stage.wrong() or " | ".join(each.output[-200:] for each in done if not each.whole)
        count.add(not wrong, f"round {number}: {wrong}")
    return count


def failing(stage: Disturbed, error: str, number: int, seed: int) -> Count:
    """Let a stage's disk fail at named steps: the stage must print a message, and the next command must complete it."""
    count = Count(f"{error} in {stage.name}")
    for fault in stage.steps(random.Random(seed))[:number]:
        stage.fresh()
        done = stage.attempt(f"{fault}:{error}")
        wrong = ("" if done.explained else done.output[-400:] or f"status {done.status}") or stage.wrong()
        count.add(not wrong, f"{fault}: {wrong}")
    return count
