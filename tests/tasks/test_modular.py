"""Modular addition: all pairs, their sums, and splits that keep a pair and its swap together."""

import pytest

from reservoir.errors import InputError
from reservoir.tasks import encode, task_named


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
    x, lengths = encode(source.task, splits["test"].x)
    assert (lengths == 3).all() and x is splits["test"].x


def test_a_modulus_below_two_is_refused():
    with pytest.raises(InputError, match="modulus is 1; give"):
        task_named("modular-addition", modulus=1)
