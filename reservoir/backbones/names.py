"""Family and configuration of a backbone by its name: a known name, a folder, a GGUF file, or a hub name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reservoir.backbone_names import KNOWN, SHORT, check_backbone_name
from reservoir.backbones import gpt2, published, recurrent
from reservoir.backbones.family import Family, Shape, attention_name, local_files_only, silence_transformers
from reservoir.errors import InputError, as_input_error, first_line, nearest

FAMILIES: dict[str, Family] = {
    family.name: family for family in (gpt2.GPT2, *published.FAMILIES, recurrent.LSTM, recurrent.ESN)
}
"""Every family by the ``model_type`` of its configurations."""

# Families that this package builds itself: their configurations are not those of transformers.
CONFIGS_BUILT_HERE: dict[str, Callable[..., Any]] = {
    "gpt2": gpt2.read_config,
    "lstm": recurrent.LSTMConfig,
    "esn": recurrent.ESNConfig,
}

MAX_BLOCKS = 1000
"""Largest number of blocks, more than any model has; counting the parameters takes milliseconds per block."""

# Families without published weights.
UNPUBLISHED = ("lstm", "esn")

SHIPPED: dict[str, Path] = {"mini": Path(__file__).parent / "mini"}
"""Folders of the backbones whose pretrained weights come with this package."""


def find(name: str) -> tuple[Family, Any]:
    """Return the family and the configuration of a backbone.

    ``name`` is a key of `KNOWN`, optionally with settings of its configuration, as in ``esn:units=500,sr=1.1``; a
    folder with a ``config.json``; a GGUF file; or a hub name.
    """
    known, _, settings = name.partition(":")
    if known in KNOWN:
        config = _make(*KNOWN[known])
        config = _altered(name, config, settings) if settings else config
    elif Path(name).is_dir():
        config = _from_folder(name)
    else:
        config = _from_transformers(name)
    if config.model_type not in FAMILIES:
        raise _unknown(name, config.model_type)
    family = FAMILIES[config.model_type]
    _check_config(name, family, config)
    return family, config


def find_shape(name: str, depth: int | None = None) -> tuple[Family, Shape]:
    """Return the family and `Shape` of a backbone, cut to its first ``depth`` blocks; no weights are loaded."""
    family, config = find(name)
    shape = family.shape(config)
    check_depth(name, shape.depth, depth)
    return family, replace(shape, depth=depth or shape.depth)


def check_depth(name: str, blocks: int, depth: int | None) -> None:
    """Raise `InputError` if a backbone with this number of blocks cannot be cut to its first ``depth``."""
    if depth is not None and not 1 <= depth <= blocks:
        raise InputError(f"depth {depth}: backbone {name!r} has {blocks} blocks; keep 1 to {blocks} of them")


def choose_init(name: str, init: str | None, *, published: bool = False) -> str:
    """Return the init with the default, ``random`` and ``random-scaled`` resolved.

    The default is ``random`` for families without published weights and for altered settings, else ``pretrained``.
    ``random`` is the initialisation of the family. ``random-scaled`` means the same for GPT-2, and raises `InputError`
    for other families. With ``published``, GPT-2 gets that of the paper's library, transformers 4.1.1: ``random-flat``.
    """
    if init is None:
        known, colon, _ = name.partition(":")
        init = "random" if colon or (known in KNOWN and KNOWN[known][0] in UNPUBLISHED) else "pretrained"
    if init == "random-scaled":
        if find(name)[0] is not gpt2.GPT2:
            raise InputError(f"init 'random-scaled': it is only for GPT-2, not for {name!r}; use --init random")
        return "random"
    return "random-flat" if init == "random" and published and find(name)[0] is gpt2.GPT2 else init


def gguf_argument(name: str) -> dict[str, str]:
    """Return the argument with which transformers reads a GGUF file; empty for other names."""
    # A bare name would mean the file of that name in the current folder, if there is one.
    file = Path(name).absolute() if Path(name).is_file() else Path(name).name
    return {"gguf_file": str(file)} if name.endswith(".gguf") else {}


def _make(model_type: str, settings: dict[str, Any]) -> Any:
    if model_type in CONFIGS_BUILT_HERE:
        return CONFIGS_BUILT_HERE[model_type](**settings)
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **settings)


def _altered(name: str, config: Any, settings: str) -> Any:
    values = config.to_dict()
    for setting in settings.split(","):
        key, equals, text = setting.partition("=")
        if not equals or key not in values or key == "model_type":
            numbers = [k for k, v in values.items() if isinstance(v, int | float) and not k.startswith("_")]
            raise InputError(f"backbone {name!r}: {setting!r} is not NAME=VALUE; NAME is one of {', '.join(numbers)}")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    with as_input_error(f"backbone {name!r}: its settings are not valid", "give the setting another value"):
        return type(config)(**values)


def _check_config(name: str, family: Family, config: Any) -> None:
    """Refuse sizes and activations that no model has, and code from the hub."""
    with as_input_error(f"backbone {name!r}: this configuration is invalid", "change a setting"):
        shape = family.shape(config)
    heads = {"attention heads": "num_attention_heads", "key-value heads": "num_key_value_heads"}
    limited = {"positions": shape.max_tokens} | {what: getattr(config, key, None) for what, key in heads.items()}
    sizes = {"blocks": shape.depth, "width": shape.width} | {k: v for k, v in limited.items() if v is not None}
    for what, size in sizes.items():
        if type(size) is not int or size < 1:
            raise InputError(f"backbone {name!r}: its configuration sets {what} to {size}; give at least 1")
    if shape.depth > MAX_BLOCKS:
        raise InputError(f"backbone {name!r}: its configuration has {shape.depth} blocks; give at most {MAX_BLOCKS}")
    # For other attention functions and for quantised weights, transformers may download compiled code and run it.
    quantised = {} if gguf_argument(name) else getattr(config, "quantization_config", None)
    for key, value in {"attn_implementation": attention_name(config), "quantization_config": quantised}.items():
        if config.model_type not in CONFIGS_BUILT_HERE and value and value not in ("None", "sdpa", "eager"):
            start = f"backbone {name!r}: its config.json asks for code with {key} {str(value)[:60]!r}, which is not run"
            raise InputError(f"{start}; remove an attn_implementation, or choose weights that are not quantised")
    for key in ("activation_function", "activation", "hidden_act", "hidden_activation"):
        value = getattr(config, key, None)
        if value is None or value in gpt2.TANH_GELU:
            continue
        from transformers.activations import ACT2FN

        if value not in ACT2FN:
            known = ", ".join(ACT2FN)
            raise InputError(f"backbone {name!r}: {key}={value} is not an activation; use one of {known}")


def _from_folder(name: str) -> Any:
    file = Path(name) / "config.json"
    if not file.is_file():
        raise InputError(f"backbone {name!r}: the folder has no config.json; give a transformers model folder")
    with as_input_error(f"backbone {name!r}: its config.json is not readable", "repair the file"):
        values = json.loads(file.read_text())
        model_type = values["model_type"]
        if (values.get("num_labels") or 0) > 10**6:  # transformers makes a name for each, in memory
            raise ValueError("num_labels is more than a million")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise _unknown(name, model_type)
    if model_type not in CONFIGS_BUILT_HERE:
        return _from_transformers(name)
    with as_input_error(f"backbone {name!r}: its config.json is not valid", "change a setting"):
        return CONFIGS_BUILT_HERE[model_type](**values)


def _from_transformers(name: str) -> Any:
    from transformers import AutoConfig

    silence_transformers()
    check_backbone_name(name)
    source = str(Path(name).parent) if gguf_argument(name) else name
    try:
        config = AutoConfig.from_pretrained(
            source, local_files_only=local_files_only(source), trust_remote_code=False, **gguf_argument(name)
        )
        ours = CONFIGS_BUILT_HERE.get(config.model_type)
        return ours(**config.to_dict()) if ours else config
    except Exception as error:  # transformers, the hub's client and damaged configurations raise many types of errors
        is_folder = Path(source).is_dir()
        reason = "its configuration is not readable" if is_folder else "no such folder, and not on the Hugging Face hub"
        problem = f"backbone {name!r}: {reason} ({first_line(error)})"
        raise InputError(f"{problem}; known: {', '.join(KNOWN)}{nearest(name, [*KNOWN, *SHORT])}") from error


def _unknown(name: str, model_type: str) -> InputError:
    return InputError(f"backbone {name!r}: family {model_type!r} is not known; use one of {', '.join(FAMILIES)}")
