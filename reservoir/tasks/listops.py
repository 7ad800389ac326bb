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
    padded_bytes,
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
_IDS = {symbol: number for number, symbol in enumerate(SYMBOLS) if number}  # without the padding, 0
# The text of each symbol: one byte, as `evaluate` reads it.
_BYTES = [bytes([number]) for number in range(len(SYMBOLS))]


def parse(text: str) -> tuple[bytes, int]:
    """Return the symbols of an expression, one byte each, without parentheses, and its value.

    Raise `ValueError` for unknown symbols, and for brackets that do not balance.
    """
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
    # For each level of brackets that is open, its operator and the values of its arguments so far. The outermost level
    # has the padding in place of an operator; its only argument is the value.
    levels: list[list[int]] = [[0]]
    for symbol in symbols:
        if symbol < OPERATOR:  # a digit
            levels[-1].append(symbol - DIGIT)
        elif symbol < CLOSE:  # an operator, with its opening bracket
            levels.append([symbol])
        else:  # a closing bracket
            operator, *arguments = levels.pop()
            has_no_opening_bracket = len(levels) == 0
            if has_no_opening_bracket or not arguments:
                return None
            levels[-1].append(OPERATIONS[SYMBOLS[operator]](arguments))
    _, *values = levels[0]
    is_balanced = len(levels) == 1 and len(values) == 1
    return values[0] if is_balanced else None


def random_expressions(
    draw: np.random.Generator, roots: int, depth: int, arguments: int, shortest: int, longest: int
) -> list[bytes]:
    """Draw ``roots`` trees, and return the expressions of those with ``shortest`` to ``longest`` symbols.

    ``depth`` and ``arguments`` are the largest numbers of levels, and of arguments of an operator.
    """
    levels, length = _grow(draw, roots, depth, arguments, longest)
    fits = (length >= shortest) & (length <= longest)  # (roots,)
    # From the deepest level up, the text of a node is its symbol and, for an operator, the texts of its arguments and a
    # bracket. Only nodes of trees that fit get a text. At the end the texts are those of the roots.
    texts: list[bytes] = []  # of the nodes of the level below
    parents: list[int] = []  # the node of this level that each of them is an argument of
    for tree, symbol, parent in reversed(levels):
        arguments_of = [b""] * len(tree)
        for node, text in zip(parents, texts, strict=True):
            arguments_of[node] += text
        nodes = np.flatnonzero(fits[tree])
        texts = [
            _BYTES[number] + arguments_of[node] + _BYTES[CLOSE] if number >= OPERATOR else _BYTES[number]
            for node, number in zip(nodes.tolist(), symbol[nodes].tolist(), strict=True)
        ]
        parents = parent[nodes].tolist()
    return texts


def _grow(
    draw: np.random.Generator, roots: int, depth: int, arguments: int, longest: int
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], np.ndarray]:
    """Return the levels of random trees from the roots down, and the number of symbols of each tree, (roots,).

    A level has three arrays (nodes,): the tree of each node, its symbol, and its parent, by its place in the level
    above. ``arguments`` is the largest number of arguments of an operator. A tree of more than ``longest`` symbols is
    not completed, and its length is ``longest + 1``.
    """
    length = np.zeros(roots, np.int64)
    # Tree and parent of each node of the level that is drawn next; a root has no parent, and 0 stands there.
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
        # Each argument is at least one more symbol, so a tree is dropped once it is certain to be too long.
        arguments_of_tree = np.bincount(tree[operators], argument_counts, roots)
        may_fit = length + arguments_of_tree <= longest
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
SPLIT_FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}


@dataclass(frozen=True, kw_only=True)
class ListOps(Source):
    """Evaluate expressions, of Long Range Arena's files if the data folder has them, else generated; ten classes."""

    data: Path | None = None  # the folder of Long Range Arena's files
    source: str = "auto"  # auto, files or generated
    max_tokens: int = 512  # sequences of the files are cut to this length
    # symbols of the shortest and of the longest generated expression; None for those of `default_lengths`
    min_length: int | None = None
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
        """Raise `InputError` for an unknown source, and for limits that allow no operator with two arguments."""
        if self.source not in {"auto", "files", "generated"}:
            raise InputError(f"listops: unknown source {self.source!r}", "give auto, files or generated")
        if min(self.depth, self.arguments) < 2:
            raise InputError("listops: depth and arguments must be above 1", "increase them")

    @property
    def task(self) -> Task:
        """The description of the task; its parameters are those that the rows depend on."""
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
        if self._may_repeat:  # one piece of all rows, which are compared
            return [Piece("all", 0, sum(self._rows.values()))]
        return generated_pieces([self._rows.get(split, 0) for split in SPLITS], PIECE_ROWS)

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the expressions of a piece with their values, by split."""
        if self._from_files:
            expressions, values = self._read_file(piece.part)
        else:
            part_number = (*SPLITS, "all").index(piece.part)
            draw = np.random.default_rng([self.seed, part_number, piece.lo])
            expressions = self._distinct(draw, piece.hi - piece.lo)
            values = [evaluate(symbols) for symbols in expressions]
        x, lengths, cut = self._pad(expressions)
        rows = Split(x=x, y=classes_of(np.array(values, np.int8)), lengths=lengths, cut=cut)
        if piece.part != "all":
            return {piece.part: rows}
        split_of_row = np.repeat([*self._rows], [*self._rows.values()])
        return {name: rows.take(split_of_row == name) for name in self._rows}

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return an array of texts (rows,), or of symbols (rows, tokens) with lengths, as sequences."""
        are_texts = x.dtype.kind == "U" and x.ndim == 1
        if not are_texts:
            return super().encode(x, lengths)

        def symbols_of(text: str) -> bytes:
            """Return the symbols of an expression."""
            symbols, _ = parse(text)
            return symbols

        most = self.task.max_tokens if self.refuses_long_texts else None
        x, lengths, _ = self._pad(read_texts(x.tolist(), symbols_of, most))
        return x, lengths

    @property
    def endless(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether more training rows than are prepared can be generated."""
        return not self._from_files and not self._may_repeat

    @property
    def _may_repeat(self) -> bool:
        """Whether generated expressions are so short that pieces drawn apart may have equal ones."""
        shortest, _ = self._lengths
        return shortest < NEVER_TWICE

    @property
    def _is_cut(self) -> bool:
        """Whether expressions of more than ``max_tokens`` symbols are cut, as those of files are."""
        return self._from_files

    @property
    def _lengths(self) -> tuple[int, int]:
        """The numbers of symbols of the shortest and of the longest generated expression that are allowed."""
        shortest, longest = self.default_lengths
        return self.min_length or shortest, self.max_length or longest

    @property
    def _rows(self) -> dict[str, int]:
        """The number of generated rows of each split."""
        return {split: getattr(self, f"{split}_rows") for split in self.splits}

    @cached_property
    def _from_files(self) -> bool:
        """Whether the rows are those of files; with ``auto``, if there are any."""
        if self.source != "auto":
            return self.source == "files"
        if self.data is None:
            return False
        return any((self.data / folder / SPLIT_FILES["train"]).is_file() for folder in FOLDERS)

    def _file(self, split: str) -> Path:
        """Return the file of a split; raise `InputError` if there is none."""
        return find_file("listops", self.data, FOLDERS, (SPLIT_FILES[split],))

    def _pad(self, expressions: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return expressions as cut and padded rows, their lengths, and the number of rows that were cut."""
        width = self.task.max_tokens
        x, lengths = padded_bytes(expressions, width)
        return x, np.minimum(lengths, width), int((lengths > width).sum())

    def _distinct(self, draw: np.random.Generator, rows: int) -> list[bytes]:
        """Return ``rows`` different expressions; raise `InputError` if there are hardly so many."""
        shortest, longest = self._lengths
        expressions: dict[bytes, None] = {}  # a set in the order in which they were drawn
        fruitless_draws = 0  # draws in succession that gave no new expression
        while len(expressions) < rows and fruitless_draws < MAX_FRUITLESS:
            earlier_count = len(expressions)
            drawn = random_expressions(draw, ROOTS, self.depth, self.arguments, shortest, longest)
            expressions |= dict.fromkeys(drawn)
            is_fruitless = len(expressions) == earlier_count
            fruitless_draws = fruitless_draws + 1 if is_fruitless else 0
        if len(expressions) < rows:
            number = f"{len(expressions)} different expressions of {shortest} to {longest} symbols"
            raise InputError(
                f"listops: the generator gave {number}, not {rows}",
                "allow other lengths or ask for fewer rows",
            )
        return list(expressions)[:rows]

    def _read_file(self, split: str) -> tuple[list[bytes], list[int]]:
        """Return the expressions of a file and their values, which are checked; raise `InputError` for other lines."""
        path = self._file(split)
        expressions: list[bytes] = []
        values: list[int] = []
        with path.open(errors="replace") as file:
            lines = iter(lambda: file.readline(MAX_LINE), "")  # until "", the end of the file
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
