"""Texts as the tokens of a pretrained model, by its own tokenizer."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from reservoir.backbone_names import SHIPPED, gguf_path
from reservoir.errors import InputError, as_input_error
from reservoir.inputs.chat_template import ChatTemplate
from reservoir.inputs.token_masks import MaskMaker, TokenRows
from reservoir.tasks.marked_texts import MarkedText, parse_marks
from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.words import shown, texts_of

DEFAULT_MAX_TOKENS = 2048  # longest text, if neither the model nor its tokenizer states a limit
MAX_TOKEN_ID = 2**24  # upper bound for token IDs; no vocabulary is larger
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
)


@dataclass(frozen=True, eq=False)
class Encodings:
    """Texts as tokens: the pieces of each, as token IDs and spans of letters (tokens, 2); and how many are too long."""

    pieces: list[list[tuple[list[int], np.ndarray]]]
    long: int


class TextReader:
    """Converts texts to token IDs; texts that are too long for the model are counted, and cut or read in pieces.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The tokenizer of a model.
    positions : int, optional
        The number of positions of the model.
    template : ChatTemplate, optional
        The chat template of the model, if the stored texts are chats.
    has_spans : bool, default False
        Whether a span is marked in each stored text.
    """

    kind = "tokenizer"
    row_tokens = 64  # typical tokens of a text, from which the batch size is computed

    embeddings: int | None = None  # number of token embeddings; set after the model is loaded

    def __init__(
        self,
        tokenizer: Any,
        positions: int | None,
        template: ChatTemplate | None = None,
        *,
        has_spans: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self.template, self._has_spans = template, has_spans
        highest = max(tokenizer.get_vocab().values(), default=0)
        if highest > MAX_TOKEN_ID:  # writing its rules as JSON would take minutes
            raise ValueError(f"it has the token ID {highest:,}, more than {MAX_TOKEN_ID:,}")
        stated = tokenizer.model_max_length if tokenizer.model_max_length < 2**31 else None
        self.max_tokens = min(filter(None, (positions, stated)), default=DEFAULT_MAX_TOKENS)
        self.form = Tokens(len(tokenizer))
        self._words = _words(tokenizer)
        # A chat template prints the special tokens of a chat itself, and the tokenizer adds none.
        self.special = (0, 0) if template else _special_tokens(tokenizer, self._words)
        first = [] if template else tokenizer("")["input_ids"][:1]
        self.has_cls = bool(first) and first[0] == tokenizer.cls_token_id
        chats = "chat template and " if template else ""
        self.description = f"the model's own {chats}tokenizer, with {len(tokenizer):,} tokens"
        # Everything that decides the token IDs of a text.
        rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
        names = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        # A rare setting, and merges that are not in the rules; tokenizers without them keep their older digests.
        rare = [tokenizer.split_special_tokens, list(getattr(tokenizer, "bpe_ranks", ()))]
        content = [type(tokenizer).__name__, rules, names, self.max_tokens, *(rare if any(rare) else ())]
        self.digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        self.read_rows = self.long = 0
        self._reads_in_pieces = False  # whether long texts are read in pieces
        self._without: Counter[str] = Counter()  # texts that have no token of a mask
        self.spaced = _letters_apart(tokenizer, self._words)

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return token IDs (rows, longest) of stored texts, right-padded, and the number of tokens of each."""
        rows = self.read(x, lengths)
        return rows.ids, rows.lengths

    def read(
        self, x: np.ndarray, lengths: np.ndarray, masks: Sequence[str] = (), *, in_pieces: bool = False
    ) -> TokenRows:
        """Return the tokens of stored texts, with the masks that are named, as far as `mask_obstacle` allows them.

        With ``in_pieces``, a text that is too long for the model is read in pieces, else it is cut. The mask ``words``
        comes only with chats; elsewhere ``special`` says as much.
        """
        if in_pieces and not self._tokenizer.is_fast:
            raise InputError(
                "--long windows needs a tokenizer.json, which the model does not have", "leave --long out"
            )
        self._reads_in_pieces = in_pieces
        texts = self._texts(x, lengths)
        # The places of tokens cost time, so they are asked for only if a mask needs them.
        needs_offsets = any(self._reads_offsets(name) for name in masks)
        encoding, long = (self._in_pieces if in_pieces else self._cut)(
            [row.text for row in texts], needs_offsets
        )
        self.long += long
        owner = np.array(encoding["overflow_to_sample_mapping"]) if in_pieces else None
        of_rows = texts if owner is None else [texts[text] for text in owner]
        ids, tokens = self._padded([row.text for row in of_rows], encoding["input_ids"])
        self.read_rows += len(texts)
        rows = TokenRows(ids, tokens, owner)
        if not masks:
            return rows
        maker = MaskMaker(rows, texts, encoding.get("offset_mapping", ()), self._special_ids)
        by_name = {name: maker.mask(name) for name in masks if name != "words" or self.template}
        for name, mask in by_name.items():
            self._without[name] += maker.texts_without(mask)
        return replace(rows, masks=by_name)

    def _cut(self, texts: list[str], needs_offsets: bool) -> tuple[dict[str, Any], int]:
        """Return the tokens of texts, and how many of these are too long and therefore cut."""
        options = {"return_attention_mask": False, "return_offsets_mapping": needs_offsets}
        encoding = dict(self._tokenize(texts, **options, **self._plain))
        # Only long texts are tokenized again, because truncation slows the tokenizer down.
        long_rows = [row for row, ids in enumerate(encoding["input_ids"]) if len(ids) > self.max_tokens]
        for row in long_rows:
            limits = {"truncation": True, "max_length": self.max_tokens}
            cut = self._tokenize(texts[row], **options, **limits, **self._plain)
            for name, values in cut.items():
                encoding[name][row] = values
        return encoding, len(long_rows)

    def _in_pieces(self, texts: list[str], needs_offsets: bool) -> tuple[dict[str, Any], int]:
        """Return the tokens of pieces that fit the model, each with its text; and how many texts have several."""
        pieces = self._tokenize(
            texts,
            truncation=True,
            max_length=self.max_tokens,
            return_overflowing_tokens=True,
            return_offsets_mapping=needs_offsets,
            **self._plain,
        )
        pieces_of_text = np.bincount(pieces["overflow_to_sample_mapping"])
        return dict(pieces), int((pieces_of_text > 1).sum())

    @property
    def _plain(self) -> dict[str, Any]:
        """The options with which a rendered chat is tokenized: its template has added the special tokens."""
        return {"add_special_tokens": False} if self.template else {}

    def _reads_offsets(self, mask: str) -> bool:
        """Return whether a mask is made from the places of tokens in the text."""
        return mask in ("span", "assistant") or (mask == "last-prompt" and self.template is not None)

    def mask_obstacle(self, mask: str) -> str:
        """Return why the reader has no mask of this name, with what to do; empty if it has."""
        if mask == "assistant" and not self.template:
            return "the texts are not chats; pass --chat to read a column of messages"
        if mask == "span" and not self._has_spans:
            return "no span is marked in the texts; pass --span START,END, two columns of the data"
        if self._reads_offsets(mask) and not self._tokenizer.is_fast:
            return "it needs a model with a tokenizer.json; pool mean or last"
        return ""

    @cached_property
    def _special_ids(self) -> list[int]:
        """The IDs of all special tokens, those of chat templates included, but not of unknown words."""
        tokenizer = self._tokenizer
        added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        # Some tokenizers have one token for unknown words and for the end of a text.
        roles = ("bos", "eos", "pad", "cls", "sep", "mask")
        by_role = {getattr(tokenizer, f"{role}_token_id") for role in roles} - {None}
        return sorted((added - {tokenizer.unk_token_id}) | by_role)

    def encodings(self, texts: Sequence[str], *, in_pieces: bool) -> Encodings:
        """Return the tokens of texts, with special tokens, and the letters that each has read.

        With ``in_pieces``, a text with too many tokens has several pieces, else it is cut.
        """
        if not self._tokenizer.is_fast:
            raise InputError(
                "labels of words or tokens need a model with a tokenizer.json", "use another model"
            )
        # A tokenizer that needs spaces between letters reads letter n at position 2 n.
        spread = 2 if self.spaced else 1
        as_read = [" ".join(text) for text in texts] if self.spaced else list(texts)
        encoding, long = (self._in_pieces if in_pieces else self._cut)(as_read, needs_offsets=True)
        owner = encoding.get("overflow_to_sample_mapping", range(len(texts)))
        pieces: list[list[tuple[list[int], np.ndarray]]] = [[] for _ in texts]
        for text, ids, offsets in zip(
            owner, encoding["input_ids"], encoding["offset_mapping"], strict=True
        ):
            places = np.array(offsets, np.int64).reshape(-1, 2)
            pieces[text].append((ids, (places + np.array([0, spread - 1])) // spread))
        self._refuse_unknown_ids(encoding["input_ids"])
        return Encodings(pieces, long)

    def obstacle(self, letters: str) -> str:
        """Return why the tokenizer cannot read sequences of these letters; empty if it can."""
        alone = self._tokenize(list(letters), add_special_tokens=False)["input_ids"]
        unknown = self._tokenizer.unk_token_id
        readable = [a for a, ids in zip(letters, alone, strict=True) if ids and unknown not in ids]
        # Rare letters, such as X for any amino acid, may be unknown.
        if 2 * len(readable) < len(letters):
            remedy = "if it knows upper case, set do_lower_case to false in its tokenizer_config.json"
            return f"its tokenizer does not know most of the letters {shown(letters)} ({remedy})"
        # In a model of letters or bytes, no two letters share a token.
        pairs = "".join(a + b for a in readable for b in readable)
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
        places = [torch.from_numpy(self._places(row.text)) for row in self._texts(x, lengths)]
        return nn.utils.rnn.pad_sequence(places, batch_first=True, padding_value=-1).numpy()

    def may_be_long(self, lengths: np.ndarray) -> np.ndarray:
        """Return which texts of these lengths may have too many tokens, (rows,); few tokenizers need 4 per letter."""
        return 4 * lengths + len(self._tokenize("")["input_ids"]) > self.max_tokens

    def check_places(self, x: np.ndarray, lengths: np.ndarray) -> None:
        """Refuse stored texts that have more tokens than the model reads, because their labels would be lost."""
        texts = [row.text for row in self._texts(x, lengths)]
        for text, numbers in zip(texts, self._tokenize(texts)["input_ids"], strict=True):
            self._refuse_long(text, len(numbers))

    def _refuse_long(self, text: str, tokens: int) -> None:
        if tokens > self.max_tokens:
            raise InputError(
                f"the text {text[:40]!r} has {tokens:,} tokens with labels, and the model reads {self.max_tokens:,}",
                "split the row, or leave it out",
            )

    def _places(self, text: str) -> np.ndarray:
        """Return the position of the last token of each letter, or of each word if spaces separate letters."""
        has_offsets = self._tokenizer.is_fast
        encoding = self._tokenize(text, return_offsets_mapping=has_offsets)
        tokens = len(encoding["input_ids"])
        self._refuse_long(text, tokens)
        labelled = r"\S+" if self.spaced else r"."
        letter_ends = np.array([match.end() for match in re.finditer(labelled, text, re.S)])
        if has_offsets:
            return _places_by_offsets(encoding["offset_mapping"], letter_ends)
        # Without offsets, only a tokenizer with one token for each letter can be aligned: the token of a letter has
        # the letter's number, after the class token, if there is one.
        special_tokens = len(self._tokenize("")["input_ids"])
        if tokens - special_tokens != len(letter_ends):
            raise InputError(
                "labels of every token need a model with a tokenizer.json", "use another model"
            )
        return np.arange(len(letter_ends)) + self.has_cls

    def _tokenize(self, texts: str | list[str], **options: Any) -> Any:
        # The rules in a damaged tokenizer.json fail only on some texts.
        remedy = "repair its tokenizer.json, or extract with --input gaussian"
        with as_input_error("tokenizer: it cannot read the texts", remedy):
            return self._tokenizer(texts, **options)

    def _texts(self, x: np.ndarray, lengths: np.ndarray) -> list[MarkedText]:
        """Return stored texts without marks, chats as their texts, and letters apart if the tokenizer needs it."""
        texts = texts_of(x, lengths)
        if self.template:
            return self.template.render(texts)
        marked = [parse_marks(text) if self._has_spans else MarkedText(text) for text in texts]
        return [_letters_spaced(row) for row in marked] if self.spaced else marked

    def _padded(
        self, texts: Sequence[str], token_ids: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return token IDs (rows, longest), right-padded, and their numbers (rows,); refuse texts without tokens."""
        lengths = np.array([len(ids) for ids in token_ids], np.int32)
        if not lengths.all():
            text = texts[int(np.argmin(lengths))]
            raise InputError(f"the text {text[:40]!r} has no token of the model", "leave the row out")
        x = np.full((len(token_ids), lengths.max()), self.pad, np.int64)
        x[np.arange(x.shape[1]) < lengths[:, None]] = np.concatenate(token_ids)
        self._refuse_unknown_ids([x.ravel()])
        return x, lengths

    def _refuse_unknown_ids(self, token_ids: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Refuse token IDs for which the model has no embedding."""
        if self.embeddings is None:
            return
        ids = np.concatenate([np.empty(0, np.int64), *token_ids])
        if len(ids) and (ids.min() < 0 or ids.max() >= self.embeddings):
            raise InputError(
                f"tokenizer: it gives the token ID {int(ids.max()):,}, but the model has embeddings only below "
                f"{self.embeddings:,}",
                "use the tokenizer that the model was trained with",
            )

    @property
    def pad(self) -> int:
        """The token ID that pads rows; the model ignores tokens after the end of a row."""
        return self._tokenizer.pad_token_id or 0

    @property
    def note(self) -> str:
        """A message on the texts that were too long, and on those without a token of a mask; or an empty string."""
        notes = [self._note_on_long_texts] if self.long else []
        notes += [
            f"{rows:,} of {self.read_rows:,} texts have no token for the pooling {name}, which is zero there"
            for name, rows in self._without.items()
            if rows
        ]
        return "; ".join(notes)

    @property
    def _note_on_long_texts(self) -> str:
        how = (
            "read in pieces, with features averaged"
            if self._reads_in_pieces
            else "cut (extract --long windows reads all)"
        )
        return f"{self.long:,} of {self.read_rows:,} texts have more than {self.max_tokens:,} tokens and are {how}"


def _letters_spaced(row: MarkedText) -> MarkedText:
    """Return a text with spaces between its letters, of which the n-th then stands at the place 2 n."""
    spans = row.spans and tuple((2 * start, 2 * end - 1) for start, end in row.spans)
    return MarkedText(" ".join(row.text), spans)


def _places_by_offsets(offsets: Sequence[tuple[int, int]], letter_ends: np.ndarray) -> np.ndarray:
    """Return the number of the last token of each letter, (letters,).

    ``offsets`` are the positions in the text at which each token begins and ends, and ``letter_ends`` those at which
    letters end, ascending.
    """
    # Special tokens are empty spans of the text.
    spans = [(begin, token) for token, (begin, end) in enumerate(offsets) if end > begin]
    token_begins, token_numbers = np.array(spans).T
    # The last token that begins before the end of a letter has read it.
    return token_numbers[np.searchsorted(token_begins, letter_ends) - 1]


def _words(tokenizer: Any) -> list[str]:
    """Return the vocabulary without special tokens, and without the marks where a word begins, goes on or ends."""
    special = {*tokenizer.all_special_tokens}
    words = (word for word in tokenizer.get_vocab() if word not in special)
    return [plain for word in words if (plain := re.sub("^(##|▁|Ġ)|(</w>|@@)$", "", word))]


def _special_tokens(tokenizer: Any, words: Sequence[str]) -> tuple[int, int]:
    """Return how many special tokens a tokenizer adds before and after a text."""
    # Whatever stands before and after the tokens of a word is special. The first word that shows it is enough.
    for word in words[:100]:
        plain = tokenizer(word, add_special_tokens=False)["input_ids"]
        with_special = tokenizer(word, add_special_tokens=True)["input_ids"]
        if not plain:
            continue  # no text, such as part of a letter of several bytes
        added = len(with_special) - len(plain)
        for before in range(added + 1):
            if with_special[before : before + len(plain)] == plain:
                return before, added - before
    return 0, 0  # no word shows any


def _letters_apart(tokenizer: Any, words: Sequence[str]) -> bool:
    """Return whether words are single letters that spaces must separate, as those of ProtBert and ProtT5 are."""
    if not words or any(len(word) > 1 for word in words):
        return False
    # Two letters show it: with a space between them each is a token, and without the space the tokens differ.
    first, last = min(words), max(words)
    tokens = tokenizer.tokenize(f"{first} {last}")
    # SentencePiece writes a space before a word as ▁.
    letters = [token.removeprefix("▁") for token in tokens]
    needs_space = tokens != tokenizer.tokenize(first + last)
    return letters == [first, last] and needs_space


def has_tokenizer(name: str) -> bool:
    """Return whether a backbone's folder has a tokenizer; True for a file or a hub name, which may have one."""
    folder = Path(SHIPPED.get(name, name))
    return (
        not folder.is_dir()
        or gguf_path(name) is not None
        or any((folder / file).is_file() for file in TOKENIZERS)
    )


def read_tokenizer(
    name: str, folder: Path, positions: int | None, task: Task | None = None, **gguf: str
) -> TextReader:
    """Return the reader of a model with this many positions, from what `pretrained_files` yields.

    The parameters of the ``task`` say whether its texts are chats, and whether spans are marked in them.
    """
    parameters = task.parameters if task else {}
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
        template = _chat_template(name, tokenizer) if parameters.get("chat") else None
        return TextReader(tokenizer, positions, template, has_spans=bool(parameters.get("span")))


def _chat_template(name: str, tokenizer: Any) -> ChatTemplate:
    """Return the chat template of a model; refuse a model without one."""
    if not tokenizer.chat_template:
        raise InputError(
            f"--chat: the backbone {name!r} has no chat template",
            "name a model that follows instructions, or add a chat_template.jinja to its folder",
        )
    template = tokenizer.get_chat_template()  # of several, the default
    special_tokens = {token: str(text) for token, text in tokenizer.special_tokens_map.items()}
    return ChatTemplate(template, special_tokens, f"backbone {name!r}")


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
        check_class(named.get("tokenizer_class"), "PreTrainedTokenizerBase")


def check_class(name: object, kind: str) -> None:
    """Raise `ValueError` if a name in a model folder is one of transformers, but no subclass of its class ``kind``.

    transformers would load the named class, and loading another kind may download files or offer to run code.
    """
    import transformers

    # transformers looks for the name without "Fast" too.
    named = getattr(transformers, re.sub("(Fast)+$", "", str(name)), None)
    if named is None:
        return  # transformers cannot load an unknown class: it takes a general one, or refuses the name
    is_kind = isinstance(named, type) and issubclass(named, getattr(transformers, kind))
    is_placeholder = hasattr(named, "_backends")  # it only says which packages the class needs
    if not is_kind and not is_placeholder:
        raise ValueError(f"it names the class {str(name)[:60]!r}, which is not a {kind}")
