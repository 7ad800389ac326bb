"""Creating, opening and filling an entry."""

import json

import numpy as np
import pytest
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    Layout,
    load_arrays,
    publish_json,
    save_arrays,
    write_block,
    write_targets,
)


def test_the_folder_is_named_by_the_key(tmp_path, toy):
    entry = toy.entry(tmp_path)
    assert entry.path == tmp_path / "features" / "toy" / f"gpt2-random-{toy.spec().key[:16]}"
    assert Entry.open(entry.path) == entry
    assert entry.made_with == {"n": 1}


def test_an_existing_entry_keeps_its_layout(tmp_path, toy):
    first = toy.entry(tmp_path)
    again = Entry.create(tmp_path, "gpt2-random", toy.spec(), Layout(batch_rows=7, block_rows=9), {"n": 2})
    assert again == first
    assert again.layout == Layout(batch_rows=2, block_rows=4)
    assert again.made_with == {"n": 1}


def tamper(entry, change):
    """Change spec.json and give it a right checksum."""
    content = json.loads((entry.path / "spec.json").read_text())
    del content["crc32"]
    change(content)
    publish_json(entry.path / "spec.json", content, indent=2)


def test_a_specification_that_does_not_hash_to_its_key_is_refused(entry):
    tamper(entry, lambda content: content["spec"]["init"].update(seed=1))
    with pytest.raises(CacheError, match="hashes to"):
        Entry.open(entry.path)


def test_every_changed_byte_of_the_specification_is_found(entry):
    path = entry.path / "spec.json"
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        with pytest.raises(CacheError):
            Entry.open(entry.path)


def test_missing_shrinks_as_blocks_are_written(entry, toy):
    columns = list(toy.shapes)
    assert entry.missing("train", columns) == dict.fromkeys(range(3), tuple(columns))
    write_block(entry, "train", 1, toy.features(entry, "train", 1, columns[:2]))
    assert entry.missing("train", columns) == {0: tuple(columns), 1: (columns[2],), 2: tuple(columns)}
    assert entry.missing("train", columns[:2]) == {0: tuple(columns[:2]), 2: tuple(columns[:2])}
    toy.fill(entry)
    assert entry.missing("train", columns) == entry.missing("test", columns) == {}


def test_writing_what_is_there_writes_nothing(full, toy):
    before = toy.digest(full.path)
    other = {name: x + 1 for name, x in toy.features(full, "train", 0).items()}
    assert write_block(full, "train", 0, other) == 0
    write_targets(full, "train", toy.targets(10))
    assert toy.digest(full.path) == before


def test_the_order_of_the_blocks_does_not_change_a_byte(tmp_path, toy):
    forward = toy.fill(toy.entry(tmp_path / "a"))
    backward = toy.entry(tmp_path / "b")
    for split in ("train", "test"):
        for block in reversed(range(len(backward.blocks(split)))):
            arrays = toy.features(backward, split, block)
            write_block(backward, split, block, {name: arrays[name] for name in reversed(arrays)})
        write_targets(backward, split, toy.targets(backward.spec.rows[split]))
    assert toy.digest(backward.path) == toy.digest(forward.path)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("block01", np.zeros((4, 1, 3), np.float32), "layer/pooling"),
        ("../mean", np.zeros((4, 1, 3), np.float32), "layer|letters"),
        ("a/b/c", np.zeros((4, 1, 3), np.float32), "layer/pooling"),
        ("block01/mean", np.zeros((4, 3), np.float32), r"shape \(4, tokens, width\)"),
        ("block01/mean", np.zeros((3, 1, 3), np.float32), r"shape \(4, tokens, width\)"),
        ("block01/mean", np.zeros((4, 1, 3)), "float64"),
        ("block01/mean", np.zeros((4, 0, 3), np.float32), "shape"),
        ("block01/mean", np.zeros((4, 1, 5), np.float32), "other blocks have"),
    ],
)
def test_what_cannot_be_a_column_is_refused(entry, toy, name, array, message):
    write_block(entry, "train", 1, toy.features(entry, "train", 1, ["block01/mean"]))
    before = toy.digest(entry.path)
    with pytest.raises(CacheError, match=message):
        write_block(entry, "train", 0, {name: array})
    assert toy.digest(entry.path) == before


def test_a_value_that_is_not_finite_leaves_nothing_on_disk(entry, toy):
    arrays = toy.features(entry, "train", 2)
    arrays["final/last"][1, 0, 2] = np.nan
    with pytest.raises(CacheError, match="final/last, row 9, token 0, channel 2"):
        write_block(entry, "train", 2, arrays)
    assert not (entry.path / "train").exists()


def test_there_is_no_such_block_or_split(entry, toy):
    with pytest.raises(CacheError, match="blocks 0 to 2"):
        write_block(entry, "train", 3, {})
    with pytest.raises(CacheError, match="no split 'valid'; it has test, train"):
        entry.missing("valid", ["a/b"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros((10, 2))}, "y has shape"),
        ({"y": np.zeros((9, 1, 2))}, r"y has shape \(9, 1, 2\) .* 10 rows"),
        ({"lengths": np.zeros(9, int)}, "lengths has shape"),
        ({"index": np.array(["a"] * 10)}, "index has shape"),
        ({"more": np.zeros(10)}, "need y, lengths, index"),
    ],
)
def test_bad_targets(entry, toy, change, message):
    with pytest.raises(CacheError, match=message):
        write_targets(entry, "train", {**toy.targets(10), **change})


def test_derived_arrays_come_back_and_are_replaced(entry):
    arrays = {"sum/x": np.arange(6.0).reshape(2, 3), "n": np.array(7), "flags": np.array([True, False])}
    save_arrays(entry, "ridge", arrays, {"columns": ["a/b"], "scale": 0.5})
    found, meta = load_arrays(entry, "ridge")
    assert meta == {"columns": ["a/b"], "scale": 0.5}
    assert {name: (x.dtype, x.shape, x.tobytes()) for name, x in found.items()} == {
        name: (x.dtype, x.shape, x.tobytes()) for name, x in arrays.items()
    }
    save_arrays(entry, "ridge", {"n": np.array(8)}, {})
    assert load_arrays(entry, "ridge")[0]["n"] == 8
    assert load_arrays(entry, "other") is None
    with pytest.raises(CacheError, match="only numbers"):
        save_arrays(entry, "ridge", {"n": np.array(["x"])}, {})


def test_a_damaged_derived_file_reads_as_absent_at_every_byte(entry):
    save_arrays(entry, "ridge", {"n": np.arange(3)}, {"a": 1})
    path = entry.path / "moments" / "ridge.h5"
    good = path.read_bytes()
    for position in range(0, len(good), 97):
        path.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        assert load_arrays(entry, "ridge") is None
    path.write_bytes(good)
    assert load_arrays(entry, "ridge") is not None


def full_disk(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_one_line_and_leaves_nothing(entry, toy, monkeypatch):
    (entry.path / "train").mkdir()
    with entry.claim("train", 0):
        monkeypatch.setattr("reservoir_cache.publish.sync", full_disk)
        with pytest.raises(CacheError, match=r"00000-0\.h5: .*No space left on device.*check free space"):
            write_block(entry, "train", 0, toy.features(entry, "train", 0))
    assert list((entry.path / "train").iterdir()) == []


def test_moments_that_do_not_fit_on_the_disk_are_not_saved(entry, monkeypatch):
    assert save_arrays(entry, "ridge", {"n": np.arange(3)}, {})
    with monkeypatch.context() as patch:
        patch.setattr("reservoir_cache.publish.sync", full_disk)
        assert save_arrays(entry, "ridge", {"n": np.arange(4)}, {}) is False
    assert len(load_arrays(entry, "ridge")[0]["n"]) == 3


def test_times_that_the_system_refuses_to_set_cost_nothing_else(entry, toy, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.utime", refuse)
    again = toy.fill(Entry.open(toy.entry(entry.path.parents[2]).path))
    assert FeatureStore(again)["train"].rows == 10
