"""Estimators: scikit-learn's contract, one pass per row, and equality with the steps and with the command line."""

import re
import warnings

import joblib
import numpy as np
import pandas
import pandas as pd
import pytest
from reservoir_pipelines import ReservoirClassifier, ReservoirRegressor, ReservoirTransformer, extract, fit, predict
from reservoir_pipelines.estimators import row_cache
from reservoir_pipelines.estimators.estimators import code_labels
from reservoir_pipelines.estimators.predictor import fold_numbers
from reservoir_pipelines.preparation.prepare import open_source
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
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
    row_cache._loaded_model.cache_clear()


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
@pytest.mark.usefixtures("shipped_defaults")
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


def test_a_symbol_that_no_training_row_had_is_refused_with_a_remedy_that_works(classifier):
    x, y = letters(60)
    x[0, 0] = 4
    model = classifier(layers="embed")
    with pytest.warns(UserWarning, match="or vocabulary=N if other data has more symbols"):
        model.fit(x[1:], y[1:])
    with pytest.raises(ValueError, match=r"4 is not a symbol from 0 to 3; .*pass vocabulary=N, the number of symbols"):
        model.predict(x)
    assert np.isfinite(cross_val_score(classifier(layers="embed", vocabulary=5), x, y, cv=KFold(3))).all()


@pytest.mark.parametrize(
    "form",
    [
        lambda table: table.convert_dtypes(),
        lambda table: table.astype("int64[pyarrow]"),
        lambda table: table.to_numpy(object),
        lambda table: table.astype({"t0": "uint64"}),
    ],
)
def test_whole_numbers_of_any_type_are_read_as_int64(classifier, form):
    x, y = letters(60)
    table = pd.DataFrame(x).add_prefix("t")
    with pytest.warns(UserWarning, match="X read as 4 symbols"):
        model = classifier(layers="embed").fit(form(table), y)
    expected = classifier(layers="embed", vocabulary=4).fit(x, y).predict_proba(x)
    np.testing.assert_array_equal(model.predict_proba(form(table)), expected)
    for values in (form(table).astype("float64"), table.astype("uint64") + np.uint64(2**63 - 2)):
        assert classifier(layers="embed").fit(values, y).vocabulary_ is None


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"vocabulary": -1}, (20, 4), "vocabulary=-1: give a whole number from 1 on, or None"),
        ({"vocabulary": 4.0}, (20, 4), "vocabulary=4.0: give a whole number"),
        ({"vocabulary": "4"}, (20, 4), "vocabulary='4': give a whole number"),
        ({"vocabulary": True}, (20, 4), "vocabulary=True: give a whole number"),
        ({"channels_first": "false"}, (20, 2, 4), "channels_first='false': give True or False"),
        ({"class_weight": {0: -1}}, (20, 4), "class_weight needs finite values"),
        ({"class_weight": {0: np.nan}}, (20, 4), "class_weight needs finite values"),
        ({"class_weight": {0: 0, 1: 0}}, (20, 4), "class_weight needs finite values"),
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


@pytest.mark.parametrize("kind", ["string", "category", "boolean", "object"])
def test_a_missing_label_is_named(classifier, kind):
    x, _ = waves()
    y = pd.Series([True, False, None] * 20, dtype="boolean").astype(kind)
    with pytest.raises(ValueError, match=r"y\[2\] is missing; give every sample a value"):
        classifier().fit(x, y)


@pytest.mark.parametrize("kind", ["category", "datetime64[ns]"])
@pytest.mark.parametrize("vocabulary", [None, 4])
def test_columns_of_another_type_are_refused(classifier, kind, vocabulary):
    x, y = letters(60)
    table = pd.DataFrame(x)
    table = table.replace(dict(enumerate("ACGT"))).astype(kind) if kind == "category" else table.astype(kind)
    with pytest.raises(ValueError, match=r"X has the type .*; give numbers"):
        classifier(vocabulary=vocabulary).fit(table, y)


def test_nested_penalties_are_refused(classifier):
    x, y = waves()
    with pytest.raises(ValueError, match=r"alphas has the shape \(1, 2\); give a penalty, or a list"):
        classifier(alphas=[[1, 2]]).fit(x, y)


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


def test_columns_that_share_a_name_are_refused(classifier):
    x, y = waves()
    numbers = pd.concat([pd.DataFrame(x[:, :, 0])] * 2, axis=1)
    channels = pd.DataFrame({name: list(x[:, :, n]) for n, name in enumerate("ab")})
    for table, name in ((numbers, "0"), (channels.set_axis(["speed", "speed"], axis=1), "'speed'")):
        with pytest.raises(ValueError, match=f"X has several columns named {name}; give every column"):
            classifier().fit(table, y)


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


# The estimators equal the command line on the same rows, and take sample weights, lists and channels.


TRAIN, FITTED = 50, 70


def series(rows=90, values=40):
    """Return series and classes; all series have the same mean and variance, so any subset gives the same scale."""
    rng = np.random.default_rng(0)
    y, phase = rng.integers(0, 3, rows), rng.uniform(0, 6, (rows, 1))
    x = np.sin(np.arange(values) / (1 + y[:, None]) + phase) + rng.normal(0, 0.6, (rows, values))
    return 5 + 3 * (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), np.array(["a", "b", "c"])[y]


def letters(rows=90):
    x = np.random.default_rng(1).integers(0, 4, (rows, 14))
    return x, np.where((x[:, 1:] == x[:, :-1]).sum(axis=1) > 3, "many", "few")


def ragged(rows=90):
    x, y = series(rows)
    ends = np.random.default_rng(2).integers(20, 41, rows)
    return [row[:end] for row, end in zip(x, ends, strict=True)], y, ends


@pytest.fixture
def by_command(tmp_path, cache, tiny_gpt2):
    """Return the result of `fit` for arrays in a file, and the probabilities (or values) of its test rows."""

    def run(standardise=True, **arrays):
        rows = len(arrays["y"])
        names = np.repeat(["train", "valid", "test"], [TRAIN, FITTED - TRAIN, rows - FITTED])
        np.savez(tmp_path / "d.npz", split=names, **arrays)
        options = {"backbone": str(tiny_gpt2), "compute": "float32", "standardise": standardise}
        found = fit(extract(str(tmp_path / "d.npz"), **options))
        answers = list(predict(found.saved, tmp_path / "d.npz"))[FITTED:]
        return found, np.array([one.probabilities or one.label for one in answers])

    return run


def same(model, found, values, expected):
    assert (model.column_, model.best_score_) == (found.best.name, pytest.approx(found.best.valid_score))
    assert model.alpha_ == pytest.approx(found.best.alpha)
    np.testing.assert_allclose(values, expected, atol=2e-3)


@pytest.mark.parametrize("kind", [series, letters])
def test_a_classifier_by_default_equals_extract_and_fit(kind, by_command, tiny_gpt2, recwarn, tmp_path, monkeypatch):
    # Estimators have the raw input as a baseline, but no statistics.
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.learn_statistics", lambda *_: [])
    x, y = kind()
    found, expected = by_command(x=x, y=y)
    if kind is letters:
        np.savez(tmp_path / "new.npz", x=np.full((1, 14), 9))
        with pytest.raises(ValueError, match=r"row 0, token 0: 9 "):
            predict(found.saved, tmp_path / "new.npz")
    model = ReservoirClassifier(backbone=str(tiny_gpt2), compute="float32").fit(x[:FITTED], y[:FITTED])
    assert "+" in model.column_
    same(model, found, model.predict_proba(x[FITTED:]), expected)


def test_a_regressor_by_default_equals_extract_and_fit(by_command, tiny_gpt2):
    x, y = series()
    y = np.abs(np.diff(x)).mean(axis=1) + np.unique(y, return_inverse=True)[1]
    found, expected = by_command(x=x, y=y)
    model = ReservoirRegressor(backbone=str(tiny_gpt2), compute="float32").fit(x[:FITTED], y[:FITTED])
    same(model, found, model.predict(x[FITTED:]), expected)


def test_sequences_of_unequal_length_are_a_list_of_arrays(by_command, tiny_gpt2):
    x, y, ends = ragged()
    padded = np.stack([np.pad(row, (0, 40 - len(row)), constant_values=99) for row in x])
    options = {"compute": "float32", "backbone": str(tiny_gpt2)}
    model = ReservoirClassifier(standardise=False, **options).fit(x[:FITTED], y[:FITTED])
    found, expected = by_command(x=padded, y=y, lengths=ends, standardise=False)
    same(model, found, model.predict_proba(x[FITTED:]), expected)
    scaled = ReservoirClassifier(**options).fit(x[:FITTED], y[:FITTED])
    values = np.concatenate(x[:FITTED])
    by_hand = [(row - values.mean()) / values.std() for row in x]
    model.fit(by_hand[:FITTED], y[:FITTED])
    np.testing.assert_allclose(model.predict_proba(by_hand[FITTED:]), scaled.predict_proba(x[FITTED:]), atol=1e-3)
    assert scaled.score(x[FITTED:], y[FITTED:]) > 0.5
    with pytest.raises(ValueError, match=r"X\[1\] has the shape \(0,\)"):
        model.predict([x[0], np.zeros(0)])


@pytest.mark.parametrize("pool", ["tokens", "all", "around1", "mean"])
def test_a_warning_says_which_columns_read_only_the_beginning_of_longer_rows(pool, tiny_gpt2, recwarn):
    x, y = series(40)
    settings = {"backbone": str(tiny_gpt2), "layers": "embed", "pool": pool, "compute": "float32"}
    longer = [np.append(row, row[:9]) for row in x[:3]]
    model = ReservoirTransformer(**settings).fit(x)
    features = model.transform(longer)
    if pool == "mean":
        assert len(recwarn) == 0
        return
    (warning,) = recwarn
    message = f"X: 3 rows are longer than any row of the fit; embed/{pool} read the first 40 tokens"
    assert (str(warning.message), warning.filename) == (message, __file__)
    if pool == "all":
        np.testing.assert_array_equal(features, model.set_params(pool="tokens").fit(x).transform(longer))
    classifier = ReservoirClassifier(**settings).fit(x, y)
    with pytest.warns(UserWarning, match="read the first 40 tokens") as caught:
        assert classifier.predict(longer).shape == (3,)
    assert caught[0].filename == __file__


def test_lists_go_through_cross_validation_and_objects_are_lists(tiny_gpt2):
    x, y, _ = ragged(40)
    model = ReservoirClassifier(backbone=str(tiny_gpt2), pool="std", cv=3)
    assert cross_val_score(model, x, y, cv=2).shape == (2,)
    one, other = model.fit(x, y).predict_proba(x), model.fit(np.array(x, object), y).predict_proba(np.array(x, object))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [ReservoirClassifier, ReservoirRegressor])
def test_a_sample_of_weight_2_counts_as_two(kind, tiny_gpt2):
    x, y = series(40)
    if kind is ReservoirRegressor:
        y = np.abs(np.diff(x)).mean(axis=1)
    times = np.random.default_rng(3).integers(0, 3, 40)
    number = np.repeat(np.arange(40), times)
    thirds = [(np.flatnonzero(np.arange(40) % 3 != k), np.flatnonzero(np.arange(40) % 3 == k)) for k in range(3)]
    again = [tuple(np.flatnonzero(np.isin(number, part)) for part in fold) for fold in thirds]
    settings = {"backbone": str(tiny_gpt2), "pool": "std,max"}
    weighted = kind(cv=thirds, **settings).fit(x, y, sample_weight=times)
    repeated = kind(cv=again, **settings).fit(x[number], y[number])
    np.testing.assert_allclose(weighted.cv_results_["score"], repeated.cv_results_["score"], atol=1e-6)
    method = "predict_proba" if kind is ReservoirClassifier else "predict"
    np.testing.assert_allclose(getattr(weighted, method)(x), getattr(repeated, method)(x), rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"cv": 5}, {"cv": KFold(5)}, {"groups": np.arange(20) // 2}])
def test_a_sample_of_weight_0_is_in_no_fold(settings, tiny_gpt2):
    x = np.random.default_rng(0).normal(size=(20, 16))
    y = x[:, 0] + x[:, 1]
    # How often a bootstrap drew each sample, as in `BaggingRegressor`: five folds of all samples would be drawn so that
    # one of them has no sample with a weight in some repetition. Folds that KFold gives do hold such samples out.
    times = np.array([2, 0, 1, 0, 0, 1, 0, 0, 2, 0, 0, 0, 2, 1, 2, 2, 0, 2, 4, 1])
    parameters, groups = {"cv": settings.get("cv")}, settings.get("groups")
    model = ReservoirRegressor(backbone=str(tiny_gpt2), layers="embed", pool="mean", **parameters)
    scores = model.fit(x, y, sample_weight=times, groups=groups).cv_results_["score"]
    assert np.isfinite(scores).all()
    if not isinstance(model.cv, KFold):
        drawn = times > 0
        groups_of_drawn = None if groups is None else groups[drawn]
        without = clone(model).fit(x[drawn], y[drawn], sample_weight=times[drawn], groups=groups_of_drawn)
        np.testing.assert_allclose(scores, without.cv_results_["score"], rtol=1e-6)


def test_a_sample_of_weight_0_decides_nothing(tiny_gpt2):
    x, y = letters(40)
    model = ReservoirClassifier(backbone=str(tiny_gpt2), pool="mean,max")
    # The last row is longer than the others and has a symbol of its own.
    longer, weights = [*x, np.full(50, 9)], np.append(np.ones(40), 0)
    weighted = clone(model).fit(longer, [*y, "other"], sample_weight=weights)
    without = model.fit(x, y)
    assert (weighted.vocabulary_, weighted._plan.reservoir) == (4, without._plan.reservoir)
    assert (weighted.n_features_in_, without.n_features_in_) == (50, 14)
    np.testing.assert_array_equal(weighted.cv_results_["score"], without.cv_results_["score"])
    np.testing.assert_allclose(weighted.predict_proba(list(x)), without.predict_proba(x), atol=1e-6)
    # An outlier that would be refused.
    x, y = series(40)
    x[0] = 1e30
    model.fit(x, y, sample_weight=np.arange(40) > 0)
    assert np.isfinite(model.predict_proba(x[1:])).all()


def test_a_number_of_folds_of_numpy_keeps_groups_together(tiny_gpt2):
    x, y = series(60)
    model = ReservoirClassifier(backbone=str(tiny_gpt2), pool="std")
    numbers = [
        model.set_params(cv=cv).fit(x, y, groups=np.arange(60) // 6).cv_results_["score"] for cv in (5, np.int64(5))
    ]
    np.testing.assert_array_equal(*numbers)


@pytest.mark.usefixtures("shipped_defaults")
def test_groups_are_held_out_together(tiny_gpt2):
    x, y = series(60)
    subject = np.arange(60) // 6
    model = ReservoirClassifier(backbone=str(tiny_gpt2), pool="std")
    by_subject = model.fit(x, y, groups=subject)
    codes = np.unique(y, return_inverse=True)[1][:, None]
    folds = by_subject._fold_numbers(x, codes, subject, np.ones(60, bool), classifier=True)
    assert folds.shape == (60, 5)
    assert all(len(np.unique(folds[subject == s, deal])) == 1 for s in range(10) for deal in range(5))
    model.set_params(cv=GroupKFold(3)).fit(x, y, groups=subject)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[60, 59\]"):
        model.set_params(cv=3).fit(x, y, groups=subject[:59])
    for missing in ([1.0, 1.0, np.nan], ["a", "a", None]):
        with pytest.raises(ValueError, match=r"groups\[2\] is missing; give every sample a value"):
            model.fit(x, y, groups=missing * 20)
    with pytest.raises(ValueError, match="two groups or more, but there is 1"):
        model.set_params(cv=None).fit(x, y, groups=np.zeros(60))


def test_the_transformer_returns_the_features_of_extract(tmp_path, cache, tiny_gpt2):
    x, y = series()
    np.savez(tmp_path / "d.npz", x=x, y=y, split=np.repeat(["train", "valid", "test"], [50, 20, 20]))
    kept = extract(str(tmp_path / "d.npz"), backbone=str(tiny_gpt2), compute="float32")
    model = ReservoirTransformer(backbone=str(tiny_gpt2), compute="float32").fit(x[:50])
    assert tuple(model.columns_) == kept.columns
    expected = np.concatenate([kept["test"][column].reshape(20, -1) for column in kept.columns], axis=1)
    found = model.transform(x[70:])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    names = model.get_feature_names_out()
    assert (len(names), names[0], names[-1]) == (found.shape[1], "embed/quantiles9/0", "block01/segments8/127")
    frame = pandas.DataFrame(x, columns=[f"t{i}" for i in range(40)]).assign(age=1.5)
    plain = ReservoirTransformer(backbone=str(tiny_gpt2), compute="float32")
    both = ColumnTransformer([("series", plain, slice(0, 40)), ("rest", "passthrough", ["age"])])
    table = both.set_output(transform="pandas").fit(frame[:50]).transform(frame[70:])
    assert list(table.columns[[0, -1]]) == ["series__embed/quantiles9/0", "rest__age"]
    np.testing.assert_allclose(table.to_numpy()[:, :-1], found, atol=1e-4)
    assert make_pipeline(plain, RidgeClassifier()).fit(x[:70], y[:70]).score(x[70:], y[70:]) > 0.5


def test_channels_may_come_first_and_a_warning_says_when_they_seem_to(tiny_gpt2):
    x, y = series(40)
    last = np.stack([x, x[::-1]], axis=2)  # (samples, values, channels)
    settings = {"backbone": str(tiny_gpt2), "pool": "std", "compute": "float32"}
    expected = ReservoirClassifier(**settings).fit(last, y).predict_proba(last)
    first = last.swapaxes(1, 2)
    model = ReservoirClassifier(channels_first=True, **settings).fit(first, y)
    np.testing.assert_array_equal(model.predict_proba(first), expected)
    np.testing.assert_array_equal(model.predict_proba(list(first)), expected)
    with pytest.warns(UserWarning, match=r"channels_first=True"):
        ReservoirClassifier(**settings).fit(first, y)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_cells_of_a_table_may_hold_series(kind, tiny_gpt2):
    x, y, _ = ragged(40)
    rows = [np.stack([row, -row], axis=1) for row in x]
    if kind == "pandas":
        table = pandas.DataFrame({f"dim_{c}": [pandas.Series(row[:, c]) for row in rows] for c in range(2)})
    else:

        class Polars(dict):
            columns = ("a", "b")
            __len__ = lambda self: 40  # noqa: E731

        table = Polars({name: pandas.Series([row[:, c].tolist() for row in rows]) for c, name in enumerate("ab")})
    model = ReservoirClassifier(backbone=str(tiny_gpt2), pool="std", compute="float32")
    expected = model.fit(rows, y).predict_proba(rows)
    np.testing.assert_array_equal(model.fit(table, y).predict_proba(table), expected)
    model.set_params(channels_first=True)  # which the columns of a table are already
    np.testing.assert_array_equal(model.fit(table, y).predict_proba(table), expected)
    with pytest.raises(ValueError, match=r"several lengths"):
        model.fit(pandas.DataFrame({"b": [1.0, 2.0], "a": [np.ones(3), np.ones(4)]}), [0, 1])


@pytest.mark.parametrize("column", [list, pandas.Series, lambda rows: pandas.DataFrame({"moves": rows})])
def test_lists_have_any_length_and_are_read_by_one_rule_in_a_column_too(column, tiny_gpt2):
    x, y = letters()
    rows = [row[: 8 + n % 7] for n, row in enumerate(x.tolist())]
    model = ReservoirClassifier(backbone=str(tiny_gpt2), layers="embed").fit(column(rows), y)
    assert model.vocabulary_ == 4
    np.testing.assert_allclose(model.predict_proba(column(rows[:1])), model.predict_proba(rows)[:1], atol=1e-6)
    assert model.fit(column(x.tolist()), y).predict(column(rows[:1])).shape == (1,)


@pytest.mark.parametrize("missing", ["mask", "interpolate"])
def test_nan_is_masked_or_interpolated_as_in_files(missing, tmp_path, cache, tiny_gpt2):
    x, y = series(70)
    x = np.where(np.random.default_rng(5).random(x.shape) < 0.1, np.nan, x)
    np.savez(tmp_path / "d.npz", x=x[:, :, None], y=y, split=np.repeat(["train", "valid", "test"], [50, 19, 1]))
    settings = {"backbone": str(tiny_gpt2), "compute": "float32", "missing": missing}
    given = extract(str(tmp_path / "d.npz"), store="float32", **settings)
    model = ReservoirTransformer(**settings).fit(x[:50])
    found = np.concatenate([given.store["train"][column] for column in model.columns_], axis=-1)
    np.testing.assert_allclose(model.transform(x[:50]), found[:, 0] if found.ndim == 3 else found, atol=2e-3)
    masked = np.ma.masked_array(np.nan_to_num(x), np.isnan(x))
    lists = [row[:30] for row in masked]
    assert ReservoirClassifier(**settings).fit(lists, y).score(x[:, :30], y) > 0.5
    for wrong, message in (("refuse", "NaN in row 0; pass missing='mask'"), ("interpolation", "choose among refuse")):
        with pytest.raises(ValueError, match=message):
            ReservoirClassifier(**settings | {"missing": wrong}).fit(masked, y)


def test_a_sample_may_have_several_labels(tiny_gpt2):
    x, y = series(80)
    several = np.stack([y == "a", y != "c", x[:, 0] > 5], axis=1).astype(int)
    model = ReservoirClassifier(backbone=str(tiny_gpt2), compute="float32").fit(x[:60], several[:60])
    found, chance = model.predict(x[60:]), model.predict_proba(x[60:])
    assert found.shape == chance.shape == model.decision_function(x[60:]).shape == (20, 3)
    np.testing.assert_array_equal(found, chance > 0.5)
    assert (found == several[60:]).mean() > 0.75
    alone = ReservoirClassifier(backbone=str(tiny_gpt2), compute="float32", cv=model.cv).fit(x[:60], several[:60, 0])
    assert (alone.predict(x[60:]) == found[:, 0]).mean() > 0.8
    assert cross_val_score(model, x, several, cv=3).shape == (3,)
    with pytest.raises(ValueError, match=r"give multilabel targets as 0 or 1.*MultiOutputClassifier"):
        model.fit(x, several + 1)
    with pytest.raises(ValueError, match=r"y\[1\] is missing"):
        model.fit(x, ["a", None, *y[2:]])
