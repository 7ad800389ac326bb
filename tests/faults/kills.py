"""The stages that are disturbed: killed or failing at named steps, killed at any moment, or run twice at once."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from reservoir_cache import publish
from reservoir_pipelines.cli import run

from reservoir import plan
from tests.faults.rounds import Count, command, different, digests, ended, forked, import_all

BACKBONE = "gpt2:n_layer=1,n_embd=8,n_head=2,n_positions=64"
ROWS = 180
FEATURES = ("features/*/*/*/*.h5", "features/*/*/*/manifest.json")


@dataclass(frozen=True)
class Stage:
    """A command, the folder that it begins with, and the patterns of the files that it must leave as they ever are.

    ``mend`` are the commands after a kill; the command itself if there are none.
    """

    name: str
    command: tuple[object, ...]
    begins: Path
    leaves: tuple[str, ...]
    mend: tuple[tuple[object, ...], ...] = ()

    def fresh(self, root: Path) -> None:
        """Give the command a new copy of the folder that it begins with, at the path that it names."""
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.begins, root)

    def recover(self, root: Path, log: Path) -> str:
        """Run what a user would run next; return its output if that fails."""
        for arguments in self.mend or (self.command,):
            done = command(arguments, log)
            gone = self.name == "cache remove" and done.explained
            if not done.whole and not gone:
                return done.output.strip()[-300:] or f"status {done.status}"
        return ""

    def state(self, root: Path) -> dict[str, str]:
        """Return what is there of that which must be."""
        return digests(root, self.leaves)


def make_stages(folder: Path, root: Path, *, warm: bool) -> list[Stage]:
    """Write the data and return all stages, which work in ``root``; import here, if ``warm``, what they import."""
    plan.BLOCK_ROWS["cpu"] = 16
    data, text, log = folder / "waves.npz", folder / "words.txt", folder / "log"
    draw = np.random.default_rng(0)
    y = np.arange(ROWS) % 2
    x = np.sin(np.arange(12) * (1 + y[:, None])) + draw.normal(0, 0.3, (ROWS, 12))
    np.savez(data, x=x, y=y, split=np.repeat(["train", "valid", "test"], ROWS // 3))
    text.write_bytes(b" ".join(draw.choice([b"tide", b"moon", b"sand", b"gull"], 3000).tolist()))
    run, out, cpu = root / "run", root / "model", ("--device", "cpu", "--compute", "float32")
    model = ("--backbone", BACKBONE, "--init", "random", "--pool", "mean", "--patch", 3, "--input", "orthogonal", *cpu)
    extract = ("extract", data, "--cache", root, *model, "--layers")
    prepare = ("prepare", data, "--cache", root)
    some, more = (*extract, "embed"), (*extract, "embed,final")
    fit = ("fit", data, "--cache", root, "--out", root / "readout", "--device", "cpu", "--select", "valid")
    short = ("--backbone", BACKBONE, "--steps", 6, "--eval-every", 2, "--resume", *cpu)
    train = ("train", data, "--cache", root, "--init", "random", *short, "--run", run, "--batch", 4, "--patch", 3)
    pretrain = ("pretrain", text, "--out", out, *short, "--context", 16, "--short", 8, "--batch-tokens", 64)

    empty, prepared, embedded, extracted, broken = (folder / n for n in ("empty", "prepared", "some", "more", "broken"))
    empty.mkdir()
    for before, after, arguments in (
        (empty, prepared, prepare),
        (prepared, embedded, some),
        (embedded, extracted, more),
    ):
        _kept(arguments, before, root, after, log)
    shutil.copytree(extracted, broken)
    _break(broken)
    entry = next(extracted.glob("features/*/*"))
    repair, remove = ("cache", "repair", entry.name, "--cache", root), ("cache", "remove", entry.name, "--cache", root)
    weights = ("run/checkpoints/*/*.safetensors",)
    stages = [
        Stage("prepare", prepare, empty, ("prepared/*/*/**/*",)),
        Stage("extract", more, prepared, FEATURES),
        Stage("adding columns", more, embedded, FEATURES),
        Stage("fit", fit, extracted, (*FEATURES, "readout/*.safetensors", "readout/results.csv")),
        Stage("train", train, prepared, (*weights, "run/curve.png")),
        Stage("pretrain", pretrain, empty, ("model/model.safetensors", "model/config.json")),
        Stage("cache remove", remove, extracted, ("features/*/*/**/*",)),
        Stage("cache repair", repair, broken, FEATURES, (repair, more)),
    ]
    for stage in stages[3:6] if warm else ():
        stage.fresh(root)
        import_all(stage.command, log)
    return stages


def _kept(arguments: Sequence[object], before: Path, root: Path, after: Path, log: Path) -> None:
    """Run a command in ``root``, begun as ``before``, and keep the folder as ``after``."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(before, root)
    done = command(arguments, log)
    if not done.whole:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.output}")
    shutil.copytree(root, after)


def _break(root: Path) -> None:
    """Damage a shard, take another away, and a manifest."""
    split = next(root.glob("features/*/*/train"))
    shards = sorted(split.glob("0*.h5"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1] + b"?")
    shards[1].unlink()
    (split.parent / "valid" / "manifest.json").unlink()


def kill(stage: Stage, root: Path, log: Path, number: int, seed: int) -> Iterator[Count]:
    """Kill a stage ``number`` times, half at named steps and half at random; the next command must complete it."""
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
        held = stage.name == "train" and any("another process" in each.output for each in both)
        whole = all(each.whole for each in both) or (held and any(each.whole for each in both))
        wrong = different(stage.state(root), wanted) or ("" if whole else " | ".join(e.output[-200:] for e in both))
        count.add(not wrong, f"round {number}: {wrong}")
    return count


def steps_of(stage: Stage, log: Path, draw: random.Random) -> list[str]:
    """Return every visit to a step that an undisturbed run makes, each step's first visit before all others."""
    work = lambda: run([str(a) for a in stage.command]) or print(json.dumps(publish._reached))  # noqa: E731
    output = ended(forked(work, log, fault="none"), log, 0).output
    reached: dict[str, int] = json.loads(output.splitlines()[-1])
    later = [f"{step}:{visit}" for step, visits in reached.items() for visit in range(2, visits + 1)]
    return [f"{step}:1" for step in reached] + draw.sample(later, len(later))


def _round(
    stage: Stage, root: Path, log: Path, wanted: dict[str, str], count: Count, fault: str, after: float | None
) -> None:
    stage.fresh(root)
    killed = command(stage.command, log, fault=fault, kill_after=after)
    if not killed.killed:  # it came to its end before
        return
    output = stage.recover(root, log)
    wrong = output or different(stage.state(root), wanted)
    count.add(not wrong, f"{fault or f'after {after:.3f} s'}: {wrong}")


def failing(stage: Stage, root: Path, log: Path, error: str, number: int, seed: int) -> Count:
    """Have a stage's disk fail at named steps: it prints a message, and the next command makes all whole."""
    stage.fresh(root)
    command(stage.command, log)
    stage.recover(root, log)
    wanted, count = stage.state(root), Count(f"{error} in {stage.name}")
    stage.fresh(root)
    for fault in steps_of(stage, log, random.Random(seed))[:number]:
        stage.fresh(root)
        done = command(stage.command, log, fault=f"{fault}:{error}")
        wrong = "" if done.explained else done.output[-400:] or f"status {done.status}"
        wrong = wrong or stage.recover(root, log) or different(stage.state(root), wanted)
        count.add(not wrong, f"{fault}: {wrong}")
    return count
