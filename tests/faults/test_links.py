"""Symbolic links in folders that came from somebody else: nothing outside of them is written, emptied or removed."""

import os

import pytest
from reservoir_cache import CacheError, open_lock, path_below
from reservoir_pipelines.reproduction.recipe import Cell
from reservoir_pipelines.reproduction.stages import run_cell
from reservoir_pipelines.reproduction_folder import ReproductionFolder
from reservoir_pipelines.training.checkpoint import remove_others
from reservoir_pipelines.training.run_folder import RunFolder


@pytest.fixture
def outside(tmp_path):
    """Return a folder outside of the cache with a file in it."""
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
    target = outside / ("notes" if exists else "new")
    lock = tmp_path / "lock"
    lock.symlink_to(target)
    with pytest.raises(CacheError, match=r"lock: a symbolic link, .* remove it"):
        open_lock(lock)
    assert untouched(outside)


def test_open_lock_keeps_the_content_of_a_lock_file(tmp_path):
    (tmp_path / "lock").write_text("content")
    os.close(open_lock(tmp_path / "lock"))
    assert (tmp_path / "lock").read_text() == "content"


def test_train_does_not_empty_the_file_that_the_lock_of_a_run_leads_to(tmp_path, outside, call):
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").symlink_to(outside / "notes")
    with pytest.raises(CacheError, match="symbolic link"), RunFolder(run).lock():
        pass
    settings = ["--backbone", "gpt2:n_layer=1,n_embd=8,n_head=2", "--init", "random", "--steps", 1, "--limit", 20]
    code, _, err = call("train", "digits", "--cache", tmp_path / "cache", "--run", run, "--resume", *settings)
    assert code == 2 and "symbolic link" in err.splitlines()[-1]
    assert untouched(outside)


def test_a_run_whose_checkpoints_are_elsewhere_is_refused_before_any_is_removed(tmp_path, outside):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(outside)
    with pytest.raises(CacheError, match="checkpoints: a symbolic link"), RunFolder(run).lock():
        remove_others(run / "checkpoints", RunFolder(run).state)
    assert untouched(outside)


def test_reproduce_does_not_empty_the_file_that_the_lock_of_a_cell_leads_to(tmp_path, outside):
    kept = ReproductionFolder(tmp_path / "out")
    kept.create()
    (tmp_path / "out" / "cells" / ".key.lock").symlink_to(outside / "notes")
    with pytest.raises(CacheError, match="symbolic link"), kept.lock("key", wait=False):
        pass
    assert untouched(outside)


@pytest.mark.parametrize("name", ["cells", "tables", "work"])
def test_a_reproduction_whose_folders_are_elsewhere_is_refused(tmp_path, outside, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(outside)
    with pytest.raises(CacheError, match=f"{name}: a symbolic link"):
        ReproductionFolder(tmp_path / "out").create()


def test_a_cell_does_not_write_through_a_link_in_place_of_its_folder(tmp_path, outside):
    cell = Cell("pretrain", None, {"corpus": "nesting"})
    (tmp_path / cell.key).symlink_to(outside)
    with pytest.raises(CacheError, match=f"{cell.key}: a symbolic link"):
        run_cell(cell, tmp_path, {}, {})
    assert untouched(outside)


@pytest.mark.parametrize("name", ["reproductions", "reproductions/smoke"])
def test_reproduce_does_not_write_through_a_link_in_the_cache(cache, outside, call, name):
    (cache / name).parent.mkdir(parents=True)
    (cache / name).symlink_to(outside)
    code, _, err = call("reproduce", "figure6")
    assert code == 2 and f"{name}: a symbolic link" in err
    assert untouched(outside)


@pytest.mark.parametrize("name", ["prepared/evil/sub", "readouts/evil/sub", "prepared/evil"])
def test_cache_remove_does_not_follow_a_link_out_of_the_cache(cache, outside, call, name):
    for kind in ("prepared", "readouts"):
        (cache / kind).mkdir(parents=True)
        (cache / kind / "evil").symlink_to(outside)
    code, _, err = call("cache", "remove", name)
    assert code == 2 and len(err.splitlines()) == 1
    code, _, _ = call("cache", "remove", cache / name)
    assert code == 2 and untouched(outside)


def test_cache_remove_does_not_follow_a_link_in_place_of_a_kind_of_folder(cache, outside, call):
    cache.mkdir()
    (cache / "reproductions").symlink_to(outside)
    assert call("cache", "remove", "reproductions/sub")[0] == 2 and untouched(outside)
    assert "reproductions" not in call("cache", "list")[1]


def test_a_cache_that_is_itself_reached_through_a_link_can_be_cleaned(tmp_path, call):
    real = tmp_path / "disk"
    (real / "reproductions" / "old").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    assert call("cache", "remove", "reproductions/old", "--cache", tmp_path / "link")[0] == 0
    assert not (real / "reproductions" / "old").exists()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_prepare_does_not_write_or_remove_through_a_link(cache, outside, call, depth):
    assert call("prepare", "digits")[0] == 0
    (final,) = cache.glob("prepared/*/*")
    link = [cache / "prepared", final.parent, final][depth]
    link.rename(outside.parent / "moved")
    link.symlink_to(outside)
    code, _, err = call("prepare", "digits")
    assert code == 2 and f"{link}: a symbolic link" in err and untouched(outside)


def test_path_below_follows_links_above_the_root_only(tmp_path, outside):
    (tmp_path / "link").symlink_to(outside)
    assert path_below(tmp_path / "link", "sub", "new") == tmp_path / "link" / "sub" / "new"
    with pytest.raises(CacheError, match="symbolic link"):
        path_below(tmp_path, "link", "sub")
