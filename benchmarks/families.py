"""Print the table of known backbones with their parameters by group, as Markdown, without creating weights.

python benchmarks/families.py
"""

import torch

from reservoir.backbone_names import KNOWN
from reservoir.backbones import GROUPS, Backbone
from reservoir.backbones.backbone import group_counts, whole_count
from reservoir.backbones.names import find


def row(name: str) -> list[str]:
    """Return the cells of one backbone: its shape, whole size, and parameters by group."""
    family, config = find(name)
    with torch.device("meta"):
        backbone = Backbone(family.loader.build(config), family, config)
    longest = f"{backbone.max_tokens:,}" if backbone.max_tokens else "any"
    reads = "causal" if backbone.causal else "both ways"
    shape = [f"`{name}`", family.name, reads, str(backbone.depth), str(backbone.width), longest]
    counts = [whole_count(backbone), *group_counts(backbone).values()]
    return [*shape, *(f"{count:,}" if count else "" for count in counts)]


def main() -> None:
    """Print the table."""
    heads = ["backbone", "family", "reads", "blocks", "width", "tokens", "whole model", *GROUPS]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * 3 + "--:|" * (len(heads) - 3))
    for name in KNOWN:
        print("| " + " | ".join(row(name)) + " |")


if __name__ == "__main__":
    main()
