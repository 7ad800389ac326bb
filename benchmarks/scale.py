"""Extraction by several processes compared with one: the same bytes, and the speed.

    python benchmarks/scale.py                                       # GPT-2 small, 64 tokens, 1, 2 and 4 processes
    python benchmarks/scale.py --rows 600 --backbone mini --pairs 1  # a test of under a minute
    python benchmarks/scale.py --namespaces 2 --pairs 0              # as root: dask workers in separate networks

Every run is a separate command on an empty cache, so start-up, loading the model and writing are included. Where
processes have one thread each, the shards have to be the same to the last byte. The efficiency is the time of one
process with two threads over that of two workers with one each, in runs that alternate (``--pairs``), as a median; it
should be 0.9. With ``--namespaces`` the workers of a dask scheduler run in separate virtual networks, and one is killed
with -9 during the run.
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

PYTHON = sys.executable
PORT = 28786


def write_rows(path: Path, rows: int, tokens: int) -> Path:
    """Write random sequences with labels."""
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.standard_normal((rows, tokens, 8), np.float32), y=rng.integers(0, 4, rows))
    return path


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
        started, busy = time.perf_counter(), processor()
        run = [PYTHON, "-m", "reservoir_pipelines", *command]
        subprocess.run(
            run, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
        )
        seconds, busy, digest = time.perf_counter() - started, processor() - busy, hashlib.sha256()
        for shard in sorted(Path(cache, "features").rglob("*.h5")):
            digest.update(shard.read_bytes())
        return Done(round(seconds, 1), round(busy, 1), digest.hexdigest()[:16])


def processor() -> float:
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
    scheduler = [PYTHON, "-m", "distributed.cli.dask_scheduler", "--port", str(PORT), "--no-dashboard"]
    worker = [
        PYTHON,
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


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("rows", 3000), ("tokens", 64), ("pairs", 3), ("namespaces", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--backbone", default="gpt2")
    parser.add_argument("--compute", default="float32")
    parser.add_argument("--workers", default="2,4", help="numbers of processes whose bytes are compared")
    options = parser.parse_args()
    # so that networks and workers end with this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, object] = {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        **vars(options),
    }
    with tempfile.TemporaryDirectory() as folder:
        task = write_rows(Path(folder) / "rows.npz", options.rows, options.tokens)
        alone = extract(task, options, 1)
        results["1 process of 1 thread"] = asdict(alone)
        if options.namespaces:
            results["networks"] = over_networks(task, options)
        for workers in map(int, filter(None, options.workers.split(","))):
            result = extract(task, options, workers, "--workers", str(workers))
            results[f"{workers} workers"] = asdict(result) | {"same_bytes": result.shards == alone.shards}
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


if __name__ == "__main__":
    main()
