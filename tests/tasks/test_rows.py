import numpy as np
import pytest

from reservoir.tasks.rows import HELD_OUT, SHARES, held_out, row_hash, stratified


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


def test_seeds_are_unrelated():
    rows = np.arange(1000)
    assert not set(row_hash(rows, 1).tolist()) & set(row_hash(rows, 2).tolist())
