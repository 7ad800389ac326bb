"""Frozen sequence models behind one interface, one file per family.

Families
--------
gpt2 : small, medium, large and xl by name, any GPT-2 folder or hub name.
"""

from reservoir.backbones.backbone import GROUPS, Backbone, Family, block_name
from reservoir.backbones.weights import FAMILIES, INITS, KNOWN, draw_random, load_backbone, weights_digest

__all__ = [
    "FAMILIES",
    "GROUPS",
    "INITS",
    "KNOWN",
    "Backbone",
    "Family",
    "block_name",
    "draw_random",
    "load_backbone",
    "weights_digest",
]
