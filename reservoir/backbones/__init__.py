"""Frozen sequence models behind one interface, one file per family.

Families
--------
gpt2 : mini, whose weights come with this package; small, medium, large and xl; any GPT-2 folder or hub name.
bert : BERT, RoBERTa, XLM-RoBERTa, DistilBERT, MiniLM, and Longformer for up to 4,096 tokens.
t5 : the encoder of T5, without its decoder.
vit : the Vision Transformer over any sequence of vectors.
dinov2 : the same of DINOv2, with a scale on each branch.
wav2vec2 : wav2vec 2.0 and HuBERT, models of sounds.
esm : ESM-2 and ESM-1b, models of protein letters.
llama : Llama, SmolLM, Mistral, Qwen, Gemma.
lstm : the paper's LSTM of 3 or 12 layers as released, its LSTM*, and ``lstm-norm`` with the cell of Ba et al. 2016.
esn : echo state networks.
"""

from reservoir.backbones.attention import attention_maps
from reservoir.backbones.backbone import Backbone, check_layers, layer_names
from reservoir.backbones.family import GROUPS
from reservoir.backbones.names import FAMILIES, KNOWN, default_init, find, find_shape, random_init
from reservoir.backbones.weights import INITS, describe_weights, load_backbone, load_native, weights_digest

__all__ = [
    "FAMILIES",
    "GROUPS",
    "INITS",
    "KNOWN",
    "Backbone",
    "attention_maps",
    "check_layers",
    "default_init",
    "describe_weights",
    "find",
    "find_shape",
    "layer_names",
    "load_backbone",
    "load_native",
    "random_init",
    "weights_digest",
]
