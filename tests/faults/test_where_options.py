"""A file never decides where work runs or where results go: no scheduler, folder or device of a file is used."""

import json
import socket
from dataclasses import fields

import numpy as np
import pytest
from reservoir_cache import Entry
from reservoir_cache.publish import publish_json, read_json
from reservoir_pipelines import extract
from reservoir_pipelines.extraction.entries import find_entry

from reservoir import InputError, options
from reservoir.option_fields import without_where

RECIPE = """
title = "Mine"
{top}
[[columns]]
name = "accuracy"
cell = "readout"
{column}
[[rows]]
name = "digits"
task = "digits"
{row}
"""
WHERE = {
    "scheduler": "tcp://127.0.0.1:9",
    "workers": 2,
    "out": "/tmp/elsewhere",
    "cache": "/tmp/elsewhere",
    "data": "/tmp/elsewhere",
    "device": "cuda:7",
}


@pytest.fixture
def listening(monkeypatch):
    """Yield a socket that notices whoever connects, and its address."""
    monkeypatch.setattr("reservoir_pipelines.workers.PATIENCE", 1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        yield server, f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def entry(tmp_path, tiny_gpt2):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 6, 2)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, :, 0].mean(axis=1) > 0).astype(np.int64))
    settings = {"backbone": str(tiny_gpt2), "layers": "final", "pool": "mean", "init": "random"}
    return extract(str(tmp_path / "rows.npz"), cache=tmp_path / "cache", **settings).entry


def change_settings(entry, **more):
    """Add settings to those that an entry says it was extracted with, checksum renewed."""
    content = read_json(entry / "spec.json", indent=2)
    content["made_with"]["call"]["settings"] |= more
    publish_json(entry / "spec.json", content, indent=2)


def test_seeds_of_an_entry_contact_no_scheduler_that_the_entry_names(entry, call, listening):
    server, address = listening
    change_settings(entry, scheduler=address, workers=2)
    code, out, err = call("fit", entry, "--seeds", 2)
    with pytest.raises(TimeoutError):
        server.accept()
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_seeds_of_an_entry_read_no_data_folder_that_the_entry_names(entry, call, tmp_path):
    change_settings(entry, data=str(tmp_path / "missing"))
    code, out, err = call("fit", entry, "--seeds", 1, "--json")
    assert code == 0, err
    assert len(json.loads(out)["seeds"]) == 1


def test_a_changed_entry_is_found_by_its_task(entry, tmp_path):
    change_settings(entry, data=str(tmp_path / "missing"), scheduler="tcp://127.0.0.1:9")
    assert find_entry(tmp_path / "cache", str(tmp_path / "rows.npz")) == Entry.open(entry)


@pytest.mark.parametrize("name", WHERE)
@pytest.mark.parametrize("place", ["top", "column", "row"])
def test_a_recipe_that_says_where_is_refused(tmp_path, cache, call, name, place):
    value = json.dumps(WHERE[name])
    parts = dict.fromkeys(("top", "column", "row"), "") | {place: f"settings = {{ {name} = {value} }}"}
    (tmp_path / "r.toml").write_text(RECIPE.format(**parts))
    code, out, err = call("reproduce", tmp_path / "r.toml", "--out", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"'{name}' says where" in err
    assert f"--{name}" in err
    assert not (tmp_path / "out").exists()


def test_a_recipe_contacts_no_scheduler(tmp_path, cache, call, listening):
    server, address = listening
    row = f'settings = {{ scheduler = "{address}", workers = 2 }}'
    (tmp_path / "r.toml").write_text(RECIPE.format(top="", column="", row=row))
    assert call("reproduce", tmp_path / "r.toml", "--out", tmp_path / "out")[0] == 2
    with pytest.raises(TimeoutError):
        server.accept()


def test_only_another_cell_may_be_the_run_of_a_recipe(tmp_path, cache, call):
    row = f'settings = {{ run = "{tmp_path}/run" }}\ncell = "fpt"'
    (tmp_path / "r.toml").write_text(RECIPE.format(top="", column="", row=row))
    code, _, err = call("reproduce", tmp_path / "r.toml", "--out", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "'run' says where" in err


def test_a_task_parameter_is_no_way_to_name_a_folder(call, cache, tmp_path):
    code, _, err = call("prepare", "mnist", "--param", f"data={tmp_path}")
    assert (code, err.count("\n")) == (2, 1)
    assert "write --data" in err


def test_the_options_that_say_where_are_these():
    groups = [kind for kind in vars(options).values() if isinstance(kind, type) and issubclass(kind, options.Options)]
    declared = {item.name for group in groups for item in fields(group) if item.metadata.get("where")}
    assert declared >= {"cache", "data", "out", "run", "device", "workers", "scheduler", "fetch", "mirrors"}
    assert without_where(dict.fromkeys(declared, 1) | {"seed": 3}) == {"seed": 3}
    with pytest.raises(InputError, match=r"spec\.json: 'device'"):
        without_where({"seed": 3, "device": "cuda"}, "spec.json")
