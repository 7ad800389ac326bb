"""Evaluations and baselines: metrics equal scikit-learn's on the same labels, in tables, JSON and plots."""

import itertools
import json
import re
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pytest
from reservoir_pipelines import extract, fit, predict, report, train
from reservoir_pipelines.commands import stage_commands
from reservoir_pipelines.commands.stage_commands import fit_tables
from reservoir_pipelines.fitting.candidates import make_fitter
from reservoir_pipelines.fitting.fit_data import FitData
from reservoir_pipelines.fitting.results import Against
from reservoir_pipelines.fitting.source import EntryView
from reservoir_pipelines.fitting.statistics import summaries
from reservoir_pipelines.fitting.verdicts import threshold_cautions
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from reservoir_pipelines.tables import Lines, evaluation_facts
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir import InputError
from reservoir.options import FitOptions
from reservoir.plan.candidates import choose_folds
from reservoir.readouts.evaluation import (
    Evaluation,
    accuracy_interval,
    evaluate_classes,
    evaluate_values,
    r2_interval,
    reliability,
)
from reservoir.readouts.paired import p_value_of_difference
from reservoir.tasks.texts import texts_of
from tests.tasks.samples import write_csv

SMALL = {"layers": "block01", "pool": "mean"}


def test_metrics_of_classes_equal_scikit_learn():
    draw = np.random.default_rng(0)
    y, predicted = draw.choice(3, 200, p=[0.7, 0.2, 0.1]), draw.integers(0, 3, 200)
    found = evaluate_classes(y, predicted, ["a", "b", "c", "never"])
    expected = {name: getattr(metrics, f"{name}_score")(y, predicted) for name in ("accuracy", "balanced_accuracy")}
    expected["majority_baseline"] = np.bincount(y).max() / 200
    expected["macro_f1"] = metrics.f1_score(y, predicted, average="macro")
    assert found.scores == pytest.approx(expected)
    assert list(found.recall.values()) == pytest.approx(metrics.recall_score(y, predicted, average=None).tolist())
    assert list(found.recall) == ["a", "b", "c"]
    np.testing.assert_array_equal(found.confusion[:3, :3], metrics.confusion_matrix(y, predicted))
    assert json.loads(json.dumps(found.to_dict()))["confusion"][3] == [0, 0, 0, 0]


def test_the_interval_of_tokens_belongs_to_their_accuracy_if_sequences_differ_in_length():
    draw = np.random.default_rng(0)
    counts = draw.permutation(np.repeat([2, 50], 100))
    right = draw.random(counts.sum()) < np.repeat(np.where(counts == 2, 0.5, 0.9), counts)
    found = evaluate_classes(right * 1, np.ones(len(right), int), ["no", "yes"], counts=counts)
    of_row = np.stack([np.add.reduceat(right * 1, np.cumsum(counts) - counts), counts])
    drawn = of_row[:, draw.integers(200, size=(2000, 200))].sum(axis=2)
    assert found.scores["accuracy"] == pytest.approx(right.mean()) == found.row_scores.mean()
    assert found.interval == pytest.approx(np.quantile(drawn[0] / drawn[1], [0.025, 0.975]), abs=0.003)


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
    each = [metrics.f1_score(y[:, n], common[:, n], average="macro", zero_division=0) for n in range(2)]
    assert found["macro_f1"] == pytest.approx(np.mean(each))
    tokens = evaluate_classes(np.repeat(y, 5, axis=1), np.repeat(common, 5, axis=1), ["no", "yes"]).scores
    assert tokens["majority_baseline"] < 0.6 and "accuracy_of_label_0" not in tokens


def test_two_classes_have_an_auc_and_regressions_have_errors():
    draw = np.random.default_rng(0)
    y, chances = draw.integers(0, 2, 100), draw.random(100)
    found = evaluate_classes(y, (chances > 0.5).astype(int), ["no", "yes"], chances)
    assert found.scores["auc"] == pytest.approx(metrics.roc_auc_score(y, chances))
    assert "auc" not in evaluate_classes(y * 0, y * 0, ["no", "yes"], chances).scores
    values, near = draw.normal(size=(50, 2)), draw.normal(size=(50, 2))
    scores = {"R²": metrics.r2_score, "rmse": metrics.root_mean_squared_error, "mae": metrics.mean_absolute_error}
    expected = {name: score(values, near) for name, score in scores.items()}
    for n, name in itertools.product(range(2), ("R²", "rmse")):
        expected[f"{name}_of_label_{n}"] = scores[name](values[:, n], near[:, n])
    found = evaluate_values(values, near)
    assert found.scores == pytest.approx(expected)
    # An error over several outputs is in no unit, also in the summary of a fit.
    for evaluation in (found, Evaluation.from_dict(found.to_dict())):
        names = [name for name, _ in evaluation_facts(evaluation, "R²")]
        assert names[:3] == ["R²", "rmse, mean over the outputs", "mae, mean over the outputs"]
    of_one_output = evaluate_values(values[:, :1], near[:, :1])
    assert [name for name, _ in evaluation_facts(of_one_output)][1] == "rmse, in the unit of the label"
    assert "outputs" not in of_one_output.to_dict()


@pytest.fixture(scope="module")
def own(tmp_path_factory, tiny_gpt2):
    """Return a function that fits a readout to data of a kind and writes labelled new sequences: (fit, file)."""
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


def test_each_readout_has_one_line_even_if_the_raw_input_is_also_a_baseline(own, tmp_path):
    done = fit(own("values")[0].entry, columns="block01/mean,raw", out=tmp_path)
    settings = [tuple(line.split(",")[:3]) for line in done.results.read_text().splitlines()]
    assert len(settings) == len(set(settings)) and "raw" in {result.name for result in done.table}


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


def test_thresholds_of_held_out_rows_keep_a_rate_of_false_positives(own, call, tmp_path):
    done, _ = own("classes")
    rows = pd.read_csv(done.predictions)
    held_out = np.sort(rows[(rows.split != "test") & (rows.label == "down")].best_probability)
    assert 19 <= len(held_out) < 99  # enough for 5%, not for 1%
    (point,) = done.operating_points
    assert (point.rate, point.negatives) == (0.05, len(held_out))
    assert point.threshold == pytest.approx(held_out[int(np.ceil((len(held_out) + 1) * 0.95)) - 1])
    test = rows[rows.split == "test"]
    exceeds = test.best_probability > point.threshold
    assert point.recall == exceeds[test.label == "up"].mean()
    assert point.false_positive_rate == exceeds[test.label == "down"].mean()
    assert point.recall_interval == accuracy_interval(exceeds[test.label == "up"].to_numpy())
    _, out, _ = call("fit", done.entry, "--columns", "block01/mean", "--alphas", "1:100:3", "--out", tmp_path / "fit")
    assert f"thresholds set on {len(held_out)} held-out rows of down" in out and "probability of up above" in out
    report([tmp_path / "fit"], out=tmp_path / "page.html")
    assert "probability of up above" in (tmp_path / "page.html").read_text()
    assert own("values")[0].operating_points == ()
    missed = replace(point, false_positive_rate=0.2, false_positive_interval=(0.06, 0.4))
    assert [*threshold_cautions([replace(missed, false_positive_interval=(0.04, 0.4))])] == []
    assert "20.0% instead of 5%" in threshold_cautions([missed])[0]


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_predictions_of_a_labelled_file_are_evaluated(own, kind, call, answer):
    done, file = own(kind)
    found = answer("predict", done.saved, file)
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


def test_unknown_labels_count_as_wrong_and_other_shapes_are_refused(own, tmp_path, capsys):
    done, file = own("classes")
    arrays = dict(np.load(file))
    np.savez(tmp_path / "other.npz", x=arrays["x"], y=np.where(np.arange(40) < 10, "sideways", arrays["y"]))
    found = evaluate_predictions(predict(done.saved, tmp_path / "other.npz"))
    assert found.classes == ("down", "up", "sideways") and found.recall["sideways"] == 0
    assert "classes that the readout does not know count as wrong: sideways" in capsys.readouterr().err
    np.savez(tmp_path / "wide.npz", x=arrays["x"], y=np.zeros((40, 2)))
    with pytest.raises(InputError, match=r"\(40, 2\)"):
        list(predict(done.saved, tmp_path / "wide.npz"))
    with h5py.File(tmp_path / "new.h5", "w") as hdf:
        hdf["x"], hdf["y"] = arrays["x"], arrays["y"].astype("S4")
    expected = evaluate_predictions(predict(done.saved, file))
    assert evaluate_predictions(predict(done.saved, tmp_path / "new.h5")).to_dict() == expected.to_dict()
    np.savez(tmp_path / "plain.npz", x=arrays["x"])
    assert evaluate_predictions(predict(done.saved, tmp_path / "plain.npz")) is None
    done, file = own("values")
    np.savez(tmp_path / "odd.npz", x=np.load(file)["x"], y=[*np.load(file)["y"][:37].astype(str), "n.d.", "nan", "inf"])
    assert evaluate_predictions(predict(done.saved, tmp_path / "odd.npz")).samples == 37
    assert "3 of 40 rows have no label, so the scores leave them out" in capsys.readouterr().err


def test_sequences_without_lengths_are_refused_if_the_fit_had_several(tiny_gpt2, tmp_path):
    draw = np.random.default_rng(0)
    x, lengths = draw.normal(size=(90, 12, 1)).astype(np.float32), draw.integers(3, 13, 90)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(90) % 2, lengths=lengths)
    features = extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), cache=tmp_path / "cache", **SMALL)
    saved = fit(features, alphas="1:10:2").saved
    np.savez(tmp_path / "new.npz", x=x[:5])
    with pytest.raises(InputError, match="lengths"):
        list(predict(saved, tmp_path / "new.npz"))
    np.savez(tmp_path / "new.npz", x=x[:5], lengths=lengths[:5])
    assert len(list(predict(saved, tmp_path / "new.npz"))) == 5


EMBEDDED = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "embed"}


def made(tmp_path, rows, noise, seed=0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 20, 2)).astype(np.float32)
    y = 300 + 10 * x[:, :, 0].mean(axis=1) + noise * draw.normal(size=rows)
    np.savez(tmp_path / "d.npz", x=x, y=y)
    return extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", **{**EMBEDDED, "layers": "embed,block01"})


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
        assert f"on {len(y['test'])} test rows is below 0, that of predicting the mean" in err
    against = {one["name"]: one for one in found["against"]}
    assert {one["below_constant"] for one in against.values()} == {found["reservoir"]["test_score"] < 0}
    assert against["the mean"]["verdict"] == "cannot be judged" if len(y["test"]) < 6 else "no difference"
    assert against["the mean"]["sentence"] in err
    assert (tmp_path / "fit" / "predicted.png").stat().st_size > 1000


def test_what_a_reservoir_adds_below_a_constant_prediction_is_called_so():
    evidence = {"name": "raw", "verdict": "adds", "metric": "R²", "p_value": 0.03, "rows": 60, "groups": 0}
    sentence = Against(difference=0.001, below_constant=True, **evidence).sentence
    assert sentence.endswith("(p = 0.03), but a constant prediction is better than both.")
    assert Against(difference=0.001, below_constant=False, **evidence).sentence.endswith("(p = 0.03).")


def test_one_label_for_all_test_rows_is_warned_about(tmp_path, call):
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(200, 20, 2)), y=np.arange(200) % 10 == 0)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", **EMBEDDED)
    err = call("fit", features.entry)[2]
    assert "CAUTION: all test rows get the label 'False'" in err and "or pass --class-weight balanced" in err
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "steps.npz", x=draw.normal(size=(60, 20, 2)), y=draw.random((60, 20)) < 0.05)
    features = extract(str(tmp_path / "steps.npz"), cache=tmp_path / "cache", **EMBEDDED)
    assert "CAUTION: all tokens of the test rows get the label 'False'" in call("fit", features.entry)[2]


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_interval_is_that_of_a_bootstrap_over_rows(outputs):
    draw = np.random.default_rng(1)
    y = 1e4 + draw.normal(size=(120, outputs))
    predicted = y + 0.5 * draw.normal(size=(120, outputs))
    picks = draw.integers(120, size=(2000, 120))
    expected = np.quantile([r2_score(y[pick], predicted[pick]) for pick in picks], [0.025, 0.975])
    np.testing.assert_allclose(r2_interval(y, predicted), expected, atol=0.02)
    counts = np.full(120, 3)  # all samples of a row are drawn together
    np.testing.assert_allclose(r2_interval(y.repeat(3, 0), predicted.repeat(3, 0), counts), expected, atol=0.02)
    groups = np.arange(120).repeat(3)
    by_group = r2_interval(y[groups], predicted[groups], None, groups)
    np.testing.assert_allclose(by_group, r2_interval(y[groups], predicted[groups], counts), atol=0.01)
    thirds = [r2_score(y[third], predicted[third]) for third in (slice(40), slice(40, 80), slice(80, None))]
    low, high = r2_interval(y, predicted, None, np.arange(120) // 40)  # a bootstrap alone stays between these
    assert high - low > 2 * (max(thirds) - min(thirds))
    assert r2_interval(y[:1], predicted[:1]) is r2_interval(y, predicted, None, np.zeros(120)) is None


def test_equally_good_groups_have_nearly_the_interval_of_groups_that_differ_by_one_row():
    def interval(*right_rows):
        right = np.concatenate([np.arange(10) < count for count in right_rows])
        return accuracy_interval(right, np.repeat(np.arange(len(right_rows)), 10))

    assert np.ptp(interval(8, 8, 8, 8)) == pytest.approx(np.ptp(interval(8, 8, 8, 9)), rel=0.1)
    # If all rows are right, nothing tells whether those of a group are independent.
    assert np.ptp(interval(10, 10, 10, 10)) > 2 * np.ptp(interval(10, 10, 10, 9))


def test_rows_of_a_group_count_once_in_the_interval_and_in_the_comparison(tmp_path, call):
    groups = np.repeat(np.arange(40), 10)
    right = groups % 4 > 0, groups % 5 < 3  # all rows of a group are right, or none
    one, other = (evaluate_classes(np.ones(400, int), guess.astype(int), ["a", "b"]) for guess in right)
    alike = [evaluate_classes(np.ones(400, int), guess.astype(int), ["a", "b"], groups=groups) for guess in right]
    assert p_value_of_difference(one, other) < 0.001 and p_value_of_difference(*alike) > 0.05
    assert np.ptp(alike[0].interval) > 2.5 * np.ptp(one.interval) and alike[0].to_dict()["groups"] == 40
    x = DRAW.normal(size=(400, 4)).round(3) + right[0][:, None]
    rows = zip(groups, *x.T, np.where(right[0], "good", "poor"), strict=True)
    file = write_csv(tmp_path / "d.csv", rows, "patient,a,b,c,d,grade")
    features = extract(str(file), label="grade", group="patient", cache=tmp_path / "cache", pool="mean", **EMBEDDED)
    _, out, _ = call("fit", features.entry, "--columns", "embed/mean", "--out", tmp_path / "fit")
    model = {"backbone": EMBEDDED["backbone"], "init": "random"}
    model |= {"cache": tmp_path / "cache", "run": tmp_path / "run"}
    trained = train(str(file), steps=1, label="grade", group="patient", **model)
    page = report([tmp_path / "fit", trained.run], out=tmp_path / "page.html").page.read_text()
    over = f"95% interval over {len(set(features['test'].groups))} groups"
    assert over in out and over in page
    assert all(f"<h2>{stage}: d.csv, " in page for stage in ("Fit", "Training"))
    assert page.count("<dt>label</dt><dd>grade</dd>") == 2


@pytest.mark.parametrize(("rows", "careful"), [(60, True), (6000, False)])
def test_few_rows_are_chosen_by_repeated_folds_within_one_standard_error(rows, careful):
    folds = choose_folds(FitOptions(), {"train": rows, "valid": rows // 2})
    chosen = make_fitter(FitOptions(), 0, *folds)
    assert (chosen.one_standard_error, chosen.repeats > 1, chosen.folds > 0) == (careful,) * 3
    assert not make_fitter(FitOptions(), 2, *folds).one_standard_error


DRAW = np.random.default_rng(0)


def fit_with_baselines(tmp_path, path, **settings):
    features = extract(str(path), cache=tmp_path / "cache", pool="mean", compute="float32", **EMBEDDED, **settings)
    done = fit(features, columns=features.columns, alphas="1e-1:1e3:5", select="valid", out=tmp_path / "fit")
    return features, done, {one.name: one for one in done.baselines}


def stored(features, split):
    """Return stored sequences and their lengths, read by a source that may read this split."""
    data = FitData.open_entries(features)
    views = {features.store.entry.path: EntryView(features.store, (split,))}
    return next(data.known.raw().on(views).rows(split))


def assert_same_score(found, features, x, peer):
    """Assert that a baseline has the test score of a scikit-learn pipeline fitted to the training rows."""
    y = {split: features[split].labels.ravel() for split in x}
    score = make_pipeline(StandardScaler(), peer).fit(x["train"], y["train"]).score(x["test"], y["test"])
    assert found.test_score == pytest.approx(score, abs=0.03)


def test_the_raw_input_is_read_by_the_better_of_ridge_and_logistic_regression(tmp_path):
    x = DRAW.normal(size=(900, 3, 2)).astype(np.float32)
    x[:, 0, 0] *= np.where(DRAW.random(900) < 0.05, 40, 1)  # outliers far from the boundary bias least squares
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0, 0] + x[:, 1, 0] > 0).astype(int))
    features, done, _ = fit_with_baselines(tmp_path, tmp_path / "d.npz")
    assert done.raw is not None and done.raw.readout == "logistic" and done.raw == done.baselines[0]
    flat = {split: stored(features, split)[0].reshape(-1, 6) for split in ("train", "test")}
    assert_same_score(done.raw, features, flat, LogisticRegression(C=1 / done.raw.alpha))
    folded = fit(features, select="cv5", columns=features.columns, out=tmp_path / "folds")
    assert folded.raw is not None and folded.raw.readout == "logistic"
    ridge = RidgeClassifier().fit(flat["train"], features["train"].y).score(flat["test"], features["test"].y)
    assert min(done.raw.test_score, folded.raw.test_score) > ridge


def test_letters_are_compared_with_composition_and_k_mer_counts(tmp_path, capfd, call, monkeypatch):
    rows = []
    for row in range(600):
        text = "".join(DRAW.choice(list("ACGT"), 24))
        rows.append((text if row % 2 else text[:11] + "GAT" + text[14:], "ab"[row % 2]))
    features, done, found = fit_with_baselines(tmp_path, write_csv(tmp_path / "d.csv", rows, "sequence,label"))
    assert list(found) == ["raw", "composition", "k-mer counts"]
    texts = {split: texts_of(*stored(features, split)) for split in ("train", "test")}
    counter = CountVectorizer(analyzer="char", lowercase=False, ngram_range=(1, 3)).fit(texts["train"])
    counts = {split: counter.transform(text).toarray().astype(float) for split, text in texts.items()}
    best = found["k-mer counts"]
    assert_same_score(best, features, counts, RidgeClassifier(alpha=best.alpha))
    assert best.valid_score > found["composition"].valid_score
    assert "This reservoir adds nothing to k-mer counts: it is worse by " in capfd.readouterr().err
    assert "k-mer counts" in done.adds_nothing_to
    assert fit_tables(done)[1].texts == [comparison.sentence for comparison in done.against]
    # One terminal has shown what stderr says; only what the reservoir adds is news.
    monkeypatch.setattr(stage_commands, "on_one_terminal", lambda: True)
    added = [comparison.sentence for comparison in done.against if comparison.verdict == "adds"]
    sentences = [shown.texts for shown in fit_tables(done) if isinstance(shown, Lines)]
    assert sentences == ([added] if added else []) and len(added) < len(done.against)
    _, out, err = call("fit", features.entry, "--columns", "embed/mean", "--json")
    printed = json.loads(out)
    assert [one["name"] for one in printed["baselines"]] == list(found)
    assert all(one["valid_score"] and one["test_score"] for one in printed["baselines"])
    assert "k-mer counts" in printed["adds_nothing_to"] and "adds nothing to k-mer counts: " in err
    assert "k-mer counts" in call("fit", features.entry, "--columns", "embed/mean")[1]


def test_texts_are_compared_with_tf_idf(tmp_path):
    words = ["good", "bad", "film", "very", "not", "plot", "the", "a"]
    rows = [" ".join(DRAW.choice(words, 6)) for _ in range(300)]
    rows[0] = "plot " * 10
    labelled = [(text, int(text.count("good") > text.count("bad"))) for text in rows]
    file = write_csv(tmp_path / "d.csv", labelled, "text,label")
    features, _, found = fit_with_baselines(tmp_path, file, input="gaussian")
    assert list(found) == ["raw", "tf-idf"]
    texts = {split: texts_of(*stored(features, split)) for split in ("train", "test")}
    made = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]").fit(texts["train"])
    counts = {split: made.transform(text).toarray() for split, text in texts.items()}
    assert_same_score(found["tf-idf"], features, counts, RidgeClassifier(alpha=found["tf-idf"].alpha))


def test_series_are_compared_with_summary_statistics(tmp_path):
    x, lengths = DRAW.normal(size=(400, 12, 2)).astype(np.float32), DRAW.integers(2, 13, 400)
    x[200:] += np.arange(12)[:, None] / 8
    np.savez(tmp_path / "d.npz", x=x, lengths=lengths, y=np.arange(400) // 200)
    features, _, found = fit_with_baselines(tmp_path, tmp_path / "d.npz")
    assert list(found) == ["raw", "summary statistics"]
    expected = [
        [values.mean(), values.std(), values.min(), values.max(), np.polyfit(np.arange(n), values, 1)[0]]
        for row, n in zip(x, lengths, strict=True)
        for values in row[:n].T
    ]
    expected = np.array(expected).reshape(400, 2, 5).transpose(0, 2, 1).reshape(400, 10)
    np.testing.assert_allclose(summaries(x, lengths), expected, atol=1e-5)
    known = {split: summaries(*stored(features, split)) for split in ("train", "test")}
    best = found["summary statistics"]
    assert_same_score(best, features, known, RidgeClassifier(alpha=best.alpha))


def test_labels_of_every_token_are_compared_with_windows_of_the_input(tmp_path):
    x = DRAW.integers(0, 3, size=(80, 20))
    np.savez(tmp_path / "d.npz", x=x, y=np.roll(x, 1, axis=1))  # the label is the previous symbol
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", **EMBEDDED)
    done = fit(features, columns="raw", select="valid", out=tmp_path / "fit")
    assert done.best.test_score < 0.5  # the current symbol does not give the label
    assert [one.name for one in done.baselines] == ["raw, windows of 9"]
    assert done.baselines[0].test_score > 0.9
    level = DRAW.normal(size=(80, 20, 1)).cumsum(axis=1)
    np.savez(tmp_path / "v.npz", x=level, y=np.roll(level[:, :, 0], 1, axis=1))
    features = extract(str(tmp_path / "v.npz"), cache=tmp_path / "cache", **EMBEDDED)
    found = fit(features, columns="raw", select="valid", out=tmp_path / "values").baselines[0]
    values, _ = stored(features, "test")
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values[:, :, 0], ((0, 0), (4, 4))), 9, axis=1)
    y = np.asarray(features["test"].labels)[..., 0].ravel()
    peer = make_pipeline(StandardScaler(), Ridge(0.1)).fit(windows.reshape(-1, 9), y)
    assert found.metric == "R²" and found.test_score == pytest.approx(peer.score(windows.reshape(-1, 9), y), abs=0.1)
