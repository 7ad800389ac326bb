"""Finding, removing, and the space that is needed."""

import os
import shutil
from collections import namedtuple

import pytest
import reservoir_cache
from reservoir_cache import (
    CacheError,
    broken_entries,
    check_space,
    last_entry,
    list_entries,
    remove,
    required_bytes,
    verify,
    write_block,
)


def test_entries_are_listed_and_broken_folders_reported(tmp_path, toy):
    good = [toy.entry(tmp_path), toy.entry(tmp_path, padding="none")]
    bad = toy.entry(tmp_path, compute="bfloat16")
    (bad.path / "spec.json").write_text("{")
    (tmp_path / "features" / "toy" / "notes").mkdir()
    (tmp_path / "features" / "toy" / "file.txt").write_text("not a folder")
    assert list_entries(tmp_path) == sorted(good, key=lambda entry: entry.path)
    found = {problem.path: problem.what for problem in broken_entries(tmp_path)}
    assert set(found) == {bad.path, tmp_path / "features" / "toy" / "notes"}
    assert "not a sound specification" in found[bad.path]
    assert str(tmp_path) not in found[tmp_path / "features" / "toy" / "notes"]
    assert list_entries(tmp_path / "nothing") == broken_entries(tmp_path / "nothing") == []


def test_the_last_entry_is_the_one_last_created_or_opened_for_writing(tmp_path, toy):
    assert last_entry(tmp_path, "toy") is None
    first, second = toy.entry(tmp_path), toy.entry(tmp_path, padding="none")
    toy.entry(tmp_path, task={"name": "other"})
    assert last_entry(tmp_path, "toy") == second
    toy.entry(tmp_path)
    assert last_entry(tmp_path, "toy") == first
    remove(first.path)
    assert last_entry(tmp_path, "toy") == second


def test_remove_deletes_an_entry_and_nothing_else(tmp_path, toy):
    entry, other = toy.fill(toy.entry(tmp_path)), toy.entry(tmp_path, padding="none")
    for wrong in (tmp_path, entry.path.parent, entry.path / "train", tmp_path / "nothing"):
        with pytest.raises(CacheError, match="not an entry"):
            remove(wrong)
    with entry.claim("train", 0), pytest.raises(CacheError, match=rf"process {os.getpid()} .* is at work"):
        remove(entry.path)
    remove(entry.path)
    assert not entry.path.exists()
    assert list_entries(tmp_path) == [other]
    assert verify(toy.fill(toy.entry(tmp_path))) == []


def test_a_broken_entry_can_be_removed(tmp_path, toy):
    entry = toy.entry(tmp_path)
    (entry.path / "spec.json").write_text("{")
    remove(entry.path)
    assert broken_entries(tmp_path) == []


@pytest.mark.parametrize("store", ["float16", "float32"])
@pytest.mark.parametrize("width", [8, 3000])
def test_required_bytes_is_just_above_what_is_written(tmp_path, toy, store, width):
    import numpy as np

    shapes = {f"block{n:02d}/mean": (1, width) for n in range(5)}
    entry = toy.entry(tmp_path, block_rows=32, data={"digest": "d", "rows": {"train": 70}}, store=store)
    needed = required_bytes(entry.spec, entry.layout, {"train": 70}, shapes)
    for block, (low, high) in enumerate(entry.blocks("train")):
        write_block(entry, "train", block, {name: np.ones((high - low, 1, width), np.float32) for name in shapes})
    raw = 70 * 5 * width * (2 if store == "float16" else 4)
    written = sum(path.stat().st_size for path in (entry.path / "train").iterdir())
    assert raw < written <= needed
    assert needed < 1.15 * written + 3 * 5 * 4096
    assert required_bytes(entry.spec, entry.layout, {}, shapes) == 0


def test_a_disk_that_is_too_full_is_refused_with_both_sizes(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, 3 * 10**9))
    check_space(tmp_path / "not" / "there" / "yet", 3 * 10**9)
    with pytest.raises(CacheError, match=r"3\.001 GB are needed and 3\.000 GB are free.*--cache"):
        check_space(tmp_path, 3 * 10**9 + 10**6)


def test_every_public_name_exists():
    for name in reservoir_cache.__all__:
        assert getattr(reservoir_cache, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = reservoir_cache.nothing


def test_importing_the_package_and_its_error_imports_no_h5py_or_numpy():
    import subprocess
    import sys

    code = (
        "import sys, reservoir_cache; reservoir_cache.CacheError, reservoir_cache.Spec\n"
        "print([m for m in ('h5py', 'numpy', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
