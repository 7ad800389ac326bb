"""fit in unusual cases: few rows, readouts that do not suit the task, several entries, long settings."""

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fitting.fitters import make_fitter
from reservoir_pipelines.fitting.results import Result, score_matrix
from reservoir_pipelines.plots import plot_sweep

from reservoir import InputError
from reservoir.options import FitOptions


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    """Return features of digits in three shards."""
    root = tmp_path_factory.mktemp("mistakes")
    return extract("digits", backbone=str(tiny_gpt2), limit=600, cache=root, layers="final")


ROWS = {"train": 60, "valid": 40}


@pytest.mark.parametrize("curve", ["1", "1,2"])
def test_a_learning_curve_may_start_with_fewer_rows_than_shards(extracted, curve, tmp_path):
    done = fit(extracted, columns="final/mean", alphas="1:100:3", curve=curve, out=tmp_path)
    assert [point.rows for point in done.curve] == [int(n) for n in curve.split(",")]
    assert all(0 <= valid <= 1 and 0 <= test <= 1 for _, valid, test, *_ in done.curve)


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
def test_a_readout_that_does_not_suit_the_task_is_refused(readout, classes, words):
    with pytest.raises(InputError) as caught:
        make_fitter(FitOptions(readout=readout), classes, ROWS)
    assert readout.partition(":")[0] in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("readout", "classes"),
    [("sklearn.neighbors.KNeighborsRegressor", 0), ("sklearn.svm.LinearSVC:C=1,10", 3)],
)
def test_a_readout_that_suits_the_task_is_accepted(readout, classes):
    assert make_fitter(FitOptions(readout=readout), classes, ROWS).path == readout.partition(":")[0]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Return a function that draws some readouts, the last of them chosen, and returns the axes."""
    figures = []

    def keep(figure, *_arguments, **_settings):
        figure.draw_without_rendering()
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    monkeypatch.setattr("reservoir_pipelines.plots.replace_file", lambda path, write: write(path))

    def draw(columns, settings, metric="accuracy"):
        results = [
            Result(columns=tuple(column.split("+")), readout=name, alpha=alpha, valid_score=0.5, metric=metric)
            for column in columns
            for name, alpha in settings
        ]
        names, tried, scores = score_matrix(results)
        last = len(names) - 1, len(tried) - 1
        plot_sweep(tmp_path / "sweep.png", names, tried, scores, last, 0.4, metric=metric, title="title")
        return figures[-1].axes[:2]

    return draw


@pytest.mark.parametrize(("metric", "value", "words"), [("accuracy", 50, "accuracy (%)"), ("R²", 0.5, "R²")])
def test_the_picture_names_its_metric(drawn, metric, value, words):
    lines, heat = drawn(["embed/mean", "final/mean"], [("ridge", 1.0), ("ridge", 10.0)], metric)
    assert words in lines.get_ylabel()
    assert words in heat.get_title()
    np.testing.assert_allclose(lines.lines[0].get_ydata(), value)
    np.testing.assert_allclose(heat.images[0].get_array(), value)


def test_no_line_of_the_picture_connects_two_entries(drawn):
    layers = ["1:embed", "1:block01", "1:final", "2:embed", "2:final"]
    lines, _ = drawn([f"{layer}/mean" for layer in layers], [("ridge", 1.0)])
    assert np.isnan(lines.lines[0].get_ydata()).tolist() == [False, False, False, True, False, False]
    assert [label.get_text() for label in lines.get_xticklabels()] == [name.replace("block", "") for name in layers]
    assert lines.get_xticks().tolist() == [0, 1, 2, 4, 5]


def test_settings_of_an_estimator_do_not_overlap_in_the_picture(drawn):
    settings = [(f"sklearn.svm.SVC(kernel={kernel}, C={c})", None) for kernel in ("rbf", "linear") for c in (1, 10)]
    _, heat = drawn(["embed/mean", "final/mean"], settings)
    boxes = [label.get_window_extent() for label in heat.get_xticklabels()]
    assert len(boxes) == 4
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


def test_a_fit_of_joined_columns_alone_is_drawn(drawn):
    lines, heat = drawn(["embed/mean+final/mean", "embed/last+final/last"], [("ridge", 1.0), ("ridge", 10.0)])
    np.testing.assert_allclose(lines.lines[0].get_ydata(), 50)
    assert heat.images[0].get_array().shape == (2, 2)
    assert "ringed" in heat.get_title()
