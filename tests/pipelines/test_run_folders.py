"""The folder of a run: the result is that of the last step, damage is named, and a refused run releases the lock."""

import errno
import json
import os
import textwrap
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from reservoir_pipelines import train
from reservoir_pipelines.files import checked_line, read_checked
from reservoir_pipelines.prediction.load import load_part, open_readout
from reservoir_pipelines.training.checkpoints import TRAINED, load_checkpoint, load_run, read_tensors, save_checkpoint
from reservoir_pipelines.training.run_folder import RunFolder, read_checkpoint, read_journal

from reservoir.errors import InputError
from reservoir.training import trainer
from reservoir.training.trainer import DivergedError
from tests.helpers import flip, pair

STAGE = import_module("reservoir_pipelines.training.train")
TINY = "gpt2:n_layer=3,n_embd=16,n_head=2,n_positions=70,initializer_range=0.3"
QUICK = {"init": "random", "device": "cpu", "compute": "float32", "backbone": TINY}
STATE = "checkpoints/step-00000002/state.json"
STATES = {"best_step": "x"}, {"step": -1}, {"seconds": None}, {"best": {}}, {"best": {"valid_score": "x"}}
FEW = {"train_rows": 64, "valid_rows": 40, "test_rows": 30}


@pytest.fixture
def go(cache):
    given = {"run": cache / "run", "eval_every": 2, "parameters": FEW, **QUICK}
    return lambda **settings: train("bit-xor", **given | settings)


def test_an_extended_run_that_was_killed_finishes_when_resumed(go, cache, monkeypatch):
    first = go(steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(STAGE, "training_result", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            go(steps=4, resume=True)
    assert RunFolder(cache / "run").result(dict) is None  # the result of 2 steps does not describe the new weights
    ended = go(steps=4, resume=True)
    assert (first.steps, ended.steps) == (2, 4) and RunFolder(cache / "run").result(dict) == ended.to_dict()
    assert ended.to_dict() | {"run": "", "seconds": 0} == go(steps=4, run=cache / "other").to_dict() | {
        "run": "",
        "seconds": 0,
    }


def test_asking_for_fewer_steps_returns_the_finished_run(go, cache, capsys):
    done = go(steps=4)
    assert go(steps=2) == done and "this run already has 4 steps" in capsys.readouterr().err
    assert go(steps=4, eval_every=1) == done
    assert "printing the result with eval_every 2, patience None; name another --run" in capsys.readouterr().err
    (cache / "run" / "run.json").unlink()
    assert go(steps=2, resume=True).to_dict() | {"seconds": 0} == done.to_dict() | {"seconds": 0}
    assert "--steps 4" in RunFolder(cache / "run").config["command"]


def test_further_steps_change_the_command_and_the_validation_of_a_run_and_nothing_else(go, cache, capsys):
    go(steps=2)
    config = RunFolder(cache / "run").config
    go(steps=4, eval_every=1, resume=True)
    capsys.readouterr()
    go(steps=4, eval_every=1)
    assert "printing the result with" not in capsys.readouterr().err
    changed = RunFolder(cache / "run").config
    command = config["command"].replace("--steps 2", "--steps 4").replace("--eval-every 2", "--eval-every 1")
    assert changed == {**config, "command": command, "validation": {"eval_every": 1, "patience": None}}


def test_a_finished_run_that_was_moved_is_that_of_its_new_folder(go, cache):
    done = go(steps=2)
    (cache / "run").rename(cache / "moved")
    moved = go(steps=2, run=cache / "moved")
    assert moved == replace(done, run=str(cache / "moved")) and moved.train_score is not None


def test_training_stops_when_patience_ends_and_a_killed_run_stops_at_the_same_step(go, cache, monkeypatch):
    settings = {"steps": 40, "learning_rate": 0.1, "patience": 3}
    whole = go(**settings)
    stopped = whole.stopped_step
    scores = {
        line["step"]: (line["valid_score"], -line["valid_loss"]) for line in whole.history if "valid_score" in line
    }
    assert stopped == max(scores) == whole.steps == whole.best_step + 6 < 40  # three validations, two steps apart
    assert max(scores, key=scores.get) == whole.best_step
    assert go(**settings) == whole  # a stopped run has finished

    monkeypatch.setattr(STAGE, "training_result", Mock(side_effect=KeyboardInterrupt))
    for steps in (whole.best_step + 2, 40):  # killed between two steps without improvement, then before the result
        with pytest.raises(KeyboardInterrupt):
            go(**settings | {"steps": steps}, run=cache / "killed", resume=True)
    monkeypatch.undo()
    resumed = go(**settings, run=cache / "killed", resume=True)
    assert resumed.losses == whole.losses
    assert resumed.to_dict() | {"run": "", "seconds": 0} == whole.to_dict() | {"run": "", "seconds": 0}

    with pytest.raises(InputError, match=f"at step {stopped} of 40"):
        go(**settings | {"patience": None})
    longer = go(**settings | {"patience": None}, resume=True)
    assert (longer.stopped_step, longer.steps) == (None, 40)


def test_each_validation_prints_its_score_and_the_best_step(go, capsys):
    done = go(steps=6)
    lines = [line for line in capsys.readouterr().err.splitlines() if "validation" in line]
    last = done.history[-1]
    assert [line.split(":")[0] for line in lines] == ["step 2", "step 4", "step 6"]
    assert f"loss {last['valid_loss']:.4f}, accuracy {last['valid_score']:.1%}" in lines[-1]
    # The first validation is the best so far itself.
    assert lines[-1].endswith(f"best so far: step {done.best_step}") and "best so far" not in lines[0]


def test_a_diverged_run_is_finished_and_continues_on_request(go, monkeypatch):
    monkeypatch.setattr(trainer, "BOUND", 20.0)
    settings = {"steps": 8, "on_divergence": "report", "learning_rate": 30.0}
    done = go(**settings)
    assert done.diverged_step == done.steps == done.history[-1]["step"] < 8 and go(**settings) == done
    assert go(**settings, resume=True).diverged_step == done.diverged_step
    with pytest.raises(DivergedError, match=r"the loss is .* at step \d+.*--learning-rate"):
        go(**settings | {"on_divergence": "stop", "resume": True})


def test_an_error_of_writing_names_the_folder_of_the_run(go, cache, monkeypatch):
    error = OSError(errno.ENOSPC, "No space left on device")  # that of a failed write names no file
    monkeypatch.setattr("reservoir_pipelines.training.checkpoints.save_checkpoint", Mock(side_effect=error))
    with pytest.raises(OSError, match="No space left on device") as caught:
        go(steps=2)
    assert caught.value.filename == str(cache / "run")


def test_a_damaged_best_checkpoint_is_named_before_any_step(go, cache):
    done = go(steps=6, learning_rate=0.1)
    best, last = RunFolder(cache / "run").best, RunFolder(cache / "run").last
    assert done.best_step < 6 and best != last
    (best.path / "trained.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=f"{best.path.name}/trained.safetensors"):
        go(steps=8, resume=True, learning_rate=0.1)
    assert max(line["step"] for line in read_journal(cache / "run" / "metrics.jsonl")) == 6


@pytest.mark.parametrize("rest", [b"\xff\xfe\x00", b'{"step": 3, "lo'])
def test_a_line_of_the_journal_that_a_kill_has_cut_off_is_left_out(rest, go, cache):
    go(steps=2)
    lines = read_journal(journal := cache / "run" / "metrics.jsonl")
    journal.write_bytes(journal.read_bytes() + rest)
    assert read_journal(journal) == lines
    assert [line["step"] for line in go(steps=4, resume=True).history] == [1, 2, 2, 3, 4, 4]
    journal.write_text("[" * 10**5 + "]" * 10**5 + "}\n")
    with pytest.raises(InputError, match="line 1 is damaged"):
        read_journal(journal)


def test_a_flipped_bit_of_a_checkpoint_is_found_before_any_step(go, cache):
    go(steps=2)
    for name in ("trained.safetensors", "optimizer.safetensors", "state.json"):
        path = cache / "run" / "checkpoints" / "step-00000002" / name
        before = path.read_bytes()
        for where in (0.1, 0.5, 0.95):
            flip(path, int(where * (len(before) - 1)), 2)
            with pytest.raises(InputError, match=f"{name}: not readable .*; train in another folder") as caught:
                go(steps=4, resume=True)
            assert "\n" not in str(caught.value)
            if name != "optimizer.safetensors":
                with pytest.raises(InputError, match=f"{name}: not readable"):
                    load_run(cache / "run")
            path.write_bytes(before)


def test_a_readout_of_a_run_keeps_the_checkpoint_from_which_it_was_opened(go, cache):
    go(steps=2)
    run = cache / "run"
    before = open_readout(run)
    # The training goes on, and writes a better checkpoint in place of the one that was opened.
    trained = read_tensors(RunFolder(run).best, TRAINED)[TRAINED]
    model = load_run(run).fpt
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    with torch.no_grad():
        model.output.weight[1] += 1
    optimizer = torch.optim.Adam([model.output.weight])
    save_checkpoint(run / "checkpoints", model, optimizer, trainer.State(step=4, best_step=4))
    with pytest.raises(InputError, match=r"step-00000002: missing.*run the command again"):
        load_part(before.task, before.parts[0], "cpu", run)
    after = open_readout(run)
    np.testing.assert_allclose(after.readout.coef[:, 0], before.readout.coef[:, 0] + 0.5, rtol=1e-5)
    weight = load_part(after.task, after.parts[0], "cpu", run).fpt.output.weight.double().numpy().T
    np.testing.assert_allclose(after.readout.coef, (weight[:, 1::2] - weight[:, ::2]) / 2)


def test_trained_tensors_of_another_shape_are_refused_and_not_broadcast(tmp_path):
    model, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 1)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    adam.step()
    save_checkpoint(tmp_path, other, torch.optim.Adam(other.parameters()), trainer.State(step=1, best_step=1))
    with pytest.raises(InputError, match="its tensors are not those that this run trains"):
        load_checkpoint(read_checkpoint(tmp_path / "step-00000001"), model)
    load_checkpoint(read_checkpoint(tmp_path / "step-00000001"), torch.nn.Linear(4, 1))
    adam.state[model.weight]["exp_avg"] = torch.zeros(1, 4)
    save_checkpoint(tmp_path, model, adam, trainer.State(step=2, best_step=2))
    with pytest.raises(InputError, match=r"optimizer\.safetensors: not of this run"):
        load_checkpoint(read_checkpoint(tmp_path / "step-00000002"), model, torch.optim.Adam(model.parameters()))


def test_a_changed_digit_of_a_configuration_or_a_result_is_found(go, cache):
    go(steps=2)
    for name, old, use in (
        ("config.json", '"batch": 8', lambda: load_run(cache / "run")),
        ("config.json", '"batch": 8', lambda: go(steps=4, resume=True)),
        ("run.json", '"steps": 2', lambda: go(steps=2)),
    ):
        path = cache / "run" / name
        before = path.read_text()
        path.write_text(before.replace(old, old[:-1] + "9"))
        assert path.read_text() != before
        with pytest.raises(InputError, match=f"{name}: damaged.* .checksum mismatch.; ") as caught:
            use()
        assert "\n" not in str(caught.value)
        path.write_text(before)
    assert go(steps=2).steps == 2


def test_a_regression_does_not_depend_on_the_unit_of_its_targets(cache, tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 6, 2)).astype(np.float32)
    y = np.stack([x[:, -1, 0], x[:, 0, 1]], axis=1) + 0.1 * draw.normal(size=(200, 2))
    settings = {**QUICK, "steps": 40, "eval_every": 20, "learning_rate": 1e-2, "dropout": 0.0}
    runs = {}
    for name, values in {"plain": y, "far": 5000 * y + [-3e5, 200]}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=values.astype(np.float32))
        runs[name] = train(str(tmp_path / f"{name}.npz"), **settings)
    plain, far = runs.values()
    np.testing.assert_allclose(far.losses, plain.losses, rtol=2e-2)
    assert plain.metric == "R²" and plain.losses[-1] < 0.6 * plain.losses[0]
    assert 0.3 < plain.test_score < 1 and far.test_score == pytest.approx(plain.test_score, abs=0.02)
    assert all("accuracy" not in line for line in plain.history)


def test_other_processes_end_quietly_when_the_first_one_fails():
    script = textwrap.dedent("""
        import sys
        from reservoir import InputError
        from reservoir.training.trainer import processes

        try:
            with processes() as group, group.first_alone():
                if group.first:
                    raise InputError("no such folder")
        except InputError as error:
            print(error)
            sys.exit(2)
    """)
    first, second = pair(script, forked=True)
    assert first[:2] == (2, "no such folder\n")
    assert second[:2] == (2, "the first process failed; see its message\n")
    assert "Traceback" not in first[2] + second[2]


def test_a_pipe_in_place_of_trained_tensors_is_refused(go, cache):
    last = RunFolder(go(steps=2).path).last
    (last.path / TRAINED).unlink()
    os.mkfifo(last.path / TRAINED)
    with pytest.raises(InputError, match="not a regular file"):
        read_tensors(last, TRAINED)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda config: config["settings"].update(spec={})),
        ("config.json", lambda config: config.clear()),
        ("config.json", lambda config: config.update(scaling=5)),
        ("config.json", lambda config: config["settings"].update(train=[5])),
        ("config.json", lambda config: config["settings"]["spec"].update(compute="os")),
        ("config.json", lambda config: config["settings"]["spec"]["task"]["parameters"].update(columns=["a", "a"])),
        *((STATE, lambda state, change=change: state.update(change)) for change in STATES),
        ("metrics.jsonl", lambda line: line.update(loss="x")),
        ("metrics.jsonl", lambda line: line.pop("step")),
        ("run.json", lambda result: result["evaluation"].update(auc="x")),
        ("run.json", lambda result: result.pop("floor")),
    ],
)
def test_a_run_with_values_of_another_type_is_refused_in_one_line(go, cache, file, change):
    path = cache / "run" / file
    go(steps=2)
    values = json.loads(path.read_text().splitlines()[0]) if file == "metrics.jsonl" else read_checked(path)
    values.pop("sha256", None)
    change(values)
    path.write_text(checked_line(values))
    found = []
    for action in (load_run, open_readout, lambda _: go(steps=4, resume=True)):
        with suppress(InputError):
            found.append(action(cache / "run"))
    assert len(found) < 3
    assert file == "config.json" or not any(hasattr(each, "best_step") for each in found)
