"""Readouts from somebody else run no code unless the user passes ``--trust``, however their archives are made."""

import json
import operator
import shutil
import warnings
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import skops.io
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.cli import run
from reservoir_pipelines.files import file_digest, read_checked, write_checked
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from reservoir import InputError

WIDTH = 16  # of the tiny GPT-2 of conftest.py


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return a file of labelled sequences."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 6, 2)).astype(np.float32)
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(path, x=x, y=(x[:, :, 0].mean(axis=1) > 0).astype(np.int64))
    return path


@pytest.fixture(scope="module")
def extracted(rows, tmp_path_factory, tiny_gpt2):
    cache = tmp_path_factory.mktemp("cache")
    return extract(str(rows), backbone=str(tiny_gpt2), cache=cache, layers="final", pool="mean")


@pytest.fixture(scope="module")
def neighbours(extracted, tmp_path_factory):
    """Return the folder of a readout that is not linear."""
    folder = tmp_path_factory.mktemp("neighbours")
    fit(extracted, readout="sklearn.neighbors.KNeighborsClassifier:n_neighbors=3", out=folder, columns="final/mean")
    return folder


def training_rows():
    draw = np.random.default_rng(1)
    return draw.normal(size=(20, WIDTH)).astype(np.float32), np.arange(20) % 2


def scaled(estimator):
    """Return a fitted pipeline of a scaler and an estimator."""
    return make_pipeline(StandardScaler(), estimator).fit(*training_rows())


def put(folder, data):
    """Replace the archive of a readout and renew every checksum, as whoever hands a readout on can."""
    (file,) = folder.glob("readout-*.skops")
    file.write_bytes(data)
    card = read_checked(folder / "readout.json")
    card["files"][file.name] = file_digest(file)
    write_checked(folder / "readout.json", card)


def shadowed_method(marker):
    """Return an estimator with an attribute in place of its method, which writes what it is given to a file."""
    model = scaled(KNeighborsClassifier())
    model[-1].predict = operator.methodcaller("tofile", str(marker))
    return model


def bound_method(marker):
    """Return a transformer whose function is a method of an object in the file."""
    model = scaled(KNeighborsClassifier())
    model.steps.insert(1, ("call", FunctionTransformer(marker.write_bytes)))
    return model


GADGETS = {"shadowed_method": shadowed_method, "bound_method": bound_method}


def load_and_predict(folder, inputs):
    """Load an archive as somebody does who trusts all that it names, and predict."""
    (file,) = folder.glob("readout-*.skops")
    data = file.read_bytes()
    model = skops.io.loads(data, trusted=skops.io.get_untrusted_types(data=data))
    model.predict(training_rows()[0])


@pytest.fixture
def gift(neighbours, tmp_path):
    return shutil.copytree(neighbours, tmp_path / "gift")


@pytest.mark.parametrize("name", GADGETS)
def test_gadgets_run_when_trusted_and_are_never_opened_otherwise(gift, rows, tmp_path, name, capfd, monkeypatch):
    marker = tmp_path / "marker"
    put(gift, skops.io.dumps(GADGETS[name](marker)))
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_and_predict(gift, rows)
    assert marker.exists()  # the gadget works
    marker.unlink()

    def refuse(*_, **__):
        raise AssertionError("the archive was opened")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "__init__", refuse)
        patch.setattr(skops.io, "loads", refuse)
        for command in ("predict", "export", "explain"):
            file = [str(rows)] * (command != "export")
            assert run([command, str(gift), *file]) == 2
            lines = capfd.readouterr().err.strip().splitlines()
            assert len(lines) == 1
            assert ("--trust" in lines[0] and "KNeighborsClassifier" in lines[0]) or command != "predict"
        with pytest.raises(InputError, match="trust=True"):
            list(predict(gift, rows))
    assert not marker.exists()


def test_a_trusted_readout_is_loaded_and_its_types_are_printed(neighbours, rows, capfd):
    assert run(["predict", str(neighbours), str(rows), "--trust", "--json"]) == 0
    out, err = capfd.readouterr()
    assert "loading 'sklearn.neighbors.KNeighborsClassifier' with --trust; it names " in err
    assert len(json.loads(out)["predictions"]["label"]) == 90
    assert len(list(predict(neighbours, rows, trust=True))) == 90


def test_fit_says_that_a_readout_will_need_trust(extracted, tmp_path, capfd):
    fit(extracted, readout="sklearn.naive_bayes.GaussianNB", columns="final/mean", out=tmp_path)
    assert "GaussianNB is not linear: it is saved with skops" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("readout", {"link": "os.system"}, ""),
        ("readout", {"link": ["softmax"]}, ""),
        ("readout", {"classes": 3}, ""),
        ("readout", {"classes": "os"}, ""),
        ("parts", {"compute": "load"}, "unknown precision 'load'"),
    ],
)
def test_settings_of_a_linear_readout_name_nothing_that_is_called(
    extracted, rows, tmp_path, part, change, message, capfd
):
    fit(extracted, readout="ridge", alphas="1:10:2", columns="final/mean", out=tmp_path)
    card = read_checked(tmp_path / "readout.json")
    (card["readout"] if part == "readout" else card["parts"][0]).update(change)
    write_checked(tmp_path / "readout.json", card)
    capfd.readouterr()
    assert run(["predict", str(tmp_path), str(rows)]) == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert message in line
