"""Saved readouts: scikit-learn's estimators are kept, every changed byte is detected, and writers may compete."""

import json
import multiprocessing
import warnings

import numpy as np
import pytest
import skops.io
from reservoir_cache import locked
from reservoir_pipelines import export, extract, fit, predict
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.sklearn_fitter import EstimatorReadout, linear_form
from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, neighbors, neural_network, svm
from sklearn.base import is_classifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.readouts.linear import LinearReadout, Targets
from reservoir.tasks.task import Scaling, Task, Vectors
from tests.helpers import outcome

LINEAR_CLASSIFIERS = [
    linear_model.LogisticRegression(),
    linear_model.LogisticRegression(solver="liblinear"),
    linear_model.RidgeClassifier(),
    linear_model.RidgeClassifierCV(),
    linear_model.SGDClassifier(loss="hinge"),
    linear_model.SGDClassifier(loss="log_loss"),
    linear_model.SGDClassifier(loss="modified_huber"),
    linear_model.Perceptron(),
    linear_model.PassiveAggressiveClassifier(),
    svm.LinearSVC(),
    discriminant_analysis.LinearDiscriminantAnalysis(),
    OneVsRestClassifier(linear_model.LogisticRegression()),
    OneVsRestClassifier(svm.LinearSVC()),
]
LINEAR_REGRESSORS = [
    linear_model.Ridge(),
    linear_model.RidgeCV(),
    linear_model.Lasso(0.01),
    linear_model.ElasticNet(0.01),
    linear_model.LinearRegression(),
    linear_model.BayesianRidge(),
    linear_model.SGDRegressor(),
    linear_model.HuberRegressor(),
    svm.LinearSVR(),
]
OTHERS = [
    svm.SVC(),
    svm.SVC(kernel="linear", probability=True),
    naive_bayes.GaussianNB(),
    ensemble.RandomForestClassifier(n_estimators=3),
    ensemble.AdaBoostClassifier(n_estimators=3),
    neighbors.KNeighborsClassifier(),
    neural_network.MLPClassifier(max_iter=2),
    linear_model.PoissonRegressor(),  # has coefficients, but exponentiates the sum
    ensemble.GradientBoostingRegressor(n_estimators=3),
]


def fitted(estimator, classes, outputs):
    """Return a fitted pipeline as a readout, its training rows, and further rows; channels have means of 3000."""
    draw = np.random.default_rng(1)
    x = (3000 + draw.normal(size=(400, 5))).astype(np.float32)
    scores = (x - 3000) @ draw.normal(size=(5, outputs)) + draw.normal(size=(400, outputs))
    y = np.digitize(scores, [0.0] if classes == 2 else [-1.0, 1.0]) if classes else np.exp(scores)
    if outputs > 1:
        estimator = (MultiOutputClassifier if classes else MultiOutputRegressor)(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(StandardScaler(), estimator).fit(x[:300], y[:300] if outputs > 1 else y[:300, 0])
    return EstimatorReadout(model=model, targets=Targets(outputs, classes), name="test"), x[:300], x[300:]


def cases():
    for estimator in LINEAR_CLASSIFIERS:
        for classes in (2, 3):
            if not (classes == 3 and getattr(estimator, "solver", "") == "liblinear"):  # unsupported in scikit-learn
                yield from ((estimator, classes, outputs) for outputs in (1, 2))
    yield from ((estimator, 0, outputs) for estimator in LINEAR_REGRESSORS for outputs in (1, 2))


@pytest.mark.parametrize(("estimator", "classes", "outputs"), [*cases()], ids=lambda one: f"{one!r}".replace(" ", ""))
def test_linear_estimators_become_coefficients_with_the_same_answers(estimator, classes, outputs):
    readout, train, new = fitted(estimator, classes, outputs)
    linear = linear_form(readout, train)
    assert isinstance(linear, LinearReadout)
    linear = LinearReadout.from_arrays(*linear.to_arrays())
    new = new.astype(np.float64)
    if not classes:
        np.testing.assert_allclose(linear.predict(new), readout.predict(new), rtol=1e-5, atol=1e-5)
        return
    np.testing.assert_array_equal(linear.predict(new), readout.predict(new))
    assert linear.has_probabilities == readout.has_probabilities
    np.testing.assert_allclose(linear.probabilities(new), readout.probabilities(new), atol=1e-6)


@pytest.mark.parametrize("estimator", OTHERS, ids=lambda one: f"{one!r}".replace(" ", ""))
def test_other_estimators_have_no_linear_form(estimator):
    readout, train, _ = fitted(estimator, 3 if is_classifier(estimator) else 0, 1)
    assert linear_form(readout, train) is None


def test_an_estimator_that_saw_fewer_classes_has_no_linear_form():
    readout, train, _ = fitted(linear_model.LogisticRegression(), 2, 1)
    assert linear_form(EstimatorReadout(model=readout.model, targets=Targets(1, 4), name="test"), train) is None


@pytest.mark.parametrize("readout", ["linear_model.LogisticRegression", "svm.LinearSVC"])
def test_linear_estimators_are_saved_predicted_and_exported_without_skops(tmp_path, tiny_gpt2, readout, monkeypatch):
    import torch

    for name in ("dumps", "loads", "get_untrusted_types"):
        monkeypatch.setattr(skops.io, name, lambda *_, **__: pytest.fail("skops was used"))
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 6, 2)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=np.digitize(x[:, :, 0].mean(axis=1), [-0.2, 0.2]))
    settings = {"backbone": str(tiny_gpt2), "cache": tmp_path / "cache", "layers": "final", "pool": "mean"}
    features = extract(str(tmp_path / "rows.npz"), compute="float32", **settings)
    done = fit(features, readout=f"sklearn.{readout}", columns="final/mean", out=tmp_path / "readout")
    assert {path.suffix for path in (tmp_path / "readout").glob("readout*")} == {".json", ".safetensors"}
    loaded = Bundle.load(done.saved).readout
    test = features["test"]["final/mean"]
    np.testing.assert_array_equal(loaded.predict(test), done.readout.predict(test))
    np.testing.assert_allclose(loaded.probabilities(test), done.readout.probabilities(test))
    labels = [one.label for one in predict(done.saved, tmp_path / "rows.npz")]
    if torch.__version__.startswith("2.6.") or readout == "svm.LinearSVC":
        return  # export needs torch 2.7, and reads the same file of either
    model = torch.export.load(str(export(done.saved).model)).module()
    assert model(torch.from_numpy(x), torch.full((90,), 6)).flatten(1).argmax(-1).tolist() == labels


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("files")
    return extract("digits", backbone=str(tiny_gpt2), limit=60, cache=root, layers="final", pool="mean,last")


def same(text, card):
    """Return whether JSON has the values of a card; a flipped bit may turn the e of a number into an equivalent E."""
    try:
        return json.loads(text) == card
    except ValueError:
        return False


@pytest.mark.parametrize("readout", ["ridge", "sklearn.naive_bayes.GaussianNB"])
def test_every_changed_byte_is_found(extracted, readout, tmp_path):
    folder = fit(extracted, columns="final/mean", readout=readout, out=tmp_path / "whole").saved.parent
    files = sorted(path.name for path in folder.glob("readout*"))
    assert len(files) == 2 + (readout != "ridge")
    card = json.loads((folder / "readout.json").read_text())
    for name in files:
        data = (folder / name).read_bytes()
        damaged = [data[:-9], data + b"0"]
        damaged += [
            data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
            for place in range(0, len(data), max(1, len(data) // 40))
        ]
        for changed in damaged:
            (folder / name).write_bytes(changed)
            if name == "readout.json" and same(changed, card):
                continue
            assert "readout" in outcome(Bundle.load, folder, trust=True)
        (folder / name).write_bytes(data)
    assert Bundle.load(folder, trust=True).task.name == "digits"


def bundle_of(number, width=400):
    coef, offset = np.full((width, 3), float(number)), np.full(4, number, np.float32)
    return Bundle(
        task=Task(name="digits", form=Vectors(4), max_tokens=16, classes=3),
        scaling=Scaling(offset=offset, scale=offset + 1),
        parts=(),
        readout=LinearReadout(coef=coef, intercept=coef[0], targets=Targets(1, 3)),
        scores={"number": number},
    )


def save(number, folder):
    with locked(folder):
        bundle_of(number).write(folder)


def save_often(folder, number):
    for _ in range(15):
        save(number, folder)


def test_concurrent_writers_never_mix_two_bundles(tmp_path):
    save(0, tmp_path)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=save_often, args=(tmp_path, number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    loads = 0
    while loads < 20 or any(writer.is_alive() for writer in writers):
        found = Bundle.load(tmp_path)
        assert {found.scores["number"], *found.readout.coef.ravel(), *found.scaling.offset} == {found.scores["number"]}
        loads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_write_that_fails_leaves_the_old_bundle(tmp_path, monkeypatch, step):
    from pathlib import Path

    save(1, tmp_path)
    plain = getattr(Path, step)

    def fail(self, *arguments, **named):
        plain(self, *arguments, **named)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(OSError, match="No space"):
        save(2, tmp_path)
    monkeypatch.undo()
    assert Bundle.load(tmp_path).scores == {"number": 1}
    save(2, tmp_path)
    assert Bundle.load(tmp_path).scores == {"number": 2} and len(list(tmp_path.iterdir())) == 2


def test_fits_with_other_options_have_other_folders(extracted):
    settings = [
        {},
        {"columns": "final/last"},
        {"alphas": "1:10:2"},
        {"select": "cv3"},
        {"class_weight": "balanced"},
        {"readout": "logistic"},
    ]
    plain = {"columns": "final/mean", "alphas": "1:100:3"}
    folders = [fit(extracted, **(plain | one)).saved.parent for one in settings]
    assert len(set(folders)) == len(settings) and fit(extracted, **plain).saved.parent == folders[0]
