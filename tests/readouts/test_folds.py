"""Assignment of rows to folds, and held-out scores from a kernel matrix, equal to refits without each fold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedGroupKFold

from reservoir.errors import InputError
from reservoir.readouts.folds import _scores, draw_folds, draw_ranks, kernel_matrix, score_by_kernel
from reservoir.readouts.targets import Targets


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(2, 60), data=st.data(), seed=st.integers(0, 99))
def test_folds_are_balanced_and_stratified(rows, data, seed):
    folds = data.draw(st.integers(2, rows))
    labels = np.random.default_rng(seed).integers(0, 4, rows)
    for kind in (None, labels):
        fold = draw_folds(rows, folds, labels=kind, repeat=seed)
        assert fold.shape == (rows,)
        assert np.ptp(np.bincount(fold, minlength=folds)) <= 1
        np.testing.assert_array_equal(fold, draw_folds(rows, folds, labels=kind, repeat=seed))
    for label in range(4):
        assert np.ptp(np.bincount(fold[labels == label], minlength=folds)) <= 1


def test_any_first_rows_of_a_draw_have_the_shares_of_all_classes():
    labels = np.random.default_rng(0).choice(4, 200, p=[0.6, 0.3, 0.08, 0.02])
    ranks = draw_ranks(200, labels)
    for size in (1, 10, 50, 100, 200):
        counts = np.bincount(labels[ranks < size], minlength=4)
        assert counts.sum() == size
        assert np.abs(counts - size * np.bincount(labels) / 200).max() < 2
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


def test_group_folds_are_as_balanced_as_in_scikit_learn():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 60, 900)
    labels = (rng.random(900) < np.where(groups < 20, 0.8, 0.2)).astype(int)  # classes go with groups

    def spread(fold):
        counts = np.array([np.bincount(labels[fold == k], minlength=2) for k in range(5)])
        return (np.ptp(counts, axis=0) / counts.mean(axis=0)).max()

    theirs = np.zeros(900, int)
    for k, (_, held) in enumerate(StratifiedGroupKFold(5, shuffle=True, random_state=0).split(labels, labels, groups)):
        theirs[held] = k
    ours = [spread(draw_folds(900, 5, labels=labels, groups=groups, repeat=repeat)) for repeat in range(5)]
    assert max(ours) < 0.3
    assert np.mean(ours) <= spread(theirs) + 0.05
    sizes = np.bincount(draw_folds(900, 5, groups=groups))
    assert np.ptp(sizes) <= 20


def test_repeats_give_different_folds():
    labels = np.arange(40) % 2
    groups = np.arange(40) // 2
    for settings_ in ({}, {"labels": labels}, {"groups": groups}, {"labels": labels, "groups": groups}):
        assert len({draw_folds(40, 4, repeat=repeat, **settings_).tobytes() for repeat in range(6)}) == 6


def test_fewer_rows_or_groups_than_folds_are_refused():
    with pytest.raises(InputError, match="5 folds of 4 rows"):
        draw_folds(4, 5)
    with pytest.raises(InputError, match="4 folds of 3 groups"):
        draw_folds(6, 4, groups=np.array([0, 0, 1, 1, 2, 2]))
    with pytest.raises(InputError, match="1 folds"):
        draw_folds(4, 1)


def data(classes):
    draw = np.random.default_rng(0)
    x = draw.normal(3, 2, (40, 60))
    x[:, 5] = 7
    y = draw.integers(0, classes, (40, 1)) if classes else x[:, :2] @ [[1, 0], [1, 2]] + draw.normal(0, 1, (40, 2))
    return x, y, Targets(y.shape[1], classes)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_held_out_scores_equal_refits_on_the_other_folds(classes):
    x, y, targets = data(classes)
    folds = draw_folds(40, 5)
    z = np.where(x.std(0) > 0, (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1), 0)
    coded = targets.encode(y)
    alphas = np.array([0.5, 300.0])
    for alpha, scores in _scores(kernel_matrix(x), coded, folds[None], alphas):
        wanted = np.empty_like(scores[0])
        for k in range(5):
            model = Ridge(alpha).fit(z[folds != k], coded[folds != k])
            wanted[folds == k] = model.predict(z[folds == k]).reshape(-1, coded.shape[1])
        np.testing.assert_allclose(scores[0], wanted, atol=2e-4)


def test_ties_in_accuracy_go_to_the_smaller_loss():
    draw = np.random.default_rng(1)
    y = np.arange(30)[:, None] % 2
    x = 4.0 * y + draw.normal(0, 0.5, (30, 8))
    folds = np.stack([draw_folds(30, 5, repeat=r) for r in range(2)])
    found = score_by_kernel(kernel_matrix(x), y, Targets(1, 2), folds)
    larger = score_by_kernel(kernel_matrix(x), y, Targets(1, 2), folds, np.array([500.0]))
    assert found.score == larger.score == 1
    assert found.alpha < larger.alpha
    assert found.loss < larger.loss
    assert found.losses.shape == (30,)
    assert np.isclose(found.losses.mean(), found.loss)
