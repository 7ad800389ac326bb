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
"""``draw(parameter_name, shape, config, generator)`` returns an array, or None for a parameter that keeps its value.

Such a parameter, often a bias or a norm, keeps the constant to which the model's class sets it.
"""

StoredTensors = Mapping[str, Any]
"""Tensors by name; they may be slices of safetensors files, which are read when they are indexed."""

LoadedModule = tuple[nn.Module, dict[str, Any]]
"""A model, and a report on its missing, unexpected and mismatched tensors."""

# Lists in the configurations of transformers that have one value for each block.
LISTS_BY_BLOCK = ("layer_types", "mlp_layer_types", "attention_window", "no_rope_layers")


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it reads a sequence."""

    depth: int  # number of blocks; 0 for a family without blocks
    width: int  # of the vectors and hidden states of a token
    max_tokens: int | None  # longest sequence; None if unlimited
    causal: bool  # whether a token sees only itself and those before it
    multiple: int = 1  # sequences are padded to a multiple of this number of tokens


@dataclass
class Config:
    """A configuration of settings that are plain JSON values.

    A setting whose value has not the type of its field raises `ValueError`.
    """

    def __post_init__(self) -> None:
        # Settings come from files and options, which may give a value of another type than that of the field.
        for setting in fields(self):
            value = getattr(self, setting.name)
            type_name = type(value).__name__.removesuffix("Type")  # the type of None is called NoneType
            # The annotation, such as "int | None", is a text in files that postpone the evaluation of annotations.
            annotation = str(getattr(setting.type, "__name__", setting.type))
            allowed_types = annotation.split(" | ")
            is_integer_for_float = type_name == "int" and allowed_types == ["float"]
            if type_name not in allowed_types and not is_integer_for_float:
                raise ValueError(f"{setting.name} takes {annotation}, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)


class SkipInitialisation(TorchFunctionMode):
    """Skips the random initialisation of a model under construction, whose weights are replaced afterwards.

    Each tensor that would be random gets a constant, so that no value depends on what was in its memory before.
    """

    def __init__(self) -> None:
        super().__init__()
        # The parameters of two or more axes that a function of `torch.nn.init` would have drawn.
        self.skipped: list[nn.Parameter] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch calls this for each of its functions that runs while the mode is active.
        kwargs = kwargs or {}
        is_random = getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_")
        if not is_random:
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs["tensor"]
        # Functions of `torch.nn.init` are Python functions, unlike methods such as ``tensor.normal_()``.
        is_function_of_init = isinstance(func, FunctionType)
        if is_function_of_init and tensor.dim() > 1 and isinstance(tensor, nn.Parameter):
            self.skipped.append(tensor)
        # A class may take the logarithm of uniform values, as for the decay of a recurrent state, so these become the
        # middle of their bounds. All others become zeros, also because torch draws a truncated normal by
        # ``tensor.normal_()``, and repeats the draw until all values are in bounds.
        constant = _middle(args, kwargs) if func.__name__ == "uniform_" else 0.0
        with torch.no_grad():
            return tensor.fill_(constant)


def _middle(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Return the middle of the bounds in the arguments of a ``uniform_``; 0 for the default bounds 0 and 1.

    Classes draw between the default bounds what needs no value of its own, such as the vector of masked tokens.
    """
    # Functions of `torch.nn.init` call the bounds ``a`` and ``b``, methods ``from`` and ``to``.
    low = args[1] if len(args) > 1 else kwargs.get("a", kwargs.get("from", 0.0))
    high = args[2] if len(args) > 2 else kwargs.get("b", kwargs.get("to", 1.0))
    return 0.0 if (low, high) == (0, 1) else (low + high) / 2


@dataclass(frozen=True)
class ModelSize:
    """The number of parameters of a model, and the bytes of its buffers, such as the masks of GPT-Neo."""

    parameters: int
    buffer_bytes: int

    @classmethod
    def of(cls, model: nn.Module) -> "ModelSize":
        """Return the size of a model, which may be on the meta device: no values are read."""
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

    module: Callable[[Any], nn.Module]  # returns the model of a configuration

    def lean(self, config: Any, _depth: int | None, *, with_token_embeddings: bool) -> Any:
        """Return the configuration of the model that is built: all of it, because models of this form are small."""
        return config

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights."""
        return self.module(config)

    def load(self, config: Any, tensors: StoredTensors, dtype: torch.dtype) -> LoadedModule:
        """Return a model with these tensors in ``dtype``, and a report on them."""
        model = self.outline(config)
        outline_tensors = model.state_dict()
        # Tensors that are missing become zeros, and are reported.
        zeros = {
            name: torch.zeros(tensor.shape)
            for name, tensor in outline_tensors.items()
            if name not in tensors
        }
        # Indexing reads a tensor, so those that the model lacks are never read.
        stored = {name: tensor[:].to(dtype) for name, tensor in tensors.items() if name in outline_tensors}
        # With ``assign``, the tensors replace those of the outline, which have no memory.
        model.load_state_dict(zeros | stored, assign=True)
        unexpected = sorted(tensors.keys() - outline_tensors.keys())
        return model, {"missing_keys": zeros.keys(), "unexpected_keys": unexpected}

    def outline(self, config: Any) -> nn.Module:
        """Return a model whose tensors have shapes and no memory."""
        with torch.device("meta"), SkipInitialisation():
            return self.module(config)

    def size(self, config: Any) -> ModelSize:
        """Return the size of the model without building it."""
        return ModelSize.of(self.outline(config))


def set_depth(config: Any, setting: str, depth: int) -> None:
    """Set the number of blocks in a configuration of transformers, and shorten its lists of one value per block.

    ``setting`` is the name of the setting with the number of blocks.
    """
    setattr(config, setting, depth)
    for name in LISTS_BY_BLOCK:
        # A configuration may store the list under another name, or compute it from other settings by a property.
        stored_name = config.attribute_map.get(name, name)
        is_computed = isinstance(getattr(type(config), stored_name, None), property)
        if is_computed:
            continue
        values = getattr(config, name, None)
        if isinstance(values, list):
            setattr(config, name, values[:depth])


def copy_numbers(blocks: nn.Module, whole_blocks: nn.Module) -> None:
    """Give the first blocks of a model the numbers that the blocks of the whole model have as attributes.

    Some models, such as ESM-C, divide what a block adds by the root of the number of blocks. ``blocks`` were built as
    those of a smaller model. ``whole_blocks`` need no memory for their weights.
    """
    whole_modules = dict(whole_blocks.named_modules())
    for path, module in blocks.named_modules():
        attributes = vars(module)
        for name, value in vars(whole_modules.get(path, module)).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and name in attributes:
                attributes[name] = value


def _shrink_text(config: Any, depth: int | None) -> None:
    """Set the number of blocks in place, unless it is None."""
    if depth is not None:
        # Models of texts and images have a configuration of each. For others, this method returns the whole one.
        set_depth(config.get_text_config(), "num_hidden_layers", depth)


@dataclass(frozen=True)
class HubLoader:
    """Builds and loads the models of a family through transformers."""

    # The class, or its name in transformers; empty: the class of the model without a head.
    model: str | type[nn.Module] = ""
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of that class
    # adapt(model, config) returns the model that is used, after each one is built or loaded; None: it stays as it is.
    adapt: Callable[[nn.Module, Any], nn.Module] | None = None
    # Path of the part of the model that is kept, such as an encoder; empty: all of it. A file may lack the tensors of
    # other parts.
    part: str = ""
    # shrink(config, depth) sets the number of blocks in a configuration in place, unless ``depth`` is None.
    shrink: Callable[[Any, int | None], None] = _shrink_text

    def lean(self, config: Any, depth: int | None, *, with_token_embeddings: bool) -> Any:
        """Return the configuration of the model that is built: its first ``depth`` blocks, or all with None.

        Unless ``with_token_embeddings``, the model has almost none.
        """
        small = deepcopy(config)
        self.shrink(small, depth)
        if not with_token_embeddings:
            # Vectors do not pass through the token embeddings (38 of GPT-2 small's 124 million
            # parameters). Only the embeddings up to the padding token are built, because some families
            # count their positions from its number.
            small.vocab_size = (getattr(config, "pad_token_id", None) or 0) + 1
            # The other special tokens may lie outside this vocabulary.
            small.bos_token_id = None
            small.eos_token_id = None
        return small

    def build(self, config: Any) -> nn.Module:
        """Return a model of this configuration with arbitrary weights."""
        silence_transformers()
        model_class = self._class(config)
        return self._adapted(model_class(deepcopy(config), **self.options), config)

    def load(self, config: Any, tensors: StoredTensors, dtype: torch.dtype) -> LoadedModule:
        """Return a model with these tensors in ``dtype``, and transformers' report on them.

        transformers renames tensors whose names are those of an older release.
        """
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
            # Tensors of other parts may be missing.
            missing_keys = [key for key in info["missing_keys"] if key.startswith(f"{self.part}.")]
            info = info | {"missing_keys": missing_keys}
        return self._adapted(model, config), info

    def outline(self, config: Any) -> nn.Module:
        """Return a model, not adapted, whose tensors have shapes and no memory."""
        with torch.device("meta"):
            return self._class(config)(deepcopy(config), **self.options)

    def size(self, config: Any) -> ModelSize:
        """Return the size of the model of a configuration, or of its `part`, without memory for the weights."""
        return ModelSize.of(self.outline(config).get_submodule(self.part))

    def _class(self, config: Any) -> Any:
        """Return the class of transformers that builds the model of a configuration."""
        import transformers

        if isinstance(self.model, type):
            return self.model
        if self.model:
            return getattr(transformers, self.model)
        return transformers.MODEL_MAPPING[type(config)]  # without a head

    def _adapted(self, model: nn.Module, config: Any) -> nn.Module:
        """Return the part of a model that is kept, changed in place by `adapt` and with a faster GELU."""
        from transformers.activations import NewGELUActivation

        model = model.get_submodule(self.part)  # the model itself for an empty path
        # transformers computes the tanh approximation of GELU in eight steps, torch in a single kernel. The lists are
        # made first, because modules are replaced during the loops.
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, NewGELUActivation):
                    setattr(module, name, nn.GELU(approximate="tanh"))
        return self.adapt(model, config) if self.adapt else model


def run(model: nn.Module, embeds: Tensor, mask: Tensor | None, **more: Any) -> Tensor:
    """Return the last hidden states of a model of transformers that takes input embeddings.

    ``more`` are further arguments of the call.
    """
    return model(inputs_embeds=embeds, attention_mask=mask, **more).last_hidden_state


def run_unmasked(model: nn.Module, embeds: Tensor, _mask: Tensor | None) -> Tensor:
    """Return the hidden states of a causal model, whose tokens never see the padding that follows them."""
    return model(embeds)


def draw_normal(
    name: str, shape: tuple[int, ...], config: Any, generator: np.random.Generator, divisor: float = 1.0
) -> np.ndarray | None:
    """Draw normal weights of standard deviation ``config.initializer_range / divisor``.

    Return None for biases, norms and the scales of layers, which keep their values.
    """
    is_norm = "norm" in name.lower() or "ln_" in name
    if name.endswith("bias") or is_norm or "layer_scale" in name:
        return None
    return generator.standard_normal(shape, dtype=np.float32) * (config.initializer_range / divisor)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: how to build, load, run and draw them, and where their parts are.

    An empty path or text means that the models have no such part.
    """

    name: str  # the `model_type` of its configurations
    loader: HubLoader | FolderLoader
    # Builds a configuration from its settings, for families whose models are not those of transformers.
    config: Callable[..., Any] | None = None
    pretrained: bool = True  # whether pretrained weights are published
    shape: Callable[[Any], Shape]  # returns the shape of the model of a configuration
    # run(model, embeds, mask) returns the last hidden states (batch, tokens, width). The mask is (batch, tokens), 1 at
    # real tokens, or None if no token is padding.
    run: Callable[[nn.Module, Tensor, Tensor | None], Tensor] = run
    # Whether the mask of ``run`` may also be one of pairs, (batch, 1, queries, keys): bool, whether a query sees a key;
    # or, if attention adds the mask to its scores, float, 0 or the lowest number.
    takes_pair_mask: bool = False
    blocks: str  # path of the list of blocks inside the model
    stored_blocks: str = ""  # that path in files with weights; empty if it is the same
    # Texts that occur in the names of a group's parameters, by group; the first group that matches counts.
    groups: dict[str, tuple[str, ...]]
    draw: Draw = draw_normal  # the initialisation of the init ``random``
    scheme: str = "normal with standard deviation initializer_range"  # the initialisation in words
    final_norm: str = ""  # path of the norm after the last block
    # Paths of modules that a sequence of vectors does not use: the token embeddings, which an input
    # layer replaces. They are dropped from memory and left out of the weights' digest.
    unused: tuple[str, ...] = ()
    native_input: str = ""  # path of the model's own input module
    reads: str = ""  # data of the native input: text, letters (one token each), pixels, or sounds
    heads: tuple[str, ...] = ()  # prefixes of the tensors of task heads, which are not loaded
    unsaved: tuple[str, ...] = ()  # prefixes of parameters that are in no file, so every init draws them
    attention: str = ""  # path inside a block of the module whose last output is the attention map
    feedforward: tuple[str, ...] = ()  # paths inside a block of its feedforward modules, in order
    # Paths inside a block of the linear maps from tokens to queries and to keys; the same path twice if one map returns
    # queries, keys and values. Empty also if they are not known, or if a key does not belong to a single token.
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
    # 50 is the level of critical messages. Errors are hidden, too: they print values of a configuration without
    # escapes, so that control characters in the file of a model would reach the terminal.
    logging.set_verbosity(50)


def attention_name(config: Any) -> str:
    """Return the name of the attention function that a model uses; empty if its configuration has none."""
    # transformers has a public method to set it, but none to read it.
    return str(getattr(config, "_attn_implementation", ""))
