import json
import os
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tasks"))
import samples
from reservoir_pipelines import prepare
from reservoir_pipelines.files import part_beside
from reservoir_pipelines.preparation import prepare as stage
from reservoir_pipelines.preparation.prepared import Prepared, PreparedSplit

from reservoir.errors import InputError
from reservoir.tasks import task_named


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_prepared_rows_equal_those_of_the_source(cache):
    prepared = prepare("digits")
    source = task_named("digits")
    for name, split in source.read(source.pieces()[0]).items():
        stored = prepared.split(name)
        assert len(stored) == len(split) == prepared.rows[name]
        back = stored.read(3, 11)
        for array in ("x", "y", "lengths"):
            expected = getattr(split, array)[3:11]
            assert np.array_equal(getattr(back, array), expected) and getattr(back, array).dtype == expected.dtype
        assert np.array_equal(stored.y, split.y) and np.array_equal(stored.lengths, split.lengths)
        assert stored.read(5, 5).x.shape == (0, 16, 4)
    assert prepared.task == source.task
    assert np.array_equal(prepared.scaling.scale, source.scaling().scale)


def test_rows_between_wanted_ones_are_not_read(cache, tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(12000, 2, 1)).astype(np.float32)
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["x"], file["y"] = x, np.arange(12000) % 2
        file["split"] = np.array(["train"] * 10000 + ["valid"] * 1000 + ["test"] * 1000).astype("S5")
    train = prepare(str(tmp_path / "mine.h5")).split("train")
    whole = train.read(0, len(train))
    assert len(train.files) > 1
    read, real = [], PreparedSplit._read
    monkeypatch.setattr(PreparedSplit, "_read", lambda s, a, lo, hi: read.append((a, hi - lo)) or real(s, a, lo, hi))
    for index in (
        np.arange(4000, 4300),
        np.sort(np.random.default_rng(1).choice(10000, 40, replace=False)),
        [9999],
        [0],
    ):
        read.clear()
        taken = train.take(np.asarray(index))
        assert sum(rows for array, rows in read if array == "x") < 20 * len(index)
        for array in ("x", "y", "lengths"):
            assert np.array_equal(getattr(taken, array), getattr(whole, array)[index]), array


def test_rows_do_not_depend_on_their_division_into_files(cache, tmp_path):
    x = np.random.default_rng(0).normal(size=(9000, 2, 1)).astype(np.float32)
    arrays = {"x": x, "y": np.arange(9000) % 2, "split": np.array(["train", "valid", "test"] * 3000)}
    np.savez(tmp_path / "mine.npz", **arrays)
    (tmp_path / "h5").mkdir()
    with h5py.File(tmp_path / "h5" / "mine.npz.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array.astype("S5") if name == "split" else array
    one, many = prepare(str(tmp_path / "mine.npz")), prepare(str(tmp_path / "h5" / "mine.npz.h5"))
    assert len(one.split("train").files) == 1 and len(many.split("train").files) == 3
    for name in one.rows:
        a, b = one.split(name).read(1000, 2500), many.split(name).read(1000, 2500)
        assert np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y)
    assert one.digest != many.digest, "the name of the task is part of its description"
    (tmp_path / "h5" / "mine.npz.h5").rename(tmp_path / "h5" / "same.h5")
    (tmp_path / "same.h5").write_bytes((tmp_path / "h5" / "same.h5").read_bytes())
    assert prepare(str(tmp_path / "same.h5")).digest == prepare(str(tmp_path / "h5" / "same.h5")).digest


def test_a_second_prepare_reads_no_data(cache, monkeypatch):
    first = prepare("digits")
    assert not first.reused
    monkeypatch.setattr(stage, "_write", None)
    second = prepare("digits")
    assert second.reused and second.digest == first.digest


def test_equal_rows_have_equal_bytes(tmp_path):
    one, two = prepare("digits", cache=tmp_path / "a"), prepare("digits", cache=tmp_path / "b")
    assert contents(one.path) == contents(two.path)


def test_changed_files_are_noticed_and_old_data_stays(cache, tmp_path):
    samples.mnist_files(tmp_path / "data")
    first = prepare("mnist", data=tmp_path / "data")
    before = contents(first.path)
    samples.mnist_files(tmp_path / "data", train=80)
    second = prepare("mnist", data=tmp_path / "data")
    assert second.path != first.path and sum(second.rows.values()) == 92
    assert contents(first.path) == before


def test_plain_and_packed_files_have_one_digest(cache, tmp_path):
    for packed in (False, True):
        samples.mnist_files(tmp_path / str(packed), packed=packed)
    assert len({prepare("mnist", data=tmp_path / str(p)).digest for p in (False, True)}) == 1


def test_prepared_data_is_used_when_its_source_is_missing(cache, tmp_path, monkeypatch):
    samples.mnist_files(tmp_path / "data")
    monkeypatch.setenv("RESERVOIR_DATA", str(tmp_path / "data"))
    first = prepare("mnist")
    monkeypatch.delenv("RESERVOIR_DATA")
    assert prepare("mnist").digest == first.digest


def test_a_failed_run_leaves_nothing(cache, tmp_path):
    samples.mnist_files(tmp_path / "data")
    labels = tmp_path / "data" / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte.*promises 12 bytes.*9 follow"):
        prepare("mnist", data=tmp_path / "data")
    assert not [p for p in cache.rglob("*") if p.is_file()]


def test_leftovers_of_a_killed_run_are_removed(cache, tmp_path):
    prepared = prepare("digits")
    mine = part_beside(prepared.path.parent / "data")
    leftover = mine.with_name(mine.name.replace(f"{os.getpid():08x}", f"{2**22 + 7:08x}"))
    (leftover / "train").mkdir(parents=True)
    (prepared.path / "train" / "00000.h5").unlink()
    again = prepare("digits")
    assert again.digest == prepared.digest and not again.reused
    assert not leftover.exists()


def test_a_damaged_file_is_named(cache):
    prepared = prepare("digits")
    file = prepared.path / "test" / "00000.h5"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=str(file)):
        Prepared.open(prepared.path)
    index = prepared.path / "prepared.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"version": 99}))
    with pytest.raises(InputError, match="checksum does not match"):
        Prepared.open(prepared.path)


def test_missing_data_says_what_to_do(cache, tmp_path):
    with pytest.raises(InputError, match="--data DIR or RESERVOIR_DATA"):
        prepare("mnist")
    with pytest.raises(InputError, match="nowhere does not exist"):
        prepare("mnist", data=tmp_path / "nowhere")
    with pytest.raises(InputError, match="train, valid, test"):
        prepare("digits").split("dev")


def test_notes_on_own_data_are_stored_and_printed(tmp_path, cache):
    x = (2048 + 400 * np.sin(np.arange(50) / 9 + np.arange(60)[:, None])).astype(int)
    np.savez(tmp_path / "counts.npz", x=x, y=np.arange(60) % 2)
    for _ in range(2):
        (note,) = prepare(str(tmp_path / "counts.npz")).notes()
        assert note.startswith("counts.npz: x read as values (neighbours differ by")
    assert prepare(str(tmp_path / "counts.npz"), values=True).notes() == []
