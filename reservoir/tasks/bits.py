"""Bit tasks: remember a string of bits from a masked copy, and add two strings modulo two."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.rows import row_hash
from reservoir.tasks.source import Piece, Source, full_lengths, generated_pieces
from reservoir.tasks.task import SPLITS, Scaling, Split, Task, Vectors

PIECE_ROWS = 1024
"""Rows drawn from one generator; part of the tasks' definition, because another number would give other rows."""

MAX_HELD_OUT = (6, 20)  # bits of an input: enough that each split has inputs, and few enough to list all inputs


@dataclass(frozen=True, kw_only=True)
class _Bits(Source):
    """Common parts of both tasks: rows are drawn in pieces, and sequences are used unchanged."""

    data: Path | None = None  # not used
    n: int
    patterns: int
    token_bits: int
    train_rows: int = 10_000
    valid_rows: int = 1000
    test_rows: int = 1000
    seed: int = 0

    name: ClassVar[str]
    endless = True

    def __post_init__(self) -> None:
        counts = (self.n, self.patterns, self.token_bits, self.train_rows, self.valid_rows, self.test_rows)
        if min(counts) < 1:
            raise InputError(f"{self.name}: n, patterns, token_bits and rows must be above 0; increase them")
        if self.n % self.token_bits:
            raise InputError(f"{self.name}: n is {self.n}, not a multiple of token_bits, {self.token_bits}; change one")

    def pieces(self) -> list[Piece]:
        """Return ranges of rows, each drawn by a separate generator."""
        return generated_pieces((self.train_rows, self.valid_rows, self.test_rows), PIECE_ROWS)

    def scaling(self) -> Scaling:
        """Return the identity."""
        return Scaling.constant(1.0, self.token_bits)

    def _task(self, strings: int, floor: float | None = None) -> Task:
        """Return the description of a task with ``strings`` bit strings, the last of which is read out."""
        per_string = self.n // self.token_bits
        return Task(
            name=self.name,
            form=Vectors(self.token_bits),
            max_tokens=strings * per_string,
            classes=2,
            readout_tokens=per_string,
            outputs=self.token_bits,
            floor=floor,
            # An option that is off is left out, because it is newer than the keys of the tasks.
            parameters={name: value for name, value in vars(self).items() if name != "data" and value is not False},
        )


@dataclass(frozen=True, kw_only=True)
class BitMemory(_Bits):
    """Recall one of several bit strings from a copy with some bits masked.

    The input is ``patterns`` strings of ``n`` bits of -1 and +1, ``token_bits`` bits per token, then one of the strings
    with each bit set to 0 with probability ``mask``. The labels of the last ``n / token_bits`` tokens are their
    original bits. The defaults are those of Lu et al. (2021): 120 tokens of 50 bits, the last 20 read out. A smaller
    data set is the beginning of a larger one. A model that copies the visible bits and guesses the others gets
    ``1 - mask / 2`` of all bits right, 75% by default.
    """

    n: int = 1000
    patterns: int = 5
    token_bits: int = 50
    mask: float = 0.5

    name = "bit-memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mask <= 1:
            raise InputError(f"bit-memory: mask is {self.mask}; give a probability from 0 to 1")

    @property
    def task(self) -> Task:
        """The description of the task."""
        return self._task(self.patterns + 1, floor=1 - self.mask / 2)

    def read(self, piece: Piece) -> dict[str, Split]:
        """Draw the rows of one piece."""
        draw = np.random.default_rng([self.seed, SPLITS.index(piece.part), piece.lo])
        strings = 2 * draw.integers(0, 2, (PIECE_ROWS, self.patterns, self.n), dtype=np.int8) - 1
        asked = strings[np.arange(PIECE_ROWS), draw.integers(0, self.patterns, PIECE_ROWS)]
        shown = np.where(draw.random((PIECE_ROWS, self.n), dtype=np.float32) < self.mask, 0, asked).astype(np.int8)
        x = np.concatenate([strings, shown[:, None]], axis=1).reshape(PIECE_ROWS, -1, self.token_bits)
        y = (asked.reshape(PIECE_ROWS, -1, self.token_bits) > 0).astype(np.int64)
        return _first_rows(piece, x, y)


@dataclass(frozen=True, kw_only=True)
class BitXor(_Bits):
    """Add bit strings modulo two, bit by bit.

    The input is ``patterns`` strings of ``n`` bits, ``token_bits`` bits per token; the labels of the tokens
    of the last string are the sums. The defaults are those of Lu et al. (2021): 10 tokens of one bit, the last 5 read
    out. There are only ``2 ** (n * patterns)`` inputs (1,024), so the splits share inputs, and the test shows only
    whether the function can be fitted. With ``held_out`` (6 to 20 bits in all) a hash of the input decides its split, a
    tenth each for valid and test, and the test shows whether the readout generalises. A smaller data set is the
    beginning of a larger one.
    """

    n: int = 5
    patterns: int = 2
    token_bits: int = 1
    held_out: bool = False

    name = "bit-xor"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.held_out and not MAX_HELD_OUT[0] <= self.n * self.patterns <= MAX_HELD_OUT[1]:
            raise InputError("bit-xor: held_out needs n * patterns from {} to {}; leave it out".format(*MAX_HELD_OUT))

    @property
    def task(self) -> Task:
        """The description of the task."""
        return self._task(self.patterns)

    def read(self, piece: Piece) -> dict[str, Split]:
        """Draw the rows of one piece."""
        shape = (PIECE_ROWS, self.patterns, self.n)
        draw = np.random.default_rng([self.seed, SPLITS.index(piece.part), piece.lo])
        if self.held_out:  # a hash divides the inputs 80/10/10
            inputs = np.arange(2 ** (self.n * self.patterns))
            share = row_hash(inputs) / 2.0**64
            low, high = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}[piece.part]
            inputs = draw.choice(inputs[(share >= low) & (share < high)], PIECE_ROWS)
            strings = (inputs[:, None] >> np.arange(self.n * self.patterns) & 1).astype(np.int8).reshape(shape)
        else:
            strings = draw.integers(0, 2, shape, dtype=np.int8)
        y = (strings.sum(axis=1, dtype=np.int64) % 2).reshape(PIECE_ROWS, -1, self.token_bits)
        return _first_rows(piece, strings.reshape(PIECE_ROWS, -1, self.token_bits), y)


def _first_rows(piece: Piece, x: np.ndarray, y: np.ndarray) -> dict[str, Split]:
    """Return the first rows drawn; `PIECE_ROWS` are always drawn, so that a row does not depend on the piece's size."""
    rows = piece.hi - piece.lo
    return {piece.part: Split(x=x[:rows], y=y[:rows], lengths=full_lengths(x[:rows]))}
