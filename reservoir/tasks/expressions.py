"""Expressions of the ListOps language: symbols, text, values, and random expressions by the million.

An expression is a digit, or an operator with 2 or more expressions and a closing bracket: ``[MAX 4 [MIN 2 3 ] 0 ]``.
``MIN``, ``MAX`` and ``MED`` (the median, truncated to an integer) have their usual meaning, ``SM`` is the sum modulo
10. The language and the generator's probabilities are those of Nangia and Bowman, "ListOps" (2018), as Long Range Arena
(Tay et al. 2021) uses them.
"""

from collections.abc import Sequence

import numpy as np

from reservoir.errors import InputError

SYMBOLS = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
"""The vocabulary, fixed for good: padding, ten digits, four operators and the closing bracket."""

DIGIT, OPERATOR, CLOSE = 1, 11, 15  # the first digit, the first operator, and the closing bracket
OPERATOR_SHARE = 0.25  # probability that a node above the deepest level is an operator; else it is a digit
_IDS = {symbol: number for number, symbol in enumerate((*SYMBOLS, "(", ")")) if number}


def encode_texts(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the symbols (n,) of expressions, which follow each other, and their lengths (rows,).

    Long Range Arena puts parentheses around every two parts, ``( ( ( [MAX 2 ) 3 ) ] )``; they add nothing to the
    brackets, and are dropped.
    """
    rows = []
    for row, text in enumerate(texts):
        try:
            rows.append(bytes(map(_IDS.__getitem__, text.split())))
        except KeyError as error:
            known = " ".join(SYMBOLS[1:])
            raise InputError(f"row {row}: {error.args[0]!r} is not in ListOps ({known} and parentheses)") from None
    words = np.frombuffer(b"".join(rows), np.uint8)
    row_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    inside = words <= CLOSE
    symbols, row = words[inside], row_of[inside]
    lengths = np.bincount(row, minlength=len(rows))
    _check(texts, "brackets", _unbalanced(symbols, row, lengths))
    opened, closed = (np.bincount(row_of, words == word, len(rows)) for word in (CLOSE + 1, CLOSE + 2))
    # Every pair of parentheses joins two parts, so there are none, or one fewer than symbols.
    _check(texts, "parentheses", (opened != closed) | ((opened != 0) & (opened != lengths - 1)))
    return symbols, lengths


def _unbalanced(symbols: np.ndarray, row: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    operator = (symbols >= OPERATOR) & (symbols < CLOSE)
    ends = np.cumsum(lengths)
    depth = np.concatenate([[0], np.cumsum(operator.astype(np.int64) - (symbols == CLOSE))])
    # Depth within the row; it must be positive before each but the first symbol, and zero after the last.
    before = depth[:-1] - depth[ends - lengths][row]
    first = np.zeros(len(symbols), bool)
    first[(ends - lengths)[lengths > 0]] = True
    wrong = (before <= 0) & ~first
    wrong[1:] |= operator[:-1] & (symbols[1:] == CLOSE)
    return (np.bincount(row, wrong, len(lengths)) > 0) | (depth[ends] != depth[ends - lengths]) | (lengths == 0)


def _check(texts: Sequence[str], what: str, wrong: np.ndarray) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        text = texts[row] if len(texts[row]) <= 60 else texts[row][:60] + "..."
        raise InputError(f"row {row}: the {what} of {text!r} do not balance")


def evaluate(symbols: np.ndarray) -> np.ndarray:
    """Return the values (expressions,) of int8 of well-formed expressions (n,) that follow each other, unpadded.

    All expressions are worked out at once, from the deepest level up: at one level the arguments of an operator lie
    next to each other, so each operator is a segment of an array.
    """
    operator = (symbols >= OPERATOR) & (symbols < CLOSE)
    depth = np.cumsum(operator.astype(np.int8) - (symbols == CLOSE), dtype=np.int16)
    value = np.where(symbols < OPERATOR, symbols - DIGIT, 0).astype(np.int8)
    # The level of a node is the depth of the operator it is an argument of.
    level = np.where(operator, depth - 1, depth)
    nodes = np.flatnonzero(symbols != CLOSE)
    nodes = nodes[np.argsort(level[nodes], kind="stable")]
    edges = np.searchsorted(level[nodes], np.arange(int(level[nodes].max()) + 2))
    for above in range(len(edges) - 3, -1, -1):
        parents = nodes[edges[above] : edges[above + 1]]
        parents = parents[operator[parents]]
        children = nodes[edges[above + 1] : edges[above + 2]]
        starts = np.searchsorted(children, parents)
        value[parents] = _apply(symbols[parents] - OPERATOR, value[children], starts)
    return value[nodes[: edges[1]]]


def _apply(operator: np.ndarray, values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return each operator's value; its arguments are ``values`` from its start to the next."""
    ends = np.append(starts[1:], len(values))
    sums = np.add.reduceat(values, starts, dtype=np.int64) % 10
    # Sorting by (segment, value) puts the middle arguments of each segment into its middle.
    ordered = np.sort(np.repeat(np.arange(len(starts)), ends - starts) * 10 + values) % 10
    middle = (ordered[(starts + ends - 1) // 2] + ordered[(starts + ends) // 2]) // 2
    return np.choose(operator, [ordered[starts], ordered[ends - 1], middle, sums]).astype(np.int8)


def random_expressions(
    draw: np.random.Generator, roots: int, depth: int, arguments: int, shortest: int, longest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``roots`` trees; return those of ``shortest`` to ``longest`` symbols, joined, and their lengths.

    Trees grow level by level, all at once: a node above level ``depth`` is an operator with probability
    `OPERATOR_SHARE`, with 2 to ``arguments`` arguments; a tree is given up as soon as it is too long. All begin with an
    operator, as digits alone are never long enough.
    """
    levels, length = _grow(draw, roots, depth, arguments, longest)
    kept = (length >= shortest) & (length <= longest)
    start = np.cumsum(np.where(kept, length, 0)) - np.where(kept, length, 0)
    symbols = np.empty(int(length[kept].sum()), np.uint8)
    tree, symbol, parent = levels[0]
    position = start[tree]
    sizes = _sizes(levels)
    for level, (tree, symbol, parent) in enumerate(levels):
        if level:
            # An argument begins after its parent's operator and its earlier siblings.
            before = np.cumsum(sizes[level]) - sizes[level]
            first = np.searchsorted(parent, np.arange(len(levels[level - 1][0])))
            position = position[parent] + 1 + before - before[first[parent]]
        inside = kept[tree]
        symbols[position[inside]] = symbol[inside]
        closed = inside & (symbol >= OPERATOR)
        symbols[position[closed] + sizes[level][closed] - 1] = CLOSE
    return symbols, length[kept]


def _grow(
    draw: np.random.Generator, roots: int, depth: int, arguments: int, longest: int
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], np.ndarray]:
    """Return per level each node's tree, symbol and parent (in the level above), and the length of each tree."""
    length = np.zeros(roots, np.int64)
    tree, parent = np.arange(roots), np.zeros(roots, np.int64)
    levels = []
    for level in range(1, depth + 1):
        share = 1.0 if level == 1 else OPERATOR_SHARE if level < depth else 0.0
        operator = draw.random(len(tree), dtype=np.float32) < share
        symbol = np.where(
            operator, draw.integers(OPERATOR, CLOSE, len(tree)), draw.integers(DIGIT, OPERATOR, len(tree))
        ).astype(np.uint8)
        length += np.bincount(tree, 1 + operator, roots).astype(np.int64)
        levels.append((tree, symbol, parent))
        branching = np.flatnonzero(operator)
        number = draw.integers(2, arguments + 1, len(branching))
        # The length includes symbols that must still follow, so a tree that is too long is not continued.
        alive = length + np.bincount(tree[branching], number, roots) <= longest
        length[~alive] = longest + 1
        branching, number = branching[alive[tree[branching]]], number[alive[tree[branching]]]
        parent = np.repeat(branching, number)
        tree = tree[parent]
        if not len(tree):
            break
    return levels, length


def _sizes(levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Return per level the number of symbols below each node, itself and its bracket included."""
    sizes = [np.where(symbol >= OPERATOR, 2, 1) for _, symbol, _ in levels]
    for level in range(len(levels) - 1, 0, -1):
        parent = levels[level][2]
        sizes[level - 1] += np.bincount(parent, sizes[level], len(sizes[level - 1])).astype(np.int64)
    return sizes
