"""What fit needs and leaves on disk, and how it ends: prepared data that is gone, mistakes, Ctrl-C."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.cli import run
from reservoir_pipelines.fitting import fit as fitting
from reservoir_pipelines.prediction.predict import Prediction

from reservoir import InputError


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("fit")
    return extract("digits", backbone=str(tiny_gpt2), limit=120, cache=root, layers="final", pool="mean")


def labels(found: list[Prediction]) -> list:
    return [prediction.label for prediction in found]


def test_a_readout_keeps_its_input_scaling_when_the_prepared_data_is_gone(tiny_gpt2, tmp_path):
    draw = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = (20 + 3 * draw.normal(size=(90, 8, 2)) + 4 * y[:, None, None]).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    found = extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), cache=tmp_path / "cache", pool="mean")
    whole = fit(found, columns="final/mean")
    expected = labels(list(predict(whole.saved.parent, tmp_path / "own.npz", device="cpu")))
    shutil.rmtree(tmp_path / "cache" / "prepared")
    gone = fit(found, columns="final/mean", out=tmp_path / "gone")
    assert gone.raw is None and gone.best.valid_score == whole.best.valid_score
    assert labels(list(predict(tmp_path / "gone", tmp_path / "own.npz", device="cpu"))) == expected


def test_an_entry_may_have_a_relative_path_or_lie_outside_the_cache(extracted, tmp_path, monkeypatch):
    monkeypatch.chdir(extracted.entry.parent)
    inside = fit(extracted.entry.name)
    assert inside.results.parent.parent.parent == extracted.entry.parents[2] / "readouts"
    shutil.copytree(extracted.entry, tmp_path / "moved")
    assert fit(str(tmp_path / "moved")).results.parent.name.startswith("moved-ridge-")


def test_the_folder_name_of_many_entries_is_short_enough(extracted, capsys):
    done = fit([extracted] * 12, columns="1:final/mean+12:final/mean")
    assert done.results.parent.name.startswith(f"{extracted.entry.name}+11-")
    assert f"12: {extracted.entry.name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"curve": "abc"}, "--curve abc"),
        ({"out": "/dev/null"}, "/dev/null: cannot be written"),
        ({"columns": "best:2", "select": "cv5"}, "best:K needs ridge readouts chosen on valid"),
        ({"columns": []}, "no columns to fit; name some of final/mean"),
    ],
)
def test_mistakes_end_a_fit_before_it_begins(settings, message, extracted, monkeypatch):
    monkeypatch.setattr(fitting, "_fit_columns", lambda *_: pytest.fail("fitting began"))
    with pytest.raises(InputError, match=message):
        fit(extracted, **settings)
    with pytest.raises(InputError, match="give at least one entry"):
        fit([])


def test_a_broken_entry_is_removed_by_its_name(extracted, tmp_path, capfd):
    root = tmp_path / "cache"
    folder = root / "features" / "digits" / extracted.entry.name
    shutil.copytree(extracted.entry, folder)
    (folder / "spec.json").write_text("{")
    assert run(["cache", "remove", folder.name, "--cache", str(root)]) == 0
    assert not folder.exists() and str(folder) in capfd.readouterr().out


def test_an_interrupted_fit_tells_how_to_continue(extracted):
    script = """
import signal, sys, time
from reservoir_pipelines.fitting import fit as fitting
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its jobs in the background without it
from reservoir_pipelines.cli import run
def slow(*_):
    print("fitting", flush=True)
    time.sleep(600)
fitting._fit_columns = slow
sys.exit(run(["fit", sys.argv[1]]))
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(extracted.entry)], stdout=-1, stderr=-1, text=True)
    assert process.stdout.readline() == "fitting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "reservoir: interrupted; run the same command again to continue"


def test_the_folder_is_locked_until_a_fit_has_written_everything(extracted, tmp_path, monkeypatch):
    held = []

    def draw(folder, *_):
        handle = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        held.append(folder)

    monkeypatch.setattr(fitting, "_draw", draw)
    fit(extracted, out=tmp_path / "out")
    assert held == [tmp_path / "out"]
