"""How near the keys of pretrained models are to their queries, by block and head.

    python benchmarks/tied.py MODEL ...    # mini, and folders or names of other models

For each head, W_Q and W_K (d, width) are its matrices of queries and keys; with grouped keys, several heads have the
same W_K. The first column is the cosine between the two as vectors, the second one the cosine between W_Q W_K^T (d, d)
and the identity. Both are 1 with ``--init tied``. The last column is the largest absolute cosine of random weights.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from reservoir.backbones import load_backbone
from reservoir.backbones.backbone import Backbone
from reservoir.backbones.tied import head_maps


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


def main() -> None:
    """Print a row for each block of each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    print("| block | queries and keys, by head | product and identity, by head | random, largest |")
    print("|---|---|---|--:|")
    for name in ("mini", *parser.parse_args().models):
        pretrained, random = (cosines(load_backbone(name, init)) for init in ("pretrained", "random"))
        for number, (of_block, of_random) in enumerate(zip(pretrained, random, strict=True), start=1):
            by_head = [" ".join(f"{value:.2f}" for value in values.tolist()) for values in of_block]
            largest = of_random[0].abs().max().item()
            print(f"| {Path(name).name}, {number} | {by_head[0]} | {by_head[1]} | {largest:.3f} |")


if __name__ == "__main__":
    main()
