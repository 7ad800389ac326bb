"""Features leave the cache as files of other programs, and those of other programs become entries."""

import io
import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from reservoir_cache import FeatureStore, repair
from reservoir_pipelines import export_features, extract, fit, import_features, prepare, report
from reservoir_pipelines.extraction import entries
from reservoir_pipelines.extraction import export_features as exporting
from reservoir_pipelines.extraction import import_features as importing
from reservoir_pipelines.extraction.extract import find_entry
from reservoir_pipelines.extraction.feature_files import FILE_FORMATS, Stored
from reservoir_pipelines.files import write_checked
from safetensors.numpy import save_file

from reservoir import file_checks
from reservoir.errors import InputError
from reservoir.plan.precision import BLOCK_ROWS
from tests.cache.conftest import features as toy_features
from tests.cache.conftest import make_entry, write_block, write_targets
from tests.tasks.samples import write_csv

pytest.importorskip("pyarrow")


@pytest.fixture
def own(cache, tmp_path, narrow_mini, monkeypatch):
    """Return a file of 80 rows with ids and groups, which are extracted to shards of 16 rows, two offsets each."""
    monkeypatch.setitem(BLOCK_ROWS, "cpu", 8)
    monkeypatch.setattr(entries, "MIN_BLOCKS", 5)
    draw, split = np.random.default_rng(0), np.repeat(["train", "valid", "test"], [40, 20, 20])
    x, ids = draw.normal(size=(80, 6, 1)), [f"é{row}" for row in range(80)]
    y, groups = (x.mean(axis=(1, 2)) > 0).astype(int), np.arange(80) // 2
    np.savez(tmp_path / "own.npz", x=x, y=y, split=split, ids=ids, groups=groups)
    return tmp_path / "own.npz"


def extracted(own, **options):
    return extract(own, layers="block01,block02", pool="mean,std", **options)


def same_values(features, others):
    for split in features:
        one, other = features[split], others[split]
        assert one.columns == other.columns
        for column in one:
            assert np.array_equal(one[column][:].view(np.uint32), other[column][:].view(np.uint32))
        for name in ("labels", "lengths", "index", "ids", "groups"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert (mine is None and theirs is None) or np.array_equal(mine, theirs)
    return True


@pytest.mark.parametrize("store", ["float16", "bfloat16", "float32"])
def test_export_and_import_give_the_same_values(own, tmp_path, store):
    features = extracted(own, store=store)
    assert features.store.entry.layout.block_rows == 16 and features.store.entry.layout.offset_rows == 8
    for storage in FILE_FORMATS:
        done = export_features(features, to=tmp_path / storage, format=storage)
        assert done.rows == {"train": 40, "valid": 20, "test": 20} and done.bytes > 80 * 4 * 32 * 4
        imported = import_features(tmp_path / storage, task=own, cache=tmp_path / f"cache of {storage}")
        assert not imported.reused and imported.columns == done.columns == tuple(features["train"])
        assert same_values(features, imported)


def test_imported_features_give_the_same_results_and_are_joined_with_their_source(own, tmp_path):
    features = extracted(own)
    imported = import_features(export_features(features, to=tmp_path / "out", format="npy").folder, task=own)
    results = [fit(each, out=tmp_path / name).results for name, each in (("old", features), ("new", imported))]
    assert results[0].read_bytes() == results[1].read_bytes()
    assert results[0].with_name("predictions.csv").read_bytes() == results[1].with_name("predictions.csv").read_bytes()
    # They are the same rows, so that columns of both can be joined.
    assert fit([features, imported], columns="1:block01/mean+2:block02/std").best.columns[1] == "2:block02/std"


@pytest.mark.parametrize("storage", FILE_FORMATS)
def test_an_export_needs_neither_the_data_nor_the_cache_of_its_entry(own, tmp_path, storage, capsys):
    features = extracted(own, limit=18)
    export_features(features, to=tmp_path / "out", format=storage)
    columns = {split: {name: features[split][name][:] for name in features[split]} for split in features}
    before = fit(features, columns="block01/mean,block02/std").table
    own.unlink()
    again = import_features(tmp_path / "out", cache=tmp_path / "other")
    for split, values in columns.items():
        assert all(np.array_equal(again[split][name][:], values[name]) for name in values)
        assert list(again[split].ids) == list(features[split].ids) and again[split].ids[0].startswith("é")
        assert np.array_equal(again[split].index, features[split].index) and len(again[split].groups) == 18
    done = fit(again, columns="block01/mean,block02/std")
    assert done.table == before and done.raw is None and done.baselines == ()
    assert "the prepared data is missing; import the folder with --task to compare" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"hold other data; extract .*, or import all folders with \(or all without"):
        fit([features, again])
    # Another export of the same features becomes the same entry, and still says who computed them.
    second = export_features(again, to=tmp_path / "second", format="npy")
    assert import_features(second.folder, cache=tmp_path / "other").entry == again.entry
    assert "`mini` (gpt2, pretrained: as published)" in second.card.read_text()
    assert import_features(second.folder, cache=tmp_path / "other").reused


def test_a_label_and_a_vector_per_token_survive(cache, tmp_path):
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("AGV"), draw.integers(4, 10))) for _ in range(30)]
    rows = [(word, "".join("HCE"["AGV".index(letter)] for letter in word)) for word in words]
    path = write_csv(tmp_path / "each.csv", rows, "sequence,label")
    small = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "block01"}
    features = extract(path, **small)
    assert features["train"]["block01/all"].ndim == 3 and features["train"].labels.shape[1] == 9
    expected = fit(features, select="valid").best
    for storage in FILE_FORMATS:
        export_features(features, to=tmp_path / storage, format=storage)
        for task in (path, None):
            imported = import_features(tmp_path / storage, task=task, cache=tmp_path / f"cache of {storage}")
            assert not imported.reused and same_values(features, imported)
            assert fit(imported, select="valid").best == expected


def test_other_programs_read_the_files(own, tmp_path):
    features = extracted(own)
    for storage in FILE_FORMATS:
        export_features(features, to=tmp_path / storage, format=storage)
    train = features["train"]
    import pyarrow.parquet
    from safetensors.numpy import load_file

    table = pyarrow.parquet.ParquetFile(tmp_path / "parquet" / "train.parquet")
    assert str(table.schema_arrow.field("block02/std").type) == "fixed_size_list<element: float>[32]"
    assert table.num_row_groups == 3  # one for each shard, so that none is larger in memory
    cells = table.read()
    assert np.array_equal(np.stack(cells.to_pandas()["block02/std"]), train["block02/std"])
    assert cells["ids"].to_pylist() == list(train.ids) and cells["y"].to_pylist() == list(train.y)
    tensors = load_file(tmp_path / "safetensors" / "train.safetensors")
    assert np.array_equal(tensors["block02/std"], train["block02/std"]) and np.array_equal(tensors["y"], train.y)
    assert json.loads((tmp_path / "safetensors" / "train.json").read_text()) == {"ids": list(train.ids)}
    array = np.load(tmp_path / "npy" / "train" / "block02" / "std.npy", mmap_mode="r")
    assert isinstance(array, np.memmap) and np.array_equal(array, train["block02/std"])
    assert list(np.load(tmp_path / "npy" / "train" / "ids.npy")) == list(train.ids)


@pytest.mark.parametrize("package", ["polars", "duckdb", "datasets"])
def test_the_lines_of_the_card_read_the_parquet_files(own, tmp_path, package):
    pytest.importorskip(package)
    done = export_features(extracted(own), to=tmp_path / "out", format="parquet")
    line = next(line.strip() for line in done.card.read_text().splitlines() if line.strip().startswith(package))
    code = f"import {package}; print(len({line.replace('FOLDER', '.')}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "out", check=True, capture_output=True).stdout


@pytest.mark.parametrize("storage", FILE_FORMATS)
def test_an_export_holds_one_block_in_memory(cache, tmp_path, storage):
    rows, blocks, width = 64, 20, 3000
    entry = make_entry(tmp_path, block_rows=rows, data={"digest": "d", "rows": {"train": rows * blocks}}, task=TASK)
    write_targets(entry, "train", labels(rows * blocks))
    for block in range(blocks):
        write_block(entry, "train", block, {"embed/mean": np.full((rows, 1, width), block, np.float32)})
    export_features(entry.path, to=tmp_path / "first", format=storage)  # so that everything is imported
    tracemalloc.start()
    export_features(entry.path, to=tmp_path / "out", format=storage)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * rows * width * 4  # stored, decoded and written; the column has 20 blocks


TASK = {"name": "toy", "form": {"vectors": 1}, "max_tokens": 5, "classes": 2, "labels": [], "parameters": {},
        "readout_tokens": 1, "outputs": 1}  # fmt: skip


def labels(rows):
    y = np.arange(rows).reshape(rows, 1, 1) % 2
    ids = np.array([f"row {row}" for row in range(rows)])
    return {"y": y, "lengths": np.full(rows, 5, np.int32), "index": np.arange(rows), "ids": ids}


@pytest.fixture
def toy(cache, tmp_path):
    """Return the folder of an entry with three columns, which no stage has made."""
    entry = make_entry(cache, task=TASK)
    for split, rows in entry.spec.rows.items():
        write_targets(entry, split, labels(rows))
        for block in range(entry.block_count(split)):
            write_block(entry, split, block, toy_features(entry, split, block))
    return entry.path


def test_a_command_names_an_entry_by_its_key_and_exports_some_columns(toy, tmp_path, answer, refusal, monkeypatch):
    key = FeatureStore(toy).entry.key
    flags = ("--to", tmp_path / "a", "--columns", "final/last, block01/mean")
    done = answer("export-features", key[:9], *flags)
    assert done["format"] == "parquet" and done["columns"] == ["final/last", "block01/mean"]
    assert answer("import-features", tmp_path / "a")["columns"] == ["block01/mean", "final/last"]
    assert "exists already" in refusal("export-features", key[:9], *flags)
    assert "column 'a/b': not cached" in refusal("export-features", toy, "--to", tmp_path / "b", "--columns", "a/b")
    assert "--format csv: choose among" in refusal("export-features", toy, "--to", tmp_path / "b", "--format", "csv")
    monkeypatch.setattr("reservoir_pipelines.extraction.feature_files.find_spec", lambda name: None)
    assert answer("export-features", toy, "--to", tmp_path / "b")["format"] == "safetensors"


def test_the_card_names_the_model_the_commands_and_every_file(own, tmp_path):
    features = extracted(str(own.absolute()))
    done = export_features(features, to=tmp_path / "out", format="parquet")
    text = done.card.read_text()
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["configs"][0]["data_files"][0] == {"split": "train", "path": "train.parquet"}
    assert "# license: name the licence" in head
    assert features.store.entry.spec.backbone.digest in body and features.store.entry.key in body
    assert "    reservoir extract own.npz --layers block01,block02 --pool mean,std\n" in body
    assert f"    reservoir export-features {features.store.entry.path.name} --to out --format parquet" in body
    description = json.loads((tmp_path / "out" / "features.json").read_text())
    assert [*description["files"]] == ["train.parquet", "valid.parquet", "test.parquet"]
    for name, line in description["files"].items():
        assert f"| `{name}` | {line['rows']} | {line['bytes']:,} | `{line['sha256']}` |" in body
    assert str(tmp_path) not in text + json.dumps(description)


def test_a_failed_export_leaves_nothing(toy, tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "file_digest", fail)
    code, _, err = call("export-features", toy, "--to", tmp_path / "new" / "out")
    assert code == 2 and "cannot be written (No space left on device); name another folder with --to" in err
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("storage", FILE_FORMATS)
def test_every_changed_byte_and_every_missing_file_is_refused(toy, tmp_path, refusal, storage):
    folder = tmp_path / "out"
    export_features(toy, to=folder, format=storage)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) > 2
    for path in files:
        good = path.read_bytes()
        for change in (good[:-3], good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], None):
            path.unlink()
            if change is not None:
                path.write_bytes(change)
            assert str(folder) in refusal("import-features", folder)
        path.write_bytes(good)
    (folder / "README.md").write_text("my own words")
    assert import_features(folder).computed_rows == 14


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"storage": "pickle"},
        {"storage": "npy"},
        {"title": "../../up"},
        {"title": 5},
        {"columns": {"../../etc": [1, 3]}},
        {"columns": {}},
        {"columns": {"block01/mean": [1, 4], "block02/all": [5, 2], "final/last": [1, 3]}},
        {"columns": {"block01/mean": [True, 3], "block02/all": [5, 2], "final/last": [1, 3]}},
        {"layout": {"block_rows": 3, "batch_rows": 2}},
        {"layout": {"block_rows": 10**15, "batch_rows": 2}},
        {"spec": None},
        {"source": {}},
        {"source": None},
        {"kept": {}},
        {"files": {"../../etc/passwd": {"rows": 1, "bytes": 1, "sha256": ""}}},
        {"more": 1},
    ],
)
def test_a_description_that_was_changed_with_its_checksum_is_refused(toy, tmp_path, refusal, change):
    folder = tmp_path / "out"
    export_features(toy, to=folder, format="parquet")
    values = json.loads((folder / "features.json").read_text())
    del values["sha256"]
    write_checked(folder / "features.json", values | change)
    refusal("import-features", folder)
    assert not list(tmp_path.rglob("*imported*"))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"rows": {"train": 10**12, "test": 4}}, "has other rows than its description"),
        ({"rows": {"train": 9, "test": 4}}, "has other rows than its description"),
    ],
)
def test_a_description_of_other_rows_is_refused(toy, tmp_path, refusal, spec, problem):
    folder = tmp_path / "out"
    export_features(toy, to=folder, format="parquet")
    values = json.loads((folder / "features.json").read_text())
    del values["sha256"]
    values["spec"]["data"] |= spec
    write_checked(folder / "features.json", values)
    assert problem in refusal("import-features", folder)


def test_labels_that_the_task_cannot_have_are_refused(cache, tmp_path, refusal):
    entry = make_entry(cache, task=TASK, data={"digest": "d", "rows": {"train": 4}})
    write_targets(entry, "train", labels(4) | {"y": np.full((4, 1, 1), 2)})
    write_block(entry, "train", 0, toy_features(entry, "train", 0))
    export_features(entry.path, to=tmp_path / "out")
    assert "a label is not a class from 0 to 1" in refusal("import-features", tmp_path / "out")


def test_other_folders_and_other_rows_are_refused_in_one_line(own, toy, tmp_path, refusal):
    export_features(extracted(own), to=tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert "has no features.json" in refusal("import-features", tmp_path / "plain")
    assert "needs --task and --name" in refusal("import-features", own)
    np.savez(tmp_path / "other.npz", **{**np.load(own), "y": np.arange(80) % 2})
    refused = refusal("import-features", tmp_path / "out", "--task", tmp_path / "other.npz")
    assert "those of other rows than task 'other.npz' has now; name the data" in refused
    (tmp_path / "out" / "train.parquet").rename(tmp_path / "train.parquet")
    (tmp_path / "out" / "train.parquet").symlink_to(tmp_path / "train.parquet")
    assert "symbolic link" in refusal("import-features", tmp_path / "out")


def test_an_id_that_is_not_unicode_is_refused_by_parquet_alone(cache, tmp_path, refusal):
    entry = make_entry(cache, task=TASK, data={"digest": "d", "rows": {"train": 4}})
    write_targets(entry, "train", labels(4) | {"ids": np.array(["a", "b\udcff", "c", "d"])})
    write_block(entry, "train", 0, toy_features(entry, "train", 0))
    assert "pass --format npy" in refusal("export-features", entry.path, "--to", tmp_path / "out")
    assert not Path(tmp_path / "out").exists()
    for storage in ("npy", "safetensors"):
        export_features(entry.path, to=tmp_path / storage, format=storage)
        assert import_features(tmp_path / storage)["train"].ids[1] == "b\udcff"


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_threads_may_read_an_export_at_the_same_time(name, tmp_path):
    rows, step, form = 600, 20, FILE_FORMATS[name]
    values = np.random.default_rng(0).random((rows, 8), np.float32)
    blocks = iter([{"embed/mean": values[low : low + step]} for low in range(0, rows, step)])
    form.write(tmp_path, "train", {"index": np.arange(rows)}, {"embed/mean": (8,)}, blocks)
    stored = Stored("train", rows, step, {"embed/mean": (8,), "index": ()})
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        array = form.open(tmp_path, stored, stack)["embed/mean"]
        lows = np.random.default_rng(1).integers(0, rows - step, 800).tolist()
        for low, read in zip(lows, threads.map(lambda low: array[low : low + step], lows), strict=True):
            np.testing.assert_array_equal(read, values[low : low + step])


# Features of another program become an entry that can be verified, fitted, concatenated and reported.


pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

ROWS = {"train": 40, "valid": 20, "test": 20}
DRAW = np.random.default_rng(0)


@pytest.fixture
def own_arrays(cache, tmp_path):
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


def test_a_file_that_changes_while_it_is_imported_is_refused(own_arrays, tmp_path, monkeypatch):
    task, arrays = own_arrays
    write_hdf5(tmp_path / "f.h5", arrays)
    real = importing.compute_missing

    def change(*arguments):
        os.utime(tmp_path / "f.h5")
        return real(*arguments)

    monkeypatch.setattr(importing, "compute_missing", change)
    with pytest.raises(InputError, match=r"f\.h5: changed while it was read; run the command again"):
        import_features(tmp_path / "f.h5", task=task, name="other")


def test_every_format_gives_the_same_entry_however_small_its_blocks(own_arrays, tmp_path, monkeypatch):
    task, arrays = own_arrays
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


def test_the_same_features_under_two_names_are_told_apart_by_their_folders(own_arrays, tmp_path):
    task, arrays = own_arrays
    np.savez(tmp_path / "f.npz", **arrays)
    first, second = (import_features(tmp_path / "f.npz", task=task, name=name, cache=tmp_path) for name in "ab")
    key, folders = first.store.entry.key, f"{first.entry.name}, {second.entry.name}"
    with pytest.raises(InputError, match=f"is the key of 2 entries; name one of {folders}"):
        find_entry(tmp_path, key)
    assert find_entry(tmp_path, second.entry.name).path == second.entry


def test_columns_of_floats_are_read_side_by_side_in_tables_of_bounded_size(own_arrays, tmp_path):
    task, arrays = own_arrays
    splits = np.repeat([*ROWS], [*ROWS.values()])
    deep = np.concatenate([arrays[f"{split}/deep"] for split in ROWS])
    table = pyarrow.table({"id": np.arange(80), "split": splits, "a": deep[:, 0], "b": deep[:, 1]})
    parquet.write_table(table, tmp_path / "f.parquet")
    done = import_features(tmp_path / "f.parquet", task=task, name="lab")
    assert done.columns == ("imported/mean",)
    assert np.array_equal(done["valid"]["imported/mean"], arrays["valid/deep"][:, :2])
    frame = table.to_pandas().convert_dtypes()
    frame.to_parquet(tmp_path / "nullable.parquet")
    assert import_features(tmp_path / "nullable.parquet", task=task, name="lab").entry == done.entry
    frame.loc[3, "b"] = None
    frame.to_parquet(tmp_path / "nullable.parquet")
    with pytest.raises(InputError, match="train of imported/mean, row 3, column 1: the value is not a finite"):
        import_features(tmp_path / "nullable.parquet", task=task, name="lab")
    parquet.write_table(pyarrow.table({"a": pyarrow.array([np.zeros(2**16)] * 300)}), tmp_path / "f.parquet")
    with pytest.raises(InputError, match="'all columns' claims"):
        import_features(tmp_path / "f.parquet", task=task, name="lab")


def test_a_table_names_the_columns_that_are_features_and_refuses_labels_among_them(cache, tmp_path, capsys):
    names, draw = np.repeat([*ROWS], [*ROWS.values()]), DRAW.normal(size=(80, 2))
    own = {"split": names, "a": draw[:, 0], "b": draw[:, 1], "kind": np.arange(80) % 2}
    parquet.write_table(pyarrow.table(own), tmp_path / "own.parquet")
    task = prepare(tmp_path / "own.parquet", label="kind").task
    assert task.parameters["label"] == "kind"
    capsys.readouterr()

    def import_with(**columns):
        parquet.write_table(pyarrow.table({"split": names, "a": draw[:, 0], **columns}), tmp_path / "f.parquet")
        return import_features(tmp_path / "f.parquet", task=tmp_path / "own.parquet", label="kind", name="lab")

    done = import_with(count=np.arange(80), kind=np.arange(80) % 2, b=draw[:, 1])
    assert done["train"]["imported/mean"].shape == (40, 2)
    assert "f.parquet: the features are a, b; not read: count, kind\n" in capsys.readouterr().err
    import_with(**{f"x{number}": draw[:, 1] for number in range(30)})
    assert "x17, x18 and 11 more\n" in capsys.readouterr().err
    for name in "kind", "label", "y":
        with pytest.raises(InputError, match=f"the column '{name}' would be a feature; leave out labels, or"):
            import_with(**{name: np.arange(80) % 2.0})


def test_a_table_with_the_ids_of_other_rows_or_in_another_order_is_refused(cache, tmp_path, capsys):
    names, names_of_rows = np.repeat([*ROWS], [*ROWS.values()]), np.array([f"p{row}" for row in range(80)])
    own = {"split": names, "patient": names_of_rows, "a": DRAW.normal(size=80), "b": DRAW.normal(size=80)}
    parquet.write_table(pyarrow.table({**own, "kind": np.arange(80) % 2}), tmp_path / "own.parquet")

    def import_with(**columns):
        parquet.write_table(pyarrow.table({**own, **columns}), tmp_path / "f.parquet")
        flags = {"task": tmp_path / "own.parquet", "label": "kind", "id": "patient", "name": "lab"}
        return import_features(tmp_path / "f.parquet", **flags)

    import_with()
    assert "f.parquet: the features are a, b; the ids are patient\n" in capsys.readouterr().err
    lists = {"deep": DRAW.normal(size=(80, 2)).tolist()}
    for columns in ({}, lists):
        swapped = names_of_rows.copy()
        swapped[[41, 42]] = swapped[[42, 41]]
        with pytest.raises(InputError, match="row 1 of valid has the id 'p42', but in the task 'p41'; put the rows"):
            import_with(patient=swapped, **columns)
    with pytest.raises(InputError, match="the task has no split 'validation'; give arrays"):
        import_with(split=np.where(names == "valid", "validation", names))


def test_ids_are_never_features_although_pandas_makes_them_floats_or_its_index(own_arrays, tmp_path, capsys):
    task, arrays = own_arrays
    frame = pd.DataFrame({"split": np.repeat([*ROWS], [*ROWS.values()]), "id": np.arange(80.0)})
    frame["a"], frame["b"] = np.concatenate([arrays[f"{split}/deep"] for split in ROWS])[:, :2].T

    def import_table(table):
        table.to_parquet(tmp_path / "f.parquet")
        return import_features(tmp_path / "f.parquet", task=task, name="lab")

    whole = import_table(frame)
    for table in (frame.set_index("id"), frame.drop(columns="id").set_index(pd.Index(np.arange(80) / 7))):
        assert import_table(table).entry == whole.entry
    assert "the features are a, b; not read: __index_level_0__\n" in capsys.readouterr().err
    swapped = frame.iloc[[1, 0, *range(2, 80)]]
    for table in (swapped, swapped.set_index("id")):
        with pytest.raises(InputError, match="row 0 of train has the id '1', but in the task '0'; put the rows"):
            import_table(table)
    for wrong in (0.5, np.nan):
        with pytest.raises(InputError, match="the ids in column 'id' are not whole; repair or rename the column"):
            import_table(frame.assign(id=np.where(frame["id"] == 3, wrong, frame["id"])))


def test_an_array_with_the_name_of_a_label_is_refused_as_a_column_of_a_table_is(own_arrays, tmp_path):
    task, arrays = own_arrays
    for name in WRITERS.keys() - {"f.parquet"}:
        write = WRITERS[name]
        write(tmp_path / name, {**arrays, **{f"{split}/y": arrays[f"{split}/deep"] for split in ROWS}})
        with pytest.raises(InputError, match="would be a feature; leave out labels, or rename it"):
            import_features(tmp_path / name, task=task, name="lab")


def test_an_import_without_any_column_cannot_be_fitted(own_arrays, tmp_path):
    task, arrays = own_arrays
    np.savez(tmp_path / "f.npz", **arrays)
    entry = import_features(tmp_path / "f.npz", task=task, name="lab").store.entry
    for shard in entry.path.glob("train/0*.h5"):
        shard.write_bytes(b"")
    assert len(repair(entry)) > 0
    with pytest.raises(InputError, match="no columns to fit; extract or import it to the end, or name the key"):
        fit(FeatureStore(entry))


def test_integer_ids_of_tensors_keep_all_their_digits(cache, tmp_path):
    names, ids = np.repeat([*ROWS], [*ROWS.values()]), 2**24 + np.arange(80)
    own = {"split": names, "id": ids, "a": DRAW.normal(size=80), "kind": np.arange(80) % 2}
    parquet.write_table(pyarrow.table(own), tmp_path / "own.parquet")
    tensors = {name: DRAW.normal(size=(rows, 3)) for name, rows in ROWS.items()}
    tensors |= {f"{name}/ids": ids[names == name] for name in ROWS}
    flags = {"task": tmp_path / "own.parquet", "label": "kind", "id": "id", "name": "lab"}
    save_file(tensors, tmp_path / "f.safetensors")
    imported = import_features(tmp_path / "f.safetensors", **flags)
    assert np.array_equal(imported["test"].ids.astype(int), ids[60:])
    save_file(tensors | {"valid/ids": ids[41:61]}, tmp_path / "f.safetensors")
    with pytest.raises(InputError, match="row 0 of valid has the id '16777257', but in the task '16777256'"):
        import_features(tmp_path / "f.safetensors", **flags)


def test_the_command_of_a_card_names_one_of_the_entries_with_equal_features(own_arrays, cache, tmp_path):
    task, arrays = own_arrays
    np.savez(tmp_path / "f.npz", **arrays)
    first, second = (import_features(tmp_path / "f.npz", task=task, name=name).store.entry for name in ("a", "b"))
    assert first.key == second.key
    card = export_features(first.path, to=tmp_path / "out", format="npy").card.read_text()
    named = card.partition("reservoir export-features ")[2].split()[0]
    assert find_entry(cache, named).path == first.path


@pytest.mark.parametrize("suffix", ["npz", "h5"])
@pytest.mark.parametrize(("shape", "text"), [((19,), r"\(19,\)"), ((20, 1), r"\(20, 1\)")])
def test_ids_that_are_not_one_for_each_row_are_refused(own_arrays, tmp_path, suffix, shape, text):
    task, _ = own_arrays
    file = tmp_path / f"f.{suffix}"
    arrays = {name: DRAW.normal(size=(rows, 3)) for name, rows in ROWS.items()}
    ids = np.full(shape, "7")
    if suffix == "npz":
        np.savez(file, **arrays, **{"valid/ids": ids})
    else:
        with h5py.File(file, "w") as hdf5:
            for name, array in arrays.items():
                hdf5[f"{name}/deep"] = array
            hdf5.create_dataset("valid/ids", data=ids.astype(object), dtype=h5py.string_dtype())
    with pytest.raises(InputError, match=f"array 'valid/ids' has the shape {text}, but valid has 20 rows; give one"):
        import_features(file, task=task, name="lab")


def test_a_row_of_a_table_without_a_list_or_a_split_is_refused(own_arrays, tmp_path):
    task, arrays = own_arrays
    write_table(tmp_path / "f.parquet", arrays)
    columns = parquet.read_table(tmp_path / "f.parquet").to_pydict()
    for name, row in ("deep", 0), ("wide/max", 79), ("split", 5):
        cells = [None if number == row else cell for number, cell in enumerate(columns[name])]
        parquet.write_table(pyarrow.table(columns | {name: cells}), tmp_path / "f.parquet")
        with pytest.raises(InputError, match=f"f.parquet: row {row} has no value of '{name}'; repair it"):
            import_features(tmp_path / "f.parquet", task=task, name="lab")


def test_a_row_of_a_table_with_a_longer_list_is_refused(own_arrays, tmp_path):
    task, arrays = own_arrays
    write_table(tmp_path / "f.parquet", arrays)
    columns = parquet.read_table(tmp_path / "f.parquet").to_pydict()
    columns["wide/max"][17].append(0.0)
    parquet.write_table(pyarrow.table(columns), tmp_path / "f.parquet")
    with pytest.raises(InputError, match="'wide/max' has 4 values in row 17, but 3 in row 0; give lists of one length"):
        import_features(tmp_path / "f.parquet", task=task, name="lab")


def test_imported_features_are_fitted_joined_shown_and_reported(
    own_arrays, tmp_path, narrow_mini, call, refusal, answer
):
    task, arrays = own_arrays
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
        ({"extra": np.zeros((40, 6))}, r"the task has no split 'extra'; give .* test \(20 rows\), or SPLIT/COLUMN"),
        (
            {"test": np.where(np.arange(120).reshape(20, 6) == 50, np.nan, 0)},
            "mean, row 8, column 2: the value is not a fin",
        ),
        ({"test": np.full((20, 6), 1e39)}, "row 0, column 0: the value is not a finite float32 number"),
        ({"test": np.full((20, 6), "x")}, "features cannot be read .Cannot cast array data from dtype.'<U1'"),
        ({"train/clip/large": np.zeros((40, 6))}, r"array 'train/clip/large': pooling 'large': .*; rename the array"),
        (
            {"train/clip": np.zeros((40, 6)), "train/clip/mean": np.zeros((40, 6))},
            "array 'train/clip/mean': another array is clip/mean of train, too; rename one",
        ),
        ({"test": np.full((20, 6), None)}, "array 'test' holds Python objects"),
    ],
)
def test_arrays_that_are_not_the_rows_of_the_task_are_refused(own_arrays, tmp_path, change, message):
    task, arrays = own_arrays
    arrays = {split: arrays[f"{split}/deep"] for split in ROWS} | change
    np.savez(tmp_path / "f.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=message):
        import_features(tmp_path / "f.npz", task=task, name="lab")
    assert not list(tmp_path.rglob("spec.json"))


@pytest.mark.parametrize("name", ["f.npz", "f.h5", "f.parquet", "f.safetensors", "f.txt"])
def test_files_that_are_no_features_are_refused_in_one_line(own_arrays, tmp_path, name):
    (tmp_path / name).write_bytes(b"no features" * 9)
    with pytest.raises(InputError, match=r"features cannot be read|not a readable") as refused:
        import_features(tmp_path / name, task=own_arrays[0], name="lab")
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match=rf"other-{name}: no such file or folder"):
        import_features(tmp_path / f"other-{name}", task=own_arrays[0], name="lab")


def test_complex_numbers_are_refused_in_every_format(own_arrays, tmp_path):
    task, arrays = own_arrays
    arrays = {split: arrays[f"{split}/deep"].astype(np.complex64) for split in ROWS}
    for name in "f.npz", "f.h5", "f.safetensors":
        WRITERS[name](tmp_path / name, arrays)
        with pytest.raises(InputError, match="complex"):
            import_features(tmp_path / name, task=task, name="lab")


def test_a_member_without_suffix_that_unpacks_to_far_more_is_refused(own_arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(file_checks, "FREE_BYTES", 10_000)
    np.save(large := io.BytesIO(), np.zeros((40, 10_000)))
    np.savez(tmp_path / "f.npz", **{split: own_arrays[1][f"{split}/deep"] for split in ROWS})
    with zipfile.ZipFile(tmp_path / "f.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train", large.getvalue())  # beside train.npy
    with pytest.raises(InputError, match="array 'train' claims"):
        import_features(tmp_path / "f.npz", task=own_arrays[0], name="lab")
