"""What is done with a trained run: predictions, export, attention maps, baselines, and the command."""

import json

import numpy as np
import pytest
import torch
from reservoir_pipelines import export, predict, train
from reservoir_pipelines.training.run_folder import load_run

from reservoir.errors import InputError

TINY = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70,initializer_range=0.3"
QUICK = {"init": "random", "device": "cpu", "compute": "float32", "backbone": TINY, "steps": 6, "eval_every": 3}
FEW = {"train_rows": 64, "valid_rows": 40, "test_rows": 30}


@pytest.fixture
def own(tmp_path):
    """Return files with sequences of different lengths: of three classes, and with two real targets."""
    draw = np.random.default_rng(0)
    x, lengths = draw.normal(size=(90, 12, 2)).astype(np.float32), draw.integers(4, 13, 90)
    np.savez(tmp_path / "classes.npz", x=x, y=np.arange(90) % 3, lengths=lengths)
    np.savez(tmp_path / "values.npz", x=x, y=draw.normal(size=(90, 2)).astype(np.float32), lengths=lengths)
    np.savez(tmp_path / "new.npz", x=x[:20], lengths=lengths[:20])
    return tmp_path


def direct(run, x, lengths, scaling=None):
    """Return the logits of a run's model, of one row at a time and without padding."""
    model = load_run(run, "cpu").fpt
    with torch.no_grad():
        rows = [model(torch.from_numpy(x[i : i + 1, :n]), torch.tensor([n])) for i, n in enumerate(lengths)]
    return torch.cat(rows)


@pytest.mark.parametrize("settings", [{}, {"patch": 3, "stride": 2, "train": "all"}])
def test_predictions_of_a_run_are_those_of_its_model(own, cache, settings):
    done = train(str(own / "classes.npz"), **QUICK, **settings)
    found = list(predict(done.path, own / "new.npz", device="cpu"))
    with np.load(own / "new.npz") as file:
        x, lengths = file["x"], file["lengths"]
    config = json.loads((done.path / "config.json").read_text())
    x = (x - np.float32(config["scaling"]["offset"])) * np.float32(config["scaling"]["scale"])
    if settings:
        lengths = (lengths - 3) // 2 + 1
        x = np.stack([x[:, 2 * i : 2 * i + 3].reshape(20, -1) for i in range(5)], axis=1)
    expected = direct(done.path, x.astype(np.float32), lengths).softmax(-1)[:, 0, 0].numpy()
    np.testing.assert_allclose([p.probabilities for p in found], expected, atol=2e-6)
    assert [p.label for p in found] == expected.argmax(-1).tolist()


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="export needs torch 2.7")
def test_an_exported_run_gives_the_same(cache, tmp_path):
    done = train("bit-xor", parameters=FEW, **QUICK)
    written = export(done.path, out=tmp_path / "model.pt2")
    bits = np.random.default_rng(1).integers(0, 2, (5, 10, 1)).astype(np.float32)
    logits = torch.export.load(str(written.model)).module()(torch.from_numpy(bits), torch.full((5,), 10))
    torch.testing.assert_close(logits.softmax(-1), direct(done.path, bits, [10] * 5).softmax(-1), atol=2e-6, rtol=0)
    card = json.loads(written.card.read_text())
    assert card["scores"]["test_score"] == done.test_score


def test_a_run_whose_backbone_has_changed_is_refused(cache, tiny_gpt2, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(tiny_gpt2, folder)
    done = train("bit-xor", **{**QUICK, "backbone": str(folder), "init": "pretrained"}, parameters=FEW)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.mlp.c_fc.bias"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="have changed since it was fitted"):
        load_run(done.path)
    with pytest.raises(InputError, match="not the folder of a run of reservoir train"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "groups"),
    [
        ("Full", {"train": "all", "depth": 1}, ("all",)),
        ("LSTM, trained", {"train": "all", "backbone": "lstm:width=16"}, ("all",)),
        ("LSTM, frozen", {"backbone": "lstm:width=16"}, ("input", "layernorm", "output")),
        (
            "LSTM*",
            {"backbone": "lstm-star:width=16,depth=2,positions=12"},
            ("input", "layernorm", "positions", "output"),
        ),
        ("norms frozen", {"train": "input,positions,output"}, ("input", "positions", "output")),
    ],
)
def test_the_papers_baselines(name, settings, groups, cache):
    done = train("bit-xor", parameters=FEW, **{**QUICK, **settings})
    assert done.groups == groups and len(done.losses) == 6, name
    config = json.loads((done.path / "config.json").read_text())
    rate = 3e-4 if "lstm" in config["reservoir"]["backbone"] else 1e-3
    assert config["settings"]["recipe"]["learning_rate"] == rate
    if name == "Full":
        assert done.frozen_tensors == 0


def test_the_papers_protocol_is_that_of_the_authors_code(cache):
    """The output starts as torch's Linear does, and what lies below the trained layers is dropped too."""
    settings = {**QUICK, "train": "output", "steps": 1, "learning_rate": 1e-12, "dropout": 0.3}
    rows = {"train_rows": 20, "valid_rows": 20, "test_rows": 20, "max_tokens": 60}
    ours = train("bit-xor", parameters=FEW, **settings)
    paper = train("listops", parameters=rows, protocol="paper", **settings)
    norms = [load_run(done.path).fpt.output.weight.norm(dim=1) for done in (ours, paper)]
    assert norms[0].numpy() == pytest.approx(1.41, abs=1e-3)  # orthogonal rows
    assert 0.3 < norms[1].min() < norms[1].max() < 0.9  # uniform up to 16 ** -0.5: 0.58 on the mean
    recipe = json.loads((paper.path / "config.json").read_text())["settings"]["recipe"]
    assert (recipe["output_init"], recipe["dropout_below"]) == ("linear", True)
    dry = train("listops", parameters=rows, protocol="paper", **settings | {"dropout": 0.0})
    assert dry.losses != paper.losses and dry.test_loss == pytest.approx(paper.test_loss, abs=1e-6)
    with pytest.raises(InputError, match="--from-cache --protocol paper: the authors' dropout"):
        train("listops", parameters=rows, protocol="paper", from_cache=True, **settings)


def test_the_command(cache, call):
    def run(*arguments):
        settings = ["--backbone", TINY, "--init", "random", "--param", "train_rows=64", "--eval-every", "2"]
        return call("train", "bit-xor", *settings, *arguments)

    done = json.loads(run("--steps", "4", "--train", "output,layernorm", "--json")[1])
    assert done["steps"] == 4 and done["groups"] == ["output", "layernorm"]
    assert "unchanged bit for bit" in run("--steps", "4", "--train", "output,layernorm")[1]
    code, _, error = run("--steps", "40", "--train", "all", "--learning-rate", "50", "--bound", "3")
    assert code == 1 and "checkpoint" in error
    assert run("--steps", "5", "--train", "output,layernorm")[0] == 2


def test_an_interrupted_command_says_how_to_go_on(cache, monkeypatch, call):
    def interrupted(*_arguments, **_settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("reservoir_pipelines.training.train.train", interrupted)
    code, _, error = call("train", "bit-xor")
    assert code == 130 and "--resume" in error
