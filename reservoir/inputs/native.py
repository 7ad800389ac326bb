"""A pretrained model with its native input, for the texts, pictures or sounds of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from reservoir.backbones import Backbone, find, load_native
from reservoir.errors import InputError
from reservoir.inputs.pixels import PixelReader, embed_patches, open_pixels
from reservoir.inputs.sounds import SoundReader, open_sounds
from reservoir.inputs.text import TextReader, read_tokenizer
from reservoir.tasks import pictures, shows_pictures
from reservoir.tasks.own.sounds import holds_samples
from reservoir.tasks.task import Task

Reader = TextReader | PixelReader | SoundReader
"""Converts stored rows of a task to the tokens of a model."""


class NativeInput(nn.Module):
    """The embeddings of a pretrained model, in place of a random input layer."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.map = embeddings.eval().requires_grad_(False)
        self.dropout = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) integers, or patches (batch, tokens - 1, values), to (batch, tokens, width)."""
        return self.dropout(self.map(x))


@dataclass(frozen=True, kw_only=True)
class Native:
    """A model with its native input.

    ``task`` is the task with the model's own tokens; ``input_digests`` holds the SHA-256 of the reader (tokenizer or
    processor) and of the embeddings.
    """

    backbone: Backbone
    inputs: NativeInput
    reader: Reader
    task: Task
    input_digests: Mapping[str, str]


def open_reader(task: Task, name: str, init: str) -> Reader:
    """Return the reader that converts rows of a task to a pretrained model's tokens, without loading the model."""
    if init != "pretrained":
        raise InputError(
            f"--input native uses the pretrained embeddings, which do not fit weights drawn by --init {init}; "
            "leave one of the two options out"
        )
    family, config = find(name)
    reads = {"pixels": shows_pictures, "sounds": holds_samples}.get(family.reads, lambda task: bool(task.alphabet))
    if not reads(task):
        raise InputError(
            f"--input native: {family.name} reads {family.reads or 'vectors'}, which task {task.name!r} does not have; "
            "leave --input out"
        )
    if family.reads == "sounds":
        return open_sounds(task, name, config)
    if family.reads == "pixels":
        return open_pixels(name, config, partial(pictures, task))
    return read_tokenizer(name, family.shape(config).max_tokens)


def open_native(task: Task, name: str, init: str, depth: int | None) -> Native:
    """Load a pretrained model with its native input, for a task."""
    reader = open_reader(task, name, init)
    backbone, embedding = load_native(name, depth)
    if isinstance(reader, SoundReader):
        reader.convolutions = embedding.get_submodule("convolutions")
    elif isinstance(reader, PixelReader):
        embedding = embed_patches(reader, backbone, embedding)
    else:
        reader.embeddings = getattr(embedding, "num_embeddings", None)
        _check_vocabulary(name, reader)
    return Native(
        backbone=backbone,
        inputs=NativeInput(embedding),
        reader=reader,
        task=replace(task, form=reader.form, max_tokens=reader.max_tokens),
        input_digests={reader.kind: reader.digest, "embeddings": content_digest(embedding)},
    )


def _check_vocabulary(name: str, reader: TextReader) -> None:
    tokens = reader.form.vocabulary
    if reader.embeddings is not None and tokens > reader.embeddings:
        raise InputError(
            f"backbone {name!r}: its tokenizer has {tokens:,} tokens, and the model has embeddings for "
            f"{reader.embeddings:,}; use the tokenizer that the model was trained with"
        )


def content_digest(module: nn.Module, but: Set[str] = frozenset()) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of all parameters and buffers, except some names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if name not in but:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
