"""The measurements of ``gpu_evidence.py``: their sizes, the file of their results, and a function for each stage."""

from __future__ import annotations

import json
import os
import platform
import shutil
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
from extract import kind_of, warm_extractor, write_random_rows
from reservoir_cache import Entry, FeatureStore
from reservoir_pipelines import extract, fit, prepare
from reservoir_pipelines.extraction.entries import row_count
from reservoir_pipelines.extraction.extractor import Extractor
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, ColumnSource, EntryView
from reservoir_pipelines.output import silenced
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from train import Form, our_model, our_steps, product_flops, rows_of

from reservoir.column import Column
from reservoir.cuda_graphs import WARM_UP
from reservoir.options import PRECISIONS, ExtractOptions
from reservoir.readouts.linear import Targets
from reservoir.readouts.moments import training_moments
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir.readouts.products import Arithmetic, products_on
from reservoir.readouts.tridiagonal import solve_penalties

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/pipelines/test_gpu.py",
    "tests/readouts/test_device.py",
    "tests/reservoir/test_devices.py",
)
BATCH_TOKENS = 65_536  # of the model alone, as of `extract` on a GPU
IN_MEMORY = Path("/dev/shm")
FIT_COLUMNS = ("embed/last", "embed/mean")
FIT_TARGETS = 10  # columns of labels of a system, as of MNIST's digits


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
    fit_rows: int  # of a fit, at most
    fit_width: int  # of its columns
    systems: Sequence[int]  # columns of systems of equations
    headline: Mapping[str, Any]  # options of the headline row of MNIST
    headline_task: str


FULL = Scale(
    backbone="gpt2",
    series_backbone="kernels",
    tokens=(64, 512, 1024),
    train_shapes=((64, 8), (64, 256), (512, 32), (1024, 16)),
    seconds=10.0,
    most_rows=500_000,
    matrix=8192,
    copy_bytes=2**32,
    steps=200,
    trainings={"bit-memory": 40_000, "listops": 10_000, "mnist": 20_000, "cifar10": 400_000},
    seeds=3,
    fit_rows=1_000_000,
    fit_width=4096,
    systems=(4096, 12_288),  # the latter as of MNIST's headline row
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
    fit_rows=400,
    fit_width=16,
    systems=(64,),
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
        # A killed process may have written only a part of the last line.
        text = self.file.read_text() if self.file.exists() else ""
        if not text.endswith("\n"):
            self.file.write_text(text[: text.rfind("\n") + 1])

    def records(self) -> list[dict[str, Any]]:
        """Return all lines."""
        return (
            [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        )

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


def seconds_per_call(
    work: Callable[[], object], device: torch.device, seconds: float, calls: int = 8
) -> float:
    """Return the mean seconds of a call, after one as a warm-up, from calls that take ``seconds`` in all.

    The host waits for the device after every ``calls`` calls.
    """
    work()
    wait(device)
    started, finished = time.perf_counter(), 0
    while True:
        for _ in range(calls):
            work()
        finished += calls
        wait(device)
        elapsed = time.perf_counter() - started
        if elapsed >= seconds:
            return elapsed / finished


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
    for measurement, copy in (
        ("copy to the host", partial(host.copy_, part)),
        ("copy to the device", partial(part.copy_, host)),
    ):
        seconds = seconds_per_call(copy, device, scale.seconds / 10)
        evidence.add("ceilings", measurement, per_second=len(host) / seconds)
    for place in places(context):
        evidence.add("ceilings", f"disk {place}", per_second=disk_speed(place, scale.copy_bytes // 4))


def places(context: Context) -> list[Path]:
    """Return the folders in which caches are written: one on disk, and one in memory if the machine has it."""
    has_memory = IN_MEMORY.is_dir() and context.scale is FULL
    return [context.evidence.folder, *([IN_MEMORY] if has_memory else [])]


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
    compiled: bool = False  # on a GPU

    def extract_options(self, root: Path, context: Context) -> ExtractOptions:
        """Return the options of the extraction, with its cache in a folder."""
        compiled = self.compiled and context.device.type == "cuda"
        return ExtractOptions(
            **self.options,
            cache=root,
            device=context.device.type,
            compile_blocks=compiled,
        )


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
        every_layer = {**model, "layers": "all", "pool": "last,mean"}
        yield Case(f"all layers, {tokens} tokens", every_layer, tokens)
        yield Case(f"all layers, {tokens} tokens, compiled", every_layer, tokens, compiled=True)
    short = scale.tokens[0]
    all_rounded = {**model, "layers": "all", "pool": "last,mean", "compute": "bfloat16-all"}
    yield Case(f"all layers, {short} tokens, all in bfloat16", all_rounded, short)
    yield Case(f"all layers, {short} tokens, all in bfloat16, compiled", all_rounded, short, compiled=True)
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
        with tempfile.TemporaryDirectory() as folder, silenced():
            # A few rows give the model; its speed decides how many rows are extracted.
            probe_file = write_rows(case, Path(folder) / "probe.npz", min(1024, context.scale.most_rows))
            probe = warm_extractor(probe_file, case.extract_options(Path(folder), context), Path(folder))
            alone = model_alone(probe, context)
            rows = int(min(context.scale.most_rows, max(64, alone * context.scale.seconds)))
            file = write_rows(case, Path(folder) / "rows.npz", rows)
            speeds = {str(place): extraction_speed(context, case, file, place) for place in places(context)}
            context.evidence.add(
                "extract",
                case.name,
                by_place=speeds,
                model_alone=alone,
                flops_per_row=forward_flops(probe, case.tokens),
                profile=kernel_table(probe, context),
            )


def precisions(context: Context) -> None:
    """Measure one batch in each precision: its speed, and how far its features are from those in float32."""
    tokens = context.scale.tokens[0]
    options = {"backbone": context.scale.backbone, "init": "random", "input": "orthogonal", "patch": 1}
    options |= {"layers": "all", "pool": "last,mean"}
    exact: Mapping[Column, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder, silenced():
        root = Path(folder)
        for compute in PRECISIONS:  # float32 is the first
            case = Case(compute, options | {"compute": compute}, tokens)
            file = write_rows(case, root / "rows.npz", min(1024, context.scale.most_rows))
            extractor = warm_extractor(file, case.extract_options(root, context), root)
            torch.manual_seed(0)
            x, lengths = batch_of(extractor)
            columns = [Column.parse(name) for name in extractor.columns]
            run = partial(extractor.model.fpt.features, x, lengths, columns, is_full=True)
            features = run()
            exact = exact or features
            seconds = seconds_per_call(run, context.device, context.scale.seconds / 2)
            context.evidence.add(
                "precisions",
                compute,
                rows_per_second=len(x) / seconds,
                deviation=mean_deviation(features, exact),
            )


def mean_deviation(features: Mapping[Column, Tensor], exact: Mapping[Column, Tensor]) -> float:
    """Return the root mean square difference from exact features, in standard deviations of each channel."""
    squares = [
        ((features[column] - values) / values.std(dim=0).clamp(min=1e-6)).square().mean()
        for column, values in exact.items()
    ]
    return torch.stack(squares).mean().sqrt().item()


def write_rows(case: Case, file: Path, rows: int) -> Path:
    """Write random rows of a case."""
    return write_random_rows(file, rows, case.tokens, case.shortest, case.dim)


def extraction_speed(context: Context, case: Case, file: Path, place: Path) -> dict[str, float]:
    """Return the rows and bytes per second of an extraction whose cache is in a folder."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        root = Path(folder)
        extractor = warm_extractor(file, case.extract_options(root, context), root)
        entry, missing = extractor.open({})
        wait(context.device)
        started = time.perf_counter()
        extractor.compute(entry)
        seconds = time.perf_counter() - started
        written = sum(path.stat().st_size for path in entry.path.rglob("*.h5"))
        return {
            "rows_per_second": row_count(entry, missing) / seconds,
            "bytes_per_second": written / seconds,
            "seconds": seconds,
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


def training(
    context: Context,
    forms: Sequence[Form] = (Form.ORDINARY, Form.CAPTURED, Form.COMPILED),
    shapes: Sequence[tuple[int, int]] | None = None,
) -> None:
    """Measure steps per second of training in several forms; a CPU has the ordinary one alone."""
    scale, device = context.scale, context.device
    on_gpu = device.type == "cuda"
    for tokens, batch in shapes or scale.train_shapes:
        for form in forms:
            name = f"{tokens} tokens, {batch} rows, {form}"
            if context.evidence.has("training", name) or (form != Form.ORDINARY and not on_gpu):
                continue
            depth = None if scale is FULL else 1
            model = our_model(tokens, depth, device.type, "auto", 0.1)
            run = our_steps(model, rows_of(tokens, batch), batch, 0.1, form)
            run(WARM_UP + 1)  # with the compilation and the capture of a step
            seconds = seconds_per_call(partial(run, scale.steps), device, scale.seconds / 2, calls=1)
            context.evidence.add(
                "training",
                name,
                card=torch.cuda.get_device_name(device) if on_gpu else "CPU",
                steps_per_second=scale.steps / seconds,
                flops_per_step=product_flops(model, tokens, batch),
                compute=model.compute,
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
    """Train at the paper's size, one run for each task and seed; a run that was stopped continues."""
    for seed in range(context.scale.seeds):
        for task in tasks:
            name = " ".join([task, f"seed {seed}", *(Path(value).name for value in options.values())])
            if context.evidence.has("science", name):
                continue
            command = [sys.executable, "-m", "reservoir_pipelines", "train", task, "--json"]
            for option, value in training_settings(context, task, seed, options).items():
                command += [f"--{option}", str(value)]
            started = time.perf_counter()
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise SystemExit(run.stderr[-2000:])
            minutes = (time.perf_counter() - started) / 60
            context.evidence.add("science", name, minutes=minutes, answer=json.loads(run.stdout))


def training_settings(context: Context, task: str, seed: int, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a training run."""
    settings = {
        "backbone": "gpt2" if context.scale is FULL else context.scale.backbone,
        "init": "random",
        "steps": context.scale.trainings[task],
        "batch": 8,
        "seed": seed,
        "cache": context.evidence.folder / "cache",
        "device": context.device.type,
    }
    if context.scale is FULL:
        settings |= {"protocol": "paper"} | ({"data": context.data} if context.data else {})
    return settings | dict(options)


def pretrained(context: Context) -> None:
    """Train the FPT of pretrained weights, and of random ones of the same shape."""
    weights = str(context.weights)
    for init in ("pretrained", "random"):
        science(context, ("listops", "mnist"), backbone=weights, init=init)


def fitting(context: Context) -> None:
    """Measure an extraction that computes next to nothing, and each step of a fit of its wide columns."""
    with tempfile.TemporaryDirectory(dir=context.evidence.folder) as folder, silenced():
        entry = drain(context, Path(folder))
        reading_and_moments(context, entry)
        # The second column is fitted by code that is warm.
        for column in FIT_COLUMNS:
            _, seconds = timed(
                context, lambda column=column: fit(entry.path, columns=column, device=context.device.type)
            )
            context.evidence.add("fit", f"fit of {column}", seconds=seconds, **sizes(context, entry))
    for width in context.scale.systems:
        systems(context, width)


def drain(context: Context, folder: Path) -> Entry:
    """Extract the input layer of a wide model, so that copies and the disk decide the speed; return the entry."""
    width = context.scale.fit_width
    options = {
        "backbone": f"gpt2:n_layer=1,n_embd={width},n_head=4",
        "init": "random",
        "input": "orthogonal",
        "patch": 1,
        "store": "float16",
        "layers": "embed",
        "pool": "last,mean",
    }
    case = Case("drain", options, tokens=2)
    # The features of both columns may take 40% of the disk, and of the memory that keeps them for reading.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most_bytes = 0.4 * min(shutil.disk_usage(folder).free, memory)
    rows = int(min(context.scale.fit_rows, most_bytes // (2 * width * len(FIT_COLUMNS))))
    file = write_rows(case, folder / "rows.npz", rows)
    extractor = warm_extractor(file, case.extract_options(folder, context), folder)
    entry, missing = extractor.open({})
    _, seconds = timed(context, lambda: extractor.compute(entry))
    written = sum(path.stat().st_size for path in entry.path.rglob("*.h5"))
    context.evidence.add(
        "fit",
        "drain",
        rows_per_second=row_count(entry, missing) / seconds,
        bytes_per_second=written / seconds,
        seconds=seconds,
    )
    return entry


def reading_and_moments(context: Context, entry: Entry) -> None:
    """Measure how fast a fit reads a column, and how fast it computes its moments."""
    source = ColumnSource(EntryView(FeatureStore(entry), KNOWN_SPLITS), Column.parse(FIT_COLUMNS[0]))
    targets = Targets(1, 2)
    with products_on(Arithmetic(str(context.device))):
        # This pass also verifies the checksums of the files.
        size = sum(x.nbytes for x, _ in source.blocks_for_products("train"))
        _, reading = timed(context, lambda: sum(len(x) for x, _ in source.blocks_for_products("train")))
        _, moments = timed(context, lambda: training_moments(source.blocks_for_products("train"), targets))
    context.evidence.add("fit", "reading of a column", seconds=reading, bytes_per_second=size / reading)
    context.evidence.add("fit", "moments of a column", seconds=moments, bytes_per_second=size / moments)


def systems(context: Context, width: int) -> None:
    """Measure the solutions of all penalties, where readouts are fitted and, of narrow systems, on the host, too."""
    draw = torch.Generator(context.device).manual_seed(0)
    x = torch.randn(width, width, generator=draw, device=context.device, dtype=torch.float64)
    matrix, b = x @ x.T, torch.ones(width, FIT_TARGETS, dtype=torch.float64).numpy()
    solve_penalties(matrix[:64, :64].clone(), b[:64], DEFAULT_ALPHAS)  # loads the library
    _, seconds = timed(context, lambda: solve_penalties(matrix.clone(), b, DEFAULT_ALPHAS))
    context.evidence.add("fit", f"systems of {width:,} columns", seconds=seconds, place=context.device.type)
    if width == min(context.scale.systems):
        on_host = matrix.cpu().numpy()
        _, seconds = timed(context, lambda: solve_penalties(on_host, b, DEFAULT_ALPHAS))
        context.evidence.add(
            "fit", f"systems of {width:,} columns, on the host", seconds=seconds, place="cpu"
        )


def sizes(context: Context, entry: Entry) -> dict[str, int]:
    """Return the rows and the width of a column."""
    return {"rows": sum(entry.spec.rows.values()), "width": context.scale.fit_width}


def timed(context: Context, work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of work, and the seconds that it took with the device."""
    wait(context.device)
    started = time.perf_counter()
    result = work()
    wait(context.device)
    return result, time.perf_counter() - started
