"""The registry of backbones: every family by its name, and the family and configuration of a backbone by its name.

The families are those of this folder, those of `reservoir.paper`, and those of other packages: another installed
package adds one by an entry point of the group `ENTRY_POINTS`, which names a `Family`; a program adds one by
`register`.
A backbone's name is a known name, a folder, a GGUF file, or a hub name.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reservoir.backbone_names import ENTRY_POINTS, KNOWN_BACKBONES, add_name, locate, plugins
from reservoir.backbones import esn, gpt2, kernels, published
from reservoir.backbones.family import Family, Shape, attention_name, silence_transformers
from reservoir.backbones.generic import excessive_count, generic_family
from reservoir.backbones.gguf_file import gguf_package, read_gguf_config
from reservoir.backbones.quantised import check_method, quantisation_of
from reservoir.errors import InputError, as_input_error

# Modules of this package that call `register`.
REGISTERING = ("reservoir.paper.lstm", "reservoir.paper.linformer", "reservoir.paper.cnn")

# The families that are known, by name. `register` adds others.
_families: dict[str, Family] = {
    family.name: family for family in (gpt2.GPT2, *published.FAMILIES, esn.ESN, kernels.KERNEL_FAMILY)
}

MAX_BLOCKS = 1000
"""Largest number of blocks, more than any model has; counting the parameters takes milliseconds per block."""


def register(family: Family) -> None:
    """Make a family known by its name, which becomes the name of a backbone with the default configuration.

    Parameters
    ----------
    family : Family
        The family; ``family.config`` builds its configuration.

    Raises
    ------
    ValueError
        If another family has this name.
    """
    registered = _families.setdefault(family.name, family)
    if registered is not family:  # registering the same family again changes nothing
        raise ValueError(f"a family of backbones is already called {family.name!r}")
    # Models of transformers have no configuration here: they are loaded by their own names, such as those on the hub.
    if family.config is not None:
        add_name(family.name)


@cache
def _load() -> None:
    """Register the other families of this package and those of other installed packages, in the first call alone."""
    for module in REGISTERING:
        import_module(module)
    # All of them are loaded, whatever name is asked for, so that no name in a file decides what is imported.
    for plugin in plugins():
        problem = (
            f"backbone {plugin.name!r}: {plugin.value}, of another installed package, cannot be loaded"
        )
        with as_input_error(problem, "update or uninstall that package"):
            family = plugin.load()
            if not isinstance(family, Family) or family.name != plugin.name:
                raise ValueError(f"the entry point of {ENTRY_POINTS} is not a Family of this name")
            register(family)


def families() -> Mapping[str, Family]:
    """Return every family by the ``model_type`` of its configurations; the first call loads those of other packages."""
    _load()
    return _families


def find(name: str, depth: int | None = None) -> tuple[Family, Any]:
    """Return the family and the configuration of a backbone that has at least ``depth`` blocks.

    ``name`` is a key of `KNOWN_BACKBONES`, optionally with settings of its configuration, as in
    ``esn:units=500,sr=1.1``; a folder with a ``config.json``; a GGUF file; or a hub name.
    """
    families()  # called first, because it adds the names of the families of other packages to `KNOWN_BACKBONES`
    known_name, _, settings = name.partition(":")
    if known_name in KNOWN_BACKBONES:
        config = _known_config(*KNOWN_BACKBONES[known_name])
        if settings:
            config = _with_settings(name, config, settings)
    else:
        path = locate(name, "config.json")
        config = _from_gguf(name, path) if path.is_file() else _from_folder(name, path)
    family = _family_of(name, config.model_type)
    if family is None:
        # Refused before `generic_family` builds the model, which could run code from the hub.
        _refuse_code(name, config)
        with as_input_error(f"backbone {name!r}: its model cannot be built", "choose another model"):
            family = generic_family(config)
    _check_config(name, family, config, depth)
    return family, config


def find_shape(name: str, depth: int | None = None) -> tuple[Family, Shape]:
    """Return the family and `Shape` of a backbone with its first ``depth`` blocks, or all; no weights are loaded."""
    family, config = find(name, depth)
    _check_buildable(name, family, config)
    shape = family.shape(config)  # of all blocks
    return family, replace(shape, depth=depth or shape.depth)


def _check_buildable(name: str, family: Family, config: Any) -> None:
    """Raise `InputError` for a configuration of which no model can be built."""
    # Measuring a model builds it without memory, which fails for heads that do not divide the width or an unknown
    # activation. The size itself is not needed.
    with usable_configuration(name):
        family.loader.size(config)


def may_have_weights(name: str) -> bool:
    """Return whether weights may be published: not for altered settings, and not for some families."""
    known_name, colon, _ = name.partition(":")
    has_settings = bool(colon)  # as in esn:units=500
    if known_name not in KNOWN_BACKBONES:  # a folder, a GGUF file or a name on the hub
        return True
    family_name, _ = KNOWN_BACKBONES[known_name]
    return not has_settings and families()[family_name].pretrained


def choose_init(name: str, init: str | None, *, random_inits: Mapping[str, str] = {}) -> str:
    """Return the init that an option means for a backbone; None is the default.

    | option | init |
    |---|---|
    | None, weights may be published | ``pretrained`` |
    | None, without published weights or with altered settings | as for ``random`` |
    | ``random`` | that of the family in ``random_inits``, by name of the family; else ``random`` |
    | ``random-scaled`` | ``random``, whatever ``random_inits`` has |
    | any other | the same |
    """
    if init is None:
        init = "pretrained" if may_have_weights(name) else "random"
    if init == "random" and random_inits:
        family, _ = find(name)
        return random_inits.get(family.name, init)
    return "random" if init == "random-scaled" else init


@contextmanager
def pretrained_files(name: str, *files: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder and the further arguments with which ``from_pretrained`` reads a backbone.

    For a GGUF file, the folder is empty and an argument names the file. ``files`` are the patterns of the files that
    are needed of a model on the hub.
    """
    silence_transformers()
    path = locate(name, *files)
    if path.is_dir():
        yield path, {}
        return
    with TemporaryDirectory() as empty:  # so that transformers reads no other file beside it
        yield Path(empty), {"gguf_file": str(path.absolute())}


def _known_config(family: str, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a family, by its name, with some settings."""
    own_config = families()[family].config
    if own_config is not None:
        return own_config(**settings)
    # The models of the other families are those of transformers, which is imported only here, because it takes long.
    from transformers import AutoConfig

    return AutoConfig.for_model(family, **settings)


def _with_settings(name: str, config: Any, settings: str) -> Any:
    """Return a configuration with settings such as ``units=500,sr=1.1`` changed."""
    values = config.to_dict()
    for setting in settings.split(","):
        key, equals, text = setting.partition("=")
        # ``equals`` is empty without an equals sign. The model type is no setting: it decides the family.
        is_setting = bool(equals) and key in values and key != "model_type"
        if not is_setting:
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
        except ValueError:  # a text without quotes, such as gelu
            values[key] = text
    with as_input_error(f"backbone {name!r}: its settings are not valid", "give the setting another value"):
        return type(config)(**values)


def _check_config(name: str, family: Family, config: Any, depth: int | None) -> None:
    """Raise `InputError` for sizes that no model has, a depth that this one does not have, and code from the hub."""
    with usable_configuration(name):
        shape = family.shape(config)
    _check_numbers(name, family, config, shape)
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
    is_of_transformers = family.config is None
    if is_of_transformers:
        _refuse_code(name, config)


def _check_numbers(name: str, family: Family, config: Any, shape: Shape) -> None:
    """Raise `InputError` for a size that is not a whole number from 1, and for a setting that is NaN."""
    # None for a size that a model does not have.
    sizes = {
        "blocks": shape.depth if family.blocks else None,
        "width": shape.width,
        "positions": shape.max_tokens,
        "attention heads": getattr(config, "num_attention_heads", getattr(config, "n_head", None)),
    }
    for what, size in sizes.items():
        if isinstance(size, list):  # as in Swin
            raise InputError(
                f"backbone {name!r}: its configuration sets {what} to {size}, and sizes that differ between stages "
                "are not supported",
                "choose another model",
            )
        # The type is compared, because JSON's true is an int for `isinstance`.
        if size is not None and (type(size) is not int or size < 1):
            raise InputError(
                f"backbone {name!r}: its configuration sets {what} to {size}", "give at least 1"
            )
    for key, value in config.to_dict().items():  # torch refuses a dropout of NaN only when it runs
        if isinstance(value, float) and math.isnan(value):
            raise InputError(f"backbone {name!r}: its configuration sets {key} to NaN", "give a number")


def _refuse_code(name: str, config: Any) -> None:
    """Raise `InputError` if a configuration of transformers, or one inside it, asks for code from the hub."""
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
    """Return a context that builds or measures a model, and in which any error becomes an `InputError`."""
    return as_input_error(f"backbone {name!r}: this configuration is invalid", "change a setting")


def _from_folder(name: str, folder: Path) -> Any:
    """Return the configuration in the folder of a backbone; raise `InputError` for one that cannot be used."""
    with as_input_error(f"backbone {name!r}: its config.json is not readable", "add or repair the file"):
        values = json.loads((folder / "config.json").read_text())
        model_type = values["model_type"]
        if (values.get("num_labels") or 0) > 10**6:  # transformers makes a name for each, in memory
            raise ValueError("num_labels is more than a million")
        if quantisation := quantisation_of(values):
            check_method(name, quantisation)
    # Checked before transformers makes an object for each part.
    if excess := excessive_count(values):
        raise InputError(f"backbone {name!r}: in its config.json {excess}", "use a smaller model")
    family = _family_of(name, model_type)
    problem, remedy = f"backbone {name!r}: its config.json is not valid", "change a setting"
    if family is not None and family.config is not None:
        with as_input_error(problem, remedy):
            return family.config(**values)
    # Imported outside the context, because the file is not to blame for an import that fails.
    from transformers import AutoConfig

    silence_transformers()
    with as_input_error(problem, remedy):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # This package expands quantised tensors itself, so transformers loads the model as one that is not quantised.
    vars(config).pop("quantization_config", None)
    return config


def _from_gguf(name: str, path: Path) -> Any:
    """Return the configuration in the GGUF file of a backbone."""
    gguf_package()  # called first, so that the error for a missing package is its own
    problem = f"backbone {name!r}: its configuration is not readable"
    with as_input_error(problem, "give an intact GGUF file"):
        config = read_gguf_config(path)
        family = _family_of(str(path), config.model_type)
        if family is not None and family.config is not None:  # not a model of transformers
            return family.config(**config.to_dict())
        return config


def _family_of(name: str, model_type: object) -> Family | None:
    """Return the family of a model type that is described by hand; None for others that transformers knows.

    Raise `InputError` for a model type that nobody knows.
    """
    # A file may have a value of any type here.
    is_text = isinstance(model_type, str)
    if is_text and model_type in families():
        return families()[model_type]
    from transformers import CONFIG_MAPPING

    if not is_text or model_type not in CONFIG_MAPPING:
        raise InputError(
            f"backbone {name!r}: family {model_type!r} is not known",
            f"use a model of transformers, or one of {', '.join(families())}",
        )
    return None
