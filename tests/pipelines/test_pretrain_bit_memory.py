"""Pretraining on bit memory: the stage train's own weights, in a folder that transformers and the backbones load."""

import json

import pytest
import torch
from reservoir_pipelines import pretrain, train
from reservoir_pipelines.cli import run
from reservoir_pipelines.pretraining.pretrain import save_model, take_weights
from reservoir_pipelines.training.run_folder import load_run

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.pretraining.language_model import LanguageModel

pytestmark = pytest.mark.usefixtures("few_bits")
SHAPE = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=128"
PLAIN = {"device": "cpu", "compute": "float32"}
SHORT = {**PLAIN, "backbone": SHAPE, "vocabulary": 40, "batch_tokens": 500, "eval_every": 2, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a cache root in which the held-out rows are prepared once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(root, tmp_path_factory):
    """Return a pretraining of four steps of four rows."""
    return pretrain("bit-memory", out=tmp_path_factory.mktemp("models") / "bits", steps=4, cache=root, **SHORT)


def weights(backbone):
    return dict(backbone.model.state_dict())


def assert_same_bits(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_the_backbone_is_what_train_makes_of_all_groups(made, root, tmp_path):
    settings = {**PLAIN, "backbone": SHAPE, "init": "random", "batch": 4, "dropout": 0.0, "learning_rate": 1e-2}
    done = train("bit-memory", train="all", steps=4, eval_every=2, run=tmp_path / "run", cache=root, **settings)
    assert_same_bits(weights(load_backbone(made.folder, "pretrained")), weights(load_run(done.path).fpt.backbone))
    assert (made.valid_accuracy, made.test_accuracy) == (done.valid_score, done.test_score)
    assert (made.steps, made.tokens) == (4, 4 * 4 * 120)
    assert (made.unit, made.valid_bits, made.test_bits, made.entropy) == (None, None, None, None)


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        "bert-base-uncased:num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24",
        "roberta-base:num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24",
        "distilbert-base-uncased:n_layers=1,dim=16,n_heads=2,hidden_dim=24",
        "HuggingFaceTB/SmolLM2-135M:hidden_size=16,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=2,"
        "intermediate_size=24,head_dim=8",
    ],
)
def test_every_family_keeps_its_weights(shape, tmp_path):
    backbone = load_backbone(shape, "random", seed=3)
    model = LanguageModel(shape, 40)
    take_weights(model, backbone)
    save_model(tmp_path, model)
    assert_same_bits(weights(load_backbone(str(tmp_path), "pretrained")), weights(backbone))


def test_it_goes_on_to_the_same_bits(made, root, tmp_path):
    half = pretrain("bit-memory", out=tmp_path / "bits", steps=2, cache=root, **SHORT)
    assert half.tokens == made.tokens / 2
    with pytest.raises(InputError, match="is at step 2 of 4; pass --resume"):
        pretrain("bit-memory", out=tmp_path / "bits", steps=4, cache=root, **SHORT)
    whole = pretrain("bit-memory", out=tmp_path / "bits", steps=4, resume=True, cache=root, **SHORT)
    assert (whole.valid_accuracy, whole.test_accuracy) == (made.valid_accuracy, made.test_accuracy)
    one, two = (weights(load_backbone(done.folder, "pretrained")) for done in (whole, made))
    assert_same_bits(one, two)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--context", 64], "--context 64: it does not apply to bit-memory"),
        (["--vocabulary", 0], "--vocabulary 0: give a whole number from 1 to 1,048,576"),
        (["--steps", 0], "--steps 0: give a whole number from 1"),
        (["--weight-decay", 0.0], "--weight-decay 0.0: it does not apply to bit-memory"),
        (["--learning-rate", 0], "--learning-rate 0.0: give a positive number"),
        (["--batch-tokens", 119], "--batch-tokens 119: give at least 120, the tokens of one row"),
        (["--backbone", "lstm"], "lstm models cannot be pretrained"),
        (["--backbone", "gpt2:n_positions=119,n_layer=1"], "sequences of 120 tokens, but this gpt2 has 119 positions"),
    ],
)
def test_options_that_do_not_apply_are_refused(flags, message, root, tmp_path, capfd):
    arguments = ["pretrain", "bit-memory", "--out", tmp_path / "bits", "--cache", root, "--backbone", SHAPE, *flags]
    code = run([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert code == 2
    assert out == ""
    assert message in err.splitlines()[-1]


def test_the_command_tells_accuracies(made, root, capfd):
    arguments = ["pretrain", "bit-memory", "--out", made.folder, "--steps", 4, "--cache", root]
    for name, value in SHORT.items():
        arguments += [f"--{name.replace('_', '-')}", value]
    assert run([str(a) for a in [*arguments, "--json"]]) == 0
    assert json.loads(capfd.readouterr().out) == made.to_dict()
    assert run([str(a) for a in arguments]) == 0
    assert f"{100 * made.test_accuracy:.2f}% right (75% by copying)" in capfd.readouterr().out
