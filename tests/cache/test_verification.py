"""Damage is found wherever it is, named, and repaired by making exactly that again."""

import numpy as np
import pytest
from reservoir_cache import CacheError, Entry, load_arrays, repair, save_arrays, verify

SHARDS = ["train/00000-0.h5", "train/00001-0.h5", "train/00002-0.h5", "test/00000-0.h5"]
FILES = [*SHARDS, "train/targets.h5", "test/targets.h5", "train/manifest.json", "test/manifest.json"]


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_byte_anywhere_in_any_file_is_found_and_named(full, file):
    path = full.path / file
    good = path.read_bytes()
    for position in sorted({*range(0, len(good), max(1, len(good) // 40)), len(good) - 1}):
        flip(path, position, position % 8)
        assert [problem.path for problem in verify(full)] == [path]
        path.write_bytes(good)
    assert verify(full) == []


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_repair_then_a_rerun_gives_the_same_bytes(full, toy, file, damage):
    before, path = toy.digest(full.path), full.path / file
    size = path.stat().st_size
    if damage == "flip":
        flip(path, size // 2)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: size - 7 if damage == "cut" else 0])
    problems = verify(full)
    assert [problem.path for problem in problems] == [path]
    assert full.key[:16] in str(problems[0])
    assert repair(full, problems) == problems
    assert [problem.path for problem in verify(full)] == [path.parent]  # not finished, until extract makes it again
    missing = {split: full.missing(split, toy.shapes) for split in full.splits}
    if file in SHARDS:
        split, name = file.split("/")
        assert missing[split] == {int(name[:5]): tuple(toy.shapes)}
        assert not any(missing[other] for other in full.splits if other != split)
    else:
        assert not any(missing.values())
    toy.fill(full)
    assert toy.digest(full.path) == before


def test_what_was_repaired_since_is_left_alone(full, toy):
    flip(full.path / SHARDS[0], 100)
    problems = verify(full)
    repair(full)
    toy.fill(full)
    before = toy.digest(full.path)
    assert repair(full, problems) == []
    assert toy.digest(full.path) == before


def test_what_another_run_writes_is_left_alone(full):
    flip(full.path / SHARDS[1], 100)
    with full.claim("train", 1):
        assert repair(full) == []
    assert (full.path / SHARDS[1]).exists()
    assert len(repair(full)) == 1


def test_a_manifest_is_rebuilt_without_damaged_or_foreign_shards(full, toy, tmp_path):
    other = toy.fill(toy.entry(tmp_path, padding="none"))
    before = toy.digest(full.path)
    flip(full.path / "train" / "manifest.json", 10)
    values = full.path / SHARDS[0]
    data = values.read_bytes()
    needle = np.float32(toy.features(full, "train", 0, ["final/last"])["final/last"].mean(axis=(0, 1))).tobytes()
    flip(values, data.index(needle))  # an offset
    (full.path / SHARDS[1]).write_bytes((other.path / SHARDS[1]).read_bytes())
    repair(full)
    assert sorted(full.missing("train", toy.shapes)) == [0, 1]
    toy.fill(full)
    assert toy.digest(full.path) == before


def test_a_manifest_of_another_entry_is_refused(full, toy, tmp_path):
    other = toy.fill(toy.entry(tmp_path, padding="none"))
    (full.path / "train" / "manifest.json").write_bytes((other.path / "train" / "manifest.json").read_bytes())
    with pytest.raises(CacheError, match="its key is"):
        full.manifest("train")
    assert [problem.path.name for problem in verify(full)] == ["manifest.json"]


def test_damaged_derived_arrays_are_reported_and_dropped(full):
    save_arrays(full, "ridge", {"n": np.arange(3)}, {})
    save_arrays(full, "other", {"n": np.arange(4)}, {})
    flip(full.path / "moments" / "ridge.h5", 50)
    assert [problem.path.name for problem in verify(full)] == ["ridge.h5"]
    repair(full)
    assert not (full.path / "moments" / "ridge.h5").exists()
    assert load_arrays(full, "other") is not None
    flip(full.path / "moments" / "manifest.json", 3)
    assert [problem.path.name for problem in verify(full)] == ["manifest.json"]
    repair(full)
    assert load_arrays(full, "other") is None
    save_arrays(full, "other", {"n": np.arange(4)}, {})
    assert verify(full) == []
    assert load_arrays(Entry.open(full.path), "other") is not None
