"""Load a pretrained model: choose the stored tensors that are kept, read them, and check that they fit the model.

In this file, ``lean`` is the configuration of what is kept of a model: some of its blocks, with or without its token
embeddings. ``name`` is the name of the backbone, for messages.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from reservoir.backbone_names import locate
from reservoir.backbones.backbone import MATRICES, Backbone
from reservoir.backbones.family import Family, HubLoader
from reservoir.backbones.generic import is_of_usual_head, names_with_heads
from reservoir.backbones.gguf_file import (
    ROPE_FACTORS,
    GGUFFile,
    open_gguf,
    scale_positions,
    tensors_by_name,
)
from reservoir.backbones.gguf_file import RULE as GGUF_RULE
from reservoir.backbones.quantised import expanded, quantisation_of, rule_of
from reservoir.backbones.registry import find, may_have_weights, usable_configuration
from reservoir.backbones.stored import (
    WEIGHTS,
    StoredTensor,
    common_half,
    is_finite,
    open_folder,
    stored_digest,
)
from reservoir.backbones.streaming import Deferred, Slot, StreamedBlocks, fill, find_slots
from reservoir.errors import InputError, as_input_error


def _size_of(name: str, family: Family, lean: Any, dtype: torch.dtype) -> int:
    """Return the bytes of the model that is kept, with parameters in ``dtype``."""
    with usable_configuration(name):
        return family.loader.size(lean).bytes(dtype)


def check_memory(name: str, family: Family, lean: Any, dtype: torch.dtype) -> None:
    """Raise `InputError` if the model that is kept, with parameters in ``dtype``, is larger than memory."""
    size = _size_of(name, family, lean, dtype)
    # The system would kill such a process, without an error message.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise InputError(
            f"backbone {name!r}: it takes {size / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory",
            "choose a smaller backbone, or keep fewer blocks with --depth",
        )


@dataclass(frozen=True)
class Pretrained:
    """A model with its configuration, whose blocks may still have to be read."""

    model: nn.Module
    config: Any  # of the whole published model
    stored_digest: str | None  # SHA-256 of the tensors as they are stored; None if they are not quantised
    # By block, the slots of all its tensors, which have not been read; None if all tensors have been read.
    slots: Sequence[Sequence[Slot]] | None = None
    is_streamed: bool = False  # whether the slots of a block are filled each time that it runs, not once
    matrix_dtype: torch.dtype = torch.float32  # type of the matrices whose slots are filled once for all

    def backbone(self, family: Family, depth: int | None) -> Backbone:
        """Return the backbone of the first ``depth`` blocks, or of all with None; it changes the model in place."""
        backbone = Backbone(self.model, family, self.config, depth)
        backbone.stored_digest = self.stored_digest
        if self.slots is None:
            return backbone
        if self.is_streamed:
            backbone.streamed = StreamedBlocks(backbone.blocks, self.slots)
            return backbone
        # An empty slot has the type that its tensor will have, so the types are set before the slots are filled.
        for module in backbone.blocks.modules():
            if isinstance(module, MATRICES):
                module.to(self.matrix_dtype)
        fill(self.slots)
        return backbone


@dataclass(frozen=True)
class StoredModel:
    """The stored tensors of a model that are kept, and its configurations."""

    config: Any  # of the whole published model
    lean: Any  # of what is kept
    tensors: Mapping[str, StoredTensor]  # those that are kept, by name
    rule: str | None  # name and version of the dequantisation; None if the weights are not quantised
    gguf: GGUFFile | None  # the file with the tensors; None for a folder of safetensors

    def is_zero_bias(self, key: str) -> bool:
        """Return whether a tensor of a quantised model is a bias of zeros, which older writers add to each matrix."""
        is_quantised = self.rule is not None
        is_stored_bias = key.endswith(".bias") and key in self.tensors
        if not (is_quantised and is_stored_bias):
            return False
        values = self.tensors[key][...]
        return not values.any()


def _open(
    name: str, family: Family, config: Any, depth: int | None, *, with_token_embeddings: bool
) -> StoredModel:
    """Open the files of a pretrained model, and choose the tensors that are kept; no values are read."""
    path = locate(name, "config.json", *WEIGHTS)
    is_folder = path.is_dir()
    if is_folder and isinstance(family.loader, HubLoader):
        # For a known name, ``config`` has the settings that this package lists; the folder has all of them.
        _, config = find(str(path), depth)
    lean = family.loader.lean(config, depth, with_token_embeddings=with_token_embeddings)
    tensors: Mapping[str, StoredTensor]
    rule: str | None = None
    gguf: GGUFFile | None = None
    if is_folder:
        tensors = open_folder(path)
        settings = json.loads((path / "config.json").read_text())
        quantisation = quantisation_of(settings)
        if quantisation:
            tensors = expanded(tensors, quantisation, config.model_type)
            rule = rule_of(quantisation)
    else:
        gguf = open_gguf(path)
        rule = GGUF_RULE
        outline = family.loader.outline(lean)
        tensors = tensors_by_name(gguf, outline, config, family.shape(lean).depth)
    # A loader that builds all blocks returns the configuration itself; then the tensors of all blocks are needed.
    builds_all_blocks = lean is config
    kept_depth = None if builds_all_blocks else depth
    kept_tensors = {
        key: tensor
        for key, tensor in tensors.items()
        if _is_kept(key, family, kept_depth, with_token_embeddings=with_token_embeddings)
    }
    return StoredModel(config, lean, kept_tensors, rule, gguf)


def load_pretrained(
    name: str,
    family: Family,
    config: Any,
    depth: int | None,
    *,
    native: bool = False,
    own_precision: bool = False,
    memory_limit: int | None = None,
) -> Pretrained:
    """Return a pretrained model, of which only what is kept is read.

    With ``native`` its own input module is kept. The other arguments are those of `load_backbone`.
    """
    if not may_have_weights(name):
        raise InputError(f"backbone {name!r}: nobody has published weights for it", "use --init random")
    remedy = "give a folder with safetensors, or use --init random"
    with as_input_error(f"backbone {name!r}: its weights cannot be loaded", remedy):
        # A model that nobody has described may use the size of its vocabulary in other places.
        with_token_embeddings = native or family.is_generic
        source = _open(name, family, config, depth, with_token_embeddings=with_token_embeddings)
        types = _choose_types(source, family, own_precision=own_precision)
        is_streamed = _is_streamed(name, family, source.lean, types.matrices, memory_limit)
        if not is_streamed:
            check_memory(name, family, source.lean, types.matrices)
        model, info, slots = _load_model(
            name, family, source, depth, types, native=native, is_streamed=is_streamed
        )
        if source.gguf:
            scale_positions(source.gguf, source.config, model)
        _check_finite(name, model)
    return Pretrained(
        model=model,
        config=_as_built(source.config, source.lean, model),
        stored_digest=_digest_of(source, family, info),
        slots=slots,
        is_streamed=is_streamed,
        matrix_dtype=types.matrices,
    )


@dataclass(frozen=True)
class _Types:
    """The types of a model's parameters."""

    loaded: torch.dtype  # of all parameters of the loaded model, and of the placeholders in it
    matrices: torch.dtype  # of the matrices of blocks at the end

    @property
    def rounds(self) -> bool:
        """Whether the matrices of blocks are rounded, if possible one at a time as they are read."""
        return self.matrices != self.loaded


def _choose_types(source: StoredModel, family: Family, *, own_precision: bool) -> _Types:
    """Return the types of a model's parameters: float32, or with ``own_precision`` half precision where it suits."""
    is_quantised = source.rule is not None
    if not own_precision:
        return _Types(torch.float32, torch.float32)
    # Weights that are not quantised stay in the half precision in which they are stored.
    if not is_quantised:
        stored = common_half(source.tensors.values())
        return _Types(stored, stored)
    # Quantised weights become float32. If products may run in bfloat16, the matrices of blocks are rounded to it, one
    # at a time; but not those of a generic family, which is tested in the precision in which it is stored.
    rounds_matrices = family.allows_bfloat16 and not family.is_generic
    return _Types(torch.float32, torch.bfloat16 if rounds_matrices else torch.float32)


def _load_model(
    name: str,
    family: Family,
    source: StoredModel,
    depth: int | None,
    types: _Types,
    *,
    native: bool,
    is_streamed: bool,
) -> tuple[nn.Module, Mapping[str, Any], Sequence[Sequence[Slot]] | None]:
    """Return a model, the report of its loader, and the slots of its blocks, which the caller fills.

    The blocks have slots if they are streamed, or if their matrices are rounded one at a time. The slots are None if
    all tensors have been read.
    """
    # Tensors that are read later have placeholders.
    deferred = _deferred(source, family, types.loaded) if is_streamed or types.rounds else {}
    model, info = family.loader.load(source.lean, {**source.tensors, **deferred}, types.loaded)
    _check_tensors(name, family, source, depth, model, info, native=native)
    # The placeholders in the model become slots. `find_slots` returns None if transformers has merged several tensors
    # into one, so that the placeholders are lost.
    slots = None
    if deferred:
        blocks = cast(nn.ModuleList, model.get_submodule(family.blocks))[:depth]
        slots = find_slots(blocks, deferred, f"backbone {name!r}: weight {family.blocks}")
    if is_streamed and slots is None:
        raise InputError(
            f"backbone {name!r}: its blocks cannot be streamed, because transformers merges their tensors",
            "keep fewer blocks with --depth",
        )
    if deferred and slots is None:
        # Matrices are then not rounded one at a time: the model is loaded again, without placeholders.
        model, info = family.loader.load(source.lean, source.tensors, types.loaded)
    return model, info, slots


def _deferred(source: StoredModel, family: Family, dtype: torch.dtype) -> dict[str, Deferred]:
    """Return a placeholder in ``dtype`` for each tensor of a block, by its name in the file."""
    blocks = family.stored_blocks or family.blocks
    return {
        key: Deferred(tensor, dtype)
        for key, tensor in source.tensors.items()
        if _block_number(key, blocks) is not None
    }


def _is_streamed(
    name: str, family: Family, lean: Any, dtype: torch.dtype, memory_limit: int | None
) -> bool:
    """Return whether the blocks are streamed, because the model in ``dtype`` takes more than ``memory_limit`` bytes.

    With the limit None, blocks are never streamed. With 0 (``--stream always``), a model whose blocks cannot be
    streamed is refused; with any other limit it is loaded whole.
    """
    if memory_limit is None or _size_of(name, family, lean, dtype) <= memory_limit:
        return False
    # It is not known which values the blocks of a generic model pass to each other.
    can_stream = bool(family.blocks) and not family.is_generic
    must_stream = memory_limit == 0
    if must_stream and not can_stream:
        raise InputError(
            f"backbone {name!r}: the blocks of a {family.name} cannot be streamed", "pass --stream never"
        )
    return can_stream


def _digest_of(source: StoredModel, family: Family, info: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the stored tensors of a backbone; None if they are not quantised.

    ``info`` is the report of the loader.
    """
    if source.rule is None:
        return None
    tensors: list[Any] = []
    for key, tensor in source.tensors.items():
        # Token embeddings and heads are not part of the backbone. Factors of rotary positions are, although the loader
        # does not know them.
        is_loaded = key not in info["unexpected_keys"] or key == ROPE_FACTORS
        if is_loaded and _is_kept(key, family, None, with_token_embeddings=False):
            tensors.append(tensor)
    return stored_digest(source.rule, tensors)


def _check_tensors(
    name: str,
    family: Family,
    source: StoredModel,
    depth: int | None,
    model: nn.Module,
    info: Mapping[str, Any],
    *,
    native: bool,
) -> None:
    """Raise `InputError` if a checkpoint lacks a tensor, or has one that the model lacks or in another shape.

    ``info`` is the report of the loader on missing, unexpected and mismatched tensors.
    """
    # Prefixes of tensors that may be missing: those that vectors do not use, and those that every init draws.
    may_miss = family.unused + family.unsaved
    if native:
        # The model's own input has to be complete but for the mask token of a vision model, which only training reads,
        # so that exporters leave it out.
        other_unused = (path for path in family.unused if path != family.native_input)
        may_miss = (*other_unused, "embeddings.mask_token")
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    # The whole model is built for its names, which takes long, so once for all tensors.
    may_have_heads = family.is_generic and bool(info["unexpected_keys"])
    names_of_whole = names_with_heads(source.config) if may_have_heads else frozenset()
    # The names of tensors, by what is wrong with them in the words of the message.
    wrong = {
        "misses": [key for key in info["missing_keys"] if not key.startswith(may_miss)],
        "has an extra": [
            key
            for key in info["unexpected_keys"]
            if key != ROPE_FACTORS  # which `scale_positions` reads
            and not _is_of_head(key, prefix, family, names_of_whole, depth)
            and not source.is_zero_bias(key)
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


def _check_finite(name: str, model: nn.Module) -> None:
    """Raise `InputError` if a weight is not finite; weights that have not been read are empty, and pass."""
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise InputError(
                f"backbone {name!r}: weight {key} holds NaN or infinity", "get an intact checkpoint"
            )


def _is_of_head(
    key: str, prefix: str, family: Family, names_of_whole: frozenset[str], depth: int | None
) -> bool:
    """Return whether a stored tensor that the model lacks is of a head, or of a block that is not kept.

    Names in the file may have the ``prefix``, which the names in the model lack. ``names_of_whole`` are those of
    `names_with_heads`, for a generic family.
    """
    if not family.is_generic:
        return key.removeprefix(prefix).startswith(family.heads)
    block_number = _block_number(key, family.stored_blocks)
    if block_number is not None:
        return depth is not None and block_number >= depth
    # Transformers may have put the prefix in front of a name while it loaded the checkpoint.
    return is_of_usual_head(key) or key in names_of_whole or key.removeprefix(prefix) in names_of_whole


def _as_built(config: Any, lean: Any, model: nn.Module) -> Any:
    """Return the configuration of the whole model with the settings that its class changed while it was built.

    ``lean`` is the configuration from which ``model`` was built. The digest of a backbone covers the result.
    """
    built: Any = getattr(model, "config", lean)
    # A part of a model, such as an encoder, may have a configuration of its own, which is not compared.
    if type(built) is not type(lean):
        return config
    lean_settings = lean.to_dict()
    # A dict is a configuration inside this one, whose settings are not compared.
    changes = {
        key: value
        for key, value in built.to_dict().items()
        if lean_settings.get(key) != value and not isinstance(value, dict)
    }
    if not changes:
        return config
    changed_config = deepcopy(config)
    for key, value in changes.items():
        setattr(changed_config, key, value)
    return changed_config


def _is_kept(key: str, family: Family, depth: int | None, *, with_token_embeddings: bool) -> bool:
    """Return whether a stored tensor is kept.

    Tensors of blocks after the first ``depth`` are not; with None, all blocks are kept. Neither are the tensors of the
    modules that vectors do not use (`Family.unused`), unless ``with_token_embeddings``.
    """
    # Names in files may have a prefix, such as ``model.layers.0`` for the path ``layers``.
    is_unused = any(re.search(rf"(^|\.){re.escape(path)}\.", key) for path in family.unused)
    if is_unused and not with_token_embeddings:
        return False
    block_number = _block_number(key, family.stored_blocks or family.blocks)  # None outside of the blocks
    return depth is None or block_number is None or block_number < depth


def _block_number(key: str, blocks: str) -> int | None:
    """Return the number, from 0, of the block of a tensor; None if it belongs to no block.

    ``key`` is the name of the tensor, and ``blocks`` the path of the list of blocks.
    """
    match = re.search(rf"(^|\.){re.escape(blocks)}\.(\d+)\.", key)
    return int(match[2]) if match else None
