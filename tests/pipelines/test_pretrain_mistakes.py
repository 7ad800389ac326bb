"""Mistakes around a pretraining end in one line, and no file that was made is lost."""

from pathlib import Path

import numpy as np
import pytest
import torch
from reservoir_pipelines import pretrain
from safetensors.torch import load_file

from reservoir.pretraining.language_model import LanguageSteps

pytestmark = pytest.mark.usefixtures("few_bits")
TINY = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"
PLAIN = {"device": "cpu", "compute": "float32"}
BERT = "bert-base-uncased:num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24"
SMALL = {**PLAIN, "backbone": TINY, "context": 24, "short": 8, "batch_tokens": 96, "steps": 3}


@pytest.fixture
def text(tmp_path):
    """Return a file of 6 kB."""
    path = tmp_path / "letters.txt"
    path.write_bytes(np.random.default_rng(0).choice(list(b"aeiou "), 6000).astype(np.uint8).tobytes())
    return path


def assert_refused(call, words, *arguments):
    code, out, err = call("pretrain", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert err.startswith("reservoir: ") and words in err


@pytest.mark.parametrize("lost", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_finished_one_that_lost_a_file_is_written_again(lost, text, tmp_path, monkeypatch):
    done = pretrain(str(text), out=tmp_path / "model", **SMALL)
    before = load_file(Path(done.folder) / "model.safetensors")
    (Path(done.folder) / lost).unlink()

    def never(*_arguments):
        raise AssertionError

    monkeypatch.setattr(LanguageSteps, "take", never)
    assert pretrain(str(text), out=tmp_path / "model", **SMALL) == done
    after = load_file(Path(done.folder) / "model.safetensors")
    assert (Path(done.folder) / lost).is_file()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


BITS = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=128"


def test_bit_memory_with_another_vocabulary_leaves_the_model(call, tmp_path):
    flags = ["bit-memory", "--backbone", BITS, "--device", "cpu", "--steps", 1, "--batch-tokens", 240]
    flags += ["--out", tmp_path / "bits", "--cache", tmp_path / "cache"]
    assert call("pretrain", *flags, "--vocabulary", 40)[0] == 0
    before = (tmp_path / "bits" / "model.safetensors").read_bytes()
    words = "bits: it has a model with vocabulary = 40, not 41; name another folder"
    assert_refused(call, words, *flags, "--vocabulary", 41)
    assert (tmp_path / "bits" / "model.safetensors").read_bytes() == before
    (tmp_path / "bits" / "model.safetensors").unlink()
    assert call("pretrain", *flags, "--vocabulary", 40)[0] == 0
    assert (tmp_path / "bits" / "model.safetensors").read_bytes() == before
