"""kill -9 of every stage, at named steps of publishing and at any moment; and two processes at once."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

from reservoir_cache import publish
from reservoir_pipelines.cli import run

from tests.faults.rounds import Count, command, different, ended, forked
from tests.faults.stages import Stage


def kill(stage: Stage, root: Path, log: Path, number: int, seed: int) -> Iterator[Count]:
    """Kill a stage so often, half at named steps and half at random; a command after each must make all whole."""
    stage.fresh(root)
    seconds = command(stage.command, log).seconds
    stage.recover(root, log)
    wanted, draw = stage.state(root), random.Random(seed)
    at_step, anywhere = Count(f"kill -9 of {stage.name}, at a named step"), Count(f"kill -9 of {stage.name}, at random")
    stage.fresh(root)
    for fault in steps_of(stage, log, draw)[: number // 2]:
        _round(stage, root, log, wanted, at_step, fault, None)
    while anywhere.tried < number - at_step.tried:
        # Late moments fall behind the end where the machine is less busy than it was.
        seconds *= 0.97
        _round(stage, root, log, wanted, anywhere, "", draw.uniform(0, seconds))
    yield at_step
    yield anywhere


def together(stage: Stage, root: Path, log: Path, rounds: int) -> Count:
    """Run a stage in two processes at once; all must be as from one."""
    stage.fresh(root)
    command(stage.command, log)
    wanted, count = stage.state(root), Count(f"two processes at once: {stage.name}")
    for number in range(rounds):
        stage.fresh(root)
        started = time.perf_counter()
        logs = [log.with_suffix(f".{n}") for n in "ab"]
        pids = [forked(lambda: run([str(a) for a in stage.command]), each) for each in logs]
        both = [ended(pid, each, started) for pid, each in zip(pids, logs, strict=True)]
        held = stage.name == "train" and any("another process" in each.said for each in both)
        whole = all(each.whole for each in both) or (held and any(each.whole for each in both))
        wrong = different(stage.state(root), wanted) or ("" if whole else " | ".join(e.said[-200:] for e in both))
        count.add(not wrong, f"round {number}: {wrong}")
    return count


def steps_of(stage: Stage, log: Path, draw: random.Random) -> list[str]:
    """Return every visit to a step that an undisturbed run makes, each step's first visit before all others."""
    work = lambda: run([str(a) for a in stage.command]) or print(json.dumps(publish._reached))  # noqa: E731
    said = ended(forked(work, log, fault="none"), log, 0).said
    reached: dict[str, int] = json.loads(said.splitlines()[-1])
    later = [f"{step}:{visit}" for step, visits in reached.items() for visit in range(2, visits + 1)]
    return [f"{step}:1" for step in reached] + draw.sample(later, len(later))


def _round(
    stage: Stage, root: Path, log: Path, wanted: dict[str, str], count: Count, fault: str, after: float | None
) -> None:
    stage.fresh(root)
    killed = command(stage.command, log, fault=fault, kill_after=after)
    if not killed.killed:  # it came to its end before
        return
    said = stage.recover(root, log)
    wrong = said or different(stage.state(root), wanted)
    count.add(not wrong, f"{fault or f'after {after:.3f} s'}: {wrong}")
