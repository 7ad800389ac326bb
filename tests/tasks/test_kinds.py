"""Whole numbers that name and whole numbers that measure, in files and by the rule itself."""

import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import Tokens, Vectors, read_integers, read_labels, task_named

RNG = np.random.default_rng(0)
TIME = np.arange(100)
WAVES = np.sin(TIME * RNG.uniform(0.05, 0.3, (300, 1)) + 6 * RNG.random((300, 1)))


def zipf(vocabulary, rows, tokens):
    """Draw words as often as words are used, with numbers in no order."""
    chance = 1 / np.arange(1, vocabulary + 1)
    return RNG.permutation(vocabulary)[RNG.choice(vocabulary, (rows, tokens), p=chance / chance.sum())]


NAMES = {
    "DNA": RNG.integers(0, 4, (300, 100)),
    "few DNA": RNG.integers(0, 4, (10, 5)),
    "bits": RNG.integers(0, 2, (300, 100)),
    "states with long stays": np.repeat(RNG.integers(0, 6, (300, 10)), 10, axis=1),
    "text": np.frombuffer((__doc__ * 40).encode(), np.uint8)[:3000].reshape(-1, 100),
    "words": zipf(50_000, 300, 100),
    "few words": zipf(20_000, 40, 30),
}
VALUES = {
    "counts": (2048 + 400 * WAVES).astype(int),
    "noisy counts": (2048 + 400 * (WAVES + RNG.normal(size=WAVES.shape))).astype(int),
    "counts that overflow": np.clip(2048 + 1500 * (WAVES + RNG.normal(size=WAVES.shape)), 0, 4095).astype(int),
    "bytes": (128 + 100 * WAVES).astype(np.uint8),
    "ten levels": np.rint(4.5 + 4.5 * WAVES).astype(int),
    "below zero": (100 * WAVES).astype(int),
    "large": RNG.integers(0, 10**9, (300, 100)),
}


@pytest.mark.parametrize("name", [*NAMES, *VALUES])
def test_the_rule(name):
    x = (NAMES | VALUES)[name]
    assert read_integers(x).names == (name in NAMES), read_integers(x).why
    # What follows the lengths is padding, and says nothing.
    lengths = np.full(len(x), x.shape[1])
    assert read_integers(np.pad(x, ((0, 0), (0, 50))), lengths).names == (name in NAMES)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.arange(300) % 7, True),
        (np.arange(600) % 100 + 1, True),
        (RNG.permutation(np.arange(1195).repeat(10)), True),
        (np.array([3, 5] * 10), True),
        (np.array([0, 1]), True),
        (RNG.integers(18, 91, 1000), False),
        (RNG.poisson(300, 500), False),
        (np.arange(30), False),
        (np.array([-1, 1] * 4), True),
        (np.rint(5 * RNG.normal(size=60)).astype(int), False),
        (np.repeat([10, 20, 50], 20), True),
    ],
)
def test_the_rule_for_labels(y, classes):
    assert read_labels(y).names == classes


def own(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_sensor_counts_are_read_as_values_with_a_note(tmp_path):
    path = own(tmp_path / "a.npz", x=VALUES["counts"], y=np.arange(300) % 2)
    source = task_named(path)
    assert source.task.form == Vectors(1)
    assert any("a.npz: x read as values (neighbours differ" in note for note in source.notes())
    assert np.array_equal(source.scaling().offset, task_named(path, values=True).scaling().offset)
    assert task_named(path, symbols=True).task.form == Tokens(int(VALUES["counts"].max()) + 1)
    assert task_named(path, values=True).notes() == []


def test_integer_targets_are_read_as_a_regression_with_a_note(tmp_path):
    y = RNG.integers(18, 91, 300)
    path = own(tmp_path / "a.npz", x=RNG.normal(size=(300, 4)), y=y)
    source = task_named(path)
    assert source.task.classes == 0 and any("y read as targets of a regression" in note for note in source.notes())
    assert task_named(path, classes=True).task.classes == len(np.unique(y))
    assert (
        task_named(
            own(tmp_path / "b.npz", x=RNG.normal(size=(30, 4)), y=np.arange(30) % 3), regression=True
        ).task.classes
        == 0
    )
    whole = task_named(own(tmp_path / "c.npz", x=RNG.normal(size=(30, 4)), y=np.arange(30) % 3 / 1.0))
    assert whole.task.classes == 0 and any("y holds whole floats" in note for note in whole.notes())
    assert task_named(str(tmp_path / "c.npz"), classes=True).task.classes == 3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"values": True, "symbols": True}, "--values --symbols: give one"),
        ({"regression": True, "classes": True}, "--regression --classes: give one"),
        ({"missing": "mean"}, "--missing mean: choose among refuse, interpolate, mask"),
        ({"classes": True}, "numbers that are not whole"),
        ({"symbols": True}, "is no symbol"),
    ],
)
def test_contradicting_flags_are_refused(tmp_path, parameters, message):
    path = own(tmp_path / "a.npz", x=RNG.normal(size=(30, 4)), y=RNG.normal(size=30))
    with pytest.raises(InputError, match=message):
        (source := task_named(path, **parameters)).read(source.pieces()[0])
