"""The names of backbones, available without importing torch."""

import difflib
import re
from pathlib import Path

from reservoir.errors import InputError

NAMES = (
    *("mini", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
    *("bert-base-uncased", "roberta-base", "distilbert-base-uncased", "allenai/longformer-base-4096"),
    *("t5-small", "t5-base", "google/vit-base-patch16-224-in21k", "facebook/dinov2-base"),
    *("facebook/esm2_t6_8M_UR50D", "facebook/esm2_t12_35M_UR50D", "HuggingFaceTB/SmolLM2-135M"),
    *("facebook/wav2vec2-base", "facebook/hubert-base-ls960", "facebook/hubert-large-ll60k"),
    *("lstm", "lstm-12", "lstm-star", "esn"),
)
"""Names with known configurations: the keys of `reservoir.backbones.KNOWN`."""

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
    known = name.partition(":")[0] in NAMES or name in SHORT
    if not (known or "/" in name or Path(name).exists() or OLD_NAMES.fullmatch(name)):
        suggestion = did_you_mean(name)
        raise InputError(f"backbone {name!r}: no known name, and no such folder; {suggestion}Known: {', '.join(NAMES)}")


def did_you_mean(name: str) -> str:
    """Return a suggestion of similar known names, or an empty string."""
    near = difflib.get_close_matches(name, [*NAMES, *SHORT], n=2)
    return f"did you mean {' or '.join(near)}? " if near else ""
