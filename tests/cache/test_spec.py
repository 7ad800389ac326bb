"""The key: the same for the same numbers, another for any other."""

import json
import os
import subprocess
import sys

import pytest
from reservoir_cache import CacheError, Layout, Spec
from reservoir_cache.spec import canonical_json


def reordered(value):
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(list(value))}
    return value


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path


def test_every_field_changes_the_key(toy):
    paths = list(leaves(toy.spec().to_dict()))
    assert len(paths) == 19
    for path in paths:
        values = toy.spec().to_dict()
        inner = values
        for key in path[:-1]:
            inner = inner[key]
        old = inner[path[-1]]
        inner[path[-1]] = "float32" if path == ("store",) else old + 1 if not isinstance(old, str) else old + "x"
        assert Spec.from_dict(values).key != toy.spec().key, path


def test_key_does_not_depend_on_order_or_on_how_a_number_is_written(toy):
    spec = toy.spec()
    assert Spec.from_dict(reordered(spec.to_dict())).key == spec.key
    written = {**spec.input, "seed": 0.0, "patch": 1.0}
    assert toy.spec(input=written).key == spec.key
    assert toy.spec(task={**spec.task, "x": (1, 2)}).key == toy.spec(task={**spec.task, "x": [1, 2]}).key
    assert toy.spec(task={**spec.task, "x": -0.0}).key == toy.spec(task={**spec.task, "x": 0}).key
    assert toy.spec(task={**spec.task, "x": True}).key != toy.spec(task={**spec.task, "x": 1}).key
    assert toy.spec(task={**spec.task, "x": 1e16}).key == toy.spec(task={**spec.task, "x": 10**16}).key


def test_key_is_the_same_in_another_process(toy):
    code = "import json,sys; from reservoir_cache import Spec; print(Spec.from_dict(json.load(sys.stdin)).key)"
    for seed in "12":
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(toy.spec().to_dict()),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == toy.spec().key


def test_a_later_change_of_the_callers_dictionary_changes_nothing(toy):
    task = {"name": "toy", "nested": {"a": [1]}}
    spec = toy.spec(task=task)
    before = canonical_json(spec.to_dict())
    task["nested"]["a"].append(2)
    spec.to_dict()["task"]["nested"]["a"].append(3)
    assert canonical_json(spec.to_dict()) == before


def test_unknown_and_missing_fields_are_named(toy):
    values = toy.spec().to_dict()
    with pytest.raises(CacheError, match="batch"):
        Spec.from_dict({**values, "batch": 3})
    del values["padding"]
    with pytest.raises(CacheError, match="padding"):
        Spec.from_dict(values)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 9])
def test_blocks_cover_the_rows_once(rows):
    blocks = Layout(batch_rows=2, block_rows=4).blocks(rows)
    assert [row for low, high in blocks for row in range(low, high)] == list(range(rows))
    assert all(high - low == 4 for low, high in blocks[:-1])


@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_layout_refuses(value):
    with pytest.raises(CacheError, match="batch_rows"):
        Layout(batch_rows=value)
