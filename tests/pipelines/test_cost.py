"""The cost of a fit is estimated from its sizes, and every part of a fit shows its progress."""

from collections import defaultdict

import numpy as np
import pytest
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fitting import cost
from reservoir_pipelines.fitting.cost import RidgeSize, cost_line
from reservoir_pipelines.output import Meter

from reservoir.readouts.linear import Targets
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir.readouts.products import listening
from reservoir.readouts.sweep import cross_sweep, sweep

SIZES = [
    *((400, 1000, 4, 5, 1), (400, 1000, 300, 5, 1), (300, 500, 4, 0, 1), (300, 500, 4, 3, 3)),
    *((2000, 128, 4, 5, 1), (2000, 128, 300, 5, 1), (2000, 128, 300, 0, 1), (4000, 256, 3, 0, 1)),
]


@pytest.mark.parametrize(("samples", "width", "classes", "folds", "repeats"), SIZES)
def test_the_estimate_is_the_work_that_a_fit_reports(samples, width, classes, folds, repeats):
    draw, reported = np.random.default_rng(0), []
    x, y = draw.normal(size=(samples, width)).astype(np.float32), draw.integers(0, classes, (samples, 1))
    y[:classes, 0] = np.arange(classes)
    held_out = samples // 4
    with listening(reported.append):
        if folds:
            fold = np.stack([draw.permutation(samples) % folds for _ in range(repeats)], axis=1)
            cross_sweep([(x, y, fold)], Targets(1, classes), folds=folds, repeats=repeats)
        else:
            sweep([(x, y)], [(x[:held_out], y[:held_out])], Targets(1, classes))
    size = RidgeSize(
        samples=samples,
        held_out=held_out,
        width=width,
        targets=classes,
        penalties=len(DEFAULT_ALPHAS),
        folds=folds,
        repeats=repeats,
    )
    assert 0.7 < size.work / sum(reported) < 1.4


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("cost")
    return extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="embed,block01", pool="mean")


def test_a_large_fit_says_what_it_will_take_before_it_starts(extracted, tmp_path, monkeypatch, capfd):
    large = RidgeSize(samples=30_000, held_out=6000, width=768, targets=20_000, penalties=25)
    line = cost_line([large])
    assert line is not None and line.startswith("estimate: about 5 min of one core (3.2e+12 multiplications)"), line
    # the solutions of all penalties, (25, 768, 20000) in float64, in two copies or three
    assert 6e9 < large.bytes < 2e10
    many = [RidgeSize(samples=3000, held_out=600, width=768, targets=10, penalties=25, folds=5)] * 2000
    assert cost_line(many) and cost_line(many[:10]) is None
    fit(extracted, out=tmp_path)
    assert "estimate" not in capfd.readouterr().err
    monkeypatch.setattr(cost, "SMALL_SECONDS", 0)
    fit(extracted, out=tmp_path)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("fit digits") and lines[1].startswith("estimate: about ")


def test_every_part_of_a_fit_shows_its_progress_with_a_total(extracted, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "UNIT", 1e6)
    shown = defaultdict(list)

    show = Meter.show

    def record(self, finished, text=""):
        shown[self._title].append((finished, self._total))
        show(self, finished, text)

    monkeypatch.setattr(Meter, "show", record)
    fit(extracted, columns="block01/mean", curve="50,100,200", out=tmp_path / "one")
    assert list(shown) == ["fit", "learning curve", "baselines", "refit", "score on test", "predictions"]
    fit(extracted, columns=extracted.columns, out=tmp_path / "two")
    assert "layers" in shown
    for title, steps in shown.items():
        done, total = np.array(steps).T
        assert (done <= total).all() and done[-1] == total[-1], title
    # progress within the only column
    assert len({done for done, _ in shown["fit"]}) > 3
    assert len(shown["learning curve"]) == 5 * 3
