"""Images and sounds as the tokens of a pretrained model: patches by its own processor, or its own convolutions."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reservoir.errors import InputError, as_input_error
from reservoir.inputs.text_reader import check_class
from reservoir.tasks import images_of
from reservoir.tasks.pictures import check_pillow, patches
from reservoir.tasks.task import SOUND_RATE, Task, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 4096  # pixels of a side of an image that a processor may give; the largest models read 1,024
# Sizes of two images that show whether a processor gives all images one size.
BLANKS = ((97, 61), (50, 120))
MAX_SAMPLES = 2**18  # samples in a batch of sounds; the first convolution makes 400 bytes of each


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
    """Converts stored images to the patches that a model reads.

    Parameters
    ----------
    processor : BaseImageProcessor
        The image processor of the model.
    config : PretrainedConfig
        The configuration of the model, with the side of a patch and the number of channels.
    images : callable
        Returns the images of stored rows.
    count_tokens : callable, optional
        Returns the number of the model's tokens for an image (channels, height, width); by default, there is a class
        token and one for each patch.
    """

    kind = "processor"  # names the digest of the reader in the cache key
    note = ""  # it cuts nothing that it would have to report

    def __init__(
        self,
        processor: Any,
        config: Any,
        images: Callable[[np.ndarray], Iterable["Image"]],
        count_tokens: Callable[[tuple[int, int, int]], int] | None,
    ) -> None:
        self._processor, self._images = processor, images
        _check_sides(processor.to_dict())
        height, width = self._prepared_size()
        self.patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        # The model reads whole patches of the pixels (channels, height, width) that the processor gives.
        self.height, self.width = (side // self.patch * self.patch for side in (height, width))
        channels = getattr(config, "num_channels", 3)
        self.form = Vectors(self.patch**2 * channels)
        self.pixels = channels, height, width
        # Before its patches, a model has a class token, none, or further tokens that it needs.
        patch_count = self.height * self.width // self.patch**2
        self.max_tokens = 1 + patch_count
        if count_tokens is not None:
            self.max_tokens = count_tokens((channels, self.height, self.width))
            if self.max_tokens < patch_count:
                # An error of its own, because the processor's settings are not to blame.
                raise InputError(
                    f"--input native: {config.model_type} joins or leaves out patches of an image",
                    "choose another model, or use another --input",
                )
        self.row_tokens = self.max_tokens
        special_tokens = self.max_tokens - patch_count
        self.special = special_tokens, 0  # special tokens before and after those of the patches
        self.has_cls = special_tokens > 0
        self.digest = _settings_digest(processor)
        names_of_special = {0: "", 1: "a class token and "}
        special = names_of_special.get(special_tokens, f"{special_tokens} special tokens and ")
        tokens = f"{self.width}x{self.height} pixels, {special}{patch_count:,} patches"
        self.description = f"the model's own processor, as {tokens}"

    def _prepared_size(self) -> tuple[int, int]:
        """Return the height and width that the processor gives to images; refuse one that gives several sizes."""
        from PIL import Image

        sizes = {self._pixels([Image.new("RGB", size)]).shape[1:3] for size in BLANKS}
        if len(sizes) > 1:
            raise ValueError(
                "it gives images of several sizes; set a size with height and width, or a crop"
            )
        ((height, width),) = sizes
        return height, width

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return patches (rows, patches, values), and the number of tokens of each image with its class token."""
        # Pixels after the last whole patch are left out.
        pixels = self._pixels(list(self._images(x)))[:, : self.height, : self.width]
        return patches(pixels, self.patch), np.full(len(pixels), self.max_tokens, np.int32)

    def save(self, path: Path) -> None:
        """Write the processor's settings, as transformers reads them."""
        path.write_text(self._processor.to_json_string())

    def _pixels(self, images: list["Image"]) -> np.ndarray:
        """Return the prepared pixels of images, (rows, height, width, channels) of float32."""
        pixels = self._processor(images, return_tensors="np")["pixel_values"]  # channels first
        return np.asarray(pixels, np.float32).transpose(0, 2, 3, 1)


def _check_sides(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a processor that make very large images."""
    sizes = [settings.get(name) or {} for name in ("size", "crop_size", "pad_size")]
    longest = max(side or 0 for size in sizes for side in size.values())  # an unused side is None
    if longest > MAX_SIDE:
        raise ValueError(f"it gives images of {longest:,} pixels, more than {MAX_SIDE:,}")


class SoundReader:
    """Passes stored samples through the convolutions of a model, with sounds of one length together.

    Parameters
    ----------
    extractor : Wav2Vec2FeatureExtractor
        The feature extractor of the model, which normalises samples.
    config : PretrainedConfig
        The configuration of the model, with the sizes of its convolutions.
    most_samples : int
        The samples of the longest sound.
    """

    kind = "processor"  # names the digest of the reader in the cache key
    has_cls = False
    note = ""  # it cuts nothing that it would have to report
    special = 0, 0  # no special tokens before and after those of the sound

    convolutions: nn.Module
    """The convolutions of the model; set after the model is loaded."""

    def __init__(self, extractor: Any, config: Any, most_samples: int) -> None:
        self._extractor = extractor
        self._kernels_and_strides = list(zip(config.conv_kernel, config.conv_stride, strict=True))
        self.form = Vectors(config.conv_dim[-1])
        # Samples of the shortest sound with a token: from one token back through the convolutions.
        self._min_samples = 1
        for kernel, stride in reversed(self._kernels_and_strides):
            self._min_samples = (self._min_samples - 1) * stride + kernel
        self.max_tokens = self.row_tokens = self._tokens(most_samples)
        self.rate = int(extractor.sampling_rate)
        self.digest = _settings_digest(extractor)
        self.description = f"the model's own convolutions, as up to {self.max_tokens:,} tokens"

    @torch.inference_mode()
    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors (rows, tokens, channels) of samples (rows, samples, 1), and each row's number of tokens."""
        device = next(self.convolutions.parameters()).device
        tokens = np.array([self._tokens(int(n)) for n in lengths], np.int32)
        features = np.zeros((len(x), tokens.max(), self.form.dim), np.float32)
        # The first convolution of the base models is normalised over the whole sound: padding would change every token.
        # So rows of one length are read together, at most `MAX_SAMPLES` at a time.
        for length in np.unique(lengths):
            rows_of_length = np.flatnonzero(lengths == length)
            batches = -(-len(rows_of_length) * length // MAX_SAMPLES)  # rounded up
            for rows in np.array_split(rows_of_length, batches):
                samples = list(x[rows, :length, 0])
                inputs = self._extractor(samples, sampling_rate=self.rate, return_tensors="np")
                # Sounds that are shorter than one token are padded with silence.
                pad = (0, 0), (0, max(0, self._min_samples - length))
                padded = np.pad(inputs["input_values"], pad).astype(np.float32)
                vectors = self.convolutions(torch.from_numpy(padded).to(device)).transpose(1, 2)
                features[rows, : vectors.shape[1]] = vectors.float().cpu().numpy()
        return features, tokens

    def _tokens(self, samples: int) -> int:
        """Return the number of tokens for a number of samples, at least one."""
        # Each convolution makes ``length`` shorter; what the last one leaves are the tokens.
        length = max(samples, self._min_samples)
        for kernel, stride in self._kernels_and_strides:
            length = (length - kernel) // stride + 1
        return length


def _settings_digest(processor: Any) -> str:
    """Return the SHA-256 of the settings that affect the values of a prepared image or sound."""
    # Names with an underscore are private, and do not affect values.
    settings = {name: value for name, value in processor.to_dict().items() if not name.startswith("_")}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def read_processor(
    task: Task,
    name: str,
    folder: Path,
    reads: str,
    config: Any,
    count_tokens: Callable[[tuple[int, int, int]], int] | None = None,
) -> PixelReader | SoundReader:
    """Return the reader of the model called ``name``, from its ``config`` and the processor's settings in its folder.

    ``reads`` is "pixels" or "sounds". ``count_tokens`` returns the number of tokens of an image (channels, height,
    width); by default, there is a class token and one for each patch.
    """
    remedy = "add or repair it, or use another --input"
    with as_input_error(f"backbone {name!r}: its preprocessor_config.json is not usable", remedy):
        if reads == "pixels":
            return _read_pixel_processor(task, folder, config, count_tokens)
        reader = _read_sound_processor(task, folder, config)
    # Outside of the context, because this error has a remedy of its own.
    _check_rate(task, name, reader)
    return reader


def _read_pixel_processor(
    task: Task, folder: Path, config: Any, count_tokens: Callable[[tuple[int, int, int]], int] | None
) -> PixelReader:
    """Return the reader of a model of images; refuse settings that name other files or classes."""
    from transformers import AutoImageProcessor, BaseImageProcessor

    check_pillow()
    settings, _ = BaseImageProcessor.get_image_processor_dict(folder, local_files_only=True)
    if file := settings.get("class_info_file"):  # a file anywhere on this machine or on the hub
        raise ValueError(f"it names another file, {str(file)[:60]!r}, which is not read")
    for key in ("image_processor_type", "feature_extractor_type"):
        for class_name in (settings.get(key), getattr(config, key, None)):
            # Old files name feature extractors, which transformers replaces by image processors.
            current_name = str(class_name).replace("FeatureExtractor", "ImageProcessor")
            check_class(current_name, "BaseImageProcessor")
    try:
        processor = AutoImageProcessor.from_pretrained(
            folder, backend="pil", trust_remote_code=False, local_files_only=True
        )
    except ImportError as error:
        if find_spec("torchvision"):
            raise
        # Some processors, such as that of DINOv3, have no form without this package.
        raise InputError(
            f"{folder}: the image processor of its preprocessor_config.json needs torchvision",
            'run pip install torchvision, or set "image_processor_type" to "ViTImageProcessor" in this file',
        ) from error
    return PixelReader(processor, config, partial(images_of, task), count_tokens)


def _read_sound_processor(task: Task, folder: Path, config: Any) -> SoundReader:
    """Return the reader of a model of sounds."""
    from transformers import Wav2Vec2FeatureExtractor

    extractor = Wav2Vec2FeatureExtractor.from_pretrained(folder, local_files_only=True)
    return SoundReader(extractor, config, task.max_tokens)


def _check_rate(task: Task, name: str, reader: SoundReader) -> None:
    """Refuse sounds that have another sampling rate than those that the model reads."""
    rate = task.parameters.get("rate", SOUND_RATE)
    if reader.rate != rate:
        raise InputError(
            f"backbone {name!r}: it reads {reader.rate:,} Hz, not {rate:,}", f"pass --rate {reader.rate}"
        )
