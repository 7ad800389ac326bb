"""Features of another program become an entry that can be verified, fitted, concatenated and reported."""

import io
import json
import os
import zipfile

import h5py
import numpy as np
import pytest
from reservoir_pipelines import extract, fit, import_features, prepare, report
from reservoir_pipelines.extraction import import_features as stage
from safetensors.numpy import save_file

from reservoir import size_limits
from reservoir.errors import InputError

pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

ROWS = {"train": 40, "valid": 20, "test": 20}
DRAW = np.random.default_rng(0)


@pytest.fixture
def own(cache, tmp_path):
    x, split = DRAW.normal(size=(80, 6, 1)), np.repeat([*ROWS], [*ROWS.values()])
    np.savez(tmp_path / "own.npz", x=x, y=(x.mean(axis=(1, 2)) > 0).astype(int), split=split)
    prepared = prepare(tmp_path / "own.npz")
    assert prepared.rows == ROWS
    deep = {f"{name}/deep": prepared.split(name).read(0, rows).x[:, :, 0] for name, rows in ROWS.items()}
    wide = {f"{name}/wide/max": DRAW.normal(size=(rows, 3)).astype(np.float32) for name, rows in ROWS.items()}
    return str(tmp_path / "own.npz"), deep | wide


def write_table(path, arrays):
    """Write arrays as columns of lists, with the rows of all splits mixed and in row groups of 7 rows."""
    names = DRAW.permutation(np.repeat([*ROWS], [*ROWS.values()]))
    columns = {column: [None] * 80 for column in ("deep", "wide/max")}
    for split in ROWS:
        for column, cells in columns.items():
            for row, values in zip(np.flatnonzero(names == split), arrays[f"{split}/{column}"], strict=True):
                cells[row] = values
    parquet.write_table(pyarrow.table({"split": names, **columns}), path, row_group_size=7)


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")


WRITERS = {
    "f.npz": lambda path, arrays: np.savez(path, **arrays),
    "packed.npz": lambda path, arrays: np.savez_compressed(path, **arrays),
    "f.h5": write_hdf5,
    "f.safetensors": lambda path, arrays: save_file(arrays, path),
    "f.parquet": write_table,
}


def test_a_file_that_changes_while_it_is_imported_is_refused(own, tmp_path, monkeypatch):
    task, arrays = own
    write_hdf5(tmp_path / "f.h5", arrays)
    real = stage.compute_missing

    def change(*arguments):
        os.utime(tmp_path / "f.h5")
        return real(*arguments)

    monkeypatch.setattr(stage, "compute_missing", change)
    with pytest.raises(InputError, match=r"f\.h5: changed while it was read; run the command again"):
        import_features(tmp_path / "f.h5", task=task, name="other")


def test_every_format_gives_the_same_entry_however_small_its_blocks(own, tmp_path, monkeypatch):
    task, arrays = own
    keys, blocks = set(), []
    for name, write in WRITERS.items():
        monkeypatch.setattr("reservoir_cache.spec.BLOCK_BYTES", 36 * 11 if len(blocks) % 2 else 2**24)
        write(tmp_path / name, arrays)
        done = import_features(tmp_path / name, task=task, name="lab", cache=tmp_path / name.replace(".", "-"))
        keys.add(done.store.entry.key)
        blocks.append(done.store.entry.block_count("train"))
        assert done.columns == ("deep/mean", "wide/max") and done.computed_rows == 80
        for key, array in arrays.items():
            split, _, column = key.partition("/")
            assert np.array_equal(done[split][column if "/" in column else f"{column}/mean"], array)
    assert len(keys) == 1 and blocks == [1, 4, 1, 4, 1]
    arrays["test/deep"][3, 2] += 1
    np.savez(tmp_path / "other.npz", **arrays)
    assert import_features(tmp_path / "other.npz", task=task, name="lab").store.entry.key not in keys


def test_columns_of_floats_are_read_side_by_side_in_tables_of_bounded_size(own, tmp_path):
    task, arrays = own
    splits = np.repeat([*ROWS], [*ROWS.values()])
    deep = np.concatenate([arrays[f"{split}/deep"] for split in ROWS])
    table = pyarrow.table({"id": np.arange(80), "split": splits, "a": deep[:, 0], "b": deep[:, 1]})
    parquet.write_table(table, tmp_path / "f.parquet")
    done = import_features(tmp_path / "f.parquet", task=task, name="lab")
    assert done.columns == ("imported/mean",)
    assert np.array_equal(done["valid"]["imported/mean"], arrays["valid/deep"][:, :2])
    parquet.write_table(pyarrow.table({"a": pyarrow.array([np.zeros(2**16)] * 300)}), tmp_path / "f.parquet")
    with pytest.raises(InputError, match="'all columns' claims"):
        import_features(tmp_path / "f.parquet", task=task, name="lab")


def test_imported_features_are_fitted_joined_shown_and_reported(own, tmp_path, narrow_mini, call, refusal, answer):
    task, arrays = own
    np.savez(tmp_path / "f.npz", **{split: arrays[f"{split}/deep"] for split in ROWS})
    flags = "--task", task, "--name", "lab"
    first, again = (call("import-features", tmp_path / "f.npz", *flags, "--json") for _ in range(2))
    assert json.loads(first[1])["computed_rows"] == 80
    entry = json.loads(again[1])["entry"]
    assert json.loads(again[1])["reused"] and "cached already" in again[2]
    assert "imported/mean" in call("cache", "show", task)[1]
    best = answer("fit", task, "--columns", "imported/mean")["best"]
    assert best["columns"] == ["imported/mean"] and best["test_score"] > 0.8
    mini = extract(task, layers="block01", pool="mean")
    joined = fit([mini, entry], columns="1:block01/mean+2:imported/mean", out=tmp_path / "joined")
    assert report([joined.saved.parent], out=tmp_path / "page.html").parts == 1
    error = refusal("predict", tmp_path / "joined", task)
    assert "imported/mean, features that another program computed" in error and error.endswith("an extraction instead")
    assert "does not record how it was extracted" in refusal("fit", entry, "--seeds", "2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"valid": np.zeros((19, 6))}, r"array 'valid' has the shape \(19, 6\); give .* valid \(20 rows\)"),
        ({"valid": None}, r"column imported/mean has train \(40, 6\), test \(20, 6\); give train, valid, test of one"),
        ({"test": np.zeros((20, 5))}, r"column imported/mean has .*test \(20, 5\); give train, valid, test of one"),
        ({"train": np.zeros((40, 2, 3))}, r"array 'train' has the shape \(40, 2, 3\); give arrays \(rows, width\)"),
        ({"extra": np.zeros((40, 6))}, r"array 'extra' has the shape .* test \(20 rows\), or SPLIT/COLUMN"),
        (
            {"test": np.where(np.arange(120).reshape(20, 6) == 50, np.nan, 0)},
            "mean, row 8, column 2: the value is not a fin",
        ),
        ({"test": np.full((20, 6), 1e39)}, "row 0, column 0: the value is not a finite float32 number"),
        ({"test": np.full((20, 6), "x")}, "features cannot be read .Cannot cast array data from dtype.'<U1'"),
        ({"test": np.full((20, 6), None)}, "array 'test' holds Python objects"),
    ],
)
def test_arrays_that_are_not_the_rows_of_the_task_are_refused(own, tmp_path, change, message):
    task, arrays = own
    arrays = {split: arrays[f"{split}/deep"] for split in ROWS} | change
    np.savez(tmp_path / "f.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=message):
        import_features(tmp_path / "f.npz", task=task, name="lab")
    assert not list(tmp_path.rglob("spec.json"))


@pytest.mark.parametrize("name", ["f.npz", "f.h5", "f.parquet", "f.safetensors", "f.txt"])
def test_files_that_are_no_features_are_refused_in_one_line(own, tmp_path, name):
    (tmp_path / name).write_bytes(b"no features" * 9)
    with pytest.raises(InputError, match=r"features cannot be read|not a readable") as refused:
        import_features(tmp_path / name, task=own[0], name="lab")
    assert "\n" not in str(refused.value)


def test_a_member_without_suffix_that_unpacks_to_far_more_is_refused(own, tmp_path, monkeypatch):
    monkeypatch.setattr(size_limits, "FREE_BYTES", 10_000)
    np.save(large := io.BytesIO(), np.zeros((40, 10_000)))
    np.savez(tmp_path / "f.npz", **{split: own[1][f"{split}/deep"] for split in ROWS})
    with zipfile.ZipFile(tmp_path / "f.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train", large.getvalue())  # beside train.npy
    with pytest.raises(InputError, match="array 'train' claims"):
        import_features(tmp_path / "f.npz", task=own[0], name="lab")
