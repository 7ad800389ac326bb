"""Load a pretrained model: which stored tensors are kept, when they are read, and whether they fit the model."""

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
from reservoir.backbones.names import find, may_have_weights, usable_configuration
from reservoir.backbones.quantised import expanded, quantisation_of, rule_of
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
    """Return the bytes of a configuration's model with parameters in ``dtype``."""
    with usable_configuration(name):
        return family.loader.size(lean).bytes(dtype)


def check_memory(name: str, family: Family, lean: Any, dtype: torch.dtype) -> None:
    """Raise `InputError` if the model of a configuration, with parameters in ``dtype``, is larger than memory."""
    size = _size_of(name, family, lean, dtype)
    # The system would kill a process whose model is larger than memory.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise InputError(
            f"backbone {name!r}: it takes {size / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory",
            "choose a smaller backbone, or keep fewer blocks with --depth",
        )


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model with its configuration."""

    model: nn.Module
    config: Any
    stored_digest: str | None  # see `Backbone`
    # The places of the tensors of blocks that have not been read, by block, and whether blocks are read when they run.
    slots: Sequence[Sequence[Slot]] | None = None
    is_streamed: bool = False
    matrix_dtype: torch.dtype = torch.float32  # of the matrices in slots that are filled now

    def backbone(self, family: Family, depth: int | None) -> Backbone:
        """Return the backbone, which takes the model apart."""
        backbone = Backbone(self.model, family, self.config, depth)
        backbone.stored_digest = self.stored_digest
        if self.slots is None:
            return backbone
        if self.is_streamed:
            backbone.streamed = StreamedBlocks(backbone.blocks, self.slots)
            return backbone
        # A slot has the type that its tensor will have.
        for module in backbone.blocks.modules():
            if isinstance(module, MATRICES):
                module.to(self.matrix_dtype)
        fill(self.slots)
        return backbone


@dataclass(frozen=True)
class StoredModel:
    """The stored tensors of a model that are kept, and their configurations."""

    config: Any
    lean: Any  # of what is kept
    tensors: Mapping[str, StoredTensor]
    rule: str | None  # of the dequantisation; None if the weights are not quantised
    gguf: GGUFFile | None

    def is_empty_bias(self, key: str) -> bool:
        """Return whether a tensor of a quantised model is a bias of zeros, which older writers add to each matrix."""
        if self.rule is None or not key.endswith(".bias") or key not in self.tensors:
            return False
        return not self.tensors[key][...].any()


def _open(name: str, family: Family, config: Any, depth: int | None, *, words: bool) -> StoredModel:
    """Open the files of a pretrained model."""
    path = locate(name, "config.json", *WEIGHTS)
    is_folder = path.is_dir()
    if is_folder and isinstance(family.loader, HubLoader):
        _, config = find(str(path), depth)  # for a known name, its published settings
    lean = family.loader.lean(config, depth, words=words)
    rule: str | None = None
    gguf: GGUFFile | None = None
    tensors: Mapping[str, StoredTensor]
    if is_folder:
        tensors = open_folder(path)
        if quantisation := quantisation_of(json.loads((path / "config.json").read_text())):
            tensors, rule = expanded(tensors, quantisation, config.model_type), rule_of(quantisation)
    else:
        gguf, rule = open_gguf(path), GGUF_RULE
        tensors = tensors_by_name(gguf, family.loader.outline(lean), config, family.shape(lean).depth)
    kept_depth = None if lean is config else depth
    kept_tensors = {
        key: tensor for key, tensor in tensors.items() if _is_kept(key, family, kept_depth, words=words)
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
    """Return a pretrained model; only what is kept is read (see `load_backbone`)."""
    if not may_have_weights(name):
        raise InputError(f"backbone {name!r}: nobody has published weights for it", "use --init random")
    remedy = "give a folder with safetensors, or use --init random"
    with as_input_error(f"backbone {name!r}: its weights cannot be loaded", remedy):
        # A model that nobody has described may use the size of its vocabulary in other places.
        words = native or family.is_generic
        source = _open(name, family, config, depth, words=words)
        # Quantised matrices are rounded to bfloat16 one at a time, if products run in it. A generic family is tested
        # in the precision in which it is stored.
        is_quantised = source.rule is not None
        is_rounded = is_quantised and own_precision and family.allows_bfloat16 and not family.is_generic
        dtype = torch.float32
        if own_precision and not is_quantised:
            dtype = common_half(source.tensors.values())
        matrix_dtype = torch.bfloat16 if is_rounded else dtype
        is_streamed = _is_streamed(name, family, source.lean, matrix_dtype, memory_limit)
        if not is_streamed:
            check_memory(name, family, source.lean, matrix_dtype)
        # Tensors of blocks are read later, if they are streamed or rounded.
        deferred = _deferred(source, family, dtype) if is_streamed or is_rounded else {}
        model, info = family.loader.load(source.lean, {**source.tensors, **deferred}, dtype)
        _check_tensors(name, family, source, depth, model, info, native=native)
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
            model, info = family.loader.load(source.lean, source.tensors, dtype)
        if source.gguf:
            scale_positions(source.gguf, source.config, model)
        _check_finite(name, model)
    return Pretrained(
        model=model,
        config=_as_built(source.config, source.lean, model),
        stored_digest=_digest_of(source, family, info),
        slots=slots,
        is_streamed=is_streamed,
        matrix_dtype=matrix_dtype,
    )


def _deferred(source: StoredModel, family: Family, dtype: torch.dtype) -> dict[str, Deferred]:
    """Return a placeholder for each tensor of a block."""
    blocks = family.stored_blocks or family.blocks
    return {
        key: Deferred(tensor, dtype)
        for key, tensor in source.tensors.items()
        if _block_number(key, blocks) is not None
    }


def _is_streamed(
    name: str, family: Family, lean: Any, dtype: torch.dtype, memory_limit: int | None
) -> bool:
    """Return whether the blocks are streamed, because the parameters in ``dtype`` are larger than ``memory_limit``.

    None means never. With 0 (``--stream always``), a model whose blocks cannot be streamed is refused; with any
    other limit it is loaded whole.
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
    """Return the digest of the stored tensors of a backbone, if they are quantised."""
    if source.rule is None:
        return None
    # Token embeddings and heads are not part of the backbone; factors of rotary positions are.
    own_tensors: list[Any] = [
        tensor
        for key, tensor in source.tensors.items()
        if _is_kept(key, family, None, words=False)
        and (key == ROPE_FACTORS or key not in info["unexpected_keys"])
    ]
    return stored_digest(source.rule, own_tensors)


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
    """Raise `InputError` if a checkpoint lacks a tensor, or has one that the model lacks or in another shape."""
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
            key
            for key in info["unexpected_keys"]
            if key != ROPE_FACTORS
            and not _is_of_head(key, prefix, family, source.config, depth)
            and not source.is_empty_bias(key)
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
    """Raise `InputError` if a weight is not finite; those that have not been read are empty."""
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise InputError(
                f"backbone {name!r}: weight {key} holds NaN or infinity", "get an intact checkpoint"
            )


def _is_of_head(key: str, prefix: str, family: Family, config: Any, depth: int | None) -> bool:
    """Return whether a stored tensor that the model lacks is of a head, or of a block that is not kept."""
    if not family.is_generic:
        return key.removeprefix(prefix).startswith(family.heads)
    number = _block_number(key, family.stored_blocks)
    if number is not None:
        return depth is not None and number >= depth
    # Transformers may have put the prefix in front of a name while it loaded the checkpoint.
    names = names_with_heads(config)
    return is_of_usual_head(key) or key in names or key.removeprefix(prefix) in names


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
