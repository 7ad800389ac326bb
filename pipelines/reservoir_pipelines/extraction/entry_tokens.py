"""The words or tokens of texts as the rows of an entry: counted before anything is computed, loaded, and labelled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from reservoir_cache import Entry, Spec, write_targets

from reservoir.batches import LoadedBatch, load_tokens
from reservoir.errors import InputError
from reservoir.inputs.native import TextReader
from reservoir.inputs.text_tokens import TextTokens, read_tokens
from reservoir.loaded_model import LoadedModel
from reservoir.tasks.task import Split, Task
from reservoir_pipelines.extraction.entries import text_names
from reservoir_pipelines.preparation.prepared import Prepared

TEXTS_AT_ONCE = 256  # texts that are tokenized at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class EntryTokens:
    """The words or tokens of some prepared texts, which are the rows of an entry."""

    prepared: Prepared
    task: Task  # of the words or tokens
    rows: Mapping[str, np.ndarray]  # the numbers of the prepared texts, by split
    tokens: Mapping[str, TextTokens]  # the words or tokens of these texts, by split
    reader: TextReader  # the model's tokenizer
    in_pieces: bool  # whether texts that are too long are read in pieces; else they are cut

    @classmethod
    def read(
        cls, prepared: Prepared, task: Task, rows: Mapping[str, np.ndarray], model: LoadedModel
    ) -> "EntryTokens":
        """Tokenize the prepared texts that ``rows`` numbers in each split.

        ``task`` is that of the words or tokens. Raise `InputError` if all texts of a split are without a token.
        """
        reader, in_pieces = model.tokenizer, model.settings.long == "windows"
        tokens: dict[str, TextTokens] = {}
        for split, index in rows.items():
            texts = ((part.x, part.lengths) for part in _parts(prepared, split, index))
            tokens[split] = read_tokens(reader, texts, words=task.labels_words, in_pieces=in_pieces)
        for split, tokens_of_split in tokens.items():
            if not len(tokens_of_split):
                raise InputError(
                    f"{prepared.task.name}: no text of {split} has a token of the model", "give other texts"
                )
        return cls(
            prepared=prepared, task=task, rows=rows, tokens=tokens, reader=reader, in_pieces=in_pieces
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of words or tokens of each split."""
        return {split: len(tokens) for split, tokens in self.tokens.items()}

    @property
    def notes(self) -> list[str]:
        """Lines to print on what the rows are, on texts that are too long, and on words without a token."""
        texts = sum(map(len, self.rows.values()))
        rows = sum(self.counts.values())
        if self.task.labels_words:
            what = f"{rows:,} words of {texts:,} texts are the rows; a word has the features of its first token"
        elif self.task.parameters["each"] == "text":
            what = (
                f"{rows:,} tokens of {texts:,} texts are the rows; a token has the label of its text, "
                "if there is one"
            )
        else:
            what = f"{rows:,} tokens of {texts:,} texts are the rows; a token has the label of its first letter"
        lines = [what]
        long_texts = sum(tokens.long for tokens in self.tokens.values())
        if long_texts:
            how = "read in pieces" if self.in_pieces else "cut (--long windows reads all)"
            limit = self.reader.max_tokens
            lines.append(f"{long_texts:,} of {texts:,} texts have more than {limit:,} tokens and are {how}")
        unread_words = sum(tokens.unread for tokens in self.tokens.values())
        if unread_words:
            lines.append(f"{unread_words:,} words have no token of the model, so their labels are left out")
        return [f"{self.prepared.task.name}: {line}" for line in lines]

    def with_space_marks(self, spec: Spec) -> Spec:
        """Return the specification of an entry that says if space marks in front of words are left out.

        It has another key than the entries of earlier versions, in which such a mark stood for its word.
        """
        if not any(tokens.space_marks for tokens in self.tokens.values()):
            return spec
        return replace(spec, input=replace(spec.input, space_marks="left out"))

    def load(self, model: LoadedModel, split: str, low: int, high: int, batch_rows: int) -> LoadedBatch:
        """Return the sequences that hold the rows from ``low`` to ``high`` (not included), ready for the model."""
        return load_tokens(model, self.tokens[split].part(low, high), batch_rows)

    def write_labels(self, entry: Entry) -> None:
        """Write labels, texts, groups, token IDs, spans and numbers of the rows of an entry, unless it has them."""
        for split, index in self.rows.items():
            tokens = self.tokens[split]
            prepared = self.prepared.split(split)
            text_of_row = tokens.texts  # the number of the text of each row, among those of ``index``
            # Words and tokens of one text are alike, so that a text is a group of its own if texts have no groups.
            groups = self._text_groups(split) if prepared.groups is None else prepared.groups
            targets = {
                "y": self._labels(split),
                "lengths": np.ones(len(tokens), np.uint8),
                "index": index[text_of_row].astype(np.int32),
                "groups": groups[index][text_of_row].astype(np.int32),
                "pointers": tokens.pointers,
                "token_ids": tokens.token_ids,
                "spans": tokens.spans,
            }
            if self.task.labels_words:
                targets["numbers_in_text"] = tokens.labelled
            write_targets(entry, split, targets | text_names(prepared, index, text_of_row))

    def _text_groups(self, split: str) -> np.ndarray:
        """Return the group of each prepared text of a split, (texts,): its number among the texts of all splits."""
        # The splits are in the order of their names.
        counts = self.prepared.rows
        texts_before = sum(counts[name] for name in counts if name < split)
        return texts_before + np.arange(counts[split])

    def _labels(self, split: str) -> np.ndarray:
        """Return the labels of the rows of a split, (rows, 1, outputs)."""
        tokens = self.tokens[split]
        # Either a text has one label, or each of its words or letters has one.
        label_is_of_text = self.task.parameters["each"] == "text"
        labels: list[np.ndarray] = []
        first = 0  # the number of the first text of the part
        for part in _parts(self.prepared, split, self.rows[split]):
            # The words or tokens of the part are those from ``low`` to ``high``.
            low, high = tokens.pointers[[first, first + len(part)]]
            text_in_part = tokens.texts[low:high] - first
            label_in_text = 0 if label_is_of_text else tokens.labelled[low:high]
            labels.append(part.y[text_in_part, label_in_text])
            first += len(part)
        return np.concatenate(labels)[:, None]


def _parts(prepared: Prepared, split: str, index: np.ndarray) -> Iterator[Split]:
    """Yield the texts of a split that ``index`` numbers, `TEXTS_AT_ONCE` at a time: all may not fit into memory."""
    for start in range(0, len(index), TEXTS_AT_ONCE):
        yield prepared.split(split).take(index[start : start + TEXTS_AT_ONCE])
