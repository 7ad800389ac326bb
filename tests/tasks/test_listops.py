import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir.errors import InputError
from reservoir.tasks import check_split, encode, listops, task_named
from reservoir.tasks.expressions import (
    CLOSE,
    DIGIT,
    OPERATOR,
    SYMBOLS,
    encode_texts,
    evaluate,
    random_expressions,
)
from tests.tasks.samples import decode_text

OPERATIONS = {"[MIN": min, "[MAX": max, "[MED": lambda v: int(np.median(v)), "[SM": lambda v: sum(v) % 10}


def value_of(words):
    """Return the value of an expression, by recursion over its words."""
    word = next(words)
    if word not in OPERATIONS:
        return int(word)
    arguments = []
    while words.peek() != "]":
        arguments.append(value_of(words))
    next(words)
    return OPERATIONS[word](arguments)


class Words:
    """An iterator over words that can look one ahead."""

    def __init__(self, text):
        self.words = [w for w in text.split() if w not in "()"]

    def __next__(self):
        return self.words.pop(0)

    def peek(self):
        return self.words[0]


def each(symbols, lengths):
    return np.split(symbols, np.cumsum(lengths)[:-1])


EXPRESSIONS = st.recursive(
    st.sampled_from("0123456789"),
    lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), st.lists(inner, min_size=1, max_size=5)).map(
        lambda t: f"{t[0]} {' '.join(t[1])} ]"
    ),
    max_leaves=30,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(EXPRESSIONS, min_size=1, max_size=4))
def test_text_and_symbols_are_one_to_one_and_values_are_right(texts):
    symbols, lengths = encode_texts(texts)
    assert [decode_text(e) for e in each(symbols, lengths)] == texts
    nested = [decode_text(e, nested=True) for e in each(symbols, lengths)]
    again, _ = encode_texts(nested)
    assert np.array_equal(again, symbols)
    assert evaluate(symbols).tolist() == [value_of(Words(text)) for text in texts]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MAX 2 3", "brackets"),
        ("[MAX 2 3 ] ]", "brackets"),
        ("[MAX ]", "brackets"),
        ("", "brackets"),
        ("1 2", "brackets"),
        ("[MAX 2 ] 3", "brackets"),
        ("( [MAX 2 3 ]", "parentheses"),
        ("( ( [MAX 2 ) 3 ] )", "parentheses"),
        ("[AVG 2 3 ]", "'\\[AVG' is no word"),
    ],
)
def test_malformed_expressions_are_refused_with_their_row(text, message):
    with pytest.raises(InputError, match=f"row 1: .*{message}"):
        encode_texts(["[SM 1 2 ]", text, "3"])


def test_trees_follow_the_grammar_of_long_range_arena():
    symbols, lengths = random_expressions(np.random.default_rng(0), 4000, 10, 10, 1, 10**6)
    assert len(lengths) == 4000, "no length was excluded"
    operator = (symbols >= OPERATOR) & (symbols < CLOSE)
    depth = np.cumsum(operator.astype(int) - (symbols == CLOSE))
    assert depth.max() == 9, "operators on levels 1 to 9, digits alone on level 10"
    roots = np.cumsum(lengths) - lengths
    counted = (symbols != CLOSE) & (depth - operator < 9)
    counted[roots] = False
    assert abs(operator[counted].mean() - 0.25) < 0.01
    for kinds, values in ((operator, range(OPERATOR, CLOSE)), (symbols < OPERATOR, range(DIGIT, OPERATOR))):
        shares = np.bincount(symbols[kinds])[list(values)] / kinds.sum()
        assert np.abs(shares * len(values) - 1).max() < 0.05
    first, _ = np.split(symbols, [lengths[0]])
    assert first.tolist() == encode_texts([decode_text(first)])[0].tolist()


def test_a_generated_piece_is_a_split_of_different_expressions():
    source = task_named("listops", train_rows=300, valid_rows=200, test_rows=100)
    splits = {}
    for piece in source.pieces():
        splits |= source.read(piece)
    assert {name: len(split) for name, split in splits.items()} == {"train": 300, "valid": 200, "test": 100}
    rows = set()
    for name, split in splits.items():
        check_split(source.task, name, split)
        real = [decode_text(x[:n]) for x, n in zip(split.x, split.lengths, strict=True)]
        assert [value_of(Words(text)) for text in real] == split.y.ravel().tolist()
        rows |= set(real)
    assert len(rows) == 600
    assert source.task.form.vocabulary == len(SYMBOLS) == 16


def test_pieces_do_not_depend_on_the_number_of_rows(monkeypatch):
    monkeypatch.setattr(listops, "PIECE_ROWS", 64)
    small, large = (task_named("listops", train_rows=n) for n in (100, 150))
    for a, b in zip(small.pieces()[:2], large.pieces()[:2], strict=True):
        rows = a.hi - a.lo
        assert np.array_equal(small.read(a)["train"].x, large.read(b)["train"].x[:rows])


def lra_files(folder, rows=(40, 12, 9), shortest=100, longest=900):
    """Write files as Long Range Arena has them; return texts and values by split."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for seed, (name, number) in enumerate(zip(("train", "val", "test"), rows, strict=True)):
        symbols, lengths = random_expressions(np.random.default_rng(seed), 2048, 10, 10, shortest, longest)
        texts = [decode_text(e, nested=True) for e in each(symbols, lengths)[:number]]
        values = [value_of(Words(text)) for text in texts]
        lines = ["Source\tTarget", *(f"{t}\t{v}" for t, v in zip(texts, values, strict=True))]
        (folder / f"basic_{name}.tsv").write_text("\n".join(lines) + "\n")
        written[name.replace("val", "valid")] = (texts, values)
    return written


@pytest.mark.parametrize("step", [2**24, 5000])
def test_files_are_read_whole_whatever_the_pieces(tmp_path, monkeypatch, step):
    monkeypatch.setattr(listops, "PIECE_BYTES", step)
    written = lra_files(tmp_path / "listops")
    source = task_named("listops", data=tmp_path)
    assert source.task.parameters == {"source": "files", "max_tokens": 512}
    parts = [source.read(piece) for piece in source.pieces()]
    for name, (texts, values) in written.items():
        mine = [part[name] for part in parts if name in part and len(part[name])]
        assert np.concatenate([m.y for m in mine]).ravel().tolist() == values
        x, lengths = np.concatenate([m.x for m in mine]), np.concatenate([m.lengths for m in mine])
        symbols, whole = encode_texts(texts)
        for row, expression in enumerate(each(symbols, whole)):
            assert np.array_equal(x[row, : lengths[row]], expression[:512])
        assert sum(m.cut for m in mine) == (whole > 512).sum()


def test_the_protocol_of_the_paper(tmp_path):
    texts, values = lra_files(tmp_path)["valid"]
    source = task_named("listops", data=tmp_path, protocol="paper")
    splits = {}
    for piece in source.pieces():
        splits |= source.read(piece)
    assert np.array_equal(splits["test"].x, splits["valid"].x) and splits["test"].y.ravel().tolist() == values
    for x, text in zip(splits["test"].x, texts, strict=True):
        words = [w for w in text.split() if w not in "()]"][:512]
        assert decode_text(x[: len(words)]) == " ".join(words) and not x[len(words) :].any()
    assert set(splits["train"].lengths) == {512}
    assert source.task.form.vocabulary == 15
    generated = task_named("listops", protocol="paper", train_rows=20, valid_rows=20)
    assert generated.task.max_tokens == 512
    (train, valid) = (generated.read(piece) for piece in generated.pieces())
    assert set(valid) == {"valid", "test"} and (train["train"].x == CLOSE).sum() == 0


def test_new_texts_become_sequences():
    task = task_named("listops", train_rows=10).task
    x, lengths = encode(task, np.array(["[MAX 2 3 ]", "7"]))
    assert lengths.tolist() == [4, 1] and decode_text(x[0, :4]) == "[MAX 2 3 ]"
    assert np.array_equal(encode(task, x)[1], lengths)
    with pytest.raises(InputError, match="at most 512"):
        encode(task, np.array(["[MAX " + "1 " * 600 + "]"]))


@pytest.mark.parametrize(("protocol", "symbols"), [("ours", 16), ("paper", 15)])
def test_symbols_outside_the_vocabulary_are_refused(protocol, symbols):
    task = task_named("listops", protocol=protocol).task
    assert encode(task, np.array([[11, 2, symbols - 1]]))[1].tolist() == [3]
    for wrong in (symbols, -1):
        with pytest.raises(InputError, match=f"row 1, token 0: {wrong} is no symbol from 0 to {symbols - 1}"):
            encode(task, np.array([[1, 2], [wrong, 2]]))
    with pytest.raises(InputError, match="at most 512"):
        encode(task, np.empty((2, 0), np.int64))
