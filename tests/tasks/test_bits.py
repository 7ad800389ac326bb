"""Tasks of bits, rows of generated tasks without end, hashes of row numbers, and augmented views of stored images."""

import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import check_split, task_named
from reservoir.tasks.bits import BitMemory, BitXor
from reservoir.tasks.images import Cifar10, Cifar10Lra
from reservoir.tasks.images.patches import augmented
from reservoir.tasks.listops import ListOps
from reservoir.tasks.rows import HELD_OUT, SHARES, held_out, row_hash, stratified
from reservoir.tasks.source import FRESH_ROWS, FreshRows

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


def test_memory_has_the_shape_of_the_paper():
    task = task_named("bit-memory").task
    assert (task.max_tokens, task.form.dim, task.readout_tokens, task.outputs, task.classes) == (120, 50, 20, 50, 2)


@pytest.mark.parametrize("parameters", [{}, {"n": 60, "patterns": 3, "token_bits": 12, "mask": 0.2}])
def test_memory_asks_for_one_of_the_strings(parameters):
    x, y = rows_of("bit-memory", train_rows=200, **parameters)
    n = parameters.get("n", 1000)
    strings, shown = x.reshape(200, -1, n)[:, :-1], x.reshape(200, -1, n)[:, -1]
    asked = 2 * y.reshape(200, 1, n) - 1
    assert (strings == asked).all(axis=2).any(axis=1).all()
    assert set(np.unique(strings)) == {-1, 1}
    assert np.array_equal(shown, np.where(shown == 0, 0, asked[:, 0]))
    assert abs((shown == 0).mean() - parameters.get("mask", 0.5)) < 0.02
    places = (strings == asked).all(axis=2).argmax(axis=1)
    assert set(places) == set(range(parameters.get("patterns", 5)))


def test_xor_has_the_shape_of_the_paper_and_its_sums():
    task = task_named("bit-xor").task
    assert (task.max_tokens, task.form.dim, task.readout_tokens, task.outputs, task.classes) == (10, 1, 5, 1, 2)
    x, y = rows_of("bit-xor", train_rows=3000)
    assert np.array_equal(x[:, :5] ^ x[:, 5:], y)
    assert abs(x.mean() - 0.5) < 0.02
    assert len(np.unique(x.reshape(3000, 10), axis=0)) > 900


@pytest.mark.parametrize("name", ["bit-memory", "bit-xor"])
def test_fewer_rows_are_the_first_of_more(name):
    small, _ = rows_of(name, train_rows=1500)
    large, _ = rows_of(name, train_rows=2600)
    assert np.array_equal(small, large[:1500])
    assert not np.array_equal(small, rows_of(name, train_rows=1500, seed=1)[0])
    assert not np.array_equal(small[:1000], rows_of(name, "valid")[0])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"n": 7, "token_bits": 2}, "whole number of tokens"), ({"mask": 1.5}, "probability"), ({"n": 0}, "above 0")],
)
def test_impossible_settings(parameters, message):
    with pytest.raises(InputError, match=message):
        task_named("bit-memory", **parameters)


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


def test_the_papers_bit_xor_keeps_its_key():
    assert "held_out" not in task_named("bit-xor").task.parameters


@pytest.mark.parametrize("source", GENERATED, ids=lambda source: source.task.name)
def test_a_row_is_the_same_whenever_it_is_asked_for(source):
    assert source.endless
    numbers = np.array([FRESH_ROWS + 3, 0, 5, 5, FRESH_ROWS - 1])
    rows, again = FreshRows(source, 7)(numbers), FreshRows(source, 7)
    for place, number in enumerate(numbers):
        one = again(np.array([number]))
        np.testing.assert_array_equal(one.x[0], rows.x[place])
        np.testing.assert_array_equal(one.y[0], rows.y[place])
        assert one.lengths[0] == rows.lengths[place]
    assert not np.array_equal(FreshRows(source, 8)(numbers).x, rows.x)


def test_fresh_rows_are_not_those_that_are_scored():
    source = GENERATED[1]
    fresh = {row.tobytes() for row in FreshRows(source, 0)(np.arange(3 * FRESH_ROWS)).x}
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
    assert abs(whole.mean() - HELD_OUT) < 0.01


@pytest.mark.parametrize("labels", [np.arange(1797) % 10, np.repeat(list("ab"), [20, 100])])
def test_stratified_divides_every_class_alike(labels):
    split = stratified(labels, SHARES)
    for label in np.unique(labels):
        members = split[labels == label]
        for name, share in SHARES.items():
            assert abs((members == name).sum() - share * len(members)) <= 1
