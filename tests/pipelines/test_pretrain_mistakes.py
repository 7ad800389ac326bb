"""Mistakes around a pretraining: each is told in one line, and nothing that was made is lost or claimed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from reservoir_pipelines.cli import run
from reservoir_pipelines.pretraining import pretrain
from reservoir_pipelines.pretrains.steps import Steps
from safetensors.torch import load_file

TINY = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"
PLAIN = {"device": "cpu", "compute": "float32"}
SMALL = {**PLAIN, "backbone": TINY, "context": 24, "short": 8, "batch_tokens": 96, "steps": 3}


@pytest.fixture
def text(tmp_path):
    """Return a file of 6 kB."""
    path = tmp_path / "letters.txt"
    path.write_bytes(np.random.default_rng(0).choice(list(b"aeiou "), 6000).astype(np.uint8).tobytes())
    return path


@pytest.fixture
def call(capfd):
    """Run a command in this process; return its exit code, stdout and stderr."""

    def calling(*arguments):
        code = run([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return calling


@pytest.mark.parametrize("lost", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_finished_one_that_lost_a_file_is_written_again(lost, text, tmp_path, monkeypatch):
    done = pretrain(str(text), out=tmp_path / "model", **SMALL)
    before = load_file(Path(done.folder) / "model.safetensors")
    (Path(done.folder) / lost).unlink()

    def never(*_arguments):
        raise AssertionError

    monkeypatch.setattr(Steps, "_step", never)
    assert pretrain(str(text), out=tmp_path / "model", **SMALL) == done
    after = load_file(Path(done.folder) / "model.safetensors")
    assert (Path(done.folder) / lost).is_file()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
