"""Training learns tasks that a readout cannot, and equals a plain loop; its runs can predict and be swept."""

import hashlib
import json
import shutil
import signal
from importlib.metadata import version

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from reservoir_cache import last_entry
from reservoir_pipelines import export, extract, predict, train
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.plots import GRID, INK, plot_training
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from reservoir_pipelines.tables import training_facts
from reservoir_pipelines.training.checkpoints import load_run
from reservoir_pipelines.training.result import Training, baseline, converged_step
from reservoir_pipelines.training.run_folder import RunFolder
from safetensors.torch import load_file, save_file
from sklearn import metrics

from reservoir.column import Column
from reservoir.errors import InputError
from reservoir.training import trainer
from tests.helpers import Child, assert_same_bits, pair
from tests.reservoir.models import make_fpt

SMALL = "gpt2:n_layer=2,n_embd=32,n_head=4,n_positions=16,initializer_range=0.1"
TINY = "gpt2:n_layer=3,n_embd=16,n_head=2,n_positions=70,initializer_range=0.3"
PLAIN = {"init": "random", "device": "cpu", "compute": "float32"}
FEW = {"train_rows": 64, "valid_rows": 40, "test_rows": 30}
QUICK = {**PLAIN, "backbone": TINY, "parameters": FEW}


def weights(done):
    return load_file(RunFolder(done.path).last.path / "trained.safetensors")


def linear_accuracy(run):
    from sklearn.linear_model import LogisticRegression

    bits = (np.arange(1024)[:, None] >> np.arange(10)) & 1
    model, lengths = load_run(run, "cpu").fpt, torch.full((1024,), 10)
    column = Column("final", "last")
    hidden = model.features(torch.from_numpy(bits[:, :, None]).float(), lengths, [column])[column].numpy()
    x, y = hidden.reshape(5 * 1024, -1), (bits[:, :5] ^ bits[:, 5:]).ravel()
    return LogisticRegression(C=1e4, max_iter=2000).fit(x, y).score(x, y)


def test_bit_xor_is_learnt_by_an_fpt_and_not_by_its_output_alone(cache):
    settings = {**PLAIN, "backbone": SMALL, "steps": 300, "eval_every": 50, "batch": 32, "learning_rate": 1e-2}
    done = train("bit-xor", dropout=0.0, **settings)
    assert done.test_score == 1.0 and done.valid_score == 1.0
    assert done.converged_step <= 250 and done.frozen_tensors > 10
    alone = train("bit-xor", train="output", dropout=0.0, **settings | {"steps": 100})
    # No linear readout of these hidden states is better: `linear_accuracy` fits one to all 1,024 inputs until it
    # converges.
    assert alone.trained == 2 * 33 and 0.5 < alone.test_score < linear_accuracy(alone.path) + 0.02 < 0.75


def plain_losses(steps, rows):
    """Train the same model with only transformers and torch, and return the loss of each step."""
    from transformers import GPT2Config, GPT2Model

    from reservoir.backbones import load_backbone
    from reservoir.training.rows import StoredRows

    prepared, count = rows
    settled = make_fpt(prepared.task, load_backbone(TINY, "random"))
    state = settled.state_dict()
    config = GPT2Config(**settled.backbone.config.to_dict())
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2Model(config).train()
    tensors = {k.removeprefix("backbone.model."): v for k, v in state.items() if ".model." in k}
    model.load_state_dict(tensors, strict=False)
    first, last = torch.nn.Linear(1, 16), torch.nn.Linear(16, 2)
    first.load_state_dict({"weight": state["inputs.map.weight"], "bias": state["inputs.map.bias"]})
    last.load_state_dict({"weight": state["output.weight"], "bias": state["output.bias"]})
    trained = [*first.parameters(), *last.parameters()]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("ln_" in name or "wpe" in name)
        trained += [parameter] if parameter.requires_grad else []
    optimizer = torch.optim.Adam(trained, lr=1e-3)
    order = StoredRows(prepared.split("train").take(np.arange(64)), seed=0)
    losses = []
    for step in range(steps):
        split = order(np.arange(step * count, (step + 1) * count))
        hidden = model(inputs_embeds=first(torch.from_numpy(split.x).float())).last_hidden_state[:, -5:]
        loss = torch.nn.functional.cross_entropy(last(hidden).reshape(-1, 2), torch.from_numpy(split.y).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_twenty_losses_are_those_of_a_plain_loop(cache):
    from reservoir_pipelines import prepare

    done = train("bit-xor", rows="stored", steps=20, batch=6, dropout=0.0, **QUICK)
    prepared = prepare("bit-xor", parameters=QUICK["parameters"])
    np.testing.assert_allclose(done.losses, plain_losses(20, (prepared, 6)), atol=1e-5)


def test_accumulated_gradients_are_those_of_one_pass(cache):
    settings = {"rows": "fresh", "steps": 6, "dropout": 0.0, **QUICK}
    whole = train("bit-xor", batch=8, **settings)
    parts = train("bit-xor", batch=4, accumulate=2, **settings)
    np.testing.assert_allclose(parts.losses, whole.losses, atol=1e-6)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], tensor, atol=2e-5, rtol=0)


def test_bfloat16_stays_close_and_rounds_no_trained_weight(cache):
    settings = {"steps": 5, "dropout": 0.0, "train": "input,attention,output"}
    exact = train("bit-xor", **settings, **QUICK)
    rounded = train("bit-xor", **settings, **{**QUICK, "compute": "bfloat16"})
    assert 0 < np.abs(np.array(rounded.losses) - exact.losses).max() < 0.1
    assert all(tensor.dtype == torch.float32 for tensor in weights(rounded).values())


LAUNCH = """
import json, sys, torch
from pathlib import Path
from reservoir_pipelines import train
from tests.faults.rounds import inject
torch.set_num_threads(1)
inject("".join(sys.argv[3:]), Path(sys.argv[1], "checkpoints", ".step-"))
train("bit-xor", run=Path(sys.argv[1]), **json.loads(sys.argv[2]))
"""


def test_two_processes_equal_one_with_twice_the_batch(cache):
    settings = {"rows": "fresh", "steps": 6, "eval_every": 3, "dropout": 0.2, **QUICK}
    two = pair(LAUNCH, cache / "two", json.dumps({**settings, "batch": 4}), forked=True)
    assert [code for code, _, _ in two] == [0, 0], two
    # Forward passes are numbered across processes, so dropout masks are the same as with accumulation.
    one = train("bit-xor", batch=4, accumulate=2, **settings)
    two = RunFolder(cache / "two").result(Training.from_dict)
    np.testing.assert_allclose(two.losses, one.losses, atol=1e-6)
    assert two.valid_score == one.valid_score and two.test_loss == pytest.approx(one.test_loss, abs=1e-6)


def test_a_run_that_was_killed_goes_on_to_the_same_bits(cache, tmp_path):
    settings = {"steps": 60, "eval_every": 7, "batch": 4, "dropout": 0.2, **QUICK}
    whole = train("bit-xor", **settings, run=tmp_path / "whole")
    folder = tmp_path / "killed"
    for fault in ("os.rename:5", "os.rename:6"):  # each checkpoint renames its state, then itself
        killed = Child(LAUNCH, folder, json.dumps({**settings, "resume": True}), fault)
        assert killed.ended()[0] == -signal.SIGKILL
    assert list((folder / "checkpoints").glob(".*.tmp"))
    with pytest.raises(InputError, match="pass --resume to continue it"):
        train("bit-xor", **{**settings, "steps": 61}, run=folder)
    done = train("bit-xor", **settings, run=folder, resume=True)
    assert_same_bits(weights(whole), weights(done))
    assert done.losses == whole.losses
    assert (done.best_step, done.test_loss) == (whole.best_step, whole.test_loss)
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == sorted({f"step-{done.best_step:08d}", "step-00000060"})


def test_a_finished_run_is_returned_and_more_steps_go_on(cache):
    settings = {"eval_every": 5, "dropout": 0.1, **QUICK}
    short = train("bit-xor", steps=10, **settings)
    losses = short.losses
    assert train("bit-xor", steps=10, **settings) == short
    more = train("bit-xor", steps=15, resume=True, **settings)
    assert more.run == short.run and more.losses[:10] == losses and len(more.losses) == 15
    straight = train("bit-xor", steps=15, **settings, run=cache / "straight")
    assert_same_bits(weights(more), weights(straight))


def test_a_run_stores_its_settings_and_history(cache, painted):
    done = train("bit-xor", steps=4, eval_every=2, train="output,layernorm", **QUICK)
    assert done.path.parent == cache / "runs" / "bit-xor"
    config = json.loads((done.path / "config.json").read_text())
    assert config["settings"]["train"] == ["layernorm", "output"] and config["settings"]["recipe"]["batch"] == 8
    assert config["made_with"]["torch"] == version("torch")
    assert [line["step"] for line in done.history] == [1, 2, 2, 3, 4, 4]
    assert (done.path / "curve.png").stat().st_size > 2000
    kept = json.loads((done.path / "run.json").read_text())
    digest = hashlib.sha256((done.path / "predictions.csv").read_bytes()).hexdigest()
    assert kept.pop("sha256") and kept.pop("files") == {"predictions.csv": digest}
    assert kept == done.to_dict()


@pytest.mark.parametrize(
    ("history", "step"),
    [
        ([(1, 0.5), (2, 0.7), (3, 0.995), (4, 1.0)], 3),
        ([(1, 0.995), (2, 0.7), (3, 1.0)], None),  # a single last value cannot show convergence
        ([(1, 1.0), (2, 1.0)], None),  # too few values to show convergence
        ([(1, 1.0), (2, 1.0), (3, 0.999)], 1),
        ([(1, 0.5), (2, 0.5), (3, 0.5)], None),  # no better than a constant output
        ([], None),
    ],
)
def test_convergence_is_the_first_step_from_which_the_score_stays_above_chance(history, step):
    assert converged_step(history, 0.5) == step


def test_the_baseline_is_the_best_constant_output():
    y = np.random.default_rng(0).integers(0, 3, (50, 1, 2))
    constants = [(y == [a, b]).mean() for a in range(3) for b in range(3)]
    assert baseline(y, 3) == pytest.approx(max(constants))
    assert baseline(y.astype(float), 0) == 0.0  # for R²


def test_training_from_the_cache_takes_the_same_steps(cache):
    settings = {"train": "output", "steps": 12, "eval_every": 6, "dropout": 0.2, "rows": "stored", **QUICK}
    whole = train("bit-xor", **settings)
    cached = train("bit-xor", from_cache=True, store="float32", **settings)
    np.testing.assert_allclose(cached.losses, whole.losses, atol=2e-6)
    assert cached.run != whole.run and cached.test_score == whole.test_score


def test_the_entry_of_a_training_from_the_cache_does_not_become_the_last_one(cache):
    mine = extract("bit-xor", layers="block01", pool="mean", store="float32", **QUICK).entry
    train("bit-xor", train="output", from_cache=True, rows="stored", dropout=0.0, steps=1, eval_every=1, **QUICK)
    assert len(list(mine.parent.iterdir())) == 2 and last_entry(cache, "bit-xor").path == mine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": "recurrent"}, "--train recurrent: not in this gpt2"),
        ({"train": ","}, "--train: names no group of this gpt2; it has input, output"),
        ({"steps": 0}, "--steps 0"),
        ({"dropout": 1.0}, "--dropout 1.0"),
        ({"rows": "augmented"}, "--rows augmented: neither task 'bit-xor' nor the cache has such rows"),
        ({"rows": "new"}, "--rows new: choose among"),
        ({"rows": "fresh", "from_cache": True}, "nor the cache has such rows"),
        ({"from_cache": True}, "--from-cache: cached states fit only the output layer"),
        ({"on_divergence": "go"}, "--on-divergence go"),
        ({"compiled": True}, "--compile: a compiled model is faster on GPUs only"),
    ],
)
def test_mistakes_end_in_one_line(settings, message, cache):
    with pytest.raises(InputError, match=message) as caught:
        train("bit-xor", **{**QUICK, "steps": 2, **settings})
    assert "\n" not in str(caught.value) and not (cache / "runs").exists()


def test_a_limit_that_does_not_hold_for_new_training_rows_is_noted(cache, capsys):
    for rows in ("auto", "stored"):
        train("bit-xor", rows=rows, limit=20, steps=1, **QUICK)
        is_noted = "--limit 20 holds for valid and test" in capsys.readouterr().err
        assert is_noted == (rows == "auto")


def test_a_folder_with_another_run_is_refused(cache):
    train("bit-xor", steps=1, run=cache / "mine", **QUICK)
    with pytest.raises(InputError, match=r"the folder has a run with recipe.batch = 8, not 4"):
        train("bit-xor", steps=1, batch=4, run=cache / "mine", **QUICK)
    (cache / "other").mkdir()
    (cache / "other" / "thing").touch()
    with pytest.raises(InputError, match="contains other files"):
        train("bit-xor", steps=1, run=cache / "other", **QUICK)


def test_a_run_in_progress_is_left_alone(cache):
    folder = cache / "busy"
    with RunFolder(folder).lock(), pytest.raises(InputError, match="another process is training this run"):
        train("bit-xor", steps=1, run=folder, **QUICK)


ONE_BLOCK = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"
CLI_QUICK = {"backbone": ONE_BLOCK, "init": "random", "steps": 20, "device": "cpu"}


def write_series(path, kind, rows=120):
    """Write series with two classes or two targets; the last 30 are the test split."""
    draw, y = np.random.default_rng(0), np.arange(rows) % 2
    x = draw.normal(size=(rows, 6, 1)) + 2 * y[:, None, None]
    split = np.repeat(["train", "valid", "test"], [60, 30, 30])
    labels = np.array(["down", "up"])[y] if kind == "classes" else np.c_[100 + 5 * x[:, :, 0].mean(1), x[:, 0, 0]]
    np.savez(path, x=x, y=labels, split=split)
    np.savez(path.with_name("test.npz"), x=x[90:], y=labels[90:])
    return str(path)


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_train_evaluates_the_test_split(cache, tmp_path, kind, call, answer):
    done = train(write_series(tmp_path / "own.npz", kind), **CLI_QUICK)
    for name, warned in (("own.npz", True), ("test.npz", False)):
        warning = f"{name}: the run was trained on rows of this file; for new data trust the test score of train"
        assert (warning in call("predict", done.path, tmp_path / name)[2]) == warned
    write_checked(done.path / "config.json", {**read_checked(done.path / "config.json"), "origin": 7})
    found = evaluate_predictions(predict(done.path, tmp_path / "test.npz"))
    assert done.evaluation.scores == pytest.approx(found.scores, rel=1e-3)
    assert done.evaluation.scores[done.metric] == pytest.approx(done.test_score)
    assert Training.from_dict(json.loads(json.dumps(done.to_dict()))).to_dict() == done.to_dict()
    names = {"accuracy", "majority_baseline", "balanced_accuracy", "macro_f1", "auc"}
    names |= {"recall_at_1%_false_positives", "recall_at_5%_false_positives"}
    each = {f"{name}_of_label_{n}" for name in ("R²", "rmse") for n in range(2)}
    assert done.evaluation.scores.keys() == (names if kind == "classes" else {"R²", "rmse", "mae", *each})
    assert (done.path / "confusion.png").exists() == (kind == "classes")
    constant = "50.0%" if kind == "classes" else "0.000"
    assert dict(training_facts(done).pairs)["baseline"] == f"{constant}, by a constant, on validation rows"
    if kind == "classes":
        np.testing.assert_array_equal(done.evaluation.confusion, found.confusion)
        truth = np.load(tmp_path / "test.npz")["y"]
        labels = [one.label for one in predict(done.path, tmp_path / "test.npz")]
        assert done.evaluation.scores["macro_f1"] == pytest.approx(metrics.f1_score(truth, labels, average="macro"))
    flags = [word for name, value in CLI_QUICK.items() for word in (f"--{name}", str(value))]
    printed = answer("train", tmp_path / "own.npz", *flags)
    assert printed["evaluation"] == done.evaluation.to_dict()


TWO_BLOCKS = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70,initializer_range=0.3"
SIX_STEPS = {**PLAIN, "backbone": TWO_BLOCKS, "steps": 6, "eval_every": 3}


@pytest.fixture
def own(tmp_path):
    draw = np.random.default_rng(0)
    x, lengths = draw.normal(size=(90, 12, 2)).astype(np.float32), draw.integers(4, 13, 90)
    np.savez(tmp_path / "classes.npz", x=x, y=np.arange(90) % 3, lengths=lengths)
    np.savez(tmp_path / "values.npz", x=x, y=draw.normal(size=(90, 2)).astype(np.float32), lengths=lengths)
    np.savez(tmp_path / "new.npz", x=x[:20], lengths=lengths[:20])
    return tmp_path


def direct(run, x, lengths, scaling=None):
    """Return the logits of a run's model, computed for one row at a time without padding."""
    model = load_run(run, "cpu").fpt
    with torch.no_grad():
        rows = [model(torch.from_numpy(x[i : i + 1, :n]), torch.tensor([n])) for i, n in enumerate(lengths)]
    return torch.cat(rows)


@pytest.mark.parametrize("settings", [{}, {"patch": 3, "stride": 2, "train": "all"}])
def test_predictions_of_a_run_are_those_of_its_model(own, cache, settings):
    done = train(str(own / "classes.npz"), **SIX_STEPS, **settings)
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
    done = train("bit-xor", parameters=FEW, **SIX_STEPS)
    written = export(done.path, out=tmp_path / "model.pt2")
    bits = np.random.default_rng(1).integers(0, 2, (5, 10, 1)).astype(np.float32)
    logits = torch.export.load(str(written.model)).module()(torch.from_numpy(bits), torch.full((5,), 10))
    torch.testing.assert_close(logits.softmax(-1), direct(done.path, bits, [10] * 5).softmax(-1), atol=2e-6, rtol=0)
    card = json.loads(written.card.read_text())
    assert card["scores"]["test_score"] == done.test_score


def test_a_run_whose_backbone_has_changed_is_refused(cache, tiny_gpt2, tmp_path):
    folder = shutil.copytree(tiny_gpt2, tmp_path / "model")
    done = train("bit-xor", **{**SIX_STEPS, "backbone": str(folder), "init": "pretrained"}, parameters=FEW)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.mlp.c_fc.bias"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="have changed since the fit"):
        load_run(done.path)
    with pytest.raises(InputError, match="not of a run of reservoir train"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "groups"),
    [
        ("Full", {"train": "all", "depth": 1}, ("all",)),
        ("LSTM, frozen", {"backbone": "lstm:width=16"}, ("input", "layernorm", "output")),
        ("norms frozen", {"train": "input,positions,output"}, ("input", "positions", "output")),
    ],
)
def test_the_papers_baselines(name, settings, groups, cache):
    done = train("bit-xor", parameters=FEW, **{**SIX_STEPS, **settings})
    assert done.groups == groups and len(done.losses) == 6, name
    config = json.loads((done.path / "config.json").read_text())
    rate = 3e-4 if "lstm" in config["reservoir"]["backbone"] else 1e-3
    assert config["settings"]["recipe"]["learning_rate"] == rate
    if name == "Full":
        assert done.frozen_tensors == 0


def test_the_papers_protocol_is_that_of_the_authors_code(cache):
    """The output layer is initialised like torch's Linear, and dropout also acts below the trained layers."""
    settings = {**SIX_STEPS, "train": "output", "steps": 1, "learning_rate": 1e-12, "dropout": 0.3}
    rows = {"train_rows": 20, "valid_rows": 20, "test_rows": 20, "max_tokens": 60}
    ours = train("bit-xor", parameters=FEW, **settings)
    paper = train("listops", parameters=rows, protocol="paper", **settings)
    norms = [load_run(done.path).fpt.output.weight.norm(dim=1) for done in (ours, paper)]
    assert norms[0].numpy() == pytest.approx(1.41, abs=1e-3)  # orthogonal rows
    assert 0.3 < norms[1].min() < norms[1].max() < 0.9  # uniform up to 16 ** -0.5, so 0.58 on average
    recipe = json.loads((paper.path / "config.json").read_text())["settings"]["recipe"]
    assert (recipe["output_init"], recipe["dropout_below"]) == ("linear", True)
    dry = train("listops", parameters=rows, protocol="paper", **settings | {"dropout": 0.0})
    assert dry.losses != paper.losses and dry.test_loss == pytest.approx(paper.test_loss, abs=1e-6)
    with pytest.raises(InputError, match="--dropout 0"):
        train("listops", parameters=rows, protocol="paper", from_cache=True, **settings)


def test_the_last_step_is_scored_and_nothing_chosen_where_the_test_rows_are_the_validation_rows(cache, capsys):
    rows = {"train_rows": 40, "valid_rows": 40, "max_tokens": 40}
    settings = {**SIX_STEPS, "eval_every": 1, "learning_rate": 0.3, "parameters": rows, "protocol": "paper"}
    done = train("listops", **settings)
    scores = [line["valid_score"] for line in done.history if "valid_score" in line]
    assert max(scores[:-1]) > scores[-1], "the best step is not the last, so that a choice would change the score"
    assert done.best_step == done.steps == 6 and done.test_score == done.valid_score == scores[-1]
    err = capsys.readouterr().err
    assert "listops: the test rows are the validation rows, so the last step is scored" in err
    assert "step 6: validation loss" in err and "best so far" not in err
    assert train("listops", **settings).test_score == scores[-1]
    with pytest.raises(InputError, match="--sweep of listops: with --protocol paper its test rows"):
        train("listops", **settings, sweep={"learning_rate": [1e-3, 1e-2]})
    with pytest.raises(InputError, match="--patience: the test rows"):
        train("listops", **settings | {"steps": 7}, resume=True, patience=2)


SHALLOW = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=16,initializer_range=0.3"
SHORT = {"steps": 20, "eval_every": 10, "batch": 16, **PLAIN, "backbone": SHALLOW, "parameters": FEW}


def test_a_sweep_returns_the_run_that_does_best_on_validation_and_looks_at_test_once(cache, tmp_path):
    best_run = train("bit-xor", sweep={"learning_rate": [1e-5, 1e-2], "dropout": 0.0}, **SHORT)
    alone = {
        rate: train("bit-xor", learning_rate=rate, dropout=0.0, run=tmp_path / f"{rate}", **SHORT)
        for rate in (1e-5, 1e-2)
    }
    best = max(alone, key=lambda rate: (alone[rate].valid_score, -alone[rate].valid_loss))
    assert best_run.test_score == alone[best].test_score
    assert [row["learning_rate"] for row in best_run.trials] == [best, *(rate for rate in alone if rate != best)]
    for row in best_run.trials:
        assert (row["valid_score"], row["dropout"]) == (alone[row["learning_rate"]].valid_score, 0.0)
    folders = [RunFolder(best_run.path.parent / row["run"]) for row in best_run.trials]
    assert [folder.result(dict)["test_score"] is not None for folder in folders] == [True, False]
    before = [(folder.path / "metrics.jsonl").stat().st_mtime_ns for folder in folders]
    again = train("bit-xor", sweep={"learning_rate": [1e-5, 1e-2], "dropout": 0.0}, **SHORT)
    assert again == best_run
    after = [(folder.path / "metrics.jsonl").stat().st_mtime_ns for folder in folders]
    assert after == before  # no training step was repeated
    written = best_run.to_dict()
    written["swept"] = written.pop("trials")  # as earlier versions wrote it
    assert Training.from_dict(written) == best_run
    plain = train("bit-xor", learning_rate=best_run.trials[1]["learning_rate"], dropout=0.0, resume=True, **SHORT)
    assert plain.test_score == alone[best_run.trials[1]["learning_rate"]].test_score  # kept, and scored on request


def test_a_sweep_refuses_a_run_that_has_more_steps_than_the_others(cache):
    train("bit-xor", learning_rate=1e-3, **SHORT | {"steps": 40})
    with pytest.raises(
        InputError, match="this run already has 40 steps, and --sweep compares runs of 20; pass --steps 40"
    ):
        train("bit-xor", sweep={"learning_rate": [1e-3]}, **SHORT)


def test_a_sweep_of_dropout_is_refused_if_no_layer_has_it(cache):
    settings = {**SHORT, "steps": 1, "train": "output", "sweep": {"dropout": [0.0, 0.5]}}
    with pytest.raises(InputError, match="--sweep dropout: with --train output no layer has dropout"):
        train("bit-xor", **settings)
    # The paper's protocol also drops in frozen layers.
    assert len(train("bit-xor", **settings, protocol="paper").trials) == 2


def test_sweep_prints_every_run_and_refuses_values_that_are_no_numbers(cache, call, answer, refusal):
    flags = ["--backbone", SHALLOW, "--init", "random", "--steps", "4", "--eval-every", "4", "--device", "cpu"]
    rows = [part for name, count in FEW.items() for part in ("--param", f"{name}={count}")]
    line = ["train", "bit-xor", *flags, *rows, "--sweep", "learning_rate=1e-3,1e-2", "--sweep", "dropout=0"]
    assert len(answer(*line)["trials"]) == 2 and "learning rate" in call(*line)[1]
    for wrong, says in (
        ("steps=1,2", "give values of batch, accumulate, learning_rate"),
        ("batch=a,b", "--batch 'a,b': give a whole number"),
        ("batch=0,8", "--batch 0: give a whole number"),
    ):
        assert says in refusal(*line[:-4], "--sweep", wrong)


def test_a_sweep_whose_runs_all_diverge_is_an_error(cache, monkeypatch):
    monkeypatch.setattr(trainer, "BOUND", 1e-9)
    with pytest.raises(InputError, match="every run diverged before its first validation"):
        train("bit-xor", sweep={"clip": [1.0, 2.0]}, **SHORT)


@pytest.fixture
def panels(tmp_path, figures):
    def draw(history, best_step):
        plot_training(tmp_path / "curve.png", history, best_step, "a training")
        return figures[-1].axes

    return draw


def test_the_chosen_step_is_seen_and_named_in_the_plot(panels):
    history = [{"step": step, "loss": 2 / step, "accuracy": 0.5} for step in range(1, 101)]
    history[50:50] = [{"step": 50, "valid_loss": 0.1, "valid_score": 0.4}]
    for best, names in ((50, ["train", "valid", "best"]), (None, ["train", "valid"])):
        for axes in panels(history, best):
            assert [text.get_text() for text in axes.get_legend().get_texts()] == names
            for mark in (line for line in axes.lines if line.get_label() == "best"):
                assert list(mark.get_xdata()) == [50, 50] and to_hex(mark.get_color()) == INK != GRID


def test_a_training_that_diverged_at_once_has_a_plot(panels):
    for lines in ([], [{"step": 1, "loss": 3.0, "accuracy": 0.1}, {"step": 2, "loss": None, "accuracy": 0.1}]):
        assert len(panels(lines, None)) == 2
    assert panels([{"step": 1, "loss": 0.0, "accuracy": 1.0}], None)[0].get_yscale() == "linear"
