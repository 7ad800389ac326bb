"""Endless rows of generated tasks, and augmented views of stored images."""

import numpy as np
import pytest

from reservoir.tasks.bits import BitMemory, BitXor
from reservoir.tasks.images import Cifar10, Cifar10Lra, Digits, Mnist
from reservoir.tasks.images.patches import augmented
from reservoir.tasks.listops import ListOps
from reservoir.tasks.source import FRESH_ROWS, FreshRows

GENERATED = [
    BitXor(n=4, train_rows=30),
    BitMemory(n=20, patterns=2, token_bits=5, train_rows=30),
    ListOps(min_length=64, max_length=80, source="generated"),
]


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


def test_other_tasks_have_neither():
    for source in (Digits(), Mnist(), ListOps(protocol="paper"), ListOps(min_length=5, max_length=20)):
        assert not source.endless and not source.augments


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
