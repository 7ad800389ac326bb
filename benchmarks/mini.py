"""Bits per byte of a byte-level language model on the end of a text, compared with xz and zlib, and samples.

    python benchmarks/mini.py ENWIK8                          # the model that comes with the package
    python benchmarks/mini.py ENWIK8 --model DIR              # a model that `reservoir pretrain` made
    python benchmarks/mini.py ENWIK8 --compute bfloat16       # faster where bfloat16 is native
    python benchmarks/mini.py ENWIK8 --windows 50             # a test of a minute

ENWIK8 is the first 10^8 bytes of an English Wikipedia dump (mattmahoney.net/dc/enwik8.zip), as they are or gzipped. The
last 5% are the test: they are read in windows of the model's positions that overlap by a quarter, and each byte is
predicted once, with at least that quarter as context. xz and zlib at their highest presets compress only the bytes that
were predicted. The samples begin after a line feed and are drawn at temperature 0.8, without top-k; on the same kind of
device they are always the same.

The goals are less than 1.9 bits per byte, which is less than xz needs (1.4 for a model made on a large GPU), and at
most 12 MB.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import zlib
from pathlib import Path

import numpy as np
import torch

from reservoir.backbone_names import SHIPPED
from reservoir.devices import choose_compute, choose_device
from reservoir.pretraining.corpora import BYTES, HeldOut, Text
from reservoir.pretraining.language_model import LanguageModel, LanguageSteps, PretrainRecipe

SAMPLES, SAMPLE_BYTES, TEMPERATURE, PROMPT = 3, 400, 0.8, b"\n"


def load_language_model(folder: Path, device: torch.device) -> LanguageModel:
    """Return the language model of a folder, with its weights in float32."""
    from transformers import AutoModelForCausalLM

    model = LanguageModel(str(folder), BYTES)
    model.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if model.model.config.vocab_size != BYTES:
        raise SystemExit(
            f"{folder}: its vocabulary is not the {BYTES} bytes; give a byte model that pretrain made"
        )
    return model.to(device).eval()


def bits_per_byte(model: LanguageModel, text: Text, held_out: HeldOut, compute: str) -> float:
    """Return the mean loss in bits of the predicted bytes."""
    window = held_out.windows.shape[1] - 1
    recipe = PretrainRecipe(steps=1, batch_tokens=window, context=window, short=window)
    return LanguageSteps(model, text, recipe, getattr(torch, compute), compiled=False).measure(held_out)


def compressed(held_out: HeldOut) -> dict[str, float]:
    """Return how many bits per byte general compressors need for the predicted bytes."""
    pieces = [window[first:] for window, first in zip(held_out.windows, held_out.first, strict=True)]
    text = np.concatenate(pieces).tobytes()
    sizes = {
        "xz -9e": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)),
        "zlib -9": len(zlib.compress(text, 9)),
    }
    return {name: 8 * size / len(text) for name, size in sizes.items()}


def sample(model: LanguageModel, seed: int) -> str:
    """Return text drawn byte by byte from the model, in float32."""
    torch.manual_seed(seed)
    prompt = torch.tensor([list(PROMPT)], device=next(model.parameters()).device)
    drawn = model.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        max_new_tokens=SAMPLE_BYTES,
        use_cache=True,
    )
    return bytes(drawn[0].tolist()).decode("utf-8", "replace").strip("\n")


def main() -> None:
    """Print a table, and the samples to stderr."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, metavar="ENWIK8")
    parser.add_argument("--model", type=Path, default=SHIPPED["mini"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compute", default="float32", help="float32, bfloat16 or auto")
    parser.add_argument("--windows", type=int, help="only this number of windows, from the first")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    compute = choose_compute(arguments.compute, device)
    model = load_language_model(arguments.model, device)
    text = Text(arguments.text)
    held_out = HeldOut(
        *(part[: arguments.windows] for part in text.held_out("test", (model.max_tokens or 1024) + 1))
    )
    size = sum(p.numel() for p in model.parameters())
    name = f"{arguments.model.name}, {size / 1e6:.1f} million parameters, {compute}"
    bits_by_name = {name: bits_per_byte(model, text, held_out, compute)} | compressed(held_out)
    print(
        f"| {(held_out.windows.shape[1] - held_out.first).sum():,} bytes of the test part | bits per byte |\n|---|--:|"
    )
    print("\n".join(f"| {name} | {bits:.3f} |" for name, bits in bits_by_name.items()), flush=True)
    for seed in range(SAMPLES):
        print(f"\n--- sample of seed {seed} " + "-" * 40 + f"\n{sample(model, seed)}", file=sys.stderr)


if __name__ == "__main__":
    main()
