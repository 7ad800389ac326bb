"""Every family and init runs from the command line to an accuracy, and a wrong one ends in exit code 2."""

import json

import numpy as np
import pytest
from reservoir_cache import FeatureStore
from reservoir_pipelines.cli import run
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.reservoir.models import KINDS, save


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One cache for all, so that the digits are prepared once."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("kind", KINDS)
def test_extract_and_fit_work(kind, root, tmp_path, capsys):
    folder = save(kind, tmp_path / kind)
    settings = ["--cache", str(root), "--json"]
    for init in ("pretrained", "random", "statistics"):
        extract = ["extract", "digits", "--backbone", str(folder), "--init", init, "--limit", "150", "--pool", "mean"]
        capsys.readouterr()
        assert run([*extract, *settings]) == 0
        entry = json.loads(capsys.readouterr().out)
        train, valid = FeatureStore(entry["entry"])["train"], FeatureStore(entry["entry"])["valid"]
        x, new = (np.concatenate([split[name] for name in entry["columns"]], axis=1) for split in (train, valid))
        # Ten classes: far above chance is what a working reservoir of width 16 gives.
        assert make_pipeline(StandardScaler(), RidgeClassifier()).fit(x, train.y).score(new, valid.y) > 0.25, init
    assert run(["fit", entry["entry"], "--columns", entry["columns"][0], *settings]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["valid_score"] > 0.15


def test_a_wrong_backbone_is_one_line_and_exit_code_2(root, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    for name in ("nowhere/at/all", str(tmp_path)):
        assert run(["extract", "digits", "--backbone", name, "--init", "random", "--cache", str(root)]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1 and name in printed.err
    assert run(["extract", "digits", "--backbone", "gpt2:n_positions=8", "--init", "random", "--cache", str(root)]) == 2
    assert "16 tokens, but this gpt2 has 8 positions" in capsys.readouterr().err
