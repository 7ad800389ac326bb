"""The paper's protocol, and the model that comes with the package."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from reservoir_pipelines import extract, train
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoTokenizer

from reservoir.backbone_names import SHIPPED
from reservoir.backbones import choose_init, find, load_backbone, weights_digest
from reservoir.errors import InputError
from reservoir.options import ReservoirOptions
from reservoir.paper.lstm import LSTMCell, redraw_first_states
from reservoir.plan.model import resolve_model
from reservoir.reservoir import Reservoir
from reservoir.tasks import task_named, variant_of

TINY = "gpt2:n_layer=1,n_embd=16,n_head=2"
FEW = {"train_rows": 40, "valid_rows": 20, "test_rows": 20}


@pytest.mark.parametrize(
    ("backbone", "given", "drawn"),
    [
        (TINY, None, "random-flat"),
        (TINY, "random", "random-flat"),
        (TINY, "random-scaled", "random"),
        ("gpt2", None, "pretrained"),
        ("gpt2", "statistics", "statistics"),
        ("bert-base-uncased", "random", "random"),
        ("lstm", None, "random"),
    ],
)
def test_the_papers_protocol_initialises_gpt2_as_its_library_did(backbone, given, drawn):
    assert (
        resolve_model(
            ReservoirOptions(backbone=backbone, init=given), random_inits=variant_of({"protocol": "paper"}).random_inits
        ).init
        == drawn
    )
    ours = resolve_model(ReservoirOptions(backbone=backbone, init=given)).init
    assert ours == {"random-flat": "random"}.get(drawn, drawn)


def test_the_draw_is_named_in_the_entrys_card(cache, call):
    shared = {"backbone": TINY, "init": "random", "parameters": FEW, "layers": "final", "pool": "last"}
    paper, ours = (extract("bit-xor", protocol=protocol, **shared) for protocol in ("paper", None))
    assert "random-flat" in paper.entry.name and paper.entry != ours.entry
    code, card, _ = call("cache", "show", paper.entry)
    assert code == 0 and "initializer_range, as in Lu et al. 2021" in card
    code, card, _ = call("cache", "show", ours.entry)
    assert "normal with standard deviation initializer_range, for c_proj divided by sqrt(2 x blocks)" in card
    code, card, _ = call("backbone", TINY, "--init", "random", "--protocol", "paper")
    assert code == 0 and "every matrix normal" in card
    # With an explicit init, on data that do not depend on the protocol, the features are the same as without it.
    again = extract("bit-xor", protocol="paper", **shared | {"init": "random-scaled"})
    assert again.entry == ours.entry and again.reused


def test_every_named_task_takes_the_papers_protocol(cache):
    for name in ("bit-memory", "bit-xor", "modular-addition", "cifar10", "cifar10-lra", "digits"):
        assert task_named(name, protocol="paper") == task_named(name)
        with pytest.raises(InputError, match="protocol is 'other'; give ours or paper"):
            task_named(name, protocol="other")
    done = train("bit-xor", backbone=TINY, parameters=FEW, protocol="paper", steps=1, batch=4, train="output")
    config = json.loads((done.path / "config.json").read_text())
    assert config["reservoir"]["init"] == "random-flat" and config["settings"]["recipe"]["output_init"] == "linear"


@pytest.fixture
def proteins(tmp_path):
    """Return a folder with proteins, some of which are too long for 40 tokens."""
    draw = np.random.default_rng(0)
    for part in ("train", "valid"):
        lengths = [30, 31, 33, 34, 36, 37, 38, 39] * 3
        rows = [{"primary": "".join(draw.choice(list("ACDE"), n)), "fold_label": n % 2} for n in lengths]
        (tmp_path / f"remote_homology_{part}.json").write_text(json.dumps(rows))
    return tmp_path


def test_accuracy_of_homology_counts_dropped_proteins_as_wrong(proteins, cache):
    """The authors multiply by the share of kept proteins; batches have one row in training and four in validation."""
    given = {"data": proteins, "protocol": "paper", "parameters": {"max_tokens": 40, "batch": 1}, "backbone": TINY}
    features = extract("homology", layers="final", pool="last", **given)
    # 3 of 24 training proteins have 39 letters and are dropped, and so is the validation batch of four with such
    # proteins.
    assert features.rows == {"train": 21, "valid": 20, "test": 20}
    done = train("homology", steps=1, batch=4, train="output", **given)
    assert done.test_score_of_all == pytest.approx(done.test_score * 20 / 24)


def test_training_pads_proteins_to_the_longest_of_each_batch_which_every_epoch_draws_anew(proteins, cache):
    from reservoir_pipelines import prepare

    from reservoir.paper.variants import PaddedBatches

    split = prepare("homology", data=proteins, protocol="paper", parameters={"max_tokens": 48}).split("train")
    split = split.take(np.arange(len(split)))
    real, rows = (split.x != 0).sum(axis=1), PaddedBatches(split, seed=0, batch=4)
    drawn = []
    for epoch in range(2):
        found = rows(np.arange(epoch * len(split), (epoch + 1) * len(split)))
        longest = (found.x != 0).sum(axis=1).reshape(-1, 4).max(axis=1)
        assert found.lengths.tolist() == np.repeat(longest, 4).tolist()
        assert sorted((found.x != 0).sum(axis=1)) == sorted(real)
        drawn.append([text.tobytes() for text in found.x])
        assert found.lengths.sum() - real.sum() < 2 * len(split)  # rows of similar length share a batch
    assert sorted(drawn[0]) == sorted(drawn[1]) and drawn[0] != drawn[1]
    again = rows(np.arange(len(split)))
    assert [text.tobytes() for text in again.x] == drawn[0]


def test_the_way_proteins_are_read_is_part_of_the_key(proteins, cache):
    given = {"data": proteins, "protocol": "paper", "backbone": TINY, "layers": "final", "pool": "last"}
    one, four = (extract("homology", parameters={"max_tokens": 48, "batch": batch}, **given) for batch in (1, 4))
    assert one.entry != four.entry
    # A protein alone in its batch is read at its separator; a shorter one in a larger batch is read at padding.
    assert one["train"].lengths.tolist() == [n + 2 for n in [30, 31, 33, 34, 36, 37, 38, 39] * 3]
    longer = four["train"].lengths - one["train"].lengths
    assert longer.min() == 0 < longer.max()
    same = np.isclose(one["train"]["final/last"], four["train"]["final/last"], atol=1e-2).all(axis=1)
    assert np.array_equal(same, longer == 0)


def test_bit_memory_is_shown_with_the_copy_baseline(cache, call):
    small = {"n": 8, "token_bits": 4, "patterns": 2, **FEW}
    task = task_named("bit-memory", **small).task
    assert task.floor == 0.75 and type(task).from_dict(task.to_dict()) == task
    # The copy baseline, computed: visible bits are copied, and masked bits are guessed.
    rows = task_named("bit-memory").read(task_named("bit-memory").pieces()[0])["train"]
    shown = rows.x[:, -20:].astype(int)
    guessed = np.where(shown == 0, np.random.default_rng(0).integers(0, 2, shown.shape), shown > 0)
    assert (guessed == rows.y).mean() == pytest.approx(0.75, abs=2e-3)
    params = [f"--param={name}={value}" for name, value in small.items()]
    code, out, _ = call("train", "bit-memory", "--backbone", TINY, "--steps", 1, "--batch", 4, *params)
    assert code == 0 and re.search(r"copy baseline +75\.0%", out)
    assert " parameters\n" in out and "75.0%, by a constant or by copying the input" in out
    assert call("extract", "bit-memory", "--backbone", TINY, "--layers=final", "--pool=last", *params)[0] == 0
    code, out, _ = call("fit", "bit-memory", "--select", "valid")
    assert code == 0 and "copy baseline" in out and "75.0%" in out


MINI = SHIPPED["mini"]


@pytest.fixture
def decoy(tmp_path, monkeypatch, tiny_gpt2):
    """Change to a folder that contains another model in a folder called mini."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(tiny_gpt2, tmp_path / "mini")


def test_the_weights_of_mini_are_float16_in_at_most_12_megabytes():
    assert (MINI / "model.safetensors").stat().st_size <= 12e6
    with safe_open(MINI / "model.safetensors", "np") as file:
        dtypes = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert dtypes == {"F16"}


def test_mini_has_the_configuration_and_tokenizer_of_its_name():
    kept, named = (find(name)[1] for name in (str(MINI), "mini"))
    settings = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "activation_function", "initializer_range")
    for setting in settings:
        assert getattr(kept, setting) == getattr(named, setting), setting
    tokenizer, text = AutoTokenizer.from_pretrained(MINI), " Reservoir – ein Speicher .\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_mini_is_loaded_from_the_package_in_float32_from_any_folder(decoy):
    stored = load_file(MINI / "model.safetensors")
    loaded = dict(load_backbone("mini", "pretrained").model.named_parameters())
    assert len(loaded) == 6 * 12 + 3  # all tensors except the token embeddings
    for name, parameter in loaded.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, stored[f"transformer.{name}"].float()), name


def test_mini_has_three_inits_and_other_shapes_only_random_weights():
    inits = {weights_digest(load_backbone("mini", init)) for init in ("pretrained", "random", "statistics")}
    assert len(inits) == 3
    altered = "mini:n_layer=2"
    assert choose_init(altered, None) == "random" and load_backbone(altered).depth == 2
    with pytest.raises(InputError, match="nobody has published weights for it; use --init random"):
        load_backbone(altered, "pretrained")


def choose(**options):
    return resolve_model(ReservoirOptions(**options))


def test_mini_is_the_default_backbone(decoy):
    assert choose() == Reservoir(backbone="mini", init="pretrained")
    for init in ("random", "statistics"):
        assert choose(init=init) == Reservoir(backbone="mini", init=init)
    assert choose(backbone="gpt2") == Reservoir(backbone="gpt2", init="pretrained")
    # A folder called mini is used only if the name is written as a path.
    assert choose(backbone="mini").backbone == "mini"
    assert choose(backbone="./mini").backbone == choose(init="mini").backbone == str(decoy)


def test_the_papers_protocol_draws_the_first_states_of_an_lstm_for_each_row_and_pass(cache):
    cell, rows = LSTMCell(8), torch.zeros(3, 2, 8)
    assert torch.equal(cell(rows)[0], cell(rows)[1])
    redraw_first_states(cell)
    assert not torch.equal(cell(rows)[0], cell(rows)[1]) and not torch.equal(cell(rows), cell(rows))
    cell.eval()
    assert torch.equal(cell(rows), cell(rows))
    settings = {"backbone": "lstm:width=16,depth=1", "limit": 20, "steps": 2, "eval_every": 2, "train": "all"}
    ours, paper = (train("bit-xor", protocol=protocol, **settings) for protocol in (None, "paper"))
    assert ours.losses != paper.losses and paper.test_score is not None
    again = train("bit-xor", protocol="paper", run=cache / "again", **settings)
    assert again.losses == paper.losses and again.test_score == paper.test_score
