"""A training ends with the evaluation that fit prints; its run refuses sequences without lengths."""

import json

import numpy as np
import pytest
from reservoir_pipelines import predict, train
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from reservoir_pipelines.training.training_result import Training
from sklearn import metrics

QUICK = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "steps": 20, "device": "cpu"}


def write(path, kind, rows=120):
    """Write series, the last 30 of them for test, with two classes or two targets."""
    draw = np.random.default_rng(0)
    y = np.arange(rows) % 2
    x = draw.normal(size=(rows, 6, 1)) + 2 * y[:, None, None]
    split = np.repeat(["train", "valid", "test"], [60, 30, 30])
    labels = np.array(["down", "up"])[y] if kind == "classes" else np.c_[100 + 5 * x[:, :, 0].mean(1), x[:, 0, 0]]
    np.savez(path, x=x, y=labels, split=split)
    np.savez(path.with_name("test.npz"), x=x[90:], y=labels[90:])
    return str(path)


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_train_evaluates_the_test_split(cache, tmp_path, kind, call):
    done = train(write(tmp_path / "own.npz", kind), **QUICK)
    found = evaluate_predictions(list(predict(done.path, tmp_path / "test.npz")))
    assert done.evaluation.scores == pytest.approx(found.scores, rel=1e-3)
    assert done.evaluation.scores[done.metric] == pytest.approx(done.test_score)
    assert Training.from_dict(json.loads(json.dumps(done.to_dict()))).to_dict() == done.to_dict()
    names = {"accuracy", "majority_baseline", "balanced_accuracy", "macro_f1", "auc"}
    each = {f"{name}_of_label_{n}" for name in ("R²", "rmse") for n in range(2)}
    assert done.evaluation.scores.keys() == (names if kind == "classes" else {"R²", "rmse", "mae", *each})
    assert (done.path / "confusion.png").exists() == (kind == "classes")
    if kind == "classes":
        np.testing.assert_array_equal(done.evaluation.confusion, found.confusion)
        truth = np.load(tmp_path / "test.npz")["y"]
        labels = [one.label for one in predict(done.path, tmp_path / "test.npz")]
        assert done.evaluation.scores["macro_f1"] == pytest.approx(metrics.f1_score(truth, labels, average="macro"))
    assert (
        json.loads(call("train", tmp_path / "own.npz", *flags(), "--json")[1])["evaluation"]
        == done.evaluation.to_dict()
    )


def flags():
    return [word for name, value in QUICK.items() for word in (f"--{name}", str(value))]
