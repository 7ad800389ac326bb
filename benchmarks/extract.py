"""Rows per second of extract with GPT-2 small, beside the authors' way and beside the bare model.

    python benchmarks/extract.py [--tokens 64,512,1024] [--work 16384] [--backbone gpt2]

One run for each length, on random vectors through an untrained GPT-2, in this order:

* authors: the evaluation forward of Lu et al. 2021's code as it was released, in eager float32, 16 rows at a time, the
  last token of the last layer kept in memory and nothing else;
* bare: the model alone with fused attention in the best precision here, at the best of some batch sizes, nothing kept;
* extract: all layers under last and mean, rounded, checksummed, written, synced and listed; without loading the model.

``--work`` is about the tokens of a measurement. Speeds are by the clock, and on one thread of a CPU by the processor's
time, which others on the machine disturb less and in which waiting for the disk does not count. Trust ratios alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from reservoir_pipelines.extraction.run import plan_run
from reservoir_pipelines.output import hushed
from reservoir_pipelines.preparation.prepare import prepare
from torch import nn
from transformers import GPT2Config, GPT2Model

from reservoir.backbones import find
from reservoir.options import ExtractOptions
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
    print(
        f"{'tokens':>6} {'rows':>5} {'authors':>9} {'bare':>9} {'extract':>9}  rows/s   against authors, bare; by clock"
    )
    for tokens in map(int, asked.tokens.split(",")):
        rows = max(BATCH, asked.work // tokens)
        theirs = authors(asked.backbone, rows, tokens, device)
        bare = np.max([plain(asked.backbone, rows, tokens, size, device, compute) for size in sizes(tokens)], axis=0)
        ours = extracted(asked.backbone, rows, tokens)
        which = int(device.type == "cpu" and torch.get_num_threads() == 1)
        speeds = f"{theirs[which]:9.3g} {bare[which]:9.3g} {ours[which]:9.3g}"
        than, part = ours / theirs, ours / bare
        print(
            f"{tokens:6} {rows:5} {speeds}   {than[which]:12.2f} x, {part[which]:.0%}; {than[0]:.2f} x, {part[0]:.0%}",
            flush=True,
        )


def sizes(tokens: int) -> list[int]:
    """Return the batch sizes that the bare model may choose among."""
    return sorted({max(1, size // tokens) for size in (1024, 2048, 8192)})


def authors(backbone: str, rows: int, tokens: int, device: torch.device) -> np.ndarray:
    """Return rows per second, as all the following do by the clock and by the processor, of the authors' forward."""
    model = model_of(backbone, "eager", torch.float32, device)
    return per_second(rows, BATCH, lambda x: model(inputs_embeds=x).last_hidden_state[:, -1], tokens, model, device)


def plain(backbone: str, rows: int, tokens: int, size: int, device: torch.device, compute: str) -> np.ndarray:
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
    rows: int, size: int, work: Callable[[torch.Tensor], object], tokens: int, model: GPT2Model, device: torch.device
) -> np.ndarray:
    """Return rows per second of something done batch by batch, after one row that does not count."""
    x = torch.randn(rows, tokens, model.config.n_embd, dtype=model.dtype, device=device)
    work(x[:1])
    with speed_of(rows) as speed:
        for start in range(0, rows, size):
            work(x[start : start + size])
        if device.type == "cuda":
            torch.cuda.synchronize()
    return speed


@contextmanager
def speed_of(rows: int) -> Iterator[np.ndarray]:
    """Fill in, at the end of the context, its rows per second by the clock and by the processor."""
    speed = np.zeros(2)
    clock, processor = time.perf_counter(), time.process_time()
    yield speed
    speed[:] = rows / (time.perf_counter() - clock), rows / (time.process_time() - processor)


def extracted(backbone: str, rows: int, tokens: int) -> np.ndarray:
    """Return rows per second of extract, from the first batch to the last manifest."""
    with tempfile.TemporaryDirectory() as folder, hushed():
        root, file = Path(folder), Path(folder) / "random.npz"
        draw = np.random.default_rng(0)
        split = np.array(["valid", "test", *["train"] * (rows - 2)])
        np.savez(file, x=draw.normal(size=(rows, tokens, 4)).astype(np.float32), y=np.arange(rows) % 2, split=split)
        reservoir = {"backbone": backbone, "init": "random", "input": "orthogonal", "patch": 1}
        options = ExtractOptions(**reservoir, layers="all", pool="last,mean", store="float16", cache=root)
        prepared = prepare(str(file), cache=root)
        run = plan_run(str(file), options, prepared, root)
        run.model.fpt.features(  # as the others are warm too
            torch.zeros(1, tokens, 4, device=run.model.device),
            torch.tensor([tokens], device=run.model.device),
            ["final/last"],
        )
        entry, missing = run.open()
        with speed_of(missing) as speed:
            run.compute(entry, lambda rows, written: None)
        return speed


if __name__ == "__main__":
    main()
