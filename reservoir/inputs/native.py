"""Native input: texts, images and sounds become the tokens of a pretrained model by its own preprocessing."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reservoir.backbones import Backbone, content_digest, find, load_native
from reservoir.backbones.names import SHIPPED, pretrained_files
from reservoir.errors import InputError, as_input_error
from reservoir.tasks import images_of, shows_images
from reservoir.tasks.images.patches import patches
from reservoir.tasks.images.pictures import check_pillow
from reservoir.tasks.sound import RATE, holds_samples
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.words import shown, texts_of

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_MAX_TOKENS = 2048  # longest text, if neither the model nor its tokenizer states a limit
MAX_TOKEN_ID = 2**24  # upper bound for token IDs; no vocabulary is larger
MAX_SAMPLES = 2**18  # samples in a batch of sounds; the first convolution makes 400 bytes of each
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
)


class TextReader:
    """Converts texts to token IDs; texts that are too long for the model are counted, and cut or read in pieces."""

    kind = "tokenizer"
    row_tokens = 64  # typical tokens of a text, from which the batch size is computed

    embeddings: int | None = None  # number of token embeddings; set after the model is loaded

    def __init__(self, tokenizer: Any, positions: int | None) -> None:
        self._tokenizer = tokenizer
        highest = max(tokenizer.get_vocab().values(), default=0)
        if highest > MAX_TOKEN_ID:  # writing its rules as JSON would take minutes
            raise ValueError(f"it has the token ID {highest:,}, more than {MAX_TOKEN_ID:,}")
        stated = tokenizer.model_max_length if tokenizer.model_max_length < 2**31 else None
        self.max_tokens = min(filter(None, (positions, stated)), default=DEFAULT_MAX_TOKENS)
        self.form = Tokens(len(tokenizer))
        self._words = _words(tokenizer)
        self.special = _special_tokens(tokenizer, self._words)
        first = tokenizer("")["input_ids"][:1]
        self.has_cls = bool(first) and first[0] == tokenizer.cls_token_id
        self.description = f"the model's own tokenizer, with {len(tokenizer):,} tokens"
        # Everything that decides the token IDs of a text.
        rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
        names = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        # A rare setting, and merges that are not in the rules; tokenizers without them keep their older digests.
        rare = [tokenizer.split_special_tokens, list(getattr(tokenizer, "bpe_ranks", ()))]
        content = [type(tokenizer).__name__, rules, names, self.max_tokens, *(rare if any(rare) else ())]
        self.digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        self.read = self.long = 0
        self._whole, self.spaced = False, _letters_apart(tokenizer, self._words)

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return token IDs (rows, longest) of stored texts, right-padded, and the number of tokens of each."""
        texts = self._texts(x, lengths)
        found = self._tokenize(texts, return_attention_mask=False)["input_ids"]
        long = [row for row, numbers in enumerate(found) if len(numbers) > self.max_tokens]
        for row in long:
            cut = self._tokenize(texts[row], truncation=True, max_length=self.max_tokens)
            found[row] = cut["input_ids"]
        self.read, self.long = self.read + len(found), self.long + len(long)
        return self._padded(texts, found)

    def pieces(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return token IDs and lengths of pieces that fit the model, and the row of each piece, ascending."""
        if not self._tokenizer.is_fast:
            raise InputError(
                "--long windows needs a tokenizer.json, which the model does not have", "leave --long out"
            )
        self._whole = True
        texts = self._texts(x, lengths)
        found = self._tokenize(
            texts, truncation=True, max_length=self.max_tokens, return_overflowing_tokens=True
        )
        owner = np.array(found["overflow_to_sample_mapping"])
        self.read, self.long = self.read + len(texts), self.long + int((np.bincount(owner) > 1).sum())
        return *self._padded([texts[row] for row in owner], found["input_ids"]), owner

    def obstacle(self, letters: str) -> str:
        """Return why the tokenizer cannot read sequences of these letters; empty if it can."""
        alone = self._tokenize(list(letters), add_special_tokens=False)["input_ids"]
        unknown = self._tokenizer.unk_token_id
        known = [a for a, ids in zip(letters, alone, strict=True) if ids and unknown not in ids]
        # Rare letters, such as X for any amino acid, may be unknown.
        if 2 * len(known) < len(letters):
            remedy = "if it knows upper case, set do_lower_case to false in its tokenizer_config.json"
            return f"its tokenizer does not know most of the letters {shown(letters)} ({remedy})"
        # In a model of letters or bytes, no two letters share a token.
        pairs = "".join(a + b for a in known for b in known)
        tokens = self._tokenize(" ".join(pairs) if self.spaced else pairs, add_special_tokens=False)
        if len(tokens["input_ids"]) == len(pairs):
            return ""
        # Other models of proteins, DNA or names have tokens of several such letters. The tokens of a model of
        # a language are mostly words of other letters, and say little about the few that data like DNA form.
        spelled = sum({*word} <= {*letters} for word in self._words)
        if 2 * spelled > len(self._words):
            return ""
        return f"most tokens of its tokenizer have other letters than {shown(letters)} (--input native uses it)"

    def save(self, path: Path) -> None:
        """Write the rules of a fast tokenizer to a file, with the truncation and padding that the model needs."""
        from tokenizers import Tokenizer

        tokenizer = self._tokenizer
        if not tokenizer.is_fast:
            raise InputError(
                "export needs a tokenizer.json, which the model does not have", "use another model"
            )
        saved = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        saved.enable_truncation(self.max_tokens)
        saved.enable_padding(pad_id=tokenizer.pad_token_id or 0, pad_token=tokenizer.pad_token or "")
        saved.save(str(path))

    def places(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the position of the last token of each letter, (rows, letters); -1 after the end of a text."""
        found = [torch.from_numpy(self._places(text)) for text in self._texts(x, lengths)]
        return nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1).numpy()

    def may_be_long(self, lengths: np.ndarray) -> np.ndarray:
        """Return which texts of these lengths may have too many tokens, (rows,); few tokenizers need 4 per letter."""
        return 4 * lengths + len(self._tokenize("")["input_ids"]) > self.max_tokens

    def check_places(self, x: np.ndarray, lengths: np.ndarray) -> None:
        """Refuse stored texts that have more tokens than the model reads, because their labels would be lost."""
        texts = self._texts(x, lengths)
        for text, numbers in zip(texts, self._tokenize(texts)["input_ids"], strict=True):
            self._refuse_long(text, len(numbers))

    def _refuse_long(self, text: str, tokens: int) -> None:
        if tokens > self.max_tokens:
            raise InputError(
                f"the text {text[:40]!r} has {tokens:,} tokens with labels, and the model reads "
                f"{self.max_tokens:,}",
                "split the row, or leave it out",
            )

    def _places(self, text: str) -> np.ndarray:
        read = self._tokenize(text, return_offsets_mapping=self._tokenizer.is_fast)
        tokens = len(read["input_ids"])
        self._refuse_long(text, tokens)
        ends = np.array([match.end() for match in re.finditer(r"\S+" if self.spaced else r".", text, re.S)])
        if self._tokenizer.is_fast:
            spans = [(low, token) for token, (low, high) in enumerate(read["offset_mapping"]) if high > low]
            begins, numbers = np.array(spans).T
            return numbers[np.searchsorted(begins, ends) - 1]  # the last token that begins before each end
        if tokens - len(self._tokenize("")["input_ids"]) != len(ends):
            raise InputError(
                "labels of every token need a model with a tokenizer.json", "use another model"
            )
        return np.arange(len(ends)) + self.has_cls

    def _tokenize(self, texts: str | list[str], **options: Any) -> Any:
        # The rules in a damaged tokenizer.json fail only on some texts.
        remedy = "repair its tokenizer.json, or extract with --input gaussian"
        with as_input_error("tokenizer: it cannot read the texts", remedy):
            return self._tokenizer(texts, **options)

    def _texts(self, x: np.ndarray, lengths: np.ndarray) -> list[str]:
        """Return stored texts, with spaces between letters that the tokenizer needs apart."""
        texts = texts_of(x, lengths)
        return [" ".join(text) for text in texts] if self.spaced else texts

    def _padded(
        self, texts: Sequence[str], found: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.array([len(numbers) for numbers in found], np.int32)
        if not lengths.all():
            text = texts[int(np.argmin(lengths))]
            raise InputError(f"the text {text[:40]!r} has no token of the model", "leave the row out")
        x = np.full((len(found), lengths.max()), self._tokenizer.pad_token_id or 0, np.int64)
        x[np.arange(x.shape[1]) < lengths[:, None]] = np.concatenate(found)
        if self.embeddings is not None and (x.min() < 0 or x.max() >= self.embeddings):
            raise InputError(
                f"tokenizer: it gives the token ID {x.max():,}, but the model has embeddings only below "
                f"{self.embeddings:,}",
                "use the tokenizer that the model was trained with",
            )
        return x, lengths

    @property
    def note(self) -> str:
        """A message on the texts that were too long and how they were read, or an empty string."""
        if not self.long:
            return ""
        how = (
            "read in pieces, with features averaged"
            if self._whole
            else "cut (extract --long windows reads all)"
        )
        return (
            f"{self.long:,} of {self.read:,} texts have more than {self.max_tokens:,} tokens and are {how}"
        )


def _words(tokenizer: Any) -> list[str]:
    """Return the vocabulary without special tokens, and without the marks where a word begins, goes on or ends."""
    special = {*tokenizer.all_special_tokens}
    words = (word for word in tokenizer.get_vocab() if word not in special)
    return [plain for word in words if (plain := re.sub("^(##|▁|Ġ)|(</w>|@@)$", "", word))]


def _special_tokens(tokenizer: Any, words: Sequence[str]) -> tuple[int, int]:
    """Return how many special tokens a tokenizer adds before and after a text."""
    for word in words[:100]:  # some are no texts, such as the parts of a letter of several bytes
        plain, whole = (tokenizer(word, add_special_tokens=add)["input_ids"] for add in (False, True))
        added = len(whole) - len(plain)
        for before in range(added + 1) if plain else ():
            if whole[before : before + len(plain)] == plain:
                return before, added - before
    return 0, 0


def _letters_apart(tokenizer: Any, words: Sequence[str]) -> bool:
    """Return whether words are single letters that spaces must separate, as those of ProtBert and ProtT5 are."""
    if not words or any(len(word) > 1 for word in words):
        return False
    first, last = min(words), max(words)
    apart = tokenizer.tokenize(f"{first} {last}")
    return [re.sub("^▁", "", word) for word in apart] == [first, last] and apart != tokenizer.tokenize(
        first + last
    )


def has_tokenizer(name: str) -> bool:
    """Return whether a backbone's folder has a tokenizer; True for a file or a hub name, which may have one."""
    folder = Path(SHIPPED.get(name, name))
    return not folder.is_dir() or any((folder / file).is_file() for file in TOKENIZERS)


def read_tokenizer(name: str, folder: Path, positions: int | None, **gguf: str) -> TextReader:
    """Return the reader of a model with this many positions, from what `pretrained_files` yields."""
    from transformers import AutoTokenizer

    remedy = "give a folder with a tokenizer.json, or extract with --input gaussian"
    with as_input_error(f"backbone {name!r}: its tokenizer is not readable", remedy):
        _check_tokenizer(folder)
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, use_fast=True, local_files_only=True, **gguf
        )
        # `TextReader` pads and cuts texts itself; the file may set other lengths.
        tokenizer.padding_side = tokenizer.truncation_side = "right"
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        return TextReader(tokenizer, positions)


def _check_tokenizer(folder: Path) -> None:
    """Raise `ValueError` if the settings of a tokenizer name other files, or a class that is not a tokenizer."""

    def read(file: str) -> dict[str, Any]:
        return json.loads((folder / file).read_text()) if (folder / file).is_file() else {}

    settings = read("tokenizer_config.json")
    # transformers takes these settings as paths of files, which may be anywhere on this machine.
    paths = ("fast_tokenizer_files", "gguf_file", "init_inputs", "merges", "vocab")
    if name := next(filter(settings.get, paths), None):
        raise ValueError(f"it names other files, {name} = {str(settings[name])[:60]!r}, which are not read")
    for name in read("special_tokens_map.json"):  # transformers takes every key as a setting
        if not name.endswith(("_token", "_tokens")):
            raise ValueError(f"its special_tokens_map.json sets {name[:60]!r}, which is not a token")
    for named in (settings, read("config.json")):
        _check_class(named.get("tokenizer_class"), "PreTrainedTokenizerBase")


def _check_class(name: object, kind: str) -> None:
    """Refuse the name of a class of transformers of another kind, which may download files or offer to run code."""
    import transformers

    # transformers looks for the name without "Fast" too. A placeholder only says which packages the class needs.
    found = getattr(transformers, re.sub("(Fast)+$", "", str(name)), None)
    right = isinstance(found, type) and issubclass(found, getattr(transformers, kind))
    if found is not None and not right and not hasattr(found, "_backends"):
        raise ValueError(f"it names the class {str(name)[:60]!r}, which is not a {kind}")


MAX_SIDE = 4096  # pixels; the largest models read 1,024
# sizes of two images that show whether a processor gives all images one size
BLANKS = ((97, 61), (50, 120))


def settings_digest(processor: Any) -> str:
    """Return the SHA-256 of the settings that affect the values of a prepared image or sound."""
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
    """Converts stored images to the patches that a model reads."""

    kind, has_cls, note = "processor", True, ""
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
        made = f"{self.width}x{self.height} pixels, a class token and {self.max_tokens - 1:,} patches"
        self.description = f"the model's own processor, as {made}"

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return patches (rows, patches, values), and the number of tokens of each image with its class token."""
        found = self._pixels(list(self._images(x)))[:, : self.height, : self.width]
        return patches(found, self.patch), np.full(len(found), self.max_tokens, np.int32)

    def save(self, path: Path) -> None:
        """Write the processor's settings, as transformers reads them."""
        path.write_text(self._processor.to_json_string())

    def _pixels(self, images: list["Image"]) -> np.ndarray:
        """Return the prepared pixels of images, (rows, height, width, channels) of float32."""
        found = self._processor(images, return_tensors="np")["pixel_values"]
        return np.asarray(found, np.float32).transpose(0, 2, 3, 1)


class SoundReader:
    """Passes stored samples through the convolutions of a model, with sounds of one length together."""

    kind, has_cls, note = "processor", False, ""
    special = 0, 0

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
        """Return vectors (rows, tokens, channels) of samples (rows, samples, 1), and each row's number of tokens."""
        device = next(self.convolutions.parameters()).device
        tokens = np.array([self._tokens(int(n)) for n in lengths], np.int32)
        found = np.zeros((len(x), tokens.max(), self.form.dim), np.float32)
        # The first convolution of the base models is normalised over the whole sound: padding would change every token.
        for length in np.unique(lengths):
            same = np.flatnonzero(lengths == length)
            for rows in np.array_split(same, -(-len(same) * length // MAX_SAMPLES)):
                samples = list(x[rows, :length, 0])
                given = self._extractor(samples, sampling_rate=self.rate, return_tensors="np")
                # Sounds that are shorter than one token are padded with silence.
                pad = (0, 0), (0, max(0, self._least - length))
                padded = np.pad(given["input_values"], pad).astype(np.float32)
                vectors = self.convolutions(torch.from_numpy(padded).to(device)).transpose(1, 2)
                found[rows, : vectors.shape[1]] = vectors.float().cpu().numpy()
        return found, tokens

    def _tokens(self, samples: int) -> int:
        """Return the number of tokens for a number of samples, at least one."""
        samples = max(samples, self._least)
        for kernel, stride in self._steps:
            samples = (samples - kernel) // stride + 1
        return samples


Reader = TextReader | PixelReader | SoundReader  # converts stored rows of a task to the tokens of a model


class NativeInput(nn.Module):
    """The embeddings of a pretrained model, in place of a random input layer.

    ``special`` counts the special tokens before and after those of the data.
    """

    def __init__(self, embeddings: nn.Module, special: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.special = special
        self.map = embeddings.eval().requires_grad_(False)
        self.dropout = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) integers, or patches (batch, tokens - 1, values), to (batch, tokens, width)."""
        return self.dropout(self.map(x))


def open_reader(task: Task, name: str, init: str) -> Reader:
    """Return the reader that converts rows of a task to a pretrained model's tokens, without loading the model."""
    if init != "pretrained":
        raise InputError(
            f"--input native uses the pretrained embeddings, which do not fit weights drawn by --init {init}",
            "leave one of the two options out",
        )
    family, config = find(name)
    has_media = {"pixels": shows_images, "sounds": holds_samples}.get(family.reads)
    if not (has_media(task) if has_media else task.alphabet):
        raise InputError(
            f"--input native: {family.name} reads {family.reads or 'vectors'}, which task {task.name!r} "
            "does not have",
            "leave --input out",
        )
    files = ("*.json",) if has_media else ("*.json", "*.txt", "*.model")
    with pretrained_files(name, *files) as (folder, gguf):
        if has_media:
            return _read_processor(task, name, folder, family.reads, config)
        return read_tokenizer(name, folder, family.shape(config).max_tokens, **gguf)


def _read_processor(
    task: Task, name: str, folder: Path, reads: str, config: Any
) -> PixelReader | SoundReader:
    """Return the reader of a model of images or sounds, from the settings in its folder."""
    from transformers import AutoImageProcessor, BaseImageProcessor, Wav2Vec2FeatureExtractor

    remedy = "add or repair it, or use another --input"
    with as_input_error(f"backbone {name!r}: its preprocessor_config.json is not usable", remedy):
        if reads == "pixels":
            check_pillow()
            settings, _ = BaseImageProcessor.get_image_processor_dict(folder, local_files_only=True)
            if file := settings.get("class_info_file"):  # a file anywhere on this machine or on the hub
                raise ValueError(f"it names another file, {str(file)[:60]!r}, which is not read")
            for key in ("image_processor_type", "feature_extractor_type"):
                for named in (settings.get(key), getattr(config, key, None)):
                    _check_class(
                        str(named).replace("FeatureExtractor", "ImageProcessor"), "BaseImageProcessor"
                    )
            processor = AutoImageProcessor.from_pretrained(
                folder, backend="pil", trust_remote_code=False, local_files_only=True
            )
            return PixelReader(processor, config, partial(images_of, task))
        extractor = Wav2Vec2FeatureExtractor.from_pretrained(folder, local_files_only=True)
        reader = SoundReader(extractor, config, task.max_tokens)
    rate = task.parameters.get("rate", RATE)
    if reader.rate != rate:
        raise InputError(
            f"backbone {name!r}: it reads {reader.rate:,} Hz, not {rate:,}", f"pass --rate {reader.rate}"
        )
    return reader


def open_native(
    task: Task, name: str, init: str, depth: int | None
) -> tuple[Task, Backbone, NativeInput, Reader, Mapping[str, str]]:
    """Return a task with a model's own tokens, the model, its embeddings and reader, and the SHA-256 of these two."""
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
        reader.embeddings = getattr(embedding, "num_embeddings", None)
    seen = replace(task, form=reader.form, max_tokens=reader.max_tokens)
    digests = {reader.kind: reader.digest, "embeddings": content_digest(embedding)}
    return seen, backbone, NativeInput(embedding, reader.special), reader, digests
