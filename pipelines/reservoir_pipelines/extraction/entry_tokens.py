"""The words or tokens of texts as the rows of an entry: counted before anything is computed, loaded, and labelled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from reservoir_cache import Entry, write_targets

from reservoir.batches import Loaded, load_tokens
from reservoir.errors import InputError
from reservoir.inputs.native import TextReader
from reservoir.inputs.text_tokens import TextTokens, read_tokens
from reservoir.loaded_model import LoadedModel
from reservoir.tasks.task import Split, Task
from reservoir_pipelines.preparation.prepared import Prepared

TEXTS = 256  # texts that are tokenized at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class EntryTokens:
    """The words or tokens of some prepared texts, which are the rows of an entry."""

    prepared: Prepared
    task: Task  # of the words or tokens
    rows: Mapping[str, np.ndarray]  # the numbers of the texts of each split
    tokens: Mapping[str, TextTokens]  # by split
    reader: TextReader
    in_pieces: bool  # whether texts that are too long are read in pieces

    @classmethod
    def read(
        cls, prepared: Prepared, task: Task, rows: Mapping[str, np.ndarray], model: LoadedModel
    ) -> "EntryTokens":
        """Tokenize texts of each split, given by their ``rows``; ``task`` is that of the words or tokens."""
        reader, in_pieces = model.tokenizer, model.settings.long == "windows"
        tokens: dict[str, TextTokens] = {}
        for split, index in rows.items():
            texts = ((part.x, part.lengths) for part in _parts(prepared, split, index))
            tokens[split] = read_tokens(reader, texts, words=task.labels_words, in_pieces=in_pieces)
        for split, of_split in tokens.items():
            if not len(of_split):
                raise InputError(
                    f"{prepared.task.name}: no text of {split} has a token of the model", "give other texts"
                )
        return cls(
            prepared=prepared, task=task, rows=rows, tokens=tokens, reader=reader, in_pieces=in_pieces
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of words or tokens of each split."""
        return {split: len(of_split) for split, of_split in self.tokens.items()}

    @property
    def notes(self) -> list[str]:
        """Lines on what the rows are, and on texts that are too long."""
        texts = sum(map(len, self.rows.values()))
        total = sum(self.counts.values())
        if self.task.labels_words:
            line = f"{total:,} words of {texts:,} texts are the rows; a word has the features of its first token"
        else:
            label = (
                "of its text, if there is one"
                if self.task.parameters["each"] == "text"
                else "of its first letter"
            )
            line = f"{total:,} tokens of {texts:,} texts are the rows; a token has the label {label}"
        lines = [line]
        unread = sum(of_split.unread for of_split in self.tokens.values())
        if long := sum(of_split.long for of_split in self.tokens.values()):
            how = "read in pieces" if self.in_pieces else "cut (--long windows reads all)"
            limit = self.reader.max_tokens
            lines.append(f"{long:,} of {texts:,} texts have more than {limit:,} tokens and are {how}")
        if unread:
            lines.append(f"{unread:,} words have no token of the model, so their labels are left out")
        return [f"{self.prepared.task.name}: {line}" for line in lines]

    def load(self, model: LoadedModel, split: str, low: int, high: int, batch_rows: int) -> Loaded:
        """Return the sequences that hold the rows from ``low`` to ``high`` (not included), ready for the model."""
        return load_tokens(model, self.tokens[split].part(low, high), batch_rows)

    def write_labels(self, entry: Entry) -> None:
        """Write labels, texts, groups, token IDs and spans of the rows of an entry, unless it has them."""
        for split, index in self.rows.items():
            tokens = self.tokens[split]
            prepared = self.prepared.split(split)
            text = tokens.texts  # the number of the text of each row, among those of ``index``
            groups = self._text_groups(split) if prepared.groups is None else prepared.groups
            targets = {
                "y": self._labels(split),
                "lengths": np.ones(len(tokens), np.uint8),
                "index": index[text].astype(np.int32),
                "groups": groups[index][text].astype(np.int32),
                "pointers": tokens.pointers,
                "token_ids": tokens.token_ids,
                "spans": tokens.spans,
            }
            if not np.array_equal(prepared.ids[index], index):  # the ids are not the numbers of the texts
                targets["text_ids"] = prepared.ids[index]
            write_targets(entry, split, targets)

    def _text_groups(self, split: str) -> np.ndarray:
        """Return a group for each prepared text of a split, which no text of another split has."""
        # The texts are numbered through all splits, in the order of the splits' names.
        counts = self.prepared.rows
        texts_before = sum(counts[name] for name in counts if name < split)
        return texts_before + np.arange(counts[split])

    def _labels(self, split: str) -> np.ndarray:
        """Return the labels of the rows of a split, (rows, 1, outputs)."""
        tokens = self.tokens[split]
        labels: list[np.ndarray] = []
        first = 0  # the number of the first text of the part
        for part in _parts(self.prepared, split, self.rows[split]):
            low, high = tokens.pointers[[first, first + len(part)]]
            number = 0 if self.task.parameters["each"] == "text" else tokens.labelled[low:high]
            labels.append(part.y[tokens.texts[low:high] - first, number])
            first += len(part)
        return np.concatenate(labels)[:, None]


def _parts(prepared: Prepared, split: str, index: np.ndarray) -> Iterator[Split]:
    """Yield some texts of a split, in parts."""
    for start in range(0, len(index), TEXTS):
        yield prepared.split(split).take(index[start : start + TEXTS])
