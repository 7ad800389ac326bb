"""ListOps: the value of a nested expression, generated or from Long Range Arena's files.

An expression is a digit, or an operator with 2 or more expressions and a closing bracket: ``[MAX 4
[MIN 2 3 ] 0 ]``. The operators are the minimum, the maximum, the median (truncated), and ``SM``, the
sum modulo 10. The language and the generator's probabilities are those of Nangia and Bowman (2018),
as Long Range Arena (Tay et al. 2021) uses them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.source import (
    Piece,
    Source,
    classes_of,
    find_file,
    generated_pieces,
    padded,
    read_texts,
)
from reservoir.tasks.task import SPLITS, Split, Task, Tokens

OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda numbers: int(median(numbers)),
    "[SM": lambda numbers: sum(numbers) % 10,
}
SYMBOLS = ("<pad>", *"0123456789", *OPERATIONS, "]")  # the vocabulary, which never changes
DIGIT = 1  # the first digit in `SYMBOLS`
OPERATOR = 11  # the first operator
CLOSE = 15  # the closing bracket
OPERATOR_SHARE = 0.25  # probability that a node above the deepest level is an operator; else it is a digit
_IDS = {symbol: number for number, symbol in enumerate(SYMBOLS) if number}
_BYTES = [bytes([number]) for number in range(len(SYMBOLS))]


def parse(text: str) -> tuple[bytes, int]:
    """Return the symbols of an expression, without parentheses, and its value, or raise `ValueError`."""
    # Long Range Arena puts parentheses around every two parts, ( ( ( [MAX 2 ) 3 ) ] ), which repeat the brackets.
    words = text.replace("(", " ").replace(")", " ").split()
    if unknown := next((word for word in words if word not in _IDS), None):
        raise ValueError(f"{unknown!r} is not a symbol of ListOps; use {' '.join(_IDS)} and parentheses")
    symbols = bytes(map(_IDS.__getitem__, words))
    value = evaluate(symbols)
    if value is None:
        raise ValueError(f"the brackets of {text[:60]!r} do not balance")
    return symbols, value


def evaluate(symbols: bytes) -> int | None:
    """Return the value of an expression, or None if its brackets do not balance."""
    # The arguments so far of each operator that is open, which comes first; the outermost level has no operator.
    levels: list[list[int]] = [[0]]
    for symbol in symbols:
        if symbol < OPERATOR:
            levels[-1].append(symbol - DIGIT)
        elif symbol < CLOSE:
            levels.append([symbol])
        else:
            operator, *arguments = levels.pop()
            if not levels or not arguments:
                return None
            levels[-1].append(OPERATIONS[SYMBOLS[operator]](arguments))
    return levels[0][1] if len(levels) == 1 and len(levels[0]) == 2 else None


def random_expressions(
    draw: np.random.Generator, roots: int, depth: int, arguments: int, shortest: int, longest: int
) -> list[bytes]:
    """Draw ``roots`` trees, and return those of ``shortest`` to ``longest`` symbols."""
    levels, length = _grow(draw, roots, depth, arguments, longest)
    fits = (length >= shortest) & (length <= longest)
    # From the deepest level up, the text of a node is its symbol, the texts of its arguments, and a bracket.
    parts: list[bytes] = []  # text of each node of the level below whose tree fits
    places: list[int] = []  # the parent of each of these nodes
    for tree, symbol, parent in reversed(levels):
        inside = [b""] * len(tree)
        for place, part in zip(places, parts, strict=True):
            inside[place] += part
        nodes = np.flatnonzero(fits[tree])
        parts = [
            _BYTES[number] + inside[node] + _BYTES[CLOSE] if number >= OPERATOR else _BYTES[number]
            for node, number in zip(nodes.tolist(), symbol[nodes].tolist(), strict=True)
        ]
        places = parent[nodes].tolist()
    return parts


def _grow(
    draw: np.random.Generator, roots: int, depth: int, arguments: int, longest: int
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], np.ndarray]:
    """Return per level each node's tree, symbol and parent (in the level above), and the length of each tree.

    ``arguments`` is the largest number of arguments of an operator; a tree of more than ``longest`` symbols is not
    completed, and its length is ``longest + 1``.
    """
    length = np.zeros(roots, np.int64)
    # Tree and parent of each node of the level that is drawn next; a root has no parent.
    tree = np.arange(roots)
    parent = np.zeros(roots, np.int64)
    levels = []
    for level in range(1, depth + 1):
        # A root is an operator, because a single digit is never long enough. The deepest level has digits only.
        share_below_root = OPERATOR_SHARE if level < depth else 0.0
        share = 1.0 if level == 1 else share_below_root
        is_operator = draw.random(len(tree), dtype=np.float32) < share
        symbol = np.where(
            is_operator,
            draw.integers(OPERATOR, CLOSE, len(tree)),
            draw.integers(DIGIT, OPERATOR, len(tree)),
        ).astype(np.uint8)
        # An operator adds two symbols, itself and its closing bracket.
        length += np.bincount(tree, 1 + is_operator, roots).astype(np.int64)
        levels.append((tree, symbol, parent))
        operators = np.flatnonzero(is_operator)
        argument_counts = draw.integers(2, arguments + 1, len(operators))
        # The length includes symbols that must still follow, so a tree is dropped once it is certain to be too long.
        may_fit = length + np.bincount(tree[operators], argument_counts, roots) <= longest
        length[~may_fit] = longest + 1
        # The next level has the arguments of the operators whose trees go on.
        goes_on = may_fit[tree[operators]]
        parent = np.repeat(operators[goes_on], argument_counts[goes_on])
        tree = tree[parent]
        if not len(tree):
            break
    return levels, length


# drawn from one generator; part of the task, because another number would give other rows
PIECE_ROWS = 4096
MAX_LINE = 2**20  # letters of a line that are read; the longest of Long Range Arena have about 20,000
ROOTS = 2048  # trees grown at a time; more of them do not fit the processor's cache and are slower
MAX_FRUITLESS = 100  # draws of `ROOTS` trees without a new expression, after which hardly any others exist
# symbols of expressions that are not compared: a million rows have equal ones with probability 1e-10
NEVER_TWICE = 64

# The folder of Long Range Arena's archive, unpacked once or twice, or that of ListOps alone.
RELEASE = "lra_release/listops-1000"
FOLDERS = ("", "listops", "listops-1000", RELEASE, f"lra_release/{RELEASE}")
FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}


@dataclass(frozen=True, kw_only=True)
class ListOps(Source):
    """Evaluate expressions, of Long Range Arena's files if the data folder has them, else generated; ten classes."""

    data: Path | None = None
    source: str = "auto"  # auto, files or generated
    max_tokens: int = 512  # sequences of the files are cut to this length
    min_length: int | None = None  # symbols of a generated expression; the defaults are `default_lengths`
    max_length: int | None = None
    train_rows: int = 96_000  # as many as Long Range Arena has
    valid_rows: int = 2000
    test_rows: int = 2000
    depth: int = 10  # maximum number of levels
    arguments: int = 10  # maximum number of arguments of an operator
    seed: int = 0  # seed of the generated rows, which are all different

    raw = "texts like '[MAX 2 3 ]', or "
    vocabulary: ClassVar[int] = CLOSE + 1
    default_lengths: ClassVar[tuple[int, int]] = (100, 512)
    splits: ClassVar[tuple[str, ...]] = SPLITS
    refuses_long_texts: ClassVar[bool] = True  # whether `encode` refuses more than ``max_tokens`` symbols

    def __post_init__(self) -> None:
        if self.source not in {"auto", "files", "generated"}:
            raise InputError(f"listops: unknown source {self.source!r}", "give auto, files or generated")
        if min(self.depth, self.arguments) < 2:
            raise InputError("listops: depth and arguments must be above 1", "increase them")

    @property
    def task(self) -> Task:
        """The description of the task."""
        parameters = {"source": "files" if self._from_files else "generated"}
        if self._is_cut:
            parameters |= {"max_tokens": self.max_tokens}
        if not self._from_files:
            names = ("train_rows", "valid_rows", "test_rows", "depth", "arguments", "seed")
            parameters |= {name: getattr(self, name) for name in names}
            parameters |= zip(("min_length", "max_length"), self._lengths, strict=True)
        return Task(
            name="listops",
            form=Tokens(self.vocabulary),
            max_tokens=self.max_tokens if self._is_cut else self._lengths[1],
            classes=10,
            parameters=parameters,
        )

    def files(self) -> list[Path]:
        """Return the files, or none if the expressions are generated."""
        return [self._file(split) for split in self._rows] if self._from_files else []

    def pieces(self) -> list[Piece]:
        """Return one piece per file, or ranges of rows with a generator each."""
        if self._from_files:
            return [Piece(split, 0, 1) for split in self._rows]
        if self._lengths[0] < NEVER_TWICE:
            return [Piece("all", 0, sum(self._rows.values()))]
        return generated_pieces([self._rows.get(split, 0) for split in SPLITS], PIECE_ROWS)

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the expressions of a piece with their values."""
        if self._from_files:
            expressions, values = self._read_file(piece.part)
        else:
            draw = np.random.default_rng([self.seed, (*SPLITS, "all").index(piece.part), piece.lo])
            expressions = self._distinct(draw, piece.hi - piece.lo)
            values = [evaluate(symbols) for symbols in expressions]
        x, lengths, cut = self._pad(expressions)
        rows = Split(x=x, y=classes_of(np.array(values, np.int8)), lengths=lengths, cut=cut)
        splits = {piece.part: rows}
        if piece.part == "all":
            parts = np.repeat([*self._rows], [*self._rows.values()])
            splits = {name: rows.take(parts == name) for name in self._rows}
        return splits

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return an array of texts (rows,), or of symbols (rows, tokens) with lengths, as sequences."""
        if x.dtype.kind == "U" and x.ndim == 1:
            most = self.task.max_tokens if self.refuses_long_texts else None
            return self._pad(read_texts(x.tolist(), lambda text: parse(text)[0], most))[:2]
        return super().encode(x, lengths)

    @property
    def endless(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether more training rows than are prepared can be generated."""
        return not self._from_files and self._lengths[0] >= NEVER_TWICE

    @property
    def _is_cut(self) -> bool:
        """Whether expressions of more than ``max_tokens`` symbols are cut; else none is that long."""
        return self._from_files

    @property
    def _lengths(self) -> tuple[int, int]:
        """Number of symbols of the shortest and of the longest generated expression."""
        shortest, longest = self.default_lengths
        return self.min_length or shortest, self.max_length or longest

    @property
    def _rows(self) -> dict[str, int]:
        return {split: getattr(self, f"{split}_rows") for split in self.splits}

    @cached_property
    def _from_files(self) -> bool:
        if self.source == "auto":
            return self.data is not None and any(
                (self.data / f / FILES["train"]).is_file() for f in FOLDERS
            )
        return self.source == "files"

    def _file(self, split: str) -> Path:
        return find_file("listops", self.data, FOLDERS, (FILES[split],))

    def _pad(self, expressions: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return expressions as cut and padded rows, their lengths, and the number of rows that were cut."""
        width = self.task.max_tokens
        x, lengths = padded(expressions, width)
        return x, np.minimum(lengths, width), int((lengths > width).sum())

    def _distinct(self, draw: np.random.Generator, rows: int) -> list[bytes]:
        """Return ``rows`` different expressions."""
        expressions: dict[bytes, None] = {}  # a set in the order in which they were drawn
        fruitless = 0  # draws in a row that gave no new expression
        while len(expressions) < rows and fruitless < MAX_FRUITLESS:
            before = len(expressions)
            expressions |= dict.fromkeys(
                random_expressions(draw, ROOTS, self.depth, self.arguments, *self._lengths)
            )
            fruitless = 0 if len(expressions) > before else fruitless + 1
        if len(expressions) < rows:
            shortest, longest = self._lengths
            number = f"{len(expressions)} different expressions of {shortest} to {longest} symbols"
            raise InputError(
                f"listops: the generator gave {number}, not {rows}",
                "allow other lengths or ask for fewer rows",
            )
        return list(expressions)[:rows]

    def _read_file(self, split: str) -> tuple[list[bytes], list[int]]:
        """Return the expressions of a file and their values."""
        path = self._file(split)
        expressions: list[bytes] = []
        values: list[int] = []
        with path.open(errors="replace") as file:
            lines = iter(lambda: file.readline(MAX_LINE), "")
            if next(lines, "").split()[:2] != ["Source", "Target"]:
                raise InputError(
                    f"{path}: its columns are not Source and Target", "unpack it, or fetch it again"
                )
            for number, line in enumerate(lines, 2):
                text, _, target = line.rstrip("\n").partition("\t")
                with as_input_error(
                    f"{path}, line {number}: not an expression and its value", "fetch the file again"
                ):
                    symbols, value = parse(text)
                    if target != str(value):
                        raise ValueError(f"its value is not {target[:20]}")
                expressions.append(symbols)
                values.append(value)
        return expressions, values
