"""A module is imported only where a person types its name: recipes and configuration files name none."""

import sys

import numpy as np
import pytest

from tests.faults.test_where_options import RECIPE

MODULE = """
from pathlib import Path
from sklearn.linear_model import LogisticRegression

Path({marker!r}).write_text("imported")

class Est(LogisticRegression):
    pass

def go():
    yield from ((f"{{'AB' if n % 2 else 'BA'}}", n % 2) for n in range(60))
"""


@pytest.fixture
def evil(tmp_path, monkeypatch, cache):
    """Put a module into the current folder and on the import path; return the file that importing it writes."""
    marker = tmp_path / "imported"
    (tmp_path / "evilmod.py").write_text(MODULE.format(marker=str(marker)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield marker
    sys.modules.pop("evilmod", None)


@pytest.fixture
def extracted(tmp_path, tiny_gpt2, cache):
    from reservoir_pipelines import extract

    x = np.random.default_rng(0).normal(size=(60, 6, 2)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, :, 0].mean(axis=1) > 0).astype(np.int64))
    return extract(str(tmp_path / "rows.npz"), backbone=str(tiny_gpt2), layers="final", pool="mean").entry


def refused(call, marker, *arguments):
    """Run a command that must end in one line and import nothing; return the line."""
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not marker.exists()
    return err


@pytest.mark.parametrize("place", ["top", "column", "row"])
def test_a_recipe_names_no_readout_to_import(evil, tmp_path, call, place):
    parts = dict.fromkeys(("top", "column", "row"), "") | {place: 'settings = { readout = "evilmod.Est" }'}
    (tmp_path / "r.toml").write_text(RECIPE.format(**parts))
    line = refused(call, evil, "reproduce", "r.toml", "--out", tmp_path / "out")
    assert "readout 'evilmod.Est' would import a module" in line
    assert "type it on the command line" in line


def test_a_recipe_names_no_function_as_its_task(evil, tmp_path, call):
    recipe = RECIPE.format(top="", column="", row="").replace('task = "digits"', 'task = "evilmod:go"')
    (tmp_path / "r.toml").write_text(recipe)
    line = refused(call, evil, "reproduce", "r.toml", "--out", tmp_path / "out")
    assert "task 'evilmod:go' would import a module" in line


def test_a_configuration_file_names_no_readout_to_import(evil, extracted, tmp_path, call):
    (tmp_path / "c.toml").write_text('[fit]\nreadout = "evilmod.Est"\n')
    assert "c.toml: the readout" in refused(call, evil, "fit", extracted, "--config", "c.toml")


def test_a_configuration_file_names_no_function_as_its_task(evil, tmp_path, call):
    (tmp_path / "c.toml").write_text('[backbone]\ntask = "evilmod:go"\n')
    assert "c.toml: the task" in refused(call, evil, "backbone", "mini", "--config", "c.toml")


def test_a_configuration_file_overrides_no_readout_of_a_recipe(evil, tmp_path, call):
    (tmp_path / "r.toml").write_text(RECIPE.format(top="", column="", row=""))
    (tmp_path / "c.toml").write_text('[reproduce]\noverride = [" readout=evilmod.Est"]\n')
    line = refused(call, evil, "reproduce", "r.toml", "--config", "c.toml", "--out", tmp_path / "out")
    assert "c.toml: the readout 'evilmod.Est' would import a module" in line


def test_a_configuration_file_does_not_say_which_readouts_are_trusted(evil, tmp_path, call):
    (tmp_path / "c.toml").write_text("[predict]\ntrust = true\n")
    line = refused(call, evil, "predict", tmp_path, tmp_path, "--config", "c.toml")
    assert "c.toml: 'trust' lets a readout run code" in line
    assert "pass --trust on the command line" in line


def test_a_readout_that_is_typed_is_imported(evil, extracted, tmp_path, call):
    (tmp_path / "c.toml").write_text('[fit]\nselect = "valid"\n')
    code, _, err = call("fit", extracted, "--readout", "evilmod.Est", "--config", "c.toml")
    assert code == 0, err
    assert evil.exists()


def test_a_configuration_file_may_name_an_estimator_of_scikit_learn(extracted, tmp_path, call):
    (tmp_path / "c.toml").write_text('[fit]\nreadout = "sklearn.linear_model.RidgeClassifier"\n')
    code, out, err = call("fit", extracted, "--config", tmp_path / "c.toml")
    assert code == 0, err
    assert "RidgeClassifier" in out


@pytest.mark.parametrize(
    "path",
    [
        "sklearn.base.BaseEstimator",  # no predict
        "sklearn.utils.validation.np",  # a module that a module holds
        "sklearn.os.system",
        "sklearn.datasets._openml.urlopen",  # a function
        "sklearn.linear_model.LogisticRegression.__init__",
    ],
)
def test_only_estimators_of_scikit_learn_are_found_by_its_name(evil, extracted, tmp_path, call, path):
    (tmp_path / "c.toml").write_text(f'[fit]\nreadout = "{path}"\n')
    refused(call, evil, "fit", extracted, "--config", "c.toml")


def test_an_estimator_that_a_module_of_scikit_learn_merely_holds_is_refused(evil, extracted, tmp_path, call):
    import sklearn.dummy

    class Foreign(sklearn.dummy.DummyClassifier):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.dummy, "Foreign", Foreign, raising=False)
        refused(call, evil, "fit", extracted, "--readout", "sklearn.dummy.Foreign")
