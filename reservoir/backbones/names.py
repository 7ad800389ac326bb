"""Family and configuration of a backbone by its name: a known name, a folder, a GGUF file, or a hub name."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reservoir.backbone_names import KNOWN, locate
from reservoir.backbones.family import Family, Shape, attention_name, silence_transformers
from reservoir.backbones.generic import excessive_count, generic_family
from reservoir.backbones.gguf_file import gguf_package, read_gguf_config
from reservoir.backbones.quantised import check_method, quantisation_of
from reservoir.backbones.registry import families
from reservoir.errors import InputError, as_input_error

MAX_BLOCKS = 1000
"""Largest number of blocks, more than any model has; counting the parameters takes milliseconds per block."""


def find(name: str, depth: int | None = None) -> tuple[Family, Any]:
    """Return the family and the configuration of a backbone that has at least ``depth`` blocks.

    ``name`` is a key of `KNOWN`, optionally with settings of its configuration, as in
    ``esn:units=500,sr=1.1``; a folder with a ``config.json``; a GGUF file; or a hub name.
    """
    families()  # of other packages, too: their names are in `KNOWN` only then
    known_name, _, settings = name.partition(":")
    if known_name in KNOWN:
        config = _known_config(*KNOWN[known_name])
        if settings:
            config = _with_settings(name, config, settings)
    else:
        path = locate(name, "config.json")
        config = _from_gguf(name, path) if path.is_file() else _from_folder(name, path)
    family = _family_of(name, config.model_type)
    if family is None:
        _refuse_code(name, config)  # first, because the parts of the model are looked up in the model
        with as_input_error(f"backbone {name!r}: its model cannot be built", "choose another model"):
            family = generic_family(config)
    _check_config(name, family, config, depth)
    return family, config


def find_shape(name: str, depth: int | None = None) -> tuple[Family, Shape]:
    """Return the family and `Shape` of a backbone, cut to its first ``depth`` blocks; no weights are loaded."""
    family, config = find(name, depth)
    _check_buildable(name, family, config)
    shape = family.shape(config)
    return family, replace(shape, depth=depth or shape.depth)


def _check_buildable(name: str, family: Family, config: Any) -> None:
    """Refuse a configuration of which no model can be built."""
    # Measuring a model builds it without memory, which fails for heads that do not divide the width or an unknown
    # activation. The size itself is not needed.
    with usable_configuration(name):
        family.loader.size(config)


def may_have_weights(name: str) -> bool:
    """Return whether weights may be published: not for altered settings, and not for some families."""
    known_name, colon, _ = name.partition(":")
    if known_name not in KNOWN:
        return True
    family_name, _ = KNOWN[known_name]
    return not colon and families()[family_name].pretrained


def choose_init(name: str, init: str | None, *, random_inits: Mapping[str, str] = {}) -> str:
    """Return the init with the default, ``random`` and ``random-scaled`` resolved.

    The default is ``random`` for families without published weights and for altered settings, else
    ``pretrained``. ``random-scaled`` is the initialisation of the family, and so is ``random``, except
    for the families in ``random_inits``, which has another init for each.
    """
    if init is None:
        init = "pretrained" if may_have_weights(name) else "random"
    if init == "random" and random_inits:
        family, _ = find(name)
        return random_inits.get(family.name, init)
    return "random" if init == "random-scaled" else init


@contextmanager
def pretrained_files(name: str, *files: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder of a backbone (see `locate`), or an empty folder and the option that names a GGUF file."""
    silence_transformers()
    path = locate(name, *files)
    if path.is_dir():
        yield path, {}
        return
    with TemporaryDirectory() as empty:  # so that no other file is read
        yield Path(empty), {"gguf_file": str(path.absolute())}


def _known_config(family: str, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a family with some settings."""
    own_class = families()[family].config
    if own_class is not None:
        return own_class(**settings)
    from transformers import AutoConfig

    return AutoConfig.for_model(family, **settings)


def _with_settings(name: str, config: Any, settings: str) -> Any:
    """Return a configuration with settings such as ``units=500,sr=1.1`` changed."""
    values = config.to_dict()
    for setting in settings.split(","):
        key, equals, text = setting.partition("=")
        if not equals or key not in values or key == "model_type":
            numeric_keys = [
                key
                for key, value in values.items()
                if isinstance(value, int | float) and not key.startswith("_")
            ]
            raise InputError(
                f"backbone {name!r}: {setting!r} is not NAME=VALUE",
                f"NAME is one of {', '.join(numeric_keys)}",
            )
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    with as_input_error(f"backbone {name!r}: its settings are not valid", "give the setting another value"):
        return type(config)(**values)


def _check_config(name: str, family: Family, config: Any, depth: int | None) -> None:
    """Refuse sizes that no model has, a depth that this one does not have, and code from the hub."""
    with usable_configuration(name):
        shape = family.shape(config)
    sizes = {
        "blocks": shape.depth if family.blocks else None,
        "width": shape.width,
        "positions": shape.max_tokens,
        "attention heads": getattr(config, "num_attention_heads", getattr(config, "n_head", None)),
    }
    for what, size in sizes.items():
        if size is not None and (type(size) is not int or size < 1):
            raise InputError(
                f"backbone {name!r}: its configuration sets {what} to {size}", "give at least 1"
            )
    for key, value in config.to_dict().items():  # torch refuses a dropout of NaN only when it runs
        if isinstance(value, float) and math.isnan(value):
            raise InputError(f"backbone {name!r}: its configuration sets {key} to NaN", "give a number")
    if shape.depth > MAX_BLOCKS:
        raise InputError(
            f"backbone {name!r}: its configuration has {shape.depth} blocks", f"give at most {MAX_BLOCKS}"
        )
    if depth is not None and not family.blocks:
        raise InputError(f"depth {depth}: backbone {name!r} has no blocks", "leave out --depth")
    if depth is not None and not 1 <= depth <= shape.depth:
        raise InputError(
            f"depth {depth}: backbone {name!r} has {shape.depth} blocks", f"keep 1 to {shape.depth} of them"
        )
    if family.config is None:
        _refuse_code(name, config)


def _refuse_code(name: str, config: Any) -> None:
    """Refuse a configuration of transformers that asks for code, itself or by a configuration inside it."""
    from transformers import PreTrainedConfig

    # For other attention functions and for quantised weights, transformers may download compiled code and run it.
    is_quantised = bool(getattr(config, "quantization_config", None))
    has_other_attention = attention_name(config) not in ("", "None", "sdpa", "eager")
    if is_quantised or has_other_attention:
        raise InputError(
            f"backbone {name!r}: its config.json asks for code, for attention or quantised weights of a part",
            "remove attn_implementation, or choose weights that are not quantised",
        )
    for inner in vars(config).values():
        if isinstance(inner, PreTrainedConfig):
            _refuse_code(name, inner)


def usable_configuration(name: str) -> AbstractContextManager[None]:
    """Raise `InputError` for any error inside the context, which builds or measures a model."""
    return as_input_error(f"backbone {name!r}: this configuration is invalid", "change a setting")


def _from_folder(name: str, folder: Path) -> Any:
    """Return the configuration in the folder of a backbone."""
    with as_input_error(f"backbone {name!r}: its config.json is not readable", "add or repair the file"):
        values = json.loads((folder / "config.json").read_text())
        model_type = values["model_type"]
        if (values.get("num_labels") or 0) > 10**6:  # transformers makes a name for each, in memory
            raise ValueError("num_labels is more than a million")
        if quantisation := quantisation_of(values):
            check_method(name, quantisation)
    # Refused before transformers makes an object for each part.
    if excess := excessive_count(values):
        raise InputError(f"backbone {name!r}: in its config.json {excess}", "use a smaller model")
    family = _family_of(name, model_type)
    with as_input_error(f"backbone {name!r}: its config.json is not valid", "change a setting"):
        if family is not None and family.config is not None:
            return family.config(**values)
        from transformers import AutoConfig

        silence_transformers()
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        vars(config).pop("quantization_config", None)  # `quantised.expanded` expands the tensors
        return config


def _from_gguf(name: str, path: Path) -> Any:
    """Return the configuration in the GGUF file of a backbone."""
    gguf_package()
    problem = f"backbone {name!r}: its configuration is not readable"
    with as_input_error(problem, "give an intact GGUF file"):
        config = read_gguf_config(path)
        family = _family_of(str(path), config.model_type)
        own_class = family.config if family else None
        return own_class(**config.to_dict()) if own_class else config


def _family_of(name: str, model_type: object) -> Family | None:
    """Return the family of a model type that is described by hand; None for others that transformers knows."""
    if isinstance(model_type, str) and model_type in families():
        return families()[model_type]
    from transformers import CONFIG_MAPPING

    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise InputError(
            f"backbone {name!r}: family {model_type!r} is not known",
            f"use a model of transformers, or one of {', '.join(families())}",
        )
    return None
