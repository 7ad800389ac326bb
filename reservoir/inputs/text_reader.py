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
from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.texts import UNKNOWN, MarkedText, parse_marks, shown, texts_of

DEFAULT_MAX_TOKENS = 2048  # longest text, if neither the model nor its tokenizer states a limit
MAX_TOKEN_ID = 2**24  # upper bound for token IDs; no vocabulary is larger
READ = "read"  # name of the number of all texts in `TextReader.counts`
SPACE_MARKS = ("▁", "Ġ")  # how SentencePiece and tokenizers of bytes write a space
# Files of which one is in every model folder with a tokenizer.
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
    """Texts as tokens.

    Parameters
    ----------
    pieces : list of lists of tuples
        The pieces of each text; a text that is not long has one. A piece has the IDs of its tokens, and an array
        (tokens, 2) with the first letter of each token in the text and the letter after its last.
    long_texts : int
        The number of texts with too many tokens for the model.
    """

    pieces: list[list[tuple[list[int], np.ndarray]]]
    long_texts: int


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

    kind = "tokenizer"  # names the digest of the reader in the cache key
    row_tokens = 64  # typical tokens of a text, from which the batch size is computed

    # Number of token embeddings, set after the model is loaded; None before that, and for models that do not tell.
    embeddings: int | None = None

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
        highest_id = max(tokenizer.get_vocab().values(), default=0)
        if highest_id > MAX_TOKEN_ID:  # writing its rules as JSON would take minutes
            raise ValueError(f"it has the token ID {highest_id:,}, more than {MAX_TOKEN_ID:,}")
        # A tokenizer without a limit states a very large one.
        own_limit = tokenizer.model_max_length if tokenizer.model_max_length < 2**31 else None
        self.max_tokens = min(filter(None, (positions, own_limit)), default=DEFAULT_MAX_TOKENS)
        self.form = Tokens(len(tokenizer))
        self._vocabulary = _plain_vocabulary(tokenizer)
        # How many special tokens are added before and after a text. A chat template prints those of a chat itself, and
        # the tokenizer adds none.
        self.special = (0, 0) if template else _count_special_tokens(tokenizer, self._vocabulary)
        first_token = [] if template else tokenizer("")["input_ids"][:1]
        self.has_cls = bool(first_token) and first_token[0] == tokenizer.cls_token_id
        chats = "chat template and " if template else ""
        self.description = f"the model's own {chats}tokenizer, with {len(tokenizer):,} tokens"
        self.digest = _digest(tokenizer, self.max_tokens)
        # Whether the model reads single letters, between which the tokenizer needs spaces.
        self._spaces_letters = _needs_spaced_letters(tokenizer, self._vocabulary)
        # How many texts `read` has read, by the name `READ`, and of how many of them each remark of `note` is true, by
        # the remark. Processes that share the texts add their counts.
        self.counts: Counter[str] = Counter()

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return token IDs (rows, longest) of stored texts, right-padded, and the number of tokens of each."""
        rows = self.read(x, lengths)
        return rows.ids, rows.lengths

    def read(
        self, x: np.ndarray, lengths: np.ndarray, masks: Sequence[str] = (), *, in_pieces: bool = False
    ) -> TokenRows:
        """Return the tokens of stored texts, with the ``masks`` of these names, and count the texts for `note`.

        The masks must be such that `mask_obstacle` is empty. With ``in_pieces``, a text that is too long for the model
        is read in pieces, else it is cut. The mask ``words`` is made for chats only; in other texts, all tokens belong
        to words but the first and last ones that ``special`` counts.
        """
        if in_pieces and not self._tokenizer.is_fast:
            raise InputError(
                "--long windows needs a tokenizer.json, which the model does not have", "leave --long out"
            )
        texts = self._texts(x, lengths)
        # The places of tokens in the text cost time, so they are asked for only if a mask needs them.
        needs_offsets = any(self._reads_offsets(name) for name in masks)
        encoding, long_texts = self._encode([marked.text for marked in texts], in_pieces, needs_offsets)
        self.counts[READ] += len(texts)
        self.counts[self._remark_on_long_texts(in_pieces=in_pieces)] += long_texts
        # A row is a text, or a piece of one; ``owner`` has the number of the text of each piece.
        owner = np.array(encoding["overflow_to_sample_mapping"]) if in_pieces else None
        texts_of_rows = texts if owner is None else [texts[text] for text in owner]
        ids, lengths = self._padded([marked.text for marked in texts_of_rows], encoding["input_ids"])
        rows = TokenRows(ids, lengths, owner)
        if not masks:
            return rows
        offsets = encoding.get("offset_mapping", ())
        maker = MaskMaker(rows, texts, offsets, self._special_ids, are_chats=self.template is not None)
        masks_by_name = {name: maker.mask(name) for name in masks if name != "words" or self.template}
        # Without a mask of words, a row has words if it has more tokens than are added to each.
        has_words = rows.lengths > sum(self.special)
        for name in masks:
            remark = f"have no token for the pooling {name}, which is zero there"
            self.counts[remark] += maker.texts_without(masks_by_name.get(name, has_words[:, None]))
        return replace(rows, masks=masks_by_name)

    def token_names(self, x: np.ndarray, length: int) -> list[str]:
        """Return the letters of each token of one stored text, as far as the model reads it, special tokens included.

        ``x`` are the code points (letters,) of the text, of which ``length`` are real. Spaces around a token are left
        out. A token that is white space alone, or part of a letter, is named as in the vocabulary.
        """
        (marked,) = self._texts(x[None], np.array([length]))
        encoding, _ = self._encode([marked.text], in_pieces=False, needs_offsets=False)
        names: list[str] = []
        for token_id in encoding["input_ids"][0]:
            letters = self._tokenizer.decode([token_id]).strip()
            is_readable = letters and UNKNOWN not in letters
            names.append(letters if is_readable else self._tokenizer.convert_ids_to_tokens(token_id))
        return names

    def _encode(self, texts: list[str], in_pieces: bool, needs_offsets: bool) -> tuple[dict[str, Any], int]:
        """Return the tokens of texts as transformers names them, and how many texts are too long for the model.

        In ``input_ids``, and in ``offset_mapping`` if the places of tokens are needed, there is a list for each text.
        With ``in_pieces``, there is one for each piece, and ``overflow_to_sample_mapping`` has the text of each.
        """
        if in_pieces:
            return self._encode_in_pieces(texts, needs_offsets)
        return self._encode_cut(texts, needs_offsets)

    def _encode_cut(self, texts: list[str], needs_offsets: bool) -> tuple[dict[str, Any], int]:
        """Return the tokens of texts, and how many of these are too long and therefore cut."""
        options = {"return_attention_mask": False, "return_offsets_mapping": needs_offsets}
        encoding = dict(self._tokenize(texts, **options, **self._options_of_chats))
        # Only long texts are tokenized again, because truncation slows the tokenizer down.
        long_texts = [text for text, ids in enumerate(encoding["input_ids"]) if len(ids) > self.max_tokens]
        for text in long_texts:
            limits = {"truncation": True, "max_length": self.max_tokens}
            cut_encoding = self._tokenize(texts[text], **options, **limits, **self._options_of_chats)
            for name, values in cut_encoding.items():
                encoding[name][text] = values
        return encoding, len(long_texts)

    def _encode_in_pieces(self, texts: list[str], needs_offsets: bool) -> tuple[dict[str, Any], int]:
        """Return the tokens of pieces that fit the model, each with its text; and how many texts have several."""
        pieces = self._tokenize(
            texts,
            truncation=True,
            max_length=self.max_tokens,
            return_overflowing_tokens=True,
            return_offsets_mapping=needs_offsets,
            **self._options_of_chats,
        )
        pieces_of_text = np.bincount(pieces["overflow_to_sample_mapping"])
        return dict(pieces), int((pieces_of_text > 1).sum())

    @property
    def _options_of_chats(self) -> dict[str, Any]:
        """The options with which texts are tokenized: the template of a chat has added the special tokens already."""
        return {"add_special_tokens": False} if self.template else {}

    def _reads_offsets(self, mask: str) -> bool:
        """Return whether a mask is made from the places of tokens in the text."""
        return mask in ("span", "assistant") or (mask == "last-prompt" and self.template is not None)

    def mask_obstacle(self, mask: str) -> str:
        """Return why the reader cannot make a mask of this name, with what to do; empty if it can."""
        if mask == "assistant" and not self.template:
            return "the texts are not chats; pass --chat to read a column of messages"
        if mask == "span" and not self._has_spans:
            return "no span is marked in the texts; pass --span START,END, two columns of the data"
        if self._reads_offsets(mask) and not self._tokenizer.is_fast:
            return "it needs a model with a tokenizer.json; pool mean or last"
        return ""

    @cached_property
    def space_mark_ids(self) -> list[int]:
        """The IDs of the tokens that are nothing but the mark of a space."""
        vocabulary = self._tokenizer.get_vocab()
        return [vocabulary[mark] for mark in SPACE_MARKS if mark in vocabulary]

    @cached_property
    def _special_ids(self) -> list[int]:
        """The IDs of all special tokens, those of chat templates included, but not of unknown words."""
        tokenizer = self._tokenizer
        marked_special = {
            number for number, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        roles = ("bos", "eos", "pad", "cls", "sep", "mask")
        with_role = {getattr(tokenizer, f"{role}_token_id") for role in roles} - {None}
        # In this order, because some tokenizers have one token for unknown words and for the end of a text: it stays.
        return sorted((marked_special - {tokenizer.unk_token_id}) | with_role)

    def encodings(self, texts: Sequence[str], *, in_pieces: bool) -> Encodings:
        """Return the tokens of texts, with special tokens, and the letters of the text that each token covers.

        With ``in_pieces``, a text with too many tokens has several pieces, else it is cut. `note` does not count
        these texts.
        """
        if not self._tokenizer.is_fast:
            raise InputError(
                "labels of words or tokens need a model with a tokenizer.json", "use another model"
            )
        as_read = [" ".join(text) for text in texts] if self._spaces_letters else list(texts)
        encoding, long_texts = self._encode(as_read, in_pieces, needs_offsets=True)
        text_of_piece = encoding.get("overflow_to_sample_mapping", range(len(texts)))
        pieces: list[list[tuple[list[int], np.ndarray]]] = [[] for _ in texts]
        for text, ids, offsets in zip(
            text_of_piece, encoding["input_ids"], encoding["offset_mapping"], strict=True
        ):
            spans = np.array(offsets, np.int64).reshape(-1, 2)  # first letter, and letter after the last
            if self._spaces_letters:
                # Letter n is at position 2 n, so a span from 2 n to 2 m - 1 covers the letters from n to before m. Some
                # tokenizers let a token begin with the space before its letter, at 2 n - 1.
                spans = (spans + 1) // 2
            pieces[text].append((ids, spans))
        self._refuse_unknown_ids(encoding["input_ids"])
        return Encodings(pieces, long_texts)

    def obstacle(self, letters: str) -> str:
        """Return why the tokenizer cannot read sequences of these letters; empty if it can."""
        ids_of_letters = self._tokenize(list(letters), add_special_tokens=False)["input_ids"]
        unknown_id = self._tokenizer.unk_token_id
        readable = [
            letter
            for letter, ids in zip(letters, ids_of_letters, strict=True)
            if ids and unknown_id not in ids
        ]
        # Half of the letters must be known. Rare ones, such as X for any amino acid, may be unknown.
        if 2 * len(readable) < len(letters):
            remedy = "if it knows upper case, set do_lower_case to false in its tokenizer_config.json"
            return f"its tokenizer does not know most of the letters {shown(letters)} ({remedy})"
        # A model of letters or bytes can read them: no two letters share a token. The text has each pair of letters.
        pairs = "".join(a + b for a in readable for b in readable)
        text = " ".join(pairs) if self._spaces_letters else pairs
        tokens = self._tokenize(text, add_special_tokens=False)
        if len(tokens["input_ids"]) == len(pairs):
            return ""
        # Other models of proteins, DNA or names have tokens of several such letters. The tokens of a model of
        # a language are mostly words of other letters, and say little about the few that data like DNA form.
        words_of_these_letters = sum({*word} <= {*letters} for word in self._vocabulary)
        if 2 * words_of_these_letters > len(self._vocabulary):
            return ""
        return f"most tokens of its tokenizer have other letters than {shown(letters)} (--input native uses it)"

    def save(self, path: Path) -> None:
        """Write the rules of the tokenizer to a file, with the truncation and padding that the model needs.

        The file adds special tokens to texts, but not to chats, whose template prints them. Only a fast tokenizer has
        such rules.
        """
        from tokenizers import Tokenizer

        tokenizer = self._tokenizer
        if not tokenizer.is_fast:
            raise InputError(
                "export needs a tokenizer.json, which the model does not have", "use another model"
            )
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        if self.template:
            rules["post_processor"] = None  # the part that adds special tokens
        saved = Tokenizer.from_str(json.dumps(rules))
        saved.enable_truncation(self.max_tokens)
        saved.enable_padding(pad_id=tokenizer.pad_token_id or 0, pad_token=tokenizer.pad_token or "")
        saved.save(str(path))

    def places(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the position of the last token of each letter, (rows, letters); -1 after the end of a text."""
        places = [
            torch.from_numpy(self._last_token_of_letters(marked.text)) for marked in self._texts(x, lengths)
        ]
        return nn.utils.rnn.pad_sequence(places, batch_first=True, padding_value=-1).numpy()

    def may_be_long(self, lengths: np.ndarray) -> np.ndarray:
        """Return which texts of these ``lengths`` (rows,) in letters may have too many tokens, (rows,) of bool."""
        special_tokens = len(self._tokenize("")["input_ids"])
        return 4 * lengths + special_tokens > self.max_tokens  # few tokenizers need 4 tokens for a letter

    def check_places(self, x: np.ndarray, lengths: np.ndarray) -> None:
        """Refuse stored texts that have more tokens than the model reads, because their labels would be lost."""
        texts = [marked.text for marked in self._texts(x, lengths)]
        for text, ids in zip(texts, self._tokenize(texts)["input_ids"], strict=True):
            self._refuse_long(text, len(ids))

    def _refuse_long(self, text: str, tokens: int) -> None:
        """Raise `InputError` if a text has more ``tokens`` than the model reads."""
        if tokens > self.max_tokens:
            raise InputError(
                f"the text {text[:40]!r} has {tokens:,} tokens with labels, and the model reads {self.max_tokens:,}",
                "split the row, or leave it out",
            )

    def _last_token_of_letters(self, text: str) -> np.ndarray:
        """Return the position of the last token of each letter, (letters,); spaces that separate letters are none."""
        has_offsets = self._tokenizer.is_fast
        encoding = self._tokenize(text, return_offsets_mapping=has_offsets)
        tokens = len(encoding["input_ids"])
        self._refuse_long(text, tokens)
        # The letter after the last place of each letter. Spaced letters are at every second place; one of them may be a
        # space itself, which has a label, but no token.
        step = 2 if self._spaces_letters else 1
        letter_ends = np.arange(0, len(text), step) + 1
        if has_offsets:
            return _tokens_of_letters(encoding["offset_mapping"], letter_ends)
        # Without offsets, only a tokenizer with one token for each letter can be aligned: the token of a letter has
        # the letter's number, plus 1 if there is a class token.
        special_tokens = len(self._tokenize("")["input_ids"])
        if tokens - special_tokens != len(letter_ends):
            raise InputError(
                "labels of every token need a model with a tokenizer.json", "use another model"
            )
        return np.arange(len(letter_ends)) + self.has_cls

    def _tokenize(self, texts: str | list[str], **options: Any) -> Any:
        """Return what the tokenizer makes of a text or of several; raise `InputError` if it fails."""
        # The rules in a damaged tokenizer.json fail only on some texts.
        remedy = "repair its tokenizer.json, or extract with --input gaussian"
        with as_input_error("tokenizer: it cannot read the texts", remedy):
            return self._tokenizer(texts, **options)

    def _texts(self, x: np.ndarray, lengths: np.ndarray) -> list[MarkedText]:
        """Return stored texts as the tokenizer reads them, with their spans.

        Marks of spans are removed, chats are rendered, and spaces are put between letters if the tokenizer needs them.
        """
        texts = texts_of(x, lengths)
        if self.template:
            return self.template.render(texts)
        marked_texts = [parse_marks(text) if self._has_spans else MarkedText(text) for text in texts]
        if self._spaces_letters:
            return [_with_spaced_letters(marked) for marked in marked_texts]
        return marked_texts

    def _padded(
        self, texts: Sequence[str], token_ids: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return token IDs (rows, longest), right-padded, and their numbers (rows,); refuse texts without tokens."""
        lengths = np.array([len(ids) for ids in token_ids], np.int32)
        if not lengths.all():
            text = texts[int(np.argmin(lengths))]
            raise InputError(f"the text {text[:40]!r} has no token of the model", "leave the row out")
        ids = np.full((len(token_ids), lengths.max()), self.pad, np.int64)
        is_token = np.arange(ids.shape[1]) < lengths[:, None]
        ids[is_token] = np.concatenate(token_ids)
        self._refuse_unknown_ids([ids.ravel()])
        return ids, lengths

    def _refuse_unknown_ids(self, token_ids: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Refuse token IDs for which the model has no embedding."""
        if self.embeddings is None:
            return
        # The empty array is there because there may be no others.
        ids = np.concatenate([np.empty(0, np.int64), *token_ids])
        if len(ids) and (ids.min() < 0 or ids.max() >= self.embeddings):
            raise InputError(
                f"tokenizer: it gives the token ID {int(ids.max()):,}, but the model has embeddings only below "
                f"{self.embeddings:,}",
                "use the tokenizer that the model was trained with",
            )

    @property
    def pad(self) -> int:
        """The token ID that pads rows; any would do, because the model ignores tokens after the end of a row."""
        return self._tokenizer.pad_token_id or 0

    @property
    def note(self) -> str:
        """A message on the texts that were too long, and on those without a token of a mask; or an empty string."""
        return "; ".join(
            f"{count:,} of {self.counts[READ]:,} texts {remark}"
            for remark, count in sorted(self.counts.items())
            if count and remark != READ
        )

    def _remark_on_long_texts(self, *, in_pieces: bool) -> str:
        """Return what is true of a text that is too long: it is read in pieces, or cut."""
        how = (
            "read in pieces, with features averaged"
            if in_pieces
            else "cut (extract --long windows reads all)"
        )
        return f"have more than {self.max_tokens:,} tokens and are {how}"


def _digest(tokenizer: Any, max_tokens: int) -> str:
    """Return the SHA-256 of everything that decides the token IDs of a text."""
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
    special_tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    content = [type(tokenizer).__name__, rules, special_tokens, max_tokens]
    # A rare setting, and merges that are not in the rules; tokenizers without them keep their older digests.
    rare = [tokenizer.split_special_tokens, list(getattr(tokenizer, "bpe_ranks", ()))]
    if any(rare):
        content += rare
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _with_spaced_letters(marked: MarkedText) -> MarkedText:
    """Return a text with spaces between its letters: letter n is then at position 2 n, and the spans follow."""
    spans = marked.spans and tuple((2 * start, 2 * end - 1) for start, end in marked.spans)
    return MarkedText(" ".join(marked.text), spans)


def _tokens_of_letters(offsets: Sequence[tuple[int, int]], letter_ends: np.ndarray) -> np.ndarray:
    """Return the number of the last token of each letter, (letters,).

    ``offsets`` are the positions in the text at which each token begins and ends, and ``letter_ends`` those at which
    letters end, ascending.
    """
    # Special tokens are empty spans of the text, and left out.
    begins_and_numbers = [(begin, number) for number, (begin, end) in enumerate(offsets) if end > begin]
    if not begins_and_numbers:
        raise InputError("the tokenizer leaves out all letters of a text with labels", "leave out the row")
    token_begins, token_numbers = np.array(begins_and_numbers).T
    # The last token of a letter is the last one that begins before the letter ends. The first token stands for letters
    # before it, which the tokenizer has left out.
    numbers_of_letters = np.searchsorted(token_begins, letter_ends) - 1
    return token_numbers[np.maximum(numbers_of_letters, 0)]


def _plain_vocabulary(tokenizer: Any) -> list[str]:
    """Return the vocabulary without special tokens, and without the marks where a word begins, goes on or ends."""
    special_tokens = {*tokenizer.all_special_tokens}
    tokens = [token for token in tokenizer.get_vocab() if token not in special_tokens]
    words = [re.sub("^(##|▁|Ġ)|(</w>|@@)$", "", token) for token in tokens]
    return [word for word in words if word]  # a token may be nothing but a mark


def _count_special_tokens(tokenizer: Any, words: Sequence[str]) -> tuple[int, int]:
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


def _needs_spaced_letters(tokenizer: Any, words: Sequence[str]) -> bool:
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
    """Return the reader of a model with this many ``positions``, None if it has no limit.

    ``folder`` and ``gguf`` are what `pretrained_files` yields for the model called ``name``: the folder with its files,
    or an empty folder and the option that names a GGUF file. The parameters of the ``task`` say whether its texts are
    chats, and whether spans are marked in them.
    """
    from transformers import AutoTokenizer

    parameters = task.parameters if task else {}

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
    """Return the chat template of the model called ``name``; refuse a model without one."""
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
        """Return the settings in a file; none if there is no such file."""
        return json.loads((folder / file).read_text()) if (folder / file).is_file() else {}

    settings = read("tokenizer_config.json")
    # transformers takes these settings as paths of files, which may be anywhere on this machine.
    paths = ("fast_tokenizer_files", "gguf_file", "init_inputs", "merges", "vocab")
    if name := next(filter(settings.get, paths), None):
        raise ValueError(f"it names other files, {name} = {str(settings[name])[:60]!r}, which are not read")
    for name in read("special_tokens_map.json"):  # transformers takes every key as a setting
        if not name.endswith(("_token", "_tokens")):
            raise ValueError(f"its special_tokens_map.json sets {name[:60]!r}, which is not a token")
    for settings_of_file in (settings, read("config.json")):
        check_class(settings_of_file.get("tokenizer_class"), "PreTrainedTokenizerBase")


def check_class(name: object, kind: str) -> None:
    """Raise `ValueError` if a name in a model folder is one of transformers, but no subclass of its class ``kind``.

    transformers would load the named class, and loading another kind may download files or offer to run code.
    """
    import transformers

    # transformers looks for the name without "Fast" too.
    named_class = getattr(transformers, re.sub("(Fast)+$", "", str(name)), None)
    if named_class is None:
        return  # transformers cannot load an unknown class: it takes a general one, or refuses the name
    is_kind = isinstance(named_class, type) and issubclass(named_class, getattr(transformers, kind))
    # Where a package is not installed, transformers has a placeholder that only says which packages the class needs.
    is_placeholder = hasattr(named_class, "_backends")
    if not is_kind and not is_placeholder:
        raise ValueError(f"it names the class {str(name)[:60]!r}, which is not a {kind}")
