"""Families of sequence models, the groups of their parameters, and how a family's models are built and loaded."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

GROUPS: tuple[str, ...] = ("positions", "layernorm", "attention", "feedforward", "recurrent")

Draw = Callable[[str, tuple[int, ...], Any, np.random.Generator], np.ndarray | None]
"""``draw(parameter_name, shape, config, generator)`` returns a tensor, or None to keep the initial constant."""

StoredTensors = Mapping[str, Any]
"""Tensors by name, or slices of safetensors files, which are read when they are indexed."""

Loaded = tuple[nn.Module, dict[str, Any]]
"""A model, and a report on its missing, unexpected and mismatched tensors."""

# Lists in the configurations of transformers that have one value for each block.
LISTS_BY_BLOCK = ("layer_types", "mlp_layer_types", "attention_window", "no_rope_layers")


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it reads a sequence."""

    depth: int  # number of blocks; 0 for a family without blocks
    width: int
    max_tokens: int | None  # longest sequence; None if unlimited
    causal: bool  # whether a token sees only itself and those before it
    multiple: int = 1  # sequences are padded to a multiple of this number of tokens


@dataclass
class Config:
    """A configuration of settings that are plain JSON values."""

    def __post_init__(self) -> None:
        # Settings come from files and options, so that each must have the type of its field, such as "int | None".
        for item in fields(self):
            annotation = str(getattr(item.type, "__name__", item.type))
            value, allowed = getattr(self, item.name), annotation.split(" | ")
            kind = type(value).__name__.removesuffix("Type")  # the type of None is called NoneType
            is_whole_number = (kind, allowed) == ("int", ["float"])
            if kind not in allowed and not is_whole_number:
                raise ValueError(f"{item.name} takes {annotation}, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return asdict(self)


class SkipInitialisation(TorchFunctionMode):
    """Skips the random initialisation of a model under construction, whose weights are replaced afterwards."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in ("normal_", "uniform_", "kaiming_uniform_"):
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["tensor"]
        # The functions of `torch.nn.init` (Python functions) are skipped for matrices. Biases become zeros, because
        # a family's draw may leave them as they are. A tensor's own methods set zeros, because torch calls them to
        # draw a truncated normal, and repeats the draw until all values, as zeros, are in bounds.
        if isinstance(func, FunctionType) and tensor.dim() > 1:
            return tensor
        with torch.no_grad():
            return tensor.zero_()


@dataclass(frozen=True)
class ModelSize:
    """The number of parameters of a model, and the bytes of its buffers, such as the masks of GPT-Neo."""

    parameters: int
    buffer_bytes: int

    @classmethod
    def of(cls, model: nn.Module) -> "ModelSize":
        """Return the size of a model, whose tensors need no memory."""
        return cls(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in model.buffers()),
        )

    def bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of the model with parameters in ``dtype``; buffers keep their types."""
        return self.parameters * dtype.itemsize + self.buffer_bytes


@dataclass(frozen=True)
class FolderLoader:
    """Builds the models of a family as ``module(config)``."""

    module: Callable[[Any], nn.Module]

    def lean(self, config: Any, _depth: int | None, *, words: bool) -> Any:
        """Return the configuration of what is kept; models of this form are small, and are built whole."""
        return config

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights."""
        return self.module(config)

    def load(self, config: Any, tensors: StoredTensors, dtype: torch.dtype) -> Loaded:
        """Return a model with these tensors in ``dtype``, and a report on them."""
        model = self.outline(config)
        # Tensors that are missing become zeros, and are reported. Only those of this model are read, one after the
        # other.
        own_tensors = model.state_dict()
        missing = {
            name: torch.zeros(tensor.shape) for name, tensor in own_tensors.items() if name not in tensors
        }
        stored = {name: tensor[:].to(dtype) for name, tensor in tensors.items() if name in own_tensors}
        model.load_state_dict(missing | stored, assign=True)
        unexpected = sorted(tensors.keys() - own_tensors.keys())
        return model, {"missing_keys": missing.keys(), "unexpected_keys": unexpected}

    def outline(self, config: Any) -> nn.Module:
        """Return a model whose tensors have shapes and no memory."""
        with torch.device("meta"), SkipInitialisation():
            return self.module(config)

    def size(self, config: Any) -> ModelSize:
        """Return the size of the model without building it."""
        return ModelSize.of(self.outline(config))


def set_depth(config: Any, setting: str, depth: int) -> None:
    """Set the number of blocks in a configuration of transformers, and shorten its lists of one value per block."""
    setattr(config, setting, depth)
    for name in LISTS_BY_BLOCK:
        stored_name = config.attribute_map.get(name, name)
        is_computed = isinstance(getattr(type(config), stored_name, None), property)
        if not is_computed and isinstance(values := getattr(config, name, None), list):
            setattr(config, name, values[:depth])


def _shrink_text(config: Any, depth: int | None) -> None:
    """Set the number of blocks, unless it is None; models of text and images have a configuration of each."""
    if depth is not None:
        set_depth(config.get_text_config(), "num_hidden_layers", depth)


@dataclass(frozen=True)
class HubLoader:
    """Builds and loads the models of a family through transformers."""

    # The class, or its name in transformers; by default that of the model without a head.
    model: str | type[nn.Module] = ""
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of that class
    adapt: Callable[[nn.Module, Any], nn.Module] | None = None  # applied to each model
    part: str = ""  # path of the part that is kept, such as an encoder; its tensors alone must be in a file
    shrink: Callable[[Any, int | None], None] = _shrink_text  # sets the number of blocks in a configuration

    def lean(self, config: Any, depth: int | None, *, words: bool) -> Any:
        """Return the configuration of the first ``depth`` blocks, with almost no token embeddings unless ``words``."""
        small = deepcopy(config)
        self.shrink(small, depth)
        if not words:
            # Vectors do not pass through the token embeddings (38 of GPT-2 small's 124 million
            # parameters). Only the embeddings up to the padding token are built, because some families
            # count their positions from its number.
            small.vocab_size = (getattr(config, "pad_token_id", None) or 0) + 1
            small.bos_token_id = small.eos_token_id = None
        return small

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights."""
        silence_transformers()
        return self._adapted(self._class(config)(deepcopy(config), **self.options), config)

    def load(self, config: Any, tensors: StoredTensors, dtype: torch.dtype) -> Loaded:
        """Return a model with these tensors, whose names may be of an older release, and transformers' report."""
        silence_transformers()
        options = {
            "dtype": dtype,
            "ignore_mismatched_sizes": True,
            "output_loading_info": True,
        } | self.options
        # transformers builds the model without memory, and reads slices of files when it assigns them.
        model, info = self._class(config).from_pretrained(
            None, config=config, state_dict=dict(tensors), **options
        )
        if self.part:
            inside = f"{self.part}."
            info = info | {"missing_keys": [key for key in info["missing_keys"] if key.startswith(inside)]}
        return self._adapted(model, config), info

    def outline(self, config: Any) -> nn.Module:
        """Return a model, not adapted, whose tensors have shapes and no memory."""
        with torch.device("meta"):
            return self._class(config)(deepcopy(config), **self.options)

    def size(self, config: Any) -> ModelSize:
        """Return the size of the whole model, token embeddings included, without building it."""
        return ModelSize.of(self.outline(config).get_submodule(self.part))

    def _class(self, config: Any) -> Any:
        import transformers

        if isinstance(self.model, type):
            return self.model
        return getattr(transformers, self.model) if self.model else transformers.MODEL_MAPPING[type(config)]

    def _adapted(self, model: nn.Module, config: Any) -> nn.Module:
        """Adapt a model, and compute its tanh approximation of GELU by torch's single kernel, not in eight steps."""
        from transformers.activations import NewGELUActivation

        model = model.get_submodule(self.part)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, NewGELUActivation):
                    setattr(module, name, nn.GELU(approximate="tanh"))
        return self.adapt(model, config) if self.adapt else model


def run(model: nn.Module, embeds: Tensor, mask: Tensor | None, **more: Any) -> Tensor:
    """Return the last hidden states of a model of transformers that takes input embeddings."""
    return model(inputs_embeds=embeds, attention_mask=mask, **more).last_hidden_state


def run_unmasked(model: nn.Module, embeds: Tensor, _mask: Tensor | None) -> Tensor:
    """Return the hidden states of a causal model, whose tokens never see the padding that follows them."""
    return model(embeds)


def draw_normal(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator, divisor: float = 1.0
) -> np.ndarray | None:
    """Draw normal weights of standard deviation ``config.initializer_range / divisor``; keep norms, biases, scales."""
    if name.endswith("bias") or "norm" in name.lower() or "ln_" in name or "layer_scale" in name:
        return None
    return generator.standard_normal(shape, dtype=np.float32) * (config.initializer_range / divisor)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: how to build, load, run and draw them, and where their parts are."""

    name: str  # the `model_type` of its configurations
    loader: HubLoader | FolderLoader
    # Builds a configuration from its settings, for families whose models are not those of transformers.
    config: Callable[..., Any] | None = None
    pretrained: bool = True  # whether pretrained weights are published
    shape: Callable[[Any], Shape]  # returns the shape of a configuration
    # run(model, embeds, mask) -> hidden states (batch, tokens, width); the mask (batch, tokens) is 1
    # at real tokens and None if no token is padding. With ``takes_pair_mask``, it may also be a mask of pairs, of bool
    # (batch, 1, queries, keys), for attention that sees all real tokens; or, if attention adds it, of float.
    run: Callable[[nn.Module, Tensor, Tensor | None], Tensor] = run
    takes_pair_mask: bool = False
    blocks: str  # path of the list of blocks inside the model; empty for a family without blocks
    stored_blocks: str = ""  # that path in files with weights, if it is another
    groups: dict[str, tuple[str, ...]]  # parts of the names of a group's parameters; the first match counts
    draw: Draw = draw_normal  # its default initialisation
    scheme: str = "normal with standard deviation initializer_range"  # the initialisation in words
    final_norm: str = ""  # path of the norm after the last block, if any
    # Paths of modules that a sequence of vectors does not use: the token embeddings, which an input
    # layer replaces. They are dropped from memory and left out of the weights' digest.
    unused: tuple[str, ...] = ()
    native_input: str = ""  # path of the model's own input module, if it has one
    reads: str = ""  # data of the native input: text, letters (one token each), pixels, or sounds
    heads: tuple[str, ...] = ()  # prefixes of the tensors of task heads, which are not loaded
    unsaved: tuple[str, ...] = ()  # prefixes of parameters that are drawn for every init
    attention: str = ""  # path inside a block of the module whose last output is the attention map, if any
    feedforward: tuple[str, ...] = ()  # paths inside a block of its feedforward modules, in order
    # Paths inside a block of the linear maps from tokens to queries and to keys, if keys belong to single tokens; the
    # same path twice if one map returns queries, keys and values.
    queries: str = ""
    keys: str = ""
    divides_scores: bool = True  # whether attention divides scores by the square root of a head's width
    # Whether products may run in bfloat16. Recurrent models may not: the errors of their state accumulate.
    allows_bfloat16: bool = True
    compiles: bool = False  # whether torch compiles a block into one graph for all rows and tokens
    # Whether the code of the model may read values of tensors, for which a GPU waits. Its training steps cannot be
    # captured in CUDA graphs then.
    reads_values: bool = False
    is_generic: bool = False  # whether nobody has described it by hand, see `reservoir.backbones.generic`


def silence_transformers() -> None:
    """Turn off the progress bars and warnings of transformers; this package raises errors for what matters."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity(50)  # critical; even its errors print values of configurations as they are


def attention_name(config: Any) -> str:
    """Return which attention function a model uses; transformers has a public method to set it, but none to read it."""
    return str(getattr(config, "_attn_implementation", ""))
