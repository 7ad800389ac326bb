"""Rows per second of extract with GPT-2 small, beside the authors' way and beside the bare model.

    python benchmarks/extract.py [--tokens 64,512,1024] [--work 16384] [--backbone gpt2]

One run for each length, on random vectors through an untrained GPT-2, in this order:

* authors: the evaluation forward of Lu et al. 2021's code as it was released, in eager float32, 16 rows at a time, the
  last token of the last layer kept in memory and nothing else;
* bare: the model alone with fused attention in the best precision here, at the best of some batch sizes, nothing kept;
* extract: all layers under last and mean, rounded, checksummed, written, synced and listed; without loading the model.

``--work`` is about the tokens of a measurement. Numbers are of a shared machine: trust the ratios of one run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from reservoir_pipelines.extraction.call import Call
from reservoir_pipelines.extraction.run import plan_run
from reservoir_pipelines.output import hushed
from reservoir_pipelines.preparation.prepare import prepare
from torch import nn
from transformers import GPT2Model

from reservoir.backbones import find
from reservoir.options import FeatureOptions, PlaceOptions, ReservoirOptions, RowOptions
from reservoir.reservoir import choose_compute, choose_device

BATCH = 16  # the authors'


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="64,512,1024")
    parser.add_argument("--work", type=int, default=16_384)
    parser.add_argument("--backbone", default="gpt2")
    asked = parser.parse_args()
    device = choose_device("auto")
    compute = choose_compute("auto", device)
    print(
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads, {device}, {compute}", flush=True
    )
    print(f"{'tokens':>6} {'rows':>5} {'authors':>9} {'bare':>9} {'extract':>9}   rows/s     against authors, bare")
    for tokens in map(int, asked.tokens.split(",")):
        rows = max(BATCH, asked.work // tokens)
        theirs = authors(asked.backbone, rows, tokens, device)
        bare = max(plain(asked.backbone, rows, tokens, size, device, compute) for size in sizes(tokens))
        ours = extracted(asked.backbone, rows, tokens)
        speeds = f"{theirs:9.3g} {bare:9.3g} {ours:9.3g}"
        print(f"{tokens:6} {rows:5} {speeds}   {ours / theirs:14.2f} x, {ours / bare:.0%}", flush=True)


def sizes(tokens: int) -> list[int]:
    """Return the batch sizes that the bare model may choose among."""
    return sorted({max(1, size // tokens) for size in (1024, 2048, 8192)})


def authors(backbone: str, rows: int, tokens: int, device: torch.device) -> float:
    """Return rows per second of the authors' forward."""
    model = model_of(backbone, "eager", torch.float32, device)
    return per_second(rows, BATCH, lambda x: model(inputs_embeds=x).last_hidden_state[:, -1], tokens, model, device)


def plain(backbone: str, rows: int, tokens: int, size: int, device: torch.device, compute: str) -> float:
    """Return rows per second of the model alone."""
    model = model_of(backbone, "sdpa", getattr(torch, compute), device)
    return per_second(rows, size, lambda x: model(inputs_embeds=x, use_cache=False), tokens, model, device)


def model_of(backbone: str, attention: str, dtype: torch.dtype, device: torch.device) -> GPT2Model:
    """Return an untrained model."""
    config = find(backbone)[1]
    config._attn_implementation = attention
    model = GPT2Model(config).eval()
    nn.Module.to(model, device=device, dtype=dtype)
    return model


@torch.inference_mode()
def per_second(
    rows: int, size: int, work: Callable[[torch.Tensor], object], tokens: int, model: GPT2Model, device: torch.device
) -> float:
    """Return rows per second of something done batch by batch, after one batch that does not count."""
    x = torch.randn(rows, tokens, model.config.n_embd, dtype=model.dtype, device=device)
    work(x[:size])
    started = time.perf_counter()
    for start in range(0, rows, size):
        work(x[start : start + size])
    if device.type == "cuda":
        torch.cuda.synchronize()
    return rows / (time.perf_counter() - started)


def extracted(backbone: str, rows: int, tokens: int) -> float:
    """Return rows per second of extract, from the first batch to the last manifest."""
    with tempfile.TemporaryDirectory() as folder, hushed():
        root, file = Path(folder), Path(folder) / "random.npz"
        draw = np.random.default_rng(0)
        split = np.array(["valid", "test", *["train"] * (rows - 2)])
        np.savez(file, x=draw.normal(size=(rows, tokens, 4)).astype(np.float32), y=np.arange(rows) % 2, split=split)
        reservoir = ReservoirOptions(backbone=backbone, init="random", input="orthogonal", patch=1)
        keep = FeatureOptions(layers="all", pool="last,mean", store="float16")
        place = PlaceOptions(cache=root)
        prepared = prepare(str(file), cache=root)
        run = plan_run(Call(str(file), reservoir, RowOptions(), keep, place), prepared, root)
        run.model.fpt.features(  # as the others are warm too
            torch.zeros(1, tokens, 4, device=run.model.device),
            torch.tensor([tokens], device=run.model.device),
            ["final/last"],
        )
        entry, missing = run.open()
        started = time.perf_counter()
        run.compute(entry, lambda rows, written: None)
        return missing / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
