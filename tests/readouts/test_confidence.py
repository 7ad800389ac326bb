"""Intervals and p-values, compared with scipy and with simulated frequencies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from reservoir.readouts.evaluation import accuracy_interval, mcnemar, paired_bootstrap


@given(right=st.integers(0, 60), wrong=st.integers(0, 60))
def test_interval_of_one_output_per_row_is_wilsons(right, wrong):
    if right + wrong:
        theirs = binomtest(right, right + wrong).proportion_ci(method="wilson")
        ours = accuracy_interval(np.r_[np.ones(right), np.zeros(wrong)], z=1.959963984540054)
        np.testing.assert_allclose(ours, (theirs.low, theirs.high), atol=1e-12)


@pytest.mark.parametrize("together", [True, False])
def test_interval_treats_outputs_of_a_row_as_dependent(together):
    """The interval holds the truth as often as it says, whether a row's outputs stand and fall together or not."""
    rng = np.random.default_rng(0)
    held, widths = 0, []
    for _ in range(1000):
        chance = rng.beta(1.6, 0.4, (100, 1)) if together else np.full((100, 1), 0.8)
        shares = (rng.random((100, 50)) < chance).mean(axis=1)
        low, high = accuracy_interval(shares)
        held += low <= 0.8 <= high
        widths.append(high - low)
    assert 0.92 <= held / 1000 <= 0.975
    alone = 2 * 1.96 * np.sqrt(0.8 * 0.2 / 5000)
    assert (np.mean(widths) > 3 * alone) if together else (0.9 * alone < np.mean(widths) < 1.1 * alone)


def test_interval_of_identical_rows_uses_their_number():
    assert accuracy_interval(np.full(30, 0.5)) == pytest.approx(accuracy_interval(np.arange(30) % 2))
    low, high = accuracy_interval(np.ones(30))
    assert 0.88 < low < 0.9
    assert high == 1


@given(both=st.integers(0, 9), wins=st.integers(0, 40), losses=st.integers(0, 40))
def test_mcnemar_equals_the_mid_p_value(both, wins, losses):
    a = np.r_[np.ones(both), np.ones(wins), np.zeros(losses)]
    b = np.r_[np.ones(both), np.zeros(wins), np.ones(losses)]
    rows = wins + losses
    exact = binomtest(wins, rows).pvalue if rows else 1.0
    as_large = binom.pmf([*{wins, losses}], rows, 0.5).sum() if rows else 0.0
    assert mcnemar(a, b) == pytest.approx(exact - as_large / 2)


def test_p_values_are_uniform_without_a_difference():
    rng = np.random.default_rng(0)
    exact, drawn = [], []
    for seed in range(1000):
        easy = rng.random(400) < 0.5  # rows that both get right; on the others each has the same chance
        a, b = (easy | (rng.random(400) < 0.5) for _ in range(2))
        exact.append(mcnemar(a, b))
        scores = rng.standard_normal((2, 60)) ** 3 + rng.standard_normal(60)
        drawn.append(paired_bootstrap(*scores, draws=199, seed=seed))
    for level in (0.05, 0.1, 0.25, 0.5):
        for found in (exact, drawn):
            assert abs(np.mean(np.array(found) <= level) - level) < 0.04


def test_small_p_value_for_a_real_difference():
    rng = np.random.default_rng(0)
    base = rng.standard_normal(200)
    assert paired_bootstrap(base + 0.3 + 0.5 * rng.standard_normal(200), base) < 0.001
    a, b = rng.random(500) < 0.9, rng.random(500) < 0.8
    assert mcnemar(a, b) < 0.001
    assert abs(paired_bootstrap(a, b) - mcnemar(a, b)) < 0.002
    assert paired_bootstrap(base, base) == mcnemar(a, a) == 1
    assert paired_bootstrap(base, base) == paired_bootstrap(base[:1], base[1:2]) == 1
    assert paired_bootstrap(base + 1, base, draws=99) == 0.01
    assert paired_bootstrap(base, 2 * base, draws=500, seed=1) == paired_bootstrap(base, 2 * base, draws=500, seed=1)
