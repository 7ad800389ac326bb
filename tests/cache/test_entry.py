"""Entries are created, opened and filled, with several pages, with the writer's thread, and with ragged rows."""

import json
import os
import threading

import numpy as np
import pytest
import reservoir_cache.writer as writer_module
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    Layout,
    ShardWriter,
    load_arrays,
    publish_json,
    repair,
    save_arrays,
    verify,
    write_targets,
)
from reservoir_cache.entry import page_of

from tests.cache.conftest import write_block
from tests.helpers import flip


def test_the_folder_is_named_by_the_key_and_an_existing_entry_keeps_its_layout(tmp_path, toy):
    first = toy.entry(tmp_path)
    assert first.path == tmp_path / "features" / "toy" / f"gpt2-random-{toy.spec().key[:16]}"
    assert Entry.open(first.path) == first and first.made_with == {"n": 1}
    again = Entry.create(tmp_path, "gpt2-random", toy.spec(), Layout(batch_rows=7, block_rows=9), {"n": 2})
    assert again == first and again.layout == Layout(batch_rows=2, block_rows=4)
    assert again.made_with == {"n": 1}


def tamper(entry, change):
    content = json.loads((entry.path / "spec.json").read_text())
    del content["crc32"]
    change(content)
    publish_json(entry.path / "spec.json", content, indent=2)


def test_a_specification_that_does_not_hash_to_its_key_is_refused(entry):
    tamper(entry, lambda content: content["spec"]["init"].update(seed=1))
    with pytest.raises(CacheError, match="hashes to"):
        Entry.open(entry.path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"train": 3, "runs": 2}, "split name 'runs' is reserved; rename the split"),
        ({"moments": 2}, "split name 'moments' is reserved"),
        ({"train": 0}, "split 'train' has 0 rows"),
        ({"train": True}, "split 'train' has True rows"),
    ],
)
def test_reserved_names_of_splits_and_splits_without_rows_are_refused(toy, rows, message):
    with pytest.raises(CacheError, match=message):
        toy.spec(data={"digest": "d", "rows": rows})


def test_every_changed_byte_of_the_specification_is_found(entry):
    path = entry.path / "spec.json"
    for position in range(path.stat().st_size):
        flip(path, position, position % 8)
        with pytest.raises(CacheError):
            Entry.open(entry.path)
        flip(path, position, position % 8)


def test_missing_shrinks_as_blocks_are_written(entry, toy):
    columns = list(toy.shapes)
    assert entry.missing("train", columns) == dict.fromkeys(range(3), tuple(columns))
    write_block(entry, "train", 1, toy.features(entry, "train", 1, columns[:2]))
    assert entry.missing("train", columns) == {0: tuple(columns), 1: (columns[2],), 2: tuple(columns)}
    assert entry.missing("train", columns[:2]) == {0: tuple(columns[:2]), 2: tuple(columns[:2])}
    toy.fill(entry)
    assert entry.missing("train", columns) == entry.missing("test", columns) == {}


def test_writing_a_finished_block_again_writes_nothing(full, toy):
    before = toy.digest(full.path)
    other = {name: x + 1 for name, x in toy.features(full, "train", 0).items()}
    write_block(full, "train", 0, other)
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
def test_arrays_that_cannot_be_a_column_are_refused(entry, toy, name, array, message):
    write_block(entry, "train", 1, toy.features(entry, "train", 1, ["block01/mean"]))
    before = toy.digest(entry.path)
    with pytest.raises(CacheError, match=message):
        write_block(entry, "train", 0, {name: array})
    assert toy.digest(entry.path) == before


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_killed_run_that_replaces_a_damaged_shard_leaves_no_line_of_it(entry, toy, monkeypatch, damage):
    (values,) = toy.features(entry, "train", 0, ["block01/mean"]).values()
    write_block(entry, "train", 0, {"block01/mean": values})
    path = entry.path / "train" / "00000-0.h5"
    size = path.stat().st_size
    if damage == "cut":
        os.truncate(path, size // 2)
    else:
        path.unlink()
    with monkeypatch.context() as patch:  # the process ends before it lists the new shard
        patch.setattr(writer_module, "_list_shards", lambda *_: None)
        write_block(entry, "train", 0, {"block07/mean": values})
    assert path.stat().st_size == size
    assert entry.lacking("train", 0, ["block01/mean", "block07/mean"]) == ("block01/mean", "block07/mean")
    write_block(entry, "train", 0, {"block01/mean": values})
    assert np.abs(FeatureStore(entry)["train"].block("block01/mean", 0) - values).max() < 0.02


def test_derived_arrays_come_back_and_are_replaced(entry):
    arrays = {"sum/x": np.arange(6.0).reshape(2, 3), "n": np.array(7), "flags": np.array([True, False])}
    save_arrays(entry, "ridge", arrays, {"columns": ["a/b"], "scale": 0.5})
    found, meta = load_arrays(entry, "ridge")
    assert meta == {"columns": ["a/b"], "scale": 0.5}
    assert {name: (x.dtype, x.shape, x.tobytes()) for name, x in found.items()} == {
        name: (x.dtype, x.shape, x.tobytes()) for name, x in arrays.items()
    }
    save_arrays(entry, "ridge", {"n": np.array(8)}, {})
    assert load_arrays(entry, "ridge")[0]["n"] == 8 and load_arrays(entry, "other") is None


def test_a_damaged_derived_file_reads_as_absent_at_every_byte(entry):
    save_arrays(entry, "ridge", {"n": np.arange(3)}, {"a": 1})
    path = entry.path / "moments" / "ridge.h5"
    for position in range(0, path.stat().st_size, 97):
        flip(path, position, 2)
        assert load_arrays(entry, "ridge") is None
        flip(path, position, 2)
    assert load_arrays(entry, "ridge") is not None


def test_blocks_are_on_disk_when_the_writer_is_left(tmp_path, toy):
    direct, threaded = toy.fill(toy.entry(tmp_path / "a")), toy.entry(tmp_path / "b")
    with ShardWriter(threaded) as writer:
        for split, rows in threaded.spec.rows.items():
            write_targets(threaded, split, toy.targets(rows))
            for block in threaded.missing(split, toy.shapes):
                assert writer.claim(split, block, toy.shapes)
                writer.put(split, block, toy.features(threaded, split, block))
    assert toy.digest(threaded.path) == toy.digest(direct.path)
    assert writer.bytes_written == sum(path.stat().st_size for path in threaded.path.glob("*/*-*.h5"))
    assert threaded.running() == []


def test_a_block_stays_claimed_until_it_is_on_disk(entry, toy, monkeypatch):
    gate, write = threading.Event(), writer_module._write
    monkeypatch.setattr(writer_module, "_write", lambda *args: gate.wait(10) and write(*args))
    with ShardWriter(entry) as writer:
        assert writer.claim("train", 0, toy.shapes) == tuple(toy.shapes)
        writer.put("train", 0, lambda: toy.features(entry, "train", 0))
        assert not writer.claim("train", 0, toy.shapes)
        assert len(entry.running()) == 1
        gate.set()
    with toy.claim(entry, "train", 0) as free:
        assert free
    assert 0 not in entry.missing("train", toy.shapes)
    with ShardWriter(entry) as writer:
        assert writer.claim("train", 0, toy.shapes) == ()


@pytest.mark.parametrize("group_bytes", [2**26, 1])
def test_blocks_that_wait_together_are_listed_at_once_with_few_fsyncs(tmp_path, toy, monkeypatch, group_bytes):
    alone, together = toy.fill(toy.entry(tmp_path / "alone")), toy.entry(tmp_path / "together")
    write_targets(together, "train", toy.targets(together.spec.rows["train"]))
    gate, write, synced, sync = threading.Event(), writer_module._write, [], os.fsync
    monkeypatch.setattr(writer_module, "_write", lambda *args: gate.wait(10) and write(*args))
    monkeypatch.setattr(writer_module, "GROUP_BYTES", group_bytes)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor) or sync(descriptor))
    blocks = list(together.missing("train", toy.shapes))
    with ShardWriter(together) as writer:
        synced.clear()
        for block in blocks:
            assert writer.claim("train", block, toy.shapes)
            writer.put("train", block, toy.features(together, "train", block))
        gate.set()
    # One for the content of each shard, and for each group one for the names, one for the page, and one for its name.
    groups = len(blocks) if group_bytes == 1 else 1
    assert len(synced) == len(blocks) + 3 * groups and len(blocks) > 1
    assert toy.digest(together.path / "train") == toy.digest(alone.path / "train")


def test_an_error_surfaces_at_a_later_put_which_never_hangs(entry, toy):
    bad = toy.features(entry, "train", 0)
    bad["final/last"][0, 0, 0] = np.inf
    put = 0
    with pytest.raises(CacheError, match="not finite"), ShardWriter(entry) as writer:
        assert writer.claim("train", 0, toy.shapes)
        writer.put("train", 0, bad)
        for _ in range(1000):
            if writer.claim("train", 1, toy.shapes):
                writer.put("train", 1, toy.features(entry, "train", 1))
                put += 1
    assert put < 1000
    for _ in range(100):  # more than may be queued
        with pytest.raises(CacheError, match="not finite"):
            writer.put("train", 1, bad)
    for block in (0, 1):
        with toy.claim(entry, "train", block) as free:
            assert free


def test_an_exception_in_the_body_is_raised_and_whole_blocks_are_kept(entry, toy):
    with pytest.raises(KeyError, match="body"), ShardWriter(entry) as writer:
        assert writer.claim("train", 0, toy.shapes)
        writer.put("train", 0, toy.features(entry, "train", 0))
        raise KeyError("body")
    assert sorted(entry.missing("train", toy.shapes)) == [1, 2]
    assert [problem.path.name for problem in verify(entry)] == ["test", "train"]  # unfinished, but undamaged


PAGES = ["manifest.json", "manifest-1.json", "manifest-2.json"]


@pytest.fixture
def paged(monkeypatch, toy, tmp_path):
    """Return a full entry of 10 train rows in 5 blocks, with two blocks per page."""
    monkeypatch.setattr("reservoir_cache.entry.PAGE_BLOCKS", 2)
    return toy.fill(toy.entry(tmp_path, block_rows=2))


def test_each_page_lists_its_blocks_and_together_they_are_the_manifest(paged, toy):
    folder = paged.path / "train"
    assert sorted(path.name for path in folder.glob("manifest*")) == sorted(PAGES)
    listed = [[shard["block"] for shard in json.loads((folder / page).read_text())["shards"]] for page in PAGES]
    assert listed == [[0, 1], [2, 3], [4]]
    assert [shard.block for shard in paged.manifest("train").shards] == [0, 1, 2, 3, 4]
    assert [page_of(file) for file in (*PAGES, "targets.h5", "00003-1.h5")] == [0, 1, 2, 0, 1]
    train = FeatureStore(paged)["train"]
    for column in toy.shapes:
        meant = toy.expected(paged, "train", column)
        assert abs(train[column].reshape(meant.shape) - meant).max() < 1


def test_another_shard_changes_one_page_and_reads_no_other(paged, toy):
    (paged.path / "train" / "00003-0.h5").unlink()
    before = {page: (paged.path / "train" / page).stat().st_mtime_ns for page in PAGES}
    (paged.path / "train" / "manifest-2.json").write_text("nobody looks here")
    assert paged.lacking("train", 3, toy.shapes) == tuple(toy.shapes)
    write_block(paged, "train", 3, toy.features(paged, "train", 3))
    assert paged.lacking("train", 3, toy.shapes) == ()
    after = {page: (paged.path / "train" / page).stat().st_mtime_ns for page in PAGES}
    assert [after[page] != before[page] for page in PAGES[:2]] == [False, True]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_page_is_named_and_rebuilt_from_its_own_shards(paged, toy, page, damage):
    before, path = toy.digest(paged.path), paged.path / "train" / page
    size = path.stat().st_size
    if damage == "gone":
        path.unlink()
    else:
        if damage == "flip":
            flip(path, size // 2, 2)
        else:
            os.truncate(path, size // 2)
        with pytest.raises(CacheError, match=page):
            paged.manifest("train")
    for contents in (True, False):
        assert [problem.path for problem in verify(paged, contents=contents)] == [path]
    assert [problem.path for problem in repair(paged)] == [path]
    toy.fill(paged)  # writes the labels again if that page listed them
    assert toy.digest(paged.path) == before


def test_swapped_pages_are_refused(paged):
    folder = paged.path / "train"
    (folder / PAGES[1]).write_bytes((folder / PAGES[2]).read_bytes())
    with pytest.raises(CacheError, match=r"manifest-1\.json: .*another block"):
        paged.manifest("train")


def test_a_column_of_two_shapes_in_two_pages_is_refused(monkeypatch, toy, tmp_path):
    monkeypatch.setattr("reservoir_cache.entry.PAGE_BLOCKS", 2)
    entry = toy.entry(tmp_path, block_rows=2)
    write_block(entry, "train", 0, toy.features(entry, "train", 0, ["final/last"]))
    wrong = toy.features(entry, "train", 4, ["block02/all"])["block02/all"]
    write_block(entry, "train", 4, {"final/last": wrong})
    with pytest.raises(CacheError, match="final/last has two shapes"):
        entry.manifest("train")


# Rows that are words or tokens of texts: pointers, IDs and spans are read as written; others are damage.


POINTERS = np.array([0, 4, 4, 10])  # the second text has no token


def ragged(rows, **changes):
    """Return the targets of ten rows, which are the tokens of three texts."""
    text = np.repeat(np.arange(3), np.diff(POINTERS))
    arrays = {
        "y": np.arange(rows).reshape(rows, 1, 1),
        "lengths": np.ones(rows, np.uint8),
        "index": text.astype(np.int32),
        "groups": text.astype(np.int32),
        "pointers": POINTERS,
        "token_ids": np.arange(rows, dtype=np.int32) + 100,
        "spans": np.stack([np.arange(rows), np.arange(rows) + 3], axis=1).astype(np.int32),
        "text_ids": np.array(["a", "b", "é"]),
    } | changes
    return {name: array for name, array in arrays.items() if array is not None}


@pytest.fixture
def train(entry, toy):
    """Return a function that writes the targets of the split with ten rows and opens it."""

    def opened(**changes):
        toy.fill(entry)
        (entry.path / "train" / "targets.h5").unlink()
        write_targets(entry, "train", ragged(10, **changes))
        return FeatureStore(entry.path)["train"]

    return opened


def test_tokens_are_found_by_text(train, toy, entry):
    part = train()
    assert part.pointers.tolist() == POINTERS.tolist() and [*part.tokens_of(2)] == [4, 5, 6, 7, 8, 9]
    assert [*part.tokens_of(1)] == [] and [*part.tokens_of(-3)] == [0, 1, 2, 3]
    assert part.ids.tolist() == ["a"] * 4 + ["é"] * 6 and part.y.tolist() == list(range(10))
    assert part.token_ids[4] == 104 and part.spans[4].tolist() == [4, 7]
    values = part.read("block01/mean")
    assert np.array_equal(part.token("block01/mean", 2, 3), values[7, 0])
    for text, number in ((1, 0), (0, 4), (3, 0)):
        with pytest.raises(IndexError):
            part.token("block01/mean", text, number)


def test_names_of_texts_may_change(train, entry):
    train()
    write_targets(entry, "train", ragged(10, text_ids=np.array([7, 8, 9])))
    assert FeatureStore(entry.path)["train"].ids.tolist() == [7] * 4 + [9] * 6
    write_targets(entry, "train", ragged(10, text_ids=None))
    assert FeatureStore(entry.path)["train"].ids.tolist() == [0] * 4 + [2] * 6


def test_numbers_of_words_count_those_that_are_not_rows(train, entry):
    assert train().numbers_in_text.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    whole = (entry.path / "train" / "targets.h5").read_bytes()
    numbers = [0, 2, 3, 4, 1, 2, 3, 5, 6, 7]
    write_targets(entry, "train", ragged(10, numbers_in_text=np.array(numbers, np.int32)))
    assert FeatureStore(entry.path)["train"].numbers_in_text.tolist() == numbers
    # If all words are rows, the numbers are not stored.
    write_targets(entry, "train", ragged(10, numbers_in_text=np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 5], np.int32)))
    assert (entry.path / "train" / "targets.h5").read_bytes() == whole


def test_rows_that_are_not_tokens_have_none(entry, toy):
    part = FeatureStore(toy.fill(entry).path)["train"]
    assert part.pointers is None
    for read in (
        lambda: part.token_ids,
        lambda: part.spans,
        lambda: part.numbers_in_text,
        lambda: part.tokens_of(0),
    ):
        with pytest.raises(CacheError, match="not words or tokens"):
            read()


@pytest.mark.parametrize(
    "changes",
    [
        {"pointers": np.array([0, 4, 9])},
        {"pointers": np.array([1, 4, 4, 10])},
        {"pointers": np.array([0, 6, 4, 10])},
        {"pointers": np.array([0.0, 4.0, 4.0, 10.0])},
        {"pointers": np.empty(0, np.int64)},
        {"pointers": None},
        {"token_ids": np.arange(9)},
        {"spans": None},
        {"spans": np.zeros((10, 3), np.int32)},
        {"text_ids": np.array(["a", "b"])},
        {"numbers_in_text": np.arange(9)},
    ],
)
def test_pointers_that_do_not_fit_are_damage(changes, train):
    part = train(**changes)
    with pytest.raises(CacheError, match="damaged"):
        part.labels  # noqa: B018
