"""Every family and every kind of weights goes from the command line to an accuracy, and a wrong one to exit code 2."""

import json

import pytest
from reservoir_pipelines.cli import run

from tests.reservoir.models import KINDS, save


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One cache for all, so that the digits are prepared once."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("init", ["pretrained", "random", "statistics"])
@pytest.mark.parametrize("kind", KINDS)
def test_extract_and_fit_work(kind, init, root, tmp_path, capsys):
    folder = save(kind, tmp_path / kind)
    capsys.readouterr()
    settings = ["--cache", str(root), "--json"]
    extract = ["extract", "digits", "--backbone", str(folder), "--init", init, "--limit", "150", "--pool", "mean"]
    assert run([*extract, *settings]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert run(["fit", entry["entry"], *settings]) == 0
    fitted = json.loads(capsys.readouterr().out)
    # Ten classes: far above chance is what a working reservoir of width 16 gives.
    assert fitted["best"]["valid_score"] > 0.25


def test_a_wrong_backbone_is_one_line_and_exit_code_2(root, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    for name in ("nowhere/at/all", str(tmp_path)):
        assert run(["extract", "digits", "--backbone", name, "--init", "random", "--cache", str(root)]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1 and name in printed.err
    assert run(["extract", "digits", "--backbone", "gpt2:n_positions=8", "--init", "random", "--cache", str(root)]) == 2
    assert "16 tokens, but this gpt2 has 8 positions" in capsys.readouterr().err
