"""Your own data as the source of a task."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.option_fields import as_group
from reservoir.options import OwnDataOptions
from reservoir.tasks import TASKS, check_parameter, task_named
from reservoir.tasks.images.mnist import read_idx
from reservoir.tasks.images.pictures import SIDE
from reservoir.tasks.source import Piece, Source, clean_symbols
from reservoir.tasks.task import Scaling, Split, Task, Tokens, Vectors
from reservoir.tasks.words import UNKNOWN, are_words, shown, texts_of
from reservoir_pipelines.data.arrays import Arrays, Skipped
from reservoir_pipelines.data.columns import named_kind
from reservoir_pipelines.data.files import open_arrays, source_files
from reservoir_pipelines.data.hub import PREFIX, is_hub
from reservoir_pipelines.data.images import Images
from reservoir_pipelines.data.labels import (
    MAX_SYMBOLS,
    SAMPLE,
    Labels,
    Reading,
    encode_labels,
    read_integers,
    split_rows,
)
from reservoir_pipelines.data.tables import OR_FILL
from reservoir_pipelines.data.texts import UNSEEN, alphabet_of
from reservoir_pipelines.data.values import (
    as_values,
    check_rounding,
    clean_lengths,
    rounding,
    standardisation,
)

MaybeArray = np.ndarray | None


class NewRows(NamedTuple):
    """New sequences (for images, paths), with None for what the file lacks; ``skipped`` has those that are not here.

    ``ids`` are those of the file, else row numbers from 0, among which skipped rows count.
    """

    x: np.ndarray
    lengths: MaybeArray
    ids: np.ndarray
    y: MaybeArray
    groups: MaybeArray
    skipped: Skipped


def open_source(name: str, *, data: Path | None = None, **parameters: Any) -> Source:
    """Return the source of a named task, or of the data of a path or of the hub.

    ``parameters`` are the parameters of the named task, or the fields of `OwnDataOptions`; ``data`` is the
    folder of the files of named tasks.
    """
    is_path = Path(name).suffix or "/" in name or Path(name).is_dir() or name.startswith(PREFIX)
    if name in TASKS:
        return task_named(name, data=data, **parameters)
    if not is_path:
        tasks = f"give one of {', '.join(TASKS)}, or the path of your own data"
        raise InputError(f"no task {name!r}", f"{tasks}{nearest(name, TASKS)}")
    for parameter in parameters:
        check_parameter(name, parameter, [field.name for field in fields(OwnDataOptions)])
    return OwnData(name, OwnDataOptions(**parameters))


def own_name(origin: str) -> str:
    """Return the name of your own data as a task: the file's name without special characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(origin).name).lstrip("._-") or "data"


@dataclass(frozen=True)
class OwnData(Source):
    """A task from the arrays ``x``, ``y`` and optionally ``lengths``, ``split`` and ``groups`` of a file or folder.

    ``docs/guides/data.md`` describes the arrays. ``y`` (rows, readout tokens, outputs) labels each of
    the last tokens.
    """

    origin: str  # a path, or the name of a dataset of the hub
    asked: OwnDataOptions

    def __reduce__(self) -> tuple[type, tuple]:
        """Pickle the settings without the arrays: another process reads the files itself."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def task(self) -> Task:
        """The description of the task, with the shapes of the data."""
        # New data is read with the given options and the chosen columns.
        parameters = {} if self._units is None else {"each": "token"}
        parameters |= self._columns.chosen | self.asked.explicit
        if self.asked.labels:  # paths are not part of the cache key
            parameters["labels"] = Path(self.asked.labels).name
        if self._symbols:
            parameters.pop("standardise", None)
        channels = (1 if len(self._shape) == 2 else self._shape[2]) * (
            2 if self.asked.missing == "mask" else 1
        )
        return Task(
            name=own_name(self.origin),
            form=Tokens(self._vocabulary) if self._symbols else Vectors(channels),
            max_tokens=self._shape[1],
            classes=self._labels.classes,
            readout_tokens=self._labels.y.shape[1],
            outputs=self._labels.y.shape[2],
            parameters=parameters,
            labels=self._labels.names,
            alphabet=self._alphabet[0],
            pictures=SIDE if isinstance(self._columns, Images) else 0,
        )

    def files(self) -> list[Path]:
        """Return the files of a path, or of a dataset of the hub."""
        files = [] if is_hub(self.origin) else source_files(Path(self.origin), self.asked.labels)
        return [*files, *self._columns.files] if not files or named_kind(files[0]) else files

    def pieces(self) -> list[Piece]:
        """Return ranges of rows."""
        rows, step = self._shape[0], self._columns.piece_rows
        return [Piece("rows", lo, min(lo + step, rows)) for lo in range(0, rows, step)]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return a range of rows, divided into its splits."""
        rows, groups = slice(piece.lo, piece.hi), self._group_numbers
        x, lengths = self._columns.read("x", piece.lo, piece.hi), self._lengths[rows]
        if self._symbols and not self._alphabet[0]:
            x = clean_symbols(self.origin, x, lengths, self._vocabulary, piece.lo)
        elif not (self._symbols or self.task.pictures):
            x = self._as_values(x, lengths, piece)
        whole = Split(
            x=x,
            y=self._labels.y[rows],
            lengths=lengths,
            groups=None if groups is None else groups[rows],
            ids=self._columns.ids[rows],
        )
        split = self._split[rows]
        return {name: whole.take(split == name) for name in sorted(set(split.tolist()))}

    def scaling(self) -> Scaling | None:
        """Return the standardisation of the training split, for images a scaling to -2 ... 2, or None for symbols."""
        form = self.task.form
        if isinstance(form, Tokens):
            return None
        if self.task.pictures:
            return Scaling.constant(1 / 64, form.dim, offset=127.5)
        if not self.asked.standardise or self.asked.waveform:
            return Scaling.constant(1.0, form.dim)

        moved: list[np.ndarray] = []

        def training_values() -> Iterator[np.ndarray]:
            for piece in self.pieces():
                rows = slice(piece.lo, piece.hi)
                given = self._columns.read("x", piece.lo, piece.hi)
                lengths = self._lengths[rows]
                train = self._split[rows] == "train"
                x = self._as_values(given, lengths, piece)
                if train.any():
                    real = np.arange(x.shape[1]) < lengths[train, None]
                    moved.append(rounding(given.reshape(*x.shape[:2], -1)[train][real], x[train][real]))
                    yield x[train][real]

        found = standardisation(self.origin, training_values())
        check_rounding(self.origin, moved)
        if self.asked.missing == "mask":  # the channels that mark missing values stay 0 and 1
            half = form.dim // 2
            found.offset[half:], found.scale[half:] = 0, 1
        return found

    def notes(self) -> list[str]:
        """Return one line for each choice that a rule made."""
        lines = [*self._columns.notes, *self._labels.notes]
        alphabet, others = self._alphabet
        if self._units is not None and "each" not in self._columns.chosen:
            lines.append("y is as long as x, so it labels every token")
        if (groups := self._column("groups")) is not None:
            lines.append(f"{len(np.unique(groups)):,} groups, each in one split")
        if alphabet:
            letters = alphabet.removeprefix(UNKNOWN)
            read = "x holds texts of" if are_words(alphabet) else f"x read as {len(letters)} symbols,"
            lines.append(f"{read} the letters {shown(letters)}")
            lines += [f"{UNSEEN}, read as unknown: {shown(others)}"] if others else []
        elif self._reading and self._symbols:
            lines.append(
                f"x read as {self._vocabulary:,} symbols ({self._reading.why}); pass --values for values"
            )
        elif self._reading:
            lines.append(f"x read as values ({self._reading.why}); pass --symbols for symbols")
        return [f"{own_name(self.origin)}: {line}" for line in lines]

    @cached_property
    def _columns(self) -> Arrays:
        columns = open_arrays(self.origin, self.asked)
        # A series of values may be a waveform, too.
        samples = {"rate"} if self.asked.waveform and "waveform" not in columns.unused_options else set()
        _refuse_unused(self.origin, columns, self.asked.explicit.keys() - samples)
        _check_rows(self.origin, columns, "x", "y")
        if "groups" not in columns.shapes:
            return columns
        for row, group in enumerate(columns.read("groups", 0, columns.shapes["x"][0]).tolist()):
            if str(group).strip() in {"", "nan", "None"}:
                raise InputError(
                    f"{self.origin}: no group in row {row}", "give every row one, or leave groups out"
                )
        return columns

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        shape, dtype = self._columns.shapes["x"], self._columns.dtypes["x"]
        if (
            len(shape) not in ({2} if self.asked.symbols else {2, 3})
            or 0 in shape
            or dtype.kind not in "uif"
        ):
            raise InputError(
                f"{self.origin}: x has the shape {shape} and holds {dtype} values",
                "give floats (rows, tokens) or (rows, tokens, dim), or symbols (rows, tokens)",
            )
        if self.asked.values and self._columns.letters:
            raise InputError(f"{self.origin}: x holds texts", "leave out --values")
        return shape

    @cached_property
    def _reading(self) -> Reading | None:
        """Whether a rule reads integers as symbols or as values; None if a flag or the type decides."""
        asked = self.asked.values or self.asked.symbols or self._columns.letters
        if asked or len(self._shape) == 3 or self._columns.dtypes["x"].kind == "f":
            return None
        piece = min(self._columns.piece_rows, max(1, SAMPLE // self._shape[1]))
        return read_integers(self._columns.read("x", 0, min(piece, self._shape[0])), self._lengths[:piece])

    @cached_property
    def _symbols(self) -> bool:
        names = self.asked.symbols or self._columns.letters or bool(self._reading and self._reading.names)
        if names and self.asked.missing != "refuse":
            raise InputError(
                f"{self.origin}: x holds symbols, which are never missing", "leave out --missing"
            )
        return names

    @cached_property
    def _units(self) -> np.ndarray | None:
        """Number of labels of each row, if every token has one."""
        if "each" in self._columns.chosen:
            return self._lengths
        y, x = self._columns.shapes["y"], self._shape
        # y0, y1 ... of a table are several outputs.
        if isinstance(self._columns, Images) or "columns" in self._columns.chosen:
            return None
        return self._lengths if len(y) > 1 and y[:2] == x[:2] and x[1] > 1 else None

    @cached_property
    def _labels(self) -> Labels:
        y = np.asarray(self._column("y"))
        return encode_labels(self.origin, y, self.asked, self._units, self._columns.label)

    @cached_property
    def _split(self) -> np.ndarray:
        return split_rows(self.origin, self._labels, self._column("split"), self._column("groups"))

    @cached_property
    def _group_numbers(self) -> np.ndarray | None:
        groups = self._column("groups")
        return None if groups is None else np.unique(groups, return_inverse=True)[1]

    @cached_property
    def _lengths(self) -> np.ndarray:
        rows, tokens = self._shape[:2]
        given = self._column("lengths")
        return (
            np.full(rows, tokens, np.int32)
            if given is None
            else clean_lengths(self.origin, given, rows, tokens)
        )

    @cached_property
    def _alphabet(self) -> tuple[str, str]:
        """The alphabet of texts, and the letters that no training row has."""
        if not self._columns.letters:
            return "", ""
        return alphabet_of(
            (
                self._columns.read("x", p.lo, p.hi),
                self._lengths[p.lo : p.hi],
                self._split[p.lo : p.hi] == "train",
            )
            for p in self.pieces()
        )

    @cached_property
    def _vocabulary(self) -> int:
        if self._alphabet[0]:
            return len(self._alphabet[0])
        largest = 0
        for piece in self.pieces():
            x = self._columns.read("x", piece.lo, piece.hi)
            real = np.arange(x.shape[1]) < self._lengths[piece.lo : piece.hi, None]
            largest = max(largest, int(x.max(initial=0, where=real)))
        if largest >= MAX_SYMBOLS:
            raise InputError(
                f"{self.origin}: x holds {largest}, too large for a symbol", "leave out --symbols"
            )
        return largest + 1

    def _column(self, name: str) -> np.ndarray | None:
        return self._columns.read(name, 0, self._shape[0]) if name in self._columns.shapes else None

    def _as_values(self, x: np.ndarray, lengths: np.ndarray, piece: Piece) -> np.ndarray:
        return as_values(
            self.origin, x.reshape(*x.shape[:2], -1), lengths, self.asked.missing, piece.lo, OR_FILL
        )


def _refuse_unused(where: str, columns: Arrays, given: Collection[str]) -> None:
    for name in columns.unused_options:
        if name in given:
            raise InputError(f"{where}: --{name} does not apply to data of this kind", "leave it out")


def _check_rows(where: str, columns: Arrays, *needed: str) -> None:
    """Refuse data without a needed array, or with arrays that do not have one entry per row."""
    for name in needed:
        if name not in columns.shapes:
            raise InputError(
                f"{where}: no array {name!r}", "call the sequences x and the labels y, not X or Y"
            )
    x = columns.shapes["x"]
    for name, shape in columns.shapes.items():
        if not shape or shape[:1] != x[:1] or (name not in {"x", "y"} and len(shape) != 1):
            raise InputError(
                f"{where}: x has the shape {x} and {name} {shape}", f"give one entry of {name} per row of x"
            )


def read_new(path: Path, task: Task, labels: str | None = None) -> NewRows:
    """Return the sequences of a file; those that cannot be read are skipped, unless none can be read."""
    if path.name.removesuffix(".gz").endswith(("-ubyte", ".idx")) and path.is_file() and not labels:
        images = read_idx(path, (28, 28))
        return NewRows(images, None, np.arange(len(images)), None, None, {})
    parameters = {**task.parameters, "labels": labels, "skip_bad_rows": True}
    # they name columns of another table, or are patterns of headers
    if labels and "labels" not in task.parameters:
        parameters |= {"label": None, "id": None, "group": None}
    try:
        columns = open_arrays(str(path), as_group(parameters, OwnDataOptions), task)
    except InputError as error:  # flags of `extract` do not apply to new data
        raise InputError(str(error).partition(", or pass --")[0]) from None
    _refuse_unused(str(path), columns, {"labels"} if labels else set())
    _check_rows(str(path), columns, "x")
    rows = columns.shapes["x"][0]
    images = isinstance(columns, Images)
    if bool(task.pictures) != images:
        found, read = ("images", "other data") if images else ("no images", "images")
        raise InputError(f"{path}: {found}, but the readout was fitted on {read}", "give data of this kind")
    x = np.array(columns.files, object) if images else columns.read("x", 0, rows)
    given = ("lengths", "y", "groups")
    lengths, y, groups = (
        columns.read(name, 0, rows) if columns.shapes.get(name) else None for name in given
    )
    if columns.letters:
        assert lengths is not None
        x, lengths = np.array(texts_of(x, lengths)), None
    elif isinstance(task.form, Tokens) and x.dtype.kind == "f" and x.ndim == 2 and (x == np.rint(x)).all():
        x = x.astype(np.int64)
    return NewRows(x, lengths, columns.ids, y, groups, columns.skipped)
