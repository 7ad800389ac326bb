"""Frozen weights: drawn at random from a seed, or loaded; their digest, which shows that they stay frozen."""

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbone_names import gguf_path
from reservoir.backbones.backbone import Backbone
from reservoir.backbones.family import Draw, Family, HubLoader, SkipInitialisation, draw_normal
from reservoir.backbones.generic_checks import check_backbone, check_native
from reservoir.backbones.gguf_file import open_gguf, scale_positions, tensors_by_name
from reservoir.backbones.gguf_file import stored_digest as gguf_digest
from reservoir.backbones.names import (
    find,
    folder_of,
    may_have_weights,
    usable_configuration,
)
from reservoir.backbones.tied import check_tied, tie_queries_and_keys
from reservoir.errors import InputError, as_input_error
from reservoir.random import generator

INITS = ("pretrained", "random", "random-flat", "statistics", "tied")

WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
"""Files with weights: a single one, or its parts."""

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
    precision in which they are stored. `weights_digest` is the same for both. A generic family is tested when
    it is loaded, and becomes float32 if half precision changes what it computes.
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
        loaded = _load(name, family, config, depth, own_precision=own_precision)
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
) -> tuple[Backbone, nn.Module]:
    """Return a frozen backbone and its native input module, both pretrained or ``random``; see `load_backbone`."""
    with _LOADING:
        family, config = find(name, depth)
        if not family.native_input:
            raise InputError(f"--input native: {family.name} has no native input", "leave --input out")
        if init == "random":
            model = _build(name, family, family.loader.lean(config, depth, words=True), seed)
            draw_parameters(model, family.draw, config, seed)
            loaded = Loaded(model, config, stored_digest=None)
        else:
            loaded = _load(name, family, config, depth, native=True, own_precision=own_precision)
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
    _check_memory(name, family, config, torch.float32)
    # A class that nobody has described may draw constants, such as the time steps of Mamba.
    with usable_configuration(name), SkipInitialisation(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family.loader.build(config)


def _check_memory(name: str, family: Family, lean: Any, dtype: torch.dtype) -> None:
    """Raise `InputError` if the parameters of a configuration, in ``dtype``, are larger than memory."""
    with usable_configuration(name):
        size = dtype.itemsize * family.loader.count(lean)
    # The system would kill a process whose model is larger than memory.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise InputError(
            f"backbone {name!r}: its parameters take {size / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory",
            "choose a smaller backbone, or keep fewer blocks with --depth",
        )


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
        values, random = parameter.detach().numpy(), generator(seed, name)
        if draw:
            drawn = draw(name, values.shape, config, random)
        else:
            # The sum is in double precision, so that its order does not change a digit of the float32.
            mean, std = np.float32(values.mean(dtype=np.float64)), np.float32(values.std(dtype=np.float64))
            drawn = random.standard_normal(values.shape, dtype=np.float32) * std + mean
        if drawn is not None:
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
        return content_digest(backbone.model, digest=digest)
    # Quantised weights count as they are stored; the other parameters are those that were drawn.
    digest.update(backbone.stored_digest.encode())
    names = backbone.model.state_dict()
    stored = {
        name
        for name in names
        if not backbone.family.unsaved or not name.startswith(backbone.family.unsaved)
    }
    return content_digest(backbone.model, stored, digest)


def content_digest(module: nn.Module, but: Set[str] = frozenset(), digest: Any = None) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of a module's tensors, appended to ``digest``."""
    digest = digest or hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if name not in but:
            # Weights in half precision count as float32, in which all weights were loaded once.
            whole = tensor.float() if tensor.dtype in HALF else tensor
            digest.update(f"{name} {tuple(whole.shape)} {whole.dtype}".encode())
            digest.update(whole.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def frozen_unchanged(model: nn.Module) -> Iterator[None]:
    """Raise `RuntimeError` if a parameter or buffer that is not trained changes within the context."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    before = content_digest(model, trained)
    yield
    if content_digest(model, trained) != before:
        raise RuntimeError("a frozen tensor has changed; this is a bug in reservoir")


@dataclass(frozen=True)
class Loaded:
    """A model with its configuration."""

    model: nn.Module
    config: Any
    stored_digest: str | None  # see `Backbone`

    def backbone(self, family: Family, depth: int | None) -> Backbone:
        """Return the backbone, which takes the model apart."""
        backbone = Backbone(self.model, family, self.config, depth)
        backbone.stored_digest = self.stored_digest
        return backbone


def _load(
    name: str,
    family: Family,
    config: Any,
    depth: int | None,
    *,
    native: bool = False,
    own_precision: bool = False,
) -> Loaded:
    """Return a pretrained model; only what is kept is read (see `load_backbone`)."""
    if not may_have_weights(name):
        raise InputError(f"backbone {name!r}: nobody has published weights for it", "use --init random")
    remedy = "give a folder with safetensors, or use --init random"
    with as_input_error(f"backbone {name!r}: its weights cannot be loaded", remedy):
        path = gguf_path(name)
        file = open_gguf(path) if path else None
        if file is None:
            folder = folder_of(name, "config.json", *WEIGHTS)
            if isinstance(family.loader, HubLoader):
                _, config = find(str(folder), depth)  # for a known name, its published settings
        # A model that nobody has described may use the size of its vocabulary in other places.
        words = native or family.is_generic
        lean = family.loader.lean(config, depth, words=words)
        kept_depth = None if lean is config else depth
        if file is None:
            tensors = _open_tensors(folder)
        else:
            tensors = tensors_by_name(file, family.loader.outline(lean), config, family.shape(lean).depth)
        tensors = {
            key: tensor for key, tensor in tensors.items() if _is_kept(key, family, kept_depth, words=words)
        }
        dtype = _common_half(tensors.values()) if own_precision else torch.float32
        _check_memory(name, family, lean, dtype)
        model, info = family.loader.load(lean, tensors, dtype)
        stored_digest = None
        if file is not None:
            scale_positions(file, config, model)
            # Token embeddings and heads are not part of the backbone.
            own_tensors = [
                tensor
                for key, tensor in tensors.items()
                if key not in info["unexpected_keys"] and _is_kept(key, family, kept_depth, words=False)
            ]
            stored_digest = gguf_digest(file, own_tensors)
    may_miss = family.unused + family.unsaved
    if native:  # only training reads the mask token of a vision model, so exporters leave it out
        may_miss = (
            *(path for path in family.unused if path != family.native_input),
            "embeddings.mask_token",
        )
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    wrong = {
        "misses": [key for key in info["missing_keys"] if not key.startswith(may_miss)],
        "has an extra": [
            key for key in info["unexpected_keys"] if not _is_of_head(key, prefix, family, depth)
        ],
        "has another shape for": [
            str(key) for key, *_shapes in info.get("mismatched_keys", ()) if not key.startswith(may_miss)
        ],
    }
    for what, keys in wrong.items():
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise InputError(
                f"backbone {name!r}: the checkpoint {what} weight {min(keys)}{more}", "use a matching one"
            )
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(
                f"backbone {name!r}: weight {key} holds NaN or infinity", "get an intact checkpoint"
            )
    return Loaded(model, _as_built(config, lean, model), stored_digest)


def _is_of_head(key: str, prefix: str, family: Family, depth: int | None) -> bool:
    """Return whether a stored tensor that the model lacks is of a head.

    Nobody has listed the heads of a generic family, so it is any tensor outside the blocks that are kept.
    """
    if family.is_generic:
        number = _block_number(key, family.stored_blocks)
        return number is None or (depth is not None and number >= depth)
    return key.removeprefix(prefix).startswith(family.heads)


def _as_built(config: Any, lean: Any, model: nn.Module) -> Any:
    """Return the whole configuration with the settings that the model's class changed, which the digest covers."""
    built: Any = getattr(model, "config", lean)
    if type(built) is not type(lean):  # a part of the model, which has its own
        return config
    before = lean.to_dict()
    changed = {
        key: value
        for key, value in built.to_dict().items()
        if before.get(key) != value and not isinstance(value, dict)  # a configuration inside this one
    }
    if not changed:
        return config
    whole = deepcopy(config)
    for key, value in changed.items():
        setattr(whole, key, value)
    return whole


def _is_kept(key: str, family: Family, depth: int | None, *, words: bool) -> bool:
    """Return whether a stored tensor belongs to a block that is kept, and to a part that the input needs."""
    # Names in files may have a prefix, such as ``model.layers.0`` for the path ``layers``.
    if not words and any(re.search(rf"(^|\.){re.escape(path)}\.", key) for path in family.unused):
        return False
    number = _block_number(key, family.stored_blocks or family.blocks)
    return depth is None or number is None or number < depth


def _block_number(key: str, blocks: str) -> int | None:
    """Return the number of the block, from 0, to which a tensor's name belongs; None if to no block."""
    block = re.search(rf"(^|\.){re.escape(blocks)}\.(\d+)\.", key)
    return int(block[2]) if block else None


def _common_half(tensors: Iterable[Any]) -> torch.dtype:
    """Return the half precision in which all tensors are stored, else float32."""
    types = {str(tensor.dtype if isinstance(tensor, Tensor) else tensor.get_dtype()) for tensor in tensors}
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get("".join(types), torch.float32)


def _open_tensors(folder: Path) -> dict[str, Any]:
    """Return slices of the tensors of a model folder, which are read when they are indexed.

    No other file and no index is read, since these may name further files.
    """
    from safetensors import safe_open

    single, parts = (sorted(folder.glob(pattern)) for pattern in WEIGHTS)
    if not single and not parts:
        raise ValueError(f"the folder has no {' or '.join(WEIGHTS)}")
    tensors: dict[str, Any] = {}
    for path in single or parts:
        file = safe_open(path, framework="pt")
        tensors |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    return tensors
