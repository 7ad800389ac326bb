"""The named tasks: bits, ListOps and proteins, as published, in our own protocol and in the paper's."""

import json
import re
import string

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reservoir_pipelines import extract, train
from reservoir_pipelines.data.values import encode_values
from reservoir_pipelines.preparation.prepare import open_source

from reservoir.errors import InputError
from reservoir.options import ReservoirOptions
from reservoir.paper.lstm import LSTMCell, redraw_first_states
from reservoir.plan.model import resolve_model
from reservoir.tasks import Tokens, check_split, task_named, variant_of
from reservoir.tasks.bits import BitMemory, BitXor
from reservoir.tasks.images import Cifar10, Cifar10Lra
from reservoir.tasks.listops import CLOSE, DIGIT, OPERATOR, SYMBOLS, ListOps, evaluate, parse, random_expressions
from reservoir.tasks.pictures import augmented
from reservoir.tasks.proteins import LETTERS, PARTS
from reservoir.tasks.rows import HELD_OUT_SHARE, SPLIT_SHARES, grouped, held_out, row_hash, stratified
from reservoir.tasks.source import FRESH_ROWS, fresh_rows
from tests.tasks.samples import decode_text, read_splits

GENERATED = [
    BitXor(n=4, train_rows=30),
    BitMemory(n=20, patterns=2, token_bits=5, train_rows=30),
    ListOps(min_length=64, max_length=80, source="generated"),
]


def rows_of(name, split="train", **parameters):
    source = task_named(name, **parameters)
    parts = [source.read(piece)[split] for piece in source.pieces() if piece.part == split]
    for part in parts:
        check_split(source.task, split, part)
    return np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts])


def test_bit_memory_has_the_shape_of_the_paper():
    task = task_named("bit-memory").task
    assert (task.max_tokens, task.form.dim, task.readout_tokens, task.outputs, task.classes) == (120, 50, 20, 50, 2)


@pytest.mark.parametrize("parameters", [{}, {"n": 60, "patterns": 3, "token_bits": 12, "mask": 0.2}])
def test_bit_memory_asks_for_one_of_the_strings(parameters):
    x, y = rows_of("bit-memory", train_rows=200, **parameters)
    n = parameters.get("n", 1000)
    strings, shown = x.reshape(200, -1, n)[:, :-1], x.reshape(200, -1, n)[:, -1]
    asked = 2 * y.reshape(200, 1, n) - 1
    assert (strings == asked).all(axis=2).any(axis=1).all()
    assert set(np.unique(strings)) == {-1, 1}
    assert np.array_equal(shown, np.where(shown == 0, 0, asked[:, 0]))
    assert abs((shown == 0).mean() - parameters.get("mask", 0.5)) < 0.02
    assert set((strings == asked).all(axis=2).argmax(axis=1)) == set(range(parameters.get("patterns", 5)))


def test_bit_xor_has_the_shape_of_the_paper_and_its_sums():
    task = task_named("bit-xor").task
    assert (task.max_tokens, task.form.dim, task.readout_tokens, task.outputs, task.classes) == (10, 1, 5, 1, 2)
    assert "held_out" not in task.parameters  # so that its key stays the same
    x, y = rows_of("bit-xor", train_rows=3000)
    assert np.array_equal(x[:, :5] ^ x[:, 5:], y)
    assert abs(x.mean() - 0.5) < 0.02
    assert len(np.unique(x.reshape(3000, 10), axis=0)) > 900


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("bit-memory", {"n": 7, "token_bits": 2}, "multiple of token_bits"),
        ("bit-memory", {"mask": 1.5}, "probability"),
        ("bit-memory", {"n": 0}, "n is 0; give a value like 1000"),
        ("bit-memory", {"n": "x"}, "n is 'x'; give a value like 1000"),
        ("modular-addition", {"modulus": 1}, "modulus is 1; give"),
    ],
)
def test_impossible_settings_are_refused(name, parameters, message):
    with pytest.raises(InputError, match=message):
        task_named(name, **parameters)


def test_held_out_inputs_are_in_one_split_only():
    settings = {"held_out": True, "train_rows": 3000, "valid_rows": 300, "test_rows": 300}
    seen = {}
    for split in ("train", "valid", "test"):
        x, y = rows_of("bit-xor", split, **settings)
        bits = x.reshape(len(x), 2, 5)
        assert np.array_equal(y[:, :, 0], bits[:, 0] ^ bits[:, 1])
        seen[split] = {row.tobytes() for row in x}
    assert not seen["train"] & (seen["valid"] | seen["test"])
    assert not seen["valid"] & seen["test"]
    assert sum(map(len, seen.values())) > 900
    with pytest.raises(InputError, match="held_out"):
        rows_of("bit-xor", held_out=True, n=50)


def test_every_pair_is_in_the_split_of_its_swapped_pair_and_has_its_sum():
    source = task_named("modular-addition", modulus=23)
    splits = source.read(*source.pieces())
    found = {name: {tuple(row) for row in rows.x[:, :2].tolist()} for name, rows in splits.items()}
    assert set.union(*found.values()) == {(a, b) for a in range(23) for b in range(23)}
    assert sum(map(len, found.values())) == 23**2 and len(found["train"]) > 0.8 * 23**2
    for name, rows in splits.items():
        assert {(b, a) for a, b in found[name]} == found[name]
        assert [(a + b) % 23 for a, b in rows.x[:, :2].tolist()] == rows.y.ravel().tolist()
        assert (rows.x[:, 2] == 23).all() and (rows.lengths == 3).all()
    x, lengths = encode_values(source.task, splits["test"].x)
    assert (lengths == 3).all() and x is splits["test"].x


@pytest.mark.parametrize("source", GENERATED, ids=lambda source: source.task.name)
def test_a_fresh_row_depends_only_on_its_number_and_the_seed(source):
    assert source.endless
    numbers = np.array([FRESH_ROWS + 3, 0, 5, 5, FRESH_ROWS - 1])
    rows, again = fresh_rows(source, 7)(numbers), fresh_rows(source, 7)
    for place, number in enumerate(numbers):
        one = again(np.array([number]))
        np.testing.assert_array_equal(one.x[0], rows.x[place])
        np.testing.assert_array_equal(one.y[0], rows.y[place])
        assert one.lengths[0] == rows.lengths[place]
    assert not np.array_equal(fresh_rows(source, 8)(numbers).x, rows.x)


def test_fresh_rows_are_not_those_that_are_scored():
    source = GENERATED[1]
    fresh = {row.tobytes() for row in fresh_rows(source, 0)(np.arange(3 * FRESH_ROWS)).x}
    for piece in source.pieces():
        for rows in source.read(piece).values():
            assert not fresh & {row.tobytes() for row in rows.x}


@pytest.mark.parametrize("source", [Cifar10(), Cifar10Lra()])
def test_augmented_sequences_are_the_sequences_of_augmented_images(source):
    assert source.augments
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    rows = np.arange(100, 120)
    stored, _ = source.encode(images)
    expected, _ = source.encode(augmented(images, rows, 3))
    found = source.augmented(stored, rows, 3)
    np.testing.assert_array_equal(found, expected)
    assert (found != stored).mean() > 0.5


def test_hash_follows_the_published_sequence():
    # The first outputs of SplitMix64 with state 0, as java.util.SplittableRandom(0) gives them.
    assert row_hash(np.arange(3)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_stretch_of_rows_is_held_out_as_in_the_whole():
    whole = held_out(np.arange(10_000))
    assert np.array_equal(held_out(np.arange(300, 700)), whole[300:700])
    assert abs(whole.mean() - HELD_OUT_SHARE) < 0.01


@pytest.mark.parametrize("labels", [np.arange(1797) % 10, np.repeat(list("ab"), [20, 100])])
def test_stratified_divides_every_class_alike(labels):
    split = stratified(labels, SPLIT_SHARES)
    for label in np.unique(labels):
        members = split[labels == label]
        for name, share in SPLIT_SHARES.items():
            assert abs((members == name).sum() - share * len(members)) <= 1


@pytest.mark.parametrize("rows", [2, 3])
def test_small_classes_are_divided_so_that_all_splits_have_their_share(rows, tmp_path):
    labels = np.arange(50 * rows) % 50
    assert len({*stratified(labels, SPLIT_SHARES)}) < len(SPLIT_SHARES)  # each class alone leaves a split empty
    np.savez(tmp_path / "few.npz", x=np.random.default_rng(0).normal(size=(len(labels), 9)), y=labels)
    source = open_source(str(tmp_path / "few.npz"), classes=True)
    splits = {name: split for piece in source.pieces() for name, split in source.read(piece).items()}
    for name, share in SPLIT_SHARES.items():
        assert abs(len(splits[name].y) - share * len(labels)) <= 1
    assert set(splits["train"].y.ravel()) == set(range(50))


@pytest.mark.parametrize("seed", range(5))
def test_sizes_and_classes_are_as_even_over_splits_as_groups_allow(seed):
    draw = np.random.default_rng(seed)
    sizes = draw.integers(5, 40, 40)
    groups = np.repeat([f"patient {n}" for n in range(40)], sizes)
    classes = np.concatenate([draw.choice(3, n, p=draw.dirichlet(np.ones(3))) for n in sizes])
    split = grouped(groups, classes, SPLIT_SHARES)
    assert all(len(set(split[groups == group])) == 1 for group in groups)
    for name, share in SPLIT_SHARES.items():
        assert abs((split == name).mean() - share) < 0.01
        assert np.abs(np.bincount(classes[split == name], minlength=3) / np.bincount(classes) - share).max() < 0.04
    order = draw.permutation(len(groups))
    assert np.array_equal(grouped(groups[order], classes[order], SPLIT_SHARES), split[order])


def test_few_groups_of_one_class_each_are_divided_exactly():
    classes, groups = np.repeat([0, 1], 50), np.repeat(np.arange(10), 10)
    split = grouped(groups, classes, SPLIT_SHARES)
    for name, count in (("train", 30), ("valid", 10), ("test", 10)):
        assert np.bincount(classes[split == name]).tolist() == [count, count]
    # one group with most rows leaves a group for every split, and two groups are never three splits
    assert grouped(np.repeat([0, 1, 2], [98, 1, 1]), np.zeros(100), SPLIT_SHARES)[[0, 98, 99]].tolist() == [
        *SPLIT_SHARES
    ]
    assert len(set(grouped(np.repeat([0, 1], 5), np.zeros(10), SPLIT_SHARES))) == 2
    assert np.unique(grouped(np.arange(600), np.zeros(600), SPLIT_SHARES), return_counts=True)[1].tolist() == [
        120,
        360,
        120,
    ]


OPERATIONS = {
    "MIN": lambda *v: min(v),
    "MAX": lambda *v: max(v),
    "MED": lambda *v: int(np.median(v)),
    "SM": lambda *v: sum(v) % 10,
}


def value_of(text):
    """Return the value of an expression, which Python computes as nested calls of functions: ``MAX(2,SM(3,4,),),``."""
    words = [word for word in text.split() if word not in "()"]
    calls = [{"[": f"{word[1:]}(", "]": "),"}.get(word[0], f"{word},") for word in words]
    return eval("".join(calls), dict(OPERATIONS))[0]


EXPRESSIONS = st.recursive(
    st.sampled_from("0123456789"),
    lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), st.lists(inner, min_size=1, max_size=5)).map(
        lambda t: f"[{t[0]} {' '.join(t[1])} ]"
    ),
    max_leaves=30,
)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS)
def test_text_and_symbols_are_one_to_one_and_values_are_right(text):
    symbols, value = parse(text)
    assert decode_text(symbols) == text
    assert parse(decode_text(symbols, nested=True)) == (symbols, value)
    assert evaluate(symbols) == value == value_of(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MAX 2 3", "brackets"),
        ("[MAX 2 3 ] ]", "brackets"),
        ("[MAX ]", "brackets"),
        ("", "brackets"),
        ("1 2", "brackets"),
        ("[MAX 2 ] 3", "brackets"),
        ("[AVG 2 3 ]", "'\\[AVG' is not a symbol of ListOps"),
    ],
)
def test_malformed_expressions_are_refused_with_their_row(text, message):
    with pytest.raises(InputError, match=f"row 1: .*{message}"):
        task_named("listops").encode(np.array(["[SM 1 2 ]", text, "3"]))


def test_trees_follow_the_grammar_of_long_range_arena():
    expressions = random_expressions(np.random.default_rng(0), 4000, 10, 10, 1, 10**6)
    assert len(expressions) == 4000, "no length was excluded"
    symbols = np.frombuffer(b"".join(expressions), np.uint8)
    lengths = np.array([len(expression) for expression in expressions])
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
    assert expressions[0] == parse(decode_text(expressions[0]))[0]


def test_a_generated_piece_is_a_split_of_different_expressions():
    source = task_named("listops", train_rows=300, valid_rows=200, test_rows=100)
    splits = read_splits(source)
    assert {name: len(split) for name, split in splits.items()} == {"train": 300, "valid": 200, "test": 100}
    rows = set()
    for split in splits.values():
        real = [decode_text(x[:n]) for x, n in zip(split.x, split.lengths, strict=True)]
        assert [value_of(text) for text in real] == split.y.ravel().tolist()
        rows |= set(real)
    assert len(rows) == 600
    assert source.task.form.vocabulary == len(SYMBOLS) == 16


def lra_files(folder, rows=(40, 12, 9), shortest=100, longest=900):
    """Write files in the format of Long Range Arena; return texts and values by split."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for seed, (name, number) in enumerate(zip(("train", "val", "test"), rows, strict=True)):
        expressions = random_expressions(np.random.default_rng(seed), 2048, 10, 10, shortest, longest)
        texts = [decode_text(expression, nested=True) for expression in expressions[:number]]
        values = [value_of(text) for text in texts]
        lines = ["Source\tTarget", *(f"{t}\t{v}" for t, v in zip(texts, values, strict=True))]
        (folder / f"basic_{name}.tsv").write_text("\n".join(lines) + "\n")
        written[name.replace("val", "valid")] = (texts, values)
    return written


def test_files_are_read_whole(tmp_path):
    written = lra_files(tmp_path / "listops")
    source = task_named("listops", data=tmp_path)
    assert source.task.parameters == {"source": "files", "max_tokens": 512}
    for name, rows in read_splits(source).items():
        texts, values = written[name]
        assert rows.y.ravel().tolist() == values
        whole = [parse(text)[0] for text in texts]
        assert [x[:n].tobytes() for x, n in zip(rows.x, rows.lengths, strict=True)] == [one[:512] for one in whole]
        assert rows.cut == sum(len(expression) > 512 for expression in whole)


def test_the_protocol_of_the_paper(tmp_path):
    texts, values = lra_files(tmp_path)["valid"]
    source = task_named("listops", data=tmp_path, protocol="paper")
    splits = read_splits(source)
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


@pytest.mark.parametrize(("protocol", "symbols"), [("ours", 16), ("paper", 15)])
def test_symbols_outside_the_vocabulary_are_refused(protocol, symbols):
    task = task_named("listops", protocol=protocol).task
    assert encode_values(task, np.array([[11, 2, symbols - 1]]))[1].tolist() == [3]
    for wrong in (symbols, -1):
        with pytest.raises(InputError, match=f"row 1, token 0: {wrong} is not a symbol from 0 to {symbols - 1}"):
            encode_values(task, np.array([[1, 2], [wrong, 2]]))
    with pytest.raises(InputError, match="at most 512"):
        encode_values(task, np.empty((2, 0), np.int64))


def proteins(rows=12, seed=0, longest=40):
    rng = np.random.default_rng(seed)
    return [
        {
            "id": f"d{seed}{row}",
            "primary": "".join(rng.choice(list(LETTERS), rng.integers(1, longest))),
            "fold_label": int(rng.integers(0, 1195)),
        }
        for row in range(rows)
    ]


def write_tape(folder, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    parts = {split: proteins(seed=i) for i, split in enumerate(PARTS)} | changed
    for split, records in parts.items():
        (folder / f"remote_homology_{PARTS[split]}.json").write_text(json.dumps(records))
    return parts


def letters_of(split):
    return ["".join(LETTERS[s - 1] for s in x[:n]) for x, n in zip(split.x, split.lengths, strict=True)]


def test_the_files_of_tape_give_the_proteins(tmp_path):
    parts = write_tape(tmp_path / "remote_homology")
    source = task_named("homology", data=tmp_path)
    assert len(source.files()) == 5 and all(file.is_file() for file in source.files())
    for split, rows in read_splits(source).items():
        assert letters_of(rows) == [record["primary"] for record in parts[split]]
        assert rows.y.ravel().tolist() == [record["fold_label"] for record in parts[split]]


def test_the_papers_protocol_writes_proteins_as_tape_does(tmp_path):
    parts = write_tape(tmp_path)
    source = task_named("homology", data=tmp_path, max_tokens=30, protocol="paper", batch=1)
    assert (source.task.classes, task_named("homology").task.classes) == (1200, 1195)
    assert source.task.form == Tokens(30)
    valid = read_splits(source)["valid"]
    # TAPE's vocabulary: padding, mask, class, separator, unknown, then the letters from A (5) to Z (29), without J.
    alphabet = [letter for letter in string.ascii_uppercase if letter != "J"]
    letters_of = [record["primary"] for record in parts["valid"]]
    # Batches of four rows of similar length: rows are padded to the longest; if that is too long, the whole
    # batch is dropped.
    order = sorted(range(len(letters_of)), key=lambda row: len(letters_of[row]))
    longest = {row: len(letters_of[order[at // 4 * 4 + 3]]) + 2 for at, row in enumerate(order)}
    kept = [row for row in range(len(letters_of)) if longest[row] <= 30]
    (read,) = (source.read(piece)["valid"] for piece in source.pieces() if piece.part == "valid")
    assert read.ids.tolist() == kept  # numbers of the records in the file
    assert 0 < len(kept) < len(letters_of) and valid.lengths.tolist() == [longest[row] for row in kept]
    letters_of = [letters_of[row] for row in kept]
    for row, text in zip(valid.x.tolist(), letters_of, strict=True):
        assert row == [2, *(5 + alphabet.index(letter) for letter in text), 3, *[0] * (28 - len(text))]
    x, lengths = encode_values(source.task, np.array(letters_of))
    assert np.array_equal(x, valid.x) and np.array_equal(lengths, valid.lengths)
    again = encode_values(source.task, x)
    assert np.array_equal(again[0], x) and np.array_equal(again[1], lengths)
    with pytest.raises(InputError, match="31 tokens, more than 30"):
        encode_values(source.task, np.array(["A" * 29]))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"primary": "ACJD", "fold_label": 3}, "row 2: .* \\('J' is not an amino acid"),
        ({"primary": "ACé", "fold_label": 3}, "'é' is not"),
        ({"primary": "", "fold_label": 3}, "no amino acids"),
        ({"primary": "ACD", "fold_label": 1195}, "fold_label is 1195"),
        ({"primary": "ACD"}, "'fold_label'"),
        ({"primary": 5, "fold_label": 1}, "not a protein with"),
        ("ACD", "not a protein with"),
    ],
)
def test_a_bad_record_is_named(tmp_path, record, message):
    write_tape(tmp_path, valid=[*proteins(2), record])
    with pytest.raises(InputError, match=message):
        read_splits(task_named("homology", data=tmp_path))


# The paper's protocol, from the initial weights to the score.


TINY = "gpt2:n_layer=1,n_embd=16,n_head=2"
FEW = {"train_rows": 40, "valid_rows": 20, "test_rows": 20}


@pytest.mark.parametrize(
    ("backbone", "given", "drawn"),
    [
        (TINY, None, "random-flat"),
        (TINY, "random", "random-flat"),
        (TINY, "random-scaled", "random"),
        ("gpt2", None, "pretrained"),
        ("gpt2", "statistics", "statistics"),
        ("bert-base-uncased", "random", "random"),
        ("lstm", None, "random"),
    ],
)
def test_the_papers_protocol_initialises_gpt2_as_its_library_did(backbone, given, drawn):
    assert (
        resolve_model(
            ReservoirOptions(backbone=backbone, init=given), random_inits=variant_of({"protocol": "paper"}).random_inits
        ).init
        == drawn
    )
    ours = resolve_model(ReservoirOptions(backbone=backbone, init=given)).init
    assert ours == {"random-flat": "random"}.get(drawn, drawn)


def test_the_draw_is_named_in_the_entrys_card(cache, call):
    shared = {"backbone": TINY, "init": "random", "parameters": FEW, "layers": "final", "pool": "last"}
    paper, ours = (extract("bit-xor", protocol=protocol, **shared) for protocol in ("paper", None))
    assert "random-flat" in paper.entry.name and paper.entry != ours.entry
    code, card, _ = call("cache", "show", paper.entry)
    assert code == 0 and "initializer_range, as in Lu et al. 2021" in card
    code, card, _ = call("cache", "show", ours.entry)
    assert "normal with standard deviation initializer_range, for c_proj divided by sqrt(2 x blocks)" in card
    code, card, _ = call("backbone", TINY, "--init", "random", "--protocol", "paper")
    assert code == 0 and "every matrix normal" in card
    # With an explicit init, on data that do not depend on the protocol, the features are the same as without it.
    again = extract("bit-xor", protocol="paper", **shared | {"init": "random-scaled"})
    assert again.entry == ours.entry and again.reused


def test_every_named_task_takes_the_papers_protocol(cache):
    for name in ("bit-memory", "bit-xor", "modular-addition", "cifar10", "cifar10-lra", "digits"):
        assert task_named(name, protocol="paper") == task_named(name)
        with pytest.raises(InputError, match="protocol is 'other'; give ours or paper"):
            task_named(name, protocol="other")
    done = train("bit-xor", backbone=TINY, parameters=FEW, protocol="paper", steps=1, batch=4, train="output")
    config = json.loads((done.path / "config.json").read_text())
    assert config["reservoir"]["init"] == "random-flat" and config["settings"]["recipe"]["output_init"] == "linear"


@pytest.fixture
def long_proteins(tmp_path):
    """Return a folder with proteins, some of which are too long for 40 tokens."""
    draw = np.random.default_rng(0)
    for part in ("train", "valid"):
        lengths = [30, 31, 33, 34, 36, 37, 38, 39] * 3
        rows = [{"primary": "".join(draw.choice(list("ACDE"), n)), "fold_label": n % 2} for n in lengths]
        (tmp_path / f"remote_homology_{part}.json").write_text(json.dumps(rows))
    return tmp_path


def test_accuracy_of_homology_counts_dropped_proteins_as_wrong(long_proteins, cache):
    """The authors multiply by the share of kept proteins; batches have one row in training and four in validation."""
    given = {"data": long_proteins, "protocol": "paper", "parameters": {"max_tokens": 40, "batch": 1}, "backbone": TINY}
    features = extract("homology", layers="final", pool="last", **given)
    # 3 of 24 training proteins have 39 letters and are dropped, and so is the validation batch of four with such
    # proteins.
    assert features.rows == {"train": 21, "valid": 20, "test": 20}
    done = train("homology", steps=1, batch=4, train="output", **given)
    assert done.test_score_of_all == pytest.approx(done.test_score * 20 / 24)


def test_training_pads_proteins_to_the_longest_of_each_batch_which_every_epoch_draws_anew(long_proteins, cache):
    from reservoir_pipelines import prepare

    from reservoir.paper.variants import PaddedBatches

    split = prepare("homology", data=long_proteins, protocol="paper", parameters={"max_tokens": 48}).split("train")
    split = split.take(np.arange(len(split)))
    real, rows = (split.x != 0).sum(axis=1), PaddedBatches(split, seed=0, batch=4)
    drawn = []
    for epoch in range(2):
        found = rows(np.arange(epoch * len(split), (epoch + 1) * len(split)))
        longest = (found.x != 0).sum(axis=1).reshape(-1, 4).max(axis=1)
        assert found.lengths.tolist() == np.repeat(longest, 4).tolist()
        assert sorted((found.x != 0).sum(axis=1)) == sorted(real)
        drawn.append([text.tobytes() for text in found.x])
        assert found.lengths.sum() - real.sum() < 2 * len(split)  # rows of similar length share a batch
    assert sorted(drawn[0]) == sorted(drawn[1]) and drawn[0] != drawn[1]
    again = rows(np.arange(len(split)))
    assert [text.tobytes() for text in again.x] == drawn[0]


def test_the_way_proteins_are_read_is_part_of_the_key(long_proteins, cache):
    given = {"data": long_proteins, "protocol": "paper", "backbone": TINY, "layers": "final", "pool": "last"}
    one, four = (extract("homology", parameters={"max_tokens": 48, "batch": batch}, **given) for batch in (1, 4))
    assert one.entry != four.entry
    # A protein alone in its batch is read at its separator; a shorter one in a larger batch is read at padding.
    assert one["train"].lengths.tolist() == [n + 2 for n in [30, 31, 33, 34, 36, 37, 38, 39] * 3]
    longer = four["train"].lengths - one["train"].lengths
    assert longer.min() == 0 < longer.max()
    same = np.isclose(one["train"]["final/last"], four["train"]["final/last"], atol=1e-2).all(axis=1)
    assert np.array_equal(same, longer == 0)


def test_bit_memory_is_shown_with_the_copy_baseline(cache, call):
    small = {"n": 8, "token_bits": 4, "patterns": 2, **FEW}
    task = task_named("bit-memory", **small).task
    assert task.floor == 0.75 and type(task).from_dict(task.to_dict()) == task
    # The copy baseline, computed: visible bits are copied, and masked bits are guessed.
    rows = task_named("bit-memory").read(task_named("bit-memory").pieces()[0])["train"]
    shown = rows.x[:, -20:].astype(int)
    guessed = np.where(shown == 0, np.random.default_rng(0).integers(0, 2, shown.shape), shown > 0)
    assert (guessed == rows.y).mean() == pytest.approx(0.75, abs=2e-3)
    params = [f"--param={name}={value}" for name, value in small.items()]
    code, out, _ = call("train", "bit-memory", "--backbone", TINY, "--steps", 1, "--batch", 4, *params)
    assert code == 0 and re.search(r"copy baseline +75\.0%", out)
    assert " parameters\n" in out and "75.0%, by a constant or by copying the input, on validation rows" in out
    assert call("extract", "bit-memory", "--backbone", TINY, "--layers=final", "--pool=last", *params)[0] == 0
    code, out, _ = call("fit", "bit-memory", "--select", "valid")
    assert code == 0 and "copy baseline" in out and "75.0%" in out


def test_the_papers_protocol_draws_the_first_states_of_an_lstm_for_each_row_and_pass(cache):
    cell, rows = LSTMCell(8), torch.zeros(3, 2, 8)
    assert torch.equal(cell(rows)[0], cell(rows)[1])
    redraw_first_states(cell)
    assert not torch.equal(cell(rows)[0], cell(rows)[1]) and not torch.equal(cell(rows), cell(rows))
    cell.eval()
    assert torch.equal(cell(rows), cell(rows))
    settings = {"backbone": "lstm:width=16,depth=1", "limit": 20, "steps": 2, "eval_every": 2, "train": "all"}
    ours, paper = (train("bit-xor", protocol=protocol, **settings) for protocol in (None, "paper"))
    assert ours.losses != paper.losses and paper.test_score is not None
    again = train("bit-xor", protocol="paper", run=cache / "again", **settings)
    assert again.losses == paper.losses and again.test_score == paper.test_score
