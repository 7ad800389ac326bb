"""The known backbones, available without importing torch."""

import difflib
import re
from pathlib import Path
from typing import Any

from reservoir.errors import InputError

_LARGE = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
_ROBERTA = {"vocab_size": 50265, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_LONGFORMER = {"max_position_embeddings": 4098, "pad_token_id": 1, "attention_window": [512] * 12}
_ESM = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "num_attention_heads": 20, "token_dropout": True}
_ESM |= {"max_position_embeddings": 1026, "position_embedding_type": "rotary"}
_ESM_8M = _ESM | {"num_hidden_layers": 6, "hidden_size": 320, "intermediate_size": 1280}
_ESM_35M = _ESM | {"num_hidden_layers": 12, "hidden_size": 480, "intermediate_size": 1920}
_SMOLLM = {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
_SMOLLM |= {"intermediate_size": 1536, "max_position_embeddings": 8192, "vocab_size": 49152}
_HUBERT = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}

KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    # Narrower than the others, so its initial weights have a larger deviation than GPT-2's 0.02: 1 / sqrt(256).
    "mini": ("gpt2", {"n_layer": 6, "n_embd": 256, "n_head": 4, "vocab_size": 256, "initializer_range": 0.0625}),
    "gpt2": ("gpt2", {"n_layer": 12, "n_embd": 768, "n_head": 12}),  # Radford et al. 2019, Table 2
    "gpt2-medium": ("gpt2", {"n_layer": 24, "n_embd": 1024, "n_head": 16}),
    "gpt2-large": ("gpt2", {"n_layer": 36, "n_embd": 1280, "n_head": 20}),
    "gpt2-xl": ("gpt2", {"n_layer": 48, "n_embd": 1600, "n_head": 25}),
    "bert-base-uncased": ("bert", {}),
    "roberta-base": ("roberta", {"max_position_embeddings": 514, **_ROBERTA}),
    "distilbert-base-uncased": ("distilbert", {}),
    "allenai/longformer-base-4096": ("longformer", _LONGFORMER | _ROBERTA),
    "t5-small": ("t5", {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048}),
    "t5-base": ("t5", {"num_layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072}),
    "google/vit-base-patch16-224-in21k": ("vit", {}),
    "facebook/dinov2-base": ("dinov2", {"image_size": 518}),
    "facebook/esm2_t6_8M_UR50D": ("esm", _ESM_8M),
    "facebook/esm2_t12_35M_UR50D": ("esm", _ESM_35M),
    "HuggingFaceTB/SmolLM2-135M": ("llama", {"tie_word_embeddings": True, **_SMOLLM}),
    "facebook/wav2vec2-base": ("wav2vec2", {}),
    "facebook/hubert-base-ls960": ("hubert", {}),
    "facebook/hubert-large-ll60k": ("hubert", _LARGE | _HUBERT),
    "lstm": ("lstm", {}),
    "lstm-12": ("lstm", {"depth": 12}),
    "lstm-star": ("lstm", {"depth": 12, "residual": True, "positions": 1024}),
    "esn": ("esn", {}),
}
"""Family and settings of each known backbone; names of transformers' models are those of the hub."""

SHORT = {
    "bert": "bert-base-uncased",
    "roberta": "roberta-base",
    "distilbert": "distilbert-base-uncased",
    "longformer": "allenai/longformer-base-4096",
    "t5": "t5-base",
    "vit": "google/vit-base-patch16-224-in21k",
    "dinov2": "facebook/dinov2-base",
    "wav2vec2": "facebook/wav2vec2-base",
    "hubert": "facebook/hubert-base-ls960",
    "esm": "facebook/esm2_t12_35M_UR50D",
}
"""Short names: the usual base size of each family."""

OLD_NAMES = re.compile(r"(distil|xlm-)?(bert|roberta|gpt2|t5)\b.*")
"""Names on the hub without an owner and a slash: the first models of these families."""


def check_backbone_name(name: str) -> None:
    """Raise `InputError` for a name that is neither known, nor a folder or file, nor possibly on the hub."""
    known = name.partition(":")[0] in KNOWN or name in SHORT
    if not (known or "/" in name or Path(name).exists() or OLD_NAMES.fullmatch(name)):
        suggestion = did_you_mean(name)
        raise InputError(f"backbone {name!r}: no known name, and no such folder; {suggestion}Known: {', '.join(KNOWN)}")


def did_you_mean(name: str) -> str:
    """Return a suggestion of similar known names, or an empty string."""
    near = difflib.get_close_matches(name, [*KNOWN, *SHORT], n=2)
    return f"did you mean {' or '.join(near)}? " if near else ""
