"""Measure whether blocks recall bits if the products of their queries and keys are near to the identity.

    python benchmarks/lookup.py MODEL ...            # mini, and folders or names of other models
    python benchmarks/lookup.py --heads MODEL ...    # only how near keys are to queries, by block and head

Each block of a pretrained model runs alone on the vectors of a random input layer, and a ridge readout predicts the
bits of bit-memory from the states of the last 20 tokens (1,000 bits, of which it sees half; validation rows choose the
penalty, and their share of right bits is shown, in percent; 75 needs no attention). For each block, ``product`` is the
largest cosine of a head's W_Q W_K^T with the identity, and ``keys`` the largest cosine of a head's W_Q with its W_K;
both are 1 for ``--init tied`` and near 0 for random weights. The last table has Spearman's rank correlation of each
with the share of bits that the attention alone recalls, over the blocks of each model and of all.

For each head, W_Q and W_K (d, width) are its matrices of queries and keys; with grouped keys, several heads have the
same W_K. ``--heads`` prints the cosine between the two as vectors, that between W_Q W_K^T (d, d) and the identity, and
the largest absolute cosine of random weights.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from recall import read, shares, states
from scipy.stats import spearmanr
from torch import Tensor, nn

from reservoir.backbones import load_backbone
from reservoir.backbones.backbone import Backbone
from reservoir.backbones.tied import head_maps
from reservoir.inputs.random_input import draw_layer
from reservoir.tasks.bits import BitMemory
from reservoir.tasks.windows import Windows


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


def main() -> None:
    """Print a row for each block of each model, then a row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rows", type=int, default=500, help="Training rows.")
    parser.add_argument("--init", default="pretrained")
    parser.add_argument("--heads", action="store_true", help="Print the cosines of each head alone.")
    options = parser.parse_args()
    if options.heads:
        print_heads(options.models)
        return
    source = BitMemory(train_rows=options.rows, valid_rows=options.rows // 5, test_rows=1)
    parts = {part: read(source, part) for part in ("train", "valid")}
    signs = {part: rows.signs for part, rows in parts.items()}
    blocks_of_all: list[RecallOfBlock] = []
    print("| block | product | keys | attention alone | block |\n|---|--:|--:|--:|--:|")
    for model in ("mini", *options.models):
        for number, (keys, products) in enumerate(cosines(load_backbone(model, options.init))):
            backbone = keep_block(load_backbone(model, options.init), number)
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


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
