"""Every other model of transformers that takes input embeddings: where its parts are, and tests of them.

A family such as BERT is described by hand (see `published`). For another model type, the class that transformers has
for it is built without memory, and its parts are looked up: the blocks are the list of modules that is as long as the
configuration says. What is known of the families described by hand is tested here on random sequences whenever a model
is loaded.
"""

import inspect
import json
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.backbone import Backbone
from reservoir.backbones.family import (
    Family,
    HubLoader,
    Shape,
    SkipInitialisation,
    silence_transformers,
)
from reservoir.errors import InputError, as_input_error

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

# Parts of the names of parameters by group; the first match counts, so the last group takes all others.
GROUPS = {
    "positions": ("position",),
    "layernorm": ("norm", "ln_", "ln1", "ln2"),
    "attention": ("attn", "attention", "mixer", "mamba", "ssm"),
    "feedforward": ("",),
}

DEFAULT_DEVIATION = (
    0.02  # of drawn matrices, where the configuration states none; most models state this value
)

CHECKED_TOKENS = 6  # of the random sequences on which a model is tested
# Largest error as a share of the largest value. Other orders of summation differ by about 1e-6, and an attention
# that sees padding by 1e-2 or more.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Parts:
    """Where the parts of a model are, and how it is called."""

    blocks: str  # path of the list of blocks
    words: str  # path of the token embeddings
    first_position: int  # number of the first position, which some models count from their padding token
    call: dict[str, bool]  # arguments of `forward` that switch off what is not needed
    takes_mask: bool


# The parts by model type and settings, because building a model of many blocks takes time.
_PARTS: dict[str, Parts] = {}


def generic_family(config: Any) -> Family:
    """Return the family of a configuration of transformers whose model type is no family described by hand.

    Raises
    ------
    InputError
        If the model cannot be run on vectors, with the reason.
    """
    model_class = _class_of(config)
    key = json.dumps(config.to_dict(), sort_keys=True, default=str)
    if key not in _PARTS:
        _PARTS[key] = _find_parts(model_class, config)
    parts = _PARTS[key]
    accepts_pooler = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return Family(
        name=config.model_type,
        loader=HubLoader(
            model=model_class.__name__, options={"add_pooling_layer": False} if accepts_pooler else {}
        ),
        shape=partial(_shape, parts),
        run=partial(_run, parts),
        blocks=parts.blocks,
        groups=GROUPS,
        draw=_draw,
        scheme="matrices normal with standard deviation initializer_range, all else as the model's class sets it",
        unused=(parts.words,),
        native_input=parts.words,
        reads="text",
        is_generic=True,
    )


def _class_of(config: Any) -> type[nn.Module]:
    """Return the class of a configuration's model without a head; refuse models of other kinds."""
    import transformers

    silence_transformers()
    if type(config) not in transformers.MODEL_MAPPING:
        raise _refusal(config, "transformers has no model without a head for it")
    classes: Any = transformers.MODEL_MAPPING[type(config)]
    model_class: type[nn.Module] = classes[0] if isinstance(classes, list | tuple) else classes
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(config, "it is an encoder with a decoder")
    _check_settings(config, config.to_dict())
    if "inputs_embeds" not in inspect.signature(model_class.forward).parameters:
        raise _refusal(config, "it takes no input embeddings")
    text = config.get_text_config()
    if not all(isinstance(getattr(text, name, None), int) for name in ("num_hidden_layers", "hidden_size")):
        raise _refusal(
            config, "its configuration does not say how many blocks it has and how wide they are"
        )
    return model_class


def _check_settings(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse settings, and settings inside them, that build a model of another library or one without end."""
    is_of_timm = str(settings.get("model_type")).startswith("timm")
    if is_of_timm or any(settings.get(name) for name in INNER_MODELS):
        raise _refusal(config, "it contains another model")
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_settings(config, value)
        counts_parts = any(what in str(name) for what in ("layers", "blocks", "experts"))
        if counts_parts and isinstance(value, int) and value > MOST_PARTS:
            raise _refusal(config, f"its configuration sets {name} to {value:,}, more than {MOST_PARTS:,}")


def _find_parts(model_class: type[nn.Module], config: Any) -> Parts:
    """Return where the parts of a model are, which is built without memory."""
    with torch.device("meta"), SkipInitialisation():
        model: Any = model_class(deepcopy(config))
    # The blocks are the list of this length; of several, the one with the most parameters.
    depth = config.get_text_config().num_hidden_layers
    lists = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth
    }
    if not lists:
        raise _refusal(config, f"it has no list of {depth} blocks")
    blocks = max(lists, key=lambda path: sum(tensor.numel() for tensor in lists[path].parameters()))
    # The path of the token embeddings.
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        table = None
    words = next((path for path, module in model.named_modules() if module is table), "")
    if not words:
        raise _refusal(config, "it has no token embeddings")
    width = config.get_text_config().hidden_size
    if getattr(table, "embedding_dim", width) != width:
        raise _refusal(config, "its token embeddings have another width than its blocks")
    # Learned positions with a padding number begin after it, as in RoBERTa.
    padded_positions = [
        module.padding_idx + 1
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and "position" in path and module.padding_idx is not None
    ]
    return Parts(
        blocks=blocks,
        words=words,
        first_position=max(padded_positions, default=0),
        call=_without_cache(model_class),
        takes_mask="attention_mask" in inspect.signature(model_class.forward).parameters,
    )


def _without_cache(model_class: type[nn.Module]) -> dict[str, bool]:
    """Return the argument that keeps a model from remembering the tokens of a call, if it has one."""
    arguments = inspect.signature(model_class.forward).parameters
    takes_more = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    return {"use_cache": False} if "use_cache" in arguments or takes_more else {}


def _shape(parts: Parts, config: Any) -> Shape:
    """Return the shape. Any model is taken as not causal, so that padding is always masked; `_is_causal` tests it."""
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    # The first positions of some models, such as RoBERTa, are for padding.
    positions = positions - parts.first_position if isinstance(positions, int) and positions > 0 else None
    return Shape(text.num_hidden_layers, text.hidden_size, positions, causal=False)


def _run(parts: Parts, model: nn.Module, embeds: Tensor, mask: Tensor | None) -> Tensor:
    """Return the last hidden states of vectors."""
    options: dict[str, Any] = dict(parts.call)
    if parts.takes_mask:
        options["attention_mask"] = mask
    return model(inputs_embeds=embeds, **options).last_hidden_state


def _draw(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator
) -> np.ndarray | None:
    """Draw matrices of projections, convolutions, embeddings and experts; keep what the class sets otherwise."""
    is_matrix = len(shape) >= 2 and name.endswith("weight")
    is_expert = len(shape) >= 3
    if not (is_matrix or is_expert):
        return None
    deviation = getattr(config.get_text_config(), "initializer_range", None) or DEFAULT_DEVIATION
    return generator.standard_normal(shape, dtype=np.float32) * deviation


def check_backbone(backbone: Backbone) -> None:
    """Test the layers of a generic backbone, and set `Backbone.causal` and `Backbone.can_pad` by tests.

    Raises
    ------
    InputError
        If it cannot run on vectors, or if a layer is not what transformers calls so.
    """
    with as_input_error(
        f"model type {backbone.config.model_type!r}: it does not run", "choose another model"
    ):
        _check_layers(backbone)
        backbone.causal = _is_causal(backbone)
        backbone.can_pad = backbone.causal or _is_safe_to_pad(backbone)


def _check_layers(backbone: Backbone) -> None:
    """Raise `InputError` unless each layer is what transformers returns as the hidden states of this number."""
    embeds = _random_embeds(backbone)
    recorded: dict[str, Tensor] = {}

    def recorder(layer: str) -> Callable[[Tensor], None]:
        return lambda hidden: recorded.update({layer: hidden.float().clone()})

    model: Any = backbone.model
    with torch.inference_mode(), backbone.recording({layer: recorder(layer) for layer in backbone.layers}):
        backbone(embeds)
    with torch.inference_mode():
        output = model(inputs_embeds=embeds, output_hidden_states=True, **_without_cache(type(model)))
    states = getattr(output, "hidden_states", None)
    if states is None or len(states) != backbone.depth + 1:
        raise _refusal(backbone.config, "it does not return the hidden states of its blocks")
    # Most models return the input of the first block and the outputs of all but the last, whose output has passed the
    # last norm. Some, such as Mamba, return the outputs of all blocks.
    blocks = backbone.layers[1:-1]
    inputs_first = dict(zip(("embed", *blocks), states[:-1], strict=False))
    outputs = dict(zip(blocks, states[:-1], strict=True))
    final = {"final": output.last_hidden_state}
    if not any(_agree(recorded, expected | final) for expected in (inputs_first, outputs)):
        raise _refusal(backbone.config, "its layers are not what transformers calls its hidden states")


def _agree(recorded: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return all(
        layer in recorded and _are_close(recorded[layer], hidden) for layer, hidden in expected.items()
    )


def _is_causal(backbone: Backbone) -> bool:
    """Return whether the hidden states of the tokens before the last one are the same for another last token."""
    embeds = _random_embeds(backbone)
    changed = embeds.clone()
    changed[:, -1] = -changed[:, -1]  # any other vector would do
    with torch.inference_mode():
        return _are_close(backbone(changed)[:, :-1], backbone(embeds)[:, :-1])


def _is_safe_to_pad(backbone: Backbone) -> bool:
    """Return whether padding leaves the hidden states of the real tokens as they are."""
    embeds = _random_embeds(backbone)
    shorter = CHECKED_TOKENS // 2
    with torch.inference_mode():
        alone = backbone(embeds[:, :shorter])
        padded = backbone(embeds, torch.full((len(embeds),), shorter))[:, :shorter]
    return _are_close(padded, alone)


def check_words(model: nn.Module, config: Any, words: nn.Module) -> None:
    """Raise `InputError` unless a text enters a model as its token embeddings, and in no other way."""
    # The first numbers are often those of special tokens: the padding token, for example, has no position.
    size = getattr(words, "num_embeddings", 100)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(size // 2, size, (2, CHECKED_TOKENS), generator=draw)
    options: dict[str, Any] = _without_cache(type(model))
    with torch.inference_mode():
        by_number = model(input_ids=tokens, **options).last_hidden_state
        by_vector = model(inputs_embeds=words(tokens), **options).last_hidden_state
    if not _are_close(by_vector.float(), by_number.float()):
        raise _refusal(config, "its texts enter in another way than by token embeddings")


def _random_embeds(backbone: Backbone) -> Tensor:
    """Return two random sequences of vectors (2, tokens, width)."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(2, CHECKED_TOKENS, backbone.width, generator=draw)


def _are_close(values: Tensor, expected: Tensor) -> bool:
    return values.shape == expected.shape and bool(
        (values - expected).abs().max() <= TOLERANCE * expected.abs().max()
    )


def _refusal(config: Any, reason: str) -> InputError:
    return InputError(f"model type {config.model_type!r}: {reason}", "choose another model")
