"""The rows that every reader of data returns: one sequence each, with labels, groups, names and splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from reservoir.errors import InputError
from reservoir.size_limits import check_padding

COLUMN_FLAGS = ("label", "id", "time", "group", "text", "drop", "labels")
"""The options that name columns of a table, or the table of labels."""

UNUSED = {
    "numbers": ("rate",),
    "letters": ("rate", "waveform"),
    "images": ("values", "symbols", "missing", "standardise", "rate", "waveform"),
    "sounds": (),
}
"""The options that do not apply, by what the sequences hold."""

Skipped = dict[int, tuple[str | int | None, str]]
"""The rows of a source that cannot be read, by their numbers: the id, if rows have ids, and the reason."""

EVERY_ROW = 2**62  # piece size of sequences in memory


class Sequences(Protocol):
    """An array of sequences, in memory or in files, of which ranges of rows are read: ``x[low:high]``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        ...

    @property
    def dtype(self) -> Any:
        """The type of its values."""
        ...

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        """Read a range of rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a file, a folder or a dataset; an optional array is None if the source has no such column.

    Parameters
    ----------
    x : Sequences
        (rows, tokens) or (rows, tokens, dim) of numbers, zero after each row's end; (rows, tokens) of code points of
        letters; or (rows,) of the bytes of image files.
    lengths : array (rows,) of int, optional
        The number of real tokens of each row; by default all tokens are real.
    y : array (rows, ...), optional
        Labels, as the source has them.
    groups, split, ids : array (rows,), optional
        The group of each row, its split, and what names it; by default its number.
    holds : str
        What ``x`` holds.
    piece_rows : int
        The number of rows that fit into memory at a time.
    files : tuple of Path
        The files that were read in addition to the named one.
    notes : tuple of str
        How the source was read, one line each.
    roles : mapping of str to str
        The columns of a table by the option that names them, such as ``{"label": "class"}``.
    skipped : dict
        The rows that could not be read, which are not in the arrays.
    parameters : mapping
        Choices that the rules made, which are needed to read new rows in the same way.
    label : str
        What messages call the labels.
    unused : tuple of str
        Options that do not apply to the format, besides those of `UNUSED`.
    """

    x: Sequences
    lengths: np.ndarray | None = None
    y: np.ndarray | None = None
    groups: np.ndarray | None = None
    ids: np.ndarray | None = None
    split: np.ndarray | None = None
    holds: Literal["numbers", "letters", "images", "sounds"] = "numbers"
    piece_rows: int = EVERY_ROW
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    label: str = "y"
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def names(self) -> np.ndarray:
        """What names each row, (rows,): texts or int64 of ``ids``, else the row's number in the source.

        The numbers are from 0, and rows that are skipped count, too.
        """
        if self.ids is None:
            return np.setdiff1d(np.arange(len(self) + len(self.skipped)), [*self.skipped])
        whole = self.ids.dtype.kind in "iu" and np.can_cast(self.ids.dtype, np.int64)
        return self.ids.astype(np.int64 if whole else str)

    def refuse_unused(self, where: str, options: Sequence[str]) -> None:
        """Refuse options that do not apply to such data."""
        for name in (*UNUSED[self.holds], *self.unused):
            if name in options:
                raise InputError(f"{where}: --{name} does not apply to data of this kind", "leave it out")


def padded(where: str, sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences (tokens, ...) of several lengths as one array with zeros at the ends, and their lengths."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    kind = np.result_type(*sequences)
    check_padding(where, lengths, kind.itemsize)
    x = np.zeros((len(sequences), lengths.max(), *sequences[0].shape[1:]), kind)
    for row, sequence in enumerate(sequences):
        x[row, : len(sequence)] = sequence
    return x, lengths
