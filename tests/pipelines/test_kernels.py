"""Series by default: every stage works with random kernels alone, and a fit of mini shows what its block adds."""

import numpy as np
import pytest
import torch
from reservoir_pipelines import ReservoirClassifier, explain, export, extract, fit, predict, train
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.prediction.export import build

from reservoir import InputError
from tests.files import contents
from tests.pipelines.test_export import can_export, expected, read

ROWS, LONGEST = 60, 40


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Return a file of series of two channels and several lengths, one per row, of two frequencies."""
    draw = np.random.default_rng(0)
    y, lengths = np.arange(ROWS) % 2, draw.integers(25, LONGEST + 1, ROWS)
    lengths[0] = LONGEST
    phase = draw.uniform(0, 6, (ROWS, 1)) + np.arange(LONGEST) * (0.5 + 0.4 * y[:, None])
    x = np.stack([np.sin(phase), np.cos(phase)], axis=2) + draw.normal(0, 0.2, (ROWS, LONGEST, 2))
    file = tmp_path_factory.mktemp("series") / "series.npz"
    np.savez(file, x=x.astype(np.float32), y=np.array(["slow", "fast"])[y], lengths=lengths)
    return file


@pytest.fixture(scope="module")
def features(series, tmp_path_factory):
    return extract(str(series), cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def fitted(features):
    return fit(features)


def test_the_entry_records_the_family_its_settings_and_the_seed(series, features, tmp_path):
    spec = features.store.entry.spec
    assert (spec.backbone.family, spec.init.kind, spec.input.kind) == ("kernels", "random", "kernels")
    assert spec.compute == "float32" and features.store.entry.path.name.startswith("kernels-")
    others = [
        extract(str(series), cache=tmp_path, limit=8, layers="embed", pool="max", backbone=backbone, seed=seed)
        for backbone, seed in (("kernels", 0), ("kernels", 1), ("kernels:width=64", 0), ("kernels:width=72", 0))
    ]
    assert len({other.store.entry.key for other in others}) == 4


def test_a_readout_predicts_explains_and_tells_no_transformer(series, fitted, capsys, tmp_path):
    assert fitted.best.test_score > 0.8 and fitted.layer_scores == ()
    rows = list(predict(fitted.saved, series))
    assert np.mean([row.label == row.truth for row in rows]) > 0.8
    assert explain(fitted.saved, series, out=tmp_path / "why.png").plot.is_file()
    assert "transformer" not in capsys.readouterr().err


def test_the_module_equals_predict(series, fitted):
    with np.load(series) as arrays, torch.no_grad():
        x, lengths = arrays["x"], arrays["lengths"]
        logits = build(Bundle.load(fitted.saved), fitted.saved)(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_allclose(read(logits.numpy(), fitted.saved), expected(fitted.saved, series), atol=1e-4)


@can_export
def test_the_program_equals_predict_for_rows_of_any_length(series, fitted, tmp_path):
    done = export(fitted.saved, out=tmp_path / "m.pt2")
    assert done.tokens[1] == LONGEST
    run = torch.export.load(done.model).module()
    with np.load(series) as arrays:
        x, lengths = arrays["x"], arrays["lengths"]
    logits = run(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_allclose(read(logits.numpy(), fitted.saved), expected(fitted.saved, series), atol=1e-4)


def test_workers_and_seeds_work_as_for_other_families(series, features, tmp_path):
    shared = extract(str(series), cache=tmp_path / "shared", workers=2)
    shards = [
        {name: data for name, data in contents(store.entry.path).items() if name.endswith(".h5")}
        for store in (features.store, shared.store)
    ]
    assert shards[0] and shards[0].keys() == shards[1].keys()
    other = extract(str(series), cache=tmp_path / "other", seed=1)
    columns = "+".join(f"{number}:{features.columns[0]}" for number in (1, 2))
    assert fit([features, other], columns=columns).best.test_score > 0.8


def test_a_classifier_has_the_same_default(series):
    with np.load(series) as arrays:
        rows = [x[:length] for x, length in zip(arrays["x"], arrays["lengths"], strict=True)]
        y = arrays["y"]
    model = ReservoirClassifier().fit(rows[:40], y[:40])
    assert model.score(rows[40:], y[40:]) > 0.8


def test_a_transformer_is_one_flag_away_and_its_block_is_compared_with_the_kernels(series, tmp_path):
    result = fit(extract(str(series), cache=tmp_path, backbone="mini", compute="float32"))
    assert [score.layer for score in result.layer_scores] == ["embed", "block01"]
    assert sum(score.difference_interval is not None for score in result.layer_scores) == 1


def test_training_needs_blocks(series, tmp_path):
    with pytest.raises(InputError, match="it has no blocks"):
        train(str(series), cache=tmp_path, backbone="kernels", steps=1)
