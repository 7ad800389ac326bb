"""Remember a string of bits from a masked copy, add two strings modulo two, and add two numbers modulo a third."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.rows import row_hash
from reservoir.tasks.source import Piece, Source, classes_of, full_lengths, generated_pieces
from reservoir.tasks.task import SPLITS, Split, Task, Tokens, Vectors

# drawn from one generator; part of the tasks, because another number would give other rows
PIECE_ROWS = 1024
# bits of an input: enough that each split has inputs, and few enough to list all inputs
HELD_OUT_BITS = range(6, 21)


@dataclass(frozen=True, kw_only=True)
class _Bits(Source):
    """Common parts of both tasks: rows are drawn in pieces, and sequences are used unchanged."""

    data: Path | None = None  # not used
    n: int  # bits of a string
    patterns: int  # random strings of a row
    token_bits: int  # bits of a token
    train_rows: int = 10_000
    valid_rows: int = 1000
    test_rows: int = 1000
    seed: int = 0

    name: ClassVar[str]
    copies: ClassVar[int] = 0  # strings of a row besides the patterns
    # accuracy of copying the visible input, if it is above that of a constant answer; None otherwise
    floor: ClassVar[float | None] = None
    endless = True

    def __post_init__(self) -> None:
        """Raise `InputError` unless a string has a whole number of tokens."""
        if self.n % self.token_bits:
            raise InputError(
                f"{self.name}: n is {self.n}, not a multiple of token_bits, {self.token_bits}", "change one"
            )

    @property
    def task(self) -> Task:
        """The description of the task; the last string is read out."""
        string_tokens = self.n // self.token_bits
        parameters = {
            # An option that is off is left out, because it is newer than the cache keys of the tasks.
            name: value
            for name, value in vars(self).items()
            if name != "data" and value is not False
        }
        return Task(
            name=self.name,
            form=Vectors(self.token_bits),
            max_tokens=(self.patterns + self.copies) * string_tokens,
            classes=2,
            readout_tokens=string_tokens,
            outputs=self.token_bits,
            floor=self.floor,
            parameters=parameters,
        )

    def pieces(self) -> list[Piece]:
        """Return ranges of rows, each drawn by a separate generator."""
        return generated_pieces((self.train_rows, self.valid_rows, self.test_rows), PIECE_ROWS)

    def read(self, piece: Piece) -> dict[str, Split]:
        """Draw the rows of one piece."""
        draw = np.random.default_rng([self.seed, SPLITS.index(piece.part), piece.lo])
        strings, labels = self._draw(draw, piece.part)
        # `PIECE_ROWS` are always drawn, so that a row does not depend on the piece's size. Bits become tokens.
        rows = piece.hi - piece.lo
        x = strings.reshape(PIECE_ROWS, -1, self.token_bits)[:rows]
        y = labels.reshape(PIECE_ROWS, -1, self.token_bits)[:rows]
        return {piece.part: Split(x=x, y=y.astype(np.int64), lengths=full_lengths(x))}

    def _draw(self, draw: np.random.Generator, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Return strings (rows, strings, n) and labels (rows, n) of `PIECE_ROWS` rows of the split ``part``."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BitMemory(_Bits):
    """Recall one of several bit strings from a copy with some bits masked.

    The input is ``patterns`` strings of ``n`` bits of -1 and +1, ``token_bits`` bits per token, then
    one of the strings with each bit set to 0 with probability ``mask``. The labels of its tokens are
    the original bits. The defaults are those of Lu et al. (2021): 120 tokens of 50 bits, the last 20
    read out. A model that copies the visible bits and guesses the others gets ``1 - mask / 2`` of all
    bits right, 75% by default.
    """

    n: int = 1000
    patterns: int = 5
    token_bits: int = 50
    mask: float = 0.5

    name = "bit-memory"
    copies = 1

    def __post_init__(self) -> None:
        """Raise `InputError` for parameters that contradict each other, or for a mask that is no probability."""
        super().__post_init__()
        if not 0 <= self.mask <= 1:
            raise InputError(f"bit-memory: mask is {self.mask}", "give a probability from 0 to 1")

    @property
    def floor(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Accuracy of copying the visible bits and guessing the others."""
        return 1 - self.mask / 2

    def _draw(self, draw: np.random.Generator, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Return strings (rows, patterns + 1, n), the last one masked by zeros, and its original bits (rows, n)."""
        strings = 2 * draw.integers(0, 2, (PIECE_ROWS, self.patterns, self.n), dtype=np.int8) - 1
        # One string of each row is recalled; its copy has zeros where bits are masked.
        recalled = strings[np.arange(PIECE_ROWS), draw.integers(0, self.patterns, PIECE_ROWS)]
        is_masked = draw.random((PIECE_ROWS, self.n), dtype=np.float32) < self.mask
        copy = np.where(is_masked, 0, recalled).astype(np.int8)
        return np.concatenate([strings, copy[:, None]], axis=1), recalled > 0


@dataclass(frozen=True, kw_only=True)
class BitXor(_Bits):
    """Add bit strings modulo two, bit by bit.

    The input is ``patterns`` strings of ``n`` bits, ``token_bits`` bits per token; the labels of the
    tokens of the last string are the sums. The defaults are those of Lu et al. (2021): 10 tokens of
    one bit, the last 5 read out. There are only ``2 ** (n * patterns)`` inputs (1,024), so the splits
    share inputs, and the test shows only whether the function can be fitted. With ``held_out``, a
    hash of the input decides its split (80/10/10%), and the test shows whether the readout
    generalises.
    """

    n: int = 5
    patterns: int = 2
    token_bits: int = 1
    held_out: bool = False

    name = "bit-xor"

    def __post_init__(self) -> None:
        """Raise `InputError` for parameters that contradict each other, or too few or too many bits to hold out."""
        super().__post_init__()
        if self.held_out and self.n * self.patterns not in HELD_OUT_BITS:
            raise InputError("bit-xor: held_out needs n * patterns from 6 to 20", "leave it out")

    def _draw(self, draw: np.random.Generator, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Return random bit strings (rows, patterns, n) of the split ``part``, and the XOR of each row's, (rows, n)."""
        shape = (PIECE_ROWS, self.patterns, self.n)
        if self.held_out:
            # Inputs are the numbers below 2 ** bits. A hash of each, as a share of all hashes, decides its split.
            input_bits = self.n * self.patterns
            inputs = np.arange(2**input_bits)
            share = row_hash(inputs) / 2.0**64
            low, high = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}[part]
            inputs_of_split = inputs[(share >= low) & (share < high)]
            drawn = draw.choice(inputs_of_split, PIECE_ROWS)
            # The binary digits of each number, (rows, bits), are its strings, one after the other.
            bits = drawn[:, None] >> np.arange(input_bits) & 1
            strings = bits.astype(np.int8).reshape(shape)
        else:
            strings = draw.integers(0, 2, shape, dtype=np.int8)
        return strings, strings.sum(axis=1) % 2


@dataclass(frozen=True, kw_only=True)
class ModularAddition(Source):
    """Add two numbers modulo ``modulus``, as in Zhong and Andreas 2024.

    A row is three symbols: two numbers from 0 to ``modulus - 1`` and an equals sign; the label is the
    sum. Each pair of numbers is a row. A hash of the unordered pair chooses the split (90/5/5%), so
    no pair of the test rows is in the training rows, in either order. Chance accuracy is ``1 /
    modulus``.
    """

    data: Path | None = None  # not used
    modulus: int = 199

    def __post_init__(self) -> None:
        """Raise `InputError` unless the modulus is between 2 and 1,000: all pairs of numbers are rows."""
        if not 2 <= self.modulus <= 1000:
            raise InputError(f"modular-addition: modulus is {self.modulus}", "give a number from 2 to 1000")

    @property
    def task(self) -> Task:
        """The description of the task."""
        return Task(
            name="modular-addition",
            form=Tokens(self.modulus + 1),  # the numbers and the equals sign
            max_tokens=3,
            classes=self.modulus,
            parameters={"modulus": self.modulus},
        )

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return all pairs by split."""
        pairs = np.stack(np.divmod(np.arange(self.modulus**2), self.modulus), axis=1)  # (rows, 2)
        # The hash, as a share of all hashes, is that of the unordered pair, so that both orders are in the same split.
        low, high = pairs.min(axis=1), pairs.max(axis=1)
        share = row_hash(low * self.modulus + high) / 2.0**64
        split_number = np.digitize(share, [0.9, 0.95])  # 0 for train, 1 for valid, 2 for test
        # The third symbol, the modulus itself, is the equals sign.
        x = np.full((len(pairs), 3), self.modulus, np.int16)
        x[:, :2] = pairs
        sums = pairs.sum(axis=1) % self.modulus
        rows = Split(x=x, y=classes_of(sums), lengths=full_lengths(x))
        return {name: rows.take(split_number == number) for number, name in enumerate(SPLITS)}
