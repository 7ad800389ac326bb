"""Memory and time of loading a model by the number of blocks that are kept, and of streaming its blocks.

    python benchmarks/loading.py                    # stories15M-sized and larger random Llamas, stored in bfloat16
    python benchmarks/loading.py --folders DIR ...  # models of your own, or GGUF files
    python benchmarks/loading.py --stream 64        # blocks streamed from their file, beside those in memory, instead
    python benchmarks/loading.py --stream 1024      # more tokens for each time that the blocks are read

Each model is loaded in a process of its own, with a random input layer, as `extract` does. "Kept" is what the blocks
and the final norm take in the precision that they have afterwards. "Own memory" is the peak of the process's private
memory above that before, without the pages of the file that the system may drop; the goal is 1.15 times what is kept.

With ``--stream`` each run computes the mean of every layer of a random Llama of 0.9 GB over rows of 32 tokens. The
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

CHILD = """
import sys, threading, time
import transformers
from transformers import LlamaModel
from reservoir.loaded_model import load_model
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Vectors
folder, depth, compute = sys.argv[1], int(sys.argv[2]) or None, sys.argv[3]

def own_memory():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["RssAnon"].split()[0]) * 1024

before = peak = own_memory()
is_loading = True

def watch():
    global peak
    while is_loading:
        peak = max(peak, own_memory())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
started = time.process_time()
task = Task(name="loading", form=Vectors(4), max_tokens=16, classes=2)
model = load_model(task, Reservoir(backbone=folder, init="pretrained", depth=depth), "cpu", compute)
seconds = time.process_time() - started
is_loading = False
watcher.join()
kept_bytes = sum(tensor.numel() * tensor.element_size() for tensor in model.fpt.backbone.parameters())
print(kept_bytes, peak - before, seconds)
"""

LIMIT = 400 * 10**6  # bytes of own memory of a streamed run

STREAMING_CHILD = """
import hashlib, resource, sys, threading, time
import numpy as np
import torch
from transformers import LlamaModel
from reservoir.features import forward
from reservoir.loaded_model import load_model
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Vectors
folder, stream, compute = sys.argv[1:4]
rows, limit = (int(number) for number in sys.argv[4:6])

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

# Width, blocks, and the largest part of a file.
SHAPES = {"135M": (576, 30, "1GB"), "400M in four files": (1024, 24, "230MB")}


def write_llama(folder: Path, width: int, depth: int, part: str) -> None:
    """Write a random Llama in bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width if width > 1000 else 1536,
        num_hidden_layers=depth,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 192 if width % 192 == 0 else 4,
        vocab_size=32_000 if width > 1000 else 49_152,
    )
    torch.manual_seed(0)
    model: Any = LlamaModel(config)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=part)


def measure(name: str, folder: Path) -> None:
    """Print a row of the table for each depth and precision."""
    files = folder.glob("*.safetensors") if folder.is_dir() else [folder]
    stored = sum(path.stat().st_size for path in files)
    for depth in (0, 1):
        for compute in ("bfloat16", "float32"):
            command = [sys.executable, "-c", CHILD, str(folder), str(depth), compute]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            kept_bytes, peak, seconds = map(float, output.split())
            cells = (
                name,
                "all" if depth == 0 else str(depth),
                compute,
                f"{stored / 1e6:,.0f}",
                f"{kept_bytes / 1e6:,.0f}",
                f"{peak / 1e6:,.0f}",
                f"{seconds:.1f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)


def write_long_llama(folder: Path) -> None:
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


def print_streaming(rows: int) -> None:
    """Print a row for each precision, in memory and streamed."""
    print("| blocks | computed in | tokens | load, s | compute, s | own memory, MB | bytes |")
    print("|---|---|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as folder:
        write_long_llama(Path(folder))
        stored = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        for compute in ("bfloat16", "float32"):
            digests: list[str] = []
            for stream in ("never", "always"):
                limit = stored + LIMIT if stream == "always" else 0
                command = [
                    sys.executable,
                    "-c",
                    STREAMING_CHILD,
                    folder,
                    stream,
                    compute,
                    str(rows),
                    str(limit),
                ]
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folders", type=Path, nargs="+", default=[], help="folders of models, or GGUF files"
    )
    parser.add_argument(
        "--stream", type=int, metavar="ROWS", help="stream the blocks over this many rows, in batches of 16"
    )
    arguments = parser.parse_args()
    if arguments.stream:
        print_streaming(arguments.stream)
        return
    print("| model | blocks | computed in | file, MB | kept, MB | own memory, MB | processor seconds |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for folder in arguments.folders:
        measure(folder.stem if folder.is_file() else folder.name, folder)
    if not arguments.folders:
        for name, shape in SHAPES.items():
            with tempfile.TemporaryDirectory() as folder:
                write_llama(Path(folder), *shape)
                measure(name, Path(folder))


if __name__ == "__main__":
    main()
