import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import check_split, task_named


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
