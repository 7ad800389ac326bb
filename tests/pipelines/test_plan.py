"""plan and extract --dry-run: predicted cost, with an injected clock, and every option with its reason."""

import json

import numpy as np
import pytest
from reservoir_cache import folder_bytes
from reservoir_pipelines import extract, plan
from reservoir_pipelines.cli import run
from reservoir_pipelines.extraction import forecast
from scipy.io import wavfile

from tests.reservoir.models import save_with_extractor

SETTINGS = {"compute": "float32", "layers": "embed,final"}


@pytest.fixture
def costly(monkeypatch, tiny_gpt2):
    """Make a token that goes through the model, padding too, cost a millisecond of a clock that else stands still."""
    from reservoir.fpt import FPT

    now, plain = [0.0], FPT.features

    def features(self, x, lengths, columns):
        now[0] += 1e-3 * x.shape[0] * x.shape[1]
        return plain(self, x, lengths, columns)

    monkeypatch.setattr(FPT, "features", features)
    monkeypatch.setattr(forecast, "clock", lambda: now[0])
    return now, {"backbone": str(tiny_gpt2), **SETTINGS}


@pytest.fixture
def letters(tmp_path):
    """Return a table of 400 sequences of 5 to 60 letters."""
    draw = np.random.default_rng(0)
    rows = ["".join(draw.choice(list("acgt"), draw.integers(5, 61))) for _ in range(400)]
    path = tmp_path / "letters.csv"
    path.write_text("sequence,label\n" + "".join(f"{row},{row.count('a') > len(row) / 4:d}\n" for row in rows))
    return str(path)


def test_predicted_time_and_size_equal_those_of_the_extraction(costly, letters, cache):
    now, settings = costly
    settings |= {"patch": 1, "input": "gaussian"}
    found = plan(letters, **settings)
    assert not (cache / "features").exists()
    before = now[0]
    done = extract(letters, **settings)
    assert found.seconds == pytest.approx(now[0] - before, rel=0.2)
    assert found.rows == sum(done.rows.values()) == done.computed_rows == 400
    assert found.columns == len(done.columns)
    assert folder_bytes(done.store.entry.path) == pytest.approx(found.bytes, rel=0.2)
    assert 20 < found.tokens < 45 and found.padding < 0.15
    many = plan(letters, rows=4_000_000, workers=100, **settings)
    assert many.seconds == pytest.approx(100 * found.seconds, rel=0.1)
    assert many.bytes == pytest.approx(10_000 * found.bytes, rel=0.1)


def test_the_command_prints_a_table_or_json(costly, cache, capsys, tiny_gpt2):
    flags = ["--backbone", str(tiny_gpt2), "--compute", "float32", "--layers", "final", "--rows", "1000000000"]
    assert run(["plan", "digits", *flags, "--workers", "64"]) == 0
    out = capsys.readouterr().out
    assert "digits x tiny-gpt2-pretrained, 2 columns" in out
    assert "by 64 workers" in out
    assert run(["plan", "digits", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 10**9
    assert found["memory"] > 10**7
    assert run(["plan", "digits", "--rows", "0"]) == 2


def test_sounds_are_planned_as_the_samples_that_the_model_reads(cache, tmp_path):
    pytest.importorskip("soundfile")
    for n in range(10):
        (tmp_path / "calls" / f"{n % 2}").mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(n).normal(0, 3000, 800).astype(np.int16)
        wavfile.write(tmp_path / "calls" / f"{n % 2}" / f"{n}.wav", 16000, noise)
    model = {"backbone": str(save_with_extractor("wav2vec2", tmp_path / "model")), "compute": "float32"}
    found, done = plan(str(tmp_path / "calls"), **model), extract(str(tmp_path / "calls"), **model)
    assert done.store.entry.spec.input["kind"] == "native"
    assert found.columns == len(done.columns) and found.tokens == 79  # and not the 3 frames of a spectrum


def test_a_dry_run_prints_each_option_with_its_reason_and_computes_nothing(cache, call):
    code, out, _ = call("extract", "digits", "--dry-run", "--gain", "2", "--layers", "block01")
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert code == 0 and lines["gain"].split() == ["gain", "2.0", "given"]
    assert lines["layers"].split() == ["layers", "block01", "given"]
    assert lines["backbone"].split(maxsplit=2) == ["backbone", "mini", "comes with this package"]
    assert not (cache / "features").exists()
    found = json.loads(call("extract", "digits", "--dry-run", "--json")[1])
    assert found["pool"] == {"value": "last,mean", "why": "the last token, as in the paper, and the mean of all"}
    assert found["columns"]["value"][:2] == ["embed/last", "embed/mean"] and "columns" not in lines["gain"]
