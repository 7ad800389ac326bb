"""Does attention that looks up tokens of like content need the order of words? Pretraining on shuffled texts.

    python benchmarks/order.py ENWIK8 OUT     # texts and models are kept in the folder OUT; 20 processor minutes

Four models with the shape of two blocks of `mini` are pretrained for 1,000 steps of 2,048 bytes, each on another order
of the same 20 million bytes of Wikipedia: the ``text`` as it is; its words in random order within stretches of 1,000
words (``near``), so that topics and repetitions stay and grammar goes; in random order in the whole text (``words``);
and its ``bytes`` in random order. A model is compared with ``random`` weights: the largest cosine of a head's W_Q W_K^T
with the identity in each block, and the share of the bits of bit-memory that ridge regression recalls from the output
of the first block's attention, and from the states of both blocks side by side (1,000 bits, 500 training, 100
validation and 500 test rows; validation rows choose the penalty; the mean of three seeds of the input layer, with a 95%
interval over rows of the difference from random weights).
"""

import argparse
import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from recall import Rows, read, ridge, states
from scipy.stats import t
from tied import cosines

from reservoir.backbones import load_backbone
from reservoir.inputs.random_input import draw_input
from reservoir.tasks.bits import BitMemory
from reservoir.tasks.windows import Windows

BYTES = 20_000_000
STRETCH = 1000  # words, about a page
SHAPE = "mini:n_layer=2"
SEEDS = range(3)


def texts(text: bytes) -> dict[str, bytes]:
    """Return the orders of a text by name; words change places, and white space stays where it is."""
    pieces = re.split(rb"(\s+)", text)
    words, spaces = np.array(pieces[::2], dtype=object), pieces[1::2]
    random = np.random.default_rng(0)
    stretches = [words[begin : begin + STRETCH] for begin in range(0, len(words), STRETCH)]

    def join(ordered: np.ndarray) -> bytes:
        return b"".join(piece for pair in zip(ordered, [*spaces, b""], strict=True) for piece in pair)

    return {
        "text": text,
        "near": join(np.concatenate([random.permutation(stretch) for stretch in stretches])),
        "words": join(random.permutation(words)),
        "bytes": random.permutation(np.frombuffer(text, np.uint8)).tobytes(),
    }


def pretrain(corpus: Path, model: Path) -> None:
    """Pretrain a model on a text, or continue with it."""
    options = f"--backbone {SHAPE} --steps 1000 --batch-tokens 2048 --context 128 --short 128 --warm-up 100"
    command = [sys.executable, "-m", "reservoir_pipelines", "pretrain", str(corpus), *options.split()]
    subprocess.run([*command, "--eval-every", "250", "--resume", "--out", str(model)], check=True)


def recalled(features: dict[str, np.ndarray], parts: dict[str, Rows]) -> np.ndarray:
    """Return the share of the bits of each test row (rows,) that the readout best on valid has right, in percent."""

    def is_right(part: str, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        return (features[part] @ coef + intercept > 0) == (parts[part].signs > 0)

    best = max(
        ridge(features["train"], parts["train"].signs), key=lambda fit: is_right("valid", *fit).mean()
    )
    rows = len(parts["test"].x)
    return 100 * is_right("test", *best).reshape(rows, -1).mean(axis=1)


def recall(name: str, init: str, source: BitMemory, parts: dict[str, Rows]) -> dict[str, np.ndarray]:
    """Return the shares of each test row (rows,) from attention and from whole blocks, as means over seeds."""
    of_seeds: dict[str, list[np.ndarray]] = {"attention": [], "blocks": []}
    for seed in SEEDS:
        backbone = load_backbone(name, init, seed)
        inputs = draw_input("orthogonal", source.task, Windows(), backbone.width, seed=seed)
        last = source.task.readout_tokens
        by_part = {part: states(backbone, inputs, rows, last) for part, rows in parts.items()}
        attention = {part: layers["attention"] for part, layers in by_part.items()}
        blocks = {
            part: np.concatenate([layers["block01"], layers["block02"]], axis=1)
            for part, layers in by_part.items()
        }
        of_seeds["attention"].append(recalled(attention, parts))
        of_seeds["blocks"].append(recalled(blocks, parts))
    return {kind: np.mean(shares, axis=0) for kind, shares in of_seeds.items()}


def with_interval(differences: np.ndarray) -> str:
    """Return a mean difference with its 95% interval over rows (rows,)."""
    rows = len(differences)
    half = t.ppf(0.975, rows - 1) * differences.std(ddof=1) / rows**0.5
    mean = differences.mean()
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def main() -> None:
    """Pretrain the models that the folder lacks, then print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, metavar="ENWIK8")
    parser.add_argument("out", type=Path, metavar="OUT")
    options = parser.parse_args()
    stored = options.text.read_bytes()
    content = gzip.decompress(stored) if options.text.suffix == ".gz" else stored
    orders = texts(content[:BYTES])
    options.out.mkdir(exist_ok=True)
    for name, text in orders.items():
        corpus, model = options.out / name, options.out / f"model-{name}"
        corpus.write_bytes(text)
        if not model.exists():
            pretrain(corpus, model)
    source = BitMemory(train_rows=500, valid_rows=100, test_rows=500)
    parts = {part: read(source, part) for part in ("train", "valid", "test")}
    random = recall(SHAPE, "random", source, parts)
    print(
        "| pretrained on | cosine, block 1 | block 2 | attention | beyond random | blocks | beyond random |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in ("random", *orders):
        place, init = (
            (SHAPE, "random") if name == "random" else (str(options.out / f"model-{name}"), "pretrained")
        )
        shares = random if name == "random" else recall(place, init, source, parts)
        largest = [f"{products.max().item():.2f}" for _, products in cosines(load_backbone(place, init))]
        beyond = {
            kind: with_interval(shares[kind] - random[kind]) if name != "random" else "" for kind in shares
        }
        print(
            f"| {name} | {' | '.join(largest)} | {shares['attention'].mean():.1f} | {beyond['attention']} "
            f"| {shares['blocks'].mean():.1f} | {beyond['blocks']} |",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
