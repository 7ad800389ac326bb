"""Files of earlier versions are read, with the same results; files of a later version are refused.

Archive 1 was made by commit b780ba2 (entry and run of format 1, readout of format 2), archive 2 when readouts got
format 3. No archive is ever changed; `make.py` makes a new one when a format gets a new version.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from reservoir_cache import CacheError, FeatureStore, list_entries, publish_json, read_json, verify
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.training.run_folder import RunFolder

from tests.golden.make import features, sequences

GOLDEN = sorted(Path(__file__).parent.glob("*.tar"))


def contains(archive, name):
    with tarfile.open(archive) as files:
        return f"./{name}" in files.getnames()


ENTRIES, RUNS = ([archive for archive in GOLDEN if contains(archive, name)] for name in ("features", "run"))


def unpack(archive, folder):
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture
def copied(request, tmp_path):
    """Return the folder of an unpacked archive, and the values that were read from it when it was made."""
    folder = unpack(request.param, tmp_path / "golden")
    return folder, json.loads((folder / "expected.json").read_text())


def name(archive):
    return f"golden {archive.stem}"


@pytest.mark.parametrize("copied", ENTRIES, indirect=True, ids=name)
def test_an_entry_of_an_earlier_version_is_read_bit_by_bit(copied):
    folder, expected = copied
    (entry,) = list_entries(folder)
    store = FeatureStore(entry)
    assert (entry.key, features(store)) == (expected["key"], expected["features"])
    assert {split: store[split].y.tolist() for split in store.splits} == expected["labels"]
    assert verify(entry) == []


@pytest.mark.parametrize("kind", ["readout", "run"])
@pytest.mark.parametrize("copied", GOLDEN, indirect=True, ids=name)
def test_a_readout_and_a_run_of_an_earlier_version_predict_what_they_predicted(copied, kind, call, tmp_path):
    folder, expected = copied
    if kind not in expected:
        pytest.skip(f"this archive has no {kind}")
    np.savez(tmp_path / "new.npz", x=sequences(60)[0][:4])
    out = tmp_path / "out.jsonl"
    code, _, err = call("predict", folder / kind, tmp_path / "new.npz", "--out", out, "--device", "cpu")
    assert code == 0, err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["label"] for row in rows] == [row["label"] for row in expected[kind]]
    for row, old in zip(rows, expected[kind], strict=True):
        assert row["probabilities"] == pytest.approx(old["probabilities"], abs=1e-4)


@pytest.mark.parametrize("copied", RUNS, indirect=True, ids=name)
def test_a_run_of_an_earlier_version_keeps_its_result_and_history(copied):
    run = RunFolder(copied[0] / "run")
    assert (run.result(dict) or {})["steps"] == run.state.step == max(line["step"] for line in run.history) == 4


def test_an_entry_of_a_later_version_is_refused_in_one_line(tmp_path, call):
    folder = unpack(GOLDEN[0], tmp_path / "golden")
    (path,) = folder.glob("features/*/*/spec.json")
    content = read_json(path, indent=2)
    content["spec"]["format"] = 99
    publish_json(path, content, indent=2)
    message = "format version 99, but this program reads version 1; install a newer version of reservoir-features"
    with pytest.raises(CacheError, match=message) as caught:
        FeatureStore(path.parent)
    assert "\n" not in str(caught.value)
    code, _, err = call("cache", "list", "--cache", folder)
    assert code == 0 and sum("format version 99" in line for line in err.splitlines()) == 1


@pytest.mark.parametrize(("kind", "card"), [("readout", "readout.json"), ("run", "config.json")])
def test_a_readout_and_a_run_of_a_later_version_are_refused_in_one_line(tmp_path, refusal, kind, card):
    folder = unpack(GOLDEN[0], tmp_path / "golden")
    write_checked(folder / kind / card, {**read_checked(folder / kind / card), "format": 99})
    np.savez(tmp_path / "new.npz", x=sequences(60)[0][:4])
    assert "format 99" in refusal("predict", folder / kind, tmp_path / "new.npz")
