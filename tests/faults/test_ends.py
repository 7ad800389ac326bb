"""What a process that was killed, or a file that somebody else wrote, leaves to the next command (line 13)."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    Layout,
    Spec,
    last_entry,
    publish_json,
    write_block,
    write_targets,
)
from reservoir_pipelines.preparation.prepared import PreparedSplit

from reservoir import InputError

ROWS = {"train": 6}


def spec(rows=ROWS):
    return Spec(
        task={"name": "toy"},
        data={"digest": "d", "rows": rows},
        backbone={"family": "gpt2", "digest": "b"},
        init={"kind": "random", "seed": 0},
        input={"kind": "orthogonal", "seed": 0, "gain": 1, "patch": 1, "stride": 1},
        padding="mask",
        compute="float32",
        store="float16",
    )


@pytest.fixture
def entry(cache):
    """Return a finished entry of two blocks in the cache of the commands."""
    entry = Entry.create(cache, "gpt2-random", spec(), Layout(batch_rows=2, block_rows=4), {})
    index = np.arange(6)
    write_targets(entry, "train", {"y": index.reshape(6, 1, 1), "lengths": index, "index": index})
    for block, (low, high) in enumerate(entry.blocks("train")):
        write_block(entry, "train", block, {"final/last": np.ones((high - low, 1, 8), np.float32)})
    return entry


@pytest.mark.parametrize("step", ["marked", "emptied"])
@pytest.mark.parametrize("name", ["the task", "the folder", "its name"])
def test_a_second_cache_remove_after_a_kill_removes_the_rest(entry, call, step, name):
    named = {"the task": "toy", "the folder": entry.path, "its name": entry.path.name}[name]
    command = [sys.executable, "-m", "reservoir_pipelines", "cache", "remove", str(named)]
    first = subprocess.run(command, env={**os.environ, "RESERVOIR_FAULT": step}, capture_output=True)
    assert first.returncode == -signal.SIGKILL and entry.path.is_dir()
    code, out, err = call("cache", "remove", named)
    assert (code, err) == (0, "") and entry.path.name in out
    assert not entry.path.exists()
    code, out, err = call("cache", "remove", named)
    assert code == 2 and len(err.splitlines()) == 1


def test_a_task_with_a_sound_entry_is_that_entry(entry, call):
    half = entry.path.with_name("gpt2-random-0123456789abcdef")
    half.mkdir()
    assert call("cache", "remove", "toy")[0] == 0
    assert half.is_dir() and not entry.path.exists()


def grow(path, change):
    """Change a document and give it a right checksum and key, as whoever can write it can."""
    content = json.loads(path.read_text())
    del content["crc32"]
    change(content)
    publish_json(path, content, indent=2 if path.name == "spec.json" else None)


@pytest.mark.parametrize("block_rows", [1, 4, 10**17, 10**18])
def test_an_enormous_count_of_rows_is_one_line_not_memory_without_end(entry, call, block_rows):
    def change(content):
        content["spec"]["data"]["rows"]["train"] = 10**18
        content["layout"]["block_rows"] = block_rows
        content["key"] = Spec.from_dict(content["spec"]).key

    def enlarge(content):
        values = json.loads((entry.path / "spec.json").read_text())["spec"]
        content |= {"rows": 10**18, "key": Spec.from_dict(values).key}

    grow(entry.path / "spec.json", change)
    grow(entry.path / "train" / "manifest.json", enlarge)
    for command in (["list"], ["show", entry.path], ["verify"], ["repair", entry.path]):
        code, out, err = call("cache", *command)
        assert code in (0, 1, 2) and "Traceback" not in err
        assert block_rows > 4 or "1,000,000 blocks" in out + err
    with pytest.raises(CacheError):
        _ = FeatureStore(entry.path)["train"].labels
    with pytest.raises(CacheError):
        _ = FeatureStore(entry.path)["train"].read("final/last")


def test_no_entry_is_made_that_cannot_be_opened(cache):
    with pytest.raises(CacheError, match="more than 1,000,000 blocks"):
        Entry.create(cache, "gpt2-random", spec({"train": 10**9}), Layout(batch_rows=2, block_rows=4), {})


def test_what_is_extracted_last_is_the_last_also_after_the_clock_is_set_back(cache):
    layout = Layout(batch_rows=2, block_rows=4)
    first, second = (Entry.create(cache, "gpt2-random", spec({"train": rows}), layout, {}) for rows in (6, 7))
    for entry in (first, second):
        os.utime(entry.path / "lock", (4e9, 4e9))
    for entry in (first, second, first):
        again = Entry.create(cache, "gpt2-random", entry.spec, layout, {})
        assert last_entry(cache, "toy").path == again.path


def test_prepared_data_that_goes_meanwhile_is_told_in_a_line(tmp_path):
    split = PreparedSplit("train", ((tmp_path / "data" / "train" / "00000.h5", 3),))
    for use in (lambda: split.groups, lambda: split.y):
        with pytest.raises(InputError, match=r"^[^\n]* and prepare again$"):
            use()
