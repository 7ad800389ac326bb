"""What a machine does to a run: disks that are full, fail or are read-only, folders that go, clocks that turn back."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import CacheError, FeatureStore, last_entry, list_entries, reader
from safetensors.numpy import load_file, save_file

from tests.faults.kills import steps_of
from tests.faults.rounds import Count, command, different, ended, forked
from tests.faults.stages import BACKBONE, Stage

NOBODY = 65534


def failing(stage: Stage, root: Path, log: Path, error: str, number: int, seed: int) -> Count:
    """Have a stage's disk fail at named steps: it says so in a line, and the next command makes all whole."""
    stage.fresh(root)
    command(stage.command, log)
    stage.recover(root, log)
    wanted, count = stage.state(root), Count(f"{error} in {stage.name}")
    stage.fresh(root)
    for fault in steps_of(stage, log, random.Random(seed))[:number]:
        stage.fresh(root)
        _said(stage, root, log, wanted, count, fault, fault=f"{fault}:{error}")
    return count


def full(stage: Stage, root: Path, log: Path, number: int) -> Count:
    """Run a stage on disks of some sizes that it does not fit on (needs the right to mount one)."""
    count, sizes = Count(f"a full disk (tmpfs) in {stage.name}"), np.linspace(8, 160, number).astype(int)
    stage.fresh(root)
    command(stage.command, log)
    stage.recover(root, log)
    wanted = stage.state(root)
    for size in sizes if os.geteuid() == 0 else ():
        shutil.rmtree(root)
        root.mkdir()
        begun = sum(path.stat().st_size + 4096 for path in stage.begins.rglob("*")) // 1024
        mounted = ["mount", "-t", "tmpfs", "-o", f"size={begun + size}k", "tmpfs", str(root)]
        if subprocess.run(mounted, capture_output=True, check=False).returncode:
            break
        try:
            shutil.copytree(stage.begins, root, dirs_exist_ok=True)
            more = lambda: subprocess.run(["mount", "-o", "remount,size=100m", str(root)], check=True)  # noqa: E731
            _said(stage, root, log, wanted, count, f"{size} kB", then=more)
        finally:
            subprocess.run(["umount", str(root)], check=True)
    return count


def read_only(stage: Stage, root: Path, log: Path, rounds: int) -> Count:
    """Run a stage as a user who may write nothing below its root."""
    count = Count(f"read-only folder in {stage.name}")
    for number in range(rounds if os.geteuid() == 0 else 0):
        stage.fresh(root)
        before = stage.state(root)
        done = command(stage.command, log, before=lambda: os.setuid(NOBODY))
        wrong = different(stage.state(root), before) or ("" if done.said_so and done.status else done.said[-300:])
        count.add(not wrong, f"round {number}: {wrong}")
    return count


def removed(stage: Stage, root: Path, log: Path, rounds: int, seed: int) -> Count:
    """Take a stage's whole root away while it works."""
    stage.fresh(root)
    seconds = command(stage.command, log).seconds
    stage.recover(root, log)
    wanted, count, draw = stage.state(root), Count(f"folder removed during {stage.name}"), random.Random(seed)
    for number in range(rounds):
        stage.fresh(root)

        def take_away() -> None:
            time.sleep(draw.uniform(0, seconds))
            shutil.rmtree(root, ignore_errors=True)

        _said(stage, root, log, wanted, count, f"round {number}", meanwhile=take_away, then=lambda: stage.fresh(root))
    return count


def _said(
    stage: Stage,
    root: Path,
    log: Path,
    wanted: dict[str, str],
    count: Count,
    where: str,
    *,
    fault: str = "",
    meanwhile: Callable[[], object] | None = None,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Count a run that may fail in words, after which the same command makes all whole."""
    done = command(stage.command, log, fault=fault, meanwhile=meanwhile)
    then()
    wrong = "" if done.said_so else done.said[-400:] or f"status {done.status}"
    wrong = wrong or stage.recover(root, log) or different(stage.state(root), wanted)
    count.add(not wrong, f"{where}: {wrong}")


def spoiled(root: Path, number: int, seed: int) -> Iterator[Count]:
    """Cut shards off, and exchange them for each other."""
    entry, draw = next(root.glob("features/*/*")), random.Random(seed)
    shards = sorted(entry.glob("t*/0*.h5"))
    cut, swapped = Count("truncated shards"), Count("swapped shards")
    for _ in range(number):
        one, other = draw.sample(shards, 2)
        data = one.read_bytes(), other.read_bytes()
        one.write_bytes(data[0][: draw.randrange(len(data[0]))])
        cut.add(_refused(entry), one.name)
        one.write_bytes(data[1])
        other.write_bytes(data[0])
        swapped.add(_refused(entry) or data[0] == data[1], f"{one.name} and {other.name}")
        one.write_bytes(data[0])
        other.write_bytes(data[1])
    yield cut
    yield swapped


def _refused(entry: Path) -> bool:
    reader._checked.clear()
    store = FeatureStore(entry)
    try:
        for split in store.splits:
            for column in store[split].columns:
                store[split].read(column)
    except CacheError:
        return True
    return False


def clock(stage: Stage, root: Path, log: Path, rounds: int) -> Count:
    """Set the times of all files to another century; what is extracted last is still the last."""
    count = Count("clock set back")
    for number in range(rounds):
        stage.fresh(root)
        command(stage.command, log)
        wanted = stage.state(root)
        for path in root.rglob("*"):
            os.utime(path, ((0, 0), (4e9, 4e9))[number % 2])
        [first] = list_entries(root)
        task, wrong = str(first.spec.task["name"]), ""
        for more, other in (("--seed", 1), True), ((), False):
            done, last = command([*stage.command, *more], log), last_entry(root, task)
            if not done.whole or last is None or (last.path != first.path) != other:
                wrong = f"{last and last.path.name} is the last {done.said[-200:]}"
        wrong = wrong or different({k: v for k, v in stage.state(root).items() if first.path.name in k}, wanted)
        count.add(not wrong, f"round {number}: {wrong}")
    return count


def overflow(stage: Stage, root: Path, log: Path, number: int, seed: int) -> Count:
    """Plant a weight that overflows what is stored: refused with its column and row, or as stored in float32."""
    count, draw, folder = Count("planted weights that overflow"), np.random.default_rng(seed), log.parent / "planted"
    if not ended(forked(lambda: _save_model(folder), log), log, 0).whole:
        raise RuntimeError(log.read_text())
    whole = load_file(folder / "model.safetensors")
    settings = {"--backbone": folder, "--init": "pretrained"}
    plain = list(stage.command)
    for name, value in settings.items():
        plain[plain.index(name) + 1] = value
    for _ in range(number):
        tensors = {name: array.copy() for name, array in whole.items()}
        name = str(draw.choice(sorted(tensors)))
        value = float(draw.choice([1e5, 1e6, 3e38, np.inf, -np.inf, np.nan]))
        tensors[name].reshape(-1)[int(draw.integers(tensors[name].size))] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        stage.fresh(root)
        done = command([*plain, "--store", "float16"], log)
        if done.whole:
            exact = command([*plain, "--store", "float32"], log)
            sound = exact.whole and _alike(list_entries(root))
        else:
            named = (
                all(word in done.said for word in ("column", "row", "channel"))
                or f"weight {name.removeprefix('transformer.')} " in done.said
            )
            sound = done.status == 2 and named
        count.add(bool(sound), f"{name} = {value}: {done.said[-300:]}")
    return count


def _save_model(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {"vocab_size": 30}
    for part in BACKBONE.partition(":")[2].split(","):
        name, value = part.split("=")
        settings[name] = int(value)
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**settings)).save_pretrained(folder)


def _alike(entries: list) -> bool:
    one, other = (FeatureStore(entry)["train"] for entry in entries)
    for column in one.columns:
        a, b = one.read(column), other.read(column)
        if not (np.isfinite(a).all() and np.abs(a - b).max() <= 1e-3 * max(np.ptp(b, axis=0).max(), 1e-3)):
            return False
    return True
