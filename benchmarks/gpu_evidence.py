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
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from extract import warm_extractor, write_random_rows
from hotspots import kind_of
from reservoir_pipelines import extract, fit, prepare
from reservoir_pipelines.extraction.entries import row_count
from reservoir_pipelines.extraction.extractor import Extractor
from reservoir_pipelines.output import silenced
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from train import our_model, our_steps, product_flops, rows_of

from reservoir.column import Column
from reservoir.options import ExtractOptions
from reservoir.reservoir import choose_device

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/pipelines/test_gpu.py",
    "tests/readouts/test_device.py",
    "tests/reservoir/test_devices.py",
)
NOMINAL = {
    "H100": 989e12,
    "H200": 989e12,
}  # dense bfloat16 operations per second, from NVIDIA's data sheets
BATCH_TOKENS = 65_536  # of the model alone, as of `extract` on a GPU
IN_MEMORY = Path("/dev/shm")
BEGIN, END = "<!-- tables of benchmarks/gpu_evidence.py -->", "<!-- end of these tables -->"


@dataclass(frozen=True)
class Scale:
    """The sizes of all measurements."""

    backbone: str
    series_backbone: str
    tokens: Sequence[int]  # lengths for extraction
    train_shapes: Sequence[tuple[int, int]]  # tokens and rows of a training step
    seconds: float  # of one measurement, at least
    most_rows: int  # of an extraction
    matrix: int  # side of the product for the peak
    copy_bytes: int
    steps: int  # of a measurement of training
    trainings: Mapping[str, int]  # steps by task
    seeds: int
    headline: Mapping[str, Any]  # options of the headline row of MNIST
    headline_task: str


FULL = Scale(
    backbone="gpt2",
    series_backbone="kernels",
    tokens=(64, 512, 1024),
    train_shapes=((64, 256), (512, 32), (1024, 16), (64, 8)),
    seconds=10.0,
    most_rows=500_000,
    matrix=8192,
    copy_bytes=2**32,
    steps=200,
    trainings={"bit-memory": 40_000, "listops": 10_000, "mnist": 20_000, "cifar10": 400_000},
    seeds=3,
    headline={
        "param": {"window": 6, "stride": 2},
        "backbone": "gpt2",
        "init": "random",
        "layers": "block01",
    },
    headline_task="mnist",
)
SMOKE = Scale(
    backbone="gpt2:n_layer=2,n_embd=16,n_head=2",
    series_backbone="kernels:width=16",
    tokens=(8,),
    train_shapes=((8, 4),),
    seconds=0.01,
    most_rows=64,
    matrix=64,
    copy_bytes=2**16,
    steps=2,
    trainings={"digits": 4},
    seeds=1,
    headline={
        "backbone": "gpt2:n_layer=2,n_embd=16,n_head=2",
        "init": "random",
        "layers": "block01",
        "limit": 60,
    },
    headline_task="digits",
)
SCALES = {"full": FULL, "smoke": SMOKE}


class Evidence:
    """The file of all measurements of one machine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "results.jsonl"

    def records(self) -> list[dict[str, Any]]:
        """Return all lines; the last one is left out if a killed process has written only a part of it."""
        lines = self.file.read_text().split("\n")[:-1] if self.file.exists() else []
        return [json.loads(line) for line in lines]

    def add(self, stage: str, measurement: str, **values: Any) -> None:
        """Append a line."""
        record = {
            "stage": stage,
            "measurement": measurement,
            "at": time.strftime("%Y-%m-%dT%H:%M:%S"),
            **values,
        }
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)

    def has(self, stage: str, measurement: str) -> bool:
        """Return whether a measurement exists."""
        return any((r["stage"], r["measurement"]) == (stage, measurement) for r in self.records())

    def value(self, stage: str, measurement: str, name: str) -> Any:
        """Return a value of the last such measurement, or None."""
        values = [r[name] for r in self.records() if (r["stage"], r["measurement"]) == (stage, measurement)]
        return values[-1] if values else None


@dataclass(frozen=True)
class Context:
    """What a stage reads: the sizes, the evidence so far, the device, and the folders that the user has given."""

    scale: Scale
    evidence: Evidence
    device: torch.device
    data: Path | None
    weights: Path | None


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_per_call(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the mean seconds of a call, after one as a warm-up, from calls that take ``seconds`` in all."""
    work()
    wait(device)
    started, calls = time.perf_counter(), 0
    while True:
        for _ in range(8):
            work()
        calls += 8
        wait(device)
        elapsed = time.perf_counter() - started
        if elapsed >= seconds:
            return elapsed / calls


# The stages.


def ceilings(context: Context) -> None:
    """Measure what bounds everything else: products, copies, and the disks."""
    evidence, device, scale = context.evidence, context.device, context.scale
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    evidence.add("ceilings", "environment", card=name, cores=os.cpu_count(), **versions)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        a, b = (torch.randn(scale.matrix, scale.matrix, device=device).to(dtype) for _ in range(2))
        seconds = seconds_per_call(lambda a=a, b=b: a @ b, device, scale.seconds / 10)
        evidence.add("ceilings", f"product of {dtype}", per_second=2 * scale.matrix**3 / seconds)
    source = torch.zeros(scale.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = seconds_per_call(lambda: target.copy_(source), device, scale.seconds / 10)
    evidence.add("ceilings", "copy on the device", per_second=2 * scale.copy_bytes / seconds)
    host = torch.empty(scale.copy_bytes // 16, dtype=torch.uint8, pin_memory=device.type == "cuda")
    part = source[: len(host)]
    for measurement, copy in (("copy to the host", host.copy_), ("copy to the device", None)):
        work = (lambda: part.copy_(host)) if copy is None else partial(copy, part)
        seconds = seconds_per_call(work, device, scale.seconds / 10)
        evidence.add("ceilings", measurement, per_second=len(host) / seconds)
    for place in places(context):
        evidence.add("ceilings", f"disk {place}", per_second=disk_speed(place, scale.copy_bytes // 4))


def places(context: Context) -> list[Path]:
    """Return the folders in which caches are written: one on disk, and one in memory if the machine has it."""
    return [context.evidence.folder, *([IN_MEMORY] if IN_MEMORY.is_dir() else [])]


def disk_speed(folder: Path, size: int) -> float:
    """Return the bytes per second of writing one file and forcing it to the disk."""
    content = os.urandom(min(size, 2**24))
    with tempfile.TemporaryFile(dir=folder) as file:
        started = time.perf_counter()
        for _ in range(max(1, size // len(content))):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return file.tell() / (time.perf_counter() - started)


def tests(context: Context) -> None:
    """Run the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-s", *TESTS]
    if context.scale is SMOKE:
        command.append("--collect-only")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(run.stdout, run.stderr, sep="\n", flush=True)
    context.evidence.add("tests", "pytest", code=run.returncode, output=run.stdout[-8000:])
    if run.returncode:
        raise SystemExit(f"the tests failed with exit code {run.returncode}")


@dataclass(frozen=True)
class Case:
    """An extraction to measure."""

    name: str
    options: Mapping[str, Any]
    tokens: int
    shortest: int | None = None
    dim: int = 4


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the extractions of the table."""
    model = {
        "backbone": scale.backbone,
        "init": "random",
        "input": "orthogonal",
        "patch": 1,
        "store": "float16",
    }
    for tokens in scale.tokens:
        yield Case(f"all layers, {tokens} tokens", {**model, "layers": "all", "pool": "last,mean"}, tokens)
    short = scale.tokens[0]
    yield Case(f"2 columns, {short} tokens", {**model, "layers": "embed,block01", "pool": "mean"}, short)
    yield Case(
        f"all layers, 4 to {short} tokens", {**model, "layers": "all", "pool": "last,mean"}, short, 4
    )
    yield Case(
        "default of series, 512 values", {"backbone": scale.series_backbone}, min(512, 8 * short), dim=1
    )
    windows = {
        "backbone": "mini" if scale is FULL else scale.backbone,
        "init": None if scale is FULL else "random",
    }
    yield Case("series through a transformer, 512 values", windows, min(512, 8 * short), dim=1)


def extraction(context: Context) -> None:
    """Measure extract on disk and in memory, beside its own model alone, and profile one batch."""
    for case in cases(context.scale):
        if context.evidence.has("extract", case.name):
            continue
        with silenced():
            speeds = {str(place): extraction_speed(context, case, place) for place in places(context)}
        context.evidence.add("extract", case.name, tokens=case.tokens, by_place=speeds)


def extraction_speed(context: Context, case: Case, place: Path) -> dict[str, Any]:
    """Return the rows and bytes per second of an extraction whose cache is in a folder, and of the model alone."""
    scale, device = context.scale, context.device
    with tempfile.TemporaryDirectory(dir=place) as folder:
        root = Path(folder)
        options = ExtractOptions(**case.options, cache=root, device=device.type)
        probe = warm_extractor(
            write_random_rows(
                root / "probe.npz", min(1024, scale.most_rows), case.tokens, case.shortest, case.dim
            ),
            options,
            root,
        )
        alone = model_alone(probe, context)
        rows = int(min(scale.most_rows, max(64, alone * scale.seconds)))
        file = write_random_rows(root / "rows.npz", rows, case.tokens, case.shortest, case.dim)
        extractor = warm_extractor(file, options, root)
        entry, missing = extractor.open({})
        wait(device)
        started = time.perf_counter()
        extractor.compute(entry)
        seconds = time.perf_counter() - started
        written = sum(path.stat().st_size for path in entry.path.rglob("*.h5"))
        return {
            "rows_per_second": row_count(entry, missing) / seconds,
            "bytes_per_second": written / seconds,
            "seconds": seconds,
            "model_alone": alone,
            "flops_per_row": forward_flops(extractor, case.tokens),
            "profile": kernel_table(extractor, context),
        }


def batch_of(extractor: Extractor) -> tuple[Tensor, Tensor]:
    """Return a batch of random tokens of the model's input layer, as many as `extract` computes at a time."""
    model = extractor.model
    tokens = model.fpt.task.max_tokens
    rows = max(1, (BATCH_TOKENS if model.device.type == "cuda" else 256) // tokens)
    dim = model.fpt.backbone.width if model.convolution else extractor.model.fpt.task.form.dim  # pyright: ignore
    x = torch.randn(rows, tokens, dim, device=model.device)
    return x, torch.full((rows,), tokens, device=model.device)


@torch.inference_mode()
def model_alone(extractor: Extractor, context: Context) -> float:
    """Return the rows per second of the extractor's own model, up to the last layer and without poolings."""
    fpt = extractor.model.fpt
    x, lengths = batch_of(extractor)
    seconds = seconds_per_call(
        lambda: fpt.backbone(fpt.inputs(x), lengths, is_full=True),
        context.device,
        context.scale.seconds / 2,
    )
    return len(x) / seconds


def forward_flops(extractor: Extractor, tokens: int) -> float:
    """Return the operations of one row in products with weights and in causal attention."""
    backbone = extractor.model.fpt.backbone
    weights = sum(p.numel() for p in backbone.blocks.parameters() if p.dim() == 2)
    return 2 * tokens * (weights + backbone.depth * tokens * backbone.width)


def kernel_table(extractor: Extractor, context: Context) -> dict[str, Any]:
    """Return the milliseconds of one batch by kind of operation, and of its twelve longest operations."""
    columns = [Column.parse(name) for name in extractor.columns]
    x, lengths = batch_of(extractor)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if context.device.type == "cuda" else [])]
    compute = partial(extractor.model.fpt.features, x, lengths, columns, is_full=True)
    compute()
    with profile(activities=activities) as profiled:
        compute()
        wait(context.device)
    on_gpu = context.device.type == "cuda"

    def milliseconds(event: Any) -> float:
        return (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1000

    events = sorted(profiled.key_averages(), key=milliseconds, reverse=True)
    by_kind: dict[str, float] = {}
    for event in events:
        by_kind[kind_of(event.key)] = by_kind.get(kind_of(event.key), 0.0) + milliseconds(event)
    longest = {event.key: [event.count, round(milliseconds(event), 3)] for event in events[:12]}
    return {"by_kind": {kind: round(spent, 3) for kind, spent in by_kind.items()}, "longest": longest}


def training(context: Context) -> None:
    """Measure steps per second of training, eager and compiled."""
    scale, device = context.scale, context.device
    for tokens, batch in scale.train_shapes:
        for compiled in (False, True):
            name = f"{tokens} tokens, {batch} rows" + (", compiled" if compiled else "")
            if context.evidence.has("training", name) or (compiled and device.type == "cpu"):
                continue
            split = rows_of(tokens, batch)
            depth = None if scale is FULL else 1
            model = our_model(tokens, depth, device.type, "auto", 0.1)
            run = our_steps(model, split, batch, 0.1, compiled)
            run(3)  # warm up
            wait(device)
            started = time.perf_counter()
            run(scale.steps)
            wait(device)
            speed = scale.steps / (time.perf_counter() - started)
            flops = product_flops(model, tokens, batch)
            context.evidence.add(
                "training", name, steps_per_second=speed, flops_per_step=flops, compute=model.compute
            )


def headline(context: Context) -> None:
    """Time the stages of the headline row of MNIST."""
    options = dict(context.scale.headline)
    task, device = context.scale.headline_task, context.device.type
    of_data = {name: options.pop(name) for name in ("param",) if name in options}
    if context.data is not None and context.scale is FULL:
        of_data["data"] = context.data
    with tempfile.TemporaryDirectory(dir=context.evidence.folder) as folder:
        seconds: dict[str, float] = {}

        def timed(stage: str, work: Callable[[], Any]) -> Any:
            started = time.perf_counter()
            result = work()
            seconds[stage] = time.perf_counter() - started
            return result

        root = Path(folder)
        timed("prepare", lambda: prepare(task, cache=root, **of_data))
        pool = "grid2"
        features = timed(
            "extract", lambda: extract(task, cache=root, device=device, pool=pool, **of_data, **options)
        )
        result = timed("fit", lambda: fit(features, device=device))
        context.evidence.add("headline", task, seconds=seconds, test_score=result.best.test_score)


def science(context: Context, tasks: Sequence[str], **options: str) -> None:
    """Train at the paper's size, one run for each task and seed."""
    for seed in range(context.scale.seeds):
        for task in tasks:
            name = " ".join([task, f"seed {seed}", *options.values()])
            if context.evidence.has("science", name):
                continue
            steps = context.scale.trainings[task]
            settings = {
                "backbone": "gpt2" if context.scale is FULL else context.scale.backbone,
                "init": "random",
            }
            settings |= {
                "steps": str(steps),
                "batch": "8",
                "seed": str(seed),
                "cache": str(context.evidence.folder / "cache"),
            }
            settings |= options
            if context.scale is FULL:
                settings |= {"protocol": "paper", "data": str(context.data)}
            command = [
                sys.executable,
                "-m",
                "reservoir_pipelines",
                "train",
                task,
                "--json",
                "--device",
                context.device.type,
            ]
            command += [word for name, value in settings.items() for word in (f"--{name}", value)]
            started = time.perf_counter()
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise SystemExit(run.stderr[-2000:])
            answer = json.loads(run.stdout)
            context.evidence.add(
                "science", name, minutes=(time.perf_counter() - started) / 60, answer=answer
            )


def pretrained(context: Context) -> None:
    """Train the FPT of pretrained weights, and of random ones of the same shape."""
    weights = str(context.weights)
    for init in ("pretrained", "random"):
        science(context, ("listops", "mnist"), backbone=weights, init=init)


@dataclass(frozen=True)
class Stage:
    """A stage, its time limit in seconds, and which folders it needs."""

    run: Callable[[Context], None]
    limit: float
    needs_data: bool = False
    needs_weights: bool = False


STAGES = {
    "ceilings": Stage(ceilings, 60),
    "tests": Stage(tests, 240),
    "extract": Stage(extraction, 360),
    "training": Stage(training, 120),
    "headline": Stage(headline, 90, needs_data=True),
    "bits": Stage(partial(science, tasks=("bit-memory",)), 400),
    "science": Stage(partial(science, tasks=("listops", "mnist")), 500, needs_data=True),
    "cifar10": Stage(partial(science, tasks=("cifar10",)), 900, needs_data=True),
    "pretrained": Stage(pretrained, 600, needs_data=True, needs_weights=True),
}
SMOKE_STAGES = {
    **{name: STAGES[name] for name in ("ceilings", "tests", "extract", "training")},
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
        command += [
            word
            for option in ("data", "weights")
            if getattr(arguments, option)
            for word in (f"--{option}", getattr(arguments, option))
        ]
        started = time.monotonic()
        try:
            code = subprocess.run(command, timeout=min(stage.limit, left), check=False).returncode
            state = "finished" if code == 0 else "failed"
        except subprocess.TimeoutExpired:
            state = "reached its time limit"
        evidence.add(name, state, seconds=round(time.monotonic() - started, 1))


# The tables.


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page, in Markdown."""
    of_stage: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        of_stage.setdefault(record["stage"], {})[record["measurement"]] = record
    ceilings_of = of_stage.get("ceilings", {})
    card = ceilings_of.get("environment", {}).get("card", "unknown card")
    measured = ceilings_of.get("product of torch.bfloat16", {}).get("per_second")
    nominal = next((peak for name, peak in NOMINAL.items() if name in card), None)
    parts = [f"Measured on: {card}."]
    rows = [[name, f"{r['per_second']:.3g}"] for name, r in ceilings_of.items() if "per_second" in r]
    parts.append(table(["ceiling", "operations or bytes per second"], rows))
    rows = []
    for name, record in of_stage.get("extract", {}).items():
        for place, speed in record.get("by_place", {}).items():
            flops = speed["rows_per_second"] * speed["flops_per_row"]
            rows.append(
                [
                    name,
                    "memory" if place == str(IN_MEMORY) else "disk",
                    f"{speed['rows_per_second']:,.0f}",
                    f"{speed['bytes_per_second'] / 1e6:,.0f}",
                    f"{speed['seconds']:.1f}",
                    f"{speed['model_alone']:,.0f}",
                    f"{speed['rows_per_second'] / speed['model_alone']:.2f}",
                    share(flops, measured),
                    share(flops, nominal),
                ]
            )
    heads = [
        "extraction",
        "cache",
        "rows/s",
        "MB/s",
        "seconds",
        "model alone",
        "ratio",
        "of measured peak",
        "of nominal peak",
    ]
    parts.append(table(heads, rows))
    rows = []
    for name, record in of_stage.get("training", {}).items():
        if "steps_per_second" in record:
            flops = record["steps_per_second"] * record["flops_per_step"]
            rows.append(
                [
                    name,
                    record["compute"],
                    f"{record['steps_per_second']:.1f}",
                    share(flops, measured),
                    share(flops, nominal),
                ]
            )
    parts.append(
        table(["training step", "products", "steps/s", "of measured peak", "of nominal peak"], rows)
    )
    rows = [
        [
            name,
            *(f"{record['seconds'][stage]:.1f}" for stage in ("prepare", "extract", "fit")),
            f"{record['test_score']:.1%}",
        ]
        for name, record in of_stage.get("headline", {}).items()
        if "test_score" in record
    ]
    parts.append(table(["headline row", "prepare, s", "extract, s", "fit, s", "test accuracy"], rows))
    rows = [
        [name, f"{record['minutes']:.1f}", f"{record['answer']['test_score']:.1%}"]
        for name, record in of_stage.get("science", {}).items()
        if "minutes" in record
    ]
    parts.append(table(["training run", "minutes", "test score"], rows))
    return "\n\n".join(part for part in parts if part)


def share(flops: float, peak: float | None) -> str:
    """Return operations per second as a share of a peak, or nothing if it is not known."""
    return f"{flops / peak:.1%}" if peak else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, or nothing without rows."""
    if not rows:
        return ""
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_tables(page: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace the tables between the two marks of a page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
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
