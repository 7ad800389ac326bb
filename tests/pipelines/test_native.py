"""Texts through a pretrained model's own tokenizer, from file to prediction, with defaults only."""

import json
from pathlib import Path

import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict, train, tune
from reservoir_pipelines.cli import run
from reservoir_pipelines.training.run_folder import load_run
from scipy.io import wavfile

from reservoir import InputError
from tests.reservoir.models import WORDS, save_with_extractor, save_with_tokenizer


def write(path: Path, rows: int, *, labelled: bool = True, more: str = "") -> Path:
    draw = np.random.default_rng(0)
    with path.open("w") as file:
        for row in range(rows):
            words = [WORDS[i] for i in draw.integers(0, len(WORDS), draw.integers(1, 4))]
            record = {"text": " ".join([*words, "dog" if row % 2 else "cat"]) + more}
            file.write(json.dumps(record | ({"label": ["feline", "canine"][row % 2]} if labelled else {})) + "\n")
    return path


def test_a_file_and_a_folder_are_enough(cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    file = write(tmp_path / "pets.jsonl", 120)
    done = extract(str(file), backbone=str(folder))
    spec = done.store.entry.spec
    assert spec.input["kind"] == "native" and {"tokenizer", "embeddings"} < set(spec.input)
    assert done.columns[:2] == ("embed/cls", "embed/mean") and done.columns[-1] == "final/mean"
    message = capfd.readouterr().err
    assert "read by the model's own tokenizer, of 14 tokens" in message and "symbols" not in message
    drawn = extract(str(file), backbone=str(folder), input="gaussian", layers="embed", pool="mean")
    assert drawn.store.entry.spec.input["kind"] == "gaussian" and drawn.entry != done.entry
    fit(done, columns="embed/mean+final/cls", out=tmp_path / "readout")
    # New texts may have letters that no row had, and more than any row had.
    new = write(tmp_path / "new.jsonl", 8, labelled=False, more=" 漢 and" * 9)
    answers = list(predict(tmp_path / "readout", new))
    assert len(answers) == 8 and {answer.label for answer in answers} <= {"feline", "canine"}
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"cow"', '"ox"'))
    with pytest.raises(InputError, match=r"the tokenizer or the embeddings of .* have changed"):
        list(predict(tmp_path / "readout", new))
    assert extract(str(file), backbone=str(folder)).entry != done.entry


def test_sounds_are_trained_on_and_searched_as_the_model_hears_them(cache: Path, tmp_path: Path):
    pytest.importorskip("soundfile")
    folder = save_with_extractor("wav2vec2", tmp_path / "model")
    draw = np.random.default_rng(0)
    for row in range(30):
        path = tmp_path / "sounds" / ["low", "high"][row % 2] / f"{row}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        wavfile.write(path, 16_000, draw.normal(0, 1000, 1600).astype(np.int16))
    sounds = str(tmp_path / "sounds")
    done = train(sounds, backbone=str(folder), steps=1, batch=2)
    assert load_run(done.path, "cpu").reader
    found = tune(sounds, backbone=str(folder), trials=1)
    assert "--waveform --layers all --pool mean,std" in found.commands[0]


def test_letters_without_words_stay_symbols(cache: Path, tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    draw = np.random.default_rng(0)
    strings = ["".join(draw.choice(list("ACGT"), 12)) for _ in range(60)]
    lines = [f"{text},{text[0] in 'AC'}" for text in strings]
    (tmp_path / "dna.csv").write_text("\n".join(["sequence,label", *lines]))
    done = extract(str(tmp_path / "dna.csv"), backbone=str(folder), layers="embed", pool="mean")
    assert done.store.entry.spec.input["kind"] == "kernels"
    fit(done, columns="embed/mean", out=tmp_path / "readout")
    (tmp_path / "new.csv").write_text("sequence\nACGTACGTACGT\nTTTT\n")
    assert len(list(predict(tmp_path / "readout", tmp_path / "new.csv"))) == 2
    (tmp_path / "new.csv").write_text("sequence\nACGT\nACJT\n")
    assert len(list(predict(tmp_path / "readout", tmp_path / "new.csv"))) == 2  # J is the unknown symbol


@pytest.mark.parametrize("broken", ["code", "json", "none"])
def test_a_tokenizer_that_would_run_code_or_is_none_is_one_line(
    broken: str, cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    sign = tmp_path / "ran"
    if broken == "code":
        (folder / "tokenizer.json").unlink()
        (folder / "evil.py").write_text(f"open({str(sign)!r}, 'w')\nclass Evil: pass\n")
        config = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    else:
        (folder / "tokenizer.json").write_text("{" if broken == "json" else json.dumps({"model": {"type": "None"}}))
    file = write(tmp_path / "pets.jsonl", 20)
    code = run(["extract", str(file), "--backbone", str(folder), "--input", "native"])
    error = capfd.readouterr().err.strip()
    assert code == 2 and "its tokenizer is not readable" in error and "Traceback" not in error
    assert not sign.exists()
