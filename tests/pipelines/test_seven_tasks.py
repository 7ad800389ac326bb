"""Every task of the paper goes through prepare, extract and fit, on small files in the publishers' formats."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tasks"))
import samples
from reservoir_pipelines.cli import run

from reservoir.tasks.expressions import evaluate, random_expressions
from reservoir.tasks.proteins import LETTERS, PARTS

pytestmark = pytest.mark.usefixtures("few_bits")
SEVEN = ["bit-memory", "bit-xor", "listops", "mnist", "cifar10", "cifar10-lra", "homology"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder with small files of every publisher."""
    folder = tmp_path_factory.mktemp("data")
    samples.mnist_files(folder / "mnist")
    samples.cifar_files(folder, samples.cifar_arrays())
    (folder / "listops").mkdir()
    for seed, name in enumerate(("train", "val", "test")):
        symbols, lengths = random_expressions(np.random.default_rng(seed), 512, 10, 10, 10, 60)
        texts = [samples.decode_text(e, nested=True) for e in np.split(symbols, np.cumsum(lengths)[:-1])]
        lines = [f"{text}\t{value}" for text, value in zip(texts, evaluate(symbols), strict=True)]
        (folder / "listops" / f"basic_{name}.tsv").write_text("\n".join(["Source\tTarget", *lines[:40]]) + "\n")
    (folder / "remote_homology").mkdir()
    rng = np.random.default_rng(0)
    for part in PARTS.values():
        rows = [{"primary": "".join(rng.choice(list(LETTERS), 30)), "fold_label": n % 3} for n in range(20)]
        (folder / "remote_homology" / f"remote_homology_{part}.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """Return a folder with a GPT-2 of one block that takes 1,024 tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("models") / "small-gpt2"
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=1024, vocab_size=30)
    config.bos_token_id = config.eos_token_id = None
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("task", SEVEN)
def test_prepare_extract_fit(task, data, backbone, cache, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    splits = 5 if task == "homology" else 3
    assert run(["prepare", task, "--data", str(data), "--json"]) == 0
    prepared = json.loads(capsys.readouterr().out)
    assert len(prepared["rows"]) == splits and min(prepared["rows"].values()) > 0
    assert run(["extract", task, "--data", str(data), "--backbone", str(backbone), "--limit", "16", "--json"]) == 0
    extracted = json.loads(capsys.readouterr().out)
    assert extracted["rows"] == {name: min(rows, 16) for name, rows in prepared["rows"].items()}
    assert run(["fit", task, "--alphas", "1e0:1e4:3", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert 0 <= best["valid_score"] <= 1 and 0 <= best["test_score"] <= 1
