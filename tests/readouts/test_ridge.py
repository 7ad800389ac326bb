"""Ridge readouts: paths and sweeps equal scikit-learn's; their moments equal direct sums; kernel ridge regression."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reservoir_pipelines.fitting.folds import draw_folds
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import r2_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from reservoir.errors import InputError
from reservoir.readouts import banded, kernel_ridge, ridge, tridiagonal
from reservoir.readouts.kernel_ridge import (
    KernelReadout,
    PanelsInMemory,
    Standardised,
    arccos_kernel,
    factorise,
    solve_factored,
)
from reservoir.readouts.linear import LinearReadout, Scorer, Tally, Targets, balanced_weights
from reservoir.readouts.moments import PRODUCT_ROWS, Moments, accumulate, fold_moments, training_moments
from reservoir.readouts.penalties import DEFAULT_ALPHAS, extended_alphas, parse_alphas
from reservoir.readouts.products import Arithmetic, blas_threads, products_on
from reservoir.readouts.ridge import KernelMatrix, gather, path_from_moments, ridge_by_definition, ridge_path
from reservoir.readouts.sweep import best_penalty_for_subset, cross_sweep, sweep

ALPHAS = DEFAULT_ALPHAS[::3]


def features(rows, width, kind, seed=0):
    """Return correlated features of condition number about 10, most with means far from 0."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)) + rng.standard_normal((rows, 1)) / 2 + 3 * rng.standard_normal(width)
    if kind == "offset":
        x[:, 1] = 3000 + 0.5 * rng.standard_normal(rows)
    if kind == "constant":
        x[:, [0, 3]] = [0.1, -7.0]
    if kind == "duplicate":
        x[:, 4], x[:, 5] = x[:, 2], -4 * x[:, 2]
    if kind == "float16":
        x = x.astype(np.float16)
    return x


def labels(x, targets=3, seed=1):
    rng, x = np.random.default_rng(seed), x.astype(np.float64)
    noisy = x @ rng.standard_normal((x.shape[1], targets)) + x.std() * rng.standard_normal((len(x), targets))
    return np.where(noisy > np.median(noisy, axis=0), 1.0, -1.0)


def by_scikit_learn(x, y, alpha):
    scaler = StandardScaler().fit(x.astype(np.float64))
    solver = "svd" if len(x) < 1000 else "cholesky"
    ridge = Ridge(alpha=alpha, solver=solver).fit(scaler.transform(x.astype(np.float64)), y)
    coef = ridge.coef_.T / scaler.scale_[:, None]
    return coef * (scaler.var_ > 0)[:, None], ridge.intercept_ - scaler.mean_ @ coef


def assert_path_is(path, x, y, rtol):
    for i, alpha in enumerate(path.alphas):
        coef, intercept = ridge_by_definition(x, y, alpha)
        scale = x.astype(np.float64).std(axis=0)[:, None]
        got, want = path.coef[i] * scale, coef * scale
        assert np.linalg.norm(got - want) <= rtol * np.linalg.norm(want), f"alpha {alpha}"
        outputs = x.astype(np.float64) @ coef + intercept
        error = x.astype(np.float64) @ path.coef[i] + path.intercept[i] - outputs
        assert np.abs(error).max() <= rtol * np.abs(outputs).max(), f"alpha {alpha}"


KINDS = ["plain", "offset", "constant", "duplicate", "float16"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(400, 40), (40, 60)])
@pytest.mark.parametrize("alpha", [0.1, 100])
def test_the_definition_of_ridge_is_that_of_scikit_learn(kind, rows, width, alpha):
    x = features(rows, width, kind)
    for values, expected in zip(
        ridge_by_definition(x, labels(x), alpha), by_scikit_learn(x, labels(x), alpha), strict=True
    ):
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(4000, 40), (400, 40), (40, 60)])
@pytest.mark.parametrize("store", [np.float32, np.float16])
def test_solve_equals_scaler_and_ridge_for_stored_features(kind, rows, width, store):
    x = features(rows, width, kind).astype(store)
    y = labels(x)
    assert_path_is(ridge_path(gather([(x, y)], Targets(3, 0)), ALPHAS), x, y, 1e-5)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(2, 40),
    width=st.integers(1, 40),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["plain", "float16"]),
)
def test_primal_and_kernel_form_agree(rows, width, seed, kind):
    x = features(rows, width, kind, seed).astype(np.float64)
    y = np.random.default_rng(seed).standard_normal((rows, 2))
    primal, kernel = ridge_path(accumulate([(x, y)]), ALPHAS), KernelMatrix(x).path(y, ALPHAS)
    for ours, theirs in ((primal.coef, kernel.coef), (primal.intercept, kernel.intercept)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8 * np.abs(theirs).max())


def test_scores_keep_the_digits_of_a_channel_at_3000():
    x = features(3000, 20, "offset").astype(np.float32)
    path = ridge_path(accumulate([(x, labels(x))]), ALPHAS)
    exact = x.astype(np.float64) @ path.coef + path.intercept[:, None]
    assert Scorer(path)(x).shape == (len(ALPHAS), 3000, 3) and Scorer(path)(x).dtype == np.float32
    assert np.abs(Scorer(path)(x) - exact).max() < 1e-5 * np.abs(exact).max()
    np.testing.assert_allclose(Scorer(path)(x.astype(np.float64)), exact, rtol=1e-9, atol=1e-9)


def test_singular_float32_moments_stay_solvable():
    """Every row sums to the same value, as after a layer norm, and float32 rounding makes the scatter indefinite."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40_000, 64)).astype(np.float32) @ rng.standard_normal((64, 64)).astype(np.float32)
    x = ((x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)).astype(np.float32)
    y = labels(x, 2)
    single, double = (ridge_path(accumulate([(x.astype(d), y)]), ALPHAS) for d in (np.float32, np.float64))
    np.testing.assert_allclose(Scorer(single)(x), Scorer(double)(x), atol=1e-4)


@pytest.mark.parametrize("alphas", [[], [0.0], [1.0, -1.0], [np.nan], [np.inf]])
def test_penalties_must_be_positive(alphas):
    x = features(30, 4, "plain")
    for attempt in (
        lambda: ridge_path(accumulate([(x, labels(x))]), np.array(alphas)),
        lambda: KernelMatrix(x).path(labels(x), np.array(alphas)),
    ):
        with pytest.raises(InputError, match="positive"):
            attempt()


def test_the_smallest_penalties_are_solved_on_singular_features():
    x = np.arange(30.0)[:, None] * np.ones(6)
    path = ridge_path(accumulate([(x, x[:, :1])]), np.array([1e-300, 1e-9]))
    np.testing.assert_allclose(Scorer(path)(x)[..., 0], np.stack([x[:, 0]] * 2), atol=1e-6)


def test_penalty_grids():
    np.testing.assert_allclose(parse_alphas("1e-2:1e6:25"), DEFAULT_ALPHAS)
    np.testing.assert_allclose(parse_alphas("3:3:1"), [3])
    wrong = "1 1:2 1:2:3:4 a:b:c 0:1:5 2:1:5 1:2:0 1:2:1.5 nan:1:3 1:inf:3 -1:1:3 1:10:1001 1:10:1"
    for text in ("", *wrong.split()):
        with pytest.raises(InputError, match="LO:HI:N"):
            parse_alphas(text)
    assert len(parse_alphas("1:10:1000")) == 1000


def test_grid_is_extended_if_its_end_is_best():
    np.testing.assert_allclose(extended_alphas(DEFAULT_ALPHAS, 0), np.logspace(-6, 6, 37))
    np.testing.assert_allclose(extended_alphas(DEFAULT_ALPHAS, 24), np.logspace(-2, 10, 37))
    assert extended_alphas(DEFAULT_ALPHAS, 1) is None
    assert extended_alphas(extended_alphas(DEFAULT_ALPHAS, 0), 0) is None
    assert extended_alphas(np.array([1e-7, 1e11]), 0) is None
    np.testing.assert_allclose(extended_alphas(np.array([1e3]), 0), np.logspace(-6, 10, 49))
    np.testing.assert_allclose(extended_alphas(np.array([1e6, 1e4, 1e2]), 0), [1e2, 1e4, 1e6, 1e8, 1e10])
    fine = extended_alphas(np.geomspace(1, 1.001, 1000), 999)
    assert len(fine) == 1000 + 29 and fine[-1] <= 1e10


@pytest.mark.parametrize(("rows", "width"), [(150, 12), (30, 50)])
def test_weighted_solutions_equal_weighted_scaler_and_ridge(rows, width):
    x = features(rows, width, "offset")
    y = (labels(x)[:, :1] > 0).astype(int)
    targets = Targets(1, 2, balanced_weights(np.bincount(y[:, 0])))
    weights = targets.weights(y)
    path = ridge_path(gather([(x, y)], targets), ALPHAS)
    scaler = StandardScaler().fit(x, sample_weight=weights)
    for i, alpha in enumerate(ALPHAS):
        ridge = Ridge(alpha=alpha).fit(scaler.transform(x), targets.coded(y), sample_weight=weights)
        scaled = path.coef[i] * scaler.scale_[:, None]
        np.testing.assert_allclose(scaled, ridge.coef_.reshape(-1, 1), rtol=1e-6, atol=1e-10)


def test_class_weights_need_one_output():
    with pytest.raises(InputError, match="leave out --class-weight"):
        Targets(2, 2, (1.0, 1.0))


@pytest.mark.parametrize(("rows", "width"), [(80, 12), (20, 30)])
def test_feature_weights_scales_standardised_features(rows, width):
    x, feature_weights = features(rows, width, "offset"), np.geomspace(0.1, 10, width)
    y, fold = labels(x, 1), draw_folds(rows, 4)
    z, targets = StandardScaler().fit_transform(x) * feature_weights, Targets(1, 0)
    whole = sweep([(x, y)], [(x, y)], targets, ALPHAS, feature_weights=feature_weights)
    crossed = cross_sweep([(x, y, fold)], targets, ALPHAS, folds=4, feature_weights=feature_weights)
    for number, alpha in enumerate(ALPHAS):
        expected = Ridge(alpha=alpha).fit(z, y).predict(z).reshape(-1, 1)
        for found in (whole, crossed):
            scores = found.path.readout(number, targets).predict(x)
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
        held_out = cross_val_predict(Ridge(alpha=alpha), z, y, cv=PredefinedSplit(fold))
        assert crossed.accuracy[number] == pytest.approx(r2_score(y, held_out), abs=1e-5)


@pytest.mark.parametrize("feature_weights", [None, np.repeat([0.5, 2.0], [30, 20])])
def test_kernel_matrix_is_summed_from_that_of_the_first_features(feature_weights):
    x = features(20, 50, "offset")
    whole = KernelMatrix(x, None, feature_weights)
    summed = KernelMatrix(x, None, feature_weights, KernelMatrix(x[:, :30]))
    np.testing.assert_allclose(summed.products, whole.products, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(summed.scale, whole.scale)


def test_kernel_matrix_of_the_first_samples_gives_their_own_models():
    x, y = features(40, 50, "constant"), labels(features(40, 50, "constant"), 2)
    found = KernelMatrix(x).of_first_rows(25).path(y[:25], ALPHAS)
    by_hand = path_from_moments(accumulate([(x[:25], y[:25], None)]), ALPHAS, accumulate([(x, y, None)]).scale())
    np.testing.assert_allclose(found.coef, by_hand.coef, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(found.intercept, by_hand.intercept, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rows", [20, 80], ids=["fewer rows than features", "more rows"])
@pytest.mark.parametrize("constant", [0.5, -3000.0])
def test_a_feature_that_varies_by_rounding_alone_has_no_weight(rows, constant):
    def coefficients(x):
        return ridge_path(gather([(x, y)], Targets(3, 0)), ALPHAS).coef

    x, y = features(rows, 30, "plain").astype(np.float32), labels(features(rows, 30, "plain"))
    x[:, 7] = constant
    x[3, 7] = np.nextafter(x[3, 7], np.float32(np.inf))  # as a sum over tokens may end in one row
    coef = coefficients(x)
    assert (coef[:, 7] == 0).all()
    np.testing.assert_allclose(np.delete(coef, 7, axis=1), coefficients(np.delete(x, 7, axis=1)), rtol=1e-5, atol=1e-9)
    x[:, 7] += constant * 1e-5 * np.random.default_rng(0).normal(size=rows)  # float32 holds such differences
    assert (coefficients(x)[:, 7] != 0).all()


def test_small_matrices_are_multiplied_by_one_thread():
    def threads():
        return max(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")

    with threadpool_limits(2, user_api="blas"):
        with blas_threads(many=False):
            assert threads() == 1
        with blas_threads(many=True):
            assert threads() == 2


@pytest.mark.parametrize("size", [2, 7, 8, 9, 16, 17, 50])
@pytest.mark.parametrize("kind", ["definite", "singular", "zeros"])
def test_the_band_form_solves_the_systems_of_all_penalties(size, kind, monkeypatch):
    monkeypatch.setattr(tridiagonal, "LARGE_MATRIX", 1)
    monkeypatch.setattr(banded, "BANDWIDTH", 8)
    monkeypatch.setattr(banded, "TILE", 5)
    rng = np.random.default_rng(size)
    z = rng.standard_normal((2 * size, size))
    if kind == "singular":
        z = z[: size // 2]
    if kind == "zeros":  # as constant features have
        z[:, ::3] = 0
    matrix, b = z.T @ z, rng.standard_normal((size, 3))
    expected = [np.linalg.solve(matrix + alpha * np.eye(size), b) for alpha in ALPHAS]
    solutions = tridiagonal.solve_penalties(matrix, b, ALPHAS)
    for solution, expected_solution in zip(solutions, expected, strict=True):
        # Both round in proportion to their largest weight, so that a small one may differ in its last digits.
        largest = np.abs(expected_solution).max()
        np.testing.assert_allclose(solution, expected_solution, rtol=1e-9, atol=1e-10 * max(1.0, largest))


def test_a_large_system_is_reduced_to_a_band_unless_a_penalty_could_vanish_in_rounding(monkeypatch):
    monkeypatch.setattr(tridiagonal, "LARGE_MATRIX", 1)
    reductions = []
    for name in ("BandReduction", "TridiagonalReduction"):
        reduction = getattr(tridiagonal, name)
        monkeypatch.setattr(tridiagonal, name, lambda *args, of=reduction: reductions.append(of.__name__) or of(*args))
    z = np.random.default_rng(0).standard_normal((5, 9))
    for smallest in (1e-3, 1e-30):
        solutions = tridiagonal.solve_penalties(z.T @ z, np.ones((9, 1)), np.geomspace(smallest, 1, 6))
        assert np.isfinite(solutions).all()
    assert reductions == ["BandReduction", "TridiagonalReduction"]


@pytest.mark.parametrize("classes", [0, 3])
def test_few_validation_samples_of_many_targets_are_scored_as_many_are(classes, monkeypatch):
    x, targets = features(90, 20, "offset"), Targets(8, classes)
    rng = np.random.default_rng(1)
    y = rng.integers(0, classes, (90, 8)) if classes else x[:, :8] + rng.standard_normal((90, 8))
    train, valid = (x[:80].astype(np.float32), y[:80]), (x[80:].astype(np.float32), y[80:])
    expected = sweep([train], [valid], targets, ALPHAS)
    # Nothing but the chosen penalty may be solved in full.
    monkeypatch.setattr(ridge.RidgeSystem, "path", _refusing_many_penalties(ridge.RidgeSystem.path))
    rotated = sweep([train], [valid], targets, ALPHAS, valid_samples=10)
    np.testing.assert_allclose(rotated.accuracy, expected.accuracy, rtol=1e-4)
    np.testing.assert_allclose(rotated.loss, expected.loss, rtol=1e-4)
    assert rotated.alpha == expected.alpha
    np.testing.assert_allclose(rotated.readout().coef, expected.readout().coef, rtol=1e-8, atol=1e-10)


def _refusing_many_penalties(path):
    def of_one(system, alphas):
        assert len(alphas) == 1
        return path(system, alphas)

    return of_one


@pytest.mark.parametrize("few", [[1], [1, 4, 5]])
def test_few_penalties_equal_those_among_others(few):
    x = features(20, 50, "offset")
    several, some = (KernelMatrix(x).path(labels(x, 1), alphas) for alphas in (ALPHAS, ALPHAS[few]))
    np.testing.assert_allclose(some.coef, several.coef[few], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("width", [120, 400])
def test_some_samples_show_which_penalty_is_the_best(width, monkeypatch):
    train, valid = task(300, width, 3)
    monkeypatch.setattr("reservoir.readouts.sweep.CHOICE_SAMPLES", 150)
    alphas = np.geomspace(1e-2, 1e6, 25)
    sweep_of = partial(sweep, valid=[valid], targets=Targets(1, 3))
    number = best_penalty_for_subset([train], lambda some, grid: sweep_of(some, alphas=grid), alphas, samples=300)
    of_all = sweep([train], [valid], Targets(1, 3), alphas)
    assert of_all.accuracy[number] > of_all.accuracy.max() - 0.05


def task(rows, width, classes, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((width, outputs, max(classes, 1))) / np.sqrt(width)
    x = (rng.standard_normal((rows + 200, width)) * np.geomspace(0.1, 10, width) + 3).astype(np.float32)
    noisy = np.einsum("nw,woc->noc", (x - 3) / np.geomspace(0.1, 10, width), truth)
    noisy += 0.7 * rng.standard_normal(noisy.shape)
    y = noisy.argmax(-1) if classes > 2 else (noisy[..., 0] > 0).astype(int) if classes else noisy[..., 0]
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


def cut(data, size=64):
    x, y = data
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("rows", "width"), [(500, 30), (60, 90)])
def test_accuracies_equal_ridge_classifier(classes, rows, width):
    train, valid = task(rows, width, classes)
    found = sweep(cut(train), cut(valid), Targets(1, classes))
    expected = [
        make_pipeline(StandardScaler(), RidgeClassifier(alpha=alpha))
        .fit(train[0].astype(np.float64), train[1][:, 0])
        .score(valid[0].astype(np.float64), valid[1][:, 0])
        for alpha in DEFAULT_ALPHAS
    ]
    np.testing.assert_allclose(found.accuracy, expected)
    assert found.accuracy[found.best] == max(expected)
    best = found.accuracy == max(expected)
    assert found.alpha == DEFAULT_ALPHAS[best][np.argmin(found.loss[best])]


def test_sweep_with_moments_does_not_read_train():
    train, valid = task(300, 20, 3)
    first = sweep(cut(train), cut(valid), Targets(1, 3))
    moments = training_moments(cut(train), Targets(1, 3))
    again = sweep(iter(()), cut(valid), Targets(1, 3), training=moments)
    np.testing.assert_array_equal(first.accuracy, again.accuracy)
    finer = sweep([], cut(valid), Targets(1, 3), np.geomspace(1, 100, 7), training=moments)
    assert finer.accuracy.shape == (7,)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_readout_scores_as_in_the_sweep_also_after_storage(classes):
    train, valid = task(400, 20, classes, outputs=2)
    found = sweep(cut(train), cut(valid), Targets(2, classes))
    readout = found.readout()
    np.testing.assert_allclose(
        Tally(readout.targets).update(readout.scores(valid[0])[None], valid[1]).accuracy(),
        found.accuracy[found.best],
        rtol=1e-6,
    )
    np.testing.assert_array_equal(readout.coef, found.path.coef[found.best])
    readout = readout.calibrate(cut(valid)) if classes else readout
    back = LinearReadout.from_arrays(*readout.to_arrays())
    np.testing.assert_array_equal(back.predict(valid[0]), readout.predict(valid[0]))
    assert back.temperature == readout.temperature
    if classes:
        assert back.probabilities(valid[0]).shape == (200, 2, classes)
        np.testing.assert_array_equal(back.probabilities(valid[0]).argmax(-1), readout.predict(valid[0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "width"), [(12_000, 6), (60, 90)])
def test_real_targets_far_from_zero_keep_the_digits_of_their_scores(rows, width, dtype):
    (x, y), (far, other) = task(rows, width, 0)
    y, other = ((1e5 + 0.3 * part).astype(dtype) for part in (y, other))
    targets, alphas = Targets(1, 0), np.geomspace(0.1, 1000, 5)
    expected = []
    for alpha in alphas:
        peer = make_pipeline(StandardScaler(), Ridge(alpha=alpha)).fit(x.astype(np.float64), y.astype(np.float64))
        expected.append(peer.score(far.astype(np.float64), other.astype(np.float64)))
    found = sweep(cut((x, y)), cut((far, other)), targets, alphas)
    np.testing.assert_allclose(found.accuracy, expected, atol=2e-6)


ROWS, WIDTH = 170_000, 64


@pytest.fixture(scope="module")
def data():
    """Return nearly collinear channels, whose Z'Z has eigenvalues from 1e7 down to 0.01, and labels."""
    rng = np.random.default_rng(0)
    spread = np.geomspace(0.3, 2e-4, WIDTH, dtype=np.float32)
    own, common = rng.standard_normal((ROWS, WIDTH), np.float32), rng.standard_normal((ROWS, 1), np.float32)
    x = own * spread @ rng.standard_normal((WIDTH, WIDTH), np.float32) / 8 + common
    x *= rng.uniform(0.5, 30, WIDTH).astype(np.float32)
    x[:, 3] += 300
    return x, (common + own @ rng.standard_normal((WIDTH, 2), np.float32) / 4 > 0).astype(int)


@pytest.fixture(scope="module")
def solution(data):
    """Return coefficients of standardised features from the SVD of Z, which does not square its condition number."""
    x, y = data[0].astype(np.float64), np.where(data[1] == 1, 1.0, -1.0)
    mean, std = x.mean(0), x.std(0)
    z = np.concatenate([(x - mean) / std, y - y.mean(0)], axis=1)
    r = np.linalg.qr(np.concatenate([np.linalg.qr(z[i : i + 2000], "r") for i in range(0, ROWS, 2000)]), "r")
    left, values, right = np.linalg.svd(r[:WIDTH, :WIDTH])
    assert values[0] ** 2 > 9e6 and values[-1] ** 2 < 0.1
    along = left.T @ r[:WIDTH, WIDTH:]
    return std, [right.T @ ((values / (values**2 + alpha))[:, None] * along) for alpha in DEFAULT_ALPHAS]


@pytest.mark.parametrize("place", [Arithmetic(), Arithmetic("cpu")], ids=["numpy", "torch"])
@pytest.mark.parametrize("folds", [1, 3])
def test_coefficients_equal_float64_solutions_at_every_penalty(data, solution, place, folds):
    x, y = data
    blocks = [(x[i : i + 5000], y[i : i + 5000]) for i in range(0, ROWS, 5000)]
    with products_on(place):
        if folds == 1:
            moments = training_moments(blocks, Targets(2, 2))
        else:
            dealt = ((a, b, np.arange(len(a)) % folds) for a, b in blocks)
            parts = fold_moments(dealt, Targets(2, 2), folds)
            moments = parts[0] + parts[1] + parts[2]
    std, expected = solution
    for alpha, coef, right in zip(DEFAULT_ALPHAS, ridge_path(moments, DEFAULT_ALPHAS).coef, expected, strict=True):
        error = np.linalg.norm(coef * std[:, None] - right) / np.linalg.norm(right)
        assert error < 1e-6, f"penalty {alpha:g}: {error:.1e}"


# Moments equal float64 sums over all rows, for blocks of any size and for sums of parts.


MOMENT_ROWS = 3 * PRODUCT_ROWS + 517


def direct(x, y, weights=None):
    x, y = x.astype(np.float64), y.astype(np.float64)
    weights = np.ones(len(x)) if weights is None else weights
    mean, y_mean = np.average(x, axis=0, weights=weights), np.average(y, axis=0, weights=weights)
    x, y = x - mean, y - y_mean
    weighted = (x * weights[:, None]).T
    return Moments(count=weights.sum(), mean=mean, xx=weighted @ x, xy=weighted @ y, y_mean=y_mean)


def assert_close(a, b, rtol, atol=0.0):
    for name, value in a.to_arrays().items():
        other = b.to_arrays()[name]
        np.testing.assert_allclose(value, other, rtol=rtol, atol=atol + rtol * np.abs(other).max(), err_msg=name)


def pieces(x, y, cuts):
    return zip(np.split(x, cuts), np.split(y, cuts), strict=True)


@pytest.fixture
def scaled_data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((MOMENT_ROWS, 12)).astype(np.float32) * np.geomspace(1e-3, 1e3, 12, dtype=np.float32)
    x[:, 4] = 3000 + np.clip(rng.standard_normal(len(x)), -1, 1) * 0.5
    x[:, 7] = 0.1
    return x, rng.choice([-1.0, 1.0], (len(x), 3)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_moments_of_many_blocks_equal_direct_sums(scaled_data, dtype):
    x, y = scaled_data[0].astype(dtype), scaled_data[1]
    moments = accumulate([(x, y)])
    assert_close(moments, direct(x, y), 1e-12)
    np.testing.assert_array_equal(moments.xx, moments.xx.T)
    np.testing.assert_allclose(moments.std, x.astype(np.float64).std(axis=0), rtol=1e-12, atol=1e-15)
    assert moments.std[7] == 0


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, MOMENT_ROWS), max_size=12).map(sorted))
def test_moments_do_not_depend_on_pieces(cuts):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((MOMENT_ROWS, 5)).astype(np.float32) + 7
    y = rng.standard_normal((len(x), 2)).astype(np.float32)
    whole, parts = accumulate([(x, y)]).to_arrays(), accumulate(pieces(x, y, cuts)).to_arrays()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(1, 399), shift=st.floats(-100, 100), dead=st.booleans())
def test_moments_of_two_parts_add_up(cut, shift, dead):
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((400, 6)) + shift, rng.standard_normal((400, 2))
    if dead:
        x[:, 0] = shift
    a, b = (accumulate([part]) for part in pieces(x, y, [cut]))
    assert_close(a + b, accumulate([(x, y)]), 1e-10)
    assert not dead or (a + b).std[0] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_count_as_repetitions(dtype):
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((MOMENT_ROWS, 4)).astype(dtype) + 5, rng.standard_normal((MOMENT_ROWS, 2))
    weights = rng.integers(0, 4, len(x))
    weighted = accumulate([(x, y, weights)])
    repeated = accumulate([(np.repeat(x, weights, axis=0), np.repeat(y, weights, axis=0))])
    assert_close(weighted, repeated, 1e-12)


def test_arrays_round_trip(scaled_data):
    moments = accumulate([scaled_data])
    assert_close(Moments.from_arrays(moments.to_arrays()), moments, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_a_value_that_is_not_finite_is_named(scaled_data, value):
    x = scaled_data[0].astype(np.float64)
    x[-1, 9] = value
    with np.errstate(all="ignore"), pytest.raises(InputError, match="feature 9"):
        accumulate([(x, scaled_data[1])])


@pytest.mark.parametrize("blocks", [[], [(np.ones((2, 3)), np.ones((2, 1)), np.zeros(2))]])
def test_data_without_weight_is_refused(blocks):
    with pytest.raises(InputError, match="no sample"):
        accumulate(blocks)


def test_other_targets_need_only_their_own_products(scaled_data):
    x, y = scaled_data
    other = np.random.default_rng(1).normal(5, 2, (len(x), 4))
    moments = accumulate([(x, y)]).with_targets(pieces(x, other, [100, 3000]))
    assert_close(moments, accumulate([(x, other)]), 1e-9, 1e-6)


# Kernel ridge regression, compared with scikit-learn, with the closed form and with ridge regression.


RNG = np.random.default_rng(0)
X, NEW = RNG.standard_normal((90, 12)) * 3 + 1, RNG.standard_normal((40, 12)) * 3 + 1
Y = RNG.integers(0, 4, 90)
TARGETS = Targets(1, 4)


def fitted(kernel, alpha, panels=None):
    training = Standardised.of(X.astype(np.float32))
    panels = panels or PanelsInMemory()
    factorise(training, kernel, alpha, panels)
    coded = TARGETS.coded(Y[:, None])
    offset = coded.mean(axis=0, dtype=np.float64)
    return KernelReadout.of(training, kernel, solve_factored(panels, coded - offset), offset, TARGETS)


def test_the_arc_cosine_kernel_is_that_of_an_infinitely_wide_layer_of_rectified_units():
    x = RNG.standard_normal((6, 5))
    kernel = arccos_kernel(x @ x.T, *[np.square(x).sum(axis=1)] * 2)
    np.testing.assert_allclose(np.diag(kernel), np.square(x).sum(axis=1))
    # E[2 max(w'x, 0) max(w'y, 0)] over Gaussian weights w.
    outputs = np.maximum(x @ RNG.standard_normal((5, 2_000_000)), 0)
    np.testing.assert_allclose(2 * outputs @ outputs.T / outputs.shape[1], kernel, rtol=0.02, atol=0.02)
    assert not arccos_kernel(np.zeros((1, 1)), np.zeros(1), np.zeros(1)).any()


@pytest.mark.parametrize("panel", [7, 30, 90, 2048])
@pytest.mark.parametrize("kernel", ["linear", "arccos"])
def test_panels_of_any_size_equal_scikit_learn_of_the_whole_kernel(kernel, panel, monkeypatch):
    monkeypatch.setattr(kernel_ridge, "PANEL", panel)
    readout = fitted(kernel, 0.03)
    mean, scale = X.astype(np.float32).mean(axis=0), X.astype(np.float32).std(axis=0) * np.sqrt(12)
    train, new = ((rows.astype(np.float32) - mean) / scale for rows in (X, NEW))

    def gram(a, b):
        return kernel_ridge.KERNEL_FUNCTIONS[kernel](a @ b.T, np.square(a).sum(axis=1), np.square(b).sum(axis=1))

    coded = np.where(Y[:, None] == np.arange(4), 1.0, -1.0)
    peer = KernelRidge(alpha=0.03, kernel="precomputed").fit(gram(train, train), coded - coded.mean(axis=0))
    expected = peer.predict(gram(new, train)) + coded.mean(axis=0)
    np.testing.assert_allclose(readout.scores(NEW), expected, rtol=2e-4, atol=2e-5)
    assert readout.probabilities(NEW).shape == (40, 1, 4)
    assert np.array_equal(readout.predict(NEW)[:, 0], readout.probabilities(NEW)[:, 0].argmax(axis=1))


def test_the_linear_kernel_is_ridge_regression():
    readout = fitted("linear", 0.5)
    coef, intercept = ridge_by_definition(X.astype(np.float32), TARGETS.coded(Y[:, None]), 0.5 * 12)
    np.testing.assert_allclose(readout.scores(NEW), NEW @ coef + intercept, rtol=1e-5, atol=1e-5)


def test_a_resumed_factorisation_equals_an_uninterrupted_one(monkeypatch):
    monkeypatch.setattr(kernel_ridge, "PANEL", 20)

    class Killed(PanelsInMemory):
        may_save = 2

        def save(self, number, panel):
            if not self.may_save:
                raise KeyboardInterrupt
            self.may_save -= 1
            super().save(number, panel)

    panels = Killed()
    with pytest.raises(KeyboardInterrupt):
        fitted("arccos", 0.1, panels)
    first = [panels.load(number) for number in (0, 1)]
    assert panels.load(2) is None
    panels.may_save = 10
    resumed = fitted("arccos", 0.1, panels)
    assert all(panels.load(number) is panel for number, panel in enumerate(first))
    np.testing.assert_array_equal(resumed.dual, fitted("arccos", 0.1).dual)


def test_a_readout_is_the_same_from_its_arrays_and_refuses_others():
    readout = fitted("arccos", 0.1).calibrate([(NEW, RNG.integers(0, 4, (40, 1)))])
    arrays, settings = readout.to_arrays()
    again = KernelReadout.from_arrays(arrays, settings)
    np.testing.assert_array_equal(again.probabilities(NEW), readout.probabilities(NEW))
    with pytest.raises(ValueError, match=r"dual is float64 of the shape \(89, 4\)"):
        KernelReadout.from_arrays(arrays | {"kernel.dual": readout.dual[1:]}, settings)
    with pytest.raises(ValueError, match="another kernel"):
        KernelReadout.from_arrays(arrays, settings | {"kernel": "rbf"})


def test_constant_features_and_feature_weights_of_zero_change_nothing():
    wide = np.concatenate([X, np.full((90, 1), 3.0), X[:, :1]], axis=1).astype(np.float32)
    training = Standardised.of(wide, np.array([1.0] * 13 + [0.0]))
    assert not training.rows[:, 12:].any()
    plain = Standardised.of(X.astype(np.float32))
    np.testing.assert_allclose(training.rows[:, :12] * np.sqrt(14 / 12), plain.rows, rtol=1e-5, atol=1e-6)
