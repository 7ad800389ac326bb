"""A pretrained model with its own way in, for the texts of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from reservoir.backbones import Backbone, find, load_native
from reservoir.errors import InputError
from reservoir.inputs.text import TextReader, read_tokenizer
from reservoir.tasks.task import Task, Tokens


class NativeInput(nn.Module):
    """The token embeddings of a pretrained model, in the place of a drawn input layer."""

    def __init__(self, door: nn.Module) -> None:
        super().__init__()
        self.map = door.eval().requires_grad_(False)
        self.dropout = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) integers to (batch, tokens, width)."""
        return self.dropout(self.map(x))


@dataclass(frozen=True, kw_only=True)
class Native:
    """A model with its way in, the task as the model sees it, and the digests that name tokenizer and embeddings."""

    backbone: Backbone
    inputs: NativeInput
    reader: TextReader
    task: Task
    door: Mapping[str, str]


def open_native(task: Task, name: str, init: str, depth: int | None) -> Native:
    """Load a pretrained model with its own way in, for a task.

    Raises
    ------
    InputError
        If the model has no such way in, or reads other things than the task holds.
    """
    if init != "pretrained":
        raise InputError(f"--input native: the embeddings are the pretrained ones, and --init {init} draws the rest")
    family, _ = find(name)
    if not task.alphabet:
        raise InputError(f"--input native: {family.name} reads {family.reads or 'vectors'}, and task {task.name!r} not")
    backbone, door = load_native(name, depth)
    reader = read_tokenizer(name, backbone.max_tokens)
    rows = getattr(door, "num_embeddings", reader.vocabulary)
    if reader.vocabulary > rows:
        raise InputError(f"backbone {name!r}: its tokenizer has {reader.vocabulary:,} tokens, the model {rows:,}")
    return Native(
        backbone=backbone,
        inputs=NativeInput(door),
        reader=reader,
        task=replace(task, form=Tokens(reader.vocabulary), max_tokens=reader.max_tokens),
        door={"tokenizer": reader.digest, "embeddings": _content_digest(door)},
    )


def _content_digest(module: nn.Module) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
