"""A cache that is read-only, shared by two users, or older than the clock: commands work, or say why in one line."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from reservoir_cache import last_entry, list_entries, verify
from reservoir_cache import locks as cache_locks

NOBODY = 65534
MODEL = ("--backbone", "gpt2:n_layer=1,n_embd=8,n_head=2,n_positions=32", "--init", "random", "--device", "cpu")
EXTRACT = ("--pool", "mean", "--patch", 3, "--compute", "float32", *MODEL)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


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
    """Be a user who does not own the cache; ``writing``: who may write to it all the same."""
    cache_locks._open_locks.clear()  # as in a process of that user's own
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


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def one_line(answer):
    code, _, err = answer
    errors = [line for line in err.splitlines() if line.startswith("reservoir: ")]
    return code == 2 and len(errors) == 1 and "Traceback" not in err


def test_a_read_only_cache_is_listed_verified_and_fitted_from_and_nothing_in_it_changes(shared, call):
    cache, data, own = shared / "cache", shared / "waves.npz", shared / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    fit = ("fit", data, "--cache", cache, "--columns", "final/mean", "--select", "valid", "--device", "cpu")
    assert call("extract", data, "--cache", cache, "--layers", "final", *EXTRACT)[0] == 0
    assert call(*fit, "--out", shared / "warm")[0] == 0  # imports what the other user may not read
    call("extract", data, "--cache", shared / "warm-cache", "--layers", "embed", *EXTRACT)
    before = files(cache)
    with other_user(cache, writing=False):
        assert call("cache", "list", "--cache", cache)[0] == 0
        assert call("cache", "verify", "--cache", cache)[0] == 0
        assert call(*fit, "--out", own / "readout")[0] == 0
        assert call("extract", data, "--cache", cache, "--layers", "final", *EXTRACT)[0] == 0  # nothing to compute
        assert one_line(call("extract", data, "--cache", cache, "--layers", "embed", *EXTRACT))
        assert one_line(call("cache", "remove", list_entries(cache)[0].path.name, "--cache", cache))
        assert one_line(call("cache", "prune", "--keep", "1kB", "--yes", "--cache", cache))
    assert files(cache) == before


def test_two_users_who_may_write_extend_one_entry(shared, call):
    cache, data, alone = shared / "cache", shared / "waves.npz", shared / "alone"
    for layers in ("final", "embed"):
        assert call("extract", data, "--cache", alone, "--layers", layers, *EXTRACT)[0] == 0
    assert call("extract", data, "--cache", cache, "--layers", "final", *EXTRACT)[0] == 0
    with other_user(cache, writing=True):
        code, _, err = call("extract", data, "--cache", cache, "--layers", "embed", *EXTRACT)
        assert code == 0, err
        assert last_entry(cache, list_entries(cache)[0].spec.task["name"]) == list_entries(cache)[0]
    assert call("extract", data, "--cache", cache, "--layers", "embed,final", *EXTRACT)[0] == 0
    (entry,) = list_entries(cache)
    assert verify(entry) == [] and entry.manifest("train").columns.keys() == {"embed/mean", "final/mean"}
    features = {name: content for name, content in files(cache / "features").items() if name.endswith(".h5")}
    assert features == {n: c for n, c in files(alone / "features").items() if n.endswith(".h5")}
