"""Caches of attackers and of other users: no name or link leads outside, where nothing is read, changed or removed."""

import json
import os
import shutil
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    Spec,
    broken_entries,
    file_crc32,
    last_entry,
    list_entries,
    load_arrays,
    open_lock,
    path_below,
    publish_json,
    remove,
    repair,
    save_arrays,
    verify,
)
from reservoir_cache import locks as cache_locks
from reservoir_pipelines.preparation.prepared import Prepared, PreparedSplit
from reservoir_pipelines.training.run_folder import RunFolder

from reservoir import InputError
from tests.cache.conftest import fill, make_entry
from tests.helpers import contents

COLUMN = "final/last"


@pytest.fixture
def entry(tmp_path):
    entry = make_entry(tmp_path / "cache", data={"digest": "d", "rows": {"train": 6}})
    extract(entry)
    save_arrays(entry, "ridge", {"n": np.arange(3)}, {})
    return entry


def extract(entry):
    fill(entry, [COLUMN])


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "precious.h5"
    path.write_bytes(b"precious")
    return path


def rewrite(path, change):
    """Change a document and update its checksum, as anyone with write permission can."""
    content = json.loads(path.read_text())
    del content["crc32"]
    change(content)
    publish_json(path, content, indent=2 if path.name == "spec.json" else None)


HOSTILE = {
    "absolute": lambda m, at: m["shards"][0].update(file=str(at), bytes=1),
    "upwards": lambda m, at: m["shards"][0].update(file=os.path.relpath(at, "/x/y/z"), bytes=1),
    "another suffix": lambda m, _: m["shards"][0].update(file="lock"),
    "another block": lambda m, _: m["shards"][0].update(block=1),
    "a number as text": lambda m, _: m["shards"][0].update(block="0"),
    "a size as text": lambda m, _: m["shards"][0].update(bytes="9"),
    "a block too many": lambda m, _: m["shards"][1].update(file="00002-0.h5", block=2),
    "a column twice": lambda m, _: m["shards"].append({**m["shards"][0], "file": "00000-1.h5"}),
    "a column nobody lists": lambda m, _: m["shards"][0]["columns"].update({"x/y": "00000000"}),
    "a column upwards": lambda m, _: m["columns"].update({"../x": {"tokens": 1, "width": 8}}),
    "a column of none": lambda m, _: m["columns"][COLUMN].update(width=0),
    "no checksum": lambda m, _: m["shards"][0].update(crc32=None),
    "targets absolute": lambda m, at: m["targets"].update(file=str(at), bytes=1),
    "targets upwards": lambda m, _: m["targets"].update(file="../spec.json"),
    "shards of text": lambda m, _: m.update(shards=["x"]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_every_line_of_a_manifest_is_checked(entry, outside, what):
    rewrite(entry.path / "train" / "manifest.json", lambda manifest: HOSTILE[what](manifest, outside))
    before = {path: path.read_bytes() for path in (outside, entry.path / "spec.json")}
    for read in (lambda: entry.manifest("train"), lambda: FeatureStore(entry)["train"].read(COLUMN)):
        with pytest.raises(CacheError, match=r"manifest\.json: "):
            read()
    assert [problem.path.name for problem in verify(entry)] == ["manifest.json"]
    repair(entry)
    extract(entry)
    assert verify(entry) == []
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", ["../../../../../precious.h5", "/precious.h5", "x/../y.h5", "ridge"])
def test_no_name_in_the_manifest_of_moments_leads_out(entry, outside, name):
    rewrite(
        entry.path / "moments" / "manifest.json",
        lambda content: content["files"].update({name: {"bytes": 1, "crc32": "00000000"}}),
    )
    assert [problem.path.name for problem in verify(entry)] == ["manifest.json"]
    repair(entry)
    assert outside.read_bytes() == b"precious" and verify(entry) == []


@pytest.mark.parametrize("name", [".", "train", "moments", "runs", "lock", "spec.json"])
def test_an_entry_with_a_symlinked_part_is_refused_and_removing_it_spares_the_target(entry, tmp_path, name):
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    shutil.move(entry.path / name, elsewhere)
    (entry.path / name).symlink_to(elsewhere)
    if elsewhere.is_dir():
        (elsewhere / "of-nobody.json").write_text("precious")
        (elsewhere / ".x.tmp").write_text("precious")
    before = contents(tmp_path)
    for act in (
        lambda: Entry.open(entry.path),
        lambda: FeatureStore(entry.path),
        lambda: Entry.create(root, "gpt2-random", entry.spec, entry.layout, {}),
    ):
        with pytest.raises(CacheError, match="a symbolic link"):
            act()
    assert list_entries(root) == [] and [problem.path for problem in broken_entries(root)] == [entry.path]
    assert contents(tmp_path) == before
    outside = contents(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()
    remove(entry.path)
    assert not entry.path.exists() and not entry.path.is_symlink()
    assert (contents(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()) == outside


def test_nothing_is_removed_through_a_symlinked_task(entry, tmp_path):
    task, elsewhere = entry.path.parent, tmp_path / "elsewhere"
    shutil.move(task, elsewhere)
    task.symlink_to(elsewhere)
    before = contents(elsewhere)
    for act in (lambda: Entry.open(entry.path), lambda: remove(entry.path)):
        with pytest.raises(CacheError, match="a symbolic link"):
            act()
    assert contents(elsewhere) == before


@pytest.mark.parametrize("file", ["train/00001-0.h5", "train/targets.h5", "moments/ridge.h5"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_special_files_count_as_damage_and_are_unlinked_without_opening(entry, tmp_path, file, kind):
    path, elsewhere = entry.path / file, tmp_path / "elsewhere.h5"
    shutil.move(path, elsewhere)  # a link to it has the listed size and checksum
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = elsewhere.read_bytes()
    if file.startswith("train"):
        with pytest.raises(CacheError, match="missing, or not of"):
            FeatureStore(entry)["train"]
    else:
        assert load_arrays(entry, "ridge") is None
    assert [problem.path for problem in verify(entry)] == [path]
    if kind == "folder":
        return
    repair(entry)
    assert not path.is_symlink()
    extract(entry)
    assert verify(entry) == [] and elsewhere.read_bytes() == before


def external(file, name, path, values):
    with h5py.File(path, "w") as other:
        other["x"] = values
    file[name] = h5py.ExternalLink(str(path), "x")


def virtual(file, name, path, values):
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(str(path), "x", values.shape)  # the source does not exist, so HDF5 reads zeros
    file.create_virtual_dataset(name, layout)


def raw(file, name, path, values):
    values.tofile(path)
    file.create_dataset(name, values.shape, values.dtype, external=[(str(path), 0, values.nbytes)])


def soft(file, name, _path, values):
    file["hidden"] = values
    file[name] = h5py.SoftLink("/hidden")


def empty(file, name, _path, values):
    file.create_dataset(name, values.shape, values.dtype)


@pytest.mark.parametrize("how", [external, virtual, raw, soft, empty])
@pytest.mark.parametrize("part", ["values", "offset"])
def test_values_that_lie_elsewhere_are_refused(entry, tmp_path, how, part):
    shard = entry.path / "train" / "00000-0.h5"
    with h5py.File(shard, "r+") as file:
        values, attributes = file[f"{COLUMN}/{part}"][()], dict(file[f"{COLUMN}/{part}"].attrs)
        if how in (virtual, empty):
            values = np.zeros_like(values)
        del file[f"{COLUMN}/{part}"]
        how(file, f"{COLUMN}/{part}", tmp_path / "elsewhere", values)
        if how in (virtual, raw, empty):
            file[f"{COLUMN}/{part}"].attrs.update(attributes)
        arrays = [file[f"{COLUMN}/{name}"][()].tobytes() for name in ("values", "offset")]
    crc = f"{zlib.crc32(arrays[1], zlib.crc32(arrays[0])):08x}"  # of the referenced values

    def renew(manifest):
        line = manifest["shards"][0]
        line.update(bytes=shard.stat().st_size, crc32=file_crc32(shard), columns={COLUMN: crc})

    rewrite(entry.path / "train" / "manifest.json", renew)
    with pytest.raises(CacheError, match=r"00000-0\.h5: damaged"):
        FeatureStore(entry)["train"].read(COLUMN)


@pytest.mark.parametrize("change", ["offset", "labels", "no labels"])
def test_arrays_of_another_shape_are_damage_not_a_traceback(entry, change):
    """The checksums match, because anyone who can write the files can update them."""
    name = "00000-0.h5" if change == "offset" else "targets.h5"
    path = entry.path / "train" / name
    with h5py.File(path, "r+") as file:
        if change == "offset":
            del file[f"{COLUMN}/offset"]
            file[f"{COLUMN}/offset"] = np.zeros(5, np.float32)
        else:
            del file["y"]
        if change == "labels":
            file["y"] = np.zeros((5, 1, 1), np.int64)

    def renew(manifest):
        line = manifest["shards"][0] if change == "offset" else manifest["targets"]
        line.update(bytes=path.stat().st_size, crc32=file_crc32(path))

    rewrite(entry.path / "train" / "manifest.json", renew)
    train = FeatureStore(entry)["train"]
    with pytest.raises(CacheError, match=f"{name}: damaged"):
        _ = train.read(COLUMN) if change == "offset" else train.y


def test_a_manifest_is_not_rebuilt_from_shards_that_lead_elsewhere(entry, tmp_path):
    good = entry.path / "train" / "00000-0.h5"
    shutil.copy(good, tmp_path / "elsewhere.h5")
    with h5py.File(good, "r+") as file:
        del file["final"]
        file["final"] = h5py.ExternalLink(str(tmp_path / "elsewhere.h5"), "final")
    (entry.path / "train" / "00001-1.h5").symlink_to(tmp_path / "elsewhere.h5")
    shutil.copy(entry.path / "train" / "00001-0.h5", entry.path / "train" / "00000-1.h5")  # another block's
    (entry.path / "train" / "manifest.json").write_text("{")
    repair(entry)
    assert [shard.file for shard in entry.manifest("train").shards] == ["00001-0.h5"]


def rewrite_shard(entry, values, offset):
    """Replace the datasets of the first block, with checksums that match."""
    file, crc = entry.path / "train" / "00000-0.h5", f"{zlib.crc32(offset, zlib.crc32(values)):08x}"
    with h5py.File(file, "a") as shard:
        store = shard[f"{COLUMN}/values"].attrs["encoding"]
        del shard[COLUMN]
        made = shard.create_dataset(f"{COLUMN}/values", data=values)
        made.attrs["encoding"], made.attrs["crc32"] = store, np.bytes_(crc)
        if offset.size:
            shard[f"{COLUMN}/offset"] = offset
    line = {"bytes": file.stat().st_size, "crc32": file_crc32(file), "columns": {COLUMN: crc}}
    rewrite(entry.path / "train" / "manifest.json", lambda manifest: manifest["shards"][0].update(line))


NONE, ONE = np.zeros(0, "f4"), np.zeros(3, "f4")


@pytest.mark.parametrize(
    ("store", "values", "offset"),
    [
        ("float32", np.zeros((4, 1, 3), "f4"), ONE),
        ("float16", np.zeros((4, 1, 3), "i1"), ONE),
        ("float16", np.zeros((4, 0, 3), "f2"), ONE),
        ("float16", np.zeros((3, 1, 3), "f2"), ONE),
        ("float16", np.zeros((4, 1, 3), "f2"), NONE),
    ],
    ids=["an offset of float32", "another type", "no tokens", "other rows", "no offset"],
)
def test_a_shard_of_another_form_is_refused_and_computed_again(cache, store, values, offset):
    entry = make_entry(cache, store=store, data={"digest": "d", "rows": {"train": 6}})
    extract(entry)
    rewrite_shard(entry, values, offset)
    for read in (np.asarray, lambda column: column[[0]]):
        with pytest.raises(CacheError, match="damaged"):
            read(FeatureStore(entry.path)["train"][COLUMN])
    (entry.path / "train" / "manifest.json").write_text("{")
    repair(entry)
    extract(entry)
    assert np.asarray(FeatureStore(entry.path)["train"][COLUMN]).shape[0] == 6 and verify(entry) == []


@pytest.mark.parametrize("block_rows", [1, 4, 10**17, 10**18])
def test_an_enormous_count_of_rows_is_refused_before_memory_is_allocated(cache, entry, call, block_rows):
    def change(content):
        content["spec"]["data"]["rows"]["train"] = 10**18
        content["layout"]["block_rows"] = block_rows
        content["key"] = Spec.from_json(content["spec"]).key

    def enlarge(content):
        values = json.loads((entry.path / "spec.json").read_text())["spec"]
        content |= {"rows": 10**18, "key": Spec.from_json(values).key}

    rewrite(entry.path / "spec.json", change)
    rewrite(entry.path / "train" / "manifest.json", enlarge)
    for command in (["list"], ["show", entry.path], ["verify"], ["repair", entry.path]):
        code, out, err = call("cache", *command)
        assert code in (0, 1, 2) and "Traceback" not in err
        assert block_rows > 4 or "1,000,000 blocks" in out + err
    with pytest.raises(CacheError):
        _ = FeatureStore(entry.path)["train"].labels
    with pytest.raises(CacheError):
        _ = FeatureStore(entry.path)["train"].read("final/last")


def test_the_last_extraction_is_the_last_one_also_after_the_clock_is_set_back(cache):
    def made(rows):
        return make_entry(cache, data={"digest": "d", "rows": {"train": rows}})

    for rows in (6, 7):
        os.utime(made(rows).path / "lock", (4e9, 4e9))
    for rows in (6, 7, 6):
        assert made(rows).path == last_entry(cache, "toy").path


@pytest.mark.parametrize("how", [external, virtual, raw])
def test_prepared_values_that_lie_elsewhere_are_refused(tmp_path, how):
    with h5py.File(tmp_path / "00000.h5", "w") as file:
        how(file, "y", tmp_path / "elsewhere", np.arange(3))
    with pytest.raises(InputError, match="y is not stored in this file alone"):
        _ = PreparedSplit("train", ((tmp_path / "00000.h5", 3),)).y


@pytest.mark.parametrize("name", ["../../precious.h5", "/precious.h5", 3])
def test_no_name_in_the_index_of_prepared_data_leads_out(cache, outside, call, name):
    assert call("prepare", "digits")[0] == 0
    (index,) = cache.glob("prepared/*/*/prepared.json")
    rewrite(index, lambda content: content["splits"]["train"]["files"][0].update(name=name))
    with pytest.raises(InputError, match=r"^[^\n]*prepared\.json: missing or damaged"):
        Prepared.open(index.parent)


def test_prepared_data_that_is_removed_meanwhile_ends_in_one_line(tmp_path):
    split = PreparedSplit("train", ((tmp_path / "data" / "train" / "00000.h5", 3),))
    for use in (lambda: split.groups, lambda: split.y):
        with pytest.raises(InputError, match=r"^[^\n]* and prepare again$"):
            use()


# Symbolic links and caches of other users: nothing outside is written or removed; read-only caches can be read.


@pytest.fixture
def outside_folder(tmp_path):
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "notes").write_text("mine")
    (folder / "sub" / "notes").write_text("mine")
    return folder


def untouched(folder):
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    return found == {"notes": "mine", "sub/notes": "mine"} and {p.name for p in folder.iterdir()} == {"notes", "sub"}


@pytest.mark.parametrize("exists", [True, False])
def test_a_lock_that_is_a_link_neither_empties_nor_creates_a_file(tmp_path, outside_folder, exists):
    target, lock = outside_folder / ("notes" if exists else "new"), tmp_path / "lock"
    lock.symlink_to(target)
    with pytest.raises(CacheError, match=r"lock: a symbolic link, .* remove it"):
        open_lock(lock)
    assert untouched(outside_folder)


def test_train_does_not_empty_the_file_that_the_lock_of_a_run_leads_to(tmp_path, outside_folder, refusal):
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").symlink_to(outside_folder / "notes")
    with pytest.raises(CacheError, match="symbolic link"), RunFolder(run).lock():
        pass
    settings = ["--backbone", "gpt2:n_layer=1,n_embd=8,n_head=2", "--init", "random", "--steps", 1, "--limit", 20]
    where = "--cache", tmp_path / "cache", "--run", run
    assert "symbolic link" in refusal("train", "digits", *where, "--resume", *settings)
    assert untouched(outside_folder)


def test_a_run_whose_checkpoints_are_elsewhere_is_refused_before_any_is_removed(tmp_path, outside_folder):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(outside_folder)
    with pytest.raises(CacheError, match="checkpoints: a symbolic link"), RunFolder(run).lock():
        pass
    assert untouched(outside_folder)


@pytest.mark.parametrize("name", ["reproductions", "reproductions/smoke"])
def test_reproduce_does_not_write_through_a_link_in_the_cache(cache, outside_folder, refusal, name):
    (cache / name).parent.mkdir(parents=True)
    (cache / name).symlink_to(outside_folder)
    assert f"{name}: a symbolic link" in refusal("reproduce", "figure6")
    assert untouched(outside_folder)


@pytest.mark.parametrize("name", ["prepared/evil/sub", "readouts/evil/sub", "prepared/evil"])
def test_cache_remove_does_not_follow_a_link_out_of_the_cache(cache, outside_folder, refusal, name):
    for kind in ("prepared", "readouts"):
        (cache / kind).mkdir(parents=True)
        (cache / kind / "evil").symlink_to(outside_folder)
    for named in (name, cache / name):
        refusal("cache", "remove", named)
    assert untouched(outside_folder)


def test_a_cache_that_is_itself_reached_through_a_link_can_be_cleaned(tmp_path, call):
    real = tmp_path / "disk"
    (real / "reproductions" / "old").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    assert call("cache", "remove", "reproductions/old", "--cache", tmp_path / "link")[0] == 0
    assert not (real / "reproductions" / "old").exists()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_prepare_does_not_write_or_remove_through_a_link(cache, outside_folder, call, refusal, depth):
    assert call("prepare", "digits")[0] == 0
    (final,) = cache.glob("prepared/*/*")
    link = [cache / "prepared", final.parent, final][depth]
    link.rename(outside_folder.parent / "moved")
    link.symlink_to(outside_folder)
    assert f"{link}: a symbolic link" in refusal("prepare", "digits") and untouched(outside_folder)


def test_fit_does_not_write_through_a_link_beside_an_entry(tmp_path, outside_folder, call, refusal):
    assert call("extract", "digits", "--limit", 60, "--cache", tmp_path / "cache", *EXTRACT)[0] == 0
    (entry,) = tmp_path.glob("cache/features/digits/*")
    gift = entry.rename(tmp_path / entry.name)
    assert call("fit", gift)[0] == 0
    (made,) = tmp_path.glob(f"{gift.name}-ridge-*")
    made.rename(tmp_path / "made")
    made.symlink_to(outside_folder)
    assert f"{made}: a symbolic link" in refusal("fit", gift) and untouched(outside_folder)


def test_path_below_follows_links_above_the_root_only(tmp_path, outside_folder):
    (tmp_path / "link").symlink_to(outside_folder)
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
