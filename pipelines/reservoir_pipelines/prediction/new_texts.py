"""Predictions of the words or tokens of new texts: one for each, with its letters and where they stand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.features import forward_tokens
from reservoir.inputs.text_tokens import TextTokens, read_tokens
from reservoir.loaded_model import LoadedModel
from reservoir.tasks.task import Task
from reservoir.tasks.texts import texts_of, word_starts
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.extraction.entry_tokens import TEXTS_AT_ONCE
from reservoir_pipelines.output import notify
from reservoir_pipelines.prediction.prediction import Prediction

BLOCK_TOKENS = {"cpu": 2**12, "cuda": 2**15}  # words or tokens that are predicted at a time
UNREAD = "the model reads no token of this word, because the text is too long or the word has no letters"
NO_TOKEN = "the text has no token of the model"


@dataclass(frozen=True, kw_only=True, eq=False)
class NewTexts:
    """New texts, and their words or tokens as each model of a readout reads them.

    Parameters
    ----------
    rows : Rows
        The texts as code points, and what could not be read.
    tokens : sequence of TextTokens
        Those of each model, which have the same spans.
    task : Task
        The task of the words or tokens.
    """

    rows: Rows
    tokens: Sequence[TextTokens]
    task: Task

    @classmethod
    def read(cls, file: Path, rows: Rows, task: Task, models: Sequence[LoadedModel]) -> "NewTexts":
        """Tokenize the texts of ``rows`` for each model; refuse models whose words or tokens have other spans."""
        x, lengths = np.asarray(rows.x[:]), np.asarray(rows.lengths)
        starts = range(0, len(x), TEXTS_AT_ONCE)
        tokens = [
            read_tokens(
                model.tokenizer,
                (
                    (x[start : start + TEXTS_AT_ONCE], lengths[start : start + TEXTS_AT_ONCE])
                    for start in starts
                ),
                words=task.labels_words,
                in_pieces=model.settings.long == "windows",
            )
            for model in models
        ]
        first = tokens[0]
        for model, model_tokens in zip(models, tokens, strict=True):
            has_same_pointers = np.array_equal(model_tokens.pointers, first.pointers)
            if not has_same_pointers or not np.array_equal(model_tokens.spans, first.spans):
                raise InputError(
                    f"{file}: the models of the readout divide its texts differently",
                    "fit the columns of one model",
                )
            cuts_texts = model.reader and model.settings.long != "windows"
            if cuts_texts and model_tokens.long:
                notify(
                    f"{file}: {model_tokens.long:,} of {len(x):,} texts have too many tokens for the model and are cut"
                )
        return cls(rows=rows, tokens=tokens, task=task)

    def as_rows(self) -> Rows:
        """Return the words or tokens as rows with the names, groups and labels of their texts.

        Their sequences are placeholders of one token: `features` reads the texts.
        """
        rows = self.rows
        tokens = self.tokens[0]  # the spans and texts are those of every model
        y = None
        if rows.y is not None:
            # For each text a label, or a list with one for each word or letter, or None.
            labels = rows.y.tolist()
            y = np.empty(len(tokens), object)
            if self.task.parameters["each"] == "text":
                y[:] = [labels[text] for text in tokens.texts.tolist()]
            else:
                text_and_number = zip(tokens.texts.tolist(), tokens.labelled.tolist(), strict=True)
                y[:] = [_label_of_text(labels[text], number) for text, number in text_and_number]
        groups = rows.names if rows.groups is None else rows.groups  # else each text is a group of its own
        return replace(
            rows,
            x=np.zeros((len(tokens), 1), np.uint8),
            lengths=np.ones(len(tokens), np.int64),
            y=y,
            ids=rows.names[tokens.texts],
            groups=groups[tokens.texts],
        )

    def __len__(self) -> int:
        """Return the number of predictions: one for each word or token, and one for each that is `unread`."""
        return len(self.tokens[0]) + self.unread

    @property
    def unread(self) -> int:
        """The number of words that the model does not read; if tokens have labels, that of texts without a token."""
        tokens = self.tokens[0]  # every model reads the same words and tokens
        if self.task.labels_words:
            return tokens.unread
        # A text has the tokens from one pointer to the next. `TextTokens.unread` counts words alone.
        has_no_token = np.diff(tokens.pointers) == 0
        return int(has_no_token.sum())

    def features(
        self,
        low: int,
        high: int,
        models: Sequence[LoadedModel],
        columns: Sequence[tuple[str, ...]],
        batch_rows: Sequence[int],
    ) -> list[np.ndarray]:
        """Return the columns (rows, width) of the words or tokens from ``low`` to ``high``, model by model.

        ``columns`` are the names of those that each model computes, in batches of its ``batch_rows``.
        """
        features: list[np.ndarray] = []
        high = min(high, len(self.tokens[0]))  # the last block may have fewer words or tokens
        for model, tokens, names, rows in zip(models, self.tokens, columns, batch_rows, strict=True):
            values = forward_tokens(model, tokens.part(low, high), names, rows)  # (rows, 1, width)
            features += [values[name][:, 0] for name in names]
        return features

    def with_token_fields(self, text: int, predictions: Iterator[Prediction]) -> Iterator[Prediction]:
        """Yield the predictions of the words or tokens of a text, each with its number, letters and span.

        ``predictions`` yields those of the words or tokens that the model reads; those of this text are next. A word
        that is not read has a prediction with a problem, and so has a text without a word or token.
        """
        tokens, rows = self.tokens[0], self.rows
        codes, lengths = np.asarray(rows.x[text : text + 1]), np.asarray(rows.lengths)[text : text + 1]
        (letters,) = texts_of(codes, lengths)
        # The words or tokens of the text that are read, by their numbers in it. All tokens are, but not all words.
        low, high = tokens.pointers[[text, text + 1]].tolist()
        spans = tokens.spans[low:high].tolist()
        if self.task.labels_words:
            count = int(word_starts(codes, lengths).sum())
            span_of_number = dict(zip(tokens.labelled[low:high].tolist(), spans, strict=True))
        else:
            count = len(spans)
            span_of_number = dict(enumerate(spans))
        if count == 0:
            name = rows.names[text].item()
            yield Prediction(id=name, label=None, probabilities=[], problem=NO_TOKEN)
        for number in range(count):
            if number not in span_of_number:
                name = rows.names[text].item()
                yield Prediction(id=name, label=None, probabilities=[], token=number, problem=UNREAD)
                continue
            start, end = span_of_number[number]
            yield replace(next(predictions), token=number, text=letters[start:end], start=start, end=end)


def _label_of_text(labels: list[Any] | None, number: int) -> Any:
    """Return the label of a word or letter by its number in the text; None if the text has no labels, or too few."""
    if labels is None or number >= len(labels):
        return None
    return labels[number]
