"""Frozen sequence models behind one interface.

* `gpt2.py`: mini, whose weights come with this package; small, medium, large and xl; any GPT-2
  folder or hub name.
* `published.py`: bert, esm, t5, vit, dinov2, wav2vec2, hubert, llama and their relatives, built by
  transformers.
* `generic.py`: any other model of transformers; `vector_model.py`: how vectors enter one that takes none;
  `generic_checks.py`: tests of such models when they are loaded.
* `esn.py`: echo state networks.
* `kernels.py`: random kernels alone, without blocks.
* `registry.py`: these families, those of `reservoir.paper`, and those of other packages; it finds a
  backbone by its name.
"""

from reservoir.backbones.backbone import Backbone, attention_maps
from reservoir.backbones.family import GROUPS
from reservoir.backbones.registry import choose_init, families, find, find_shape, register
from reservoir.backbones.weights import (
    content_digest,
    describe_weights,
    load_backbone,
    load_native,
    weights_digest,
)

__all__ = [
    "GROUPS",
    "Backbone",
    "attention_maps",
    "choose_init",
    "content_digest",
    "describe_weights",
    "families",
    "find",
    "find_shape",
    "load_backbone",
    "load_native",
    "register",
    "weights_digest",
]
