"""Find the parts of a model of transformers that is not described by hand, such as its blocks and its inputs.

A family such as BERT is described by hand (see `published`). For another model type, the class that transformers has
for it is built without memory for weights, and its parts are looked up: the blocks are the list of modules that is as
long as the configuration says. Whenever such a model is loaded, `reservoir.backbones.generic_checks` tests what a
description by hand would state, for example whether a token sees those after it.

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
LISTS_OF_COUNTS = ("depth", "depths", "block_sizes", "block_repeats", "num_block_repeats")
"""The settings that are lists of such counts."""

# Parts of the names of parameters by group; the first match counts. All names match the last group, because the empty
# text is part of each.
PARTS_OF_NAMES = {
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

# The settings that may state the number of positions. ``n_positions`` and ``seq_length`` are none of them: transformers
# maps the former to ``max_position_embeddings`` where it is a limit, and files of T5 and BLOOM have them without one.
POSITION_LIMITS = ("max_position_embeddings", "max_seq_len")

# The arguments by which models take images, sounds or texts, and in place of which vectors may enter. Of a model of two
# halves, the half runs whose argument comes first in this order.
NATIVE_INPUTS = ("pixel_values", "input_features", "input_values", "input_ids")


@dataclass(frozen=True)
class Parts:
    """Where the parts of a model are, and how it is called.

    "The part" is that part of the model that runs, by the table at the top of this file.
    """

    part_path: str  # path of the part in the whole model; empty if the whole model runs
    settings_path: str  # path of the part's configuration in the whole one; empty if it is the whole one
    blocks_path: str  # path of the list of blocks in the part
    depth_setting: str  # name of the setting with the number of blocks
    shape: Shape
    # ``inputs_embeds`` if vectors enter by this argument; otherwise the argument of the model's own input, whose tokens
    # they replace.
    input_name: str
    words_path: str  # path of the token embeddings in whose place vectors enter; empty if there are none
    call_options: dict[str, bool]  # further arguments of each call of `forward`
    takes_mask: bool  # whether `forward` has the argument ``attention_mask``
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

    A sparse attention of BigBird becomes full attention in the configuration.

    Raises
    ------
    InputError
        If the model cannot be run on vectors, with the reason.
    """
    # The first short batch turns sparse attention into full attention for good, so that the features of long rows would
    # depend on the batches before.
    if getattr(config, "attention_type", None) == "block_sparse":
        config.attention_type = "original_full"
    model_class = _class_of(config)
    parts = _parts_of(config)
    reads = _native_data(parts)
    takes_embeddings = parts.input_name == "inputs_embeds"
    if takes_embeddings:
        blocks = parts.blocks_path
        native_input = parts.words_path
    else:
        # A `VectorModel` takes the vectors. Its attribute ``model`` is the model, ``front_end`` the model's own input.
        blocks = f"model.{parts.blocks_path}"
        native_input = "front_end" if reads else ""
    return Family(
        name=config.model_type,
        loader=HubLoader(
            model=model_class,
            options=_without_pooler(model_class),
            adapt=None if takes_embeddings else partial(_with_vectors, parts),
            part=parts.part_path,
            shrink=partial(_shrink, parts),
        ),
        shape=partial(_shape, parts),
        run=partial(_run, parts) if takes_embeddings else run_vectors,
        blocks=blocks,
        stored_blocks=f"{parts.part_path}.{parts.blocks_path}".lstrip("."),
        groups=PARTS_OF_NAMES,
        draw=partial(_draw, parts),
        scheme="matrices normal with standard deviation initializer_range, all else as the model's class sets it",
        unused=(parts.words_path,) if parts.words_path else (),
        native_input=native_input,
        reads=reads,
        is_generic=True,
        reads_values=True,  # unknown, so the safe value: its steps are not captured in CUDA graphs
    )


def _native_data(parts: Parts) -> str:
    """Return what the model's own input is, ``text`` or ``pixels``; empty for data that this package cannot give it."""
    if parts.input_name == "pixel_values" and parts.has_patches:
        return "pixels"
    takes_text = parts.input_name == "input_ids" or parts.words_path
    return "text" if takes_text else ""


def is_of_usual_head(key: str) -> bool:
    """Return whether a tensor of this name is part of a head in many models, or a number that newer models compute."""
    return any(part in HEADS for part in key.split("."))


def names_with_heads(config: Any) -> frozenset[str]:
    """Return the names of all tensors of the whole model, and of the models with heads that a configuration names."""
    import transformers

    model_classes: list[Any] = [_class_of(config)]
    for class_name in getattr(config, "architectures", None) or ():
        model_class: Any = getattr(transformers, str(class_name), None)
        # The name comes from a file: it may be no class of a model, or one that takes another configuration.
        is_model = isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
        if is_model and model_class.config_class is type(config):
            model_classes.append(model_class)
    names: set[str] = set()
    for model_class in model_classes:
        # A model with a head may need settings that the configuration lacks; then its names stay unknown.
        with torch.device("meta"), SkipInitialisation(), suppress(Exception):
            names |= model_class(deepcopy(config)).state_dict().keys()
    return frozenset(names)


def part_settings(config: Any) -> Any:
    """Return the configuration of the part of a model that runs, such as the half of images."""
    return _settings_of(_parts_of(config), config)


def count_image_tokens(family: Family, config: Any, pixels: tuple[int, int, int]) -> int:
    """Return the number of tokens that a model makes of an image (channels, height, width); no weights are loaded."""
    # Tokens are made before the first block, so a single block is enough.
    lean = family.loader.lean(config, 1, with_token_embeddings=True)
    with torch.device("meta"), SkipInitialisation():
        model: Any = family.loader.build(lean)
        embeds = model.embed(torch.zeros(1, *pixels))  # (1, tokens, width)
    return embeds.shape[1]


def _parts_of(config: Any) -> Parts:
    """Return where the parts of a configuration's model are; they are found once for equal settings."""
    key = json.dumps(config.to_dict(), sort_keys=True, default=str)
    if key not in _PARTS:
        _PARTS[key] = _find_parts(_class_of(config), config)
    return _PARTS[key]


def _class_of(config: Any) -> type[nn.Module]:
    """Return the class of a configuration's model without a head.

    Raise `InputError` if there is none, or for settings that no model has.
    """
    import transformers

    silence_transformers()
    settings = config.to_dict()
    _refuse_other_models(config, settings)
    if excess := excessive_count(settings):
        raise refusal(config, f"in its configuration {excess}")
    if type(config) in transformers.MODEL_MAPPING:
        classes: Any = transformers.MODEL_MAPPING[type(config)]
        # A few configurations have several classes, the plain model first.
        return classes[0] if isinstance(classes, list | tuple) else classes
    return _unmapped_class(config)


def _unmapped_class(config: Any) -> type[nn.Module]:
    """Return the class without a head of a part of models, such as the text half of SigLIP.

    transformers has no table of these classes, so they are looked up in the module that defines the whole model.
    """
    import transformers

    settings_class = type(config)
    module_name = settings_class.__module__.replace(".configuration_", ".modeling_")
    # Only modules of transformers itself are imported.
    if not module_name.startswith("transformers.models.") or find_spec(module_name) is None:
        raise refusal(config, "transformers has no model without a head for it")
    headless = [
        model_class
        for class_name, model_class in vars(import_module(module_name)).items()
        if isinstance(model_class, type)
        and issubclass(model_class, transformers.PreTrainedModel)
        and model_class.config_class is settings_class
        # These words stand in the names of base classes, and of models with a head.
        and not any(word in class_name for word in ("PreTrained", "For", "With"))
    ]
    usual_name = settings_class.__name__.removesuffix("Config") + "Model"
    candidates = [model_class for model_class in headless if model_class.__name__ == usual_name] or headless
    if len(candidates) != 1:
        raise refusal(config, "transformers has no model without a head for it")
    return candidates[0]


def _refuse_other_models(config: Any, settings: Mapping[str, Any]) -> None:
    """Raise `InputError` if settings, or settings inside them, build a model of another library."""
    is_of_timm = str(settings.get("model_type")).startswith("timm")
    if is_of_timm or any(settings.get(name) for name in INNER_MODELS):
        raise refusal(config, "it contains another model")
    for value in settings.values():
        if isinstance(value, Mapping):
            _refuse_other_models(config, value)


def excessive_count(settings: Mapping[str, Any]) -> str | None:
    """Return which setting, at any depth, asks for more than `MOST_PARTS` parts, as a text for a message.

    None if no setting does.
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            if excess_inside := excessive_count(value):
                return excess_inside
        elif str(name).endswith((*COUNTS, *LISTS_OF_COUNTS)):
            # The names of lists that select or describe blocks have these ends, too, such as ``mlp_only_layers`` with
            # block numbers, whose sum means nothing. So only lists with exactly a name of `LISTS_OF_COUNTS` are summed;
            # any other list is not an int, and counts 0. A single number counts under any name with such an end.
            is_list_of_counts = name in LISTS_OF_COUNTS and isinstance(value, list)
            counts = value if is_list_of_counts else [value]
            total = sum(count for count in counts if isinstance(count, int))
            if total > MOST_PARTS:
                return f"{name} is {total:,}, more than {MOST_PARTS:,}"
    return None


def _find_parts(model_class: type[nn.Module], whole_config: Any) -> Parts:
    """Build a model without memory for its weights, and return where its parts are."""
    with torch.device("meta"), SkipInitialisation():
        whole_model: Any = model_class(deepcopy(whole_config), **_without_pooler(model_class))
    part_path = _part_that_runs(whole_model, whole_config)
    part: Any = whole_model.get_submodule(part_path)  # the whole model if the path is empty
    part_config = part.config
    if not part_path:
        # A whole model of texts and images has a configuration of each, and its blocks are those of the texts. For any
        # other model, this method returns the whole configuration.
        part_config = part.config.get_text_config()
    width = _width_of(part_config, whole_config)
    words_path, words_width = _find_words(part)
    input_name = _find_input(part, width, words_width, whole_config)
    depth_setting, blocks_path = _find_blocks(part, part_config, whole_config)
    reads_text = input_name in ("inputs_embeds", "input_ids")
    arguments = inspect.signature(part.forward).parameters
    call_options = without_cache(part)
    if "interpolate_pos_encoding" in arguments:  # so that images, and stand-ins for them, may have any size
        call_options |= {"interpolate_pos_encoding": True}
    settings_path = _path_of_settings(whole_config, type(part_config))
    if (
        settings_path is None
    ):  # nothing inside has this class, so the whole configuration describes the part
        settings_path = ""
    return Parts(
        part_path=part_path,
        settings_path=settings_path,
        blocks_path=blocks_path,
        depth_setting=depth_setting,
        shape=Shape(
            depth=getattr(part_config, depth_setting),
            width=width,
            max_tokens=_count_positions(part, part_config) if reads_text else None,
            # Any model is taken as not causal, so that padding is always masked; tests show whether it is.
            causal=False,
        ),
        input_name=input_name,
        words_path=words_path if input_name == "inputs_embeds" else "",
        call_options=call_options,
        takes_mask="attention_mask" in arguments,
        # Models with ``spatial_shapes`` take images of several sizes, already cut into patches.
        has_patches=hasattr(part_config, "patch_size") and "spatial_shapes" not in arguments,
    )


def _width_of(part_config: Any, whole_config: Any) -> int:
    """Return the width of the blocks, which the part's configuration states under one of several names.

    Raise `InputError`, which names the model type of the whole configuration, if it states none.
    """
    for name in WIDTHS:
        width = getattr(part_config, name, None)
        if isinstance(width, int):
            return width
    raise refusal(whole_config, "its configuration does not say how wide its blocks are")


def _find_input(part: Any, width: int, words_width: int, whole_config: Any) -> str:
    """Return ``inputs_embeds`` if vectors can enter the part that runs by it, else the argument of its own input.

    Raise `InputError`, which names the model type of the whole configuration, if it has neither. ``width`` is that of
    the blocks, and ``words_width`` that of the token embeddings, 0 if there are none.
    """
    arguments = inspect.signature(part.forward).parameters
    # Token embeddings of another width, as in ELECTRA, are projected before the first block, so vectors of the width of
    # the blocks cannot enter in their place.
    has_words_of_width = words_width in (0, width)
    if "inputs_embeds" in arguments and has_words_of_width:
        return "inputs_embeds"
    native_input = _native_input(part)
    if native_input is None:
        raise refusal(whole_config, f"it takes {next(iter(arguments), 'nothing')}")
    return native_input


def _count_positions(part: nn.Module, part_config: Any) -> int | None:
    """Return the number of tokens for which the part has positions; None if its configuration states no limit."""
    limits = (getattr(part_config, name, None) for name in POSITION_LIMITS)
    positions = next((limit for limit in limits if isinstance(limit, int)), None)
    if positions is None:
        return None
    # The first position is that after the padding number, if learned positions have one, as in RoBERTa.
    first_positions = [
        module.padding_idx + 1
        for path, module in part.named_modules()
        if isinstance(module, nn.Embedding) and "position" in path and module.padding_idx is not None
    ]
    positions -= max(first_positions, default=0)
    return positions if positions > 0 else None


def _part_that_runs(whole_model: Any, config: Any) -> str:
    """Return the path of the part of a model that runs, by the table at the top of this file; empty for all of it."""
    # An encoder that was saved alone may deny in its configuration that the class of the model has a decoder. In other
    # models that take a decoder's input, such as InstructBLIP, it is for one of several language models.
    has_decoder = getattr(config, "is_encoder_decoder", False)
    takes_decoder_input = "decoder_input_ids" in inspect.signature(whole_model.forward).parameters
    if has_decoder or takes_decoder_input:
        encoder_path = _encoder_path(whole_model)
        if encoder_path:
            return encoder_path
        if has_decoder:
            raise refusal(config, "it is an encoder with a decoder, and its encoder is not found")
    # Models inside this one: they have a configuration of their own, and no head.
    inner_models = [
        (path, module)
        for path, module in whole_model.named_modules()
        if path  # the empty path is that of the whole model
        and hasattr(module, "main_input_name")
        and type(module.config) is not type(config)
        and not _has_head(module)
    ]
    # A model that takes token embeddings is a language model, whose texts may have a model inside it.
    if "inputs_embeds" in inspect.signature(whole_model.forward).parameters:
        text_settings = type(config.get_text_config())
        text_paths = (path for path, module in inner_models if type(module.config) is text_settings)
        return next(text_paths, "")
    # Otherwise the inner models are halves, or there are none. The first half of each input counts.
    path_by_input: dict[str | None, str] = {}
    for path, module in inner_models:
        path_by_input.setdefault(_native_input(module), path)
    return next((path_by_input[name] for name in NATIVE_INPUTS if name in path_by_input), "")


def _encoder_path(whole_model: Any) -> str:
    """Return the path of the encoder of a model with an encoder and a decoder; empty if it is not found."""
    paths = {module: path for path, module in whole_model.named_modules()}
    # If transformers does not know the encoder, it returns the model itself, whose path is empty, or, of BLIP-2, the
    # language model with its head.
    encoder = whole_model.get_encoder()
    return "" if _has_head(encoder) else paths.get(encoder, "")


def _has_head(model: nn.Module) -> bool:
    """Return whether a model has a head, such as LlamaForCausalLM."""
    return "For" in type(model).__name__


def _native_input(model: Any) -> str | None:
    """Return the argument by which a model takes its own data; None if it is none of `NATIVE_INPUTS`."""
    arguments = inspect.signature(model.forward).parameters
    return next((name for name in NATIVE_INPUTS if name in arguments), None)


def _path_of_settings(config: Any, settings_class: type) -> str | None:
    """Return the path of the first configuration of a class inside another; empty for the whole, None if absent."""
    if type(config) is settings_class:
        return ""
    for name, value in vars(config).items():
        is_configuration = hasattr(value, "get_text_config")
        if not is_configuration:
            continue
        inner_path = _path_of_settings(value, settings_class)
        if inner_path is not None:
            return f"{name}.{inner_path}".rstrip(".")  # the inner path is empty if ``value`` has the class
    return None


def _settings_of(parts: Parts, config: Any) -> Any:
    """Return the configuration of the part that runs."""
    return attrgetter(parts.settings_path)(config) if parts.settings_path else config


def _find_blocks(part: Any, part_config: Any, whole_config: Any) -> tuple[str, str]:
    """Return the name of the setting with the number of blocks, and the path of their list in the part that runs.

    Raise `InputError`, which names the model type of the whole configuration, if there is no such list.
    """
    lists = {path: module for path, module in part.named_modules() if isinstance(module, nn.ModuleList)}
    for setting in DEPTHS:
        # A property is computed from other settings, so the number of blocks could not be changed by it.
        if isinstance(getattr(type(part_config), setting, None), property):
            continue
        depth = getattr(part_config, setting, None)
        # The blocks are the list of this length; of several, the one with the most parameters.
        path_by_size = {
            sum(tensor.numel() for tensor in blocks.parameters()): path
            for path, blocks in lists.items()
            if len(blocks) == depth
        }
        if path_by_size:
            return setting, path_by_size[max(path_by_size)]
    raise refusal(whole_config, "it has no list of as many blocks as its configuration says")


def _find_words(model: Any) -> tuple[str, int]:
    """Return the path and the width of the token embeddings; an empty path and 0 if a model has none."""
    table = token_table(model)
    path = next((path for path, module in model.named_modules() if path and module is table), "")
    return path, getattr(table, "embedding_dim", 0)


def _without_pooler(model_class: type[nn.Module]) -> dict[str, bool]:
    """Return the argument that leaves out the pooler after the blocks, if the class has one."""
    has_pooler = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if has_pooler else {}


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return the argument that keeps a model from remembering the tokens of a call, if it has one."""
    arguments = inspect.signature(model.forward).parameters
    # Language models may pass further arguments on, this one among them.
    takes_text = "inputs_embeds" in arguments or "input_ids" in arguments
    passes_on = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    has_cache = "use_cache" in arguments or (takes_text and passes_on)
    return {"use_cache": False} if has_cache else {}


def _shrink(parts: Parts, config: Any, depth: int | None) -> None:
    """Set the number of blocks of the part that runs, unless it is None, and leave one block to all other parts."""
    if depth is not None:
        set_depth(_settings_of(parts, config), parts.depth_setting, depth)
    if not parts.part_path:  # the whole model runs
        return
    for name in DECODER_DEPTHS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, 1)
    name_of_part = parts.settings_path.partition(".")[0]
    for name, value in vars(config).items():
        is_of_other_part = hasattr(value, "get_text_config") and name != name_of_part
        if not is_of_other_part:
            continue
        for setting in DEPTHS:
            if isinstance(getattr(value, setting, None), int):
                set_depth(value, setting, 1)


def _shape(parts: Parts, config: Any) -> Shape:
    """Return the shape of a model, with the number of blocks that its configuration has now (see `_shrink`)."""
    return replace(parts.shape, depth=getattr(_settings_of(parts, config), parts.depth_setting))


def _with_vectors(parts: Parts, model: nn.Module, config: Any) -> nn.Module:
    """Return a model that takes vectors in place of the input of the first block."""
    return VectorModel(model, parts.blocks_path, parts.input_name, parts.call_options, config)


def _run(parts: Parts, model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of vectors, which enter as input embeddings."""
    options: dict[str, Any] = dict(parts.call_options)
    if parts.takes_mask:
        options["attention_mask"] = mask
    return model(inputs_embeds=embeds, **options).last_hidden_state


def run_vectors(model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of vectors in a `VectorModel`."""
    return model(embeds, mask)


def _draw(
    parts: Parts, name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator
) -> np.ndarray | None:
    """Draw a matrix of a projection, a convolution, embeddings or experts.

    Other parameters keep what the model's class sets: for them, return None.
    """
    is_matrix = len(shape) >= 2 and name.endswith("weight")
    # The matrices of all experts are one tensor, whose name may end in another way.
    is_of_experts = len(shape) >= 3
    if not (is_matrix or is_of_experts):
        return None
    deviation = getattr(_settings_of(parts, config), "initializer_range", None) or DEFAULT_DEVIATION
    return generator.standard_normal(shape, dtype=np.float32) * deviation


def refusal(config: Any, reason: str) -> InputError:
    """Return the error that a model type cannot be used, with the reason."""
    return InputError(f"model type {config.model_type!r}: {reason}", "choose another model")
