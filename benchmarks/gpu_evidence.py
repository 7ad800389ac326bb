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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_stages import (
    SCALES,
    Context,
    Evidence,
    ceilings,
    extraction,
    fitting,
    headline,
    precisions,
    pretrained,
    science,
    tests,
    training,
)
from train import Form

from reservoir.devices import choose_device

# Dense bfloat16 operations per second, from NVIDIA's data sheets.
NOMINAL = {"H100": 989e12, "H200": 989e12}
FINISHED, FAILED, TOO_LONG = ENDS = ("finished", "failed", "reached its time limit")  # how a stage may end
BEGIN, END = "<!-- tables of benchmarks/gpu_evidence.py -->", "<!-- end of these tables -->"

Records = Mapping[str, Mapping[str, Any]]  # by the name of the measurement


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
        is_finished = any(r["stage"] == name and r["measurement"] == FINISHED for r in evidence.records())
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
        return FINISHED if process.wait(limit) == 0 else FAILED
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a training run continues from its last checkpoint later
        process.wait()
        return TOO_LONG


@dataclass(frozen=True)
class Peaks:
    """The bfloat16 operations per second of a card: those of a large product, and those of its data sheet."""

    measured: float | None
    nominal: float | None

    def shares(self, flops: float) -> list[str]:
        """Return operations per second as shares of both peaks; empty where a peak is not known."""
        return [f"{flops / peak:.1%}" if peak else "" for peak in (self.measured, self.nominal)]


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page, in Markdown; of a measurement that was repeated, the last one."""
    of_stage: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        of_stage.setdefault(record["stage"], {})[record["measurement"]] = record
    ceilings = of_stage.get("ceilings", {})
    card = ceilings.get("environment", {}).get("card", "an unknown card")
    peaks = Peaks(
        measured=ceilings.get("product of torch.bfloat16", {}).get("per_second"),
        nominal=next((peak for name, peak in NOMINAL.items() if name in card), None),
    )
    extractions = of_stage.get("extract", {})
    shares = ["of measured peak", "of nominal peak"]
    of_extraction = ["extraction", "cache", "rows/s", "MB/s", "seconds", "model alone", "ratio", *shares]
    parts = [
        f"Measured on: {card}.",
        table(["ceiling", "operations or bytes per second"], _ceilings(ceilings)),
        table(
            ["precision", "rows/s", "difference from float32, standard deviations"],
            _precisions(of_stage.get("precisions", {})),
        ),
        table(of_extraction, _extractions(extractions, peaks)),
        table(["one batch of", "milliseconds by kind of operation"], _profiles(extractions)),
        table(
            ["training step", "products", "steps/s", *shares],
            _training(of_stage.get("training", {}), peaks),
        ),
        table(["step of a fit", "seconds", "MB/s"], _fit_steps(of_stage.get("fit", {}))),
        table(
            ["headline row", "prepare, s", "extract, s", "fit, s", "test accuracy"],
            _headline(of_stage.get("headline", {})),
        ),
        table(["goal", "measured", "goal"], _goals(of_stage, peaks)),
        table(["training run", "minutes", "test score"], _runs(of_stage.get("science", {}))),
    ]
    return "\n\n".join(part for part in parts if part)


def _ceilings(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "per_second" in record:
            yield [name, f"{record['per_second']:.3g}"]


def _precisions(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "deviation" in record:
            yield [name, f"{record['rows_per_second']:,.0f}", f"{record['deviation']:.3f}"]


def _extractions(records: Records, peaks: Peaks) -> Iterator[list[str]]:
    for name, record in records.items():
        for place, speed in record.get("by_place", {}).items():
            rows, alone = speed["rows_per_second"], record["model_alone"]
            yield [
                name,
                "memory" if place == "/dev/shm" else "disk",
                f"{rows:,.0f}",
                f"{speed['bytes_per_second'] / 1e6:,.0f}",
                f"{speed['seconds']:.1f}",
                f"{alone:,.0f}",
                f"{rows / alone:.2f}",
                *peaks.shares(rows * record["flops_per_row"]),
            ]


def _profiles(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "profile" in record:
            by_kind = record["profile"]["by_kind"].items()
            yield [name, ", ".join(f"{kind} {milliseconds:.2f}" for kind, milliseconds in by_kind)]


def _training(records: Records, peaks: Peaks) -> Iterator[list[str]]:
    for name, record in records.items():
        if "steps_per_second" in record:
            speed = record["steps_per_second"]
            yield [name, record["compute"], f"{speed:.1f}", *peaks.shares(speed * record["flops_per_step"])]


def _fit_steps(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "seconds" in record and name not in ENDS:  # the record of how a stage ended has its time, too
            speed = f"{record['bytes_per_second'] / 1e6:,.0f}" if "bytes_per_second" in record else ""
            of_rows = f", {record['rows']:,} x {record['width']:,}" if "rows" in record else ""
            yield [name + of_rows, f"{record['seconds']:.2f}", speed]


def _goals(of_stage: Mapping[str, Records], peaks: Peaks) -> Iterator[list[str]]:
    """Yield the goals for an H200 with what was measured; an H100 is bound about 20% lower."""
    extractions, trainings = of_stage.get("extract", {}), of_stage.get("training", {})
    if record := extractions.get("all layers, 512 tokens"):
        share = peaks.shares(record["model_alone"] * record["flops_per_row"])[1]
        yield ["forward pass, 512 tokens, of nominal peak", share, "45%"]
    if record := extractions.get("all layers, 64 tokens"):
        rows = max(speed["rows_per_second"] for speed in record["by_place"].values())
        yield [
            "extract beside its model alone, 64 tokens, all layers",
            f"{rows / record['model_alone']:.2f}",
            "0.90",
        ]
    if record := extractions.get("2 columns, 64 tokens"):
        rows = max(speed["rows_per_second"] for speed in record["by_place"].values())
        yield ["2 columns of one block, 64 tokens, rows/s", f"{rows:,.0f}", "220,000"]
    best = [record for name, record in trainings.items() if name.startswith("64 tokens, 256 rows")]
    if best:
        flops = max(record["steps_per_second"] * record["flops_per_step"] for record in best)
        yield ["training, 64 tokens x 256 rows, of measured peak", peaks.shares(flops)[0], "55%"]
    of_eight = [record for name, record in trainings.items() if name.startswith("64 tokens, 8 rows")]
    if of_eight:
        yield [
            "training in batches of 8, steps/s",
            f"{max(r['steps_per_second'] for r in of_eight):,.0f}",
            "400",
        ]
    if record := of_stage.get("fit", {}).get("fit of embed/mean"):
        # In proportion, if the disk or the memory allowed fewer rows.
        seconds = record["seconds"] * 33 * 10**6 / record["rows"]
        yield [
            f"fit of 10^6 x {record['width']:,} x 33 columns, s, from one of {record['rows']:,} rows",
            f"{seconds:.0f}",
            "120",
        ]
    if record := of_stage.get("headline", {}).get("mnist"):
        yield ["headline row of MNIST, end to end, s", f"{sum(record['seconds'].values()):.1f}", "20"]


def _headline(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "test_score" in record:
            seconds = (f"{record['seconds'][stage]:.1f}" for stage in ("prepare", "extract", "fit"))
            yield [name, *seconds, f"{record['test_score']:.1%}"]


def _runs(records: Records) -> Iterator[list[str]]:
    for name, record in records.items():
        if "minutes" in record:
            yield [name, f"{record['minutes']:.1f}", f"{record['answer']['test_score']:.1%}"]


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a table in Markdown, or nothing without rows."""
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else ""


def write_tables(page: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace the tables between the two marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{tables(records)}\n\n{END}{after}")


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
