"""Rows per second of extract with GPT-2 small, compared with the authors' evaluation and with the bare model.

    python benchmarks/extract.py [--tokens 64,512,1024] [--work 16384] [--backbone gpt2]
    python benchmarks/extract.py --peer universal-computation    # a clone of github.com/kzl/universal-computation
    python benchmarks/extract.py --isa avx2                      # as on a processor that has no more than AVX2
    OMP_NUM_THREADS=1 python benchmarks/extract.py --profile --work 4096    # time by kind of operation, instead

For each length, these programs take turns on random vectors through an untrained GPT-2:

* authors: the forward pass of evaluation in the released code of Lu et al. 2021, in eager float32, 16 rows at a time,
  the last token of the last layer kept in memory and nothing else;
* peer, with ``--peer``: the authors' ``FPT`` with its input and output layers, around the GPT-2 of the installed
  transformers, because the version of 2020 that their code requires no longer runs;
* bare: the model alone with fused attention in the best precision here, at the best of some batch sizes, with no output
  kept;
* extract: all layers with the poolings last and mean are computed and written; loading the model is not timed.

``--work`` is the approximate number of tokens of a measurement; the best of ``--turns`` counts. Speeds are based on
wall time and, on one thread of a CPU, also on processor time, which other programs disturb less and which does not
include waiting for the disk. Trust only the ratios.

With ``--profile`` extract runs alone under torch's profiler, from the first batch to the last manifest, and a JSON
object for each length has the shares of each kind of operation. The lower bound is the model's multiplications at the
speed of one large product on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from reservoir_pipelines import prepare
from reservoir_pipelines.extraction.entries import row_count
from reservoir_pipelines.extraction.extractor import Extractor, load_extractor
from reservoir_pipelines.output import silenced
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2Model

from reservoir.backbones import find
from reservoir.batches import load
from reservoir.devices import choose_compute, choose_device
from reservoir.features import launch
from reservoir.options import ExtractOptions

BATCH = 16  # the authors'
DIM = 4
ISA = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
KINDS = {  # kinds by the beginning of an operation's name; all others are "other"
    "products with weights": (
        "aten::addmm",
        "aten::mm",
        "aten::linear",
        "aten::bmm",
        "mkldnn",
        "aten::matmul",
    ),
    "attention": (
        "aten::_scaled_dot_product",
        "aten::scaled_dot_product",
        "aten::_softmax",
        "aten::baddbmm",
    ),
    "activation": ("aten::gelu", "aten::tanh", "aten::pow", "aten::mul"),
    "norms": ("aten::native_layer_norm", "aten::layer_norm", "aten::native_batch_norm"),
    "residual sums": ("aten::add",),
    "pooling": (
        "aten::sum",
        "aten::mean",
        "aten::gather",
        "aten::index",
        "aten::where",
        "aten::masked",
        "aten::div",
    ),
    "copies and casts": (
        "aten::copy_",
        "aten::to",
        "aten::_to_copy",
        "aten::clone",
        "aten::cat",
        "aten::contiguous",
    ),
    "new memory": (
        "aten::empty",
        "aten::zeros",
        "aten::zero_",
        "aten::fill_",
        "aten::resize_",
        "aten::new",
    ),
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="64,512,1024")
    parser.add_argument("--work", type=int, default=16_384)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--backbone", default="gpt2")
    parser.add_argument("--peer", type=Path, help="folder of the authors' code")
    parser.add_argument(
        "--profile", action="store_true", help="print the time by kind of operation instead"
    )
    parser.add_argument("--isa", choices=tuple(ISA), help="limit torch to these instructions")
    arguments = parser.parse_args()
    # torch reads them when it is imported
    if arguments.isa and not ISA[arguments.isa].items() <= os.environ.items():
        raise SystemExit(
            subprocess.call([sys.executable, *sys.argv], env={**os.environ, **ISA[arguments.isa]})
        )
    if arguments.profile:
        print_profiles(arguments.backbone, list(map(int, arguments.tokens.split(","))), arguments.work)
        return
    device = choose_device("auto")
    compute = choose_compute("auto", device)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{capability}, {torch.get_num_threads()} threads, {device}, {compute}", file=sys.stderr)
    which = int(device.type == "cpu" and torch.get_num_threads() == 1)
    heads = ["authors", *(["their code"] if arguments.peer else []), "model alone", "`extract`"]
    titles = [
        "tokens",
        "rows",
        *heads,
        *(f"relative to {head}" for head in heads[:-1]),
        "ratios by wall time",
    ]
    print(f"| {' | '.join(titles)} |\n|{'|'.join(['--:'] * len(titles))}|", flush=True)
    for tokens in map(int, arguments.tokens.split(",")):
        rows = max(BATCH, arguments.work // tokens)
        turns = [speeds(arguments, rows, tokens, device, compute) for _ in range(arguments.turns)]
        best = np.max(turns, axis=0)
        ratios = [f"{best[-1, which] / other[which]:.2f}" for other in best[:-1]]
        clock = ", ".join(f"{best[-1, 0] / other[0]:.2f}" for other in best[:-1])
        cells = [f"{tokens:,}", str(rows), *(f"{speed[which]:.3g}" for speed in best), *ratios, clock]
        print(f"| {' | '.join(cells)} |", flush=True)


def speeds(
    arguments: argparse.Namespace, rows: int, tokens: int, device: torch.device, compute: str
) -> np.ndarray:
    """Return the rows per second of each program, by wall time and by processor time."""
    per_method = [authors(arguments.backbone, rows, tokens, device)]
    if arguments.peer:
        per_method.append(released(arguments.peer, arguments.backbone, rows, tokens, device))
    bare = [plain(arguments.backbone, rows, tokens, size, device, compute) for size in sizes(tokens)]
    return np.stack([*per_method, np.max(bare, axis=0), extracted(arguments.backbone, rows, tokens)])


def sizes(tokens: int) -> list[int]:
    """Return the batch sizes that the bare model may choose among."""
    return sorted({max(1, size // tokens) for size in (1024, 2048, 8192)})


def authors(backbone: str, rows: int, tokens: int, device: torch.device) -> np.ndarray:
    """Return rows per second of the authors' forward pass, by wall time and by processor time."""
    model = model_of(backbone, "eager", torch.float32, device)
    return per_second(
        rows, BATCH, lambda x: model(inputs_embeds=x).last_hidden_state[:, -1], tokens, model, device
    )


def released(peer: Path, backbone: str, rows: int, tokens: int, device: torch.device) -> np.ndarray:
    """Return rows per second of the authors' ``FPT`` in evaluation."""
    sys.path.insert(0, str(peer))
    from universal_computation.fpt import FPT  # pyright: ignore[reportMissingImports]

    inner = model_of(backbone, "eager", torch.float32, device)
    with patch.object(GPT2Model, "from_pretrained", staticmethod(lambda _name: inner)):
        model = FPT(DIM, 10, model_name=backbone, pretrained=True).eval().to(device)
    return per_second(rows, BATCH, lambda x: model(x).cpu(), tokens, inner, device, DIM)


def plain(
    backbone: str, rows: int, tokens: int, size: int, device: torch.device, compute: str
) -> np.ndarray:
    """Return rows per second of the model alone."""
    model = model_of(backbone, "sdpa", getattr(torch, compute), device)
    return per_second(rows, size, lambda x: model(inputs_embeds=x, use_cache=False), tokens, model, device)


def model_of(backbone: str, attention: str, dtype: torch.dtype, device: torch.device) -> GPT2Model:
    """Return an untrained model."""
    config = GPT2Config(**find(backbone)[1].to_dict())
    config._attn_implementation = attention
    model = GPT2Model(config).eval()
    nn.Module.to(model, device=device, dtype=dtype)
    return model


@torch.inference_mode()
def per_second(
    rows: int,
    size: int,
    work: Callable[[torch.Tensor], object],
    tokens: int,
    model: GPT2Model,
    device: torch.device,
    width: int = 0,
) -> np.ndarray:
    """Return the rows per second of ``work`` on batches of random vectors, after a batch as a warm-up."""
    x = torch.randn(rows, tokens, width or model.config.n_embd, dtype=model.dtype, device=device)
    work(x[:size])
    if device.type == "cuda":
        torch.cuda.synchronize()
    with speed_of(rows) as speed:
        for start in range(0, rows, size):
            work(x[start : start + size])
        if device.type == "cuda":
            torch.cuda.synchronize()
    return speed


@contextmanager
def speed_of(rows: int) -> Iterator[np.ndarray]:
    """Yield an array that on leaving the context gets the rows per second by wall time and by processor time."""
    speed = np.zeros(2)
    clock, processor = time.perf_counter(), time.process_time()
    yield speed
    speed[:] = rows / (time.perf_counter() - clock), rows / (time.process_time() - processor)


def extracted(backbone: str, rows: int, tokens: int) -> np.ndarray:
    """Return rows per second of extract, from the first batch to the last manifest."""
    with tempfile.TemporaryDirectory() as folder, silenced():
        root = Path(folder)
        reservoir = {"backbone": backbone, "init": "random", "input": "orthogonal", "patch": 1}
        options = ExtractOptions(**reservoir, layers="all", pool="last,mean", store="float16", cache=root)
        extractor = warm_extractor(write_random_rows(root / "random.npz", rows, tokens), options, root)
        entry, missing = extractor.open({})
        with speed_of(row_count(entry, missing)) as speed:
            extractor.compute(entry, lambda rows, written: None)
        return speed


def write_random_rows(
    file: Path, rows: int, tokens: int, shortest: int | None = None, dim: int = DIM
) -> Path:
    """Write random vectors with labels, an eighth of the rows for validation and for the test each; return the file.

    With ``shortest``, rows have ``shortest`` to ``tokens`` tokens.
    """
    draw = np.random.default_rng(0)
    lengths = np.full(rows, tokens) if shortest is None else draw.integers(shortest, tokens + 1, rows)
    np.savez(
        file,
        x=draw.standard_normal((rows, tokens, dim), dtype=np.float32),
        y=np.arange(rows) % 2,
        lengths=lengths.astype(np.int32),
        # Validation and test have whole blocks, too, because tails of a few rows are another workload.
        split=np.array(["valid", "test", *["train"] * 6])[np.arange(rows) % 8],
    )
    return file


def warm_extractor(file: Path, options: ExtractOptions, root: Path) -> Extractor:
    """Return an extractor of a file's rows that has computed one batch of the full shape."""
    prepared = prepare(str(file), cache=root)
    extractor = load_extractor(options, prepared, root)
    part = prepared.split("train").take(extractor.rows["train"][: extractor.layout.batch_rows])
    loaded = load(extractor.model, prepared.scaling, part.x, part.lengths, extractor.layout.batch_rows)
    launch(extractor.model, loaded, extractor.columns)()
    return extractor


def kind_of(name: str) -> str:
    """Return the kind of an operation."""
    return next((kind for kind, starts in KINDS.items() if name.startswith(starts)), "other")


def product_speed(dtype: torch.dtype) -> float:
    """Return the operations per second of processor time in a large product."""
    a, b = torch.randn(2048, 768).to(dtype), torch.randn(768, 3072).to(dtype)
    seconds = []
    for _ in range(20):
        started = time.process_time()
        torch.matmul(a, b)
        seconds.append(time.process_time() - started)
    return 2 * 2048 * 768 * 3072 / min(seconds)


def profiled(backbone: str, rows: int, tokens: int) -> dict[str, Any]:
    """Return the processor seconds of an extraction, in total and by operation of its main thread."""
    compute, measured = Extractor.compute, {}

    def watched(extractor: Extractor, *arguments: Any) -> int:
        model = extractor.model.fpt.backbone
        measured["dtype"] = extractor.model.compute
        measured["operations"] = (
            rows * tokens * len(model.blocks) * (24 * model.width**2 + 4 * tokens * model.width)
        )
        started = time.process_time()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            output = compute(extractor, *arguments)
        measured["seconds"] = time.process_time() - started
        spent: Counter[str] = Counter()
        for event in seen.key_averages():
            spent[kind_of(event.key)] += event.self_cpu_time_total
        measured["shares"] = {kind: round(time / spent.total(), 3) for kind, time in spent.most_common()}
        top = sorted(seen.key_averages(), key=lambda event: -event.self_cpu_time_total)[:12]
        measured["largest"] = {
            event.key: round(event.self_cpu_time_total / spent.total(), 3) for event in top
        }
        return output

    with patch.object(Extractor, "compute", watched):
        extracted(backbone, rows, tokens)
    return measured


def print_profiles(backbone: str, lengths: list[int], work: int) -> None:
    """Print a JSON object for each length: the time of an extraction, and the share of each kind of operation."""
    for tokens in lengths:
        rows = max(3, work // tokens)
        measured = profiled(backbone, rows, tokens)
        floor = measured["operations"] / product_speed(getattr(torch, measured["dtype"]))
        setting = {
            "tokens": tokens,
            "rows": rows,
            "load": os.getloadavg()[0],
            "floor_seconds": round(floor, 2),
            "of_the_floor": round(floor / measured["seconds"], 3),
        }
        print(json.dumps(setting | measured, indent=2), flush=True)


if __name__ == "__main__":
    main()
