"""The stages that are disturbed: small commands, what they begin with, and what they must leave."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir import plan
from tests.faults.rounds import command, digests, import_all

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
        """Run what a user would run next; return what it says if that fails."""
        for arguments in self.mend or (self.command,):
            done = command(arguments, log)
            gone = self.name == "cache remove" and done.said_so
            if not done.whole and not gone:
                return done.said.strip()[-300:] or f"status {done.status}"
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
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.said}")
    shutil.copytree(root, after)


def _break(root: Path) -> None:
    """Damage a shard, take another away, and a manifest."""
    split = next(root.glob("features/*/*/train"))
    shards = sorted(split.glob("0*.h5"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1] + b"?")
    shards[1].unlink()
    (split.parent / "valid" / "manifest.json").unlink()
