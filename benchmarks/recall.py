"""Bit-memory through an untrained GPT-2 whose keys equal its queries (`--init tied`), with an exact readout.

    python benchmarks/recall.py                     # one block, three seeds, and the parts of the block
    python benchmarks/recall.py --depth 12 --rows 500 --seeds 1
    python benchmarks/recall.py --variants          # other scales, on validation rows only

The task has its published size: 1,000 bits, of which a readout sees half. Ridge regression reads the states of the last
20 tokens; validation rows choose its penalty. "attention" is the output of the block's attention alone, and "without
feed-forward" its sum with the input of the block. Shares of all bits that are right, in percent.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones import load_backbone
from reservoir.backbones.backbone import Backbone
from reservoir.inputs.random_input import InputLayer, draw_layer
from reservoir.tasks.bits import BitMemory
from reservoir.tasks.windows import Windows

PENALTIES = np.logspace(-2, 4, 13)
BATCH = 50  # rows
INITS = ("tied", "random")


def scale(
    queries_and_keys: float = 1.0, values: float = 1.0, feedforward: float = 1.0
) -> Callable[[nn.Module], None]:
    """Return a function that multiplies weights of a block."""

    def change(block: nn.Module) -> None:
        attention = block.get_submodule("attn")
        into, out = (attention.get_parameter(f"{name}.weight") for name in ("c_attn", "c_proj"))
        width = len(into)
        into[:, : 2 * width] *= queries_and_keys
        into[:, 2 * width :] *= values
        out *= values
        block.get_parameter("mlp.c_proj.weight").mul_(feedforward)

    return change


VARIANTS: dict[str, tuple[str, Callable[[nn.Module], None]]] = {
    "as drawn": ("gpt2", scale()),
    "queries and keys x 0.8": ("gpt2", scale(queries_and_keys=0.8)),
    "queries and keys x 1.25": ("gpt2", scale(queries_and_keys=1.25)),
    "24 heads, queries and keys x 0.84": ("gpt2:n_head=24", scale(queries_and_keys=0.84)),
    "3 heads, queries and keys x 0.99": ("gpt2:n_head=3", scale(queries_and_keys=0.99)),
    "values and output x 2": ("gpt2", scale(values=2.0)),
    "values and output x 4": ("gpt2", scale(values=4.0)),
    "feed-forward x 0.1": ("gpt2", scale(feedforward=0.1)),
}


class Rows(NamedTuple):
    """Bits (rows, tokens, 50) of one split, and the signs (rows * 20, 50) that the readout predicts."""

    x: Tensor
    signs: np.ndarray


def read(source: BitMemory, part: str) -> Rows:
    """Return the rows of a split."""
    splits = [source.read(piece)[part] for piece in source.pieces() if piece.part == part]
    labels = np.concatenate([split.y for split in splits])
    signs = 2.0 * labels.reshape(-1, labels.shape[-1]) - 1
    return Rows(torch.from_numpy(np.concatenate([split.x for split in splits])).float(), signs)


@torch.inference_mode()
def states(backbone: Backbone, inputs: InputLayer, rows: Rows, last: int) -> dict[str, np.ndarray]:
    """Return the states (rows * last, width) of the last tokens by layer, and of the parts of the first block."""
    recorded: dict[str, list[Tensor]] = {}

    def record(name: str) -> Callable[[Tensor], None]:
        return lambda hidden: recorded.setdefault(name, []).append(hidden[:, -last:].float().clone())

    attention = backbone.blocks[0].get_submodule(backbone.family.attention)
    handle = attention.register_forward_hook(
        lambda _module, _inputs, output: record("attention")(output[0])
    )
    blocks = backbone.layers[1:-1]
    for x in rows.x.split(BATCH):
        for layer, hidden in backbone.run_layers(inputs(x), layers=blocks):
            record(layer)(hidden)
    handle.remove()
    whole = {name: torch.cat(parts).flatten(0, 1).double().numpy() for name, parts in recorded.items()}
    return {
        "attention": whole["attention"],
        "without feed-forward": whole["embed"] + whole["attention"],
        **{layer: whole[layer] for layer in blocks},
    }


def ridge(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the coefficients and the intercept of ridge regression of standardised features for each penalty."""
    mean, std, y_mean = x.mean(axis=0), x.std(axis=0), y.mean(axis=0)
    z = (x - mean) / std
    values, vectors = np.linalg.eigh(z.T @ z)
    product = vectors.T @ (z.T @ (y - y_mean))
    for penalty in PENALTIES:
        coef = vectors @ (product / (values + penalty)[:, None]) / std[:, None]
        yield coef, y_mean - mean @ coef


def shares(of_parts: dict[str, np.ndarray], signs: dict[str, np.ndarray]) -> tuple[float, float]:
    """Return the shares of the bits of valid and of test that the readout best on valid has right, in percent."""

    def share(part: str, coef: np.ndarray, intercept: np.ndarray) -> float:
        return 100 * float(((of_parts[part] @ coef + intercept > 0) == (signs[part] > 0)).mean())

    fits = list(ridge(of_parts["train"], signs["train"]))
    valid, best = max((share("valid", *fit), number) for number, fit in enumerate(fits))
    return valid, share("test", *fits[best]) if "test" in of_parts else float("nan")


def results(
    source: BitMemory, parts: dict[str, Rows], name: str, init: str, seed: int, depth: int,
    change: Callable[[nn.Module], None],
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """Return the shares of valid and test by layer."""
    backbone = load_backbone(name, init, seed, depth)
    for block in backbone.blocks:
        change(block)
    inputs, last = (
        draw_layer("orthogonal", source.task, Windows(), backbone.width, seed=seed),
        source.task.readout_tokens,
    )
    by_part = {part: states(backbone, inputs, rows, last) for part, rows in parts.items()}
    signs = {part: rows.signs for part, rows in parts.items()}
    return {
        layer: shares({part: layers[layer] for part, layers in by_part.items()}, signs)
        for layer in by_part["train"]
    }


def main() -> None:
    """Print a row for each initialisation, seed and layer, or for each variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000, help="Training rows.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--variants", action="store_true")
    options = parser.parse_args()
    source = BitMemory(train_rows=options.rows, valid_rows=options.rows // 5, test_rows=options.rows // 2)
    names = ("train", "valid") if options.variants else ("train", "valid", "test")
    parts = {part: read(source, part) for part in names}
    if options.variants:
        print("| tied, seed 0 | attention | without feed-forward | first block |\n|---|--:|--:|--:|")
        for title, (name, change) in VARIANTS.items():
            by_layer = results(source, parts, name, "tied", 0, 1, change)
            print(
                f"| {title} | {' | '.join(f'{valid:.1f}' for valid, _test in by_layer.values())} |",
                flush=True,
            )
        return
    print("| layer, init, seed | valid | test |\n|---|--:|--:|")
    for init in INITS:
        for seed in range(options.seeds):
            by_layer = results(source, parts, "gpt2", init, seed, options.depth, scale())
            for layer, (valid, test) in by_layer.items():
                print(f"| {layer}, {init}, {seed} | {valid:.1f} | **{test:.1f}** |", flush=True)


if __name__ == "__main__":
    main()
