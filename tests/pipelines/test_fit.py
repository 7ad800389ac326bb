"""`fit` gives the same readouts as scikit-learn, and chooses, saves and plots one; invalid options are refused."""

import csv
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from reservoir_cache import STORES
from reservoir_pipelines import extract, fit, predict, prepare, report
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting import fit as fitting
from reservoir_pipelines.fitting import ridge_fitter
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.candidates import make_fitter
from reservoir_pipelines.fitting.evaluate import Test
from reservoir_pipelines.fitting.fit_data import FitData
from reservoir_pipelines.fitting.fitter import fit_source
from reservoir_pipelines.fitting.folds import assign_folds, fold_blocks
from reservoir_pipelines.fitting.logistic_fitter import LogisticFitter
from reservoir_pipelines.fitting.results import Result, score_grid
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter, stored_moments
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, ColumnSource, EntryView, Samples
from reservoir_pipelines.plots import plot_sweep, saved_figure
from reservoir_pipelines.reports.views import fit_part
from reservoir_pipelines.tables import FitScores
from sklearn.metrics import balanced_accuracy_score, log_loss

from reservoir import InputError
from reservoir.column import RAW, Column
from reservoir.options import FitOptions
from reservoir.plan.precision import BLOCK_ROWS
from reservoir.readouts.evaluation import evaluate_blocks
from reservoir.readouts.linear import RereadableBlocks, Targets, balanced_weights
from reservoir.readouts.moments import accumulate, fold_moments
from reservoir.readouts.paired import p_value_of_difference
from reservoir.readouts.penalties import LOGISTIC_ALPHAS
from reservoir.readouts.products import Arithmetic, StoredFeatures, products_on
from reservoir.readouts.sweep import sweep
from reservoir.tasks.task import Task
from tests.helpers import outcome

# each column alone, chosen on the validation split and fitted to train
PLAIN = {"alphas": "1e-1:1e4:6", "select": "valid", "columns": "block01/last,block01/mean,final/last,final/mean"}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("fit")
    return extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="block01,final")


@pytest.fixture(scope="module")
def fitted(extracted):
    return fit(extracted, **PLAIN)


def test_fit_refuses_a_task_whose_validation_rows_are_its_test_rows(tmp_path, tiny_gpt2):
    rows = {"train_rows": 40, "valid_rows": 20, "max_tokens": 12}
    features = extract("listops", backbone=str(tiny_gpt2), parameters=rows, protocol="paper", cache=tmp_path, depth=1)
    with pytest.raises(InputError, match="--protocol"):
        fit(features)


def test_every_readout_equals_scikit_learn(extracted, fitted):
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, valid = extracted["train"], extracted["valid"]
    assert len(fitted.table) == 4 * 6
    for result in fitted.table:
        peer = make_pipeline(StandardScaler(), RidgeClassifier(alpha=result.alpha))
        peer.fit(train[result.columns[0]].astype(np.float64), train.y.ravel())
        accuracy = peer.score(valid[result.columns[0]].astype(np.float64), valid.y.ravel())
        # Rounding may decide a tie between two classes, in at most one of 300 rows.
        assert abs(accuracy - result.valid_score) <= 1 / 300, result


def test_the_best_is_chosen_on_valid_and_ties_go_to_the_larger_penalty(fitted):
    top = max(r.valid_score for r in fitted.table)
    assert fitted.best.valid_score == top
    assert fitted.best.alpha == max(r.alpha for r in fitted.table if r.valid_score == top)


def test_test_is_scored_for_the_chosen_readout_alone(extracted, fitted):
    assert all(r.test_score is None for r in fitted.table)
    test = extracted["test"]
    hits = fitted.readout.predict(test[fitted.best.columns[0]]) == test.y[:, None]
    assert fitted.best.test_score == pytest.approx(hits.mean())
    with fitted.results.open() as file:
        rows = list(csv.DictReader(file))
    baselines = [one.name for one in fitted.baselines]
    assert [r["columns"] for r in rows if r["test_score"]] == [fitted.best.name, *baselines]
    assert len(rows) == len(fitted.table) + len(baselines)
    assert sum(int(r["chosen"]) for r in rows) == 1


def test_a_single_penalty_is_not_used_for_the_raw_input(extracted, tmp_path):
    whole = fit(extracted, columns="final/mean", out=tmp_path / "whole")
    one = fit(extracted, columns="final/mean", alphas="1e5:1e5:1", out=tmp_path / "one")
    assert (one.best.alpha, one.raw) == (1e5, whole.raw)


def test_a_second_fit_uses_stored_moments_and_reads_no_training_features(extracted, fitted, monkeypatch):
    from reservoir_cache import SplitFeatures

    assert not [*extracted.entry.glob("moments/*")]  # so small a column has none
    monkeypatch.setattr(ridge_fitter, "SMALL_WORK", 0)
    assert fit(extracted, **PLAIN).table == fitted.table
    plain = SplitFeatures.blocks

    def refuse(self, column, *shards):
        assert self.split != "train", "the training features were read again"
        return plain(self, column, *shards)

    monkeypatch.setattr(SplitFeatures, "blocks", refuse)
    again = fit(extracted, **PLAIN)
    assert again.table == fitted.table
    np.testing.assert_array_equal(again.readout.coef, fitted.readout.coef)


@pytest.mark.parametrize("limit", [60, 300])
def test_the_raw_input_gets_half_of_the_variance_when_joined_with_columns(extracted, tmp_path, limit, tiny_gpt2):
    from sklearn.linear_model import RidgeClassifier
    from sklearn.preprocessing import StandardScaler

    features = extract("digits", backbone=str(tiny_gpt2), limit=limit, layers="final", pool="mean", cache=tmp_path)
    source = FitData.open_entries(features).known.source((Column("final", "mean"), RAW))
    known = [
        np.concatenate([block[part] for split in ("train", "valid") for block in source.blocks(split)])
        for part in (0, 1)
    ]
    x, y = known[0].astype(np.float64), known[1].ravel()
    scaler, width = StandardScaler().fit(x), x.shape[1]
    share = np.sqrt(width / 2 / np.repeat([width - 64, 64], [width - 64, 64]))
    for columns in ("final/mean+raw", "raw+final/mean"):
        done = fit(features, columns=columns, alphas="10:10:1", out=tmp_path / "out")
        peer = RidgeClassifier(alpha=10).fit(scaler.transform(x) * share, y)
        test_source = Test([features.store]).read(source)
        test = np.concatenate([values for values, _ in test_source.blocks("test")])
        expected = peer.decision_function(scaler.transform(test) * share)
        order = np.r_[width - 64 : width, 0 : width - 64] if columns.startswith("raw") else np.arange(width)
        np.testing.assert_allclose(done.readout.scores(test[:, order]), expected, atol=1e-5)


def test_predict_equals_the_readout_on_cached_features(extracted, fitted, tmp_path):
    from sklearn.datasets import load_digits

    test = extracted["test"]
    prepared = prepare("digits", cache=extracted.entry.parents[2])
    whole = prepared.split("test")
    x = whole.read(0, len(whole)).x[test.index]
    file = tmp_path / "new.npz"
    np.savez(file, x=x)
    predictions = list(predict(fitted.saved, file))
    expected = fitted.readout.predict(test[fitted.best.columns[0]]).ravel()
    labels = np.array([p.label for p in predictions])
    # The cache rounds to float16, and `predict` does not, so the label of a row near the boundary may differ.
    assert (labels == expected).mean() >= 0.99
    chances = np.array([p.probabilities for p in predictions])
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-4)
    assert (chances.argmax(axis=1) == labels).all()
    # Raw images and patches are both accepted, and give the same labels.
    images = load_digits().images[:20].astype(np.uint8)
    patches = images.reshape(20, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(20, 16, 4)
    np.savez(tmp_path / "images.npz", x=images)
    np.savez(tmp_path / "patches.npz", x=patches)
    of_images, of_patches = (list(predict(fitted.saved.parent, tmp_path / f"{n}.npz")) for n in ("images", "patches"))
    assert of_images == of_patches
    assert np.mean([p.label for p in of_images] == load_digits().target[:20]) >= 0.5


def test_a_readout_refuses_other_weights(fitted, tmp_path, tiny_gpt2):
    for file in fitted.saved.parent.glob("readout*"):
        shutil.copy(file, tmp_path)
    card = read_checked(tmp_path / "readout.json")
    card["parts"][0]["digest"] = "0" * 64
    write_checked(tmp_path / "readout.json", card)
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 16, 4), np.uint8))
    with pytest.raises(InputError, match="changed"):
        list(predict(tmp_path, tmp_path / "new.npz"))


def test_readouts_of_several_entries_predict_through_all_of_them(extracted, tiny_gpt2, tmp_path):
    root = extracted.entry.parents[2]
    other = extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="final", seed=5)
    done = fit([extracted, other], columns="1:final/mean+2:final/mean", alphas="1e0:1e2:3", out=tmp_path)
    whole = prepare("digits", cache=root).split("test")
    x = whole.read(0, len(whole)).x[extracted["test"].index]
    np.savez(tmp_path / "new.npz", x=x)
    labels = np.array([p.label for p in predict(done.saved, tmp_path / "new.npz")])
    joined = np.concatenate([extracted["test"]["final/mean"], other["test"]["final/mean"]], axis=1)
    assert (labels == done.readout.predict(joined).ravel()).mean() >= 0.99
    assert len(Bundle.load(done.saved).parts) == 2
    # The headings name both entries, numbered as their columns are.
    assert done.entries == (extracted.entry, other.entry)
    heading = f"digits, 1: {extracted.entry.name}, 2: {other.entry.name}"
    assert FitScores.of(done, done.against).title == heading
    part = fit_part(tmp_path, 1)
    assert part["results"][0].title.startswith(heading) and ("entry 2", other.entry) in part["facts"]
    fewer = extract("digits", backbone=str(tiny_gpt2), limit=100, cache=root, layers="final")
    with pytest.raises(InputError, match="hold different rows; extract with the same --limit"):
        fit([extracted, fewer])


def test_entries_that_cannot_be_joined_say_what_differs(extracted, tiny_gpt2, tmp_path):
    root, draw = extracted.entry.parents[2], np.random.default_rng(0)
    options = {"backbone": str(tiny_gpt2), "cache": root, "layers": "embed"}
    x, y = draw.normal(size=(60, 5, 1)), np.arange(60) % 2

    def extract_own(**arrays):
        np.savez(tmp_path / "own.npz", **{"x": x, "y": y, "split": np.repeat(["train", "valid", "test"], 20)} | arrays)
        return extract(tmp_path / "own.npz", **options)

    first, data, labels = extract_own(), extract_own(x=x + 1), extract_own(y=np.arange(60) % 3)
    for other, message in (
        (extracted, r"are of the tasks own\.npz and digits; give entries of one task"),
        (data, "hold other data; extract them from the same file$"),
        (labels, "are of tasks with other classes; extract them from the same file with the same options"),
    ):
        with pytest.raises(InputError, match=message):
            fit([first, other])


def test_cross_validation_uses_every_row_that_is_not_test(extracted, tmp_path):
    first = fit(extracted, select="cv5", columns="final/mean", alphas="1e0:1e2:3", out=tmp_path)
    counts = [round(r.valid_score * 600, 6) for r in first.table]
    assert all(count == int(count) for count in counts)
    assert fit(extracted, select="cv5", columns="final/mean", alphas="1e0:1e2:3", out=tmp_path).table == first.table


def test_a_learning_curve_ends_at_the_score_of_the_fit_on_all_rows(extracted, tmp_path, painted, capsys):
    settings = {"alphas": "1e-1:1e4:6", "select": "valid", "curve": "30,100,300,9999", "out": tmp_path}
    done = fit(extracted, columns="final/mean", **settings)
    assert [point.rows for point in done.curve] == [30, 100, 300]
    assert "--curve 30,100,300,9999: the curve ends at all 300 training rows" in capsys.readouterr().err
    few, _, whole = done.curve
    assert whole.valid_range == (done.best.valid_score,) * 2 and whole.valid_score == done.best.valid_score
    assert whole.test_range == (done.best.test_score,) * 2
    assert few.valid_score < whole.valid_score
    assert few.test_range[0] < few.test_score < few.test_range[1]  # each draw has other rows
    assert (tmp_path / "curve.png").stat().st_size > 1000
    (samples,) = fit(extracted, columns="final/mean", **{**settings, "curve": "30"}).curve  # not from moments
    assert "the curve ends" not in capsys.readouterr().err
    assert samples.test_score == pytest.approx(few.test_score, abs=0.01)


@pytest.mark.parametrize(
    "readout", ["logistic", "sklearn.svm.LinearSVC:C=0.01,0.1", "sklearn.linear_model.SGDClassifier"]
)
def test_other_readouts_are_chosen_saved_and_loaded(extracted, readout, tmp_path):
    settings = {"alphas": "1e0:1e2:3"} if readout == "logistic" else {}
    done = fit(extracted, columns="final/mean", readout=readout, out=tmp_path, **settings)
    assert done.best.test_score > 0.5
    assert done.raw is not None
    loaded = Bundle.load(done.saved).readout
    test = extracted["test"]["final/mean"]
    np.testing.assert_array_equal(loaded.predict(test), done.readout.predict(test))
    np.testing.assert_allclose(loaded.probabilities(test).sum(axis=-1), 1, atol=1e-6)


def test_a_folder_has_only_the_files_of_its_last_fit(extracted, tmp_path):
    options = {"alphas": "1e0:1e2:3", "out": tmp_path}
    fit(extracted, columns="block01/mean,final/mean", curve="20", **options)
    assert (tmp_path / "layers.csv").is_file() and (tmp_path / "curve.png").is_file()
    for name in ("predicted.png", "notes.txt"):  # of a regression, and a file of the user
        (tmp_path / name).touch()
    fit(extracted, columns="final/mean", **options)
    names = {path.name for path in tmp_path.iterdir()}
    assert names.isdisjoint({"layers.csv", "curve.png", "predicted.png"})
    assert {"confusion.png", "sweep.png", "notes.txt"} <= names


def test_fits_that_show_other_things_have_other_folders(extracted, tmp_path):
    shutil.copytree(extracted.entry, tmp_path / "features" / "digits" / extracted.entry.name)
    options = {"columns": "final/mean", "alphas": "1e0:1e2:3"}
    entry = tmp_path / "features" / "digits" / extracted.entry.name
    shown = [{}, {"curve": "20"}, {"curve": "30"}, {"control": True}, {"mdl": True}]
    results = [fit(entry, **options, **more) for more in shown]
    assert len({result.saved.parent for result in results}) == len(shown)
    assert fit(entry, **options).saved == results[0].saved
    assert (results[1].saved.parent / "curve.png").is_file()


def test_a_report_shows_each_folder_of_fits_with_the_same_settings(extracted, tmp_path):
    shutil.copytree(extracted.entry, tmp_path / "features" / "digits" / extracted.entry.name)
    for name in ("first", "second", "second"):
        fit(tmp_path / "features" / "digits" / extracted.entry.name, columns="final/mean", out=tmp_path / name)
    assert report([], cache=tmp_path, out=tmp_path / "page.html").parts == 2


def test_each_seed_gets_its_own_reservoir(extracted, tmp_path):
    from statistics import fmean, stdev

    from reservoir_pipelines.fitting.fit import fit_seeds

    done = fit_seeds([extracted.store.entry], 3, FitOptions(out=tmp_path, columns="final/mean", alphas="1e0:1e2:3"))
    assert len({one.entry for one in done.fits}) == 3
    assert done.fits[0].entry == extracted.entry
    tests = [one.best.test_score for one in done.fits]
    assert len(set(tests)) > 1
    assert done.mean == pytest.approx(fmean(tests))
    assert done.deviation == pytest.approx(stdev(tests))
    assert len(done.to_dict()["seeds"]) == 3
    with pytest.raises(InputError, match="--seeds"):
        fit_seeds([extracted.store.entry] * 2, 3)


def test_scores_of_seeds_are_those_of_reservoirs_also_if_a_baseline_is_saved(extracted, tmp_path):
    from reservoir_pipelines.fitting.fit import SeedsFit

    done = fit(extracted, columns="final/mean", out=tmp_path)
    baseline = replace(done.reservoir, test_score=1.0)
    saved_baselines = [
        replace(done, best=baseline, reservoir=replace(baseline, test_score=score)) for score in (0.5, 0.7)
    ]
    assert SeedsFit(fits=tuple(saved_baselines)).test_scores == [0.5, 0.7]


def test_seeds_refuse_an_entry_whose_data_has_changed_since(tiny_gpt2, tmp_path):
    draw = np.random.default_rng(0)
    rows = {"x": draw.normal(size=(60, 8)), "y": np.arange(60) % 2}
    np.savez(tmp_path / "own.npz", **rows)
    features = extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), pool="mean", cache=tmp_path / "cache")
    np.savez(tmp_path / "own.npz", **rows | {"x": rows["x"] + 1})
    with pytest.raises(InputError, match=r"the data of .*own\.npz has changed since .* was extracted"):
        fitting.fit_seeds([features.store.entry], 2)


@pytest.mark.parametrize("repeats", [1, 3])  # 2 and 6 targets
def test_regression_is_scored_by_r2_and_predicted(tiny_gpt2, tmp_path, repeats):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 8, 2)).astype(np.float32)
    y = np.stack([x[:, :, 0].mean(axis=1), 3 + x[:, -1, 1]] * repeats, axis=1)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    np.savez(tmp_path / "new.npz", x=x[:5])
    settings = {"layers": "embed,block01", "pool": "last,segments8", "cache": tmp_path / "c"}
    done = fit(extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), **settings))
    assert 0.9 < done.best.test_score <= 1
    assert done.best.test_interval[0] < done.best.test_score < done.best.test_interval[1]
    predictions = list(predict(done.saved, tmp_path / "new.npz"))
    assert [p.probabilities for p in predictions] == [[]] * 5
    assert np.abs(np.array([p.label for p in predictions]) - y[:5]).max() < 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": "block02/mean"}, "block02/mean"),
        ({"columns": []}, "block01/last"),
        ({"alphas": "1:2"}, "penalties"),
        ({"readout": "nothing.Here"}, "nothing.Here"),
        ({"readout": "os.path.join"}, "scikit-learn"),
        ({"readout": "sklearn.svm.LinearSVC:D=1"}, "'D'"),
        ({"select": "cv1"}, "cv1"),
        ({"select": "cv5", "readout": "logistic"}, "cross-validation"),
        ({"readout": "weighted"}, "weighted"),
        ({"curve": "none"}, "--curve none"),
        ({"class_weight": "heavy"}, "heavy"),
        ({"out": "/dev/null"}, "written"),
    ],
)
def test_mistakes_end_a_fit_before_it_begins(settings, message, extracted, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "select", lambda *_: pytest.fail("fitting began"))
    with pytest.raises(InputError, match=message):
        fit(extracted, **{"out": tmp_path, **settings})


def test_files_that_are_no_entries_or_no_rows_are_refused(fitted, tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((9, 3)), y=np.arange(9) % 2)
    with pytest.raises(InputError, match="extract"):
        fit(tmp_path / "rows.npz")
    with pytest.raises(InputError, match="least"):
        fit([])
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match=r"bad\.npz"):
        list(predict(fitted.saved, tmp_path / "bad.npz"))


@pytest.mark.parametrize("stage", ["training.train.train", "fitting.fit.select"])
def test_an_interrupted_command_says_how_to_go_on(stage, extracted, call, monkeypatch):
    monkeypatch.setattr(f"reservoir_pipelines.{stage}", Mock(side_effect=KeyboardInterrupt))
    code, _, error = call(*(("train", "bit-xor") if "train" in stage else ("fit", extracted.entry)))
    assert code == 130
    assert ("--resume" if "train" in stage else "run the same command again to continue") in error


def test_a_readout_keeps_its_input_scaling_when_the_prepared_data_is_gone(tiny_gpt2, tmp_path):
    draw = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = (20 + 3 * draw.normal(size=(90, 8, 2)) + 4 * y[:, None, None]).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    found = extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), cache=tmp_path / "cache", pool="mean")
    whole = fit(found, columns="final/mean")
    expected = [one.label for one in predict(whole.saved.parent, tmp_path / "own.npz", device="cpu")]
    shutil.rmtree(tmp_path / "cache" / "prepared")
    gone = fit(found, columns="final/mean", out=tmp_path / "gone")
    assert gone.raw is None and gone.best.valid_score == whole.best.valid_score
    assert [one.label for one in predict(tmp_path / "gone", tmp_path / "own.npz", device="cpu")] == expected


def test_a_cache_that_is_moved_or_relative_keeps_its_baselines(tiny_gpt2, tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    for name in ("own", "other"):
        np.savez(tmp_path / f"{name}.npz", x=draw.normal(size=(90, 8, 2)), y=np.arange(90) % 3)
    monkeypatch.chdir(tmp_path)
    settings = {"backbone": str(tiny_gpt2), "layers": "final", "pool": "mean", "limit": 40}
    entry = extract("own.npz", cache=Path("cache"), **settings).entry
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    whole = fit(tmp_path / entry, columns="final/mean", out=tmp_path / "whole")
    assert whole.raw is not None
    (tmp_path / "cache").rename(elsewhere / "cache")
    assert fit(entry.absolute(), columns="final/mean", out=tmp_path / "again").raw == whole.raw
    # Other data that takes the name is not the data of the entry.
    (folder,) = Path("cache/prepared").glob("*/[0-9a-f]*")
    prepared_elsewhere = prepare(str(tmp_path / "other.npz"), cache=Path("others")).path
    shutil.rmtree(folder)
    prepared_elsewhere.rename(folder)
    assert fit(entry.absolute(), columns="final/mean", out=tmp_path / "other").raw is None


def test_an_entry_may_have_a_relative_path_or_lie_outside_the_cache(extracted, tmp_path, monkeypatch):
    monkeypatch.chdir(extracted.entry.parent)
    inside = fit(extracted.entry.name, columns="final/mean")
    assert inside.results.parent.parent.parent == extracted.entry.parents[2] / "readouts"
    shutil.copytree(extracted.entry, tmp_path / "moved")
    assert fit(str(tmp_path / "moved"), columns="final/mean").results.parent.name.startswith("moved-ridge-")


def test_a_learning_curve_may_start_with_fewer_rows_than_shards(tiny_gpt2, tmp_path):
    extracted = extract("digits", backbone=str(tiny_gpt2), limit=600, cache=tmp_path, layers="final", pool="mean")
    done = fit(extracted, columns="final/mean", alphas="1:100:3", curve="1,2")
    assert [point.rows for point in done.curve] == [1, 2]
    assert all(0 <= valid <= 1 and 0 <= test <= 1 for _, valid, test, *_ in done.curve)


@pytest.mark.parametrize(
    ("readout", "classes", "words"),
    [
        ("sklearn.linear_model.Ridge:alpha=1", 10, "not a classifier"),
        ("sklearn.linear_model.LinearRegression", 2, "not a classifier"),
        ("sklearn.cluster.KMeans", 10, "not a classifier"),
        ("sklearn.cluster.KMeans", 0, "not a regressor"),
        ("sklearn.linear_model.LogisticRegression", 0, "not a regressor"),
        ("sklearn.pipeline.Pipeline", 10, "cannot be created"),
    ],
)
def test_a_readout_that_does_not_suit_the_task_is_refused(readout, classes, words):
    message = outcome(make_fitter, FitOptions(readout=readout), classes)
    assert readout.partition(":")[0] in message and words in message


@pytest.fixture
def drawn(tmp_path, figures):
    """Return a function that plots some readouts, of which the last is chosen, and returns the axes."""

    def draw(columns, settings, metric="accuracy"):
        results = [
            Result(columns=tuple(column.split("+")), readout=name, alpha=alpha, valid_score=0.5, metric=metric)
            for column in columns
            for name, alpha in settings
        ]
        plot_sweep(tmp_path / "sweep.png", score_grid(results, results[-1]), 0.4, metric, "title")
        return figures[-1].axes[:2]

    return draw


@pytest.mark.parametrize(("metric", "value", "words"), [("accuracy", 50, "accuracy (%)"), ("R²", 0.5, "R²")])
def test_the_plot_of_a_sweep_names_its_metric(drawn, metric, value, words):
    lines, heat = drawn(["embed/mean", "final/mean"], [("ridge", 1.0), ("ridge", 10.0)], metric)
    assert words in lines.get_ylabel()
    assert words in heat.get_title()
    np.testing.assert_allclose(lines.lines[0].get_ydata(), value)
    np.testing.assert_allclose(heat.images[0].get_array(), value)
    np.testing.assert_allclose(heat.images[0].get_clim(), [0.98 * value, value])


def test_no_line_of_the_plot_connects_two_entries(drawn):
    layers = ["1:embed", "1:block01", "1:final", "2:embed", "2:final"]
    lines, _ = drawn([f"{layer}/mean" for layer in layers], [("ridge", 1.0)])
    assert np.isnan(lines.lines[0].get_ydata()).tolist() == [False, False, False, True, False, False]
    assert [label.get_text() for label in lines.get_xticklabels()] == [*layers[:3], "", *layers[3:]]


def test_the_plot_of_concatenated_columns_alone_has_a_point_for_each(drawn):
    lines, _ = drawn(["raw", "embed/max+embed/min"], [("ridge", 1.0)])
    assert list(lines.lines[0].get_ydata()) == [50, 50] and lines.lines[0].get_label() == "concatenated"
    assert lines.lines[0].get_linestyle() == "None"


def test_each_readout_and_each_candidate_has_its_own_scores_in_the_plot():
    # Two ridges have the same penalties, and two candidates have the title "block01 (3 columns)".
    candidates = [
        tuple(f"block01/{pool}" for pool in pools) for pools in (("last", "max", "mean"), ("max", "min", "std"))
    ]
    settings = [("ridge", 1.0), ("ridge", 10.0), ("ridge of changes", 1.0), ("ridge of changes", 10.0), ("mean", None)]
    scores = iter(np.arange(10) / 10)
    results = [
        Result(columns=columns, readout=readout, alpha=alpha, valid_score=next(scores))
        for columns in candidates
        for readout, alpha in settings
    ]
    grid = score_grid(results, results[6])
    assert grid.columns == ["+".join(columns) for columns in candidates]
    assert grid.settings == ["mean", "ridge 1", "ridge 10", "ridge of changes 1", "ridge of changes 10"]
    np.testing.assert_array_equal(grid.scores, np.array([[4, 0, 1, 2, 3], [9, 5, 6, 7, 8]]) / 10)
    assert grid.scores[grid.best] == results[6].valid_score
    # A penalty alone is the name of a setting if each candidate has one readout.
    assert score_grid(results[:2] + results[4:7], results[0]).settings == ["mean", "1", "10"]


ALPHAS = np.logspace(-2, 6, 25)


@dataclass(frozen=True)
class Held(Samples):
    """A source of samples in memory: features and labels of each split."""

    splits: Any
    columns: tuple[str, ...] = ("held",)

    def blocks(self, split):
        yield self.splits[split]

    def labels(self, split):
        return self.splits[split][1]

    def width(self):
        return self.splits["train"][0].shape[1]

    def tokens(self):
        return 1

    def counts(self, split):
        return np.ones(len(self.splits[split][1]), int)

    def groups(self, split):
        return None


def held(x, y, name="held"):
    """Return a source of samples that are split into 60% train, 20% valid and 20% test."""
    cut = [int(0.6 * len(x)), int(0.8 * len(x))]
    parts = zip(("train", "valid", "test"), np.split(x, cut), np.split(y, cut), strict=True)
    return Held({split: (a, b) for split, a, b in parts}, (name,))


@pytest.mark.parametrize("folds", [0, 5])
@pytest.mark.parametrize("width", [5, 300])
def test_the_grid_is_extended_where_its_end_scores_best(folds, width):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((250, 4)) @ rng.standard_normal((4, width))
    source = held(x, x[:, :1] + 1e-9 * rng.standard_normal((250, 1)))  # smaller penalties are better
    kept = RidgeFitter(classes=0, alphas=ALPHAS, folds=folds, widens=False).fit(source)
    wide = RidgeFitter(classes=0, alphas=ALPHAS, folds=folds).fit(source)
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


@pytest.mark.parametrize("outputs", [1, 3])
def test_logistic_readouts_of_cross_validation_are_calibrated(outputs):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 3))
    y = (rng.random((1000, outputs)) < 1 / (1 + np.exp(-2 * x[:, :outputs]))).astype(int)
    source = held(x, y)
    readout = LogisticFitter(classes=2, alphas=np.array([1e3]), folds=5).fit(source).readout
    found, plain = (one.probabilities(x[800:])[..., 1] for one in (readout, replace(readout, temperature=1.0)))
    assert log_loss(y[800:].ravel(), found.ravel()) < log_loss(y[800:].ravel(), plain.ravel()) - 0.05


def test_random_labels_give_chance_accuracy_and_uniform_p_values():
    accuracies, p_values, draws = [], [], 60
    fitter = RidgeFitter(classes=2, alphas=ALPHAS[::3], folds=5)
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, (300, 1))
        raw, *sources = (held(rng.standard_normal((300, width)), y) for width in (20, 20, 60, 200))
        trials = [fitter.fit(source) for source in sources]
        best = max(range(3), key=lambda i: trials[i].result.sort_key)
        found = evaluate_blocks(trials[best].readout, sources[best].blocks("test"), ["a", "b"])
        accuracies.append(found.scores["accuracy"])
        of_raw = evaluate_blocks(fitter.fit(raw).readout, raw.blocks("test"), ["a", "b"])
        p_values.append(p_value_of_difference(found, of_raw))
        assert trials[best].result.valid_score > 0.5  # the best of many is above chance by selection
    assert abs(np.mean(accuracies) - 0.5) < 2 * 0.5 / np.sqrt(draws * 60)
    for level in (0.05, 0.1, 0.25, 0.5):
        assert abs(np.mean(np.array(p_values) <= level) - level) <= 3 * np.sqrt(level * (1 - level) / draws)
    assert len(set(p_values)) > 10


@pytest.mark.parametrize("classes", [0, 3])
def test_refit_adds_the_moments_of_valid_and_does_not_read_train_again(tiny_gpt2, tmp_path, classes, monkeypatch):
    monkeypatch.setattr(ridge_fitter, "SMALL_WORK", 0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 6, 2)).astype(np.float32)
    y = x[:, :, 0].mean(axis=1) + 0.1 * rng.standard_normal(400)
    np.savez(tmp_path / "rows.npz", x=x, y=np.digitize(y, [-0.2, 0.2]) if classes else y)
    settings = {"backbone": str(tiny_gpt2), "cache": tmp_path / "cache", "layers": "final", "pool": "mean"}
    source = ColumnSource(
        EntryView(extract(str(tmp_path / "rows.npz"), **settings).store, KNOWN_SPLITS), Column("final", "mean")
    )
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
    # Valid has other shares of the classes than train. Folds hold out each row once, and the readout is fitted to all.
    assert found.result.valid_score == pytest.approx(expected, abs=0.1 if folds else 1e-12)
    scored = fit_source(RidgeFitter(classes=2, alphas=np.ones(1), folds=folds, balanced=True), source)
    assert scored.sample_scores().mean() == pytest.approx(scored.result.valid_score)
    assert found.result.valid_score < 0.9  # the constant answer "negative" has accuracy 0.92


def test_balanced_weights_count_the_rows_that_a_readout_is_fitted_to():
    source = held(*rare(500, seed=0))
    labels = {split: source.labels(split).ravel() for split in ("train", "valid")}
    both = balanced_weights(np.bincount(np.concatenate([*labels.values()])))
    settings = {"classes": 2, "alphas": ALPHAS, "balanced": True}
    assert RidgeFitter(**settings, refits=True).targets(source).class_weights == both
    assert RidgeFitter(**settings, folds=5).targets(source).class_weights == both
    train = balanced_weights(np.bincount(labels["train"]))
    assert RidgeFitter(**settings).targets(source).class_weights == train != both


def test_stored_moments_are_those_of_the_whole_column(tiny_gpt2, tmp_path, monkeypatch):
    settings = {"backbone": str(tiny_gpt2), "cache": tmp_path, "layers": "final", "pool": "mean"}
    extracted = extract("digits", limit=600, **settings)
    source, targets = ColumnSource(EntryView(extracted.store, KNOWN_SPLITS), Column("final", "mean")), Targets(1, 10)
    part = source.view["train"]
    expected = [accumulate([(part["final/mean"], targets.coded(part.labels[:, 0]))])]
    numbers = assign_folds(source, 3, 10)
    folds = [*fold_blocks(source, numbers)]
    expected += fold_moments(folds, targets, 3)
    assert stored_moments(source, targets, source.blocks("train")) is None  # so few take no time
    monkeypatch.setattr(ridge_fitter, "SMALL_WORK", 0)
    for _ in range(2):  # computed, then read from the entry
        found = stored_moments(source, targets, source.blocks("train"))
        found += stored_moments(source, targets, folds, numbers)
        for a, b in zip(found, expected, strict=True):
            for name, value in b.to_arrays().items():
                np.testing.assert_allclose(a.to_arrays()[name], value, rtol=1e-10, atol=1e-10 * np.abs(value).max())
    # The moments of other folds of the same rows are not those that are stored.
    others = assign_folds(source, 3, 10, repeats=2)[:, 1:]
    of_others = stored_moments(source, targets, fold_blocks(source, others), others)
    assert of_others[0].count == np.sum(others == 0) and (of_others[0].mean != found[1].mean).any()
    for device, words in [("nowhere", "nowhere"), ("meta", "cuda")]:
        with pytest.raises(InputError, match=words):
            fit(extracted, out=tmp_path, device=device)


@pytest.fixture(params=STORES)
def stored_columns(request, tiny_gpt2, tmp_path, monkeypatch):
    """Return features in several blocks, with several offsets in a block."""
    monkeypatch.setitem(BLOCK_ROWS, "cpu", 60)
    monkeypatch.setattr("reservoir_pipelines.extraction.entries.MIN_BLOCKS", 3)
    settings = {"backbone": str(tiny_gpt2), "layers": "block01,final", "pool": "last,segments2"}
    return extract("digits", limit=600, store=request.param, cache=tmp_path, **settings)


def test_features_that_a_device_decodes_are_those_of_the_cache(stored_columns):
    for name in ("final/last", "final/segments2"):
        source = ColumnSource(EntryView(stored_columns.store, KNOWN_SPLITS), Column.parse(name))
        with products_on(Arithmetic("cpu")):
            blocks = [*source.blocks_for_products("train")]
        assert len(blocks) > 1 and all(isinstance(x, StoredFeatures) for x, _ in blocks)
        for (x, y), (expected, labels) in zip(blocks, source.blocks("train"), strict=True):
            is_odd = np.arange(len(x)) % 2 == 1
            for part in (slice(None), slice(70, 130), is_odd):
                np.testing.assert_array_equal(x[part].on("cpu").numpy(), expected[part])
                np.testing.assert_array_equal(np.concatenate([x[part]]), expected[part])
            np.testing.assert_array_equal(y, labels)
            assert x.shape == expected.shape and x.nbytes <= expected.nbytes and len(x) == len(expected)


@pytest.mark.parametrize("stored_columns", ["float16"], indirect=True)
@pytest.mark.parametrize("select", ["valid", "auto"])
def test_a_fit_on_a_device_is_that_of_the_host(stored_columns, select, monkeypatch):
    settings = {"select": select, "columns": "final/last,final/segments2,block01/last+final/last"}
    expected = fit(stored_columns, **settings)
    monkeypatch.setattr("reservoir_pipelines.fitting.fit._arithmetic", lambda place: Arithmetic("cpu"))
    shutil.rmtree(stored_columns.entry / "moments", ignore_errors=True)
    result = fit(stored_columns, **settings)
    scores = [[(row.columns, row.alpha, row.valid_score) for row in fitted.table] for fitted in (result, expected)]
    assert scores[0] == scores[1]
    assert (result.best.columns, result.best.test_score) == (expected.best.columns, expected.best.test_score)
    np.testing.assert_allclose(result.readout.coef, expected.readout.coef, rtol=1e-6, atol=1e-8)


def test_race_leaves_the_best_third_and_names_the_others(tmp_path, narrow_mini, monkeypatch):
    settings = {"limit": 240, "layers": "block01,block02", "pool": "mean,max,last"}
    without = fit(extract("digits", cache=tmp_path / "without", **settings))
    monkeypatch.setattr("reservoir_pipelines.fitting.candidates.RACED_ROWS", 100)
    monkeypatch.setattr("reservoir_pipelines.fitting.candidates.MIN_RACE_ROWS", 100)
    extracted = extract("digits", cache=tmp_path / "raced", **settings)
    done, again = fit(extracted), fit(extracted)
    tried = {result.name for result in without.table}
    finalists = {result.name for result in done.table}
    left_out = [result.name for result in done.left_out]
    assert not without.left_out and len(finalists) == -(-len(tried) // 3)
    assert finalists | set(left_out) == tried and not finalists & set(left_out)
    scores = [result.sort_key for result in done.left_out]
    assert scores == sorted(scores, reverse=True) and done.to_dict()["left_out"] == left_out
    assert [result.to_dict() for result in again.table] == [result.to_dict() for result in done.table]
    on_all = {(result.name, result.alpha): result.valid_score for result in without.table}
    assert all(on_all[result.name, result.alpha] == result.valid_score for result in done.table)
    for asked in ({"select": "cv5"}, {"columns": "block01/mean,block01/max,block02/mean,block02/last"}):
        assert not fit(extracted, **asked).left_out


def test_fit_says_that_the_weights_of_the_model_folder_have_changed_since(
    cache, tiny_gpt2, tmp_path, capsys, monkeypatch
):
    from reservoir_pipelines import weight_files
    from safetensors.torch import load_file, save_file

    from reservoir.loaded_model import load_model

    folder = shutil.copytree(tiny_gpt2, tmp_path / "model")
    done = extract("digits", backbone=str(folder), limit=60, layers="final", pool="mean", compute="float32")
    loads = Mock(side_effect=load_model)
    monkeypatch.setattr("reservoir.loaded_model.load_model", loads)

    task = Task.from_dict(done.store.entry.spec.task)

    def cautions():
        capsys.readouterr()
        weight_files.caution_if_changed(done.store.entry, task)
        return [line for line in capsys.readouterr().err.splitlines() if "CAUTION" in line]

    assert cautions() == [] and not loads.called  # the stamps are the same
    file = folder / "model.safetensors"
    os.utime(file, ns=(0, 0))
    assert cautions() == [] and loads.called  # other stamps, the same weights
    tensors = load_file(file)
    name = next(name for name in tensors if "ln_f" in name)
    save_file(tensors | {name: tensors[name] + 1}, file, {"format": "pt"})
    capsys.readouterr()
    fit(done, columns="final/mean", out=tmp_path / "readout")
    said = [line for line in capsys.readouterr().err.splitlines() if "CAUTION: the weights" in line]
    assert len(said) == 1 and str(folder) in said[0] and "have changed since" in said[0]
    file.write_bytes(b"")
    assert "can no longer be read" in cautions()[0]
    shutil.rmtree(folder)
    assert cautions() == []
    drawn = extract("digits", backbone=str(tiny_gpt2), init="random", limit=60, layers="final", pool="mean")
    assert drawn.store.entry.made_with["weight_files"] == {}


@pytest.mark.parametrize(
    "title", ["a short title", "waves.npz x mini-pretrained-" + "0123456789abcdef" * 9, "word " * 60]
)
def test_titles_of_plots_are_broken_into_lines_and_not_cut(tmp_path, title):
    with saved_figure(tmp_path / "plot.png", 4, 3, title) as figure:
        (shown,) = figure.texts
        assert shown.get_window_extent().width <= figure.bbox.width
        assert re.sub(r"\s", "", shown.get_text()) == re.sub(r"\s", "", title)
    assert (tmp_path / "plot.png").exists()
