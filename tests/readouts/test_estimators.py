"""The estimators pass scikit-learn's checks and equal its pipelines and cross-validation."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import (
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_predict,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelBinarizer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from reservoir.readouts import RidgeSweepClassifier, RidgeSweepRegressor

ALPHAS = np.logspace(-2, 4, 7)


@parametrize_with_checks([RidgeSweepClassifier(), RidgeSweepClassifier(class_weight="balanced"), RidgeSweepRegressor()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("load", [load_iris, load_wine])
@pytest.mark.parametrize("classes", [2, 3])
def test_classifier_chooses_as_a_grid_search(load, classes):
    x, y = load(return_X_y=True)
    x, y = x[y < classes], np.array(["a", "b", "c"])[y[y < classes]]
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    ours = RidgeSweepClassifier(ALPHAS, cv=folds).fit(x, y)
    z = StandardScaler().fit_transform(x)
    coded, losses = LabelBinarizer(neg_label=-1).fit_transform(y), []
    for alpha, score in zip(ours.alphas_, ours.cv_scores_, strict=True):
        np.testing.assert_allclose(score, np.mean(cross_val_predict(RidgeClassifier(alpha), z, y, cv=folds) == y))
        scores = cross_val_predict(RidgeClassifier(alpha), z, y, cv=folds, method="decision_function")
        losses.append(np.square(scores.reshape(coded.shape) - coded).sum())
    best = ours.cv_scores_ == ours.cv_scores_.max()
    assert ours.alpha_ == ALPHAS[best][np.argmin(np.array(losses)[best])]
    theirs = make_pipeline(StandardScaler(), RidgeClassifier(alpha=ours.alpha_)).fit(x, y)
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(ours.predict(x), theirs.predict(x))
    assert ours.coef_.shape == (len(ours.intercept_), x.shape[1]) == (1 if classes == 2 else classes, x.shape[1])
    np.testing.assert_array_equal(ours.classes_[ours.predict_proba(x).argmax(1)], ours.predict(x))


@pytest.mark.parametrize("targets", [1, 3])
def test_regressor_equals_a_ridge_pipeline(targets):
    x, y = load_diabetes(return_X_y=True)
    if targets > 1:
        y = np.stack([y, y**2, x[:, 0]], axis=1)
    ours = RidgeSweepRegressor(ALPHAS).fit(x, y)
    theirs = make_pipeline(StandardScaler(), Ridge(alpha=ours.alpha_)).fit(x, y)
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), rtol=1e-8)
    assert ours.predict(x).shape == y.shape
    z = StandardScaler().fit_transform(x)
    held_out = cross_val_predict(Ridge(ours.alpha_), z, y, cv=KFold(5))
    residuals = np.square(y - held_out).sum(0) / np.square(y - y.mean(0)).sum(0)
    np.testing.assert_allclose(ours.best_score_, 1 - np.mean(residuals))


def test_balanced_weights_are_repeated_samples():
    x, y = load_iris(return_X_y=True)
    keep = np.r_[50:100, 110:130]
    x, y = x[keep], y[keep]
    balanced = RidgeSweepClassifier([3.0], class_weight="balanced").fit(x, y)
    repeated = make_pipeline(StandardScaler(), RidgeClassifier(alpha=3.0 * 20 / 7))
    repeated.fit(np.repeat(x, np.where(y == 1, 2, 5), axis=0), np.repeat(y, np.where(y == 1, 2, 5)))
    np.testing.assert_allclose(balanced.decision_function(x), repeated.decision_function(x), rtol=1e-8)


def test_wrong_settings_are_refused():
    x, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="holds sample"):
        RidgeSweepClassifier(cv=ShuffleSplit(3, random_state=0)).fit(x, y)
    with pytest.raises(ValueError, match="must be positive"):
        RidgeSweepRegressor([0.0]).fit(x, y)
    with pytest.raises(ValueError, match="1 class"):
        RidgeSweepClassifier().fit(x, np.zeros(len(x), int))
