"""Sweeps of train: validation chooses among kept runs, and test is looked at once."""

import json

import pytest
from reservoir_pipelines import train
from reservoir_pipelines.cli import run as command
from reservoir_pipelines.training.run_folder import RunFolder

from reservoir.errors import InputError

TINY = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=16,initializer_range=0.3"
ROWS = {"train_rows": 64, "valid_rows": 40, "test_rows": 30}
QUICK = {"init": "random", "device": "cpu", "compute": "float32", "backbone": TINY, "parameters": ROWS}
SHORT = {"steps": 20, "eval_every": 10, "batch": 16, **QUICK}


def test_a_sweep_returns_the_run_that_does_best_on_validation_and_looks_at_test_once(cache, tmp_path):
    swept = train("bit-xor", sweep={"learning_rate": [1e-5, 1e-2], "dropout": 0.0}, **SHORT)
    alone = {
        rate: train("bit-xor", learning_rate=rate, dropout=0.0, run=tmp_path / f"{rate}", **SHORT)
        for rate in (1e-5, 1e-2)
    }
    best = max(alone, key=lambda rate: (alone[rate].valid_score, -alone[rate].valid_loss))
    assert swept.test_score == alone[best].test_score
    assert [row["learning_rate"] for row in swept.swept] == [best, *(rate for rate in alone if rate != best)]
    for row in swept.swept:
        assert (row["valid_score"], row["dropout"]) == (alone[row["learning_rate"]].valid_score, 0.0)
    tested = [RunFolder(swept.path.parent / row["run"]).result["test_score"] is not None for row in swept.swept]
    assert tested == [True, False]
    before = {row["run"]: (RunFolder(swept.path.parent / row["run"]).path / "metrics.jsonl").stat().st_mtime_ns
              for row in swept.swept}  # fmt: skip
    again = train("bit-xor", sweep={"learning_rate": [1e-5, 1e-2], "dropout": 0.0}, **SHORT)
    assert again == swept
    after = {run: (RunFolder(swept.path.parent / run).path / "metrics.jsonl").stat().st_mtime_ns for run in before}
    assert after == before  # no step was taken
    plain = train("bit-xor", learning_rate=swept.swept[1]["learning_rate"], dropout=0.0, resume=True, **SHORT)
    assert plain.test_score == alone[swept.swept[1]["learning_rate"]].test_score  # kept, and finished when asked for


def test_the_command_prints_every_run_and_refuses_what_is_no_number(cache, capsys):
    flags = ["--backbone", TINY, "--init", "random", "--steps", "4", "--eval-every", "4", "--device", "cpu"]
    rows = [part for name, count in ROWS.items() for part in ("--param", f"{name}={count}")]
    line = ["train", "bit-xor", *flags, *rows, "--sweep", "learning_rate=1e-3,1e-2", "--sweep", "dropout=0"]
    assert command([*line, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["swept"]) == 2
    assert command(line) == 0
    assert "learning_rate" in capsys.readouterr().out
    for wrong, says in (
        ("steps=1,2", "steps is none of batch, accumulate, learning_rate"),
        ("batch=a,b", "give numbers"),
        ("batch=0,8", "--batch 0: give a whole number"),
    ):
        assert command([*line[:-4], "--sweep", wrong]) == 2
        assert says in capsys.readouterr().err


def test_a_sweep_whose_runs_all_diverge_is_an_error(cache):
    with pytest.raises(InputError, match="every run diverged before its first validation"):
        train("bit-xor", sweep={"clip": [1.0, 2.0]}, bound=1e-9, **SHORT)
