"""Memory and padding while many strings of 20 to 2,000 letters go through a frozen model.

    python benchmarks/strings.py                                   # 20,000 strings of letters, and of words
    python benchmarks/strings.py --rows 100000 --kinds letters

Each stage runs in its own process, on strings whose lengths are drawn uniformly. Padding is the share of tokens given
to the model that are not real tokens. Letters reach the first block of mini through adjacent windows of five letters;
words reach one block of width 16 through a tokenizer, in up to 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SHORTEST, LONGEST = 20, 2000
WINDOWS = {"input": "kernels", "patch": 5, "stride": 5, "layers": "block01", "pool": "last,mean"}
WORDS = ("one", "two", "frozen", "map", "of", "any", "sequence", "reads", "strings")


def write(path: Path, rows: int, *, words: bool) -> None:
    """Write a table of strings, each with a label."""
    draw = np.random.default_rng(0)
    with path.open("w") as file:
        file.write("text,label\n")
        for length in draw.integers(SHORTEST, LONGEST, rows, endpoint=True):
            if words:
                text = " ".join(draw.choice(WORDS, length // 4 + 1))[:length].strip()
            else:
                text = "".join(draw.choice(list("ACGT"), length))
            file.write(f"{text},{'ab'[length % 2]}\n")


def save_model(folder: Path) -> Path:
    """Write a BERT of one block, and a tokenizer of its words and their beginnings."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    pieces = sorted({word[:end] for word in WORDS for end in range(1, len(word) + 1)})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces]
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=512
    ).save_pretrained(folder)
    size: Any = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    BertModel(BertConfig(vocab_size=len(names), max_position_embeddings=1024, **size)).save_pretrained(
        folder
    )
    return folder


def stage(name: str, arguments: dict[str, Any]) -> dict[str, float]:
    """Run prepare or extract here, and return its time, the memory it took, and its padding."""
    import reservoir_pipelines

    from reservoir import batches

    counts, model_batches = np.zeros(2), batches.model_batches

    def counted(model: Any, lengths: np.ndarray, batch_rows: int) -> Iterator[tuple[np.ndarray, int]]:
        for rows, tokens in model_batches(model, lengths, batch_rows):
            counts[:] += lengths[rows].sum(), len(rows) * tokens
            yield rows, tokens

    batches.model_batches = counted
    start = time.perf_counter()
    getattr(reservoir_pipelines, name)(**arguments)
    measured = {
        "seconds": time.perf_counter() - start,
        "megabytes": peak_megabytes(),
    }
    return measured | ({"padding": 1 - counts[0] / counts[1]} if counts[1] else {})


def peak_megabytes() -> float:
    """Return the peak memory of this program; `resource` would also count the program that started it."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1024 if peak else float("nan")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="+", default=["letters", "words"], choices=["letters", "words"])
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(stage(options.stage[0], json.loads(options.stage[1]))))
        return
    print("| stage | rows | MB | padding | seconds |\n|---|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models: dict[str, dict[str, Any]] = {
            "letters": WINDOWS,
            "words": {"backbone": str(save_model(folder / "model"))},
        }
        for kind in options.kinds:
            path = folder / f"{kind}.csv"
            write(path, options.rows, words=kind == "words")
            for name, settings in (("prepare", {}), ("extract", models[kind])):
                call = json.dumps({"task": str(path), "cache": str(folder / "cache"), **settings})
                process = subprocess.run(
                    [sys.executable, __file__, "--stage", name, call],
                    stdout=subprocess.PIPE,
                    check=True,
                    env=os.environ,
                )
                measured = json.loads(process.stdout.splitlines()[-1])
                padding = f"{100 * measured['padding']:.1f}%" if "padding" in measured else ""
                size = f"{options.rows:,} ({path.stat().st_size / 1e6:.0f} MB)"
                cells = (
                    f"{name} {kind}",
                    size,
                    f"{measured['megabytes']:,.0f}",
                    padding,
                    f"{measured['seconds']:,.0f}",
                )
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
