"""`reservoir backbone` and `reservoir attention`: what they print, draw and save."""

import json

import h5py
import numpy as np
import pytest
from reservoir_pipelines import attention
from reservoir_pipelines.attention_maps import average_maps, bit_diagonals, token_labels

from reservoir.errors import InputError
from reservoir.options import ReservoirOptions
from reservoir.plan import resolve_model
from reservoir.reservoir import Reservoir, load_model
from reservoir.tasks.task import Task, Tokens, Vectors

TINY = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70"
PNG = b"\x89PNG"


@pytest.fixture
def run(call):
    """Run a command that succeeds, and return its stdout."""

    def running(*arguments):
        code, out, error = call(*arguments)
        assert code == 0, error
        return out

    return running


def test_backbone_prints_its_card_and_draws_it(run, cache, tmp_path, painted):
    settings = ("backbone", TINY, "--init", "random", "--task", "cifar10", "--out", str(tmp_path / "card.png"))
    card = json.loads(run(*settings, "--json"))
    assert (card["family"], card["depth"], card["width"]) == ("gpt2", 2, 16)
    assert card["trained_total"] == sum(card["trained"].values())
    assert card["paper_share"] == card["paper_total"] / card["whole"]
    assert len(card["deviations"]["attn.c_attn.weight"]) == 2
    assert (tmp_path / "card.png").read_bytes().startswith(PNG)
    assert (tmp_path / "card.png").stat().st_size > 2000
    text = run(*settings)
    assert f"{card['paper_total']:,}" in text and f"{card['groups']['attention']:,}" in text
    assert "random: normal, deviation initializer_range, that of c_proj over sqrt(2 x blocks)" in text
    flat = run("backbone", TINY, "--init", "random-flat", "--out", str(tmp_path / "flat.png"))
    assert "random-flat: every matrix normal, deviation 0.02, as the random GPT-2 of Lu et al. 2021" in flat


def test_backbone_refuses_a_task_that_is_too_long(call, cache):
    code, _, error = call("backbone", TINY, "--init", "random", "--task", "cifar10-lra")
    assert code == 2 and "task 'cifar10-lra': sequences of 1024 tokens" in error


def test_attention_saves_what_it_draws(run, cache, tmp_path, painted):
    out = tmp_path / "maps.png"
    settings = ("--backbone", TINY, "--init", "random", "--average", "5", "--layer", "2", "--out", str(out))
    line = run("attention", "bit-xor", *settings, "--json")
    done = json.loads(line)
    assert done["labels"][:6] == ["1.1", "1.2", "1.3", "1.4", "1.5", "2.1"]
    assert out.read_bytes().startswith(PNG)
    assert out.stat().st_size > 2000
    with h5py.File(done["arrays"]) as file:
        one, mean = file["one"][:], file["mean"][:]
        assert file.attrs["layer"] == 2 and file.attrs["rows"] == 5
        assert file["labels"].asstr()[0] == "1.1"
    assert one.shape == mean.shape == (2, 10, 10)
    np.testing.assert_allclose(one.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(mean.sum(-1), 1, rtol=1e-5)


def test_the_mean_is_over_rows_in_which_both_tokens_are_real():
    task = Task(name="t", form=Vectors(3), max_tokens=6, classes=2)
    model = load_model(task, Reservoir(backbone=TINY, init="random"), "cpu", "float32")
    x = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
    lengths = np.array([5, 3, 1, 4], np.int32)
    one, mean = average_maps(model, None, x, lengths, 1)
    alone = [average_maps(model, None, x[i : i + 1, :n], lengths[i : i + 1], 1)[0] for i, n in enumerate(lengths)]
    np.testing.assert_allclose(one, alone[0], atol=1e-6)
    assert mean.shape == (2, 5, 5)
    np.testing.assert_allclose(mean[:, 2, 1], np.mean([alone[i][:, 2, 1] for i in (0, 1, 3)], axis=0), rtol=1e-5)
    np.testing.assert_allclose(mean[:, 4, 3], alone[0][:, 4, 3], rtol=1e-5)


def test_diagonals_lie_where_the_bits_are():
    xor = Task(name="bit-xor", form=Vectors(1), max_tokens=15, classes=2, readout_tokens=5)
    memory = Task(name="bit-memory", form=Vectors(50), max_tokens=120, classes=2, readout_tokens=20, outputs=50)
    assert bit_diagonals(xor) == {0: "string 3", 5: "string 2", 10: "string 1"}
    assert list(bit_diagonals(memory)) == [20, 40, 60, 80, 100]
    assert bit_diagonals(Task(name="digits", form=Vectors(4), max_tokens=16, classes=10)) == {}


def test_tokens_are_named():
    listops = Task(name="listops", form=Tokens(16), max_tokens=4, classes=10)
    assert token_labels(listops, np.array([12, 5, 1, 15]), 4) == ["[MAX", "4", "0", "]"]
    own = Task(name="own", form=Tokens(9), max_tokens=4, classes=2)
    assert token_labels(own, np.array([3, 8, 0, 0]), 2) == ["3", "8"]
    sensor = Task(name="s", form=Vectors(1), max_tokens=3, classes=2)
    assert token_labels(sensor, np.array([[0.25], [-1], [2]]), 3) == ["0.25", "-1", "2"]
    assert token_labels(Task(name="s", form=Vectors(2), max_tokens=2, classes=2), np.zeros((2, 2)), 2) == ["1", "2"]


def test_attention_refuses_what_it_cannot_do(cache):
    with pytest.raises(InputError, match="esn has no attention map"):
        attention("bit-xor", backbone="esn:units=20")
    with pytest.raises(InputError, match="--average 0"):
        attention("bit-xor", average=0)


def test_settings_name_one_reservoir(tmp_path):
    def choose(**options):
        return resolve_model(ReservoirOptions(**options))

    assert choose(backbone="esn:units=20").init == "random"
    assert choose(backbone="gpt2", depth=6).title == "gpt2-depth6-pretrained"
    assert choose(init=str(tmp_path)) == choose(backbone=str(tmp_path), init="pretrained")
    with pytest.raises(InputError, match="leave out --backbone gpt2"):
        choose(backbone="gpt2", init=str(tmp_path))
    settings = choose(backbone="gpt2", init="random", seed=3, gain=1.0, depth=4)
    assert Reservoir(**settings.to_dict()) == settings
