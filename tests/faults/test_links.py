"""Symbolic links and caches of other users: nothing outside is written or removed; read-only caches can be read."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from reservoir_cache import CacheError, last_entry, list_entries, open_lock, path_below, verify
from reservoir_cache import locks as cache_locks
from reservoir_pipelines.training.run_folder import RunFolder

from tests.files import contents


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "notes").write_text("mine")
    (folder / "sub" / "notes").write_text("mine")
    return folder


def untouched(folder):
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    return found == {"notes": "mine", "sub/notes": "mine"} and {p.name for p in folder.iterdir()} == {"notes", "sub"}


@pytest.mark.parametrize("exists", [True, False])
def test_a_lock_that_is_a_link_neither_empties_nor_creates_a_file(tmp_path, outside, exists):
    target, lock = outside / ("notes" if exists else "new"), tmp_path / "lock"
    lock.symlink_to(target)
    with pytest.raises(CacheError, match=r"lock: a symbolic link, .* remove it"):
        open_lock(lock)
    assert untouched(outside)


def test_train_does_not_empty_the_file_that_the_lock_of_a_run_leads_to(tmp_path, outside, refusal):
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").symlink_to(outside / "notes")
    with pytest.raises(CacheError, match="symbolic link"), RunFolder(run).lock():
        pass
    settings = ["--backbone", "gpt2:n_layer=1,n_embd=8,n_head=2", "--init", "random", "--steps", 1, "--limit", 20]
    where = "--cache", tmp_path / "cache", "--run", run
    assert "symbolic link" in refusal("train", "digits", *where, "--resume", *settings)
    assert untouched(outside)


def test_a_run_whose_checkpoints_are_elsewhere_is_refused_before_any_is_removed(tmp_path, outside):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(outside)
    with pytest.raises(CacheError, match="checkpoints: a symbolic link"), RunFolder(run).lock():
        pass
    assert untouched(outside)


@pytest.mark.parametrize("name", ["reproductions", "reproductions/smoke"])
def test_reproduce_does_not_write_through_a_link_in_the_cache(cache, outside, refusal, name):
    (cache / name).parent.mkdir(parents=True)
    (cache / name).symlink_to(outside)
    assert f"{name}: a symbolic link" in refusal("reproduce", "figure6")
    assert untouched(outside)


@pytest.mark.parametrize("name", ["prepared/evil/sub", "readouts/evil/sub", "prepared/evil"])
def test_cache_remove_does_not_follow_a_link_out_of_the_cache(cache, outside, refusal, name):
    for kind in ("prepared", "readouts"):
        (cache / kind).mkdir(parents=True)
        (cache / kind / "evil").symlink_to(outside)
    for named in (name, cache / name):
        refusal("cache", "remove", named)
    assert untouched(outside)


def test_a_cache_that_is_itself_reached_through_a_link_can_be_cleaned(tmp_path, call):
    real = tmp_path / "disk"
    (real / "reproductions" / "old").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    assert call("cache", "remove", "reproductions/old", "--cache", tmp_path / "link")[0] == 0
    assert not (real / "reproductions" / "old").exists()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_prepare_does_not_write_or_remove_through_a_link(cache, outside, call, refusal, depth):
    assert call("prepare", "digits")[0] == 0
    (final,) = cache.glob("prepared/*/*")
    link = [cache / "prepared", final.parent, final][depth]
    link.rename(outside.parent / "moved")
    link.symlink_to(outside)
    assert f"{link}: a symbolic link" in refusal("prepare", "digits") and untouched(outside)


def test_fit_does_not_write_through_a_link_beside_an_entry(tmp_path, outside, call, refusal):
    assert call("extract", "digits", "--limit", 60, "--cache", tmp_path / "cache", *EXTRACT)[0] == 0
    (entry,) = tmp_path.glob("cache/features/digits/*")
    gift = entry.rename(tmp_path / entry.name)
    assert call("fit", gift)[0] == 0
    (made,) = tmp_path.glob(f"{gift.name}-ridge-*")
    made.rename(tmp_path / "made")
    made.symlink_to(outside)
    assert f"{made}: a symbolic link" in refusal("fit", gift) and untouched(outside)


def test_path_below_follows_links_above_the_root_only(tmp_path, outside):
    (tmp_path / "link").symlink_to(outside)
    assert path_below(tmp_path / "link", "sub", "new") == tmp_path / "link" / "sub" / "new"
    with pytest.raises(CacheError, match="symbolic link"):
        path_below(tmp_path, "link", "sub")
    for name in ("../outside", "/outside", "sub/..", "..", "."):  # as a task in the cache of an attacker may be called
        with pytest.raises(CacheError, match="not the name of a file or folder in it"):
            path_below(tmp_path, "attention", name)


NOBODY = 65534
MODEL = ("--backbone", "gpt2:n_layer=1,n_embd=8,n_head=2,n_positions=32", "--init", "random", "--device", "cpu")
EXTRACT = ("--pool", "mean", "--patch", 3, "--compute", "float32", *MODEL)
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def shared():
    """Return a folder that every user can reach, with data in it."""
    folder = Path(tempfile.mkdtemp(prefix="reservoir-shared-"))
    folder.chmod(0o755)
    y = np.arange(60) % 2
    x = np.sin(np.arange(12) * (1 + y[:, None])) + np.random.default_rng(0).normal(0, 0.3, (60, 12))
    np.savez(folder / "waves.npz", x=x, y=y, split=np.repeat(["train", "valid", "test"], 20))
    yield folder
    shutil.rmtree(folder)


@contextmanager
def other_user(root, *, writing):
    """Become a user who does not own the cache; with ``writing``, the user may write to it nevertheless."""
    cache_locks._open_locks.clear()  # as in a new process of that user
    for path in (root, *root.rglob("*")):
        path.chmod((0o777 if writing else 0o755) if path.is_dir() else (0o666 if writing else 0o644))
    mask = os.umask(0)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.umask(mask)
        cache_locks._open_locks.clear()


@only_root
def test_a_read_only_cache_is_listed_verified_and_fitted_from_and_nothing_in_it_changes(shared, call, refusal):
    cache, data, own = shared / "cache", shared / "waves.npz", shared / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    fit = ("fit", data, "--cache", cache, "--columns", "final/mean", "--select", "valid", "--device", "cpu")
    assert call("extract", data, "--cache", cache, "--layers", "final", *EXTRACT)[0] == 0
    assert call(*fit, "--out", shared / "warm")[0] == 0  # import modules that the other user may not read
    call("extract", data, "--cache", shared / "warm-cache", "--layers", "embed", *EXTRACT)
    before = contents(cache)
    with other_user(cache, writing=False):
        assert call("cache", "list", "--cache", cache)[0] == 0
        assert call("cache", "verify", "--cache", cache)[0] == 0
        assert call(*fit, "--out", own / "readout")[0] == 0
        assert call("extract", data, "--cache", cache, "--layers", "final", *EXTRACT)[0] == 0  # nothing to compute
        refusal("extract", data, "--cache", cache, "--layers", "embed", *EXTRACT)
        refusal("cache", "remove", list_entries(cache)[0].path.name, "--cache", cache)
        refusal("cache", "prune", "--keep", "1kB", "--yes", "--cache", cache)
    assert contents(cache) == before


@only_root
def test_two_users_who_may_write_extend_one_entry(shared, call):
    cache, data, alone = shared / "cache", shared / "waves.npz", shared / "alone"
    for layers in ("final", "embed"):
        assert call("extract", data, "--cache", alone, "--layers", layers, *EXTRACT)[0] == 0
    assert call("extract", data, "--cache", cache, "--layers", "final", *EXTRACT)[0] == 0
    with other_user(cache, writing=True):
        code, _, err = call("extract", data, "--cache", cache, "--layers", "embed", *EXTRACT)
        assert code == 0, err
        assert last_entry(cache, list_entries(cache)[0].spec.task_name) == list_entries(cache)[0]
    assert call("extract", data, "--cache", cache, "--layers", "embed,final", *EXTRACT)[0] == 0
    (entry,) = list_entries(cache)
    assert verify(entry) == [] and entry.manifest("train").columns.keys() == {"embed/mean", "final/mean"}
    assert contents(cache / "features", "*.h5") == contents(alone / "features", "*.h5")
