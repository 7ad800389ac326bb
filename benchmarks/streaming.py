"""Seconds and memory of a model whose blocks are streamed from their file, beside those of one that is in memory.

    python benchmarks/streaming.py               # a random Llama of 0.9 GB in bfloat16
    python benchmarks/streaming.py --rows 1024   # more tokens for each time that the blocks are read

Each run computes the mean of every layer over rows of 32 tokens in a process of its own. "Own memory" is the peak of
its private memory above that before the model is loaded, without the pages of files that the system may drop. The
streamed runs have a limit: 400 MB of own memory (RLIMIT_DATA, which counts the mapped file, too). The bytes of all
features are compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMIT = 400 * 10**6  # bytes

CHILD = """
import hashlib, resource, sys, threading, time
import numpy as np
import torch
from transformers import LlamaModel
from reservoir.features import forward
from reservoir.loaded_model import load_model
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Vectors
folder, stream, compute, rows, limit = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])

def status(name):
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields[name].split()[0]) * 1024

if limit:
    most = status("VmData") + limit
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
before = peak = status("RssAnon")
is_running = True

def watch():
    global peak
    while is_running:
        peak = max(peak, status("RssAnon"))
        time.sleep(0.005)

watcher = threading.Thread(target=watch)
watcher.start()
task = Task(name="streaming", form=Vectors(4), max_tokens=32, classes=2)
started = time.monotonic()
settings = Reservoir(backbone=folder, init="pretrained")
model = load_model(task, settings, "cpu", compute, stream=stream)
loaded = time.monotonic()
x = np.random.default_rng(0).normal(size=(rows, 32, 4)).astype(np.float32)
columns = [f"{layer}/mean" for layer in model.fpt.backbone.layers]
features = forward(model, None, x, np.full(rows, 32), columns, batch_rows=16)
ended = time.monotonic()
is_running = False
watcher.join()
digest = hashlib.sha256(b"".join(features[column].tobytes() for column in columns)).hexdigest()
print(loaded - started, ended - loaded, peak - before, digest)
"""


def write_llama(folder: Path) -> None:
    """Write a random Llama of 24 blocks in bfloat16, in four files."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=5120,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=1000,
        max_position_embeddings=256,
    )
    torch.manual_seed(0)
    model: Any = LlamaModel(config)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="300MB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64, help="rows of 32 tokens, in batches of 16")
    rows = parser.parse_args().rows
    print("| blocks | computed in | tokens | load, s | compute, s | own memory, MB | bytes |")
    print("|---|---|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as folder:
        write_llama(Path(folder))
        stored = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        for compute in ("bfloat16", "float32"):
            digests: list[str] = []
            for stream in ("never", "always"):
                limit = stored + LIMIT if stream == "always" else 0
                command = [sys.executable, "-c", CHILD, folder, stream, compute, str(rows), str(limit)]
                output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                load, seconds, peak, digest = output.split()
                digests.append(digest)
                cells = (
                    "in memory" if stream == "never" else "streamed",
                    compute,
                    f"{rows * 32:,}",
                    f"{float(load):.1f}",
                    f"{float(seconds):.1f}",
                    f"{float(peak) / 1e6:,.0f}",
                    "equal" if digest == digests[0] else "different",
                )
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
