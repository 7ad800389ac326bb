"""Estimators of raw sequences: scikit-learn's contract, one pass per row, and equality with the separate steps."""

import re
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
from reservoir_pipelines import ReservoirClassifier, ReservoirRegressor, ReservoirTransformer
from reservoir_pipelines.estimators import row_cache
from reservoir_pipelines.estimators.estimators import code_labels
from reservoir_pipelines.estimators.predictor import fold_numbers
from reservoir_pipelines.preparation.sources import open_source
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.utils.estimator_checks import check_estimator

from reservoir.batches import load
from reservoir.features import forward
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir.readouts.sweep import cross_sweep


@pytest.fixture(autouse=True)
def passes(monkeypatch):
    """Clear all caches, as in a new process; return the number of rows of every forward pass."""
    counted = []

    def counting(model, scaling, x, **rest):
        counted.append(len(x))
        return load(model, scaling, x, **rest)

    monkeypatch.setattr(row_cache, "load", counting)
    forget()
    return counted


def forget():
    """Forget all rows and models, as in a new process."""
    row_cache.row_cache.clear()
    row_cache._loaded.cache_clear()


@pytest.fixture
def classifier(tiny_gpt2):
    plain = {"backbone": str(tiny_gpt2), "layers": "block01", "pool": "mean", "patch": 1, "standardise": False}
    return lambda **settings: ReservoirClassifier(**(plain | settings))


def digits():
    x, y = load_digits(return_X_y=True)
    return x[:400], y[:400]


def waves(rows=60, values=20, channels=2, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, values, channels))
    return x, np.where(x[:, :, 0].mean(axis=1) > 0, "up", "down")


def loud(rows=60):
    """Return rows and labels that no linear model of the raw input predicts, and options of a reservoir that does."""
    x, _ = waves(rows, channels=1)
    level = np.abs(x).mean(axis=(1, 2))
    return x, level > np.median(level), {"layers": "embed", "pool": "std"}


def test_classifier_passes_every_check_of_scikit_learn(classifier):
    check_estimator(classifier(layers="embed,block01", cv=2), on_skip=None)


def test_regressor_passes_every_check_of_scikit_learn(tiny_gpt2):
    check_estimator(ReservoirRegressor(backbone=str(tiny_gpt2), layers="embed", pool="mean", cv=2), on_skip=None)


def test_transformer_passes_every_check_of_scikit_learn(tiny_gpt2):
    check_estimator(ReservoirTransformer(backbone=str(tiny_gpt2), layers="embed", pool="mean,max"), on_skip=None)


def test_grid_search_computes_each_row_once(classifier, passes):
    x, y = digits()
    distinct = len(np.unique(x.astype(np.float32), axis=0))
    grid = {"alphas": [[1.0], [100.0], None], "class_weight": [None, "balanced"]}
    settings = {"patch": 8, "gain": 0.1, "pool": "segments8", "layers": "embed,block02"}
    search = GridSearchCV(classifier(cv=3, **settings), grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.85 and sum(passes) == distinct
    cross_val_score(clone(search.best_estimator_), x, y, cv=4)
    assert sum(passes) == distinct


def test_threads_compute_each_row_once(classifier, passes):
    x, y = waves()
    with joblib.parallel_config("threading", n_jobs=3):
        search = GridSearchCV(classifier(), {"alphas": [[1.0], [10.0], [100.0]]}, cv=3).fit(x, y)
    assert sum(passes) == len(x) and search.best_estimator_.predict(x).shape == (60,)


def test_options_that_change_features_do_not_share_them(classifier, passes):
    x, y = waves()
    plain = classifier().fit(x, y)
    for number, change in enumerate(({"seed": 1}, {"gain": 0.5}, {"patch": 2}, {"pool": "max"}, {"layers": "block02"})):
        other = classifier(**change).fit(x, y)
        assert sum(passes) == (number + 2) * len(x), change
        assert not np.array_equal(other.decision_function(x), plain.decision_function(x))


def test_equal_rows_are_computed_once_in_any_type_and_order(classifier, passes):
    x, y = waves()
    x = x.astype(np.float32)
    twice = np.concatenate([x, x[::-1]])
    model = classifier().fit(twice.astype(np.float64), np.concatenate([y, y[::-1]]))
    assert sum(passes) == len(x)
    np.testing.assert_array_equal(model.decision_function(x[::-1]), model.decision_function(x)[::-1])
    assert sum(passes) == len(x)


def test_rows_that_were_not_used_for_the_longest_time_are_forgotten(classifier, passes, monkeypatch):
    x, y, settings = loud()
    model = classifier(**settings).fit(x[:40], y[:40])
    expected = model.decision_function(x)
    assert sum(passes) == 60
    width = model._model().fpt.backbone.width
    row_cache.row_cache.clear()
    monkeypatch.setattr(row_cache.row_cache, "max_bytes", 4 * width * 30)
    # Of 60 rows, the last 30 are kept.
    np.testing.assert_array_equal(model.decision_function(x), expected)
    model.decision_function(x[30:])
    assert sum(passes) == 120
    model.decision_function(x[:10])  # which takes the place of the first of them
    model.decision_function(x[40:])
    assert sum(passes) == 130
    model.decision_function(x[30:40])
    assert sum(passes) == 140 and row_cache.row_cache._bytes == 4 * width * 30


def by_hand(model, x, columns):
    """Return features of float sequences, computed directly with the frozen model in other batches."""
    frozen = row_cache.shared_model(model._task, model._plan.reservoir, compute=model._plan.compute)
    found = forward(frozen, None, x.astype(np.float32), np.full(len(x), x.shape[1]), columns, 5)
    return {name: values.reshape(len(x), -1) for name, values in found.items()}


def swept(x, y, alphas=DEFAULT_ALPHAS):
    _, codes, targets = code_labels(y, "balanced")
    fold = fold_numbers(4, x, codes, classifier=True)
    return cross_sweep([(x, codes[:, None], fold)], targets, np.asarray(alphas), folds=4)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_classifier_is_the_best_ridge_sweep_over_the_columns(classifier, compute):
    x, y = waves()
    x, new, y, _ = train_test_split(x, y, random_state=0)
    model = classifier(layers="all", pool="mean,last", compute=compute, class_weight="balanced", cv=4).fit(x, y)
    features = by_hand(model, x, model.columns_)
    sweeps = {name: swept(features[name], y) for name in features}
    assert model.columns_ == [f"{layer}/{pool}" for layer in ("embed", "block01", "block02", "block03", "final")
                              for pool in ("mean", "last")]  # fmt: skip
    tried = model.cv_results_
    assert model.best_score_ == tried["score"].max()
    for name, by_it in sweeps.items():
        mine = np.isin(tried["alpha"][tried["column"] == name], by_it.path.alphas)
        np.testing.assert_allclose(tried["score"][tried["column"] == name][mine], by_it.accuracy, atol=0.03)
    features = by_hand(model, x, model.column_.split("+"))
    together = np.concatenate([features[name] for name in model.column_.split("+")], axis=1)
    readout = swept(together, y, [model.alpha_]).readout()
    after = np.concatenate(list(by_hand(model, new, model.column_.split("+")).values()), axis=1)
    close = 1e-4 if compute == "float32" else 0.05
    np.testing.assert_allclose(model.decision_function(new), readout.scores(after).squeeze(), atol=close)
    np.testing.assert_allclose(model.predict_proba(new), readout.probabilities(after)[:, 0], atol=close)
    np.testing.assert_array_equal(model.predict(new), model.classes_[model.predict_proba(new).argmax(axis=1)])


@pytest.mark.parametrize(
    ("x", "vocabulary"),
    [
        (np.random.default_rng(0).integers(0, 4, (60, 12)), 4),  # letters
        ((2048 + 900 * np.sin(np.arange(60 * 12) / 7)).astype(int).reshape(60, 12), None),  # a sensor's counts
    ],
)
def test_integers_are_read_as_in_files_with_a_warning(classifier, tmp_path, x, vocabulary):
    y = np.arange(60) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y)
    source = open_source(str(tmp_path / "d.npz"))
    why = source.notes()[0].partition(": x read as ")[2].partition(";")[0].rstrip(")")
    with pytest.warns(UserWarning, match=re.escape(f"X read as {why}")):
        model = classifier(layers="embed").fit(x, y)
    assert model.vocabulary_ == getattr(source.task.form, "vocabulary", None) == vocabulary
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        explicit = classifier(layers="embed", vocabulary=vocabulary).fit(x if vocabulary else x.astype(float), y)
    np.testing.assert_array_equal(explicit.predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"vocabulary": -1}, (20, 4), "not a symbol from 0"),
        ({}, (20, 4, 2, 2), "give \\(rows, values\\) or"),
        ({"vocabulary": 3}, (20, 4, 2), "give \\(rows, tokens\\)"),
        ({"layers": "block09"}, (20, 4), "block09"),
        ({"pool": "median"}, (20, 4), "median"),
        ({"seed": -1}, (20, 4), "seed"),
        ({"patch": 5}, (20, 4), "patch 5"),
        ({}, (20, 81), "80 positions"),
    ],
)
def test_wrong_input_is_refused_in_one_line(classifier, passes, settings, shape, message):
    with pytest.raises(ValueError, match=message) as caught:
        classifier(**settings).fit(np.zeros(shape), np.arange(20) % 2)
    assert "\n" not in str(caught.value) and passes == []


def test_channels_of_a_table_in_another_order_are_refused(classifier):
    x, y = waves()
    table = pd.DataFrame({name: list(x[:, :, n]) for n, name in enumerate(["force", "speed"])})
    model = classifier(alphas=10).fit(table, y)
    assert model.predict(table[:5]).tolist() == model.predict(list(x[:5])).tolist()
    with pytest.raises(ValueError, match=r"\['speed', 'force'\]; .*\['force', 'speed'\]"):
        model.predict(table[["speed", "force"]])
    numbers = pd.DataFrame(x[:, :, 0])
    assert (
        classifier().fit(numbers.astype(str), y).predict(numbers).tolist()
        == classifier().fit(numbers, y).predict(numbers).tolist()
    )


def test_texts_are_refused_with_a_remedy_that_works(tiny_gpt2):
    texts = ["ACGTACGTACGT", "AACCAACC"] * 20
    model = ReservoirClassifier(backbone=str(tiny_gpt2), vocabulary=128)
    with pytest.raises(ValueError, match="X holds texts; pass the codes of letters"):
        model.fit(texts, [0, 1] * 20)
    rows = [list(text.encode()) for text in texts]
    assert model.fit(rows, [0, 1] * 20).predict(rows[:2]).tolist() == [0, 1]


@pytest.mark.parametrize(
    "kind",
    ["values", "one channel", "channels", "channels first", "masked", "arrays", "lists", "column", "symbols"],
)
def test_a_single_row_is_refused_with_the_way_to_pass_one(cache, kind):
    draw = np.random.default_rng(0)
    x = {
        "values": draw.normal(size=(30, 12)),
        "one channel": draw.normal(size=(30, 12, 1)),
        "channels": draw.normal(size=(30, 12, 2)),
        "channels first": draw.normal(size=(30, 2, 12)),
        "masked": draw.normal(size=(30, 12, 2)),
        "arrays": [draw.normal(size=12) for _ in range(30)],
        "lists": draw.normal(size=(30, 12, 2)).tolist(),
        "column": draw.normal(size=(30, 12)),
        "symbols": [draw.integers(0, 4, 12).tolist() for _ in range(30)],
    }[kind]
    settings = {"init": "random", "layers": "embed", "pool": "mean", "channels_first": kind == "channels first"}
    settings |= {"missing": "mask"} if kind == "masked" else {}
    fitted = ReservoirClassifier(backbone="gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", **settings)
    fitted.fit(x, np.arange(30) % 2)
    for method in (fitted.predict, fitted.predict_proba):
        with pytest.raises(ValueError, match=r"one row: x\[:1\]"):
            method(pd.Series(x[0]) if kind == "column" else x[0])
        assert len(method(x[:1])) == 1
