"""Frozen sequence models behind one interface.

* `gpt2.py`: mini, whose weights come with this package; small, medium, large and xl; any GPT-2
  folder or hub name.
* `published.py`: bert, esm, t5, vit, dinov2, wav2vec2, hubert, llama and their relatives, built by
  transformers.
* `recurrent.py`: the LSTM of Lu et al. 2021 with 3 or 12 layers, their LSTM*, and echo state networks.
* `linformer.py` and `convolutional.py`: models that Lu et al. 2021 compare with.
"""

from reservoir.backbones.backbone import Backbone, attention_maps, check_layers, layer_names
from reservoir.backbones.family import GROUPS
from reservoir.backbones.names import FAMILIES, choose_init, find, find_shape
from reservoir.backbones.weights import (
    content_digest,
    describe_weights,
    load_backbone,
    load_native,
    weights_digest,
)

__all__ = ["FAMILIES", "GROUPS", "Backbone", "attention_maps", "check_layers", "choose_init"]
__all__ += [
    "content_digest",
    "describe_weights",
    "find",
    "find_shape",
    "layer_names",
    "load_backbone",
    "load_native",
]
__all__ += ["weights_digest"]
