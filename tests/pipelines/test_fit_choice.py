"""How a readout is chosen: the grid of penalties, the metric, class weights, and chance on random labels."""

from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reservoir_cache.shard import decode, encode
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fitting.fitters import EstimatorFitter, LogisticFitter, RidgeFitter, stored_moments
from reservoir_pipelines.fitting.sources import ColumnSource, fold_blocks
from sklearn.metrics import balanced_accuracy_score

from reservoir import InputError
from reservoir.readouts.evaluation import compare, evaluate
from reservoir.readouts.logistic import LOGISTIC_ALPHAS
from reservoir.readouts.moments import accumulate, fold_moments
from reservoir.readouts.sweep import sweep
from reservoir.readouts.targets import RereadableBlocks, Targets, balanced_weights

ALPHAS = np.logspace(-2, 6, 25)


@dataclass(frozen=True)
class Held:
    """A source of samples in memory: features and labels of each split."""

    splits: Any
    columns: tuple[str, ...] = ("held",)
    store: Any = field(default_factory=lambda: defaultdict(lambda: SimpleNamespace(groups=None)))

    def blocks(self, split):
        yield self.splits[split]

    def labels(self, split):
        return self.splits[split][1]

    def kept(self, split):
        return slice(None)

    def tokens(self):
        return 1

    def counts(self, split):
        return np.ones(len(self.splits[split][1]), int)


def held(x, y, name="held"):
    """Return a source of samples that are split into 60% train, 20% valid and 20% test."""
    cut = [int(0.6 * len(x)), int(0.8 * len(x))]
    parts = zip(("train", "valid", "test"), np.split(x, cut), np.split(y, cut), strict=True)
    return Held({split: (a, b) for split, a, b in parts}, (name,))


def in_float16(x):
    """Return samples as they are read from a shard of float16."""
    return decode(encode(x[:, None], "float16", column="held"), "float16")[:, 0]


@pytest.mark.parametrize("folds", [0, 5])
@pytest.mark.parametrize("width", [5, 300])
def test_the_grid_is_extended_where_its_end_scores_best(folds, width):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((250, 4)) @ rng.standard_normal((4, width))
    source = held(x, x[:, :1] + 1e-9 * rng.standard_normal((250, 1)))  # the smaller the penalty, the better
    kept = RidgeFitter(classes=0, alphas=ALPHAS, folds=folds, widens=False).fit(source)
    wide = RidgeFitter(classes=0, alphas=ALPHAS, folds=folds).fit(source)
    assert kept.at_edge
    assert kept.result.alpha == pytest.approx(1e-2)
    assert wide.result.alpha < 1e-3
    assert wide.result.valid_score > kept.result.valid_score
    assert [result.alpha for result in wide.results][-25:] == pytest.approx(ALPHAS)


def test_the_grid_of_logistic_readouts_is_extended_too():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((250, 1)), 3, axis=1) + 0.01 * rng.standard_normal((250, 3))
    source = held(x, (x[:, :1] > x[:, 1:2]).astype(int))
    found = LogisticFitter(classes=2, alphas=LOGISTIC_ALPHAS).fit(source)
    assert found.result.alpha < LOGISTIC_ALPHAS[0]
    assert LogisticFitter(classes=2, alphas=LOGISTIC_ALPHAS, widens=False).fit(source).at_edge


def test_random_labels_give_chance_accuracy_and_uniform_p_values():
    accuracies, p_values = [], []
    fitter = RidgeFitter(classes=2, alphas=ALPHAS[::3], folds=5)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, (300, 1))
        raw, *sources = (held(rng.standard_normal((300, width)), y) for width in (20, 20, 60, 300))
        trials = [fitter.fit(source) for source in sources]
        best = max(range(3), key=lambda i: trials[i].result.merit)
        found = evaluate(trials[best].readout, sources[best].blocks("test"), ["a", "b"])
        accuracies.append(found.scores["accuracy"])
        p_values.append(compare(found, evaluate(fitter.fit(raw).readout, raw.blocks("test"), ["a", "b"])))
        assert trials[best].result.valid_score > 0.5  # the best of many flatters itself: it is not what is reported
    assert abs(np.mean(accuracies) - 0.5) < 2 * 0.5 / np.sqrt(100 * 60)
    for level in (0.05, 0.1, 0.25, 0.5):
        assert abs(np.mean(np.array(p_values) <= level) - level) <= 3 * np.sqrt(level * (1 - level) / 100)
    assert len(set(p_values)) > 10


@pytest.mark.parametrize("width", [30, 400])
def test_rounding_of_stored_features_does_not_affect_the_choice(width):
    """A share that only one row has is rounded differently in every shard, which is no signal in the other folds."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 150)[:, None]
    x = (rng.random((150, width)) + 0.3 * y * (np.arange(width) % 5 == 0)).astype(np.float32)
    rare = np.zeros((150, width), np.float32)
    rare[rng.integers(0, 120, width), np.arange(width)] = rng.random(width) / 7
    exact = held(np.concatenate([x, rare], axis=1), y)
    rounded = Held({name: (in_float16(x), y) for name, (x, y) in exact.splits.items()})
    one, other = (RidgeFitter(classes=2, alphas=ALPHAS, folds=5).fit(source) for source in (exact, rounded))
    assert one.result.alpha == other.result.alpha
    np.testing.assert_allclose(
        [result.valid_score for result in one.results], [result.valid_score for result in other.results], atol=0.009
    )
    test = exact.splits["test"][0]
    np.testing.assert_allclose(one.readout.scores(test), other.readout.scores(test), atol=1e-3)


@pytest.mark.parametrize("classes", [0, 3])
def test_refit_adds_the_moments_of_valid_and_does_not_read_train_again(tiny_gpt2, tmp_path, classes, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 6, 2)).astype(np.float32)
    y = x[:, :, 0].mean(axis=1) + 0.1 * rng.standard_normal(400)
    np.savez(tmp_path / "rows.npz", x=x, y=np.digitize(y, [-0.2, 0.2]) if classes else y)
    settings = {"backbone": str(tiny_gpt2), "cache": tmp_path / "cache", "layers": "final", "pool": "mean"}
    source = ColumnSource(extract(str(tmp_path / "rows.npz"), **settings).store, "final/mean")
    fitter = RidgeFitter(classes=classes, alphas=ALPHAS, refits=True)
    chosen = fitter.fit(source)
    blocks, read = ColumnSource.blocks, []
    monkeypatch.setattr(ColumnSource, "blocks", lambda *args: read.append(args[1]) or blocks(*args))
    refitted = fitter.refit(source, chosen.readout, chosen.result.alpha)
    assert read == ["valid"]
    both = RereadableBlocks(lambda: (block for split in ("train", "valid") for block in blocks(source, split)), ())
    expected = sweep(both, both, chosen.readout.targets, np.array([chosen.result.alpha])).readout()
    np.testing.assert_allclose(refitted.coef, expected.coef, rtol=1e-9, atol=1e-12 * np.abs(expected.coef).max())
    np.testing.assert_allclose(refitted.intercept, expected.intercept, rtol=1e-9)
    assert refitted.temperature == chosen.readout.temperature


def rare(count, seed):
    """Return two features of samples of which 8% are positive."""
    rng = np.random.default_rng(seed)
    y = (rng.random((count, 1)) < 0.08).astype(int)
    return np.c_[0.7 * y, 0.3 * y] + rng.standard_normal((count, 2)) @ [[1, 0.9], [0, 0.4]], y


@pytest.mark.parametrize("folds", [0, 5])
def test_balanced_readouts_are_chosen_by_balanced_accuracy(folds):
    source = held(*rare(1500, seed=2))
    found = RidgeFitter(classes=2, alphas=np.logspace(-2, 6, 9), folds=folds, balanced=True, widens=False).fit(source)
    assert found.result.metric == "balanced_accuracy"
    assert found.result.valid_score == max(result.valid_score for result in found.results)
    x, y = source.splits["valid"]
    expected = balanced_accuracy_score(y, found.readout.predict(x))
    assert found.result.valid_score == pytest.approx(expected, abs=0.03 if not folds else 0.1)
    assert found.result.valid_score < 0.9  # the share of negatives, which is the accuracy of saying no, is 0.92


def test_balanced_weights_count_the_rows_that_a_readout_is_fitted_to():
    source = held(*rare(500, seed=0))
    labels = {split: source.labels(split).ravel() for split in ("train", "valid")}
    both = balanced_weights(np.bincount(np.concatenate([*labels.values()])))
    settings = {"classes": 2, "alphas": ALPHAS, "balanced": True}
    assert RidgeFitter(**settings, refits=True).targets(source).class_weights == both
    assert RidgeFitter(**settings, folds=5).targets(source).class_weights == both
    train = balanced_weights(np.bincount(labels["train"]))
    assert RidgeFitter(**settings).targets(source).class_weights == train != both


def test_a_balanced_estimator_is_chosen_by_balanced_accuracy():
    source = held(*rare(1500, seed=2))
    fitter = EstimatorFitter.parse("sklearn.linear_model.LogisticRegression:C=0.01,1", 2, balanced=True)
    found = fitter.fit(source)
    x, y = source.splits["valid"]
    assert found.result.metric == "balanced_accuracy"
    expected = balanced_accuracy_score(y, found.readout.predict(x))
    assert found.result.valid_score == pytest.approx(expected, abs=0.03)


def test_stored_moments_are_those_of_the_whole_column(tiny_gpt2, tmp_path):
    settings = {"backbone": str(tiny_gpt2), "cache": tmp_path, "layers": "final", "pool": "mean"}
    extracted = extract("digits", limit=600, **settings)
    source, targets = ColumnSource(extracted.store, "final/mean"), Targets(1, 10)
    part = source.store["train"]
    expected = [accumulate([(part["final/mean"], targets.encode(part.labels[:, 0]))])]
    expected += fold_moments(fold_blocks(source, 3, 10), targets, 3)
    for _ in range(2):  # computed, then read from the entry
        found = [moments for folds in (0, 3) for moments in stored_moments(source, targets, folds)]
        for a, b in zip(found, expected, strict=True):
            for name, value in b.to_arrays().items():
                np.testing.assert_allclose(a.to_arrays()[name], value, rtol=1e-10, atol=1e-10 * np.abs(value).max())
    for device, words in [("nowhere", "nowhere"), ("meta", "cpu or cuda")]:
        with pytest.raises(InputError, match=words):
            fit(extracted, out=tmp_path, device=device)
