"""Every task, family and init gives an accuracy on the command line, and an unknown one gives exit code 2."""

import json

import numpy as np
import pytest
from reservoir_cache import FeatureStore
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.tasks.listops import evaluate, random_expressions
from reservoir.tasks.proteins import LETTERS, PARTS
from tests.reservoir.models import KINDS, save
from tests.tasks import samples


@pytest.mark.parametrize("kind", KINDS)
def test_extract_and_fit_work(kind, one_cache, tmp_path, answer):
    folder = save(kind, tmp_path / kind)
    settings = ["--cache", one_cache, "--json"]
    for init in ("pretrained", "random", "statistics"):
        extract = ["extract", "digits", "--backbone", str(folder), "--init", init, "--limit", "150", "--pool", "mean"]
        entry = answer(*extract, *settings)
        train, valid = FeatureStore(entry["entry"])["train"], FeatureStore(entry["entry"])["valid"]
        x, new = (np.concatenate([split[name] for name in entry["columns"]], axis=1) for split in (train, valid))
        # With ten classes, a working reservoir of width 16 is far above chance.
        assert make_pipeline(StandardScaler(), RidgeClassifier()).fit(x, train.y).score(new, valid.y) > 0.25, init
    if kind in ("gpt2", "t5", "lstm"):  # fit reads the arrays alone, so that others would show the same
        assert answer("fit", entry["entry"], "--columns", entry["columns"][0], *settings)["best"]["valid_score"] > 0.15


pytestmark = pytest.mark.usefixtures("few_bits")
SEVEN = ["bit-memory", "bit-xor", "listops", "mnist", "cifar10", "cifar10-lra", "homology"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    samples.mnist_files(folder / "mnist")
    samples.cifar_files(folder, samples.cifar_arrays())
    (folder / "listops").mkdir()
    for seed, name in enumerate(("train", "val", "test")):
        expressions = random_expressions(np.random.default_rng(seed), 512, 10, 10, 10, 60)
        lines = [f"{samples.decode_text(each, nested=True)}\t{evaluate(each)}" for each in expressions]
        (folder / "listops" / f"basic_{name}.tsv").write_text("\n".join(["Source\tTarget", *lines[:40]]) + "\n")
    (folder / "remote_homology").mkdir()
    rng = np.random.default_rng(0)
    for part in PARTS.values():
        rows = [{"primary": "".join(rng.choice(list(LETTERS), 30)), "fold_label": n % 3} for n in range(20)]
        (folder / "remote_homology" / f"remote_homology_{part}.json").write_text(json.dumps(rows))
    return folder


@pytest.mark.parametrize("task", SEVEN)
def test_prepare_extract_fit(task, data, cache, answer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    splits = 5 if task == "homology" else 3
    prepared = answer("prepare", task, "--data", data)
    assert len(prepared["rows"]) == splits and min(prepared["rows"].values()) > 0
    small = ["--backbone", "gpt2:n_layer=1,n_embd=16,n_head=2", "--init", "random", "--limit", "16"]
    extracted = answer("extract", task, "--data", data, *small)
    assert extracted["rows"] == {name: min(rows, 16) for name, rows in prepared["rows"].items()}
    best = answer("fit", task, "--alphas", "1e0:1e4:3")["best"]
    assert 0 <= best["valid_score"] <= 1 and 0 <= best["test_score"] <= 1
