"""Images as the patches of a pretrained model, by its own processor and convolution."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reservoir.inputs.trusted_files import settings_digest
from reservoir.tasks.patches import patches
from reservoir.tasks.task import Vectors

if TYPE_CHECKING:
    from PIL.Image import Image


MAX_SIDE = 4096  # pixels; the largest models read 1,024
# Sizes of two images that show whether a processor gives all images one size.
BLANKS = ((97, 61), (50, 120))


class PatchInput(nn.Module):
    """The class token of a vision model, and its convolution over flattened patches, channels last."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.cls_token, self.projection = embeddings.cls_token, embeddings.patch_embeddings.projection

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, patches, values) to (batch, 1 + patches, width)."""
        embedded = linear(x, self.projection.weight.permute(0, 2, 3, 1).flatten(1), self.projection.bias)
        first = self.cls_token.expand(x.shape[0], -1, -1)  # len(x) would be a constant for torch.export
        return torch.cat([first, embedded], dim=1)


class PixelReader:
    """Converts stored images to the patches that a model reads."""

    kind = "processor"
    has_cls = True
    note = ""
    special = 1, 0  # special tokens before and after those of the patches

    def __init__(
        self, processor: Any, config: Any, images: Callable[[np.ndarray], Iterable["Image"]]
    ) -> None:
        from PIL import Image

        self._processor, self._images = processor, images
        settings = processor.to_dict()
        sizes = [settings.get(name) or {} for name in ("size", "crop_size", "pad_size")]
        if (longest := max(side or 0 for size in sizes for side in size.values())) > MAX_SIDE:
            raise ValueError(f"it gives images of {longest:,} pixels, more than {MAX_SIDE:,}")
        size, other = (self._pixels([Image.new("RGB", size)]).shape[1:3] for size in BLANKS)
        if size != other:
            raise ValueError(
                "it gives images of several sizes; set a size with height and width, or a crop"
            )
        self.patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        # The model reads whole patches of the pixels (channels, height, width) that the processor gives.
        self.height, self.width = (side // self.patch * self.patch for side in size)
        self.max_tokens = self.row_tokens = 1 + self.height * self.width // self.patch**2
        self.form = Vectors(self.patch**2 * config.num_channels)
        self.pixels = config.num_channels, *size
        self.digest = settings_digest(processor)
        sizes_text = f"{self.width}x{self.height} pixels, a class token and {self.max_tokens - 1:,} patches"
        self.description = f"the model's own processor, as {sizes_text}"

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return patches (rows, patches, values), and the number of tokens of each image with its class token."""
        pixels = self._pixels(list(self._images(x)))[:, : self.height, : self.width]
        return patches(pixels, self.patch), np.full(len(pixels), self.max_tokens, np.int32)

    def save(self, path: Path) -> None:
        """Write the processor's settings, as transformers reads them."""
        path.write_text(self._processor.to_json_string())

    def _pixels(self, images: list["Image"]) -> np.ndarray:
        """Return the prepared pixels of images, (rows, height, width, channels) of float32."""
        pixels = self._processor(images, return_tensors="np")["pixel_values"]
        return np.asarray(pixels, np.float32).transpose(0, 2, 3, 1)
