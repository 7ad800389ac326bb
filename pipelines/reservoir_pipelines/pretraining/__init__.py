"""The stage ``pretrain``: backbones trained as language models from random weights."""
