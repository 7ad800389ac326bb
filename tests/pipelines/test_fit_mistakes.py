"""fit where something is amiss: few rows, readouts of another kind, extreme penalties; one line each, or a result."""

import pytest
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fits.engines import make_engine

from reservoir import InputError


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


@pytest.mark.parametrize(
    ("readout", "classes", "words"),
    [
        ("sklearn.linear_model.Ridge:alpha=1", 10, "no classifier"),
        ("sklearn.linear_model.LinearRegression", 2, "no classifier"),
        ("sklearn.cluster.KMeans", 10, "no classifier"),
        ("sklearn.cluster.KMeans", 0, "no regressor"),
        ("sklearn.linear_model.LogisticRegression", 0, "no regressor"),
        ("sklearn.pipeline.Pipeline", 10, "cannot be made"),
    ],
)
def test_a_readout_of_another_kind_than_the_task_is_refused(readout, classes, words):
    with pytest.raises(InputError) as caught:
        make_engine(readout, classes)
    assert readout.partition(":")[0] in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("readout", "classes"),
    [("sklearn.neighbors.KNeighborsRegressor", 0), ("sklearn.svm.LinearSVC:C=1,10", 3)],
)
def test_a_readout_of_the_task_s_kind_is_taken(readout, classes):
    assert make_engine(readout, classes).path == readout.partition(":")[0]
