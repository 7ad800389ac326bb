"""Where frozen weights come from: drawn at random from a seed, or loaded; and the digest that names them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from reservoir.backbones import gpt2
from reservoir.backbones.backbone import Backbone, Family
from reservoir.errors import InputError

FAMILIES: dict[str, Family] = {"gpt2": gpt2.GPT2}
KNOWN = dict.fromkeys(gpt2.SIZES, gpt2.config)
INITS = ("pretrained", "random")


def load_backbone(name: str, init: str = "random", seed: int = 0) -> Backbone:
    """Make a frozen backbone.

    Parameters
    ----------
    name : str
        A known size (``gpt2``, ``gpt2-medium``, ``gpt2-large``, ``gpt2-xl``), a folder with a ``config.json``, or the
        name of a model on the Hugging Face hub.
    init : {"random", "pretrained"}, default "random"
        ``random`` draws every weight from the family's default scheme and needs neither network nor weights;
        ``pretrained`` loads safetensors.
    seed : int, default 0
        Seed of the random weights.

    Returns
    -------
    Backbone
        In float32, on the CPU, in evaluation mode, with no gradients.

    Raises
    ------
    InputError
        If the name, its configuration or its weights are not here, or a weight is missing, extra, of another shape or
        not finite; the weight is named.
    """
    if init not in INITS:
        raise InputError(f"init {init!r}: choose one of {', '.join(INITS)}")
    _quiet()
    config = _config(name)
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise InputError(f"backbone {name!r}: family {config.model_type!r} is not known; known: {', '.join(FAMILIES)}")
    if init == "random":
        model = family.build(config)
        draw_random(model, family, config, seed)
    else:
        model = _load(name, family)
    return Backbone(model, family, config)


def draw_random(model: nn.Module, family: Family, config: Any, seed: int) -> None:
    """Redraw every weight in place from the family's default initialisation.

    Each tensor has a generator of its own, keyed by the seed and its name, and is drawn by NumPy: the same seed gives
    the same tensors on every machine (torch's own normal draws depend on the CPU's vector instructions), and a model
    cut to fewer blocks keeps the weights of the blocks it has.

    Parameters
    ----------
    model : Module
        The model; constants (biases, norms) stay as built.
    family : Family
        Its family, which knows the standard deviation of each weight.
    config : PretrainedConfig
        Its configuration.
    seed : int
        Any non-negative integer.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = family.std(name, config)
            if std:
                key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16])
                draw = np.random.Generator(np.random.Philox(key=key)).standard_normal(
                    tuple(parameter.shape), dtype=np.float32
                )
                parameter.copy_(torch.from_numpy(draw).mul_(std))


def weights_digest(backbone: Backbone) -> str:
    """Return the SHA-256 of a float32 backbone: its family, its configuration, and every tensor's name, shape and bytes.

    It changes when a weight changes, and not when a folder moves or is renamed.
    """
    digest = hashlib.sha256(backbone.family.name.encode())
    ignored = {"_name_or_path", "transformers_version", "architectures", "dtype", "vocab_size", "use_cache"}
    kept = {k: v for k, v in backbone.config.to_dict().items() if k not in ignored and not k.endswith("_token_id")}
    digest.update(json.dumps(kept, sort_keys=True, default=str).encode())
    for name, tensor in sorted(backbone.model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()


def _config(name: str) -> Any:
    from transformers import AutoConfig

    if name in KNOWN:
        return KNOWN[name](name)
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"backbone {name!r}: the folder has no config.json; give a transformers model folder")
    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = "its config.json is not readable" if folder.is_dir() else "no such folder, and not found on the hub"
        known = ", ".join(KNOWN)
        raise InputError(f"backbone {name!r}: {reason} ({_first_line(error)}); known names: {known}") from error


def _load(name: str, family: Family) -> nn.Module:
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise InputError(f"backbone {name!r}: the folder has no weights (*.safetensors); add them or use --init random")
    try:
        model, info = family.load(name)
    except Exception as error:  # the loader raises OSError, SafetensorError, RuntimeError and more for a bad file
        raise InputError(
            f"backbone {name!r}: its weights cannot be loaded ({_first_line(error)}); "
            "give a folder with safetensors, or use --init random"
        ) from error
    _check_loaded(name, family, model, info)
    return model


def _check_loaded(name: str, family: Family, model: nn.Module, info: dict[str, Any]) -> None:
    extra = [key for key in info["unexpected_keys"] if not key.startswith(family.heads)]
    # A mismatched entry is (key, checkpoint shape, model shape).
    wrong = [str(entry[0]) for entry in info["mismatched_keys"]]
    missing = [key for key in info["missing_keys"] if not key.startswith(family.unused)]
    for what, keys in (("misses", missing), ("has an extra", extra), ("has another shape for", wrong)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise InputError(f"backbone {name!r}: the checkpoint {what} weight {sorted(keys)[0]}{more}; it is not used")
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"backbone {name!r}: weight {key} holds NaN or infinity; the checkpoint is damaged")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:160] if text else type(error).__name__


def _quiet() -> None:
    from transformers.utils import logging

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
