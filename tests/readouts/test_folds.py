"""Folds: assignment, and held-out scores equal to real refits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reservoir_pipelines.fitting.folds import draw_folds, draw_ranks
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler

from reservoir.errors import InputError
from reservoir.readouts.linear import Tally, Targets
from reservoir.readouts.moments import fold_moments, training_moments
from reservoir.readouts.penalties import best_penalty
from reservoir.readouts.ridge import KernelMatrix, kernel_fold_scores, primal_system
from reservoir.readouts.sweep import cross_sweep, sweep


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(2, 60), data=st.data(), seed=st.integers(0, 99))
def test_folds_are_balanced_and_stratified(rows, data, seed):
    folds = data.draw(st.integers(2, rows))
    labels = np.random.default_rng(seed).integers(0, 4, rows)
    for kind in (None, labels):
        fold = draw_folds(rows, folds, labels=kind, repeat=seed)
        assert fold.shape == (rows,) and np.ptp(np.bincount(fold, minlength=folds)) <= 1
        np.testing.assert_array_equal(fold, draw_folds(rows, folds, labels=kind, repeat=seed))
    if np.bincount(labels).max() >= folds:  # else scikit-learn cannot stratify
        for label in range(4):
            assert np.ptp(np.bincount(fold[labels == label], minlength=folds)) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_folds_are_those_of_scikit_learn(seed):
    # The first label is not the smallest, and classes have different numbers of rows.
    labels, groups = np.random.default_rng(seed).choice([3, 0, 7], 60, p=[0.6, 0.3, 0.1]), np.arange(60) // 2
    assert (np.bincount(labels) >= 5).any()
    for splitter, settings_ in (
        (KFold, {}),
        (StratifiedKFold, {"labels": labels}),
        (GroupKFold, {"groups": groups}),
        (StratifiedGroupKFold, {"labels": labels, "groups": groups}),
    ):
        fold = draw_folds(60, 5, **settings_, repeat=1)
        splits = splitter(5, shuffle=True, random_state=1).split(labels, labels, settings_.get("groups"))
        for number, (_, held_out) in enumerate(splits):
            np.testing.assert_array_equal(np.flatnonzero(fold == number), held_out)


@pytest.mark.parametrize("grouped", [False, True])
def test_classes_with_fewer_rows_than_folds_are_not_stratified(grouped, recwarn):
    groups = np.arange(12) if grouped else None
    for labels in (np.arange(12), np.arange(12) % 4, np.r_[np.zeros(10, int), 1, 2]):
        fold = draw_folds(12, 5, labels=labels, groups=groups)
        assert sorted(np.bincount(fold)) == [2, 2, 2, 3, 3]
    assert not recwarn.list


@settings(max_examples=200, deadline=None)
@given(folds=st.integers(2, 8), more=st.integers(0, 2), seed=st.integers(0, 10_000))
def test_no_fold_is_empty_if_groups_are_as_few_as_folds(folds, more, seed):
    rng = np.random.default_rng(seed)  # scikit-learn's issue 34828: StratifiedGroupKFold left folds empty
    groups = np.repeat(np.arange(folds + more), rng.integers(1, 9, folds + more))
    labels = rng.integers(0, 3, len(groups))
    fold = draw_folds(len(groups), folds, labels=labels, groups=groups)
    assert len(np.unique(fold)) == folds and len(np.unique(np.stack([fold, groups]), axis=1).T) == folds + more


def test_any_first_rows_of_a_draw_have_the_shares_of_all_classes():
    labels = np.random.default_rng(0).choice(4, 200, p=[0.6, 0.3, 0.08, 0.02])
    ranks = draw_ranks(200, labels)
    for size in (1, 10, 50, 100, 200):
        counts = np.bincount(labels[ranks < size], minlength=4)
        assert counts.sum() == size and np.abs(counts - size * np.bincount(labels) / 200).max() < 2
    assert (ranks != draw_ranks(200, labels, 1)).any()


@settings(max_examples=50, deadline=None)
@given(folds=st.integers(2, 5), seed=st.integers(0, 99), stratified=st.booleans())
def test_groups_stay_in_one_fold(folds, seed, stratified):
    rng = np.random.default_rng(seed)
    names = np.array(["a", "b", "c", "d", "e", "f", "g"])
    groups = np.concatenate([names, rng.choice(names, 80)])
    labels = rng.integers(0, 3, len(groups)) if stratified else None
    fold = draw_folds(len(groups), folds, labels=labels, groups=groups, repeat=seed % 3)
    assert all(len(np.unique(fold[groups == name])) == 1 for name in names)
    assert len(np.unique(fold)) == folds


def test_group_folds_have_equal_shares_of_classes():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 60, 900)
    labels = (rng.random(900) < np.where(groups < 20, 0.8, 0.2)).astype(int)  # the group predicts the class
    for repeat in range(5):
        fold = draw_folds(900, 5, labels=labels, groups=groups, repeat=repeat)
        counts = np.array([np.bincount(labels[fold == k], minlength=2) for k in range(5)])
        assert (np.ptp(counts, axis=0) / counts.mean(axis=0)).max() < 0.3
    # Without labels, scikit-learn draws equal numbers of groups.
    of_groups = draw_folds(900, 5, groups=groups)
    assert [len(np.unique(groups[of_groups == k])) for k in range(5)] == [12] * 5


def test_repeats_give_different_folds():
    labels, groups = np.arange(40) % 2, np.arange(40) // 2
    for settings_ in ({}, {"labels": labels}, {"groups": groups}, {"labels": labels, "groups": groups}):
        assert len({draw_folds(40, 4, repeat=repeat, **settings_).tobytes() for repeat in range(6)}) == 6


def test_fewer_rows_or_groups_than_folds_are_refused():
    with pytest.raises(InputError, match="4 rows"):
        draw_folds(4, 5)
    with pytest.raises(InputError, match="3 groups"):
        draw_folds(6, 4, groups=np.array([0, 0, 1, 1, 2, 2]))
    with pytest.raises(InputError, match="groups"):
        draw_folds(6, 1, groups=np.zeros(6))
    for refused in (lambda: draw_folds(4, 1), lambda: cross_sweep([], Targets(1, 2), folds=1)):
        with pytest.raises(InputError, match="1 folds"):
            refused()


@pytest.mark.parametrize("classes", [0, 2, 3, 30])  # 30 classes are more than the rows of a fold, and some are absent
def test_scores_in_both_forms_equal_refits_on_the_other_folds(classes):
    draw, folds = np.random.default_rng(0), draw_folds(40, 5)
    x = draw.normal(3, 2, (40, 60)).astype(np.float32)
    x[:, 5] = 7
    y = draw.integers(0, classes, (40, 1)) if classes else x[:, :2] @ [[1, 0], [1, 2]] + draw.normal(0, 1, (40, 2))
    targets, alphas = Targets(y.shape[1], classes), np.array([0.5, 2, 10, 70, 300])
    z, coded = StandardScaler().fit_transform(x.astype(np.float64)), targets.coded(y)
    scale = training_moments([(x, y)], targets).scale()
    by_kernel = kernel_fold_scores(KernelMatrix(x).products, np.ones(40), coded, folds, alphas)
    for held in (folds == k for k in range(5)):
        moments = training_moments([(x[~held], y[~held])], targets)
        scorer = primal_system(moments, scale).scorer(alphas, held.sum(), targets)
        models = [Ridge(alpha).fit(z[~held], coded[~held]) for alpha in alphas]
        wanted = np.stack([model.predict(z[held]).reshape(held.sum(), -1) for model in models])
        np.testing.assert_allclose(by_kernel[:, held], wanted, atol=2e-4)
        for chosen in (slice(None), slice(1, 2)):
            np.testing.assert_allclose(scorer(x[held], chosen), wanted[chosen], atol=1e-5)


ALPHAS = np.logspace(-1, 4, 6)


def data(rows, width, classes, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)) + 5
    noisy = (x - 5) @ rng.standard_normal((width, max(classes, 1))) + rng.standard_normal((rows, max(classes, 1)))
    y = noisy.argmax(-1)[:, None] if classes > 2 else (noisy[:, :1] > 0).astype(int) if classes else noisy
    return x, y


def blocks(x, y, fold, size=37):
    return [(x[i : i + size], y[i : i + size], fold[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize(("rows", "width"), [(150, 20), (40, 60)])
@pytest.mark.parametrize("stored", [False, True])
def test_held_out_scores_equal_refits_on_the_other_folds(classes, rows, width, stored):
    x, y = data(rows, width, classes)
    fold = np.random.default_rng(1).integers(0, 4, rows)
    targets = Targets(1, classes)
    moments = fold_moments(blocks(x, y, fold), targets, 4) if stored else None
    found = cross_sweep(blocks(x, y, fold), targets, ALPHAS, folds=4, moments=moments)
    z = StandardScaler().fit_transform(x)
    for i, alpha in enumerate(ALPHAS):
        tally = Tally(targets)
        for k in range(4):
            ridge = Ridge(alpha=alpha) if classes == 0 else RidgeClassifier(alpha=alpha)
            model = ridge.fit(z[fold != k], y[fold != k].ravel())
            scores = model.decision_function(z[fold == k]) if classes else model.predict(z[fold == k])
            tally.update(scores.reshape(1, -1, targets.columns), y[fold == k])
        np.testing.assert_allclose(found.accuracy[i], tally.accuracy()[0], rtol=1e-6)
    expected = sweep([(x, y)], [(x, y)], targets, ALPHAS).path.coef
    np.testing.assert_allclose(found.path.solve(ALPHAS).coef, expected, rtol=1e-6, atol=1e-9)
    assert (found.temperature == 1) == (classes == 0)
    assert found.readout().temperature == found.temperature


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize(("rows", "width"), [(150, 20), (40, 60)])
@pytest.mark.parametrize("stored", [False, True])
def test_repeats_are_averaged(classes, rows, width, stored):
    x, y = data(rows, width, classes)
    targets = Targets(1, classes)
    deals = [draw_folds(rows, 4, labels=y[:, 0] if classes else None, repeat=repeat) for repeat in range(3)]
    single = [cross_sweep(blocks(x, y, fold), targets, ALPHAS, folds=4) for fold in deals]
    moments = [part for fold in deals for part in fold_moments(blocks(x, y, fold), targets, 4)] if stored else None
    together = blocks(x, y, np.stack(deals, axis=1))
    found = cross_sweep(together, targets, ALPHAS, folds=4, repeats=3, moments=moments)
    np.testing.assert_allclose(found.accuracy, np.mean([one.accuracy for one in single], axis=0), rtol=1e-9)
    coef, alone = (one.path.solve(ALPHAS).coef for one in (found, single[0]))
    np.testing.assert_allclose(coef, alone, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.loss, np.mean([one.loss for one in single], axis=0), rtol=1e-9)
    assert found.best == best_penalty(ALPHAS, found.accuracy, found.loss)
    if found.best == single[0].best:
        assert found.temperature == pytest.approx(single[0].temperature)


@pytest.mark.parametrize("classes", [0, 2])
def test_one_standard_error_takes_the_largest_penalty_within_it(classes):
    x, y = data(90, 30, classes)
    x += np.random.default_rng(5).standard_normal(x.shape)
    targets, fold = Targets(1, classes), draw_folds(90, 6)
    alphas = np.geomspace(0.1, 1e4, 16)
    found = cross_sweep(blocks(x, y, fold), targets, alphas, folds=6, one_standard_error=True)
    plain = cross_sweep(blocks(x, y, fold), targets, alphas, folds=6)
    scores, z = [], StandardScaler().fit_transform(x)
    for k in range(6):
        ridge = RidgeClassifier(alpha=plain.alpha) if classes else Ridge(alpha=plain.alpha)
        scores.append(ridge.fit(z[fold != k], y[fold != k].ravel()).score(z[fold == k], y[fold == k].ravel()))
    limit = plain.accuracy[plain.best] - np.std(scores, ddof=1) / np.sqrt(6)
    assert found.alpha == alphas[plain.accuracy >= limit].max() and found.alpha > plain.alpha
    np.testing.assert_array_equal(found.accuracy, plain.accuracy)


def test_an_output_of_huge_values_does_not_decide_the_penalty_of_the_others():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((90, 30))
    good, heavy = x @ draw.standard_normal(30) + draw.standard_normal(90), draw.standard_cauchy(90) ** 3
    fold = draw_folds(90, 6)

    def chosen(*outputs):
        y = np.stack(outputs, axis=1)
        found = cross_sweep(blocks(x, y, fold), Targets(len(outputs), 0), ALPHAS, folds=6, one_standard_error=True)
        return found.best, found.tally.output_accuracies()[:, 0]

    alone, accuracies = chosen(good)
    best, with_heavy = chosen(good, heavy)
    np.testing.assert_allclose(with_heavy, accuracies, rtol=1e-6)
    assert accuracies[best] > 0.9 * accuracies[alone] > 0.5 and accuracies[-1] < 0.1


@pytest.mark.parametrize("width", [10, 200])
def test_weighted_folds_are_weighted_refits(width):
    x, y = data(120, width, 2)
    fold, weights = np.arange(120) % 3, np.where(y[:, 0] == 1, 4.0, 1.0)
    targets = Targets(1, 2, (1.0, 4.0))
    found = cross_sweep(blocks(x, y, fold), targets, ALPHAS, folds=3)
    z = StandardScaler().fit(x, sample_weight=weights).transform(x)
    for accuracy, alpha in zip(found.accuracy, ALPHAS, strict=True):
        predicted = np.zeros(120, int)
        for k in range(3):
            ridge = RidgeClassifier(alpha).fit(z[fold != k], y[fold != k, 0], weights[fold != k])
            predicted[fold == k] = ridge.predict(z[fold == k])
        # Class weights say that the samples of a class count together, whatever their weights in fitting.
        np.testing.assert_allclose(accuracy, balanced_accuracy_score(y[:, 0], predicted))


def test_channel_that_varies_in_one_fold_is_not_scaled_up_elsewhere():
    """Rounding errors of a constant differ between float16 blocks; scaled to variance 1 they would be noise."""
    for width in (20, 300):
        x, y = data(120, width, 2)
        fold, rng = np.arange(120) % 4, np.random.default_rng(0)
        exact, rounded = (np.concatenate([x, np.zeros((120, 40))], axis=1) for _ in range(2))
        rounded[:, width:] = 1e-7 * rng.standard_normal((120, 40))
        exact[0, width:] = rounded[0, width:] = 1.0
        a, b = (cross_sweep(blocks(values, y, fold), Targets(1, 2), ALPHAS, folds=4) for values in (exact, rounded))
        np.testing.assert_allclose(a.accuracy, b.accuracy)
        np.testing.assert_allclose(a.readout().scores(exact), b.readout().scores(rounded), rtol=1e-5, atol=1e-5)
