"""Every other model of transformers: where its parts are.

A family such as BERT is described by hand (see `published`). For another model type, the class that transformers has
for it is built without memory, and its parts are looked up: the blocks are the list of modules that is as long as the
configuration says. `reservoir.backbones.generic_checks` tests whenever such a model is loaded what is known of the
families described by hand.

| model | what runs |
|---|---|
| encoder with a decoder | the encoder |
| language model with other encoders, such as Gemma 3 | the language model |
| model of two halves, such as CLIP | the half that reads images, else sounds, else texts |
| any other | all of it |

Vectors enter as input embeddings, or, in models without such an argument, by `reservoir.backbones.vector_model`.
"""

import inspect
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.family import (
    Family,
    HubLoader,
    Shape,
    SkipInitialisation,
    set_depth,
    silence_transformers,
)
from reservoir.backbones.vector_model import VectorModel, token_table
from reservoir.errors import InputError

# transformers would download compiled kernels from the hub for some models, and run them.
os.environ.setdefault("USE_HUB_KERNELS", "NO")

# Settings that make a model build another one inside, whose weights transformers may download.
INNER_MODELS = (
    "backbone",
    "backbone_config",
    "timm_config",
    "use_timm_backbone",
    "use_pretrained_backbone",
    "architecture",  # of timm, which reads a name that begins with hf-hub: from the hub
)

MOST_PARTS = 1000
"""Most blocks, and most experts of a block: more than any model has. A model is built before anything else is known."""

COUNTS = ("layers", "n_layer", "blocks", "experts", "depth", "group_num", "hidden_groups")
"""Ends of the names of settings that count blocks or experts."""
LISTS_OF_COUNTS = ("depths", "block_sizes", "block_repeats")
"""The settings that are lists of such counts."""

# Parts of the names of parameters by group; the first match counts, so the last group takes all others.
GROUPS = {
    "positions": ("position",),
    "layernorm": ("norm", "ln_", "ln1", "ln2"),
    "attention": ("attn", "attention", "mixer", "mamba", "ssm"),
    "feedforward": ("",),
}

DEFAULT_DEVIATION = 0.02  # of drawn matrices, where a configuration states none; most state this value

# The settings that may state the number of blocks and their width, in the order in which they are looked up.
DEPTHS = ("num_hidden_layers", "encoder_layers", "num_layers", "num_encoder_layers", "depth", "n_layers")
WIDTHS = ("hidden_size", "d_model", "embed_dim", "hidden_dim", "n_embd")
DECODER_DEPTHS = ("decoder_layers", "num_decoder_layers")

# Own inputs of models in place of which vectors may enter; of a model with two halves, the first half of this order.
INPUTS = ("pixel_values", "input_features", "input_values", "input_ids")


@dataclass(frozen=True)
class Parts:
    """Where the parts of a model are, and how it is called. Paths start at the part of the model that runs."""

    part: str  # path of that part in the whole model; empty if all of it runs
    settings: str  # path of that part's configuration in the whole one; empty if it is the whole one
    blocks: str  # path of the list of blocks
    depth_setting: str  # name of the setting with their number
    shape: Shape
    takes: str  # the argument by which vectors enter, or in place of which they enter
    words: str  # path of the token embeddings, if vectors enter as such; empty if there are none
    call: dict[str, bool]  # arguments of `forward` that switch off what is not needed
    takes_mask: bool
    has_patches: bool  # whether images of one size are cut into square patches


# Parts of the names of tensors outside the blocks that are not part of a model without a head.
HEADS = frozenset(
    (
        *("lm_head", "embed_out", "lm_loss", "logits_proj", "proj_out", "final_logits_bias", "predictions"),
        *("cls", "classifier", "pre_classifier", "score", "pooler", "qa_outputs", "head", "heads", "mlm"),
        *("generator_predictions", "generator_lm_head", "discriminator_predictions", "mask_predictions"),
        *("vocab_projector", "vocab_transform", "vocab_layer_norm", "logit_scale", "logit_bias"),
        *("position_ids", "token_type_ids", "inv_freq"),  # numbers that older releases stored
    )
)

# The parts by model type and settings, because building a model of many blocks takes time.
_PARTS: dict[str, Parts] = {}


def generic_family(config: Any) -> Family:
    """Return the family of a configuration of transformers whose model type is not a family described by hand.

    Raises
    ------
    InputError
        If the model cannot be run on vectors, with the reason.
    """
    model_class = _class_of(config)
    parts = _parts_of(config)
    takes_embeddings = parts.takes == "inputs_embeds"
    reads = "text" if parts.words or parts.takes == "input_ids" else ""
    if parts.takes == "pixel_values" and parts.has_patches:
        reads = "pixels"
    if takes_embeddings:
        blocks, native_input = parts.blocks, parts.words
    else:
        # A `VectorModel` takes the vectors. Its attribute ``model`` is the model, ``front_end`` the model's own input.
        blocks = f"model.{parts.blocks}"
        native_input = "front_end" if reads else ""
    return Family(
        name=config.model_type,
        loader=HubLoader(
            model=model_class,
            options=_without_pooler(model_class),
            adapt=None if takes_embeddings else partial(_with_vectors, parts),
            part=parts.part,
            shrink=partial(_shrink, parts),
        ),
        shape=partial(_shape, parts),
        run=partial(_run, parts) if takes_embeddings else run_vectors,
        blocks=blocks,
        stored_blocks=f"{parts.part}.{parts.blocks}".lstrip("."),
        groups=GROUPS,
        draw=partial(_draw, parts),
        scheme="matrices normal with standard deviation initializer_range, all else as the model's class sets it",
        unused=(parts.words,) if parts.words else (),
        native_input=native_input,
        reads=reads,
        is_generic=True,
        reads_values=True,  # unknown, so the safe value: its steps are not captured in CUDA graphs
    )


def is_of_usual_head(key: str) -> bool:
    """Return whether a name in a file is that of a head in many models, or of a number that newer models compute."""
    return any(part in HEADS for part in key.split("."))


def names_with_heads(config: Any) -> frozenset[str]:
    """Return the names of all tensors of the whole model, and of the models with heads that a configuration names."""
    import transformers

    # The class may be that of a kind of model with the same parts, whose configuration is another.
    models: list[Any] = [_class_of(config)]
    for name in getattr(config, "architectures", None) or ():
        model_class: Any = getattr(transformers, str(name), None)
        # Only classes of this kind of model are built; they may need settings that the configuration lacks.
        is_model = isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
        if is_model and model_class.config_class is type(config):
            models.append(model_class)
    names: set[str] = set()
    for model in models:
        with torch.device("meta"), SkipInitialisation(), suppress(Exception):
            names |= model(deepcopy(config)).state_dict().keys()
    return frozenset(names)


def part_settings(config: Any) -> Any:
    """Return the configuration of the part of a model that runs, such as the half of images."""
    return _settings_of(_parts_of(config), config)


def count_image_tokens(family: Family, config: Any, pixels: tuple[int, int, int]) -> int:
    """Return the number of tokens that a model makes of an image (channels, height, width); no weights are loaded."""
    with torch.device("meta"), SkipInitialisation():
        model: Any = family.loader.build(family.loader.lean(config, 1, words=True))
        return model.embed(torch.zeros(1, *pixels)).shape[1]


def _parts_of(config: Any) -> Parts:
    """Return where the parts of a configuration's model are; they are found once for equal settings."""
    key = json.dumps(config.to_dict(), sort_keys=True, default=str)
    if key not in _PARTS:
        _PARTS[key] = _find_parts(_class_of(config), config)
    return _PARTS[key]


def _class_of(config: Any) -> type[nn.Module]:
    """Return the class of a configuration's model without a head; refuse settings that no model has."""
    import transformers

    silence_transformers()
    _refuse_other_models(config, config.to_dict())
    if excess := excessive_count(config.to_dict()):
        raise refusal(config, f"in its configuration {excess}")
    if type(config) in transformers.MODEL_MAPPING:
        classes: Any = transformers.MODEL_MAPPING[type(config)]
        return classes[0] if isinstance(classes, list | tuple) else classes
    # Parts of models, such as the text half of SigLIP, have a class beside those of the whole model.
    settings_class = type(config)
    path = settings_class.__module__.replace(".configuration_", ".modeling_")
    if not path.startswith("transformers.models.") or find_spec(path) is None:
        raise refusal(config, "transformers has no model without a head for it")
    headless = [
        kind
        for name, kind in vars(import_module(path)).items()
        if isinstance(kind, type)
        and issubclass(kind, transformers.PreTrainedModel)
        and kind.config_class is settings_class
        and not any(part in name for part in ("PreTrained", "For", "With"))
    ]
    usual_name = settings_class.__name__.removesuffix("Config") + "Model"
    usual = [kind for kind in headless if kind.__name__ == usual_name] or headless
    if len(usual) != 1:
        raise refusal(config, "transformers has no model without a head for it")
    return usual[0]


def _refuse_other_models(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse settings, and settings inside them, that build a model of another library."""
    is_of_timm = str(settings.get("model_type")).startswith("timm")
    if is_of_timm or any(settings.get(name) for name in INNER_MODELS):
        raise refusal(config, "it contains another model")
    for value in settings.values():
        if isinstance(value, Mapping):
            _refuse_other_models(config, value)


def excessive_count(settings: Mapping[str, Any]) -> str:
    """Return the setting, also inside others, that asks for more than `MOST_PARTS` parts; empty if none does."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            if inner := excessive_count(value):
                return inner
            continue
        counts = value if name in LISTS_OF_COUNTS and isinstance(value, list) else [value]
        parts = sum(count for count in counts if isinstance(count, int))
        if str(name).endswith((*COUNTS, *LISTS_OF_COUNTS)) and parts > MOST_PARTS:
            return f"{name} is {parts:,}, more than {MOST_PARTS:,}"
    return ""


def _find_parts(model_class: type[nn.Module], config: Any) -> Parts:
    """Return where the parts of a model are, which is built without memory."""
    with torch.device("meta"), SkipInitialisation():
        whole_model: Any = model_class(deepcopy(config), **_without_pooler(model_class))
    part = _part_that_runs(whole_model, config)
    model: Any = whole_model.get_submodule(part)
    inner = model.config.get_text_config() if not part else model.config
    settings = _path_of_settings(config, type(inner)) or ""
    arguments = inspect.signature(model.forward).parameters
    words, words_width = _find_words(model)
    width = next((size for name in WIDTHS if isinstance(size := getattr(inner, name, None), int)), None)
    if width is None:
        raise refusal(config, "its configuration does not say how wide its blocks are")
    takes = "inputs_embeds"
    # Embeddings of another width, as in ELECTRA, are projected before the first block.
    if takes not in arguments or words_width not in (0, width):
        takes = _own_input(model)
        if not takes:
            raise refusal(config, f"it takes {next(iter(arguments), 'nothing')}")
    depth_setting, blocks = _find_blocks(model, inner, config)
    # Learned positions with a padding number begin after it, as in RoBERTa.
    padded_positions = [
        module.padding_idx + 1
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and "position" in path and module.padding_idx is not None
    ]
    positions = getattr(inner, "max_position_embeddings", None)
    positions = positions - max(padded_positions, default=0) if isinstance(positions, int) else None
    takes_text = takes in ("inputs_embeds", "input_ids")
    call = without_cache(model)
    if "interpolate_pos_encoding" in arguments:
        call |= {"interpolate_pos_encoding": True}
    return Parts(
        part=part,
        settings=settings,
        blocks=blocks,
        depth_setting=depth_setting,
        # Any model is taken as not causal, so that padding is always masked; tests show whether it is.
        shape=Shape(
            getattr(inner, depth_setting),
            width,
            positions if takes_text and positions and positions > 0 else None,
            causal=False,
        ),
        takes=takes,
        words=words if takes == "inputs_embeds" else "",
        call=call,
        takes_mask="attention_mask" in arguments,
        has_patches=hasattr(inner, "patch_size") and "spatial_shapes" not in arguments,
    )


def _part_that_runs(whole_model: Any, config: Any) -> str:
    """Return the path of the part of a model that runs, by the table above; empty for all of it."""
    paths = {module: path for path, module in whole_model.named_modules()}
    if getattr(config, "is_encoder_decoder", False):
        encoder = whole_model.get_encoder()
        if encoder is whole_model or encoder not in paths:
            raise refusal(config, "it is an encoder with a decoder, and its encoder is not found")
        return paths[encoder]
    halves = [
        (path, module)
        for path, module in whole_model.named_modules()
        if path
        and hasattr(module, "main_input_name")
        and type(module.config) is not type(config)
        and "For" not in type(module).__name__  # a model with a head
    ]
    if "inputs_embeds" in inspect.signature(whole_model.forward).parameters:
        text_settings = type(config.get_text_config())
        texts = (path for path, module in halves if type(module.config) is text_settings)
        return next(texts, "")
    by_input = {
        _own_input(half): path for path, half in reversed(halves)
    }  # the first half of each input stays
    return next((by_input[name] for name in INPUTS if name in by_input), "")


def _own_input(model: Any) -> str:
    """Return the argument of a model's own input; empty if it is none of `INPUTS`."""
    arguments = inspect.signature(model.forward).parameters
    return next((name for name in INPUTS if name in arguments), "")


def _path_of_settings(config: Any, kind: type) -> str | None:
    """Return the path of the first configuration of a class inside another; empty for the whole, None if absent."""
    if type(config) is kind:
        return ""
    for name, value in vars(config).items():
        if hasattr(value, "get_text_config") and (path := _path_of_settings(value, kind)) is not None:
            return f"{name}.{path}".rstrip(".")
    return None


def _settings_of(parts: Parts, config: Any) -> Any:
    """Return the configuration of the part that runs."""
    return attrgetter(parts.settings)(config) if parts.settings else config


def _find_blocks(model: Any, inner: Any, config: Any) -> tuple[str, str]:
    """Return the name of the setting with the number of blocks, and the path of their list."""
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    for setting in DEPTHS:
        # The blocks are the list of this length; of several, the one with the most parameters.
        sizes = {
            sum(tensor.numel() for tensor in blocks.parameters()): path
            for path, blocks in lists.items()
            if len(blocks) == getattr(inner, setting, None)
        }
        if sizes and not isinstance(getattr(type(inner), setting, None), property):
            return setting, sizes[max(sizes)]
    raise refusal(config, "it has no list of as many blocks as its configuration says")


def _find_words(model: Any) -> tuple[str, int]:
    """Return the path and the width of the token embeddings; an empty path if a model has none."""
    table = token_table(model)
    words = next((path for path, module in model.named_modules() if path and module is table), "")
    return words, getattr(table, "embedding_dim", 0)


def _without_pooler(model_class: type[nn.Module]) -> dict[str, bool]:
    """Return the argument that leaves out the pooler after the blocks, if the class has one."""
    has_pooler = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if has_pooler else {}


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return the argument that keeps a model from remembering the tokens of a call, if it has one."""
    arguments = inspect.signature(model.forward).parameters
    takes_more = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    takes_words = "inputs_embeds" in arguments or "input_ids" in arguments
    return {"use_cache": False} if "use_cache" in arguments or (takes_more and takes_words) else {}


def _shrink(parts: Parts, config: Any, depth: int | None) -> None:
    """Set the number of blocks of the part that runs, and leave one block to all other parts."""
    if depth is not None:
        set_depth(_settings_of(parts, config), parts.depth_setting, depth)
    if not parts.part:
        return
    for name in DECODER_DEPTHS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, 1)
    for name, other in vars(config).items():
        if parts.settings.partition(".")[0] == name or not hasattr(other, "get_text_config"):
            continue
        for setting in DEPTHS:
            if isinstance(getattr(other, setting, None), int):
                set_depth(other, setting, 1)


def _shape(parts: Parts, config: Any) -> Shape:
    return replace(parts.shape, depth=getattr(_settings_of(parts, config), parts.depth_setting))


def _with_vectors(parts: Parts, model: nn.Module, config: Any) -> nn.Module:
    return VectorModel(model, parts.blocks, parts.takes, parts.call, config)


def _run(parts: Parts, model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of vectors, which enter as input embeddings."""
    options: dict[str, Any] = dict(parts.call)
    if parts.takes_mask:
        options["attention_mask"] = mask
    return model(inputs_embeds=embeds, **options).last_hidden_state


def run_vectors(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of vectors in a `VectorModel`."""
    return model(embeds, mask)


def _draw(
    parts: Parts, name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator
) -> np.ndarray | None:
    """Draw matrices of projections, convolutions, embeddings and experts; keep what the class sets otherwise."""
    is_matrix = len(shape) >= 2 and name.endswith("weight")
    is_expert = len(shape) >= 3
    if not (is_matrix or is_expert):
        return None
    deviation = getattr(_settings_of(parts, config), "initializer_range", None) or DEFAULT_DEVIATION
    return generator.standard_normal(shape, dtype=np.float32) * deviation


def refusal(config: Any, reason: str) -> InputError:
    """Return the error that a model type cannot be used, with the reason."""
    return InputError(f"model type {config.model_type!r}: {reason}", "choose another model")
