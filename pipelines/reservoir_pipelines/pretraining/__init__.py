"""The stage ``pretrain``: backbones trained as language models from a random start."""
