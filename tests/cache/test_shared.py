"""A cache that another user made: what may not be written is read all the same."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    last_entry,
    list_entries,
    load_arrays,
    remove,
    repair,
    save_arrays,
    summarize,
    verify,
    write_targets,
)
from reservoir_cache import locks as locks_module

NOBODY = 65534


@pytest.fixture
def root():
    """Return a folder that every user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="reservoir-shared-"))
    path.chmod(0o755)
    yield path
    for folder in (path, *(item for item in path.rglob("*") if item.is_dir())):
        folder.chmod(0o755)
    shutil.rmtree(path)


@contextmanager
def stranger(root, *, writing=False):
    """Be a user who does not own the cache; root becomes nobody, anybody else gives the right to write away."""
    locks_module._open_locks.clear()  # as in a process of that user's own
    for path in (root, *root.rglob("*")):
        path.chmod((0o777 if writing else 0o755) if path.is_dir() else (0o666 if writing else 0o644))
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    if writing:
        pytest.skip("only root can become another user")
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield


def digest(toy, entry):
    return {**toy.digest(entry.path), "runs": sorted(path.name for path in (entry.path / "runs").iterdir())}


def test_a_cache_that_is_read_only_can_be_read_fitted_from_and_opened_by_an_extract(root, toy):
    entry = toy.fill(toy.entry(root))
    assert save_arrays(entry, "kept", {"n": np.arange(3)}, {})
    before = digest(toy, entry)
    with stranger(root):
        assert list_entries(root) == [entry]
        assert summarize(entry).finished
        train = FeatureStore(entry.path)["train"]
        assert train["final/last"].shape == (10, 3)
        assert load_arrays(entry, "kept") is not None
        assert save_arrays(entry, "ridge", {"n": np.arange(3)}, {}) is False
        assert load_arrays(entry, "ridge") is None
        again = toy.entry(root)  # what an extract does when everything is there
        assert repair(again) == []
        write_targets(again, "train", toy.targets(10))
        assert again.missing("train", toy.shapes) == {}
        assert verify(again) == []
        with pytest.raises(CacheError, match=r"lock: cannot be opened for writing .*check permissions"):
            remove(entry.path)
        with pytest.raises(CacheError, match="cannot be opened for writing"), again.claim("train", 0):
            pass
    assert digest(toy, entry) == before


def test_a_cache_of_another_user_who_lets_all_write_can_be_extracted_into(root, toy):
    """Setting a time of one's choice takes ownership; the moment of now takes the right to write."""
    old = toy.entry(root)
    toy.fill(old, ["final/last"])
    newer = toy.entry(root, padding="none")
    os.utime(old.path / "lock", (1, 1))
    os.utime(newer.path / "lock", (1000, 1000))
    with stranger(root, writing=True):
        entry = toy.fill(toy.entry(root))
        assert entry == old
        assert last_entry(root, "toy") == old
        assert save_arrays(entry, "ridge", {"n": np.arange(3)}, {})
        assert verify(entry) == []
        _ = FeatureStore(entry)["train"].y


def test_times_that_the_system_refuses_are_not_kept_and_nothing_else_happens(entry, toy, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.utime", refuse)
    again = toy.fill(Entry.open(toy.entry(entry.path.parents[2]).path))
    assert FeatureStore(again)["train"].rows == 10
    assert verify(again) == []


def test_an_entry_that_cannot_be_removed_is_an_error(root, toy):
    entry = toy.fill(toy.entry(root))
    with stranger(root), pytest.raises(CacheError, match="check permissions"):
        remove(entry.path)
    assert list_entries(root) == [entry]


def test_moments_that_do_not_fit_on_the_disk_are_not_kept(entry, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    assert save_arrays(entry, "ridge", {"n": np.arange(3)}, {})
    with monkeypatch.context() as patch:
        patch.setattr("reservoir_cache.publish.sync", full_disk)
        assert save_arrays(entry, "ridge", {"n": np.arange(4)}, {}) is False
    found = load_arrays(entry, "ridge")
    assert found is not None
    assert len(found[0]["n"]) == 3
