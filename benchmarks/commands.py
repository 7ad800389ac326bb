"""Whole commands, each in a process of its own: until they answer, beside the plan, and by several processes.

    python benchmarks/commands.py startup [--repeats 5]
    python benchmarks/commands.py plan                # on an idle machine
    python benchmarks/commands.py plan --processor    # while other work runs: processor seconds of one thread
    python benchmarks/commands.py workers             # GPT-2 small, 64 tokens, 1, 2 and 4 processes
    python benchmarks/commands.py workers --rows 600 --backbone mini --pairs 1    # a test of under a minute
    python benchmarks/commands.py workers --namespaces 2 --pairs 0    # as root: dask workers in separate networks

*Start-up*: seconds until a command answers: usage mistakes, help, cached features, and predictions for five rows. The
table shows the shortest of the repeats, because the machine is shared, and which heavy modules were imported. The bare
imports at the end are the lower bound for everything that runs a model.

*Plan*: the estimate of ``reservoir plan`` compared with the time that the extraction of other rows takes. For each case
a sample of rows is written, ``plan --rows`` estimates the time for the number of rows of a second file, and that file
is then extracted. Each is a separate command. The goal is a ratio within 20% of 1.

*Workers*: extraction by several processes compared with one: the same bytes, and the speed. Every run is a separate
command on an empty cache, so start-up, loading the model and writing are included. Where processes have one thread
each, the shards have to be the same to the last byte. The efficiency is the time of one process with two threads over
that of two workers with one each, in runs that alternate (``--pairs``), as a median; it should be 0.9. With
``--namespaces`` the workers of a dask scheduler run in separate virtual networks, and one is killed with -9 during the
run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

EXTRACT = ["extract", "digits", "--limit", "100", "--layers", "final"]
RUN_AND_PRINT_IMPORTS = """
import sys
from reservoir_pipelines.cli import run
run(sys.argv[1:])
print(*[name for name in ("torch", "transformers") if name in sys.modules], file=sys.stderr)
"""

CASES = (  # backbone, tokens, rows
    ("mini", 64, 2000),
    ("gpt2:n_layer=2", 256, 160),
    ("gpt2:n_layer=6", 64, 400),
)
SAMPLE = 100
RUN = "import sys; from reservoir_pipelines.cli import run; sys.exit(run(sys.argv[1:]))"
PROCESSOR = "import time; time.perf_counter = time.monotonic = time.process_time; "

PORT = 28786


def startup(options: argparse.Namespace) -> None:
    """Print a table of the time until commands answer."""
    repeats = options.repeats
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RESERVOIR_CACHE"] = folder
        five = Path(folder) / "five.npz"
        np.savez(five, x=np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.float32))
        for command in (
            EXTRACT,
            ["fit", "digits", "--columns", "final/mean", "--out", f"{folder}/readout"],
        ):
            subprocess.run(
                [sys.executable, "-c", RUN_AND_PRINT_IMPORTS, *command], check=True, capture_output=True
            )
        print("| command | wall time | processor time | imports |\n|---|--:|--:|---|", flush=True)
        for arguments in (
            ["--help"],
            ["--version"],
            ["extract", "digits", "--depht", "3"],
            ["extract", "mnnist"],
            ["extract", "digits", "--backbone", "gtp2"],
            ["extract", "missing.csv"],
            EXTRACT,
            ["predict", f"{folder}/readout", str(five)],
        ):
            shown = " ".join(Path(word).name for word in arguments)
            show(f"reservoir {shown}", [sys.executable, "-c", RUN_AND_PRINT_IMPORTS, *arguments], repeats)
        for code in ("import torch", "from transformers import GPT2Model"):
            show(code, [sys.executable, "-c", code], repeats)


def show(title: str, command: list[str], repeats: int) -> None:
    """Measure the wall time and the processor time of a command; other programs disturb the latter less."""
    clock: list[float] = []
    processor: list[float] = []
    errors = ""
    for _ in range(repeats):
        before, started = child_processor_seconds(), time.perf_counter()
        errors = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        clock.append(time.perf_counter() - started)
        processor.append(child_processor_seconds() - before)
    imported = errors.splitlines()[-1] if errors.splitlines() else ""
    print(f"| `{title}` | {min(clock):.2f} s | {min(processor):.2f} s | {imported} |", flush=True)


def write_rows(path: Path, rows: int, tokens: int, seed: int = 0) -> Path:
    """Write random sequences with labels."""
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.standard_normal((rows, tokens, 8), np.float32), y=rng.integers(0, 4, rows))
    return path


def ask(command: list[str], folder: Path, *, processor: bool) -> dict[str, Any]:
    """Run a command on an empty cache and return what it prints as JSON."""
    code = [sys.executable, "-c", (PROCESSOR if processor else "") + RUN]
    environment = (
        os.environ | {"RESERVOIR_CACHE": str(folder)} | ({"OMP_NUM_THREADS": "1"} if processor else {})
    )
    process = subprocess.run(
        [*code, *command, "--json"], check=True, stdout=subprocess.PIPE, env=environment
    )
    return json.loads(process.stdout)


def plan(options: argparse.Namespace) -> None:
    """Measure the estimates of ``plan`` and print one JSON object."""
    cases = []
    for number in options.case or range(len(CASES)):
        backbone, tokens, rows = CASES[number]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            settings = [
                "--backbone",
                backbone,
                "--init",
                "random",
                "--layers",
                "all",
                "--pool",
                "last,mean",
            ]
            settings += ["--device", "cpu"]
            sample, whole = (
                str(write_rows(folder / f"{n}.npz", count, tokens, n))
                for n, count in enumerate((SAMPLE, rows))
            )
            estimate = ask(
                ["plan", sample, "--rows", str(rows), *settings], folder, processor=options.processor
            )
            extraction = ask(["extract", whole, *settings], folder, processor=options.processor)
        case = {"backbone": backbone, "tokens": tokens, "rows": rows, "compute": estimate["compute"]}
        times = {"planned": round(estimate["seconds"], 2), "taken": round(extraction["seconds"], 2)}
        sizes = {"bytes_planned": estimate["bytes"], "bytes_taken": extraction["bytes"]}
        cases.append(
            case | times | {"ratio": round(estimate["seconds"] / extraction["seconds"], 3)} | sizes
        )
        print(json.dumps(cases[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"load": os.getloadavg()[0], "cases": cases}, indent=2))


@dataclass(frozen=True)
class Done:
    """One extraction: its wall time, the processor time of all its processes, and the SHA-256 of its shards."""

    seconds: float
    processor: float
    shards: str


def extract(task: Path, options: argparse.Namespace, threads: int, *more: str) -> Done:
    """Run one extraction on an empty cache."""
    with tempfile.TemporaryDirectory(dir=task.parent) as cache:
        command = [
            "extract",
            str(task),
            "--backbone",
            options.backbone,
            "--init",
            "random",
            "--layers",
            "final",
        ]
        command += [
            "--pool",
            "last,mean",
            "--compute",
            options.compute,
            "--device",
            "cpu",
            "--cache",
            cache,
            *more,
        ]
        started, busy = time.perf_counter(), child_processor_seconds()
        run = [sys.executable, "-m", "reservoir_pipelines", *command]
        subprocess.run(
            run, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
        )
        seconds = time.perf_counter() - started
        busy = child_processor_seconds() - busy
        digest = hashlib.sha256()
        for shard in sorted(Path(cache, "features").rglob("*.h5")):
            digest.update(shard.read_bytes())
        return Done(round(seconds, 1), round(busy, 1), digest.hexdigest()[:16])


def child_processor_seconds() -> float:
    """Return the processor seconds of all finished child processes and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def namespace(number: int) -> Iterator[tuple[str, list[str]]]:
    """Make a separate network; yield this machine's address in it, and the prefix of commands that run there."""
    name, here = f"scale{number}", f"10.77.{number}.1"
    setup = [
        f"ip netns add {name}",
        f"ip link add {name}h type veth peer name {name}n",
        f"ip link set {name}n netns {name}",
        f"ip addr add {here}/24 dev {name}h",
        f"ip link set {name}h up",
        f"ip -n {name} addr add 10.77.{number}.2/24 dev {name}n",
        f"ip -n {name} link set {name}n up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for line in setup:
            subprocess.run(line.split(), check=True)
        yield here, ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command with one thread and without output."""
    quiet, alone = subprocess.DEVNULL, os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, env=alone)


def over_networks(task: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Extract by dask workers in separate networks; kill the first worker as soon as some shards exist."""
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    scheduler += ["--port", str(PORT), "--no-dashboard"]
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        "--nthreads",
        "1",
        "--no-nanny",
        "--memory-limit",
        "0",
    ]
    with ExitStack() as stack:
        places = [stack.enter_context(namespace(number)) for number in range(options.namespaces)]
        processes = [start(scheduler)]
        stack.callback(lambda: [process.kill() for process in processes])
        processes += [start([*inside, *worker, f"tcp://{here}:{PORT}"]) for here, inside in places]

        def kill() -> None:
            while len(list(task.parent.rglob("features/**/0*.h5"))) < 2:
                time.sleep(0.01)
            processes[1].kill()

        threading.Thread(target=kill, daemon=True).start()
        result = extract(task, options, 1, "--scheduler", f"tcp://127.0.0.1:{PORT}")
        return asdict(result) | {"first_worker_was_killed": processes[1].poll() == -9}


def workers(options: argparse.Namespace) -> None:
    """Measure extraction by several processes and print one JSON object."""
    # so that networks and workers end with this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, object] = {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        **{name: value for name, value in vars(options).items() if name != "measure"},
    }
    with tempfile.TemporaryDirectory() as folder:
        task = write_rows(Path(folder) / "rows.npz", options.rows, options.tokens)
        alone = extract(task, options, 1)
        results["1 process of 1 thread"] = asdict(alone)
        if options.namespaces:
            results["networks"] = over_networks(task, options)
        for count in map(int, filter(None, options.workers.split(","))):
            result = extract(task, options, count, "--workers", str(count))
            results[f"{count} workers"] = asdict(result) | {"same_bytes": result.shards == alone.shards}
        pairs = [
            (extract(task, options, 2), extract(task, options, 2, "--workers", "2"))
            for _ in range(options.pairs)
        ]
    results |= {"pairs": [[asdict(a), asdict(b)] for a, b in pairs], "load_after": os.getloadavg()[0]}
    if pairs:
        results["efficiency"] = round(statistics.median(a.seconds / b.seconds for a, b in pairs), 3)
        results["efficiency_by_processor"] = round(
            statistics.median(a.processor / b.processor for a, b in pairs), 3
        )
    print(json.dumps(results, indent=2))


def main() -> None:
    """Run the measurement that the first argument names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measurements = parser.add_subparsers(required=True)
    of_startup = measurements.add_parser("startup")
    of_startup.set_defaults(measure=startup)
    of_startup.add_argument("--repeats", type=int, default=5)
    of_plan = measurements.add_parser("plan")
    of_plan.set_defaults(measure=plan)
    of_plan.add_argument("--processor", action="store_true", help="measure processor seconds")
    of_plan.add_argument("--case", type=int, action="append", help="only this case; may be repeated")
    of_workers = measurements.add_parser("workers")
    of_workers.set_defaults(measure=workers)
    for name, default in (("rows", 3000), ("tokens", 64), ("pairs", 3), ("namespaces", 0)):
        of_workers.add_argument(f"--{name}", type=int, default=default)
    of_workers.add_argument("--backbone", default="gpt2")
    of_workers.add_argument("--compute", default="float32")
    of_workers.add_argument(
        "--workers", default="2,4", help="numbers of processes whose bytes are compared"
    )
    options = parser.parse_args()
    options.measure(options)


if __name__ == "__main__":
    main()
