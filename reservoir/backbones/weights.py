"""Frozen weights: drawn at random from a seed, or loaded; their digest, which shows that they stay frozen."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones.backbone import Backbone
from reservoir.backbones.family import Draw, Family, SkipInitialisation, draw_normal
from reservoir.backbones.generic_checks import check_backbone, check_native
from reservoir.backbones.loading import Pretrained, check_memory, load_pretrained
from reservoir.backbones.registry import find, usable_configuration
from reservoir.backbones.tied import check_tied, tie_queries_and_keys
from reservoir.errors import InputError
from reservoir.random import generator

INITS = ("pretrained", "random", "random-flat", "statistics", "tied")

HALF = (torch.bfloat16, torch.float16)
"""The types of half precision."""

# While transformers builds a model, it replaces functions of the whole process (initialisers, the
# tying of weights). Two threads that build at the same time can leave them replaced.
_LOADING = threading.Lock()


def load_backbone(
    name: str,
    init: str = "random",
    seed: int = 0,
    depth: int | None = None,
    *,
    own_precision: bool = False,
    memory_limit: int | None = None,
) -> Backbone:
    """Return a frozen backbone on the CPU, in evaluation mode and without gradients.

    ``name`` is a known name such as ``gpt2`` or ``esn:units=500``, a folder with a ``config.json``, a
    GGUF file, or the name of a model on the Hugging Face hub. With ``depth`` it keeps only its first
    ``depth`` blocks and the final norm, and no other block is built or read.

    | init | weights |
    |---|---|
    | ``random`` | drawn by the family's own scheme, from the seed |
    | ``random-flat`` | matrices of standard deviation ``initializer_range``, as in Lu et al. 2021's "random" GPT-2 |
    | ``pretrained`` | loaded from safetensors |
    | ``statistics`` | normal tensors with the mean and standard deviation of the pretrained ones (ibid., section 3.7) |
    | ``tied`` | as ``random``, with keys that equal the queries, orthogonal by head, see `reservoir.backbones.tied` |

    All weights are float32, unless ``own_precision`` leaves the matrices of pretrained blocks in the half
    precision in which they are stored, or rounds quantised ones to bfloat16, one at a time. `weights_digest` is
    the same for both. A generic family is tested when it is loaded, and becomes float32 if half precision changes
    what it computes.

    If the parameters take more than ``memory_limit`` bytes, the blocks of pretrained weights are streamed (see
    `reservoir.backbones.streaming`); with 0 they always are, with None never.
    """
    if init not in INITS:
        raise InputError(f"init {init!r}: choose one of {', '.join(INITS)}, or a folder with weights")
    with _LOADING:
        family, config = find(name, depth)
        # Not every family has what an init needs.
        if init == "random-flat" and not hasattr(config, "initializer_range"):
            raise InputError(
                f"init 'random-flat': {family.name} has no initializer_range", "use --init random"
            )
        if init == "tied":
            check_tied(family)
        # Two inits need the files with the weights.
        if init in ("pretrained", "statistics"):
            backbone = _load_stored(
                name,
                init,
                seed,
                family,
                config,
                depth,
                own_precision=own_precision,
                memory_limit=memory_limit,
            )
        else:
            backbone = _draw_backbone(name, init, seed, family, config, depth)
        if family.is_generic:
            check_backbone(backbone)
        return backbone


def _draw_backbone(
    name: str, init: str, seed: int, family: Family, config: Any, depth: int | None
) -> Backbone:
    """Return a backbone with the init ``random``, ``random-flat`` or ``tied``; no file is read."""
    lean = family.loader.lean(config, depth, with_token_embeddings=family.is_generic)
    # The library of Lu et al. 2021 did not yet scale ``c_proj`` down, hence ``random-flat``.
    draw = draw_normal if init == "random-flat" else family.draw
    backbone = Backbone(_drawn_model(name, family, lean, draw, config, seed), family, config, depth)
    if init == "tied":
        tie_queries_and_keys(backbone, seed)
    return backbone


def _load_stored(
    name: str,
    init: str,
    seed: int,
    family: Family,
    config: Any,
    depth: int | None,
    *,
    own_precision: bool,
    memory_limit: int | None,
) -> Backbone:
    """Return a backbone with the init ``pretrained``, or with ``statistics`` of the pretrained weights."""
    # Weights that are drawn from statistics are in no file, so they are float32 and cannot be streamed.
    is_pretrained = init == "pretrained"
    loaded = load_pretrained(
        name,
        family,
        config,
        depth,
        own_precision=own_precision and is_pretrained,
        memory_limit=memory_limit if is_pretrained else None,
    )
    backbone = loaded.backbone(family, depth)
    # Parameters that no file has are drawn for every init.
    draw_parameters(backbone.model, family.draw, backbone.config, seed, family.unsaved)
    if not is_pretrained:
        # Without a function that draws, each parameter is drawn from its own mean and standard deviation.
        draw_parameters(backbone.model, draw=None, config=backbone.config, seed=seed)
        backbone.stored_digest = None  # the weights are no longer those of the file
    return backbone


def load_native(
    name: str,
    init: str = "pretrained",
    seed: int = 0,
    depth: int | None = None,
    *,
    own_precision: bool = False,
    memory_limit: int | None = None,
) -> tuple[Backbone, nn.Module]:
    """Return a frozen backbone and its native input module, which maps the model's own input to vectors.

    The own input is, for example, the numbers of tokens. ``init`` is ``pretrained`` or ``random``; the other arguments
    are those of `load_backbone`.
    """
    with _LOADING:
        family, config = find(name, depth)
        if not family.native_input:
            raise InputError(f"--input native: {family.name} has no native input", "leave --input out")
        if init == "random":
            lean = family.loader.lean(config, depth, with_token_embeddings=True)
            model = _drawn_model(name, family, lean, family.draw, config, seed)
            loaded = Pretrained(model, config, stored_digest=None)
        else:
            loaded = load_pretrained(
                name,
                family,
                config,
                depth,
                native=True,
                own_precision=own_precision,
                memory_limit=memory_limit,
            )
        # Looked up before the backbone is made, which drops the modules that vectors do not use.
        native_input = loaded.model.get_submodule(family.native_input)
        # A plain table of vectors may stay in half precision, because the vectors are converted one by one.
        is_table = type(native_input) is nn.Embedding
        if not is_table:
            native_input = native_input.float()
        if family.is_generic:
            check_native(loaded.model, loaded.config, native_input)
        backbone = loaded.backbone(family, depth)
        if family.is_generic:
            check_backbone(backbone)
        return backbone, native_input


def _drawn_model(name: str, family: Family, lean: Any, draw: Draw, config: Any, seed: int) -> nn.Module:
    """Return a model of the configuration ``lean`` in float32, with weights drawn by ``draw(..., config, ...)``.

    Raise `InputError` if a parameter is not finite.
    """
    check_memory(name, family, lean, torch.float32)
    # A class that nobody has described may draw constants, such as the time steps of Mamba, which are not drawn again.
    # So they are drawn from the seed, and the state of torch's generator is restored afterwards.
    skip = SkipInitialisation()
    with usable_configuration(name), skip, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Some activations hold their parameters in bfloat16, which NumPy does not have.
        model = family.loader.build(lean).float()
    draw_parameters(model, draw, config, seed, skipped=skip.skipped)
    for parameter_name, parameter in model.named_parameters():
        # A sum is finite only if all values are, and needs no memory of the size of the parameter.
        if not parameter.detach().sum().isfinite():
            problem = f"model type {config.model_type!r}: its class sets {parameter_name} to values that are not finite"
            raise InputError(problem, "choose another model, or pretrained weights")
    return model


def describe_weights(backbone: Backbone, init: str) -> str:
    """Return a description of how a backbone's weights were made, without a subject, such as "as published"."""
    return {
        "pretrained": "as published",
        "random": backbone.family.scheme,
        "random-flat": "every matrix normal with standard deviation initializer_range, as in Lu et al. 2021",
        "statistics": "every tensor normal, with the mean and standard deviation of the published one",
        "tied": f"{backbone.family.scheme}; the keys equal the queries, which are orthogonal by head",
    }[init]


def draw_parameters(
    model: nn.Module,
    draw: Draw | None,
    config: Any,
    seed: int,
    prefixes: tuple[str, ...] = ("",),
    skipped: Sequence[nn.Parameter] = (),
) -> None:
    """Redraw in place the parameters whose names have one of these prefixes, by default all.

    Without ``draw``, the values are normal with the mean and the standard deviation that the parameter has. The class
    of the model draws the parameters in ``skipped``, so these are drawn even if ``draw`` keeps parameters of their
    names.
    """
    ids_of_skipped = {id(parameter) for parameter in skipped}

    # Each tensor has its own generator, keyed by the seed and its name, so that a model cut to fewer
    # blocks keeps the weights of the others. NumPy draws the values, because torch's draws depend on
    # the CPU's vector instructions.
    def redraw(name: str, parameter: nn.Parameter) -> None:
        """Redraw one parameter in place."""
        values = parameter.detach().numpy()
        if not values.size:  # such as the register tokens of a model without any
            return
        random = generator(seed, name)
        if draw:
            drawn = draw(name, values.shape, config, random)
            if drawn is None and id(parameter) in ids_of_skipped:
                # A matrix under a name that does not say so, such as ``proj``.
                drawn = draw(f"{name}.weight", values.shape, config, random)
            if drawn is None:  # the parameter keeps its value, such as the zeros of a bias
                return
        else:
            # The sum is in double precision, so that its order does not change a digit of the float32.
            mean = np.float32(values.mean(dtype=np.float64))
            std = np.float32(values.std(dtype=np.float64))
            drawn = random.standard_normal(values.shape, dtype=np.float32) * std + mean
        parameter.data.copy_(torch.from_numpy(drawn))

    drawn_parameters = {
        name: parameter for name, parameter in model.named_parameters() if name.startswith(prefixes)
    }
    # Threads are of use, because NumPy releases Python's global lock while it draws.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        # The list goes through all results, which raises an error of a thread here.
        list(threads.map(redraw, drawn_parameters.keys(), drawn_parameters.values()))


def weights_digest(backbone: Backbone) -> str:
    """Return the SHA-256 of a backbone: its family, configuration, and every tensor's name, shape and bytes.

    Tensors of quantised files count as they are stored, with the rule of their dequantisation. `Backbone.set_compute`
    rounds weights, so the digest is taken before.
    """
    family = backbone.family
    digest = hashlib.sha256(family.name.encode())
    shape = asdict(backbone.shape) | {"depth": backbone.depth}
    description = [shape, _settings_that_count(backbone)]
    digest.update(json.dumps(description, sort_keys=True, default=str).encode())
    if backbone.stored_digest is None:
        # Tensors of streamed blocks are read from their file.
        readers = backbone.streamed.readers() if backbone.streamed else {}
        readers_by_path = {f"{family.blocks}.{name}": read for name, read in readers.items()}
        return content_digest(backbone.model, digest=digest, readers=readers_by_path)
    # Quantised weights count as they are stored. Only the parameters that are in no file count by their values.
    digest.update(backbone.stored_digest.encode())
    stored = {name for name in backbone.model.state_dict() if not name.startswith(family.unsaved)}
    return content_digest(backbone.model, stored, digest)


def _settings_that_count(backbone: Backbone) -> dict[str, Any]:
    """Return the settings of a backbone's configuration that may affect what it computes."""
    # A folder may move or be renamed, and other settings say how a model was saved or is used. Of the vocabulary, only
    # the weights count.
    ignored = {"_name_or_path", "transformers_version", "architectures", "dtype", "vocab_size", "use_cache"}
    values = backbone.config.to_dict()
    settings = {
        name: value
        for name, value in values.items()
        if name not in ignored and not name.endswith("_token_id")
    }
    # The positions of a Longformer begin after the padding token, whose number is usually 1. Its shape, which has whole
    # windows only, may not show another number.
    if backbone.shape.multiple > 1 and values.get("pad_token_id") != 1:
        settings["pad_token_id"] = values["pad_token_id"]
    return settings


def content_digest(
    module: nn.Module,
    but: Set[str] = frozenset(),
    digest: Any = None,
    readers: Mapping[str, Callable[[], Tensor]] = {},
) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of a module's tensors.

    Parameters
    ----------
    module : Module
        The module.
    but : set of str
        Names of tensors that are left out.
    digest : hash object of hashlib
        The hash to which the tensors are added, in place; by default a new one.
    readers : mapping of str to callable
        By name, functions that return the tensors that are not in memory.
    """
    digest = digest or hashlib.sha256()
    for name, in_memory in sorted(module.state_dict().items()):
        if name in but:
            continue
        tensor = readers[name]() if name in readers else in_memory
        # Weights in half precision count as float32, so that the precision in which they are loaded does not matter.
        if tensor.dtype in HALF:
            tensor = tensor.float()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        # The bytes of the values, without a copy if they are contiguous.
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def frozen_unchanged(model: nn.Module) -> Iterator[None]:
    """Raise `RuntimeError` if a parameter or buffer that is not trained changes within the context."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    sums_before = _bit_sums(model, trained)
    yield
    if not torch.equal(_bit_sums(model, trained), sums_before):
        raise RuntimeError("a frozen tensor has changed; this is a bug in reservoir")


def _bit_sums(module: nn.Module, excluded: Set[str]) -> Tensor:
    """Return checksums (tensors,) of a module's tensors, in the order of their names, without the excluded ones.

    It is the sum of a tensor's elements, whose bits are read as integers: any change of one element changes it, while
    changes of several may cancel out. A SHA-256 would take minutes on the host for the largest models; the sums are
    computed where the tensors are, without copying these to the host.
    """
    integer_types = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
    sums = [
        tensor.view(integer_types[tensor.element_size()]).sum(dtype=torch.int64)
        for name, tensor in sorted(module.state_dict().items())
        if name not in excluded
    ]
    return torch.stack(sums) if sums else torch.empty(0)
