"""The commands `backbone` and `attention`: their output, plots and files, and the attention maps of a run."""

import json

import h5py
import numpy as np
import pytest
import torch
from reservoir_pipelines import attention, prepare, train
from reservoir_pipelines.paper.attention_maps import bit_diagonals, token_labels
from reservoir_pipelines.training.checkpoints import load_run

from reservoir.backbones import attention_maps
from reservoir.errors import InputError
from reservoir.loaded_model import load_model
from reservoir.options import ReservoirOptions
from reservoir.plan.windows import resolve_model
from reservoir.tasks.task import Task, Tokens, Vectors

TINY = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70"
PNG = b"\x89PNG"


@pytest.fixture
def run(call):
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
    assert "normal with standard deviation initializer_range, for c_proj divided by sqrt(2 x blocks)" in text


def test_backbone_refuses_a_task_that_is_too_long(refusal, cache):
    error = refusal("backbone", TINY, "--init", "random", "--task", "cifar10-lra")
    assert "task 'cifar10-lra': the sequences have 1024 tokens" in error


def test_attention_saves_the_arrays_of_its_plot(run, cache, tmp_path, painted):
    out = tmp_path / "maps.png"
    settings = ("--backbone", TINY, "--init", "random", "--average", "5", "--layer", "2", "--out", str(out))
    line = run("attention", "bit-xor", *settings, "--json")
    done = json.loads(line)
    assert done["labels"][:6] == ["1.1", "1.2", "1.3", "1.4", "1.5", "2.1"]
    assert out.read_bytes().startswith(PNG) and out.stat().st_size > 2000
    with h5py.File(done["arrays"]) as file:
        one, mean = file["first_row"][:], file["mean"][:]
        assert file.attrs["layer"] == 2 and file.attrs["rows"] == 5
        assert file["labels"].asstr()[0] == "1.1"
    assert one.shape == mean.shape == (2, 10, 10)
    np.testing.assert_allclose(one.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(mean.sum(-1), 1, rtol=1e-5)


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
    with pytest.raises(InputError, match="esn has no maps of the whole sequence"):
        attention("bit-xor", backbone="esn:units=20")
    with pytest.raises(InputError, match="--average 0"):
        attention("bit-xor", average=0)


ONE_BLOCK = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=30,initializer_range=0.3"
QUICK = {"backbone": ONE_BLOCK, "init": "random", "device": "cpu", "steps": 4, "eval_every": 2, "learning_rate": 0.05}
FEW = {"train_rows": 40, "valid_rows": 20, "test_rows": 20}


def by_hand(model, rows):
    """Return the maps of sequences of tokens as the model sees them, each passed alone and without padding."""
    maps = []
    for tokens in rows:
        embeds = model.fpt.inputs(torch.from_numpy(tokens[None]))
        maps.append(attention_maps(model.fpt.backbone, embeds, torch.tensor([len(tokens)]))[0].numpy())
    return maps


def assert_maps(done, expected):
    """Compare the saved maps with those of each row: the first alone, and the mean over rows with both tokens."""
    longest = max(maps.shape[-1] for maps in expected)
    padded = np.full((len(expected), 2, longest, longest), np.nan)
    for row, maps in enumerate(expected):
        padded[row, :, : maps.shape[-1], : maps.shape[-1]] = maps
    with h5py.File(done.arrays) as file:
        np.testing.assert_allclose(file["first_row"][:], expected[0], atol=1e-5)
        np.testing.assert_allclose(file["mean"][:], np.nanmean(padded, axis=0), atol=1e-5)
    assert len(done.labels) == expected[0].shape[-1]


def first_rows(split, rows):
    """Return the first rows of a split as stored, each without its padding."""
    part = split.read(0, rows)
    return [x[:n].astype(np.float32) for x, n in zip(part.x, part.lengths, strict=True)]


def write_own(path, seed=0, scale=1.0):
    draw = np.random.default_rng(seed)
    x, lengths = scale * draw.normal(3, 2, (60, 16, 2)), draw.integers(7, 17, 60)
    lengths[:2] = 16
    np.savez(path, x=x.astype(np.float32), y=np.arange(60) % 2, lengths=lengths, split=["train", "valid", "test"] * 20)
    return str(path)


def test_the_runs_own_task_parameters_are_used(cache):
    parameters = {"n": 3, **FEW}
    done = train("bit-xor", parameters=parameters, **QUICK)
    maps = attention("bit-xor", run=done.path, average=7, device="cpu")
    assert maps.labels == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"] and list(maps.diagonals) == [0, 3]
    rows = first_rows(prepare("bit-xor", parameters=parameters).split("test"), 7)
    assert_maps(maps, by_hand(load_run(done.path, "cpu", "float32"), rows))
    again = attention("bit-xor", run=done.path, average=7, device="cpu", parameters=parameters)
    np.testing.assert_array_equal(again.first_row, maps.first_row)


@pytest.mark.parametrize("parameters", [{}, {"protocol": "paper", "max_tokens": 18}])
def test_parameters_equal_to_their_defaults_prepare_nothing_again(cache, parameters):
    parameters = {**FEW, "min_length": 6, "max_length": 20, **parameters}
    done = train("listops", parameters=parameters, **QUICK)
    before = sorted((cache / "prepared").iterdir())
    maps = attention("listops", run=done.path, average=3, device="cpu")
    assert sorted((cache / "prepared").iterdir()) == before
    assert ("[" in maps.labels[0]) == ("protocol" not in parameters)
    rows = first_rows(prepare("listops", parameters=parameters).split("test"), 3)
    assert_maps(maps, by_hand(load_run(done.path, "cpu", "float32"), [row.astype(np.int64) for row in rows]))


@pytest.mark.parametrize("standardise", [True, False])
def test_the_runs_own_scaling_is_used(cache, tmp_path, standardise):
    own = write_own(tmp_path / "own.npz")
    done = train(own, standardise=standardise, **QUICK)
    scaling = json.loads((done.path / "config.json").read_text())["scaling"]
    offset, scale = np.float32(scaling["offset"]), np.float32(scaling["scale"])
    assert (offset.min() > 2) == standardise
    model = load_run(done.path, "cpu", "float32")
    for seed, unit in ((0, 1.0), (1, 5.0)):  # the training data, then other data in another unit
        write_own(tmp_path / "own.npz", seed, unit)
        rows = first_rows(prepare(own, standardise=standardise).split("test"), 5)
        maps = attention(own, run=done.path, average=5, device="cpu")
        assert_maps(maps, by_hand(model, [(row - offset) * scale for row in rows]))


@pytest.mark.parametrize(("patch", "stride"), [(4, None), (3, 2)])
def test_windows_are_the_tokens_of_the_maps(cache, tmp_path, patch, stride):
    own = write_own(tmp_path / "own.npz")
    done = train(own, patch=patch, stride=stride, **QUICK)
    prepared, step = prepare(own), stride or patch
    rows = [prepared.scaling(row) for row in first_rows(prepared.split("test"), 6)]
    tokens = [np.stack([row[i : i + patch].ravel() for i in range(0, len(row) - patch + 1, step)]) for row in rows]
    assert len({len(row) for row in tokens}) > 1
    maps = attention(own, run=done.path, average=6, device="cpu")
    assert_maps(maps, by_hand(load_run(done.path, "cpu", "float32"), tokens))
    frozen = attention(own, backbone=ONE_BLOCK, init="random", patch=patch, stride=stride, average=6, device="cpu")
    settings = resolve_model(ReservoirOptions(backbone=ONE_BLOCK, init="random", patch=patch, stride=stride))
    assert_maps(frozen, by_hand(load_model(prepared.task, settings, "cpu", "float32"), tokens))


@pytest.fixture(scope="module")
def xor_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("xor")
    return str(train("bit-xor", parameters={"n": 3, **FEW}, run=root / "run", cache=root / "cache", **QUICK).path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits"], "the run was trained on 'bit-xor', not on 'digits'"),
        (["own.npz"], "own.npz: no such file"),
        (["bit-xor", "--param", "n=4"], "differs from the training data in max_tokens, n, readout_tokens"),
        (["bit-xor", "--seed", "1"], "leave out the options that choose another"),
        (["bit-xor", "--param", "m=4"], "has no parameter 'm'"),
        (["bit-xor", "--out", "/proc/foo/x.png"], "/proc/foo/x.png: cannot be written ("),
        (["bit-xor", "--out", "."], "--out .: not an image file"),
        (["bit-xor", "--out", "maps.h5"], "--out maps.h5: not an image file"),
    ],
)
def test_attention_of_a_run_refuses_other_tasks_and_files_in_one_line(xor_run, cache, refusal, arguments, message):
    assert message in refusal("attention", *arguments, "--run", xor_run, "--average", "2")
