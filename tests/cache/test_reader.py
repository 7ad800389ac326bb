"""The reader returns correct rows in order, in bounded memory, and refuses damaged files; rounding errors are small."""

import os
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from reservoir_cache import CacheError, Entry, FeatureStore, Layout, reader, remove, verify, write_targets
from reservoir_cache.shard import _round, bfloat16_bits, decode, encode

from tests.cache.conftest import write_block


def stored(toy, entry, split, column):
    """Return the values of a column after encoding and decoding, without a file."""
    parts = [toy.features(entry, split, b, [column])[column] for b in range(len(entry.blocks(split)))]
    return np.concatenate([decode(encode(x, entry.spec.store, column=column), entry.spec.store) for x in parts])


@pytest.mark.parametrize("store", ["float16", "bfloat16", "float32"])
def test_columns_come_back_in_row_order(tmp_path, toy, store):
    entry = toy.fill(toy.entry(tmp_path, store=store))
    features = FeatureStore(entry.path)
    assert features.splits == ["test", "train"]
    for split, rows in (("train", 10), ("test", 4)):
        assert features[split].columns == [*features[split]] == sorted(toy.shapes) and features[split].rows == rows
        for column, shape in toy.shapes.items():
            found = features[split][column]
            meant = stored(toy, entry, split, column)
            assert features[split].shape(column) == shape and found.dtype == np.float32
            np.testing.assert_array_equal(found, meant[:, 0] if shape[0] == 1 else meant)
            assert np.abs(found.reshape(meant.shape) - toy.expected(entry, split, column)).max() < 0.02
            assert [len(x) for x in features[split].blocks(column)] == [hi - lo for lo, hi in entry.blocks(split)]
            np.testing.assert_array_equal(np.concatenate(list(features[split].blocks(column))), meant)


def test_labels_come_back(full, toy):
    test, meant = FeatureStore(full)["test"], toy.targets(4)
    for name in ("y", "lengths", "index"):
        found = getattr(test, name)
        assert found.dtype == meant[name].dtype
        np.testing.assert_array_equal(found, meant[name])


@pytest.mark.parametrize(
    "ids",
    [
        np.array([7, 1, 2, 2**62]),
        np.array(["a", "", "sp|P12345|ÄÖ_HUMAN", "2"]),
        np.array(["run 1/\udcff.wav", "b", "c", "d"]),  # the name of a file that is not valid UTF-8
    ],
)
def test_ids_come_back_and_are_row_numbers_if_there_are_none(entry, toy, ids):
    write_targets(entry, "test", toy.targets(4))
    np.testing.assert_array_equal(FeatureStore(entry)["test"].ids, toy.targets(4)["index"])
    # other ids replace those in the entry, and only those
    for expected in (np.arange(4) + 5, ids):
        write_targets(entry, "test", toy.targets(4) | {"ids": expected})
        test = FeatureStore(entry)["test"]
        assert test.ids.dtype.kind == expected.dtype.kind
        np.testing.assert_array_equal(test.ids, expected)
        np.testing.assert_array_equal(test.y, toy.targets(4)["y"])
    before = toy.digest(entry.path)
    write_targets(entry, "test", toy.targets(4) | {"ids": ids})
    assert toy.digest(entry.path) == before and verify(entry) != []  # only "train" is unfinished


def test_a_crash_while_ids_are_replaced_leaves_no_wrong_checksum(full, toy, monkeypatch):
    def crash(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr("reservoir_cache.writer.publish", crash)
        write_targets(full, "test", toy.targets(4) | {"ids": np.arange(4)})
    with pytest.raises(CacheError, match="has no labels; run the extract"):
        _ = FeatureStore(full)["test"].ids
    write_targets(full, "test", toy.targets(4) | {"ids": np.arange(4)})
    assert FeatureStore(full)["test"].ids.tolist() == [0, 1, 2, 3] and verify(full) == []


@pytest.mark.parametrize("ids", [np.zeros(4), np.zeros((4, 0), np.uint8), np.full((4, 1), 0xFF, np.uint8)])
def test_ids_of_another_form_are_damaged(full, toy, ids, monkeypatch):
    monkeypatch.setattr("reservoir_cache.writer.numbers_of_ids", lambda ids: ids)
    write_targets(full, "test", toy.targets(4) | {"ids": ids})
    with pytest.raises(CacheError, match="damaged"):
        _ = FeatureStore(full)["test"].ids


def test_an_unfinished_column_is_named_with_its_blocks(entry, toy):
    for block in (0, 2):
        write_block(entry, "train", block, toy.features(entry, "train", block, ["final/last"]))
    train = FeatureStore(entry)["train"]
    assert train.columns == [] and "final/last" not in train
    with pytest.raises(CacheError, match=r"final/last of train is missing in some blocks; .*\(--layers, --pool\)$"):
        train["final/last"]
    with pytest.raises(CacheError, match="no column embed/mean of train; it has none"):
        train.blocks("embed/mean").__next__()
    with pytest.raises(CacheError, match="no labels"):
        _ = train.y


@pytest.mark.parametrize("file", ["train/00001-0.h5", "train/targets.h5"])
@pytest.mark.parametrize("damage", ["cut", "longer", "gone"])
def test_a_missing_file_or_another_size_is_found_on_opening(full, file, damage):
    path = full.path / file
    if damage == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size + (1 if damage == "longer" else -1))
    with pytest.raises(CacheError, match=rf"{path.name}.*reservoir cache repair {full.path}"):
        FeatureStore(full)["train"]
    assert FeatureStore(full)["test"].rows == 4
    assert full.missing("train", ["final/last"]) == ({} if "targets" in file else {1: ("final/last",)})


def test_whatever_byte_changes_a_reader_gets_the_right_values_or_an_error(tmp_path, toy):
    entry = toy.fill(toy.entry(tmp_path))
    path = entry.path / "test" / "00000-0.h5"
    good = path.read_bytes()
    meant = {column: stored(toy, entry, "test", column) for column in toy.shapes}
    refused = 0
    for position in range(0, len(good), 37):
        path.write_bytes(good[:position] + bytes([good[position] ^ (1 << position % 8)]) + good[position + 1 :])
        test = FeatureStore(entry)["test"]
        for column, values in meant.items():
            try:
                found = next(iter(test.blocks(column)))
            except CacheError as error:
                assert "damaged" in str(error)
                refused += 1
            else:
                np.testing.assert_array_equal(found, values)
    assert refused > 10


def test_blocks_hold_one_shard_at_a_time(tmp_path, toy):
    rows, width, blocks = 64, 2000, 20
    spec = {"digest": "d", "rows": {"train": rows * blocks}}
    entry = toy.entry(tmp_path, block_rows=rows, data=spec)
    for block in range(blocks):
        write_block(entry, "train", block, {"embed/mean": np.full((rows, 1, width), block, np.float32)})
    train, one = FeatureStore(entry)["train"], rows * width * 4
    next(train.blocks("embed/mean"))
    tracemalloc.start()
    total = sum(float(x[0, 0, 0]) for x in train.blocks("embed/mean"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(range(blocks))
    assert peak < 4 * one  # the stored block, the decoded one, and the caller's; the column has 20 blocks


def test_a_dask_array_reads_a_shard_per_chunk_when_it_is_computed(full, monkeypatch):
    dask = pytest.importorskip("dask")
    train, read = FeatureStore(full)["train"], []
    for column in train:
        array, values = train[column].to_dask(), train[column][:]
        assert (array.shape, array.dtype, array.chunks[0]) == (values.shape, np.float32, (4, 4, 2))
        np.testing.assert_array_equal(array.compute(), values)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)).compute(), values)  # as for other processes
    real = type(train)._encoded
    monkeypatch.setattr(type(train), "_encoded", lambda *place: read.append(place[1:3]) or real(*place))
    array = train["block02/all"].to_dask()
    assert read == [] and array.name == train["block02/all"].to_dask().name
    np.testing.assert_array_equal(array[5:7].compute(), train.read("block02/all")[5:7])
    assert read[0] == (1, "block02/all")
    monkeypatch.setattr(type(train), "_encoded", real)
    damaged = full.path / "train" / "00002-0.h5"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(CacheError, match=r"00002-0\.h5: damaged"):
        dask.compute(array)


@pytest.mark.parametrize(
    ("layout", "added", "are_copies"),
    [
        (Layout(batch_rows=2, block_rows=4), 0, True),
        (Layout(batch_rows=2, block_rows=4), 1, False),
        (Layout(batch_rows=2, block_rows=2), 0, False),
        (Layout(batch_rows=2, block_rows=4, offset_rows=2), 0, False),
    ],
)
def test_dask_arrays_of_entries_of_one_key_have_their_own_values(full, tmp_path, toy, layout, added, are_copies):
    pytest.importorskip("dask")
    second = Entry.create(tmp_path / "second", "gpt2-random", full.spec, layout, {})
    rows = toy.expected(full, "train", "block01/mean") + added
    for block, (low, high) in enumerate(second.blocks("train")):
        write_block(second, "train", block, {"block01/mean": rows[low:high]})
    columns = [FeatureStore(entry)["train"]["block01/mean"] for entry in (full, second)]
    arrays = [column.to_dask() for column in columns]
    difference = (arrays[1] - arrays[0]).compute(scheduler="sync")
    np.testing.assert_array_equal(difference, columns[1][:] - columns[0][:])
    assert (arrays[0].name == arrays[1].name) == are_copies


@pytest.mark.parametrize("store", ["float16", "bfloat16", "float32"])
def test_a_loader_of_torch_gets_the_rows_of_the_reader(tmp_path, toy, store):
    features = FeatureStore(toy.fill(toy.entry(tmp_path, store=store)))
    train, rows = features["train"], features.to_torch("train", list(toy.shapes))
    assert len(rows) == 10 and set(rows[3]) == {*toy.shapes, "y"}
    order = np.random.default_rng(0).permutation(10)
    loader = torch.utils.data.DataLoader(pickle.loads(pickle.dumps(rows)), batch_size=4, sampler=order)
    batches = list(loader)
    assert [len(batch["y"]) for batch in batches] == [4, 4, 2]
    for column in toy.shapes:
        tensor = torch.cat([batch[column] for batch in batches])
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), train[column][:][order])
        np.testing.assert_array_equal(rows[-1][column], train[column][9])
    labels = torch.cat([batch["y"] for batch in batches])
    assert labels.dtype == torch.int64
    np.testing.assert_array_equal(labels.numpy(), train.y[order])
    assert [len(row) for row in rows] == [4] * 10  # iteration ends at the last row
    for wrong in (10, -11):
        with pytest.raises(IndexError):
            rows[wrong]
    with pytest.raises(CacheError, match="no column embed/mean"):
        features.to_torch("train", "embed/mean")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_a_label_per_row_keeps_its_type_in_a_loader(entry, toy, kind):
    write_targets(entry, "test", toy.targets(4) | {"y": np.arange(4, dtype=kind).reshape(4, 1, 1)})
    write_block(entry, "test", 0, toy.features(entry, "test", 0))
    loader = torch.utils.data.DataLoader(FeatureStore(entry).to_torch("test", "final/last"), batch_size=4)
    (batch,) = loader
    assert batch["y"].tolist() == [0, 1, 2, 3] and batch["y"].numpy().dtype == kind


def test_an_open_reader_says_that_its_entry_was_removed(full):
    store = FeatureStore(full)
    train = store["train"]
    remove(full.path)
    for read in (lambda: train.read("final/last"), lambda: train.y, lambda: store["test"]):
        with pytest.raises(CacheError, match=r"-[0-9a-f]{16}: removed meanwhile; run its extract again"):
            read()


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_loader_read_the_same_rows_and_find_damage(full, toy, start, workers):
    rows, expected = FeatureStore(full).to_torch("train", "block02/all"), FeatureStore(full)["train"]["block02/all"][:]
    loader = torch.utils.data.DataLoader(rows, batch_size=3, num_workers=workers, multiprocessing_context=start)
    if start == "fork":  # a spawned process imports torch, so it is started only once, below
        values = torch.cat([batch["block02/all"] for batch in loader])
        np.testing.assert_array_equal(values.numpy(), expected)
    damaged = full.path / "train" / "00001-0.h5"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    batches = iter(loader)
    np.testing.assert_array_equal(next(batches)["block02/all"].numpy(), expected[:3])
    with pytest.raises(CacheError, match=r"00001-0\.h5: damaged"):
        list(batches)
    # The error keeps the iterator alive. Collected as garbage in a later test, it would wait 5 s for each worker.
    batches._shutdown_workers()


@pytest.fixture(params=["float16", "bfloat16", "float32"])
def grouped(request, tmp_path, toy):
    """Return an entry of 100 rows in blocks of 32 rows with an offset per 8 rows, and the written features."""
    data = {"digest": "d", "rows": {"train": 100}}
    spec, layout = toy.spec(store=request.param, data=data), Layout(batch_rows=4, block_rows=32, offset_rows=8)
    entry = Entry.create(tmp_path, "gpt2-random", spec, layout, {})
    x = (np.random.default_rng(0).normal(size=(100, 3, 5)) + np.arange(100).reshape(-1, 1, 1)).astype(np.float32)
    for block, (low, high) in enumerate(entry.blocks("train")):
        write_block(entry, "train", block, {"final/all": x[low:high]})
    return entry, x


def test_rows_that_share_an_offset_read_as_if_they_were_a_block(grouped, tmp_path):
    entry, x = grouped
    small = Entry.create(tmp_path / "small", "gpt2-random", entry.spec, Layout(batch_rows=4, block_rows=8), {})
    for block, (low, high) in enumerate(small.blocks("train")):
        write_block(small, "train", block, {"final/all": x[low:high]})
    assert Entry.open(entry.path).layout == entry.layout and "offset_rows" in (entry.path / "spec.json").read_text()
    assert "offset_rows" not in (small.path / "spec.json").read_text()
    one, other = (FeatureStore(each)["train"] for each in (entry, small))
    np.testing.assert_array_equal(one["final/all"], other["final/all"])
    np.testing.assert_array_equal(np.concatenate(list(one.blocks("final/all"))), one.read("final/all"))
    most = {"float16": 0.01, "bfloat16": 0.05, "float32": 1e-9}[entry.spec.store]
    assert np.abs(one.read("final/all") - x).max() < most
    assert verify(entry) == [problem for problem in verify(entry) if problem.path.name == "train"]  # without labels


@pytest.mark.parametrize(
    "index",
    [3, -1, slice(5, 70, 9), [], [99, 0, 99, 31], np.arange(100) % 7 == 0, np.array([[1, 50], [2, 3]]), (5, 1), ...],
    ids=str,
)
def test_a_column_is_indexed_like_an_array(grouped, index):
    column = FeatureStore(grouped[0])["train"]["final/all"]
    whole = np.asarray(column)
    for _ in range(2):  # the first read verifies whole blocks, the second reads single rows
        found = column[index]
        np.testing.assert_array_equal(found, whole[index])
        assert np.shape(found) == whole[index].shape
    assert (column.shape, column.dtype, column.ndim, len(column)) == (whole.shape, whole.dtype, 3, 100)
    np.testing.assert_array_equal(column + 1, whole + 1)
    np.testing.assert_array_equal(column.reshape(100, -1).mean(axis=0), whole.reshape(100, -1).mean(axis=0))


@pytest.mark.parametrize("index", [100, -101, [5, 100]])
def test_a_missing_row_is_an_index_error(grouped, index):
    with pytest.raises(IndexError):
        FeatureStore(grouped[0])["train"]["final/all"][index]


def test_gathered_rows_follow_the_rules_of_numpy(grouped):
    split = FeatureStore(grouped[0])["train"]
    whole = split.read("final/all")  # verifies the column, after which single rows are read without the others
    mask = np.arange(split.rows) % 7 == 3
    for rows in (np.array([3, -1, 70]), [40, 3], mask, mask & False, np.array([], int), []):
        np.testing.assert_array_equal(
            split.gather("final/all", rows), whole[np.asarray(rows, None if len(rows) else int)]
        )
    for missing in (split.rows, 10**6, -split.rows - 1):
        with pytest.raises(IndexError):
            split.gather("final/all", np.array([0, missing]))
    with pytest.raises(IndexError, match="one dimension"):
        split.gather("final/all", np.array([[0, 1]]))


def test_torch_reads_a_column_once_or_says_how(grouped):
    column = FeatureStore(grouped[0])["train"]["final/all"]
    expected = torch.from_numpy(column[:])
    for read in (torch.as_tensor, torch.tensor, torch.from_dlpack):
        assert torch.equal(read(column), expected)
    with pytest.raises(TypeError, match=r"got FeatureColumn; read it with \[:\]"):
        torch.from_numpy(column)


def test_blocks_follow_the_rules_of_a_list(grouped):
    split = FeatureStore(grouped[0])["train"]
    blocks = list(split.blocks("final/all"))
    np.testing.assert_array_equal(split.block("final/all", -1), blocks[-1])
    with pytest.raises(IndexError):
        split.block("final/all", len(blocks))
    with pytest.raises(CacheError, match="no column final/none"):
        split.block("final/none", 0)


def test_a_column_is_not_changed_in_place(grouped):
    column = FeatureStore(grouped[0])["train"]["final/all"]
    with pytest.raises(TypeError, match="cannot be changed"):
        column -= 1
    with pytest.raises(AttributeError, match="has no sort"):
        column.sort(0)
    column.reshape(-1)[:] = 0  # an array of its own
    array = np.zeros(column.shape)
    array += column
    np.testing.assert_array_equal(array, column[:])


def test_rows_are_gathered_without_reading_the_others(grouped, monkeypatch):
    column, read = FeatureStore(grouped[0])["train"]["final/all"], reader.read_column
    whole, reads = np.asarray(column), []
    monkeypatch.setattr(reader, "read_column", lambda *args: reads.append(args[3] is None) or read(*args))
    np.testing.assert_array_equal(column[[3, 40, 70]], whole[[3, 40, 70]])
    assert reads == [False] * 3
    reads.clear()
    reader._checked.clear()
    np.testing.assert_array_equal(column[[3, 40]], whole[[3, 40]])
    assert reads == [True] * 2  # as in a new process, both blocks are verified


STORES = ["float16", "bfloat16", "float32"]


def test_bfloat16_equals_torchs_on_every_upper_half_and_around_every_tie():
    high = np.arange(2**16, dtype=np.uint32) << 16
    bits = np.concatenate([high + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x)]
    theirs = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(bfloat16_bits(x), theirs)


@pytest.mark.parametrize("store", STORES)
def test_constant_channels_are_exact(store):
    x = np.broadcast_to(np.array([0.1, -3e4, 7e-42, 1e30], np.float32), (9, 2, 4))
    np.testing.assert_array_equal(decode(encode(x, store, column="c"), store), x)


def test_a_damaged_or_removed_import_names_the_import(tmp_path, toy):
    call = {"command": "reservoir import-features x.npz --task toy"}
    entry = Entry.create(tmp_path, "x", toy.spec(), Layout(batch_rows=2, block_rows=4), {"call": call})
    toy.fill(entry)
    train = FeatureStore(entry.path)["train"]
    with pytest.raises(CacheError, match=r"; run its import-features again with this column$"):
        train["final/none"]
    (entry.path / "train" / "00000-0.h5").unlink()
    with pytest.raises(CacheError, match=r"repair .*, then the same import-features again$"):
        FeatureStore(entry.path)["train"]
    (problem,) = verify(entry)
    assert problem.repair.endswith("then the same import-features again")
    remove(entry.path)
    with pytest.raises(CacheError, match="removed meanwhile; run its import-features again"):
        train.read("final/last")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(store, value):
    x = np.zeros((6, 2, 3), np.float32)
    x[4, 1, 2] = value
    with pytest.raises(CacheError, match=r"row 1028, column block06/mean, token 1, channel 2: .*not finite"):
        encode(x, store, column="block06/mean", first_row=1024)


def test_opposite_infinities_do_not_hide_each_other(recwarn):
    x = np.zeros((2, 1, 2), np.float32)
    x[0, 0, 1], x[1, 0, 1] = np.inf, -np.inf
    with pytest.raises(CacheError, match="row 0, column c, token 0, channel 1: inf"):
        encode(x, "float32", column="c")
    assert not recwarn.list


@pytest.mark.parametrize(("store", "limit"), [("float16", 65520.0), ("bfloat16", 3.3961776e38)])
def test_the_first_value_that_rounds_to_infinity_is_refused(store, limit):
    x = np.zeros((2, 1, 2), np.float32)
    for sign in (1, -1):  # the offset is zero, so the residual is the value
        x[:, 0, 1] = np.float32(limit) * np.array([sign, -sign])
        with pytest.raises(CacheError, match=rf"row 0, .*, token 0, channel 1: .*overflows {store}.*--store float32"):
            encode(x, store, column="c")
    x[:, 0, 1] = np.nextafter(np.float32(limit), np.float32(0)) * np.array([1, -1], np.float32)
    assert np.isfinite(decode(encode(x, store, column="c"), store)).all()


def test_an_outlier_that_overflows_is_named_as_its_source_names_it(entry, toy):
    x = toy.features(entry, "train", 1)
    x["final/last"][2, 0, 1] = 1e9  # the other rows of the channel are 2e8 and more below its mean
    write_targets(entry, "train", toy.targets(10) | {"ids": np.array([f"r{row}" for row in range(10)])})
    with pytest.raises(CacheError, match=r"^train, row 'r6', column final/last, token 0, channel 1: .*check that row"):
        write_block(entry, "train", 1, x)


def test_a_column_whose_rows_would_all_become_equal_is_refused_unless_it_varies_by_rounding_errors():
    x = np.random.default_rng(0).normal(size=(4, 1, 3)).astype(np.float32) * np.float32(1e-10)
    with pytest.raises(CacheError, match=r"row 10, column c, token 0, channel 0: .*too little for float16; .*bfloat16"):
        encode(x, "float16", column="c", first_row=10, offset_rows=3)
    np.testing.assert_allclose(decode(encode(x, "bfloat16", column="c"), "bfloat16"), x, rtol=0.1)
    equal = np.full((4, 1, 3), 1e-3, np.float32)
    encode(equal, "float16", column="c")
    equal[::2] = np.nextafter(np.float32(1e-3), np.float32(1))
    encode(equal, "float16", column="c")
    x[0, 0, 0] = 1  # what the other channels lose is nothing in a column of this scale
    encode(x, "float16", column="c")


SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 5))


@st.composite
def arrays(draw, shape=SHAPES):
    """Draw features: per-channel offsets up to 1e4 plus values of any size float16 can hold, subnormals included."""
    size = draw(shape)
    values = hnp.arrays(np.float32, size, elements=st.floats(-3e4, 3e4, width=32))
    small = hnp.arrays(np.float32, size, elements=st.floats(-(2.0**-14), 2.0**-14, width=32, allow_subnormal=True))
    offsets = hnp.arrays(np.float32, size[2], elements=st.floats(-1e4, 1e4, width=32))
    return draw(values | small) + draw(offsets)


def half_ulp(residual, store):
    """Return half the spacing of the stored type at the residual, computed in float64."""
    digits, smallest = {"float16": (10, -24), "bfloat16": (7, -133), "float32": (23, -149)}[store]
    return np.ldexp(0.5, np.maximum(np.frexp(np.abs(residual))[1] - 1 - digits, smallest))


@given(arrays(), st.sampled_from(STORES))
def test_error_is_at_most_half_an_ulp_of_the_residual(x, store):
    try:
        encoded = encode(x, store, column="c")
    except CacheError as error:  # values that float16 would make equal
        assert "too little" in str(error) and store == "float16"
        assert np.abs(x - x.mean(axis=(0, 1), dtype=np.float64)).max() < 2.0**-24
        return
    if store == "float32":
        assert encoded.offset is None and decode(encoded, store).tobytes() == x.tobytes()
        return
    offset = encoded.offset.astype(np.float64)
    residual = x.astype(np.float64) - offset
    # The subtraction and the addition are in float32; the size of their results bounds their rounding errors.
    float32_rounding = 2.0**-23 * (np.abs(residual) + np.abs(x)) + 2.0**-148
    bound = half_ulp(residual * (1 + 2.0**-23), store) + float32_rounding
    assert (np.abs(decode(encoded, store).astype(np.float64) - x) <= bound).all()
    assert (np.abs(offset - x.astype(np.float64).mean(axis=(0, 1))) <= 2.0**-23 * np.abs(x).max() + 2.0**-148).all()


def test_float16_equals_numpys_on_every_value_and_around_every_tie():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = np.sort(halves[np.isfinite(halves)])
    ties = (halves[1:] + halves[:-1]) / 2
    x = np.concatenate([halves, ties, *(np.nextafter(ties, np.float32(way)) for way in (-1e9, 1e9))])
    found = np.empty(x.shape, np.float16)
    _round(x, "float16", found)
    np.testing.assert_array_equal(found.view(np.uint16), x.astype(np.float16).view(np.uint16))
