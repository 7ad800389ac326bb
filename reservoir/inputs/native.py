"""Native input: texts, images and sounds become the tokens of a pretrained model by its own preprocessing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbone_names import SHIPPED
from reservoir.backbones import Backbone, content_digest, find, load_native
from reservoir.backbones.generic import count_image_tokens, part_settings
from reservoir.backbones.registry import pretrained_files
from reservoir.backbones.vector_model import FrontEnd, image_shape
from reservoir.errors import InputError, as_input_error
from reservoir.inputs.media_readers import PatchInput, PixelReader, SoundReader, read_processor
from reservoir.inputs.text_reader import TextReader, has_tokenizer, read_tokenizer
from reservoir.reservoir import Reservoir
from reservoir.tasks import shows_images
from reservoir.tasks.task import Task, holds_samples
from reservoir.tasks.texts import UNKNOWN, are_words

Reader = TextReader | PixelReader | SoundReader  # converts stored rows of a task to the tokens of a model


class NativeInput(nn.Module):
    """The model's own embeddings, frozen, in place of a random input layer.

    ``special`` counts the special tokens before and after those of the data.
    """

    def __init__(self, embeddings: nn.Module, special: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.special = special
        self.map = embeddings.eval().requires_grad_(False)
        self.dropout = nn.Identity()  # as `InputLayer` has for symbols

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) integers, or patches (batch, patches, values), to float32 (batch, tokens, width)."""
        return self.dropout(self.map(x).float())


def open_reader(task: Task, name: str, init: str) -> Reader:
    """Return the reader that converts rows of a task to the tokens of the model called ``name``, which is not loaded.

    Raise `InputError` if the model reads other data than the task has, or is not to have its pretrained embeddings.
    """
    if init not in ("pretrained", "random"):
        raise InputError(
            f"--input native uses the pretrained embeddings, which do not fit weights drawn by --init {init}",
            "leave one of the two options out, or pass --init random, which draws the embeddings, too",
        )
    family, config = find(name)
    # Models of images and sounds have a processor, and those of texts a tokenizer.
    has_media = {"pixels": shows_images, "sounds": holds_samples}.get(family.reads)
    task_has_its_data = has_media(task) if has_media else bool(task.alphabet)
    if not task_has_its_data:
        raise InputError(
            f"--input native: {family.name} reads {family.reads or 'vectors'}, which task {task.name!r} does not have",
            "leave --input out",
        )
    files = ("*.json",) if has_media else ("*.json", "*.txt", "*.model", "*.jinja")
    with pretrained_files(name, *files) as (folder, gguf):
        if not has_media:
            return read_tokenizer(name, folder, family.shape(config).max_tokens, task, **gguf)
        if not family.is_generic:
            return read_processor(task, name, folder, family.reads, config)
        # A model that only transformers describes may have any tokens beside those of patches.
        count_tokens = partial(count_image_tokens, family, config)
        return read_processor(task, name, folder, family.reads, part_settings(config), count_tokens)


def is_native(task: Task, reservoir: Reservoir) -> bool:
    """Return whether a model was pretrained on the task's kind of data, and can read it by its own input."""
    return suits(task, reservoir) and not native_obstacle(task, reservoir)


def suits(task: Task, reservoir: Reservoir) -> bool:
    """Return whether a model was pretrained on the task's kind of data: text or letters, images, or sounds."""
    if reservoir.init != "pretrained":
        return False
    # What models of this kind of data read.
    if task.pictures:
        kinds = ["pixels"]
    elif holds_samples(task):
        kinds = ["sounds"]
    elif task.alphabet:
        kinds = ["letters", "text"]
    else:
        return False
    return find(reservoir.backbone)[0].reads in kinds


def native_obstacle(task: Task, reservoir: Reservoir) -> str:
    """Return why a model that suits the task cannot read it natively; empty if it can."""
    if not reservoir.plain:  # options of windows are set
        return "the options of windows, such as --patch, do not fit its own input"
    if task.alphabet and not has_tokenizer(reservoir.backbone):
        return "its folder has no tokenizer, such as a tokenizer.json or a vocab.txt"
    # A task of texts has an alphabet; one without an alphabet has images or sounds, whose processor is checked when it
    # is opened. Words suit every model of text.
    has_no_text = not task.alphabet
    reads_words = are_words(task.alphabet) and find(reservoir.backbone)[0].reads == "text"
    if has_no_text or reads_words:
        return ""
    # What remains are letters, such as those of DNA, and words for a model of letters.
    #
    # The tokens of the shipped model are single bytes, so `reader.obstacle` below would find that it can read any
    # letters. But it was trained on words. The tokenizers of other models of words have an obstacle.
    if reservoir.backbone in SHIPPED:
        return "random kernels suit letters better than a model of words"
    try:
        reader = open_reader(task, reservoir.backbone, reservoir.init)
    except InputError as error:  # no failure: with a random input layer the model needs no tokenizer
        return str(error)
    # An alphabet begins with `UNKNOWN`, the symbol of all letters that no training row has. Spaces are left out, too:
    # many tokenizers split texts at spaces, and have no token for one.
    letters = task.alphabet.removeprefix(UNKNOWN).replace(" ", "")
    return reader.obstacle(letters) if isinstance(reader, TextReader) else ""


@dataclass(frozen=True)
class NativeModel:
    """A model with its own input."""

    seen_task: Task  # the task with the model's own tokens
    backbone: Backbone
    inputs: NativeInput
    digests: Mapping[str, str]  # SHA-256 of reader, embeddings and chat template by name, for the cache key


def open_native(
    task: Task,
    reader: Reader,
    name: str,
    init: str,
    seed: int,
    depth: int | None,
    *,
    own_precision: bool = False,
    memory_limit: int | None = None,
) -> NativeModel:
    """Return a model with its embeddings, and tell its ``reader`` of a task what only the loaded model knows.

    The other arguments are those of `load_native`.
    """
    backbone, embedding = load_native(
        name, init, seed, depth, own_precision=own_precision, memory_limit=memory_limit
    )
    if isinstance(reader, SoundReader):
        # The reader runs the convolutions, because rows of one length go through them together.
        reader.convolutions = embedding.get_submodule("convolutions")
    elif isinstance(reader, PixelReader) and isinstance(embedding, FrontEnd):
        embedding.set_pixels((reader.pixels[0], reader.height, reader.width))  # channels, height, width
    elif isinstance(reader, PixelReader):
        # The positions of the pretrained size are interpolated to the size that the reader gives.
        vision_embedding: Any = embedding
        positions = vision_embedding.position_embeddings.detach()[0]
        if (reader.height, reader.width) != image_shape(backbone.config)[1:]:
            tokens = torch.zeros(1, reader.max_tokens, backbone.width)
            # transformers interpolates only positions of square images.
            problem = f"--input native: {name}: its positions do not fit images of another size"
            with as_input_error(problem, "leave --input out"), torch.no_grad():
                positions = vision_embedding.interpolate_pos_encoding(tokens, reader.height, reader.width)[
                    0
                ]
        backbone.set_positions("embeddings.position_embeddings", positions)
        embedding = PatchInput(embedding)
    else:  # a tokenizer, which then refuses token IDs without an embedding
        reader.embeddings = getattr(embedding, "num_embeddings", None)
    seen_task = replace(task, form=reader.form, max_tokens=reader.max_tokens)
    digests = {reader.kind: reader.digest, "embeddings": content_digest(embedding)}
    if isinstance(reader, TextReader) and reader.template:
        digests["template"] = reader.template.digest
    return NativeModel(seen_task, backbone, NativeInput(embedding, reader.special), digests)
