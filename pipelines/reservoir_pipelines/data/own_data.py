"""Your own data as the source of a task."""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks import TASKS
from reservoir.tasks.pictures import PATCH, PATCHES, SIDE
from reservoir.tasks.source import Piece, Source, clean_symbols
from reservoir.tasks.task import Scaling, Split, Task, Tokens, Vectors
from reservoir.tasks.texts import UNKNOWN, are_words, shown, word_starts
from reservoir_pipelines.data import series
from reservoir_pipelines.data.columns import named_kind
from reservoir_pipelines.data.formats import open_rows, source_files
from reservoir_pipelines.data.hub import is_hub
from reservoir_pipelines.data.labels import (
    WHERE,
    Labels,
    encode_labels,
    no_labels,
    notes_on_outliers,
    split_rows,
)
from reservoir_pipelines.data.rows import (
    OF_ARRAYS,
    OF_RECORDINGS,
    OF_TEXTS,
    OR_FILL,
    UNSEEN,
    UNUSED_BY_KIND,
    Alphabet,
    Rows,
    alphabet_of,
    without_end_spaces,
)
from reservoir_pipelines.data.table import is_pattern
from reservoir_pipelines.data.values import (
    MAX_INTEGER_SYMBOLS,
    SAMPLE,
    Reading,
    as_values,
    centre_and_spread,
    check_outliers,
    check_rounding,
    clean_lengths,
    read_integers,
    rounding,
    standardisation,
)

RULES = 3
"""The version of the rules by which files are read: add 1 with a rule that changes what is read of some file.

Data that was prepared by other rules is not reused, but features of rows that stay the same are.
"""

OF_FORECASTS = ("forecast", "past")
"""The options of forecasts."""

NO_GROUP = ("", "nan", "None")  # how a missing group is written when it is read as text


def own_name(origin: str) -> str:
    """Return the name of your own data as a task: the name of its file, or of the folder of its parts.

    All but letters and digits of ASCII, points, underscores and hyphens become hyphens. A name with other letters gets
    its digest as a suffix, and the name of a named task the suffix ``-data``.
    """
    path = Path(origin)
    file_name = path.absolute().parent.name if is_pattern(path) else path.name
    # Some systems store an accented letter as two characters.
    file_name = unicodedata.normalize("NFC", file_name)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file_name).lstrip("._-") or "data"
    if not file_name.isascii():
        digest = hashlib.sha256(file_name.encode("utf-8", "surrogatepass"))  # which need not be valid UTF-8
        name = f"{name}-{digest.hexdigest()[:8]}"
    # Every stage tells named tasks from other data by the name alone: a folder called mnist is not MNIST.
    return f"{name}-data" if name in TASKS else name


@dataclass(frozen=True)
class OwnData(Source):
    """A task from the rows of a file, a folder or a dataset, as ``docs/guides/data.md`` describes them.

    The rows are read when they are first needed, and everything that `prepare` stores follows from them:
    what a token is, the labels, the splits and the standardisation.
    """

    origin: str  # a path, or the name of a dataset of the hub
    options: OwnDataOptions

    def __reduce__(self) -> tuple[type, tuple]:
        """Return what pickle restores: the settings without the rows, because a new process reads the files itself."""
        return type(self), (self.origin, self.options)

    def settings(self) -> Mapping[str, Any]:
        """Return what the prepared data depend on besides the files: the options and the version of the rules."""
        # Options of arrays, recordings, forecasts and chats count only if they are given, so that the digests of
        # folders that were prepared before there was such an option stay valid. "asked" is the name of the options in
        # the digests.
        explicit = self.options.explicit
        options = {
            name: value
            for name, value in vars(self.options).items()
            if name not in (*OF_ARRAYS, *OF_RECORDINGS, *OF_FORECASTS, *OF_TEXTS) or name in explicit
        }
        settings: dict[str, Any] = {"asked": options, "rules": RULES}
        if self.options.forecast:
            # Folders of forecasts that earlier versions prepared lack the stretches of windows, so they are not reused.
            settings["stretches"] = True
        if self.options.window:
            # Folders of windows that earlier versions prepared may give several recordings one name.
            settings["recording_names"] = "unique"
        return settings

    @property
    def name(self) -> str:
        """The name of the task, which is known before the rows are read."""
        return own_name(self.origin)

    @cached_property
    def task(self) -> Task:
        """The description of the task, with the shapes of the data."""
        _, tokens, *dims = self._shape  # (rows, tokens) or (rows, tokens, dim)
        channels = dims[0] if dims else 1
        if self.options.missing == "mask":
            channels *= 2  # each channel has another one that marks its missing values
        return Task(
            name=self.name,
            form=Tokens(self._vocabulary) if self._are_symbols else Vectors(channels),
            max_tokens=tokens,
            classes=self._labels.classes,
            readout_tokens=self._labels.y.shape[1],
            outputs=self._labels.y.shape[2],
            parameters=self._parameters(),
            labels=self._labels.names,
            alphabet=self._alphabet.symbols,
            # Side in pixels of the images for models of vectors; 0 if the rows are no images.
            pictures=SIDE if self._rows.holds == "images" else 0,
        )

    def _parameters(self) -> dict[str, Any]:
        """Return the choices of the rules and the explicit options, with which `predict` reads new rows."""
        parameters: dict[str, Any] = {} if self._labels_per_row is None else {"each": "token"}
        parameters |= {**self._rows.parameters, **self.options.explicit}
        if self._rows.y is None:
            parameters["unlabelled"] = True
        if self.options.labels:  # paths are not part of the cache key
            parameters["labels"] = Path(self.options.labels).name
        if self._are_symbols:
            # Symbols are never standardised, so the option changes nothing.
            parameters.pop("standardise", None)
        return parameters

    def files(self) -> list[Path]:
        """Return the files that the data are read from."""
        # A dataset of the hub has no path; its rows say where its files are.
        files = [] if is_hub(self.origin) else source_files(Path(self.origin), self.options.labels)
        # So do the rows of a table whose cells name files. Other data need not be read to know the files, and series
        # without a first line of names are no such table.
        names_files = (
            bool(files) and not series.accepts(self.origin, self.options) and bool(named_kind(files[0]))
        )
        has_other_files = not files or names_files
        return [*files, *self._rows.files] if has_other_files else files

    def pieces(self) -> list[Piece]:
        """Return the ranges of rows that are read at a time, in order."""
        row_count = len(self._rows)
        step = self._rows.piece_rows
        return [Piece("rows", low, min(low + step, row_count)) for low in range(0, row_count, step)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return a range of rows, divided into its splits by their names."""
        rows = slice(piece.lo, piece.hi)
        groups = self._group_numbers
        all_splits = Split(
            x=self._stored(piece),
            y=self._labels.y[rows],
            lengths=self._lengths[rows],
            groups=None if groups is None else groups[rows],
            group_names=None if self._rows.groups is None else self._rows.groups[rows].astype(str),
            ids=self._rows.names[rows],
            stretches=None if self._rows.stretches is None else self._rows.stretches[rows],
        )
        split = self._split[rows]
        return {name: all_splits.take(split == name) for name in sorted(set(split.tolist()))}

    def _stored(self, piece: Piece) -> np.ndarray:
        """Return the sequences of a range of rows as they are stored, checked and converted; values are float32."""
        x, lengths = self._rows.x[piece.lo : piece.hi], self._lengths[piece.lo : piece.hi]
        if self._rows.holds in ("letters", "images"):  # code points, and bytes of files, stay as they are
            return x
        if self._are_symbols:
            return clean_symbols(self.origin, x, lengths, self._vocabulary, piece.lo)
        tokens = x.reshape(*x.shape[:2], -1)  # a series (rows, tokens) gets an axis of one channel
        names = self._rows.names[piece.lo : piece.hi]
        return as_values(self.origin, tokens, lengths, self.options.missing, piece.lo, OR_FILL, names)

    def scaling(self) -> Scaling | None:
        """Return how the model scales the stored values, or None for symbols.

        Values are standardised by the training rows, unless the user says otherwise or they are sounds as samples. The
        bytes of images become about -2 to 2.
        """
        form = self.task.form
        if isinstance(form, Tokens):
            return None
        if self.task.pictures:
            return Scaling.constant(1 / 64, form.dim, offset=127.5)
        if not self.options.standardise or self.options.waveform:
            return Scaling.constant(1.0, form.dim)
        # One pass over the training tokens: while they are summed, statistics of each piece are added to these lists.
        roundings: list[np.ndarray] = []
        centres: list[np.ndarray] = []
        scaling = standardisation(self.origin, self._training_tokens(roundings, centres))
        check_rounding(self.origin, roundings)
        check_outliers(self.origin, centres, scaling.offset)
        if self.options.missing == "mask":
            # The second half of the channels mark missing values, and stay 0 and 1.
            half = form.dim // 2
            scaling.offset[half:], scaling.scale[half:] = 0, 1
        return scaling

    def _training_tokens(
        self, roundings: list[np.ndarray], centres: list[np.ndarray]
    ) -> Iterator[np.ndarray]:
        """Yield the stored tokens of the training rows of each piece, (tokens, dim), which may be larger than memory.

        Append the results of `rounding` and of `centre_and_spread` for each piece to the two lists.
        """
        for piece in self.pieces():
            rows = slice(piece.lo, piece.hi)
            is_training = self._split[rows] == "train"
            stored = self._stored(piece)  # also refuses values of other splits that cannot be stored
            if not is_training.any():
                continue
            is_token = np.arange(stored.shape[1]) < self._lengths[rows][is_training, None]
            tokens = stored[is_training][is_token]
            x = self._rows.x[rows]
            original = x.reshape(*x.shape[:2], -1)[is_training][is_token]
            roundings.append(rounding(original, tokens))
            centres.append(centre_and_spread(tokens))
            yield tokens

    def summary(self) -> str:
        """Return what was read in one line: rows, lengths, classes, and the columns with a role."""
        rows, lengths = self._rows, self._lengths
        shortest, longest = int(lengths.min()), int(lengths.max())
        size = f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
        tokens = "letters" if rows.holds == "letters" else "tokens"
        sequences = f"{len(rows):,} rows of {size} {tokens}"
        if rows.holds == "images":  # each model divides them in its own way
            sequences = f"{len(rows):,} images"
        horizon = self.task.horizon
        if rows.y is None:
            labels = "no labels"
        elif self.task.classes:
            labels = f"{self.task.classes:,} classes"
        elif horizon:
            labels = (
                f"the values up to {horizon:,} steps ahead" if horizon > 1 else "the value 1 step ahead"
            )
        else:
            labels = "targets of a regression"
        if rows.y is not None and self.task.outputs > 1 and not horizon:
            labelled = "token" if self.task.readout_tokens > 1 else "row"
            labels = f"{self.task.outputs:,} labels per {labelled}, {labels}"
        roles = "".join(f", --{flag} {column}" for flag, column in rows.roles.items())
        return f"{self.name}: {sequences}, with {labels}{roles}"

    def notes(self) -> list[str]:
        """Return one line for each choice that a rule made, with the flag that makes another choice."""
        lines = [*self._rows.notes, *self._labels.notes]
        if self.task.labels_each_token and "each" not in self._rows.parameters:
            lines.append("y is as long as x, so it labels every token")
        if self._rows.y is not None and not self.task.classes:
            lines += notes_on_outliers(self._labels.y, self._rows.names, self._rows.label)
        if self._rows.y is None:
            lines.append(f"the rows have no labels, which fit and train need; {WHERE}")
        if self._rows.groups is not None:
            lines.append(f"{len(np.unique(self._rows.groups)):,} groups, each in one split")
        return [f"{self.name}: {line}" for line in [*lines, *self._notes_on_sequences()]]

    def _notes_on_sequences(self) -> list[str]:
        """Return lines on what the sequences hold: texts, symbols or values."""
        symbols, unseen = self._alphabet
        if symbols:
            letters = symbols.removeprefix(UNKNOWN)
            reading = "holds texts of" if are_words(symbols) else f"read as {len(letters)} symbols,"
            lines = [f"x {reading} the letters {shown(letters)}"]
            if unseen:
                lines.append(f"{UNSEEN}, read as unknown: {shown(unseen)}")
            return lines
        if self._reading is None:  # no rule has decided
            return []
        if self._are_symbols:
            why = self._reading.why
            return [f"x read as {self._vocabulary:,} symbols ({why}); pass --values for values"]
        return [f"x read as values ({self._reading.why}); pass --symbols for symbols"]

    @cached_property
    def _rows(self) -> Rows:
        """The rows of the data; options that do not apply to them, and rows without a group, are refused."""
        rows = without_end_spaces(self.origin, open_rows(self.origin, self.options))
        # ``--rate`` applies to numbers only if they are a waveform.
        are_waveforms = self.options.waveform and "waveform" not in UNUSED_BY_KIND[rows.holds]
        applicable = {"rate"} if are_waveforms else set()
        rows.refuse_unused(self.origin, [*(self.options.explicit.keys() - applicable)])
        groups = [] if rows.groups is None else rows.groups.tolist()
        for row, group in enumerate(groups):
            if str(group).strip() in NO_GROUP:
                raise InputError(
                    f"{self.origin}: no group in row {row}", "give every row one, or leave groups out"
                )
        return rows

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        """The shape of the sequences, (rows, tokens) or (rows, tokens, dim); for images, that of their patches."""
        if self._rows.holds == "images":
            return len(self._rows), PATCHES, 3 * PATCH**2
        shape, dtype = self._rows.x.shape, self._rows.x.dtype
        may_have_channels = not self.options.symbols
        has_known_axes = len(shape) == 2 or (len(shape) == 3 and may_have_channels)
        are_numbers = dtype.kind in "uif"  # NumPy's kinds: integers and floats
        if not has_known_axes or 0 in shape or not are_numbers:
            raise InputError(
                f"{self.origin}: x has the shape {shape} and holds {dtype} values",
                "give floats (rows, tokens) or (rows, tokens, dim), or symbols (rows, tokens)",
            )
        if self.options.values and self._rows.holds == "letters":
            raise InputError(f"{self.origin}: x holds texts", "leave out --values")
        return shape

    @cached_property
    def _reading(self) -> Reading | None:
        """Whether a rule reads integers as symbols or as values; None if a flag or the type decides."""
        by_flag = self.options.values or self.options.symbols
        by_type = self._rows.holds in ("letters", "images") or self._rows.x.dtype.kind == "f"
        if by_flag or by_type or len(self._shape) == 3:
            return None
        sampled_rows = min(self._rows.piece_rows, max(1, SAMPLE // self._shape[1]))
        return read_integers(self._rows.x[:sampled_rows], self._lengths[:sampled_rows])

    @cached_property
    def _are_symbols(self) -> bool:
        """Whether the tokens are symbols: letters, or whole numbers by a flag or by the rule of `_reading`."""
        by_rule = self._reading is not None and self._reading.are_names
        are_symbols = self.options.symbols or self._rows.holds == "letters" or by_rule
        if are_symbols and self.options.missing != "refuse":
            raise InputError(
                f"{self.origin}: x holds symbols, which are never missing", "leave out --missing"
            )
        return are_symbols

    @cached_property
    def _labels_per_row(self) -> np.ndarray | None:
        """Number of labels of each row, (rows,), if every token, letter or word has one; None if each row has one."""
        words_have_labels = self._rows.parameters.get("each") == "word"
        if not words_have_labels:
            return self._lengths if self._rows.labels_tokens else None
        # The words of each row are counted by their first letters.
        counts = [
            word_starts(self._rows.x[piece.lo : piece.hi], self._lengths[piece.lo : piece.hi]).sum(axis=1)
            for piece in self.pieces()
        ]
        return np.concatenate(counts)

    @cached_property
    def _labels(self) -> Labels:
        """The labels as the task stores them; missing targets if the rows have none."""
        rows = self._rows
        if rows.y is None:
            return no_labels(len(rows))
        # Values to forecast are numbers, also if all are whole.
        options = replace(self.options, regression=True) if self.options.forecast else self.options
        if not rows.class_names:
            return encode_labels(self.origin, rows.y, options, self._labels_per_row, rows.label)
        # The reader has numbered the classes of spans, and ``class_names`` are their names.
        if options.regression:
            raise InputError(f"{self.origin}: spans have classes, not numbers", "leave out --regression")
        options = replace(options, classes=True)
        labels = encode_labels(self.origin, rows.y, options, self._labels_per_row, rows.label)
        # `encode_labels` has numbered them anew, without those that only skipped rows have; its ``names`` are the
        # reader's numbers, or empty if these are 0, 1, 2 and so on.
        numbers = labels.names or range(labels.classes)
        return replace(labels, names=tuple(rows.class_names[int(number)] for number in numbers))

    @cached_property
    def _split(self) -> np.ndarray:
        """The split of each row, (rows,) of str."""
        return split_rows(self.origin, self._labels, self._rows.split, self._rows.groups)

    @cached_property
    def _group_numbers(self) -> np.ndarray | None:
        """The number of the group of each row, (rows,) of int; None without groups."""
        groups = self._rows.groups
        return None if groups is None else np.unique(groups, return_inverse=True)[1]

    @cached_property
    def _lengths(self) -> np.ndarray:
        """The number of tokens of each row, (rows,) of int32."""
        rows, tokens = self._shape[:2]
        if self._rows.lengths is None:
            return np.full(rows, tokens, np.int32)
        return clean_lengths(self.origin, self._rows.lengths, rows, tokens)

    @cached_property
    def _alphabet(self) -> Alphabet:
        """The letters of texts; none for other data."""
        if self._rows.holds != "letters":
            return Alphabet("", "")
        ranges = [slice(piece.lo, piece.hi) for piece in self.pieces()]
        return alphabet_of(
            (self._rows.x[rows], self._lengths[rows], self._split[rows] == "train") for rows in ranges
        )

    @cached_property
    def _vocabulary(self) -> int:
        """The number of symbols: that of the letters, or one more than the largest number."""
        if self._alphabet.symbols:
            return len(self._alphabet.symbols)
        largest = 0
        for piece in self.pieces():
            x, lengths = self._rows.x[piece.lo : piece.hi], self._lengths[piece.lo : piece.hi]
            is_token = np.arange(x.shape[1]) < lengths[:, None]
            largest = max(largest, int(x.max(initial=0, where=is_token)))
        if largest >= MAX_INTEGER_SYMBOLS:
            raise InputError(
                f"{self.origin}: x holds {largest}, too large for a symbol", "leave out --symbols"
            )
        return largest + 1
