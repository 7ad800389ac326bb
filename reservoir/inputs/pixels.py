"""Pictures as a vision model reads them: prepared by its own processor, as a class token and patches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reservoir.backbones import Backbone
from reservoir.backbones.hub import local_files_only, silence_transformers
from reservoir.errors import InputError, first_line
from reservoir.tasks.images.patches import patches
from reservoir.tasks.own.pictures import check_pillow
from reservoir.tasks.task import Vectors

if TYPE_CHECKING:
    from PIL.Image import Image

Pictures = Callable[[np.ndarray], Iterable["Image"]]
"""From stored sequences of a task to RGB images."""

PREPROCESSOR = "preprocessor_config.json"

BLANKS = ((97, 61), (50, 120))
"""Sizes of two pictures that show whether a processor gives all pictures one size."""


class PatchInput(nn.Module):
    """The class token of a vision model, and its convolution over flattened patches, channels last."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.cls_token, self.projection = embeddings.cls_token, embeddings.patch_embeddings.projection

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, patches, values) to (batch, 1 + patches, width)."""
        embedded = linear(x, self.projection.weight.permute(0, 2, 3, 1).flatten(1), self.projection.bias)
        return torch.cat([self.cls_token.expand(len(x), -1, -1), embedded], dim=1)


class PixelReader:
    """Converts stored pictures to the patches that a model reads."""

    kind, has_cls, note = "processor", True, ""

    def __init__(self, processor: Any, config: Any, pictures: Pictures) -> None:
        from PIL import Image

        self._processor, self._pictures = processor, pictures
        sizes = {self._pixels([Image.new("RGB", size)]).shape[1:3] for size in BLANKS}
        if len(sizes) > 1:
            raise InputError(
                "its processor gives pictures of several sizes; set a size with height and width, or a crop, in its "
                "preprocessor_config.json"
            )
        self._patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        self.height, self.width = (side // self._patch * self._patch for side in sizes.pop())
        self.max_tokens = self.row_tokens = 1 + self.height * self.width // self._patch**2
        self.form = Vectors(self._patch**2 * config.num_channels)
        self.digest = settings_digest(processor)

    @property
    def description(self) -> str:
        """A description for the user."""
        made = f"{self.width}x{self.height} pixels, a class token and {self.max_tokens - 1:,} patches"
        return f"the model's own processor, as {made}"

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return patches (rows, patches, values), and the number of tokens of each picture with its class token."""
        found = self._pixels(list(self._pictures(x)))[:, : self.height, : self.width]
        return patches(found, self._patch), np.full(len(found), self.max_tokens, np.int32)

    def _pixels(self, images: list[Image]) -> np.ndarray:
        """Return the prepared pixels of pictures, (rows, height, width, channels) of float32."""
        found = self._processor(images, return_tensors="np")["pixel_values"]
        return np.asarray(found, np.float32).transpose(0, 2, 3, 1)


def open_pixels(name: str, config: Any, pictures: Pictures) -> PixelReader:
    """Return the reader of a vision model with this configuration."""
    from transformers import AutoImageProcessor

    check_pillow()
    with usable(name, instead="orthogonal"):
        processor = AutoImageProcessor.from_pretrained(
            name, backend="pil", trust_remote_code=False, local_files_only=local_files_only(name)
        )
        return PixelReader(processor, config, pictures)


def embed_patches(reader: PixelReader, backbone: Backbone, embeddings: Any) -> PatchInput:
    """Return the embedding of a reader's patches, and set the backbone's positions for that many patches."""
    with torch.no_grad():
        tokens = torch.zeros(1, reader.max_tokens, backbone.width)
        positions = embeddings.interpolate_pos_encoding(tokens, reader.height, reader.width)[0]
    backbone.set_positions("embeddings.position_embeddings", positions)
    return PatchInput(embeddings)


@contextmanager
def usable(name: str, *, instead: str) -> Iterator[None]:
    """Raise `InputError` if a model has no preprocessor, or it cannot be used."""
    silence_transformers()
    try:
        if Path(name).is_dir() and not (Path(name) / PREPROCESSOR).is_file():
            raise InputError("the folder has none")
        yield
    except Exception as error:  # transformers and damaged configurations raise many types
        why = f"its {PREPROCESSOR} is not usable ({first_line(error)})"
        raise InputError(f"backbone {name!r}: {why}; repair it, or use --input {instead}") from error


def settings_digest(processor: Any) -> str:
    """Return the SHA-256 of the settings that decide the values of a prepared picture or sound."""
    settings = {name: value for name, value in processor.to_dict().items() if not name.startswith("_")}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
