"""A manifest of several pages: a shard more costs one page; damage of each is found, and mended from its own shards."""

import json

import pytest
from reservoir_cache import CacheError, FeatureStore, repair, verify
from reservoir_cache.entry import page_of

PAGES = ["manifest.json", "manifest-1.json", "manifest-2.json"]


@pytest.fixture
def paged(monkeypatch, toy, tmp_path):
    """Return a full entry of 10 train rows in 5 blocks, two to a page."""
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


def test_a_shard_more_touches_one_page_and_reads_no_other(paged, toy):
    (paged.path / "train" / "00003-0.h5").unlink()
    before = {page: (paged.path / "train" / page).stat().st_mtime_ns for page in PAGES}
    (paged.path / "train" / "manifest-2.json").write_text("nobody looks here")
    assert paged.lacking("train", 3, toy.shapes) == tuple(toy.shapes)
    from reservoir_cache import write_block

    write_block(paged, "train", 3, toy.features(paged, "train", 3))
    assert paged.lacking("train", 3, toy.shapes) == ()
    after = {page: (paged.path / "train" / page).stat().st_mtime_ns for page in PAGES}
    assert [after[page] != before[page] for page in PAGES[:2]] == [False, True]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_page_is_named_and_rebuilt_from_its_own_shards(paged, toy, page, damage):
    before, path = toy.digest(paged.path), paged.path / "train" / page
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 4
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
        with pytest.raises(CacheError, match=page):
            paged.manifest("train")
    for contents in (True, False):
        assert [problem.path for problem in verify(paged, contents=contents)] == [path]
    assert [problem.path for problem in repair(paged)] == [path]
    toy.fill(paged)  # the labels, if they were on that page
    assert toy.digest(paged.path) == before


def test_pages_in_each_others_place_are_refused(paged):
    folder = paged.path / "train"
    (folder / PAGES[1]).write_bytes((folder / PAGES[2]).read_bytes())
    with pytest.raises(CacheError, match=r"manifest-1\.json: .*another block"):
        paged.manifest("train")


def test_a_column_of_two_shapes_is_refused_by_the_writer_of_a_later_page(monkeypatch, toy, tmp_path):
    from reservoir_cache import write_block

    monkeypatch.setattr("reservoir_cache.entry.PAGE_BLOCKS", 2)
    entry = toy.entry(tmp_path, block_rows=2)
    write_block(entry, "train", 0, toy.features(entry, "train", 0, ["final/last"]))
    wrong = toy.features(entry, "train", 4, ["block02/all"])["block02/all"]
    with pytest.raises(CacheError, match="other blocks have"):
        write_block(entry, "train", 4, {"final/last": wrong})
