"""Time of extract by kind of operation, with GPT-2 small under torch's profiler; see ``docs/log.md``.

    OMP_NUM_THREADS=1 python benchmarks/hotspots.py [--tokens 64,512,1024] [--work 4096] [--backbone gpt2]

Random vectors go through an untrained model, and all layers under last and mean are written as usual; the time is from
the first batch to the last manifest, without loading. The lower bound is the model's multiplications at the speed of
one large product on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from typing import Any
from unittest.mock import patch

import torch
from extract import extracted
from reservoir_pipelines.extraction.extractor import Extractor
from torch.profiler import ProfilerActivity, profile

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


def kind_of(name: str) -> str:
    """Return the kind of an operation."""
    return next((kind for kind, starts in KINDS.items() if name.startswith(starts)), "other")


def peak(dtype: torch.dtype) -> float:
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


def main() -> None:
    """Measure and print one JSON object for each length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="64,512,1024")
    parser.add_argument("--work", type=int, default=4096)
    parser.add_argument("--backbone", default="gpt2")
    options = parser.parse_args()
    for tokens in map(int, options.tokens.split(",")):
        rows = max(3, options.work // tokens)
        measured = profiled(options.backbone, rows, tokens)
        floor = measured["operations"] / peak(getattr(torch, measured["dtype"]))
        setting = {
            "tokens": tokens,
            "rows": rows,
            "load": os.getloadavg()[0],
            "floor_seconds": round(floor, 2),
        }
        print(
            json.dumps(
                setting | {"of_the_floor": round(floor / measured["seconds"], 3)} | measured, indent=2
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
