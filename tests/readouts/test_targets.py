"""Coding of labels, accuracy and calibration, intervals and p-values, compared with scikit-learn and scipy."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from scipy.stats import binom, binomtest
from sklearn import metrics
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, r2_score

from reservoir.readouts.evaluation import (
    accuracy_interval,
    balanced_interval,
    evaluate_blocks,
    evaluate_classes,
    evaluate_labels,
    evaluate_values,
    recall_at_rate,
    standard_error,
    threshold_for_rate,
)
from reservoir.readouts.kernel_ridge import KernelReadout, Standardised
from reservoir.readouts.linear import Tally, Targets, balanced_weights, samples, unsample
from reservoir.readouts.paired import (
    mcnemar,
    p_value_of_difference,
    paired_difference,
    paired_interval,
    sign_flips,
    verdict_of_difference,
)
from reservoir.readouts.penalties import best_penalty
from reservoir.readouts.sweep import sweep


@given(
    classes=st.integers(2, 6),
    outputs=st.integers(1, 4),
    rows=st.integers(1, 9),
    lead=st.integers(0, 3),
    seed=st.integers(0, 9),
)
def test_predict_inverts_encode(classes, outputs, rows, lead, seed):
    targets = Targets(outputs, classes)
    y = np.random.default_rng(seed).integers(0, classes, (rows, outputs))
    coded = targets.coded(y)
    assert coded.shape == (rows, targets.columns) and coded.dtype == np.float32
    assert set(np.unique(coded)) <= {-1, 1}
    np.testing.assert_array_equal(targets.predict(coded), y)
    np.testing.assert_array_equal(targets.predict(np.stack([coded] * (lead + 1)))[lead], y)
    np.testing.assert_array_equal(targets.probabilities(coded).argmax(-1), y)
    np.testing.assert_allclose(targets.probabilities(coded, 0.3).sum(-1), 1, rtol=1e-6)
    assert Tally(targets).update(coded[None], y).accuracy() == 1


def test_regression_targets_are_not_encoded():
    y = np.array([[1.5, -2.0], [3.25, 0.0]])
    for dtype in (np.float32, np.float64):
        assert Targets(2, 0).coded(y.astype(dtype)).dtype == dtype
    np.testing.assert_array_equal(Targets(2, 0).predict(Targets(2, 0).coded(y)), y)


@given(rows=st.integers(1, 5), tokens=st.integers(1, 4), readout=st.integers(1, 4), outputs=st.integers(1, 3))
def test_every_labelled_token_is_a_sample(rows, tokens, readout, outputs):
    x = np.arange(rows * tokens * 6).reshape(rows, tokens, 6)
    y = np.arange(rows * readout * outputs).reshape(rows, readout, outputs)
    features, labels = samples(x, y)
    if tokens == readout > 1:
        assert features.shape == (rows * tokens, 6) and labels.shape == (rows * tokens, outputs)
        np.testing.assert_array_equal(features[tokens - 1], x[0, -1])
        np.testing.assert_array_equal(labels[tokens - 1], y[0, -1])
    else:
        assert features.shape == (rows, tokens * 6) and labels.shape == (rows, readout * outputs)
    np.testing.assert_array_equal(unsample(labels, readout, outputs), y)
    np.testing.assert_array_equal(unsample(np.stack([labels] * 2, axis=-1), readout, outputs)[..., 1], y)


@settings(max_examples=30)
@given(
    classes=st.sampled_from([0, 2, 5]),
    outputs=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 50)).map(sorted),
    seed=st.integers(0, 9),
)
def test_tally_equals_scikit_learn_metrics(classes, outputs, cuts, seed):
    rng, targets = np.random.default_rng(seed), Targets(outputs, classes)
    scores = rng.standard_normal((3, 50, targets.columns))
    y = rng.integers(0, classes, (50, outputs)) if classes else rng.standard_normal((50, outputs)) + 1e4
    if not classes:
        scores += 1e4
    tally = Tally(targets)
    for block, labels in zip(np.split(scores, cuts, axis=1), np.split(y, cuts), strict=True):
        if len(labels):
            tally.update(block, labels)
    metric = (
        (lambda s: accuracy_score(y.ravel(), targets.predict(s).ravel())) if classes else (lambda s: r2_score(y, s))
    )
    np.testing.assert_allclose(tally.accuracy(), [metric(s) for s in scores], rtol=1e-9)


def test_r2_of_constant_targets_equals_scikit_learn():
    y = np.array([[2.0, 1.0], [2.0, 3.0]])
    for scores in (y, y + np.array([0.5, 0])):
        assert Tally(Targets(2, 0)).update(scores[None], y).accuracy() == r2_score(y, scores)
    with pytest.raises(ValueError, match="no samples"):
        Tally(Targets(1, 2)).accuracy()


@given(st.lists(st.tuples(*[st.sampled_from([0.1, 0.5, 0.9])] * 2), min_size=1, max_size=8), st.randoms())
def test_ties_go_to_the_smaller_loss_and_then_to_the_larger_penalty(found, random):
    alphas = [10.0**k for k in range(len(found))]
    random.shuffle(alphas)
    accuracies, losses = np.array(found).T
    best = best_penalty(np.array(alphas), accuracies, losses)
    ranks = [(score, -loss, alpha) for (score, loss), alpha in zip(found, alphas, strict=True)]
    assert ranks[best] == max(ranks)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_loss_is_the_squared_distance_from_the_coding(classes):
    rng, targets = np.random.default_rng(0), Targets(2, classes)
    y = rng.integers(0, classes, (40, 2)) if classes else rng.standard_normal((40, 2))
    scores = rng.standard_normal((5, 40, targets.columns))
    tally = Tally(targets).update(scores[:, :15], y[:15]).update(scores[:, 15:], y[15:])
    squares = [np.square(each - targets.coded(y)).sum() / 80 for each in scores]
    np.testing.assert_allclose(tally.loss(), squares if classes else 1 - tally.accuracy())


@pytest.mark.parametrize("classes", [2, 4])
def test_temperature_minimises_the_loss(classes):
    rng, targets = np.random.default_rng(0), Targets(1, classes)
    scores = rng.standard_normal((2000, targets.columns))
    chances = softmax(targets.logits(scores)[:, 0] / 0.4, axis=-1)
    y = (rng.random((2000, 1)) > chances.cumsum(-1)[:, :-1]).sum(-1, keepdims=True)
    found = targets.fit_temperature(scores, y)
    every = np.repeat(np.arange(classes), 2000)  # smoothed labels
    weights = np.where(every == np.tile(y[:, 0], classes), 1 - 1 / 2002, 1 / 2002 / (classes - 1))

    def loss(temperature):
        chances = np.tile(targets.probabilities(scores, temperature)[:, 0], (classes, 1))
        return log_loss(every, chances, sample_weight=weights)

    minimum = minimize_scalar(lambda log_t: loss(np.exp(log_t)), bounds=(-7, 7), method="bounded")
    assert found == pytest.approx(np.exp(minimum.x), rel=1e-4) and 0.3 < found < 0.5
    # Rows may have weights: those of some rows twice are those of these rows with weight 2.
    twice = np.r_[scores, scores[:500]], np.r_[y, y[:500]]
    weights = np.where(np.arange(2000) < 500, 2.0, 1.0)
    assert targets.fit_temperature(*twice) == pytest.approx(targets.fit_temperature(scores, y, weights))


def test_the_temperature_of_equal_logits_is_1_and_that_of_huge_scores_at_a_bound():
    y = np.arange(12)[:, None] % 3
    assert Targets(1, 3).fit_temperature(np.zeros((12, 3)), y) == 1
    wrong = 1e6 * np.eye(3)[(y[:, 0] + 1) % 3]
    assert Targets(1, 3).fit_temperature(wrong, y) == pytest.approx(np.exp(7))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("held", [8, 34, 200])
def test_calibration_never_increases_the_loss_on_separable_rows(classes, held):
    """If validation has no errors, the temperature must not go to 0, or the first error would have probability 0."""
    losses = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        centers = rng.standard_normal((classes, 20))

        def draw(rows, rng=rng, centers=centers):
            y = rng.integers(0, classes, rows)
            return centers[y] + rng.standard_normal((rows, 20)), y[:, None]

        train, valid, (x, y) = draw(120), draw(held), draw(2000)
        plain = sweep([train], [valid], Targets(1, classes)).readout()
        losses.append(
            [
                log_loss(y[:, 0], readout.probabilities(x)[:, 0], labels=np.arange(classes))
                for readout in (plain, plain.calibrate([valid]))
            ]
        )
    before, after = np.transpose(losses)
    assert (after <= before + 0.02).all() and after.mean() < 0.75 * before.mean()


@given(right=st.integers(0, 60), wrong=st.integers(0, 60))
def test_interval_of_one_output_per_row_is_wilsons(right, wrong):
    if right + wrong:
        theirs = binomtest(right, right + wrong).proportion_ci(method="wilson")
        ours = accuracy_interval(np.r_[np.ones(right), np.zeros(wrong)])
        np.testing.assert_allclose(ours, (theirs.low, theirs.high), atol=1e-5)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("together", [True, False])
def test_interval_treats_outputs_of_a_row_and_rows_of_a_group_as_dependent(together, grouped):
    groups = np.repeat(np.arange(100), 50)
    rng = np.random.default_rng(0)
    held, widths = 0, []
    for _ in range(1000):
        chance = rng.beta(1.6, 0.4, (100, 1)) if together else np.full((100, 1), 0.8)
        right = rng.random((100, 50)) < chance
        low, high = accuracy_interval(right.ravel(), groups=groups) if grouped else accuracy_interval(right.mean(1))
        held += low <= 0.8 <= high
        widths.append(high - low)
    assert 0.92 <= held / 1000 <= 0.975
    alone = 2 * 1.96 * np.sqrt(0.8 * 0.2 / 5000)
    assert (np.mean(widths) > 3 * alone) if together else (0.9 * alone < np.mean(widths) < 1.1 * alone)


def test_interval_of_balanced_accuracy_has_its_coverage():
    rng, y, held = np.random.default_rng(0), np.repeat([0, 1], [15, 400]), 0
    for _ in range(500):
        predicted = np.where(rng.random(415) < np.where(y, 0.9, 0.6), y, 1 - y)
        low, high = balanced_interval(evaluate_classes(y, predicted, ["rare", "common"]))
        held += low <= 0.75 <= high
    assert 0.92 <= held / 500 <= 0.98
    assert balanced_interval(evaluate_classes(y, y, ["rare", "common"], groups=y)) is None


def test_two_groups_have_no_interval_and_three_have_one():
    draw = np.random.default_rng(0)
    right, y = draw.random(60) < 0.7, draw.normal(size=(60, 1))
    predicted = (y + draw.normal(size=(60, 1)), y + draw.normal(size=(60, 1)))
    for groups, has_interval in ((np.arange(60) % 2, False), (np.arange(60) % 3, True)):
        evaluations = tuple(evaluate_values(y, values, groups=groups) for values in predicted)
        difference = paired_difference(evaluations, y, predicted, groups)
        intervals = [accuracy_interval(right, groups), *(one.interval for one in evaluations), difference.interval]
        assert [interval is not None for interval in intervals] == [has_interval] * 4


def test_interval_of_identical_rows_uses_their_number():
    # Rows with several outputs have the interval of groups, with Student's t.
    half = np.full(30, 0.5)
    assert accuracy_interval(half) == accuracy_interval(half, groups=np.arange(30))
    assert 1 < np.ptp(accuracy_interval(half)) / np.ptp(accuracy_interval(np.arange(30) % 2)) < 1.05
    assert accuracy_interval(np.array([0.8, 0.9])) is None and accuracy_interval(np.array([1, 0])) is not None
    low, high = accuracy_interval(np.ones(30))
    assert 0.88 < low < 0.9 and high == 1
    assert accuracy_interval(np.ones(30), groups=np.arange(30) // 3)[0] < 0.75
    assert accuracy_interval(np.ones(30), groups=np.zeros(30)) is None


@given(both=st.integers(0, 9), wins=st.integers(0, 40), losses=st.integers(0, 40))
def test_mcnemar_equals_the_mid_p_value(both, wins, losses):
    a = np.r_[np.ones(both), np.ones(wins), np.zeros(losses)]
    b = np.r_[np.ones(both), np.zeros(wins), np.ones(losses)]
    rows = wins + losses
    exact = binomtest(wins, rows).pvalue if rows else 1.0
    as_large = binom.pmf([*{wins, losses}], rows, 0.5).sum() if rows else 0.0
    assert mcnemar(a, b) == pytest.approx(exact - as_large / 2)


def test_p_values_of_mcnemar_are_uniform_without_a_difference():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        easy = rng.random(400) < 0.5  # both are right on these rows; on the others they have equal chances
        found.append(mcnemar(*(easy | (rng.random(400) < 0.5) for _ in range(2))))
    for level in (0.05, 0.1, 0.25, 0.5):
        assert abs(np.mean(np.array(found) <= level) - level) < 0.04


SHAPES = {
    "equal": np.full(12, 10),
    "one large": np.r_[400, np.full(39, 5)],
    "geometric": np.geomspace(1, 40, 16).astype(int),  # all signs of 16 groups are tried, of 20 they take seconds
    "single rows": np.ones(60, int),
}


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("binary", [False, True], ids=["errors", "labels"])
def test_sign_flips_are_calibrated_and_have_power(sizes, binary):
    groups, draws = np.repeat(np.arange(len(sizes)), sizes), 300
    null, real = [], []
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        shared = rng.standard_normal((2, len(sizes)))[:, groups]  # rows of a group are alike
        one, other = shared + rng.standard_normal((2, len(groups)))
        if binary:
            one, other = one > 0, other > 0
        for gain, found in ((0, null), (1.5, real)):
            sums = np.bincount(groups, one.astype(float) - other + gain)
            found.append(sign_flips(sums, flips=999, seed=draw))
    limit = 3 * np.sqrt(0.05 * 0.95 / draws)
    assert 0.05 - limit <= np.mean(np.array(null) < 0.05) <= 0.05 + limit
    assert np.mean(np.array(real) < 0.05) > 0.8


def test_sign_flips_of_few_differences_are_exact():
    rng = np.random.default_rng(0)
    for number in (3, 7, 12):
        values = rng.integers(-3, 5, number).astype(float)
        patterns = np.array(list(itertools.product((1, -1), repeat=number)))
        share = np.mean(np.abs(patterns @ values) >= abs(values.sum()))
        assert sign_flips(values) == pytest.approx(share)
    assert sign_flips(np.ones(6)) == 2 / 2**6 and sign_flips(np.ones(20)) == 2 / 2**20
    values = rng.standard_normal(16) + 0.4
    assert sign_flips(np.r_[values, np.zeros(50)]) == sign_flips(values)  # zeros decide nothing
    random = sign_flips(np.r_[values, np.full(5, 1e-9)])  # 21 differences are drawn at random
    assert random == pytest.approx(sign_flips(values), abs=0.01)


def test_forty_groups_in_favour_are_evidence_even_if_one_is_large():
    assert sign_flips(np.r_[100.0, np.linspace(0.5, 1.5, 39)]) <= 1e-4
    assert sign_flips(np.r_[100.0, -np.linspace(0.5, 1.5, 39)]) > 0.5


def test_small_p_value_for_a_real_difference():
    rng = np.random.default_rng(0)
    base = rng.standard_normal(200)
    assert sign_flips(0.3 + 0.5 * rng.standard_normal(200)) < 0.001
    a, b = rng.random(500) < 0.9, rng.random(500) < 0.8
    assert mcnemar(a, b) < 0.001 and abs(sign_flips(a.astype(float) - b) - mcnemar(a, b)) < 0.002
    assert sign_flips(base - base) == mcnemar(a, a) == 1
    assert sign_flips(base + 5, flips=99) == 0.01
    assert sign_flips(base, flips=500, seed=1) == sign_flips(base, flips=500, seed=1)
    many = rng.standard_normal(30_000)
    assert sign_flips(many) > 0.01 and sign_flips(many + 0.05) < 0.001


def test_the_standard_error_is_that_of_a_mean_of_independent_units():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50)
    assert standard_error(x, np.arange(50)) == pytest.approx(x.std(ddof=1) / np.sqrt(50))
    assert standard_error(np.repeat(x, 4), np.repeat(np.arange(50), 4)) == pytest.approx(x.std(ddof=1) / np.sqrt(50))
    assert standard_error(x, np.arange(50) % 5) == np.inf


# Scores of labels equal those of scikit-learn, and intervals of differences those of a paired bootstrap.


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(3, 60), classes=st.integers(2, 5), seed=st.integers(0, 999))
def test_scores_of_labels_are_those_of_scikit_learn(rows, classes, seed):
    draw = np.random.default_rng(seed)
    y, predicted = draw.integers(0, classes, (2, rows))
    ranks = np.round(draw.normal(y, 1), 1)  # with ties
    names = [*map(str, range(classes))]
    scores = evaluate_labels(y[:, None], predicted[:, None], names, ranks[:, None] if classes == 2 else None).scores
    recall = metrics.recall_score(y, predicted, labels=np.unique(y), average="macro")
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(y, predicted))
    assert scores["balanced_accuracy"] == pytest.approx(recall)
    assert scores["macro_f1"] == pytest.approx(metrics.f1_score(y, predicted, average="macro"))
    if classes == 2 and len(np.unique(y)) == 2:
        assert scores["auc"] == pytest.approx(metrics.roc_auc_score(y, ranks))
        false_positives, recalls, _ = metrics.roc_curve(y, ranks, drop_intermediate=False)
        for rate, name in ((0.01, "1%"), (0.05, "5%")):
            assert scores[f"recall_at_{name}_false_positives"] == recalls[false_positives <= rate].max()
            expected = recalls[false_positives <= 5 * rate].max()
            assert recall_at_rate(ranks[y == 1], ranks[y == 0], 5 * rate) == expected


@pytest.mark.parametrize(("rate", "least"), [(0.01, 99), (0.05, 19), (0.25, 3)])
def test_a_threshold_keeps_the_rate_of_false_positives_over_exchangeable_rows(rate, least):
    assert threshold_for_rate(np.arange(least - 1.0), rate) is None
    for negatives in (least, 2 * least, 2 * least + 1):
        scores = np.random.default_rng(negatives).normal(size=negatives + 1)
        # Each of n + 1 rows is the new one in turn; the others set the threshold.
        exceeds = [scores[new] > threshold_for_rate(np.delete(scores, new), rate) for new in range(negatives + 1)]
        assert np.mean(exceeds) <= rate
        assert np.mean(exceeds) == np.floor(rate * (negatives + 1) + 1e-9) / (negatives + 1)  # no rate below it is kept
    assert np.mean(np.ones(500) > threshold_for_rate(np.ones(500), rate)) == 0  # ties are not positives


def test_a_kernel_readout_ranks_by_its_scores_where_probabilities_are_exactly_one():
    x, y = np.arange(-9.0, 9.0)[:, None].astype(np.float32), (np.arange(18) > 9)[:, None].astype(int)
    training = Standardised.of(x.copy())
    weights = training.rows.astype(np.float64)
    readout = KernelReadout.of(training, "linear", weights, np.array([2.0]), Targets(1, 2))
    sharp = dataclasses.replace(readout, temperature=1e-2)
    assert (sharp.probabilities(x)[:, 0, 1] == 1).sum() > 9  # more than the rows of the second class
    assert evaluate_blocks(sharp, [(x, y)], ["a", "b"]).scores["auc"] == 1


def bootstrap(statistic, units, draws=2000):
    """Return the 95% interval of a statistic of row numbers, with whole units drawn with replacement."""
    draw, rows = np.random.default_rng(2), [np.flatnonzero(units == unit) for unit in np.unique(units)]
    picks = draw.integers(len(rows), size=(draws, len(rows)))
    return np.quantile([statistic(np.concatenate([rows[n] for n in pick])) for pick in picks], [0.025, 0.975])


def r2(y, predicted):
    """Return R², the mean over outputs; scikit-learn's takes seven times as long for 600 rows."""
    return np.mean(1 - np.square(y - predicted).sum(axis=0) / np.square(y - y.mean(axis=0)).sum(axis=0))


@pytest.mark.parametrize("groups", [None, np.arange(600) // 10])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_difference_of_r2_has_the_interval_of_a_bootstrap(outputs, groups):
    draw = np.random.default_rng(1)
    shared = 0 if groups is None else draw.normal(size=60)[groups][:, None]
    y = 1e3 + draw.normal(size=(600, outputs)) + shared
    first, second = (y + noise * (draw.normal(size=(600, outputs)) + shared) for noise in (0.5, 0.7))
    units = np.arange(600) if groups is None else groups
    evaluations = [evaluate_values(y, predicted, groups=groups) for predicted in (first, second)]
    difference = paired_difference((evaluations[0], evaluations[1]), y, (first, second), units)
    assert difference.value == pytest.approx(metrics.r2_score(y, first) - metrics.r2_score(y, second))
    assert difference.p_value == p_value_of_difference(*evaluations)
    low, high = difference.interval
    expected = bootstrap(lambda rows: r2(y[rows], first[rows]) - r2(y[rows], second[rows]), units)
    np.testing.assert_allclose((low, high), expected, atol=0.15 * np.ptp(expected))


def test_an_output_that_is_constant_on_the_test_rows_decides_nothing():
    draw = np.random.default_rng(2)
    y = np.column_stack([draw.normal(size=40), np.full(40, 3000.0)])
    good = y + np.column_stack([0.2 * draw.normal(size=40), 150 * draw.normal(size=40)])
    poor = y + np.column_stack([1.0 * draw.normal(size=40), 1 * draw.normal(size=40)])
    first, second = evaluate_values(y, good), evaluate_values(y, poor)
    difference = paired_difference((first, second), y, (good, poor), np.arange(40))
    assert difference.value == pytest.approx(metrics.r2_score(y, good) - metrics.r2_score(y, poor))
    assert difference.interval[0] > 0
    assert verdict_of_difference(first, second, difference.p_value) == "adds"


def test_the_difference_of_accuracies_over_groups_has_the_interval_of_a_bootstrap():
    draw = np.random.default_rng(3)
    groups = np.repeat(np.arange(60), draw.integers(2, 20, 60))
    y, easy = draw.integers(0, 2, len(groups)), draw.random(60)[groups]
    first, second = (np.where(draw.random(len(y)) < share, y, 1 - y) for share in (0.5 + easy / 2, 0.5 + easy / 3))
    evaluations = [evaluate_classes(y, predicted, ["a", "b"], groups=groups) for predicted in (first, second)]
    arrays = y[:, None], (first[:, None], second[:, None])
    difference = paired_difference((evaluations[0], evaluations[1]), *arrays, groups)
    gain = (first == y).astype(float) - (second == y)
    expected = bootstrap(lambda rows: gain[rows].mean(), groups)
    assert difference.value == pytest.approx(gain.mean())
    np.testing.assert_allclose(difference.interval, expected, atol=0.15 * np.ptp(expected))
    alone = paired_difference((evaluations[0], evaluations[1]), *arrays, np.zeros(len(y)))
    assert alone.interval is None  # one group says nothing about others


def test_the_interval_of_paired_accuracies_is_that_of_bonett_and_price():
    # (10 + 1) / 52 - (2 + 1) / 52, and 1.96 sqrt((14 / 52 - (8 / 52)^2) / 52)
    assert paired_interval(10, 2, 50) == pytest.approx((0.01916, 0.28854), abs=2e-5)
    assert paired_interval(2, 10, 50) == pytest.approx((-0.28854, -0.01916), abs=2e-5)
    low, high = paired_interval(0, 0, 50)
    assert low == -high and high > 0.05  # two readouts that agree on 50 rows may differ on others


def test_a_tally_with_class_weights_is_the_balanced_accuracy_of_what_it_counts():
    rng = np.random.default_rng(0)
    y = rng.choice(4, (300, 1), p=[0.7, 0.2, 0.1, 0])
    scores = rng.standard_normal((2, 300, 4)) + np.eye(4)[y[:, 0]]
    weights = rng.random(300) * (y[:, 0] < 2) + 0.1
    # The shares of the classes in fitting were others, and had none of the third class and some of the fourth.
    targets = Targets(1, 4, balanced_weights(np.array([50, 50, 0, 10])))
    for sample_weights in (None, weights):
        tally = Tally(targets)
        for rows in (slice(0, 100), slice(100, 300)):
            part = None if sample_weights is None else sample_weights[rows]
            tally.update(scores[:, rows], y[rows], part)
        predicted = scores.argmax(axis=2)
        expected = [balanced_accuracy_score(y[:, 0], labels, sample_weight=sample_weights) for labels in predicted]
        np.testing.assert_allclose(tally.accuracy(), expected)
        means = [targets.sample_scores(of_readout, y, sample_weights).mean() for of_readout in scores]
        np.testing.assert_allclose(means, expected)


def test_a_balanced_accuracy_of_the_labels_of_tokens_is_over_all_of_them():
    # Two tokens for each of 100 rows. The first is rarely of class 1, and always predicted to be of class 0.
    y = np.stack([np.arange(100) >= 98, np.arange(100) >= 50], axis=1).astype(int).reshape(-1, 1)
    predicted = np.where(np.arange(200)[:, None] % 2, y, 0)
    for token_counts in (np.full(100, 2), np.repeat([1, 3], 50)):
        evaluation = evaluate_labels(y, predicted, ["a", "b"], counts=token_counts, balanced=True)
        assert evaluation.scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, predicted))


def test_a_difference_of_balanced_accuracies_is_tested_as_such():
    rng = np.random.default_rng(0)
    y = (rng.random((400, 1)) < 0.05).astype(int)
    constant = np.zeros_like(y)
    # All rare rows are found, with more false alarms than there are rare rows.
    alarms = np.where((y == 0) & (rng.random((400, 1)) < 0.12), 1, y)
    evaluations = [evaluate_classes(y, labels, ["no", "yes"], balanced=True) for labels in (alarms, constant)]
    difference = paired_difference(
        (evaluations[0], evaluations[1]), y, (alarms, constant), np.arange(400), balanced=True
    )
    expected = balanced_accuracy_score(y, alarms) - 0.5
    assert difference.value == pytest.approx(expected) and expected > 0.4
    assert difference.interval[0] < expected < difference.interval[1] and difference.p_value < 1e-3
    assert [evaluation.row_scores.mean() for evaluation in evaluations] == pytest.approx([expected + 0.5, 0.5])
    assert verdict_of_difference(evaluations[0], evaluations[1], difference.p_value) == "adds"
    # The interval of an accuracy stays that of the accuracy.
    assert evaluations[0].interval == accuracy_interval((y == alarms)[:, 0])
    plain = [evaluate_classes(y, labels, ["no", "yes"]) for labels in (alarms, constant)]
    p_value = p_value_of_difference(plain[0], plain[1])
    assert verdict_of_difference(plain[0], plain[1], p_value) == "adds nothing"


def test_targets_with_large_values_do_not_outweigh_the_others():
    rng = np.random.default_rng(0)
    y = rng.standard_normal((300, 2)) * [1000, 1]
    first = y + rng.standard_normal((300, 2)) * [110, 0.1]
    second = y + rng.standard_normal((300, 2)) * [90, 0.9]
    evaluations = [evaluate_values(y, predicted) for predicted in (first, second)]
    difference = paired_difference((evaluations[0], evaluations[1]), y, (first, second), np.arange(300))
    assert difference.value == pytest.approx(r2_score(y, first) - r2_score(y, second)) and difference.value > 0.3
    row_scores = [evaluation.row_scores.mean() + 1 for evaluation in evaluations]
    assert row_scores == pytest.approx([r2_score(y, first), r2_score(y, second)])
    assert verdict_of_difference(evaluations[0], evaluations[1], difference.p_value) == "adds"


def test_values_whose_squares_overflow_float32_have_an_interval():
    y = np.random.default_rng(0).standard_normal((50, 1))
    expected = evaluate_values(y, 0.9 * y).interval
    large = (y * 1e30).astype(np.float32)
    assert evaluate_values(large, (0.9 * large).astype(np.float32)).interval == pytest.approx(expected, rel=1e-4)
