"""Saved readouts: every changed byte is detected, and concurrent writers leave one whole readout."""

import json
import multiprocessing
import shutil

import numpy as np
import pytest
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fitting.bundle import Bundle, locked

from reservoir import InputError
from reservoir.readouts.linear import LinearReadout
from reservoir.readouts.targets import Targets
from reservoir.tasks.task import Scaling, Task, Vectors


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("files")
    return extract("digits", backbone=str(tiny_gpt2), limit=120, cache=root, layers="final", pool="mean,last")


def same(text, card):
    """Return whether JSON has the values of a card: a number may have got an E for its e, which changes nothing."""
    try:
        return json.loads(text) == card
    except ValueError:
        return False


@pytest.mark.parametrize("readout", ["ridge", "sklearn.naive_bayes.GaussianNB"])
def test_every_changed_byte_is_found(extracted, readout, tmp_path):
    folder = fit(extracted, columns="final/mean", readout=readout, out=tmp_path / "whole").saved.parent
    files = sorted(path.name for path in folder.glob("readout*"))
    assert len(files) == 2 + (readout != "ridge")
    card = json.loads((folder / "readout.json").read_text())
    for name in files:
        data = (folder / name).read_bytes()
        damaged = [data[:-9], data + b"0"]
        damaged += [
            data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
            for place in range(0, len(data), max(1, len(data) // 40))
        ]
        for changed in damaged:
            (folder / name).write_bytes(changed)
            if name == "readout.json" and same(changed, card):
                continue
            with pytest.raises(InputError, match="readout") as caught:
                Bundle.load(folder, trust=True)
            assert "\n" not in str(caught.value)
        (folder / name).write_bytes(data)
    assert Bundle.load(folder, trust=True).task.name == "digits"


def bundle_of(number, width=400):
    """Return a bundle in which every value is one number."""
    coef, offset = np.full((width, 3), float(number)), np.full(4, number, np.float32)
    return Bundle(
        task=Task(name="digits", form=Vectors(4), max_tokens=16, classes=3),
        scaling=Scaling(offset=offset, scale=offset + 1),
        parts=(),
        readout=LinearReadout(coef=coef, intercept=coef[0], targets=Targets(1, 3)),
        scores={"number": number},
    )


def save(number, folder):
    with locked(folder):
        bundle_of(number).write(folder)


def save_often(folder, number):
    for _ in range(15):
        save(number, folder)


def test_concurrent_writers_never_mix_two_bundles(tmp_path):
    save(0, tmp_path)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=save_often, args=(tmp_path, number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    loads = 0
    while loads < 20 or any(writer.is_alive() for writer in writers):
        found = Bundle.load(tmp_path)
        assert {found.scores["number"], *found.readout.coef.ravel(), *found.scaling.offset} == {found.scores["number"]}
        loads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_write_that_fails_leaves_the_old_bundle(tmp_path, monkeypatch, step):
    from pathlib import Path

    save(1, tmp_path)
    plain = getattr(Path, step)

    def fail(self, *arguments, **named):
        plain(self, *arguments, **named)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(OSError, match="No space"):
        save(2, tmp_path)
    monkeypatch.undo()
    assert Bundle.load(tmp_path).scores == {"number": 1}
    save(2, tmp_path)
    assert Bundle.load(tmp_path).scores == {"number": 2}
    assert len(list(tmp_path.iterdir())) == 2


def test_fits_with_other_options_have_other_folders(extracted):
    settings = [
        {},
        {"columns": "final/last"},
        {"columns": "best:2"},
        {"alphas": "1:10:2"},
        {"select": "cv3"},
        {"class_weight": "balanced"},
        {"readout": "logistic"},
    ]
    plain = {"columns": "final/mean", "alphas": "1:100:3"}
    folders = [fit(extracted, **(plain | one)).saved.parent for one in settings]
    assert len(set(folders)) == len(settings)
    assert fit(extracted, **plain).saved.parent == folders[0]


def test_a_missing_file_of_weights_is_named(extracted, tmp_path):
    folder = fit(extracted, columns="final/mean", out=tmp_path / "fit").saved.parent
    (weights,) = folder.glob("readout-*.safetensors")
    shutil.move(weights, tmp_path / "away")
    with pytest.raises(InputError, match=weights.name):
        Bundle.load(folder)
