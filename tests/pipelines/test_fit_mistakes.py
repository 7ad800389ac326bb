"""fit where something is amiss: few rows, readouts of another kind, extreme penalties; one line each, or a result."""

import pytest
from reservoir_pipelines import extract, fit


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    """Digits in three shards."""
    root = tmp_path_factory.mktemp("mistakes")
    return extract("digits", backbone=str(tiny_gpt2), limit=600, cache=root, layers="final")


@pytest.mark.parametrize("curve", ["1", "1,2"])
def test_a_learning_curve_may_start_with_fewer_rows_than_there_are_shards(extracted, curve, tmp_path):
    done = fit(extracted, columns="final/mean", alphas="1:100:3", curve=curve, out=tmp_path)
    assert [n for n, _, _ in done.curve] == [int(n) for n in curve.split(",")]
    assert all(0 <= valid <= 1 and 0 <= test <= 1 for _, valid, test in done.curve)
