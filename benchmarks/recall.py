"""How many bits of bit-memory attention recalls: untrained with equal keys and queries (`--init tied`), and pretrained.

    python benchmarks/recall.py                     # one tied block, three seeds, and the parts of the block
    python benchmarks/recall.py --depth 12 --rows 500 --seeds 1
    python benchmarks/recall.py --variants          # other scales, on validation rows only
    python benchmarks/recall.py --blocks MODEL ...  # each block of mini, and of folders or names of other models
    python benchmarks/recall.py --heads MODEL ...   # only how near keys are to queries, by block and head

The task has its published size: 1,000 bits, of which a readout sees half. Ridge regression reads the states of the last
20 tokens; validation rows choose its penalty. "attention" is the output of the block's attention alone, and "without
feed-forward" its sum with the input of the block. Shares of all bits that are right, in percent; 75 needs no attention.

With ``--blocks`` each block of a pretrained model runs alone on the vectors of a random input layer, with 500 training
rows; the shares are those of validation rows. For each block, ``product`` is the largest cosine of a head's W_Q W_K^T
with the identity, and ``keys`` the largest cosine of a head's W_Q with its W_K; both are 1 for ``--init tied`` and near
0 for random weights. The last table has Spearman's rank correlation of each with the share of bits that the attention
alone recalls, over the blocks of each model and of all.

For each head, W_Q and W_K (d, width) are its matrices of queries and keys; with grouped keys, several heads have the
same W_K. ``--heads`` prints the cosine between the two as vectors, that between W_Q W_K^T (d, d) and the identity, and
the largest absolute cosine of random weights.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from reservoir.backbones import load_backbone
from reservoir.backbones.backbone import Backbone
from reservoir.backbones.tied import head_maps
from reservoir.inputs.input_layers import InputLayer, draw_layer
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


@dataclass(frozen=True)
class RecallOfBlock:
    """The largest cosines of the heads of a block, and the share of bits that its attention recalls, in percent."""

    model: str
    product: float
    keys: float
    recalled: float


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine between matrices (heads, n, m) as vectors, (heads,)."""
    return torch.cosine_similarity(a.flatten(1), b.flatten(1), dim=1)


def cosines(backbone: Backbone) -> list[tuple[Tensor, Tensor]]:
    """Return for each block the cosines (heads,) of queries with keys, and of their product with the identity."""
    of_blocks = []
    for block in backbone.blocks:
        maps = head_maps(backbone.family, backbone.config, block)
        queries = maps.queries
        keys = maps.keys.repeat_interleave(len(queries) // len(maps.keys), dim=0)
        products = queries @ keys.transpose(1, 2)
        identity = torch.eye(products.shape[1]).expand_as(products)
        of_blocks.append((cosine(queries, keys), cosine(products, identity)))
    return of_blocks


def print_heads(models: Sequence[str]) -> None:
    """Print the cosines of each head, in a row for each block of each model."""
    print("| block | queries and keys, by head | product and identity, by head | random, largest |")
    print("|---|---|---|--:|")
    for name in ("mini", *models):
        pretrained, random = (cosines(load_backbone(name, init)) for init in ("pretrained", "random"))
        for number, (of_block, of_random) in enumerate(zip(pretrained, random, strict=True), start=1):
            by_head = [" ".join(f"{value:.2f}" for value in values.tolist()) for values in of_block]
            largest = of_random[0].abs().max().item()
            print(f"| {Path(name).name}, {number} | {by_head[0]} | {by_head[1]} | {largest:.3f} |")


def keep_block(backbone: Backbone, number: int) -> Backbone:
    """Return the backbone with one of its blocks (from 0) as its only block."""
    parent, _, name = backbone.family.blocks.rpartition(".")
    setattr(backbone.model.get_submodule(parent), name, nn.ModuleList([backbone.blocks[number]]))
    backbone.depth = 1
    backbone.layers = ("embed", "block01", "final")
    return backbone


def print_blocks(models: Sequence[str], rows: int) -> None:
    """Print a row for each block of each model, then a row for each model."""
    source = BitMemory(train_rows=rows, valid_rows=rows // 5, test_rows=1)
    parts = {part: read(source, part) for part in ("train", "valid")}
    signs = {part: rows.signs for part, rows in parts.items()}
    blocks_of_all: list[RecallOfBlock] = []
    print("| block | product | keys | attention alone | block |\n|---|--:|--:|--:|--:|")
    for model in ("mini", *models):
        for number, (keys, products) in enumerate(cosines(load_backbone(model, "pretrained"))):
            backbone = keep_block(load_backbone(model, "pretrained"), number)
            inputs = draw_layer("orthogonal", source.task, Windows(), backbone.width, seed=0)
            by_part = {
                part: states(backbone, inputs, rows, source.task.readout_tokens)
                for part, rows in parts.items()
            }
            attention, whole = (
                shares({part: layers[layer] for part, layers in by_part.items()}, signs)[0]
                for layer in ("attention", "block01")
            )
            block = RecallOfBlock(Path(model).name, products.max().item(), keys.max().item(), attention)
            blocks_of_all.append(block)
            print(
                f"| {block.model}, {number + 1} | {block.product:.2f} | {block.keys:.2f} "
                f"| {attention:.1f} | {whole:.1f} |",
                flush=True,
            )
    print("\n| model | blocks | product | p | keys | p |\n|---|--:|--:|--:|--:|--:|")
    names = dict.fromkeys(block.model for block in blocks_of_all)
    for name in (*names, "all"):
        blocks = [block for block in blocks_of_all if name in (block.model, "all")]
        recalled = [block.recalled for block in blocks]
        cells = []
        for cosine_of_blocks in ([block.product for block in blocks], [block.keys for block in blocks]):
            correlation, p_value = spearmanr(cosine_of_blocks, recalled)
            cells += [f"{correlation:.2f}", f"{p_value:.2g}"]
        print(f"| {name} | {len(blocks)} | {' | '.join(cells)} |")


def main() -> None:
    """Print a row for each initialisation, seed and layer, or for each variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, help="Training rows: by default 1,000, and 500 with --blocks.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument(
        "--blocks", nargs="*", metavar="MODEL", help="Run each block of pretrained models alone."
    )
    parser.add_argument("--heads", nargs="*", metavar="MODEL", help="Print the cosines of each head alone.")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.heads is not None:
        print_heads(options.heads)
        return
    if options.blocks is not None:
        print_blocks(options.blocks, options.rows or 500)
        return
    train_rows = options.rows or 1000
    source = BitMemory(train_rows=train_rows, valid_rows=train_rows // 5, test_rows=train_rows // 2)
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
