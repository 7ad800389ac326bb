"""All that is measured on a GPU, in one program that can be stopped and continued.

    python benchmarks/gpu_evidence.py --out evidence [--data DIR] [--weights DIR] [--minutes 28]
    python benchmarks/gpu_evidence.py --out evidence --write docs/gpu.md      # the tables, from evidence/results.jsonl
    python benchmarks/gpu_evidence.py --out trial --scale smoke               # a dry run of seconds, on a CPU

The stages run in the order of their value, each in a process of its own with a time limit. Each measurement is
a line of ``results.jsonl``. A second call leaves out the stages that have finished, and the measurements that exist.
Nothing is read from a network. ``--data`` has the files of MNIST, CIFAR-10 and ListOps, and ``--weights`` the folder of
a pretrained model; the stages that need one of them are left out without it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_fit import fitting
from gpu_stages import (
    SCALES,
    Context,
    Evidence,
    ceilings,
    extraction,
    headline,
    precisions,
    pretrained,
    science,
    tests,
    training,
)
from gpu_tables import write_tables
from train import Form

from reservoir.devices import choose_device


@dataclass(frozen=True)
class Stage:
    """A stage, its time limit in seconds, and which folders it needs."""

    run: Callable[[Context], None]
    limit: float
    needs_data: bool = False
    needs_weights: bool = False


STAGES = {
    "ceilings": Stage(ceilings, 60),
    "tests": Stage(tests, 300),
    "precisions": Stage(precisions, 60),
    "extract": Stage(extraction, 480),
    "training": Stage(training, 180),
    "headline": Stage(headline, 90, needs_data=True),
    "fit": Stage(fitting, 240),
    "whole": Stage(
        partial(training, forms=(Form.WHOLE, Form.WHOLE_CAPTURED), shapes=((64, 8), (64, 256))), 240
    ),
    "bits": Stage(partial(science, tasks=("bit-memory",)), 400),
    "science": Stage(partial(science, tasks=("listops", "mnist")), 500, needs_data=True),
    "cifar10": Stage(partial(science, tasks=("cifar10",)), 900, needs_data=True),
    "pretrained": Stage(pretrained, 600, needs_data=True, needs_weights=True),
}
SMOKE_STAGES = {
    **{name: STAGES[name] for name in ("ceilings", "tests", "precisions", "extract", "training", "fit")},
    "headline": Stage(headline, 90),
    "science": Stage(partial(science, tasks=("digits",)), 90),
}


def run_stages(arguments: argparse.Namespace, evidence: Evidence) -> None:
    """Run each stage that has not finished in a process of its own, until the time is over."""
    deadline = time.monotonic() + 60 * arguments.minutes
    stages = SMOKE_STAGES if arguments.scale == "smoke" else STAGES
    for name, stage in stages.items():
        is_selected = not arguments.only or name in arguments.only.split(",")
        is_finished = any(r["stage"] == name and r["measurement"] == "finished" for r in evidence.records())
        lacks = (stage.needs_data and not arguments.data) or (stage.needs_weights and not arguments.weights)
        left = deadline - time.monotonic()
        if not is_selected or lacks or left <= 0 or (is_finished and not arguments.again):
            continue
        command = [
            sys.executable,
            __file__,
            "--stage",
            name,
            "--out",
            arguments.out,
            "--scale",
            arguments.scale,
        ]
        for option in ("data", "weights"):
            command += [f"--{option}", value] if (value := getattr(arguments, option)) else []
        started = time.monotonic()
        state = run_limited(command, min(stage.limit, left))
        evidence.add(name, state, seconds=round(time.monotonic() - started, 1))


def run_limited(command: Sequence[str], limit: float) -> str:
    """Run a command and what it starts for at most ``limit`` seconds; return how it ended."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return "finished" if process.wait(limit) == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a training run continues from its last checkpoint later
        process.wait()
        return "reached its time limit"


def main() -> None:
    """Run the stages, one stage, or write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--out", required=True, help="folder of results.jsonl; a second call continues there"
    )
    parser.add_argument("--scale", choices=tuple(SCALES), default="full")
    parser.add_argument("--minutes", type=float, default=28)
    parser.add_argument("--data", help="folder of the files of MNIST, CIFAR-10 and ListOps")
    parser.add_argument("--weights", help="folder of a pretrained model")
    parser.add_argument("--only", help="only these stages, comma-separated")
    parser.add_argument("--again", action="store_true", help="run stages that have finished, too")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="page into which the tables are written; nothing is run")
    arguments = parser.parse_args()
    evidence = Evidence(Path(arguments.out))
    if arguments.write:
        write_tables(arguments.write, evidence.records())
    elif arguments.stage:
        stages = SMOKE_STAGES if arguments.scale == "smoke" else STAGES
        folders = {
            name: Path(value) if (value := getattr(arguments, name)) else None
            for name in ("data", "weights")
        }
        stages[arguments.stage].run(
            Context(SCALES[arguments.scale], evidence, choose_device("auto"), **folders)
        )
    else:
        run_stages(arguments, evidence)


if __name__ == "__main__":
    main()
