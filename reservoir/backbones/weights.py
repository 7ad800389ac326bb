"""Frozen weights: drawn at random from a seed, or loaded; their digest, which shows that they stay frozen."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Set
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
from reservoir.backbones.names import find, usable_configuration
from reservoir.backbones.tied import check_tied, tie_queries_and_keys
from reservoir.errors import InputError
from reservoir.random import generator

INITS = ("pretrained", "random", "random-flat", "statistics", "tied")

HALF = (torch.bfloat16, torch.float16)

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
        if init == "random-flat" and not hasattr(config, "initializer_range"):
            raise InputError(
                f"init 'random-flat': {family.name} has no initializer_range", "use --init random"
            )
        if init == "tied":
            check_tied(family)
        if init != "pretrained":
            memory_limit = None  # drawn weights are in no file
        if init in ("random", "random-flat", "tied"):
            lean = family.loader.lean(config, depth, words=family.is_generic)
            backbone = Backbone(_build(name, family, lean, seed), family, config, depth)
            model = backbone.model
            # The library of Lu et al. 2021 did not yet scale ``c_proj`` down, hence ``random-flat``.
            draw_parameters(model, draw_normal if init == "random-flat" else family.draw, config, seed)
            if init == "tied":
                tie_queries_and_keys(backbone, seed)
            if family.is_generic:
                check_backbone(backbone)
            return backbone
        own_precision = own_precision and init == "pretrained"
        loaded = load_pretrained(
            name, family, config, depth, own_precision=own_precision, memory_limit=memory_limit
        )
        backbone = loaded.backbone(family, depth)
        draw_parameters(backbone.model, family.draw, backbone.config, seed, family.unsaved)
        if init == "statistics":
            draw_parameters(backbone.model, None, backbone.config, seed)
            backbone.stored_digest = None
        if family.is_generic:
            check_backbone(backbone)
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
    """Return a frozen backbone and its native input module, both pretrained or ``random``; see `load_backbone`."""
    with _LOADING:
        family, config = find(name, depth)
        if not family.native_input:
            raise InputError(f"--input native: {family.name} has no native input", "leave --input out")
        if init == "random":
            model = _build(name, family, family.loader.lean(config, depth, words=True), seed)
            draw_parameters(model, family.draw, config, seed)
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
        embeddings = loaded.model.get_submodule(family.native_input)
        # A plain table of vectors may stay in half precision, because the vectors are converted one by one.
        embeddings = embeddings if type(embeddings) is nn.Embedding else embeddings.float()
        if family.is_generic:
            check_native(loaded.model, loaded.config, embeddings)
        backbone = loaded.backbone(family, depth)
        if family.is_generic:
            check_backbone(backbone)
        return backbone, embeddings


def _build(name: str, family: Family, config: Any, seed: int) -> nn.Module:
    """Return a model in float32 whose weights will be drawn."""
    check_memory(name, family, config, torch.float32)
    # A class that nobody has described may draw constants, such as the time steps of Mamba.
    with usable_configuration(name), SkipInitialisation(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family.loader.build(config)


def describe_weights(backbone: Backbone, init: str) -> str:
    """Return a short description of a backbone's weights."""
    return {
        "pretrained": "as published",
        "random": backbone.family.scheme,
        "random-flat": "every matrix normal with standard deviation initializer_range, as in Lu et al. 2021",
        "statistics": "every tensor normal, with the mean and standard deviation of the published one",
        "tied": f"{backbone.family.scheme}; the keys equal the queries, which are orthogonal by head",
    }[init]


def draw_parameters(
    model: nn.Module, draw: Draw | None, config: Any, seed: int, prefixes: tuple[str, ...] = ("",)
) -> None:
    """Redraw in place parameters with these prefixes; without ``draw``, keep their means and standard deviations."""

    # Each tensor has its own generator, keyed by the seed and its name, so that a model cut to fewer
    # blocks keeps the weights of the others. NumPy draws the values, because torch's draws depend on
    # the CPU's vector instructions.
    def redraw(named: tuple[str, nn.Parameter]) -> None:
        name, parameter = named
        values = parameter.detach().numpy()
        random = generator(seed, name)
        if draw:
            drawn = draw(name, values.shape, config, random)
            # `draw` returns None for a parameter that keeps its initial constant, such as a bias.
            if drawn is None:
                return
        else:
            # The sum is in double precision, so that its order does not change a digit of the float32.
            mean, std = np.float32(values.mean(dtype=np.float64)), np.float32(values.std(dtype=np.float64))
            drawn = random.standard_normal(values.shape, dtype=np.float32) * std + mean
        parameter.data.copy_(torch.from_numpy(drawn))

    drawn_parameters = [named for named in model.named_parameters() if named[0].startswith(prefixes)]
    # NumPy releases Python's global lock while it draws.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(redraw, drawn_parameters))


def weights_digest(backbone: Backbone) -> str:
    """Return the SHA-256 of a backbone: its family, configuration, and every tensor's name, shape and bytes.

    Tensors of quantised files count as they are stored, with the rule of their dequantisation. `Backbone.set_compute`
    rounds weights, so the digest is taken before.
    """
    digest = hashlib.sha256(backbone.family.name.encode())
    # The digest stays the same when a folder moves or is renamed.
    ignored = {"_name_or_path", "transformers_version", "architectures", "dtype", "vocab_size", "use_cache"}
    values = backbone.config.to_dict()
    settings = {k: v for k, v in values.items() if k not in ignored and not k.endswith("_token_id")}
    # The positions of a Longformer begin after this token, usually 1, which its shape of whole windows may not show.
    if backbone.shape.multiple > 1 and values.get("pad_token_id") != 1:
        settings["pad_token_id"] = values["pad_token_id"]
    shape = asdict(backbone.shape) | {"depth": backbone.depth}
    digest.update(json.dumps([shape, settings], sort_keys=True, default=str).encode())
    if backbone.stored_digest is None:
        readers = backbone.streamed.readers() if backbone.streamed else {}
        blocks = backbone.family.blocks
        return content_digest(
            backbone.model,
            digest=digest,
            readers={f"{blocks}.{name}": read for name, read in readers.items()},
        )
    # Quantised weights count as they are stored; the other parameters are those that were drawn.
    digest.update(backbone.stored_digest.encode())
    names = backbone.model.state_dict()
    stored = {
        name
        for name in names
        if not backbone.family.unsaved or not name.startswith(backbone.family.unsaved)
    }
    return content_digest(backbone.model, stored, digest)


def content_digest(
    module: nn.Module,
    but: Set[str] = frozenset(),
    digest: Any = None,
    readers: Mapping[str, Callable[[], Tensor]] = {},
) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of a module's tensors, appended to ``digest``.

    ``readers`` return the tensors that are not in memory.
    """
    digest = digest or hashlib.sha256()
    for name, in_memory in sorted(module.state_dict().items()):
        if name not in but:
            tensor = readers[name]() if name in readers else in_memory
            # Weights in half precision count as float32, in which all weights were loaded once.
            whole = tensor.float() if tensor.dtype in HALF else tensor
            digest.update(f"{name} {tuple(whole.shape)} {whole.dtype}".encode())
            digest.update(whole.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def frozen_unchanged(model: nn.Module) -> Iterator[None]:
    """Raise `RuntimeError` if a parameter or buffer that is not trained changes within the context."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    before = _bit_sums(model, trained)
    yield
    if not torch.equal(_bit_sums(model, trained), before):
        raise RuntimeError("a frozen tensor has changed; this is a bug in reservoir")


def _bit_sums(module: nn.Module, but: Set[str]) -> Tensor:
    """Return a checksum of each of a module's tensors, in the order of their names, without copying them to the host.

    It is the sum of a tensor's elements, whose bits are read as integers: any change of one element changes it, while
    changes of several may cancel out. A SHA-256 would take minutes on the host for the largest models.
    """
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [
        tensor.view(integers[tensor.element_size()]).sum(dtype=torch.int64)
        for name, tensor in sorted(module.state_dict().items())
        if name not in but
    ]
    return torch.stack(sums) if sums else torch.empty(0)
