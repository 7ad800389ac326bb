"""Keyed generators: the numbers of a decision depend on all its parts and on nothing else."""

import hashlib

import numpy as np

from reservoir.random import generator, random_key


def test_a_generator_is_philox_keyed_by_its_parts():
    key = int.from_bytes(hashlib.sha256(b"7/wpe.weight").digest()[:16], "big")
    expected = np.random.Generator(np.random.Philox(key=key)).random(5)
    np.testing.assert_array_equal(generator(7, "wpe.weight").random(5), expected)
    assert random_key("a", 1, size=8) == int.from_bytes(hashlib.sha256(b"a/1").digest()[:8], "big")


def test_different_parts_give_different_numbers():
    draws = {generator(*parts).random() for parts in ((0,), (1,), (0, "a"), ("a", 0), (0, "b"))}
    assert len(draws) == 5
