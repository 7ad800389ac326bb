"""A regression says how far off it is, how sure that is, and when it is no better than predicting the mean."""

import json

import numpy as np
import pytest
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fitting.fitters import make_fitter
from sklearn.metrics import mean_absolute_error, r2_score

from reservoir.options import FitOptions
from reservoir.readouts.evaluation import r2_interval

SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "embed,block01"}


def made(tmp_path, rows, noise, seed=0):
    """Return features of series whose target is their level, in degrees around 300, with noise."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 20, 2)).astype(np.float32)
    y = 300 + 10 * x[:, :, 0].mean(axis=1) + noise * draw.normal(size=rows)
    np.savez(tmp_path / "d.npz", x=x, y=y)
    return extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", **SMALL)


def test_a_regression_of_noise_is_compared_with_the_mean_and_warned_about(tmp_path, call, painted):
    features = made(tmp_path, 50, noise=1000)
    code, out, err = call("fit", features.entry, "--out", tmp_path / "fit", "--json")
    found = json.loads(out)
    mean = next(one for one in found["baselines"] if one["name"] == "the mean")
    assert code == 0 and (mean["readout"], mean["alpha"], mean["metric"]) == ("constant", None, "R²")
    y = {split: features[split].labels.ravel() for split in ("train", "valid", "test")}
    known = np.concatenate([y["train"], y["valid"]]).mean()
    assert mean["test_score"] == pytest.approx(r2_score(y["test"], np.full(len(y["test"]), known)), abs=1e-5)
    low, high = found["best"]["test_interval"]
    assert low < found["best"]["test_score"] < high and low < 0
    if found["best"]["test_score"] < 0:
        assert f"on {len(y['test'])} test rows is worse than predicting the mean" in err
    assert "This reservoir adds nothing to the mean." in err or found["best"]["valid_score"] > mean["valid_score"]
    assert (tmp_path / "fit" / "predicted.png").stat().st_size > 1000


def test_a_score_far_below_validation_is_warned_about(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("reservoir_pipelines.fitting.fit.FAR_BELOW", -1.0)
    done = fit(made(tmp_path, 200, noise=0.1), out=tmp_path / "fit")
    text = f"CAUTION: R² {done.best.test_score:.3f} on {len(done.evaluation.merits)} test rows is far below"
    assert capsys.readouterr().err.count(text) == 1


def test_errors_are_in_the_unit_of_the_label_with_an_interval(tmp_path, call):
    features = made(tmp_path, 300, noise=0.5)
    done = fit(features, out=tmp_path / "fit")
    y = features["test"].labels.ravel()
    truth, predicted = done.evaluation.values
    np.testing.assert_allclose(truth, y)
    assert done.evaluation.scores["mae"] == pytest.approx(mean_absolute_error(truth, predicted))
    assert done.best.test_interval[0] < done.best.test_score < done.best.test_interval[1]
    code, out, err = call("fit", features.entry)
    assert code == 0 and "CAUTION" not in err and "%" not in out.replace("95% interval", "")
    assert "mae, in the unit of the label" in out and "the mean" in out
    assert ["rows", str(len(y))] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_interval_is_that_of_a_bootstrap_over_rows(outputs):
    draw = np.random.default_rng(1)
    y = 1e4 + draw.normal(size=(120, outputs))
    predicted = y + 0.5 * draw.normal(size=(120, outputs))
    picks = draw.integers(120, size=(2000, 120))
    expected = np.quantile([r2_score(y[pick], predicted[pick]) for pick in picks], [0.025, 0.975])
    np.testing.assert_allclose(r2_interval(y, predicted), expected, atol=0.02)
    counts = np.full(120, 3)  # samples of a row are drawn together
    np.testing.assert_allclose(r2_interval(y.repeat(3, 0), predicted.repeat(3, 0), counts), expected, atol=0.02)
    assert r2_interval(y[:1], predicted[:1]) is None


@pytest.mark.parametrize(
    ("rows", "careful"), [({"train": 60, "valid": 40}, True), ({"train": 6000, "valid": 2000}, False)]
)
def test_few_rows_are_chosen_by_repeated_folds_within_one_standard_error(rows, careful):
    chosen = make_fitter(FitOptions(), 0, rows)
    assert (chosen.one_standard_error, chosen.repeats > 1, chosen.folds > 0) == (careful,) * 3
    assert not make_fitter(FitOptions(), 2, rows).one_standard_error
