"""Native input: texts, pictures and sounds as the tokens of a pretrained model, by its own preprocessing."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reservoir.backbones import Backbone, find, load_native
from reservoir.backbones.family import local_files_only, silence_transformers
from reservoir.errors import InputError, as_input_error
from reservoir.inputs.text import TextReader, read_tokenizer
from reservoir.tasks import pictures, shows_pictures
from reservoir.tasks.images.patches import patches
from reservoir.tasks.own.pictures import check_pillow
from reservoir.tasks.own.sounds import RATE, holds_samples
from reservoir.tasks.task import Task, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image

PREPROCESSOR = "preprocessor_config.json"

BLANKS = ((97, 61), (50, 120))  # sizes of two pictures that show whether a processor gives all pictures one size


def settings_digest(processor: Any) -> str:
    """Return the SHA-256 of the settings that decide the values of a prepared picture or sound."""
    settings = {name: value for name, value in processor.to_dict().items() if not name.startswith("_")}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


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
    """Converts stored pictures to the patches that a model reads.

    The processor gives ``pixels`` (channels, height, width), of which whole patches are read: ``height`` and ``width``.
    """

    kind, has_cls, note = "processor", True, ""

    def __init__(self, processor: Any, config: Any, pictures: Callable[[np.ndarray], Iterable["Image"]]) -> None:
        from PIL import Image

        self._processor, self._pictures = processor, pictures
        sizes = {self._pixels([Image.new("RGB", size)]).shape[1:3] for size in BLANKS}
        if len(sizes) > 1:
            raise ValueError("it gives pictures of several sizes; set a size with height and width, or a crop")
        self.patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        size = sizes.pop()
        self.height, self.width = (side // self.patch * self.patch for side in size)
        self.max_tokens = self.row_tokens = 1 + self.height * self.width // self.patch**2
        self.form = Vectors(self.patch**2 * config.num_channels)
        self.pixels = config.num_channels, *size
        self.digest = settings_digest(processor)
        made = f"{self.width}x{self.height} pixels, a class token and {self.max_tokens - 1:,} patches"
        self.description = f"the model's own processor, as {made}"

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return patches (rows, patches, values), and the number of tokens of each picture with its class token."""
        found = self._pixels(list(self._pictures(x)))[:, : self.height, : self.width]
        return patches(found, self.patch), np.full(len(found), self.max_tokens, np.int32)

    def save(self, path: Path) -> None:
        """Write the processor's settings, as transformers reads them."""
        path.write_text(self._processor.to_json_string())

    def _pixels(self, images: list["Image"]) -> np.ndarray:
        """Return the prepared pixels of pictures, (rows, height, width, channels) of float32."""
        found = self._processor(images, return_tensors="np")["pixel_values"]
        return np.asarray(found, np.float32).transpose(0, 2, 3, 1)


class SoundReader:
    """Passes stored samples through the convolutions of a model, one sound at a time.

    The first convolution of the base models is normalised over the whole sound, so padding would change every token.
    """

    kind, has_cls, note = "processor", False, ""

    convolutions: nn.Module
    """The convolutions of the model; set after the model is loaded."""

    def __init__(self, extractor: Any, config: Any, most_samples: int) -> None:
        self._extractor = extractor
        self._steps = list(zip(config.conv_kernel, config.conv_stride, strict=True))
        self.form = Vectors(config.conv_dim[-1])
        self._least = 1
        for kernel, stride in reversed(self._steps):
            self._least = (self._least - 1) * stride + kernel
        self.max_tokens = self.row_tokens = self._tokens(most_samples)
        self.rate = int(extractor.sampling_rate)
        self.digest = settings_digest(extractor)
        self.description = f"the model's own convolutions, as up to {self.max_tokens:,} tokens"

    @torch.inference_mode()
    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vectors (rows, tokens, channels) of samples (rows, samples, 1), and the tokens of each row."""
        device = next(self.convolutions.parameters()).device
        tokens = np.array([self._tokens(int(n)) for n in lengths], np.int32)
        found = np.zeros((len(x), tokens.max(), self.form.dim), np.float32)
        for row, (samples, length, count) in enumerate(zip(x[:, :, 0], lengths, tokens, strict=True)):
            scaled = self._extractor(samples[:length], sampling_rate=self.rate, return_tensors="np")["input_values"]
            # A sound that is shorter than one token is padded with silence.
            padded = np.pad(scaled, ((0, 0), (0, max(0, self._least - length)))).astype(np.float32)
            vectors = self.convolutions(torch.from_numpy(padded).to(device))
            found[row, :count] = vectors[0].T.float().cpu().numpy()
        return found, tokens

    def _tokens(self, samples: int) -> int:
        """Return the number of tokens for a number of samples, at least one."""
        samples = max(samples, self._least)
        for kernel, stride in self._steps:
            samples = (samples - kernel) // stride + 1
        return samples


Reader = TextReader | PixelReader | SoundReader  # converts stored rows of a task to the tokens of a model


class NativeInput(nn.Module):
    """The embeddings of a pretrained model, in place of a random input layer."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.map = embeddings.eval().requires_grad_(False)
        self.dropout = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) integers, or patches (batch, tokens - 1, values), to (batch, tokens, width)."""
        return self.dropout(self.map(x))


def open_reader(task: Task, name: str, init: str) -> Reader:
    """Return the reader that converts rows of a task to a pretrained model's tokens, without loading the model."""
    if init != "pretrained":
        problem = f"--input native uses the pretrained embeddings, which do not fit weights drawn by --init {init}"
        raise InputError(f"{problem}; leave one of the two options out")
    family, config = find(name)
    reads = {"pixels": shows_pictures, "sounds": holds_samples}.get(family.reads, lambda task: bool(task.alphabet))
    if not reads(task):
        start = f"--input native: {family.name} reads {family.reads or 'vectors'}, which task {task.name!r}"
        raise InputError(f"{start} does not have; leave --input out")
    if family.reads not in ("sounds", "pixels"):
        return read_tokenizer(name, family.shape(config).max_tokens)
    from transformers import AutoImageProcessor, Wav2Vec2FeatureExtractor

    silence_transformers()
    local = local_files_only(name)
    remedy = f"repair it, or use --input {'orthogonal' if family.reads == 'pixels' else 'kernels'}"
    with as_input_error(f"backbone {name!r}: its {PREPROCESSOR} is not usable", remedy):
        if Path(name).is_dir() and not (Path(name) / PREPROCESSOR).is_file():
            raise ValueError("the folder has none")
        if family.reads == "pixels":
            check_pillow()
            processor = AutoImageProcessor.from_pretrained(
                name, backend="pil", trust_remote_code=False, local_files_only=local
            )
            return PixelReader(processor, config, partial(pictures, task))
        extractor = Wav2Vec2FeatureExtractor.from_pretrained(name, local_files_only=local)
        if extractor.feature_size != 1:
            raise ValueError(f"it gives {extractor.feature_size} values per sample")
        reader = SoundReader(extractor, config, task.max_tokens)
    rate = task.parameters.get("rate", RATE)
    if reader.rate != rate:
        raise InputError(f"backbone {name!r}: it reads {reader.rate:,} Hz, not {rate:,}; pass --rate {reader.rate}")
    return reader


def open_native(
    task: Task, name: str, init: str, depth: int | None
) -> tuple[Task, Backbone, NativeInput, Reader, Mapping[str, str]]:
    """Load a pretrained model with its native input.

    Returns the task with the model's own tokens, the model, its embeddings, its reader, and the SHA-256 of the reader
    (tokenizer or processor) and of the embeddings.
    """
    reader = open_reader(task, name, init)
    backbone, embedding = load_native(name, depth)
    if isinstance(reader, SoundReader):
        reader.convolutions = embedding.get_submodule("convolutions")
    elif isinstance(reader, PixelReader):
        with torch.no_grad():
            tokens = torch.zeros(1, reader.max_tokens, backbone.width)
            vision: Any = embedding
            positions = vision.interpolate_pos_encoding(tokens, reader.height, reader.width)[0]
        backbone.set_positions("embeddings.position_embeddings", positions)
        embedding = PatchInput(embedding)
    else:
        tokens, reader.embeddings = reader.form.vocabulary, getattr(embedding, "num_embeddings", None)
        if reader.embeddings is not None and tokens > reader.embeddings:
            start = f"backbone {name!r}: its tokenizer has {tokens:,} tokens, and the model has"
            raise InputError(f"{start} {reader.embeddings:,} embeddings; use the tokenizer that it was trained with")
    seen = replace(task, form=reader.form, max_tokens=reader.max_tokens)
    digests = {reader.kind: reader.digest, "embeddings": content_digest(embedding)}
    return seen, backbone, NativeInput(embedding), reader, digests


def content_digest(module: nn.Module, but: Set[str] = frozenset()) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of all parameters and buffers, except some names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if name not in but:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
