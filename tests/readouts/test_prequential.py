"""The prequential code is that of scikit-learn's ridge, fitted to each prefix of the samples, portion by portion."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from reservoir_pipelines.fitting import folds
from scipy.special import log_softmax
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from reservoir.readouts.linear import Targets
from reservoir.readouts.prequential import ALPHAS, SHARES, portion_ends, prequential_code


def draw_samples(rows, width, classes, outputs=1, signal=2.0):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, width)).astype(np.float32)
    y = (signal * x[:, : classes * outputs].reshape(rows, outputs, classes)).argmax(axis=2)
    return x, y, draw.permutation(rows)


def code_by_hand(x, y, ranks, ends, targets):
    """Return the bits of each portion by scikit-learn's ridge on standardised features of all earlier portions."""
    order = np.argsort(ranks)
    x, y = x[order].astype(np.float64), y[order]
    coded = targets.coded(y)

    def scores_of(fitted, scored, alpha):
        scale = StandardScaler().fit(x[fitted])
        model = Ridge(alpha=alpha).fit(scale.transform(x[fitted]), coded[fitted])
        return model.predict(scale.transform(x[scored])).reshape(-1, targets.columns)

    def length(scores, labels, temperature):
        logs = log_softmax(targets.logits(scores) / temperature, axis=-1)
        return -np.take_along_axis(logs, labels[..., None], axis=-1).sum() / np.log(2)

    bits = [ends[0] * targets.outputs * np.log2(targets.classes)]
    setting = 100.0, 1.0
    for start, end in itertools.pairwise(ends):
        scored = slice(start, end)
        of_readout = length(scores_of(slice(start), scored, setting[0]), y[scored], setting[1])
        uniform = y[scored].size * np.log2(targets.classes)
        bits.append(1 - np.logaddexp2(-of_readout, -uniform))
        # The receiver knows these labels now, and chooses for the next portion.
        tried = []
        for alpha in ALPHAS:
            scores = scores_of(slice(start), scored, alpha)
            temperature = targets.fit_temperature(scores, y[scored])
            tried.append((length(scores, y[scored], temperature), (alpha, temperature)))
        setting = min(tried)[1]
    return bits


@pytest.mark.parametrize(("classes", "outputs"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("width", [8, 100])
def test_the_code_is_that_of_readouts_of_each_prefix(classes, outputs, width):
    x, y, ranks = draw_samples(600, width, classes, outputs)  # prefixes have fewer and more samples than features
    targets, ends = Targets(outputs, classes), portion_ends(600, classes)
    assert ends.tolist() == [20, 38, 75, 150, 300, 600]
    blocks = [(x[:250], y[:250], ranks[:250]), (x[250:], y[250:], ranks[250:])]
    code = prequential_code(blocks, ends, targets)
    assert [samples for samples, _ in code.portions] == np.diff(ends, prepend=0).tolist()
    assert [bits for _, bits in code.portions] == pytest.approx(code_by_hand(x, y, ranks, ends, targets), rel=1e-3)
    assert code.bits == pytest.approx(sum(bits for _, bits in code.portions))
    assert code.uniform_bits == pytest.approx(600 * outputs * np.log2(classes))
    assert code.compression == code.uniform_bits / code.bits > 1.3


def test_labels_that_do_not_depend_on_features_are_not_compressed():
    x, y, ranks = draw_samples(2000, 10, 2)
    random = np.random.default_rng(1).integers(0, 2, y.shape)
    code = prequential_code([(x, random, ranks)], portion_ends(2000, 2), Targets(1, 2))
    assert 0.95 < code.compression <= 1.0
    # Rare labels are compressed to about their entropy, which needs no features.
    rare = (np.random.default_rng(2).random(y.shape) < 0.05).astype(int)
    share = rare.mean()
    entropy = -len(rare) * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    code = prequential_code([(x, rare, ranks)], portion_ends(2000, 2), Targets(1, 2))
    assert entropy < code.bits < 1.25 * entropy


@pytest.mark.parametrize("seed", range(12))
def test_no_portion_costs_more_than_uniform_labels_and_a_bit(seed):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, (500, 1))
    x = draw.normal(size=(500, 64)) + y  # a sure readout of a few samples may be wrong
    ends = portion_ends(500, 2)
    code = prequential_code([(x, y, np.arange(500))], ends, Targets(outputs=1, classes=2))
    assert all(bits <= samples + 1 for samples, bits in code.portions)
    assert code.compression > 3


def test_no_label_is_used_before_it_is_sent():
    x, y, ranks = draw_samples(600, 20, 2)
    ends = portion_ends(600, 2)
    before = prequential_code([(x, y, ranks)], ends, Targets(1, 2)).portions
    for portion in range(1, len(ends)):
        # Other features and labels from this portion on leave the bits of the earlier ones as they are.
        is_later = ranks >= ends[portion - 1]
        changed = np.where(is_later[:, None], 1 - y, y), np.where(is_later[:, None], 9 * x, x)
        after = prequential_code([(changed[1], changed[0], ranks)], ends, Targets(1, 2)).portions
        assert after[:portion] == before[:portion] and after[portion] != before[portion]


def test_portions_end_at_the_shares_of_the_paper():
    assert portion_ends(100_000, 10).tolist() == [int(np.ceil(share * 100_000)) for share in SHARES]
    assert portion_ends(1000, 20).tolist() == [63, 125, 250, 500, 1000]  # two samples of each class, or more
    x, y, ranks = draw_samples(10, 4, 2)
    code = prequential_code([(x, y, ranks)], portion_ends(10, 2), Targets(1, 2))
    assert (code.bits, code.compression) == (10, 1)


def test_rows_of_a_group_are_sent_together(monkeypatch):
    """Copies of a row say nothing about the labels of other groups, which are random."""
    draw = np.random.default_rng(0)
    groups = draw.permutation(np.repeat(np.arange(80), draw.integers(1, 12, 80)))
    x, y = draw.normal(size=(80, 120)).astype(np.float32)[groups], draw.integers(0, 2, (80, 1))[groups]

    def code_of(groups):
        source = SimpleNamespace(
            counts=lambda split: np.ones(len(x), int),
            groups=lambda split: groups,
            labels=lambda split: y,
            blocks=lambda split: iter([(x[:100], y[:100]), (x[100:], y[100:])]),
            feature_weights=None,
        )
        return folds.code_length(source, 2)

    assert code_of(None).compression > 1.5 and code_of(groups).compression < 1.1
    calls = []
    monkeypatch.setattr(folds, "prequential_code", lambda *arguments: calls.append(arguments))
    code_of(groups)
    blocks, ends, *_ = calls[0]
    ranks = np.concatenate([block[2] for block in blocks])
    portions = np.searchsorted(ends, ranks, side="right")
    assert len(np.unique(portions)) > 3 and all(np.ptp(portions[groups == name]) == 0 for name in range(80))
    assert all(np.ptp(ranks[groups == name]) == (groups == name).sum() - 1 for name in range(80))
