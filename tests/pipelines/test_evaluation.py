"""Evaluations: every metric equals scikit-learn's on the same labels, in tables, JSON and pictures."""

import json
import re

import h5py
import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from sklearn import metrics
from sklearn.calibration import calibration_curve

from reservoir import InputError
from reservoir.readouts.evaluation import evaluate_classes, evaluate_values, reliability

SMALL = {"layers": "block01", "pool": "mean"}


def test_metrics_of_classes_equal_scikit_learn():
    draw = np.random.default_rng(0)
    y, predicted = draw.choice(3, 200, p=[0.7, 0.2, 0.1]), draw.integers(0, 3, 200)
    found = evaluate_classes(y, predicted, ["a", "b", "c", "never"])
    assert found.scores == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(y, predicted),
            "majority_baseline": np.bincount(y).max() / 200,
            "balanced_accuracy": metrics.balanced_accuracy_score(y, predicted),
            "macro_f1": metrics.f1_score(y, predicted, average="macro"),
        }
    )
    assert list(found.recall.values()) == pytest.approx(metrics.recall_score(y, predicted, average=None).tolist())
    assert list(found.recall) == ["a", "b", "c"]
    np.testing.assert_array_equal(found.confusion[:3, :3], metrics.confusion_matrix(y, predicted))
    assert json.loads(json.dumps(found.to_dict()))["confusion"][3] == [0, 0, 0, 0]


def test_reliability_equals_the_calibration_curve_of_scikit_learn():
    draw = np.random.default_rng(0)
    sure = draw.uniform(0.5, 1, 500)
    right = draw.random(500) < sure**2
    share, mean = calibration_curve(right, sure, n_bins=10)
    found = np.array(reliability(sure, right))
    np.testing.assert_allclose(found[:, 1:], np.stack([mean, share], axis=1))
    assert found[:, 0].sum() == 500
    assert reliability(np.ones(5), np.arange(5) > 2) == ()


def test_the_most_common_answer_to_each_of_several_labels_scores_no_better_than_chance():
    draw = np.random.default_rng(0)
    y = np.stack([draw.random(200) < 0.05, draw.random(200) < 0.9], axis=1).astype(int)
    common = np.repeat([[0, 1]], 200, axis=0)
    found = evaluate_classes(y, common, ["no", "yes"], common * 0.8 + 0.1).scores
    assert found["accuracy"] == pytest.approx(found["majority_baseline"])
    assert found["accuracy_of_label_0"] == pytest.approx(1 - y[:, 0].mean())
    assert found["balanced_accuracy"] == found["auc"] == 0.5
    assert found["macro_f1"] == pytest.approx(
        np.mean([metrics.f1_score(y[:, n], common[:, n], average="macro", zero_division=0) for n in range(2)])
    )
    tokens = evaluate_classes(np.repeat(y, 5, axis=1), np.repeat(common, 5, axis=1), ["no", "yes"]).scores
    assert tokens["majority_baseline"] < 0.6 and "accuracy_of_label_0" not in tokens


def test_two_classes_have_an_auc_and_regressions_have_errors():
    draw = np.random.default_rng(0)
    y, chances = draw.integers(0, 2, 100), draw.random(100)
    found = evaluate_classes(y, (chances > 0.5).astype(int), ["no", "yes"], chances)
    assert found.scores["auc"] == pytest.approx(metrics.roc_auc_score(y, chances))
    assert "auc" not in evaluate_classes(y * 0, y * 0, ["no", "yes"], chances).scores
    values, near = draw.normal(size=(50, 2)), draw.normal(size=(50, 2))
    assert evaluate_values(values, near).scores == pytest.approx(
        {
            "R²": metrics.r2_score(values, near),
            "rmse": metrics.root_mean_squared_error(values, near),
            "mae": metrics.mean_absolute_error(values, near),
            **{f"R²_of_label_{n}": metrics.r2_score(values[:, n], near[:, n]) for n in range(2)},
            **{f"rmse_of_label_{n}": metrics.root_mean_squared_error(values[:, n], near[:, n]) for n in range(2)},
        }
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory, tiny_gpt2):
    """Return what fits a readout of own data of a kind and writes labelled new sequences: (fit, file)."""
    folder = tmp_path_factory.mktemp("evaluation")
    draw = np.random.default_rng(0)
    made = {}

    def make(kind):
        if kind not in made:
            x = draw.normal(size=(160, 8, 2)).astype(np.float32)
            level = x[:, :, 0].mean(axis=1)
            y = {"classes": np.where(level > 0, "up", "down"), "values": 50 + level}[kind]
            np.savez(folder / f"{kind}.npz", x=x[:120], y=y[:120])
            np.savez(folder / f"{kind}-new.npz", x=x[120:], y=y[120:])
            features = extract(str(folder / f"{kind}.npz"), backbone=str(tiny_gpt2), cache=folder / "cache", **SMALL)
            made[kind] = fit(features, columns="block01/mean", alphas="1:100:3"), folder / f"{kind}-new.npz"
        return made[kind]

    return make


def test_a_fit_is_evaluated_on_test(own, painted):
    done, _ = own("classes")
    assert done.to_dict()["best"]["test_accuracy"] == done.best.test_score
    values = done.to_dict()["evaluation"]
    assert values["accuracy"] == done.best.test_score
    assert {"majority_baseline", "balanced_accuracy", "macro_f1", "auc", "recall", "confusion"} <= values.keys()
    assert sum(map(sum, values["confusion"])) == values["samples"]
    assert (done.saved.parent / "confusion.png").stat().st_size > 2000


def test_scores_name_their_metric_and_regressions_are_not_in_percent(own, call):
    done, _ = own("values")
    best = done.to_dict()["best"]
    assert done.best.metric == best["metric"] == "R²" and "test_accuracy" not in best
    assert done.evaluation.scores.keys() == {"R²", "rmse", "mae"}
    assert done.results.read_text().splitlines()[1].split(",")[3] == "R²"
    code, out, _ = call("fit", done.entry, "--columns", "block01/mean", "--alphas", "1:100:3")
    assert code == 0 and not re.search(r"\d%", out.replace("95% interval", "")) and f"{done.best.test_score:.3f}" in out
    assert "rmse" in out and "mae" in out
    code, out, _ = call("fit", own("classes")[0].entry, "--columns", "block01/mean", "--alphas", "1:100:3")
    assert code == 0 and "accuracy" in out and "balanced accuracy" in out and "recall" in out


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_predictions_of_a_labelled_file_are_evaluated(own, kind, call):
    """One JSON value, class names beside probabilities, and how well the labels were met."""
    done, file = own(kind)
    code, out, _ = call("predict", done.saved, file, "--json")
    assert code == 0
    found = json.loads(out)
    truth = np.load(file)["y"]
    labels = np.array(found["predictions"]["label"])
    if kind == "classes":
        assert found["evaluation"]["accuracy"] == pytest.approx(metrics.accuracy_score(truth, labels))
        ups = np.array(found["predictions"]["p_up"])
        assert found["evaluation"]["auc"] == pytest.approx(metrics.roc_auc_score(truth == "up", ups))
        assert ups + found["predictions"]["p_down"] == pytest.approx(1)
    else:
        assert found["evaluation"]["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, labels))
    code, out, err = call("predict", done.saved, file)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["label"] for line in lines] == found["predictions"]["label"]
    assert [line["truth"] for line in lines] == truth.tolist() == found["predictions"]["truth"]
    assert ("accuracy: " if kind == "classes" else "rmse, in the unit of the label: ") in err


def test_unknown_labels_count_as_wrong_and_other_shapes_are_refused(own, tmp_path):
    done, file = own("classes")
    arrays = dict(np.load(file))
    np.savez(tmp_path / "other.npz", x=arrays["x"], y=np.where(np.arange(40) < 10, "sideways", arrays["y"]))
    found = evaluate_predictions(list(predict(done.saved, tmp_path / "other.npz")))
    assert found.classes == ("down", "up", "sideways") and found.recall["sideways"] == 0
    np.savez(tmp_path / "wide.npz", x=arrays["x"], y=np.zeros((40, 2)))
    with pytest.raises(InputError, match=r"y has the shape \(40, 2\)"):
        list(predict(done.saved, tmp_path / "wide.npz"))
    with h5py.File(tmp_path / "new.h5", "w") as hdf:
        hdf["x"], hdf["y"] = arrays["x"], arrays["y"].astype("S4")
    expected = evaluate_predictions(list(predict(done.saved, file)))
    assert evaluate_predictions(list(predict(done.saved, tmp_path / "new.h5"))).to_dict() == expected.to_dict()
    np.savez(tmp_path / "plain.npz", x=arrays["x"])
    assert evaluate_predictions(list(predict(done.saved, tmp_path / "plain.npz"))) is None


def test_sequences_without_lengths_are_refused_if_the_fit_had_several(tiny_gpt2, tmp_path):
    draw = np.random.default_rng(0)
    x, lengths = draw.normal(size=(90, 12, 1)).astype(np.float32), draw.integers(3, 13, 90)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(90) % 2, lengths=lengths)
    features = extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), cache=tmp_path / "cache", **SMALL)
    saved = fit(features, alphas="1:10:2").saved
    np.savez(tmp_path / "new.npz", x=x[:5])
    with pytest.raises(InputError, match="no array 'lengths'"):
        list(predict(saved, tmp_path / "new.npz"))
    np.savez(tmp_path / "new.npz", x=x[:5], lengths=lengths[:5])
    assert len(list(predict(saved, tmp_path / "new.npz"))) == 5


def test_a_choice_by_few_validation_rows_is_warned_about(tiny_gpt2, tmp_path, capsys):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 6, 1)).astype(np.float32)
    split = np.array(["train", "test"])[np.arange(60) % 2]
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(60) % 2, split=split)
    features = extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), cache=tmp_path / "cache", **SMALL)
    capsys.readouterr()
    fit(features, select="valid")
    valid = features["valid"].rows
    assert f"CAUTION: {valid} validation rows are too few to choose among 25 readouts" in capsys.readouterr().err
    folded = fit(features, select="cv5")
    assert fit(features).table == folded.table
    assert "CAUTION" not in capsys.readouterr().err
